/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_wire.h - the bytes of the TCP bootstrap. All integers are little-endian.
 *
 *     client (rank 1 ..)                          server (rank 0)
 *     connect
 *     hello    56 bytes          ---------->      not a hello: dropped
 *                                <----------      hello    56 bytes
 *     proof    32 bytes          ---------->      wrong: verdict KEY, dropped
 *                                <----------      verdict  16 bytes + proof 32 bytes
 *                 ... once every rank has joined ...
 *                                <----------      record READY
 *     record DATA  + bytes       ---------->      \ one allgather
 *                                <----------      / record ALL + world * bytes
 *                                <--------->      record ERROR + code + text, at any time
 *
 *     hello    8 "AFD-COMM", u32 version, u32 world, u32 rank, u32 0, 32 random bytes
 *     proof    HMAC-SHA512-256, keyed by a hash of the job key, over the role of its maker, the
 *              server's hello, the client's hello, and the verdict (16 zero bytes in the client's)
 *     verdict  u32 code, u32 server's value, u32 client's value, u32 0
 *     record   u32 magic, u32 sequence, u32 rank, u32 bytes (of one rank in ALL, of the body else)
 *
 * Both nonces are in every proof, so none can be replayed; the role is, so none can be reflected.
 * The handshake authenticates; it does not encrypt, and records carry no signature of their own.
 */
#ifndef AFD_BOOTSTRAP_TCP_WIRE_H
#define AFD_BOOTSTRAP_TCP_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#define AFD_WIRE_VERSION 1u /* of this handshake */
#define AFD_WIRE_MAGIC_BYTES 8u
#define AFD_WIRE_NONCE_BYTES 32u
#define AFD_WIRE_HELLO_BYTES 56u
#define AFD_WIRE_KEY_BYTES 32u
#define AFD_WIRE_PROOF_BYTES 32u
#define AFD_WIRE_VERDICT_BYTES 16u
#define AFD_WIRE_RECORD_BYTES 16u

#define AFD_WIRE_DATA_BYTES_MAX (1u << 20) /* of one rank in one allgather */
#define AFD_WIRE_TEXT_BYTES_MAX 511u       /* of an ERROR record, behind its 4 bytes of code */

extern const char afd_wire_magic[AFD_WIRE_MAGIC_BYTES];

struct afd_wire_hello {
    uint32_t version;
    uint32_t world;
    uint32_t rank;
    uint8_t nonce[AFD_WIRE_NONCE_BYTES];
};

enum afd_wire_verdict_code {
    AFD_WIRE_ACCEPTED = 0,
    AFD_WIRE_WRONG_KEY = 1, /* the only one without a proof: the server's would not be understood */
    AFD_WIRE_WRONG_WORLD = 2,
    AFD_WIRE_WRONG_RANK = 3,
    AFD_WIRE_DUPLICATE_RANK = 4,
};

struct afd_wire_verdict {
    uint32_t code;         /* enum afd_wire_verdict_code */
    uint32_t server_value; /* what rank 0 has, */
    uint32_t client_value; /* and what the client said */
};

/* The four letters in the order in which they travel. */
#define AFD_WIRE_LETTERS(a, b, c, d)                                                               \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
#define AFD_WIRE_READY AFD_WIRE_LETTERS('A', 'F', 'D', 'R')
#define AFD_WIRE_DATA AFD_WIRE_LETTERS('A', 'F', 'D', 'D')
#define AFD_WIRE_ALL AFD_WIRE_LETTERS('A', 'F', 'D', 'A')
#define AFD_WIRE_ERROR AFD_WIRE_LETTERS('A', 'F', 'D', 'E')

struct afd_wire_record {
    uint32_t magic;
    uint32_t sequence; /* number of the allgather, from 1 */
    uint32_t rank;     /* who sent it */
    uint32_t bytes;
};

void afd_wire_put_u32(uint8_t *at, uint32_t value);
uint32_t afd_wire_get_u32(const uint8_t *at);

void afd_wire_hello_encode(const struct afd_wire_hello *hello,
                           uint8_t bytes_out[AFD_WIRE_HELLO_BYTES]);
/* false: not a hello of this library. The version is not judged here. */
bool afd_wire_hello_decode(const uint8_t bytes[AFD_WIRE_HELLO_BYTES],
                           struct afd_wire_hello *hello_out);
void afd_wire_verdict_encode(const struct afd_wire_verdict *verdict,
                             uint8_t bytes_out[AFD_WIRE_VERDICT_BYTES]);
void afd_wire_verdict_decode(const uint8_t bytes[AFD_WIRE_VERDICT_BYTES],
                             struct afd_wire_verdict *verdict_out);
void afd_wire_record_encode(const struct afd_wire_record *record,
                            uint8_t bytes_out[AFD_WIRE_RECORD_BYTES]);
void afd_wire_record_decode(const uint8_t bytes[AFD_WIRE_RECORD_BYTES],
                            struct afd_wire_record *record_out);

/* The job key as a person typed it, any length, to a key of fixed size. */
void afd_wire_key_derive(const char *text, uint8_t key_out[AFD_WIRE_KEY_BYTES]);

/* What a proof is about. */
struct afd_wire_transcript {
    uint8_t server_hello[AFD_WIRE_HELLO_BYTES];
    uint8_t client_hello[AFD_WIRE_HELLO_BYTES];
    uint8_t verdict[AFD_WIRE_VERDICT_BYTES]; /* zero while the client makes its proof */
};

enum afd_wire_prover {
    AFD_WIRE_SERVER,
    AFD_WIRE_CLIENT,
};

void afd_wire_proof_make(const uint8_t key[AFD_WIRE_KEY_BYTES], enum afd_wire_prover prover,
                         const struct afd_wire_transcript *transcript,
                         uint8_t proof_out[AFD_WIRE_PROOF_BYTES]);
/* In constant time. */
bool afd_wire_proof_check(const uint8_t key[AFD_WIRE_KEY_BYTES], enum afd_wire_prover prover,
                          const struct afd_wire_transcript *transcript,
                          const uint8_t proof[AFD_WIRE_PROOF_BYTES]);

#endif
