/* SPDX-License-Identifier: Apache-2.0 */
/* rank.h - one rank's part of `afd run`, and the record it leaves for the parent. */
#ifndef CLI_RANK_H
#define CLI_RANK_H

#include "job.h"

/* In memory shared with the parent; each field has one writer, the rank. */
struct cli_record {
    int32_t exit_code; /* CLI_*, meaningful once `ended` is 1 */
    uint32_t ended;
    uint32_t rank;
    uint32_t joined; /* 1: the group and its buffer exist */
    uint32_t phase;  /* enum afd_phase it is in: what a dead rank was doing */
    uint32_t stage;
    uint64_t exchange; /* exchanges done */
    uint64_t checked;
    uint64_t mismatches;
    uint32_t faulted; /* 1: `fault` is filled */
    struct afd_fault fault;
    char error[512];
    uint64_t rows[CLI_SIZES_MAX];     /* FFN: (token, rank) rows received, per size */
    uint64_t expanded[CLI_SIZES_MAX]; /* FFN: rows of its batches, per size */
};

/* How this rank meets the others. */
struct cli_meeting {
    uint32_t bootstrap;     /* enum afd_bootstrap_kind */
    struct afd_hub *hub;    /* threads */
    const char *rendezvous; /* TCP */
    int listen_fd;          /* TCP, rank 0, or -1 */
    uint64_t timeout_us;    /* how long to wait for the others, 0: the library's default */
    /* NULL, or where the results of all ranks go, which are started elsewhere: [world] and
     * [world][timed] */
    struct cli_record *records;
    double *times_us;
};

/* Lives the whole life of `rank`. times_us[job->timed]: round trips of the timed exchanges, written
 * by Attention ranks. Returns the exit code, also in the record. */
int cli_rank_run(const struct cli_job *job, uint32_t rank, const struct cli_meeting *meeting,
                 struct cli_record *record, double *times_us);

/* ---- the two roles, see attention.c and ffn.c */

struct cli_rank {
    const struct cli_job *job;
    uint32_t rank;
    uint32_t index; /* s or f */
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct cli_record *record;
    double *times_us;
    /* AFD_TEST_KILL=rank:exchange:phase, for tests: this rank kills itself there. Exchanges of the
     * job count from 0; phase is an enum afd_phase, 0 while joining, or CLI_TEST_LIE: this FFN rank
     * answers one value wrong instead. */
    uint32_t kill_armed;
    uint32_t kill_phase;
    uint64_t kill_exchange;
};

int cli_attention_run(struct cli_rank *rank);
int cli_ffn_run(struct cli_rank *rank);
#define CLI_TEST_LIE 5u
/* 1 if the rank is armed to answer a wrong value in this exchange. */
int cli_rank_lies(const struct cli_rank *rank, uint64_t exchange);
/* Says where the rank is; a rank that is armed to die there does. */
void cli_rank_at(struct cli_rank *rank, uint32_t phase, uint32_t stage, uint64_t exchange);
/* Keeps the library's sentence and fault; returns CLI_FAILED. */
int cli_rank_failed(struct cli_rank *rank, const char *what);

/* Timed exchanges take turns with a few sets of data, prepared before the visit begins: how many,
 * which one exchange i of the visit uses (on one stage never the same twice in a row, so that what
 * is left of the last exchange shows), and the exchange whose data set `set` has. */
#define CLI_SETS_MAX 4u
uint32_t cli_timed_sets(const struct cli_job *job, const struct cli_visit *visit);
uint32_t cli_timed_set(const struct cli_job *job, const struct cli_visit *visit, uint32_t i);
uint64_t cli_timed_label(const struct cli_visit *visit, uint32_t set);

#endif
