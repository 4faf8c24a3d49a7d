/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bootstrap_jobs.h - TCP jobs on a socket that the test opened, and connections that the test makes
 * by hand to play a stranger or a rank that breaks the protocol.
 */
#ifndef AFD_TESTS_BOOTSTRAP_JOBS_H
#define AFD_TESTS_BOOTSTRAP_JOBS_H

#include "bootstrap_ranks.h"

#include "bootstrap/tcp_wire.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

/* Strangers can queue on the socket before rank 0 runs. */
struct job {
    int listen_fd;
    uint16_t port;
    char rendezvous[32];
};

static inline int listen_at(int family, uint16_t port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int bound;

    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0)
        return -1;
    bound = family == AF_INET ? bind(fd, (struct sockaddr *)&v4, sizeof(v4))
                              : bind(fd, (struct sockaddr *)&v6, sizeof(v6));
    if (bound == 0 && listen(fd, 64) == 0)
        return fd;
    close(fd);
    return -1;
}

static inline uint16_t port_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t bytes = sizeof(at);
    char port[8] = "";

    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    assert_int_equal(
        getnameinfo((struct sockaddr *)&at, bytes, NULL, 0, port, sizeof(port), NI_NUMERICSERV), 0);
    return (uint16_t)strtoul(port, NULL, 10);
}

static inline void job_init(struct job *job, struct rank_run *runs, uint32_t count)
{
    job->listen_fd = listen_at(AF_INET, 0);
    assert_true(job->listen_fd >= 0);
    job->port = port_of(job->listen_fd);
    snprintf(job->rendezvous, sizeof(job->rendezvous), "127.0.0.1:%u", (unsigned)job->port);
    ranks_init(runs, count, AFD_BOOTSTRAP_TCP);
    for (uint32_t i = 0; i < count; i++)
        runs[i].config.rendezvous = job->rendezvous;
    runs[0].config.listen_fd = job->listen_fd;
}

/* ---------------------------------------------------------------------------- raw connections */

static inline int stranger_connect(const struct job *job)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(job->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

static inline void stranger_send(int fd, const void *data, size_t bytes)
{
    assert_int_equal(send(fd, data, bytes, MSG_NOSIGNAL), bytes);
}

/* Says hello as rank `rank`, and the server's answer if rank 0 runs. */
static inline void raw_hello(int fd, uint32_t version, uint32_t world, uint32_t rank,
                             struct afd_wire_transcript *transcript)
{
    struct afd_wire_hello hello = {.version = version, .world = world, .rank = rank};

    memset(transcript, 0, sizeof(*transcript));
    randombytes_buf(hello.nonce, sizeof(hello.nonce));
    afd_wire_hello_encode(&hello, transcript->client_hello);
    stranger_send(fd, transcript->client_hello, sizeof(transcript->client_hello));
    assert_int_equal(
        recv(fd, transcript->server_hello, sizeof(transcript->server_hello), MSG_WAITALL),
        sizeof(transcript->server_hello));
}

/* The whole handshake; returns the verdict. */
static inline uint32_t raw_join(int fd, const char *key_text, uint32_t world, uint32_t rank)
{
    struct afd_wire_transcript transcript;
    struct afd_wire_verdict verdict;
    uint8_t key[AFD_WIRE_KEY_BYTES];
    uint8_t proof[AFD_WIRE_PROOF_BYTES];
    uint8_t answer[AFD_WIRE_VERDICT_BYTES + AFD_WIRE_PROOF_BYTES];

    raw_hello(fd, AFD_WIRE_VERSION, world, rank, &transcript);
    afd_wire_key_derive(key_text, key);
    afd_wire_proof_make(key, AFD_WIRE_CLIENT, &transcript, proof);
    stranger_send(fd, proof, sizeof(proof));
    assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    afd_wire_verdict_decode(answer, &verdict);
    memcpy(transcript.verdict, answer, AFD_WIRE_VERDICT_BYTES);
    if (verdict.code == AFD_WIRE_ACCEPTED)
        assert_true(afd_wire_proof_check(key, AFD_WIRE_SERVER, &transcript,
                                         answer + AFD_WIRE_VERDICT_BYTES));
    return verdict.code;
}

static inline void raw_record(int fd, uint32_t magic, uint32_t sequence, uint32_t rank,
                              uint32_t bytes)
{
    struct afd_wire_record record = {magic, sequence, rank, bytes};
    uint8_t header[AFD_WIRE_RECORD_BYTES];

    afd_wire_record_encode(&record, header);
    stranger_send(fd, header, sizeof(header));
}

#endif
