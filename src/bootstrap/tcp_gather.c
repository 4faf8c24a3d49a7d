/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_gather.c - allgather through rank 0: it reads every rank's part, then sends all to all.
 *
 * Everything from outside is bounded before it is used: a body is read only after its header said
 * the number of bytes that this rank expects. A connection that closes fails the allgather at once,
 * also while rank 0 waits for somebody else.
 */
#include "bootstrap/tcp.h"
#include "bootstrap/deadline.h"
#include "bootstrap/rank_list.h"
#include "error.h"

#include <errno.h>
#include <string.h>

/* One allgather of this rank. */
struct gather {
    struct afd_tcp *tcp;
    const uint8_t *in;
    uint8_t *out;
    size_t bytes;                          /* of each rank */
    uint8_t header[AFD_WIRE_RECORD_BYTES]; /* of the record that this rank sends */
    const uint8_t *body;                   /* and its body */
    size_t body_bytes;
    uint64_t deadline_us;
};

static void send_begin(struct gather *gather, struct afd_tcp_peer *peer)
{
    peer->unsent = AFD_WIRE_RECORD_BYTES + gather->body_bytes;
}

/* Sends as much as goes; false if the connection is closed. */
static bool send_more(const struct gather *gather, struct afd_tcp_peer *peer)
{
    while (peer->unsent > 0) {
        bool in_header = peer->unsent > gather->body_bytes;
        size_t left = in_header ? peer->unsent - gather->body_bytes : peer->unsent;
        const uint8_t *end =
            in_header ? gather->header + sizeof(gather->header) : gather->body + gather->body_bytes;
        ssize_t now = afd_socket_send(peer->fd, end - left, left);

        if (now < 0)
            return false;
        if (now == 0)
            return true;
        peer->unsent -= (size_t)now;
    }
    return true;
}

/* 0: nothing yet or something came (poll again is right); else the failure. */
static int wait_for_peers(const struct gather *gather, bool *late_out)
{
    struct afd_tcp *tcp = gather->tcp;
    int ready;

    ready = poll(tcp->polls, tcp->peer_count, afd_deadline_left_ms(gather->deadline_us));
    if (ready < 0 && errno != EINTR)
        return afd_tcp_fail(tcp, AFD_ESYSTEM, "rank %u: poll of %u sockets: %s", tcp->base.rank,
                            tcp->peer_count, strerror(errno));
    *late_out = ready == 0 && afd_deadline_left_ms(gather->deadline_us) == 0;
    return 0;
}

static int fail_closed(const struct gather *gather, uint32_t index)
{
    struct afd_tcp *tcp = gather->tcp;

    return afd_tcp_fail(tcp, AFD_EPEER,
                        "rank %u at %s closed its connection (it died or left) at or before "
                        "allgather %u",
                        index, tcp->peers[index].address, tcp->sequence);
}

/* Checks the header of another rank's part, and says where its body goes. */
static int take_part_header(const struct gather *gather, uint32_t rank)
{
    struct afd_tcp *tcp = gather->tcp;
    struct afd_tcp_peer *peer = &tcp->peers[rank];
    const struct afd_wire_record *record = &peer->reader.record;

    if (record->magic != AFD_WIRE_DATA || record->rank != rank || peer->complete ||
        record->sequence != tcp->sequence)
        return afd_tcp_fail(tcp, AFD_EPROTO,
                            "rank %u at %s sent record 0x%x number %u as rank %u, rank 0 expects "
                            "number %u of its data",
                            rank, peer->address, record->magic, record->sequence, record->rank,
                            tcp->sequence);
    if (record->bytes > AFD_WIRE_DATA_BYTES_MAX)
        return afd_tcp_fail(
            tcp, AFD_EPROTO,
            "rank %u at %s announces %u bytes in allgather %u, at most %u are allowed", rank,
            peer->address, record->bytes, tcp->sequence, AFD_WIRE_DATA_BYTES_MAX);
    if (record->bytes != gather->bytes)
        return afd_tcp_fail(tcp, AFD_EBOOTSTRAP,
                            "rank %u passes %u bytes to allgather %u, rank 0 passes %zu", rank,
                            record->bytes, tcp->sequence, gather->bytes);
    peer->reader.body = gather->out + rank * gather->bytes;
    peer->reader.body_bytes = gather->bytes;
    return 0;
}

/* Reads what rank `rank` has sent. A rank whose part is complete is still listened to: it may
 * die or give up while others are late. */
static int take_part(const struct gather *gather, uint32_t rank)
{
    struct afd_tcp *tcp = gather->tcp;
    struct afd_tcp_peer *peer = &tcp->peers[rank];
    int error = 0;

    while (!error) {
        switch (afd_tcp_read(peer->fd, &peer->reader)) {
        case AFD_TCP_NOTHING:
            return 0;
        case AFD_TCP_HEADER:
            error = take_part_header(gather, rank);
            break;
        case AFD_TCP_RECORD:
            if (peer->reader.record.magic == AFD_WIRE_ERROR)
                return afd_tcp_fail_as_told(tcp, rank);
            peer->complete = true;
            break;
        case AFD_TCP_CLOSED:
            return fail_closed(gather, rank);
        case AFD_TCP_BROKEN:
            return afd_tcp_fail(
                tcp, AFD_EPROTO,
                "rank %u at %s announces an error of %u bytes, at most %u are allowed", rank,
                peer->address, peer->reader.record.bytes, 4 + AFD_WIRE_TEXT_BYTES_MAX);
        }
    }
    return error;
}

static bool is_incomplete(const void *context, uint32_t rank)
{
    const struct afd_tcp *tcp = context;

    return rank != 0 && !tcp->peers[rank].complete;
}

static bool is_unsent(const void *context, uint32_t rank)
{
    const struct afd_tcp *tcp = context;

    return rank != 0 && tcp->peers[rank].unsent > 0;
}

static int fail_late(const struct gather *gather, afd_rank_test *test, const char *what)
{
    struct afd_tcp *tcp = gather->tcp;
    char ranks[AFD_RANK_LIST_BYTES];

    afd_rank_list_write(test, tcp, tcp->base.world, ranks);
    return afd_tcp_fail(tcp, AFD_EPEER, "allgather %u: %s of %u did not %s within %.1f s",
                        tcp->sequence, ranks, tcp->base.world, what,
                        afd_deadline_seconds(tcp->base.timeout_us));
}

static bool any_rank(afd_rank_test *test, const struct afd_tcp *tcp)
{
    for (uint32_t rank = 1; rank < tcp->base.world; rank++) {
        if (test(tcp, rank))
            return true;
    }
    return false;
}

static int collect_parts(const struct gather *gather)
{
    struct afd_tcp *tcp = gather->tcp;
    bool late = false;
    int error = 0;

    for (uint32_t rank = 1; rank < tcp->base.world; rank++)
        tcp->peers[rank].complete = false;
    while (any_rank(is_incomplete, tcp) && !error) {
        for (uint32_t rank = 0; rank < tcp->base.world; rank++)
            tcp->polls[rank] = (struct pollfd){.fd = tcp->peers[rank].fd, .events = POLLIN};
        error = wait_for_peers(gather, &late);
        if (!error && late)
            error = fail_late(gather, is_incomplete, "come");
        for (uint32_t rank = 1; rank < tcp->base.world && !error; rank++) {
            if (tcp->polls[rank].revents)
                error = take_part(gather, rank);
        }
    }
    return error;
}

/* A rank that dies now does not keep the others from their result: they have a right to it, and
 * hear of the death in the next allgather. */
static int distribute(struct gather *gather)
{
    struct afd_tcp *tcp = gather->tcp;
    uint32_t lost = 0;
    bool late = false;
    int error = 0;

    for (uint32_t rank = 1; rank < tcp->base.world; rank++)
        send_begin(gather, &tcp->peers[rank]);
    while (any_rank(is_unsent, tcp) && !error) {
        for (uint32_t rank = 1; rank < tcp->base.world; rank++) {
            if (!send_more(gather, &tcp->peers[rank])) {
                tcp->peers[rank].unsent = 0;
                lost = rank;
            }
        }
        if (!any_rank(is_unsent, tcp))
            break;
        for (uint32_t rank = 0; rank < tcp->base.world; rank++)
            tcp->polls[rank] = (struct pollfd){
                .fd = tcp->peers[rank].unsent > 0 ? tcp->peers[rank].fd : -1, .events = POLLOUT};
        error = wait_for_peers(gather, &late);
        if (!error && late)
            error = fail_late(gather, is_unsent, "take the result");
    }
    return error || lost == 0 ? error : fail_closed(gather, lost);
}

/* Checks the header of rank 0's answer, and says where its body goes. */
static int take_all_header(const struct gather *gather)
{
    struct afd_tcp *tcp = gather->tcp;
    struct afd_tcp_reader *reader = &tcp->peers[0].reader;
    const struct afd_wire_record *record = &reader->record;

    if (record->magic != AFD_WIRE_ALL || record->sequence != tcp->sequence ||
        record->bytes != gather->bytes || tcp->peers[0].unsent > 0)
        return afd_tcp_fail(
            tcp, AFD_EPROTO,
            "rank %u expects the result number %u of %zu bytes per rank, rank 0 sent "
            "record 0x%x number %u of %u",
            tcp->base.rank, tcp->sequence, gather->bytes, record->magic, record->sequence,
            record->bytes);
    reader->body = gather->out;
    reader->body_bytes = tcp->base.world * gather->bytes;
    return 0;
}

/* Reads what rank 0 has sent, up to the end of its answer. */
static int take_all(const struct gather *gather, bool *done_out)
{
    struct afd_tcp *tcp = gather->tcp;
    struct afd_tcp_peer *server = &tcp->peers[0];
    int error = 0;

    while (!error) {
        switch (afd_tcp_read(server->fd, &server->reader)) {
        case AFD_TCP_NOTHING:
            return 0;
        case AFD_TCP_HEADER:
            error = take_all_header(gather);
            break;
        case AFD_TCP_RECORD:
            if (server->reader.record.magic == AFD_WIRE_ERROR)
                return afd_tcp_fail_as_told(tcp, 0);
            *done_out = true;
            return 0;
        case AFD_TCP_CLOSED:
            return fail_closed(gather, 0);
        case AFD_TCP_BROKEN:
            return afd_tcp_fail(tcp, AFD_EPROTO,
                                "rank %u: rank 0 announces an error of %u bytes, at most %u are "
                                "allowed",
                                tcp->base.rank, server->reader.record.bytes,
                                4 + AFD_WIRE_TEXT_BYTES_MAX);
        }
    }
    return error;
}

/* Sends and receives at the same time: rank 0 may have an error to tell before it reads. */
static int ask_rank_0(struct gather *gather)
{
    struct afd_tcp *tcp = gather->tcp;
    struct afd_tcp_peer *server = &tcp->peers[0];
    bool done = false;
    bool late = false;
    bool can_send = true;
    int error = 0;

    send_begin(gather, server);
    while (!done && !error) {
        short events = POLLIN;

        /* If it takes no more, what it said before it closed is still to be read. */
        if (can_send)
            can_send = send_more(gather, server);
        if (can_send && server->unsent > 0)
            events |= POLLOUT;
        tcp->polls[0] = (struct pollfd){.fd = server->fd, .events = events};
        error = wait_for_peers(gather, &late);
        if (!error && tcp->polls[0].revents)
            error = take_all(gather, &done);
        if (!error && !done && late)
            error =
                afd_tcp_fail(tcp, AFD_EPEER,
                             "rank %u: rank 0 at %s did not answer allgather %u within %.1f s: it "
                             "or another rank is late",
                             tcp->base.rank, server->address, tcp->sequence,
                             afd_deadline_seconds(tcp->base.timeout_us + AFD_TCP_GRACE_US));
    }
    return error;
}

static int gather_as_server(struct gather *gather)
{
    struct afd_tcp *tcp = gather->tcp;
    int error;

    if (gather->bytes > 0)
        memcpy(gather->out, gather->in, gather->bytes);
    error = collect_parts(gather);
    if (error)
        return error;
    gather->body = gather->out;
    gather->body_bytes = tcp->base.world * gather->bytes;
    gather->deadline_us = afd_deadline_after(tcp->base.timeout_us);
    return distribute(gather);
}

int afd_tcp_allgather(struct afd_bootstrap *bootstrap, const void *in, void *out, size_t bytes)
{
    struct afd_tcp *tcp = (struct afd_tcp *)bootstrap;
    bool is_server = bootstrap->rank == 0;
    struct gather gather = {.tcp = tcp, .in = in, .out = out, .bytes = bytes};
    struct afd_wire_record record = {.magic = is_server ? AFD_WIRE_ALL : AFD_WIRE_DATA,
                                     .rank = bootstrap->rank};

    if (tcp->code)
        return afd_error_set(tcp->code, "%s", tcp->failure);
    if (bytes > AFD_WIRE_DATA_BYTES_MAX)
        return afd_tcp_fail(tcp, AFD_EBOOTSTRAP,
                            "rank %u passes %zu bytes to an allgather, at most %u are allowed",
                            bootstrap->rank, bytes, AFD_WIRE_DATA_BYTES_MAX);
    record.sequence = ++tcp->sequence;
    record.bytes = (uint32_t)bytes;
    afd_wire_record_encode(&record, gather.header);
    gather.deadline_us = afd_deadline_after(bootstrap->timeout_us);
    if (is_server)
        return gather_as_server(&gather);
    gather.body = in;
    gather.body_bytes = bytes;
    gather.deadline_us += AFD_TCP_GRACE_US;
    return ask_rank_0(&gather);
}
