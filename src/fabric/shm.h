/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm.h - windows that ranks of one host can load and store: memory without a name.
 *
 * A window is a memfd (mode 0600, sealed against resizing, never in any file system), so it is gone
 * with its last mapping, also after kill -9. A peer of another process opens it through the owner's
 * descriptor; ranks of one process share one mapping, counted, so that every load and store of a
 * window has one address per process.
 */
#ifndef AFD_FABRIC_SHM_H
#define AFD_FABRIC_SHM_H

#include <stdint.h>

/* What a peer needs to open a window; travels through the bootstrap. */
struct afd_window_ticket {
    uint64_t nonce; /* random; identifies the window */
    uint64_t bytes;
    int32_t pid;
    int32_t fd;             /* in process pid, open until afd_window_publish_end() */
    uint64_t pid_namespace; /* inode; a ticket is good in this namespace only */
};

/* A window as one rank sees it. */
struct afd_window {
    uint8_t *base; /* NULL: none */
    uint64_t bytes;
    uint64_t nonce;
};

/* Creates a zeroed window and a ticket for it. 0, or AFD_ENOMEM / AFD_ESYSTEM with the sentence. */
int afd_window_create(uint64_t bytes, struct afd_window *window_out,
                      struct afd_window_ticket *ticket_out);
/* Maps a peer's window. `rank` is for the sentence. */
int afd_window_open(const struct afd_window_ticket *ticket, uint32_t rank,
                    struct afd_window *window_out);
/* After all peers have opened it: closes the owner's descriptor. */
void afd_window_publish_end(const struct afd_window_ticket *ticket);
/* Drops this rank's use of the window; the memory goes with the last one. Needs no peer. */
void afd_window_close(struct afd_window *window);

/* This process's PID namespace, 0 if unknown. */
uint64_t afd_pid_namespace(void);
/* Fills `bytes` random bytes. */
int afd_random(void *out, uint64_t bytes);

#endif
