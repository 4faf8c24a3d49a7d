/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_client.c - a rank other than 0 until it has joined.
 *
 * Until rank 0 has given its verdict, everything that can come from its not being there yet (no
 * listener, no such name, a connection that closes) is tried again; a wrong answer is final.
 */
#include "bootstrap/tcp.h"
#include "bootstrap/deadline.h"
#include "error.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RETRY_FIRST_US 5000u
#define RETRY_MOST_US 200000u
#define ONE_ADDRESS_US 3000000u /* for one of several addresses */

/* What an attempt came to, besides 0 and the AFD_E* codes. */
#define ATTEMPT_AGAIN 1

struct client {
    struct afd_tcp *tcp;
    uint32_t attempts;
    char reason[160]; /* why the last attempt failed */
};

static int again(struct client *client, const char *reason)
{
    snprintf(client->reason, sizeof(client->reason), "%s", reason);
    return ATTEMPT_AGAIN;
}

/* What a send or receive that did not finish means before the verdict. */
static int not_moved(struct client *client, enum afd_socket_result result)
{
    if (result == AFD_SOCKET_LATE)
        return again(client, "it accepts connections but does not answer");
    return again(client, "it closed the connection during the handshake");
}

static int wrong_key(const struct afd_tcp *tcp)
{
    return afd_error_set(AFD_EBOOTSTRAP,
                         "rank %u: rank 0 at %s does not have the same job key (AFD_KEY or --key)",
                         tcp->base.rank, tcp->rendezvous_text);
}

static int obey(const struct afd_tcp *tcp, const struct afd_wire_verdict *verdict)
{
    switch (verdict->code) {
    case AFD_WIRE_ACCEPTED:
        return 0;
    case AFD_WIRE_WRONG_WORLD:
        return afd_error_set(AFD_EMISMATCH, "rank %u has world %u, rank 0 at %s has world %u",
                             tcp->base.rank, verdict->client_value, tcp->rendezvous_text,
                             verdict->server_value);
    case AFD_WIRE_DUPLICATE_RANK:
        return afd_error_set(AFD_EBOOTSTRAP,
                             "rank %u came twice: rank 0 at %s already has another process or "
                             "thread that is rank %u",
                             tcp->base.rank, tcp->rendezvous_text, verdict->client_value);
    default:
        return afd_error_set(AFD_EPROTO,
                             "rank %u: rank 0 at %s refuses it for reason %u (world %u, rank %u)",
                             tcp->base.rank, tcp->rendezvous_text, verdict->code,
                             verdict->server_value, verdict->client_value);
    }
}

/* Sends our hello and checks that what answers is a rank 0 of our version. */
static int exchange_hellos(struct client *client, int fd, struct afd_wire_transcript *transcript)
{
    const struct afd_tcp *tcp = client->tcp;
    struct afd_wire_hello hello = {
        .version = AFD_WIRE_VERSION, .world = tcp->base.world, .rank = tcp->base.rank};
    enum afd_socket_result result;

    randombytes_buf(hello.nonce, sizeof(hello.nonce));
    afd_wire_hello_encode(&hello, transcript->client_hello);
    result =
        afd_socket_send_all(fd, transcript->client_hello, AFD_WIRE_HELLO_BYTES, tcp->deadline_us);
    if (result == AFD_SOCKET_DONE)
        result = afd_socket_receive_all(fd, transcript->server_hello, AFD_WIRE_HELLO_BYTES,
                                        tcp->deadline_us);
    if (result != AFD_SOCKET_DONE)
        return not_moved(client, result);
    if (!afd_wire_hello_decode(transcript->server_hello, &hello) || hello.rank != 0)
        return afd_error_set(AFD_EBOOTSTRAP,
                             "rank %u: what answers at %s is not a rank 0 of this library",
                             tcp->base.rank, tcp->rendezvous_text);
    if (hello.version != AFD_WIRE_VERSION)
        return afd_error_set(AFD_EMISMATCH,
                             "rank %u has handshake version %u, rank 0 at %s has version %u",
                             tcp->base.rank, AFD_WIRE_VERSION, tcp->rendezvous_text, hello.version);
    return 0;
}

static int handshake(struct client *client, int fd)
{
    const struct afd_tcp *tcp = client->tcp;
    struct afd_wire_transcript transcript = {.verdict = {0}};
    struct afd_wire_verdict verdict;
    uint8_t proof[AFD_WIRE_PROOF_BYTES];
    uint8_t answer[AFD_WIRE_VERDICT_BYTES + AFD_WIRE_PROOF_BYTES];
    enum afd_socket_result result;
    int error = exchange_hellos(client, fd, &transcript);

    if (error)
        return error;
    afd_wire_proof_make(tcp->key, AFD_WIRE_CLIENT, &transcript, proof);
    result = afd_socket_send_all(fd, proof, sizeof(proof), tcp->deadline_us);
    if (result == AFD_SOCKET_DONE)
        result = afd_socket_receive_all(fd, answer, sizeof(answer), tcp->deadline_us);
    if (result != AFD_SOCKET_DONE)
        return not_moved(client, result);
    afd_wire_verdict_decode(answer, &verdict);
    memcpy(transcript.verdict, answer, AFD_WIRE_VERDICT_BYTES);
    /* Nothing that the verdict says counts before its proof. */
    if (!afd_wire_proof_check(tcp->key, AFD_WIRE_SERVER, &transcript,
                              answer + AFD_WIRE_VERDICT_BYTES))
        return wrong_key(tcp);
    return obey(tcp, &verdict);
}

static int try_address(struct client *client, const struct addrinfo *at, uint64_t until_us)
{
    int fd;
    int error = afd_socket_connect(at, until_us, &fd);

    if (error == ECONNREFUSED)
        return again(client, "nobody listens there");
    if (error)
        return again(client, strerror(error));
    error = handshake(client, fd);
    if (error) {
        afd_socket_close(fd);
        return error;
    }
    client->tcp->peers[0].fd = fd;
    afd_socket_name(fd, true, client->tcp->peers[0].address);
    return 0;
}

static int try_once(struct client *client)
{
    struct afd_tcp *tcp = client->tcp;
    struct addrinfo *list;
    /* Resolved anew each time: the name of a host that is still starting can appear late. */
    int error = afd_address_resolve(&tcp->rendezvous, false, &list);

    client->attempts++;
    if (error)
        return again(client, gai_strerror(error));
    error = ATTEMPT_AGAIN;
    for (const struct addrinfo *at = list; at && error == ATTEMPT_AGAIN; at = at->ai_next) {
        uint64_t until_us = tcp->deadline_us;

        if (list->ai_next)
            until_us = afd_deadline_min(until_us, afd_deadline_after(ONE_ADDRESS_US));
        error = try_address(client, at, until_us);
    }
    freeaddrinfo(list);
    return error;
}

static void pause_until(uint64_t until_us)
{
    uint64_t now_us = afd_deadline_now_us();
    uint64_t left_us = until_us > now_us ? until_us - now_us : 0;
    struct timespec left = {.tv_sec = (time_t)(left_us / 1000000u),
                            .tv_nsec = (long)(left_us % 1000000u) * 1000};

    nanosleep(&left, NULL);
}

static int connect_to_rank_0(struct client *client)
{
    struct afd_tcp *tcp = client->tcp;
    uint64_t pause_us = RETRY_FIRST_US;

    for (;;) {
        int error = try_once(client);

        if (error != ATTEMPT_AGAIN)
            return error;
        if (afd_deadline_now_us() >= tcp->deadline_us)
            return afd_error_set(
                AFD_EPEER, "rank %u could not join rank 0 at %s within %.1f s: %s (%u attempts)",
                tcp->base.rank, tcp->rendezvous_text, afd_deadline_seconds(tcp->base.timeout_us),
                client->reason, client->attempts);
        pause_until(afd_deadline_min(afd_deadline_after(pause_us), tcp->deadline_us));
        pause_us = pause_us * 2 < RETRY_MOST_US ? pause_us * 2 : RETRY_MOST_US;
    }
}

/* Rank 0 says READY when every rank has joined, or why the group failed. */
static int wait_for_ready(struct afd_tcp *tcp)
{
    struct afd_tcp_peer *server = &tcp->peers[0];
    struct pollfd wait = {.fd = server->fd, .events = POLLIN};
    uint64_t until_us = tcp->deadline_us + AFD_TCP_GRACE_US;
    enum afd_tcp_event event;

    for (;;) {
        int ready = poll(&wait, 1, afd_deadline_left_ms(until_us));

        event = afd_tcp_read(server->fd, &server->reader);

        if (event == AFD_TCP_RECORD)
            return afd_tcp_fail_as_told(tcp, 0);
        if (event == AFD_TCP_HEADER && server->reader.record.magic == AFD_WIRE_READY &&
            server->reader.record.bytes == 0)
            break;
        if (event == AFD_TCP_HEADER || event == AFD_TCP_BROKEN)
            return afd_tcp_fail(
                tcp, AFD_EPROTO,
                "rank %u expected READY from rank 0 at %s, got record 0x%x of %u bytes",
                tcp->base.rank, tcp->rendezvous_text, server->reader.record.magic,
                server->reader.record.bytes);
        if (event == AFD_TCP_CLOSED)
            return afd_tcp_fail(
                tcp, AFD_EPEER,
                "rank %u: rank 0 at %s closed its connection (it died or left) before "
                "every rank had joined",
                tcp->base.rank, tcp->rendezvous_text);
        if (ready == 0)
            return afd_tcp_fail(
                tcp, AFD_EPEER,
                "rank %u joined rank 0 at %s, but heard nothing more from it within "
                "%.1f s: another rank is missing",
                tcp->base.rank, tcp->rendezvous_text,
                afd_deadline_seconds(tcp->base.timeout_us + AFD_TCP_GRACE_US));
    }
    /* The end of a record without a body, so that the next header is read as one. */
    event = afd_tcp_read(server->fd, &server->reader);
    AFD_ASSERT(event == AFD_TCP_RECORD);
    return 0;
}

int afd_tcp_client_join(struct afd_tcp *tcp)
{
    struct client client = {.tcp = tcp};
    int error = connect_to_rank_0(&client);

    return error ? error : wait_for_ready(tcp);
}
