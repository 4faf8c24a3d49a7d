/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - a whole job inside one test: ranks created by threads, then driven by one thread in turn
 * or by a thread each, with every result compared bit for bit with reference.h.
 *
 * Rows are made so that a wrong row, epoch, source, token or expert shows: see job_row_byte() and
 * job_expert_value().
 */
#ifndef TESTS_JOB_H
#define TESTS_JOB_H

#include "afd/afd.h"
#include "reference.h"

#define JOB_RANKS_MAX 32u

/* One source's input of one exchange. */
struct job_input {
    uint32_t count;
    int64_t *ids;    /* [count][topk] */
    int32_t *ids32;  /* the same */
    float *weights;  /* [count][topk] */
    uint8_t *x;      /* [count][payload_bytes] */
    uint8_t *scales; /* [count][scale_bytes] */
    uint16_t *bias;  /* [count][hidden] */
};

/* How a job is driven; zero is the default. */
struct job_options {
    uint32_t narrow_ids;   /* int32 ids */
    uint32_t with_weights; /* sources send weights */
    uint32_t bias_count;   /* 0 .. 2 bias rows in collect */
    uint32_t view;         /* collect a view */
    uint32_t no_routes_in; /* every n-th token has no route, 0: none */
    uint32_t threads;      /* 1: a thread per rank instead of one thread for all */
};

struct job {
    uint32_t world;
    uint32_t sources;
    uint32_t ffn_ranks;
    uint8_t roles[JOB_RANKS_MAX];
    uint32_t source_rank[JOB_RANKS_MAX];
    uint32_t ffn_rank[JOB_RANKS_MAX];
    struct afd_buffer_config config[JOB_RANKS_MAX]; /* each rank's own; change LOCAL fields freely */
    struct afd_group_config group_config;           /* deadline and timeout for all */
    struct afd_hub *hub;
    struct afd_group *group[JOB_RANKS_MAX];
    struct afd_buffer *buffer[JOB_RANKS_MAX];
    int create_rc[JOB_RANKS_MAX];
    char create_error[JOB_RANKS_MAX][512];
    struct afd_reference ref;
    uint32_t *placement;
    uint64_t seed;
    struct job_options options;
    uint64_t mismatches; /* counted by checks; 0 is right */
    char first_mismatch[256];
};

/* roles: one letter per rank, "AAFF". Sets every rank's config to `config`. */
void job_init(struct job *job, const char *roles, const struct afd_buffer_config *config);
/* Creates groups and buffers, one thread per rank. 0 if every rank succeeded; else create_rc and
 * create_error say what each got. */
int job_open(struct job *job);
/* Closes what was opened, in any order of ranks. */
void job_close(struct job *job);

/* Input of source s in exchange n: T tokens, a pure function of the job's seed. Free with
 * job_input_free(). */
void job_input_make(const struct job *job, uint32_t s, uint64_t exchange, uint32_t tokens,
                    struct job_input *input_out);
void job_input_free(struct job_input *input);

/* One exchange on `stage`: tokens[s] of every source; everything checked. 0 if no call failed (the
 * code and afd_last_error() otherwise); differences are counted in job->mismatches. */
int job_exchange(struct job *job, uint32_t stage, uint64_t exchange, const uint32_t *tokens);

/* Pieces of it, for tests that break the order. */
int job_dispatch(struct job *job, uint32_t s, uint32_t stage, const struct job_input *input);
int job_ffn(struct job *job, uint32_t f, uint32_t stage, uint64_t exchange, const uint32_t *tokens);
int job_collect(struct job *job, uint32_t s, uint32_t stage, uint64_t exchange,
                const uint32_t *tokens);

/* Small deterministic random numbers. */
uint64_t job_random(uint64_t *state);
void job_mismatch(struct job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
