/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs.h - a small job for tests that call the verbs wrongly: it shows afterwards that they still
 * work, by exchanges that are right in every bit.
 */
#ifndef TESTS_VERBS_H
#define TESTS_VERBS_H

#include "job.h"

#define VERBS_CAPACITY 9u
#define VERBS_EXPERTS 6u
#define VERBS_TOPK 3u
#define VERBS_HIDDEN 40u
#define VERBS_STAGES 2u

struct verbs {
    struct job job;
    uint64_t exchange;              /* number of the last one */
    uint32_t tokens[JOB_RANKS_MAX]; /* of every exchange: 5, 9, 5, 9, ... */
};

/* FP8 rows, two stages, words for up to 4 tokens. */
struct afd_buffer_config verbs_config(void);
void verbs_begin(struct verbs *v, const char *roles, const struct afd_buffer_config *c);
/* An exchange on each stage. */
void verbs_work(struct verbs *v);
/* verbs_work(), then closes. */
void verbs_end(struct verbs *v);

/* All sources dispatch the next exchange on stage 0. */
void verbs_dispatch(struct verbs *v);
/* The rest of it, in which FFN ranks below `received` have received. */
void verbs_finish(struct verbs *v, uint32_t received);

#endif
