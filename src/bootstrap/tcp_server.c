/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_server.c - rank 0 until every rank has joined.
 *
 * Anybody may connect. A connection is a stranger (struct stranger) until its handshake succeeds,
 * then a peer. One poll watches the listening socket, the peers and the strangers, so none of them
 * holds up another; a stranger that is slow, silent or wrong is dropped and remembered for the
 * error that is written if a rank is missing in the end.
 */
#include "bootstrap/tcp.h"
#include "bootstrap/deadline.h"
#include "bootstrap/rank_list.h"
#include "error.h"

#include <errno.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXTRA_STRANGERS 64u   /* more than one per rank */
#define STRANGER_US 5000000u  /* how long a handshake may take */
#define WRONG_KEY_US 1000000u /* how long the true rank may come after a wrong key */
#define REFUSALS_TOLD 2u      /* how many refusals an error describes */
#define ANSWER_BYTES (AFD_WIRE_HELLO_BYTES + AFD_WIRE_PROOF_BYTES)

struct stranger {
    int fd;        /* -1: free */
    bool greeted;  /* our hello has been sent */
    uint32_t done; /* bytes of `answer` */
    uint64_t until_us;
    uint8_t answer[ANSWER_BYTES]; /* hello and proof: all that is read of a stranger */
    struct afd_wire_hello hello;  /* valid once greeted */
    struct afd_wire_transcript transcript;
    char address[AFD_ADDRESS_TEXT_BYTES];
};

struct server {
    struct afd_tcp *tcp;
    int listen_fd;
    uint32_t joined;
    uint32_t stranger_count;
    struct stranger *strangers;
    struct pollfd *polls; /* the listening socket, [world] peers, [stranger_count] strangers */
    char address[AFD_ADDRESS_HOST_BYTES + 16];
    uint32_t refusal_count;
    char refusals[REFUSALS_TOLD][128];
};

__attribute__((format(printf, 3, 4))) static void
refuse(struct server *server, struct stranger *stranger, const char *format, ...)
{
    va_list arguments;

    if (server->refusal_count < REFUSALS_TOLD) {
        va_start(arguments, format);
        vsnprintf(server->refusals[server->refusal_count], sizeof(server->refusals[0]), format,
                  arguments);
        va_end(arguments);
    }
    server->refusal_count++;
    afd_socket_close(stranger->fd);
    stranger->fd = -1;
}

static void send_verdict(struct server *server, struct stranger *stranger, uint32_t code,
                         uint32_t server_value, uint32_t client_value)
{
    struct afd_wire_verdict verdict = {code, server_value, client_value};
    uint8_t bytes[AFD_WIRE_VERDICT_BYTES + AFD_WIRE_PROOF_BYTES] = {0};

    afd_wire_verdict_encode(&verdict, bytes);
    memcpy(stranger->transcript.verdict, bytes, AFD_WIRE_VERDICT_BYTES);
    if (code != AFD_WIRE_WRONG_KEY)
        afd_wire_proof_make(server->tcp->key, AFD_WIRE_SERVER, &stranger->transcript,
                            bytes + AFD_WIRE_VERDICT_BYTES);
    /* Always fits: only our hello is before it. If the stranger has gone, the next read tells. */
    (void)afd_socket_send(stranger->fd, bytes, sizeof(bytes));
}

/* Somebody without the key claims to be a rank. Only if that rank is missing is this a reason to
 * give up, and not before the true one had the time to come. */
static void refuse_key(struct server *server, struct stranger *stranger)
{
    uint32_t rank = stranger->hello.rank;
    struct afd_tcp_peer *peer = &server->tcp->peers[rank < server->tcp->base.world ? rank : 0];

    send_verdict(server, stranger, AFD_WIRE_WRONG_KEY, 0, 0);
    if (rank > 0 && rank < server->tcp->base.world && peer->fd < 0 && peer->refused_us == 0) {
        peer->refused_us = afd_deadline_after(WRONG_KEY_US);
        memcpy(peer->address, stranger->address, sizeof(peer->address));
    }
    refuse(server, stranger, "wrong job key from %s, which says it is rank %u", stranger->address,
           rank);
}

static void accept_rank(struct server *server, struct stranger *stranger)
{
    struct afd_tcp_peer *peer = &server->tcp->peers[stranger->hello.rank];

    send_verdict(server, stranger, AFD_WIRE_ACCEPTED, 0, 0);
    peer->fd = stranger->fd;
    peer->refused_us = 0;
    memcpy(peer->address, stranger->address, sizeof(peer->address));
    stranger->fd = -1;
    server->joined++;
}

/* The handshake is complete. A mistake of somebody who has the key is one of this job, and fails
 * it at once. */
static int judge(struct server *server, struct stranger *stranger)
{
    struct afd_tcp *tcp = server->tcp;
    uint32_t world = tcp->base.world;
    const struct afd_wire_hello *hello = &stranger->hello;

    if (!afd_wire_proof_check(tcp->key, AFD_WIRE_CLIENT, &stranger->transcript,
                              stranger->answer + AFD_WIRE_HELLO_BYTES)) {
        refuse_key(server, stranger);
        return 0;
    }
    if (hello->world != world) {
        send_verdict(server, stranger, AFD_WIRE_WRONG_WORLD, world, hello->world);
        return afd_tcp_fail(tcp, AFD_EMISMATCH,
                            "rank %u at %s has world %u, rank 0 at %s has world %u", hello->rank,
                            stranger->address, hello->world, server->address, world);
    }
    if (hello->rank == 0 || hello->rank >= world) {
        send_verdict(server, stranger, AFD_WIRE_WRONG_RANK, world, hello->rank);
        return afd_tcp_fail(tcp, AFD_EPROTO,
                            "%s says it is rank %u, rank 0 waits for ranks 1 .. %u",
                            stranger->address, hello->rank, world - 1);
    }
    if (tcp->peers[hello->rank].fd >= 0) {
        send_verdict(server, stranger, AFD_WIRE_DUPLICATE_RANK, world, hello->rank);
        return afd_tcp_fail(tcp, AFD_EBOOTSTRAP,
                            "rank %u came twice to rank 0 at %s: from %s and %s", hello->rank,
                            server->address, tcp->peers[hello->rank].address, stranger->address);
    }
    accept_rank(server, stranger);
    return 0;
}

static void greet(struct server *server, struct stranger *stranger)
{
    struct afd_wire_hello hello = {.version = AFD_WIRE_VERSION, .world = server->tcp->base.world};

    memcpy(stranger->transcript.client_hello, stranger->answer, AFD_WIRE_HELLO_BYTES);
    randombytes_buf(hello.nonce, sizeof(hello.nonce));
    afd_wire_hello_encode(&hello, stranger->transcript.server_hello);
    stranger->greeted = true;
    (void)afd_socket_send(stranger->fd, stranger->transcript.server_hello, AFD_WIRE_HELLO_BYTES);
    if (stranger->hello.version != AFD_WIRE_VERSION)
        refuse(server, stranger, "handshake version %u from %s, which is not ours (%u)",
               stranger->hello.version, stranger->address, AFD_WIRE_VERSION);
}

/* Compares what is there of the magic, so that a wrong one is known at its first byte. */
static bool looks_like_hello(const struct stranger *stranger)
{
    uint32_t bytes = stranger->done < AFD_WIRE_MAGIC_BYTES ? stranger->done : AFD_WIRE_MAGIC_BYTES;

    return memcmp(stranger->answer, afd_wire_magic, bytes) == 0;
}

/* Reads what a stranger has sent, as far as the handshake goes. */
static int stranger_advance(struct server *server, struct stranger *stranger)
{
    while (stranger->fd >= 0) {
        uint32_t wanted = stranger->greeted ? ANSWER_BYTES : AFD_WIRE_HELLO_BYTES;
        ssize_t now = afd_socket_receive(stranger->fd, stranger->answer + stranger->done,
                                         wanted - stranger->done);

        if (now == 0)
            return 0;
        if (now < 0) {
            refuse(server, stranger, "%s closed its connection during the handshake",
                   stranger->address);
            return 0;
        }
        stranger->done += (uint32_t)now;
        if (!looks_like_hello(stranger))
            refuse(server, stranger, "not an AFD hello from %s", stranger->address);
        else if (stranger->done == ANSWER_BYTES)
            return judge(server, stranger);
        else if (stranger->done == AFD_WIRE_HELLO_BYTES && !stranger->greeted &&
                 afd_wire_hello_decode(stranger->answer, &stranger->hello))
            greet(server, stranger);
    }
    return 0;
}

/* A free place; if there is none, that of the stranger who has been there the longest: a real rank
 * connects again, so strangers in any number cannot keep it out. */
static struct stranger *stranger_place(struct server *server)
{
    struct stranger *oldest = &server->strangers[0];

    for (uint32_t i = 0; i < server->stranger_count; i++) {
        struct stranger *stranger = &server->strangers[i];

        if (stranger->fd < 0)
            return stranger;
        if (stranger->until_us < oldest->until_us)
            oldest = stranger;
    }
    refuse(server, oldest, "too many connections, dropped the one from %s", oldest->address);
    return oldest;
}

static int accept_strangers(struct server *server)
{
    for (;;) {
        struct stranger *stranger;
        int fd;
        int error = afd_socket_accept(server->listen_fd, &fd);

        if (error == EMFILE || error == ENFILE)
            return afd_tcp_fail(server->tcp, AFD_ESYSTEM,
                                "rank 0 at %s has no file descriptor left for another connection "
                                "(%u of %u ranks have joined)",
                                server->address, server->joined + 1, server->tcp->base.world);
        /* Any other error is of one connection that did not come about. */
        if (error)
            return 0;
        stranger = stranger_place(server);
        memset(stranger, 0, sizeof(*stranger));
        stranger->fd = fd;
        stranger->until_us = afd_deadline_after(STRANGER_US);
        afd_socket_name(fd, true, stranger->address);
    }
}

/* A rank that has joined has nothing to say before READY, except that it gives up. */
static int peer_listen(struct server *server, uint32_t rank)
{
    struct afd_tcp *tcp = server->tcp;
    enum afd_tcp_event event = afd_tcp_read(tcp->peers[rank].fd, &tcp->peers[rank].reader);

    if (event == AFD_TCP_NOTHING)
        return 0;
    if (event == AFD_TCP_RECORD)
        return afd_tcp_fail_as_told(tcp, rank);
    if (event == AFD_TCP_CLOSED)
        return afd_tcp_fail(tcp, AFD_EPEER,
                            "rank %u at %s closed its connection (it died or left) while %u of %u "
                            "ranks had joined",
                            rank, tcp->peers[rank].address, server->joined + 1, tcp->base.world);
    return afd_tcp_fail(tcp, AFD_EPROTO,
                        "rank %u at %s sent a record before the group was complete", rank,
                        tcp->peers[rank].address);
}

static bool is_missing(const void *context, uint32_t rank)
{
    const struct afd_tcp *tcp = context;

    return rank != 0 && tcp->peers[rank].fd < 0;
}

static int fail_missing(struct server *server)
{
    struct afd_tcp *tcp = server->tcp;
    char missing[AFD_RANK_LIST_BYTES];
    char refused[REFUSALS_TOLD * 130 + 64] = "";
    size_t used = 0;

    afd_rank_list_write(is_missing, tcp, tcp->base.world, missing);
    if (server->refusal_count > 0)
        used = (size_t)snprintf(refused, sizeof(refused),
                                "; refused %u connection%s: ", server->refusal_count,
                                server->refusal_count == 1 ? "" : "s");
    for (uint32_t i = 0; i < server->refusal_count && i < REFUSALS_TOLD; i++)
        used += (size_t)snprintf(refused + used, sizeof(refused) - used, "%s%s", i == 0 ? "" : ", ",
                                 server->refusals[i]);
    if (server->refusal_count > REFUSALS_TOLD)
        snprintf(refused + used, sizeof(refused) - used, ", ...");
    return afd_tcp_fail(tcp, AFD_EPEER, "rank 0 at %.80s waited %.1f s: %s of %u did not come%s",
                        server->address, afd_deadline_seconds(tcp->base.timeout_us), missing,
                        tcp->base.world, refused);
}

/* Drops strangers and gives up on ranks whose time has come; the next such time comes out. */
static int check_times(struct server *server, uint64_t *next_us_out)
{
    struct afd_tcp *tcp = server->tcp;
    uint64_t now_us = afd_deadline_now_us();
    uint64_t next_us = tcp->deadline_us;

    for (uint32_t rank = 1; rank < tcp->base.world; rank++) {
        const struct afd_tcp_peer *peer = &tcp->peers[rank];

        if (peer->refused_us == 0)
            continue;
        if (now_us >= peer->refused_us || now_us >= tcp->deadline_us)
            return afd_tcp_fail(
                tcp, AFD_EBOOTSTRAP,
                "rank %u at %s does not have the same job key (AFD_KEY or --key) as "
                "rank 0 at %s",
                rank, peer->address, server->address);
        next_us = afd_deadline_min(next_us, peer->refused_us);
    }
    if (now_us >= tcp->deadline_us)
        return fail_missing(server);
    for (uint32_t i = 0; i < server->stranger_count; i++) {
        struct stranger *stranger = &server->strangers[i];

        if (stranger->fd >= 0 && now_us >= stranger->until_us)
            refuse(server, stranger, "no complete handshake from %s", stranger->address);
        if (stranger->fd >= 0)
            next_us = afd_deadline_min(next_us, stranger->until_us);
    }
    *next_us_out = next_us;
    return 0;
}

static int wait_for_anything(struct server *server, uint64_t until_us)
{
    uint32_t world = server->tcp->base.world;
    uint32_t count = 1 + world + server->stranger_count;

    for (uint32_t i = 0; i < count; i++) {
        server->polls[i].events = POLLIN;
        server->polls[i].revents = 0;
        /* poll() passes over -1. */
        server->polls[i].fd = i == 0       ? server->listen_fd
                              : i <= world ? server->tcp->peers[i - 1].fd
                                           : server->strangers[i - 1 - world].fd;
    }
    if (poll(server->polls, count, afd_deadline_left_ms(until_us)) < 0 && errno != EINTR)
        return afd_tcp_fail(server->tcp, AFD_ESYSTEM, "rank 0 at %s: poll of %u sockets: %s",
                            server->address, count, strerror(errno));
    return 0;
}

static int serve_once(struct server *server)
{
    uint32_t world = server->tcp->base.world;
    uint64_t until_us = 0;
    int error = check_times(server, &until_us);

    if (!error)
        error = wait_for_anything(server, until_us);
    for (uint32_t rank = 1; rank < world && !error; rank++) {
        if (server->polls[1 + rank].revents)
            error = peer_listen(server, rank);
    }
    for (uint32_t i = 0; i < server->stranger_count && !error; i++) {
        if (server->polls[1 + world + i].revents)
            error = stranger_advance(server, &server->strangers[i]);
    }
    if (!error && server->polls[0].revents)
        error = accept_strangers(server);
    return error;
}

static void send_ready(struct afd_tcp *tcp)
{
    struct afd_wire_record record = {.magic = AFD_WIRE_READY};
    uint8_t bytes[AFD_WIRE_RECORD_BYTES];

    afd_wire_record_encode(&record, bytes);
    for (uint32_t rank = 1; rank < tcp->base.world; rank++)
        /* A rank that has died since is found by the first allgather. */
        (void)afd_socket_send(tcp->peers[rank].fd, bytes, sizeof(bytes));
}

static int server_run(struct server *server)
{
    struct afd_tcp *tcp = server->tcp;
    uint32_t polls = 1 + tcp->base.world + tcp->base.world + EXTRA_STRANGERS;
    int error = 0;

    server->strangers = calloc(tcp->base.world + EXTRA_STRANGERS, sizeof(*server->strangers));
    server->polls = calloc(polls, sizeof(*server->polls));
    if (!server->strangers || !server->polls) {
        error =
            afd_error_set(AFD_ENOMEM, "rank 0: no memory to wait for %u ranks", tcp->base.world);
        goto out;
    }
    server->stranger_count = tcp->base.world + EXTRA_STRANGERS;
    for (uint32_t i = 0; i < server->stranger_count; i++)
        server->strangers[i].fd = -1;
    while (!error && server->joined + 1 < tcp->base.world)
        error = serve_once(server);
    if (!error)
        send_ready(tcp);
out:
    for (uint32_t i = 0; server->strangers && i < server->stranger_count; i++)
        afd_socket_close(server->strangers[i].fd);
    free(server->polls);
    free(server->strangers);
    return error;
}

/* The first of the host's addresses that can be bound. */
static int listen_at_rendezvous(struct afd_tcp *tcp, int *fd_out)
{
    struct addrinfo *list;
    int error = afd_address_resolve(&tcp->rendezvous, true, &list);

    if (error)
        return afd_error_set(AFD_EBOOTSTRAP, "rank 0 cannot listen at %s: %s", tcp->rendezvous_text,
                             gai_strerror(error));
    error = EADDRNOTAVAIL;
    for (const struct addrinfo *at = list; at && error; at = at->ai_next)
        error = afd_socket_listen(at, fd_out);
    freeaddrinfo(list);
    if (error)
        return afd_error_set(AFD_EBOOTSTRAP, "rank 0 cannot listen at %s: %s", tcp->rendezvous_text,
                             strerror(error));
    return 0;
}

int afd_tcp_server_join(struct afd_tcp *tcp, int listen_fd)
{
    struct server server = {.tcp = tcp, .listen_fd = listen_fd};
    int error;

    if (listen_fd < 0) {
        error = listen_at_rendezvous(tcp, &server.listen_fd);
        if (error)
            return error;
        snprintf(server.address, sizeof(server.address), "%s", tcp->rendezvous_text);
    } else {
        error = afd_socket_adopt_listener(listen_fd);
        if (error) {
            error = afd_error_set(AFD_EINVAL, "rank 0: listen_fd %d is not a listening socket: %s",
                                  listen_fd, strerror(error));
            goto out;
        }
        afd_socket_name(listen_fd, false, server.address);
    }
    error = server_run(&server);
out:
    close(server.listen_fd);
    return error;
}
