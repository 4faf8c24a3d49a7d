/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - a whole job inside one test: ranks created by threads, then driven by one thread in turn
 * or by a thread each, with every result compared bit for bit with reference.h.
 *
 * Rows are made so that a wrong row, epoch, source, token or expert shows. What the library must
 * not touch (gaps between rows, rows beyond T) holds poison that is looked at afterwards; what it
 * must not read any more is overwritten as soon as a call has returned.
 *
 *     job.c         ranks, and the four verbs called with the job's options
 *     job_input.c   tokens, routes and experts' answers: pure functions of the job's seed
 *     job_check.c   the truth about an exchange, and the comparisons with it
 */
#ifndef TESTS_JOB_H
#define TESTS_JOB_H

#include <pthread.h>

#include "afd/afd.h"
#include "reference.h"

#define JOB_RANKS_MAX 32u

/* One source's input of one exchange. */
struct job_input {
    uint32_t source;
    uint32_t count;
    int64_t *ids;    /* [count][topk] */
    int32_t *ids32;  /* the same */
    float *weights;  /* [count][topk] */
    uint8_t *x;      /* [count][payload_bytes] */
    uint8_t *scales; /* [count][scale_bytes] */
    uint16_t *bias;  /* [count][hidden] */
};

enum job_routing {
    JOB_ROUTING_UNIFORM = 0, /* any experts; every 8th lane has no route */
    JOB_ROUTING_FULL = 1,    /* every lane has a route, as far as there are experts */
    JOB_ROUTING_HOT = 2,     /* every token goes to one expert, which changes with the exchange */
    JOB_ROUTING_NONE = 3,    /* no token has a route */
};

enum job_weights {
    JOB_WEIGHTS_NONE = 0,
    JOB_WEIGHTS_ALL = 1,
    JOB_WEIGHTS_ODD = 2, /* sources with an odd index send weights, the others do not */
};

/* How a job is driven; zero is the default. */
struct job_options {
    uint32_t narrow_ids;   /* int32 ids */
    uint32_t with_weights; /* enum job_weights: sources that send weights */
    uint32_t bias_count;   /* 0 .. 2 bias rows in collect */
    uint32_t view;         /* collect a view */
    uint32_t no_routes_in; /* every n-th token has no route, 0: none */
    uint32_t threads;      /* 1: a thread per rank instead of one thread for all */
    uint32_t routing;      /* enum job_routing */
    uint32_t device_count; /* 1: T is read when the step runs, `count` is a larger bound */
    uint32_t gap;          /* bytes between the rows of the caller's arrays, even; x: one more */
    uint32_t shift;        /* bytes by which x and scales miss an aligned address */
    uint32_t own_batch;    /* 1: expanded rows go to the caller's memory */
};

/* Everything an exchange must do: made once, then shared by the ranks' threads. */
struct job_truth {
    struct job_truth *next;
    uint64_t exchange;
    uint32_t users;
    uint32_t tokens[JOB_RANKS_MAX];                  /* [N] */
    struct job_input input[JOB_RANKS_MAX];           /* [N] */
    struct afd_reference_batch batch[JOB_RANKS_MAX]; /* [F] */
    uint16_t *answer[JOB_RANKS_MAX];                 /* [F] experts' rows, by row of the batch */
    uint16_t *collected[JOB_RANKS_MAX];              /* [N] rows of hidden BF16 */
};

/* An FFN rank's stage between receive and reply. */
struct job_received {
    struct job_truth *truth;
    uint8_t *rows; /* the caller's batch memory, NULL: the library's */
};

struct job {
    uint32_t world;
    uint32_t sources;
    uint32_t ffn_ranks;
    uint8_t roles[JOB_RANKS_MAX];
    uint32_t source_rank[JOB_RANKS_MAX];
    uint32_t ffn_rank[JOB_RANKS_MAX];
    struct afd_buffer_config
        config[JOB_RANKS_MAX];            /* each rank's own; change LOCAL fields freely */
    struct afd_group_config group_config; /* deadline and timeout for all */
    struct afd_hub *hub;
    struct afd_group *group[JOB_RANKS_MAX];
    struct afd_buffer *buffer[JOB_RANKS_MAX];
    int create_rc[JOB_RANKS_MAX];
    char create_error[JOB_RANKS_MAX][512];
    struct afd_reference ref; /* alignment and scale_layout are each FFN rank's own */
    uint32_t *placement;
    uint64_t seed;
    struct job_options options;
    uint64_t mismatches; /* counted by checks; 0 is right */
    char first_mismatch[256];
    struct job_received received[JOB_RANKS_MAX][AFD_STAGES_MAX];
    uint64_t *totals[JOB_RANKS_MAX]; /* [F] rows per local expert over all receives */
    pthread_mutex_t truth_lock;
    struct job_truth *truths;
};

/* ---------------------------------------------------------------------------------------- job.c */

/* roles: one letter per rank, "AAFF". Sets every rank's config to `config`. */
void job_init(struct job *job, const char *roles, const struct afd_buffer_config *config);
/* Creates groups and buffers, one thread per rank. 0 if every rank succeeded; else create_rc and
 * create_error say what each got. May be called again then: groups that were created are kept. */
int job_open(struct job *job);
/* Closes what was opened. The job may be opened again. */
void job_close(struct job *job);

/* One exchange on `stage`: tokens[s] of every source; everything checked. 0 if no call failed (the
 * code and afd_last_error() otherwise); differences are counted in job->mismatches. */
int job_exchange(struct job *job, uint32_t stage, uint64_t exchange, const uint32_t *tokens);

/* Exchanges in flight at once, each on a stage of its own. Sources dispatch all of them, then
 * collect in the opposite order; FFN ranks receive all of them, then reply in the opposite
 * order. */
struct job_flight {
    uint32_t stage;
    uint64_t exchange;
    const uint32_t *tokens;
};
int job_fly(struct job *job, const struct job_flight *flights, uint32_t count);

/* Pieces of it, for tests that break the order. job_ffn() is job_receive() and job_reply(). */
int job_dispatch(struct job *job, uint32_t s, uint32_t stage, const struct job_input *input);
int job_ffn(struct job *job, uint32_t f, uint32_t stage, uint64_t exchange, const uint32_t *tokens);
int job_receive(struct job *job, uint32_t f, uint32_t stage, uint64_t exchange,
                const uint32_t *tokens);
int job_reply(struct job *job, uint32_t f, uint32_t stage);
int job_collect(struct job *job, uint32_t s, uint32_t stage, uint64_t exchange,
                const uint32_t *tokens);

void job_mismatch(struct job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---------------------------------------------------------------------------------- job_input.c */

/* Input of source s in exchange n: T tokens, a pure function of the job's seed. Free with
 * job_input_free(). */
void job_input_make(const struct job *job, uint32_t s, uint64_t exchange, uint32_t tokens,
                    struct job_input *input_out);
void job_input_free(struct job_input *input);
/* 1 if source s sends weights. */
int job_sends_weights(const struct job *job, uint32_t s);

/* The experts' answers to a batch, [row_count][hidden]; padding rows are NaN. Free it. */
uint16_t *job_answer_make(const struct job *job, const struct afd_reference_batch *batch,
                          uint64_t exchange);

/* `count` rows of `bytes` bytes, `stride` bytes apart, from an address that misses a multiple of 64
 * by `shift` bytes; all else is poison. rows may be NULL: poison only. */
struct job_rows {
    uint8_t *memory; /* free it */
    uint8_t *rows;
    uint64_t count;
    uint64_t bytes;
    uint64_t stride;
};
void job_rows_make(const uint8_t *rows, uint64_t count, uint64_t bytes, uint64_t gap,
                   uint32_t shift, struct job_rows *rows_out);
/* Index of the first row whose gap, or what lies before and behind the rows, is not poison any
 * more; count + 1 if all is. */
uint64_t job_rows_touched(const struct job_rows *rows);
/* 1 if row r still is poison. */
int job_rows_untouched(const struct job_rows *rows, uint64_t r);
/* Poisons everything, then frees it: whoever still reads it is seen. */
void job_rows_free(struct job_rows *rows);

/* Small deterministic random numbers. */
uint64_t job_random(uint64_t *state);
uint64_t job_mix(uint64_t x);
/* Aborts instead of returning NULL. */
void *job_need(void *memory);

/* ---------------------------------------------------------------------------------- job_check.c */

/* The truth about an exchange, kept while anybody uses it. */
struct job_truth *job_truth_get(struct job *job, uint64_t exchange, const uint32_t *tokens);
void job_truth_put(struct job *job, struct job_truth *truth);
void job_truths_free(struct job *job);

/* What afd_buffer_info() says of every rank. */
void job_check_info(struct job *job);
void job_check_batch(struct job *job, uint32_t f, const struct afd_batch *got,
                     const struct afd_reference_batch *want);
void job_check_collected(struct job *job, uint32_t s, const struct job_truth *truth,
                         const struct afd_output *output);

#endif
