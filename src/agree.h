/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.h - what all ranks must agree on before data moves.
 *
 * Every rank gets every rank's values and compares them all, so a difference is the same error with
 * the same sentence on every rank; a rank that failed locally says so here and takes the others
 * with it.
 */
#ifndef AFD_AGREE_H
#define AFD_AGREE_H

#include "afd/afd.h"
#include "fabric/shm.h"

struct afd_group;

#define AFD_AGREE_TEXT 192u

/* First message of a rank. */
struct afd_hello {
    uint32_t wire_version;
    uint32_t world;
    char digest[24];
    char version[16];
    int32_t pid;
    uint32_t backend;
    uint64_t pid_namespace;
};

/* Exchanges and compares greetings; hello_out[world]. */
int afd_agree_hello(const struct afd_group *group, struct afd_hello *hello_out);
/* Compares everybody's idea of roles and domains. */
int afd_agree_roles(const struct afd_group *group);
/* local_rc != 0: this rank failed (its last error says why); every rank then fails. */
int afd_agree_buffer(const struct afd_group *group, const struct afd_buffer_config *config,
                     int local_rc);
/* Same, without values: all ranks came here, and all are well. */
int afd_agree_step(const struct afd_group *group, int local_rc);
/* Exchanges window tickets, after all ranks have one; tickets_out[world]. */
int afd_agree_windows(const struct afd_group *group, const struct afd_window_ticket *own,
                      struct afd_window_ticket *tickets_out, int local_rc);

#endif
