/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp.h - what the files of the TCP bootstrap share: its state, its records, its failure.
 *
 *     tcp.c           open, close, fail
 *     tcp_server.c    rank 0: accept strangers, authenticate, until every rank has joined
 *     tcp_client.c    the others: connect with retries, authenticate, wait for READY
 *     tcp_gather.c    allgather through rank 0
 *     tcp_record.c    reading records piece by piece
 *     tcp_wire.c      bytes;  tcp_socket.c  sockets
 */
#ifndef AFD_BOOTSTRAP_TCP_H
#define AFD_BOOTSTRAP_TCP_H

#include "bootstrap/bootstrap.h"
#include "bootstrap/tcp_socket.h"
#include "bootstrap/tcp_wire.h"

#include <poll.h>
#include <stdbool.h>

/* How much longer than rank 0 the others wait, so that they hear from it who was missing. */
#define AFD_TCP_GRACE_US 1000000u

/* A record that arrives in pieces. */
struct afd_tcp_reader {
    uint8_t header[AFD_WIRE_RECORD_BYTES];
    uint32_t header_done;
    struct afd_wire_record record; /* of the last complete header */
    uint8_t *body;
    size_t body_bytes;
    size_t body_done;
    uint8_t error[4 + AFD_WIRE_TEXT_BYTES_MAX];
};

enum afd_tcp_event {
    AFD_TCP_NOTHING, /* no more bytes now */
    AFD_TCP_HEADER,  /* a header is complete: set body and body_bytes (0 now), read on */
    AFD_TCP_RECORD,  /* header and body are complete */
    AFD_TCP_CLOSED,
    AFD_TCP_BROKEN, /* an ERROR record with an impossible size */
};

/* Reads until something happens. The body of an ERROR record is taken care of: only AFD_TCP_RECORD
 * is seen of it. */
enum afd_tcp_event afd_tcp_read(int fd, struct afd_tcp_reader *reader);

struct afd_tcp_peer {
    int fd; /* -1: not connected */
    char address[AFD_ADDRESS_TEXT_BYTES];
    uint64_t refused_us; /* until when the true rank may come after a wrong key; 0: none came */
    bool complete;       /* its part of the current allgather has arrived */
    size_t unsent;       /* bytes of the record that is on its way to it */
    struct afd_tcp_reader reader;
};

struct afd_tcp {
    struct afd_bootstrap base;
    struct afd_tcp_peer *peers; /* rank 0: [world] by rank; the others: [1], rank 0 */
    struct pollfd *polls;       /* [peer_count] */
    uint32_t peer_count;
    uint32_t sequence; /* of the last allgather */
    uint8_t key[AFD_WIRE_KEY_BYTES];
    struct afd_address rendezvous; /* unused by a rank 0 that was given a socket */
    char rendezvous_text[AFD_ADDRESS_HOST_BYTES + 16];
    uint64_t deadline_us; /* of the opening */
    int code;             /* of the first failure; 0: none */
    char failure[512];
};

/* Remembers the first failure, tells it to every connected peer, and sets the last error. */
__attribute__((format(printf, 3, 4))) int afd_tcp_fail(struct afd_tcp *tcp, int code,
                                                       const char *format, ...);
/* The same for an ERROR record that came from peers[index]: its text becomes ours. */
int afd_tcp_fail_as_told(struct afd_tcp *tcp, uint32_t index);

int afd_tcp_server_join(struct afd_tcp *tcp, int listen_fd);
int afd_tcp_client_join(struct afd_tcp *tcp);
int afd_tcp_allgather(struct afd_bootstrap *bootstrap, const void *in, void *out, size_t bytes);

#endif
