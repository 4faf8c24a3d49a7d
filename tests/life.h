/* SPDX-License-Identifier: Apache-2.0 */
/*
 * life.h - one rank's life: it exchanges until its exchanges are done, until a hook ends it, or
 * until a call fails. What it then got, and whether anything looked valid that was not, is kept.
 *
 * A rank is a thread (life_start) or the caller itself (life_run), also in a process of its own.
 */
#ifndef TESTS_LIFE_H
#define TESTS_LIFE_H

#include <pthread.h>

#include "job.h"

struct life;

/* What a rank does before its call of `phase` in exchange n (1, 2, ...). Nonzero: it ends there,
 * without the call, and its buffer stays as it is. */
typedef int (*life_hook)(struct life *life, uint32_t phase, uint32_t n);

struct life_outcome {
    int rc;         /* of the call that failed */
    uint32_t phase; /* of that call */
    uint64_t waited_us;
    uint32_t exchanges; /* complete ones */
    struct afd_fault fault;
    char sentence[512];
    char wrong[256]; /* what looked valid and was not; "" if nothing */
};

struct life {
    struct job *job;
    uint32_t rank;
    uint32_t stage;
    uint32_t exchanges;     /* to make */
    const uint32_t *tokens; /* [N] of every exchange */
    life_hook hook;         /* or NULL */
    struct life_outcome outcome;
    pthread_t thread;
    uint32_t index; /* among the ranks of its role */
};

void life_run(struct life *life);
void life_start(struct life *life);
/* Waits for the thread. */
void life_join(struct life *life);

/* All ranks of a job, as threads. */
struct crew {
    struct job job;
    uint32_t tokens[JOB_RANKS_MAX];
    struct life life[JOB_RANKS_MAX];
};

/* A small job in which every token goes to every FFN rank: rows, in one block. Fails the test if
 * it cannot be created. */
struct afd_buffer_config crew_config(void);
void crew_open(struct crew *crew, const char *roles, const struct afd_buffer_config *config,
               uint64_t deadline_us);
/* Every rank lives for `exchanges` exchanges. */
void crew_start(struct crew *crew, uint32_t exchanges, life_hook hook);
void crew_join(struct crew *crew);
/* Closes the buffer of a rank, in its own thread or when that is not running. */
void crew_close_rank(struct crew *crew, uint32_t rank);
/* Every rank but `culprit` failed with `code` and blames `culprit`, by fault and by name, within
 * limit_us; nothing looks valid that is not. */
void crew_check_blame(struct crew *crew, uint32_t culprit, int code, uint64_t limit_us);
/* The rank made all its exchanges, right in every bit. */
void crew_check_done(struct crew *crew, uint32_t rank, uint32_t exchanges);

#endif
