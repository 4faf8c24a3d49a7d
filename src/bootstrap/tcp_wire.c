/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_wire.c - encoding, decoding and proving the bytes of the TCP bootstrap.
 */
#include "bootstrap/tcp_wire.h"

#include <sodium.h>
#include <string.h>

#define ROLE_BYTES 16u

_Static_assert(AFD_WIRE_HELLO_BYTES == AFD_WIRE_MAGIC_BYTES + 4 * 4 + AFD_WIRE_NONCE_BYTES,
               "a hello is its magic, four integers and a nonce");
_Static_assert(AFD_WIRE_KEY_BYTES == crypto_auth_KEYBYTES, "the key keys crypto_auth");
_Static_assert(AFD_WIRE_PROOF_BYTES == crypto_auth_BYTES, "a proof is a crypto_auth tag");

const char afd_wire_magic[AFD_WIRE_MAGIC_BYTES] = {'A', 'F', 'D', '-', 'C', 'O', 'M', 'M'};

void afd_wire_put_u32(uint8_t *at, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

uint32_t afd_wire_get_u32(const uint8_t *at)
{
    uint32_t value = 0;

    for (unsigned i = 0; i < 4; i++)
        value |= (uint32_t)at[i] << (8 * i);
    return value;
}

void afd_wire_hello_encode(const struct afd_wire_hello *hello,
                           uint8_t bytes_out[AFD_WIRE_HELLO_BYTES])
{
    memcpy(bytes_out, afd_wire_magic, AFD_WIRE_MAGIC_BYTES);
    afd_wire_put_u32(bytes_out + 8, hello->version);
    afd_wire_put_u32(bytes_out + 12, hello->world);
    afd_wire_put_u32(bytes_out + 16, hello->rank);
    afd_wire_put_u32(bytes_out + 20, 0);
    memcpy(bytes_out + 24, hello->nonce, AFD_WIRE_NONCE_BYTES);
}

bool afd_wire_hello_decode(const uint8_t bytes[AFD_WIRE_HELLO_BYTES],
                           struct afd_wire_hello *hello_out)
{
    if (memcmp(bytes, afd_wire_magic, AFD_WIRE_MAGIC_BYTES) != 0)
        return false;
    hello_out->version = afd_wire_get_u32(bytes + 8);
    hello_out->world = afd_wire_get_u32(bytes + 12);
    hello_out->rank = afd_wire_get_u32(bytes + 16);
    memcpy(hello_out->nonce, bytes + 24, AFD_WIRE_NONCE_BYTES);
    return true;
}

void afd_wire_verdict_encode(const struct afd_wire_verdict *verdict,
                             uint8_t bytes_out[AFD_WIRE_VERDICT_BYTES])
{
    afd_wire_put_u32(bytes_out, verdict->code);
    afd_wire_put_u32(bytes_out + 4, verdict->server_value);
    afd_wire_put_u32(bytes_out + 8, verdict->client_value);
    afd_wire_put_u32(bytes_out + 12, 0);
}

void afd_wire_verdict_decode(const uint8_t bytes[AFD_WIRE_VERDICT_BYTES],
                             struct afd_wire_verdict *verdict_out)
{
    verdict_out->code = afd_wire_get_u32(bytes);
    verdict_out->server_value = afd_wire_get_u32(bytes + 4);
    verdict_out->client_value = afd_wire_get_u32(bytes + 8);
}

void afd_wire_record_encode(const struct afd_wire_record *record,
                            uint8_t bytes_out[AFD_WIRE_RECORD_BYTES])
{
    afd_wire_put_u32(bytes_out, record->magic);
    afd_wire_put_u32(bytes_out + 4, record->sequence);
    afd_wire_put_u32(bytes_out + 8, record->rank);
    afd_wire_put_u32(bytes_out + 12, record->bytes);
}

void afd_wire_record_decode(const uint8_t bytes[AFD_WIRE_RECORD_BYTES],
                            struct afd_wire_record *record_out)
{
    record_out->magic = afd_wire_get_u32(bytes);
    record_out->sequence = afd_wire_get_u32(bytes + 4);
    record_out->rank = afd_wire_get_u32(bytes + 8);
    record_out->bytes = afd_wire_get_u32(bytes + 12);
}

void afd_wire_key_derive(const char *text, uint8_t key_out[AFD_WIRE_KEY_BYTES])
{
    static const char purpose[] = "afd-comm bootstrap job key, version 1";

    /* Keyed by its purpose, so that the same words used elsewhere give another key. */
    crypto_generichash(key_out, AFD_WIRE_KEY_BYTES, (const unsigned char *)text, strlen(text),
                       (const unsigned char *)purpose, sizeof(purpose) - 1);
}

void afd_wire_proof_make(const uint8_t key[AFD_WIRE_KEY_BYTES], enum afd_wire_prover prover,
                         const struct afd_wire_transcript *transcript,
                         uint8_t proof_out[AFD_WIRE_PROOF_BYTES])
{
    static const char roles[2][ROLE_BYTES] = {
        [AFD_WIRE_SERVER] = "afd-comm server",
        [AFD_WIRE_CLIENT] = "afd-comm client",
    };
    uint8_t message[ROLE_BYTES + 2 * AFD_WIRE_HELLO_BYTES + AFD_WIRE_VERDICT_BYTES];
    uint8_t *at = message;

    memcpy(at, roles[prover], ROLE_BYTES);
    at += ROLE_BYTES;
    memcpy(at, transcript->server_hello, AFD_WIRE_HELLO_BYTES);
    at += AFD_WIRE_HELLO_BYTES;
    memcpy(at, transcript->client_hello, AFD_WIRE_HELLO_BYTES);
    at += AFD_WIRE_HELLO_BYTES;
    memcpy(at, transcript->verdict, AFD_WIRE_VERDICT_BYTES);
    crypto_auth(proof_out, message, sizeof(message), key);
}

bool afd_wire_proof_check(const uint8_t key[AFD_WIRE_KEY_BYTES], enum afd_wire_prover prover,
                          const struct afd_wire_transcript *transcript,
                          const uint8_t proof[AFD_WIRE_PROOF_BYTES])
{
    uint8_t expected[AFD_WIRE_PROOF_BYTES];

    afd_wire_proof_make(key, prover, transcript, expected);
    return sodium_memcmp(expected, proof, AFD_WIRE_PROOF_BYTES) == 0;
}
