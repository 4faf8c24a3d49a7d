/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bootstrap.h - how ranks find each other and agree before any window exists.
 *
 * A bootstrap is one verb, allgather: everything that create functions agree on is built from it.
 * It is not on the data path. Each kind is one file: tcp.c, hub.c, callbacks.c, env.c.
 */
#ifndef AFD_BOOTSTRAP_BOOTSTRAP_H
#define AFD_BOOTSTRAP_BOOTSTRAP_H

#include "afd/afd.h"

struct afd_bootstrap;

struct afd_bootstrap_ops {
    /* Every rank passes `bytes` bytes (the same number on all); `out` then holds world * bytes by
     * rank. Blocks until all ranks came or `timeout_us` passed. `in` and `out` do not overlap.
     * Returns 0 or, with the last error filled: AFD_EPEER (a rank is late, gone or dead; the
     * sentence names it), AFD_EBOOTSTRAP (ranks pass different `bytes`, or more than the kind can
     * carry: 1 MiB for tcp), AFD_EPROTO (a peer broke the protocol). Every rank reports the first
     * cause. After a failure the bootstrap is unusable and every later call fails. */
    int (*allgather)(struct afd_bootstrap *bootstrap, const void *in, void *out, size_t bytes);
    /* Releases everything; never waits for a peer. */
    void (*close)(struct afd_bootstrap *bootstrap);
};

/* Implementations embed this as their first member. */
struct afd_bootstrap {
    const struct afd_bootstrap_ops *ops;
    uint32_t rank;
    uint32_t world;
    uint64_t timeout_us;
};

#define AFD_BOOTSTRAP_WORLD_MAX 1024u

/* What all kinds demand of rank, world and timeout; AFD_EINVAL with a sentence. */
int afd_bootstrap_check(const struct afd_group_config *config);

/* Opens the kind that config->bootstrap names. TCP and ENV wait here until every rank has joined;
 * hub and callbacks return at once and wait in the first allgather. A wrong world is AFD_EMISMATCH,
 * a wrong key or a rank that came twice AFD_EBOOTSTRAP, a rank that did not come AFD_EPEER.
 * config->listen_fd is taken over by rank 0's TCP or ENV bootstrap, also when the call fails. For
 * AFD_BOOTSTRAP_ENV, rank and world come from the environment: config->rank and config->world are
 * ignored and the bootstrap's fields are right. */
int afd_bootstrap_open(const struct afd_group_config *config, struct afd_bootstrap **bootstrap_out);

int afd_bootstrap_tcp_open(const struct afd_group_config *config, struct afd_bootstrap **out);
int afd_bootstrap_hub_open(const struct afd_group_config *config, struct afd_bootstrap **out);
int afd_bootstrap_callbacks_open(const struct afd_group_config *config, struct afd_bootstrap **out);
int afd_bootstrap_env_open(const struct afd_group_config *config, struct afd_bootstrap **out);

#endif
