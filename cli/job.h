/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - the job that options describe: who, what sizes, which configuration, which data.
 *
 * Everything here is the same on all ranks and a pure function of the options, so every rank can
 * say what every other one sends.
 */
#ifndef CLI_JOB_H
#define CLI_JOB_H

#include "cli.h"
#include "reference.h"
#include "trace.h"

enum cli_routing {
    CLI_ROUTING_UNIFORM,
    CLI_ROUTING_SKEWED,
    CLI_ROUTING_LOGNORMAL,
    CLI_ROUTING_ONE_EXPERT,
    CLI_ROUTING_NONE,
};

/* One stop of the walk over token counts: `distinct` exchanges with a different function per
 * expert, then `timed` ones with identity experts. */
struct cli_visit {
    uint32_t tokens;
    uint32_t size; /* index into sizes */
    uint32_t distinct;
    uint32_t timed;
    uint64_t first_exchange;
    uint64_t first_time; /* index of its first timed exchange among all */
};

struct cli_job {
    struct cli_options options;
    struct cli_layout layout;
    struct afd_buffer_config config;
    struct cli_trace trace; /* tokens 0: none */
    uint32_t *placement;    /* [experts] */
    enum cli_routing routing;
    uint64_t deadline_us;
    uint32_t threads;          /* ranks are threads */
    uint32_t from_environment; /* this process is one rank of a launcher's job */
    uint32_t narrow_ids;
    uint32_t sizes[CLI_SIZES_MAX]; /* distinct, in order of first appearance */
    uint32_t size_count;
    struct cli_visit visit[CLI_SIZES_MAX];
    uint32_t visit_count;
    uint64_t exchanges; /* of the whole run */
    uint64_t timed;     /* of them */
    struct afd_reference ref;
};

/* Checks the options and fills the job. CLI_OK, or the exit code after its message. */
int cli_job_make(const struct cli_options *options, struct cli_job *job_out);
void cli_job_free(struct cli_job *job);
const char *cli_protocol_name(uint32_t protocol);

/* ----------------------------------------------------------------------------------------- data */

/* One source's input of one exchange; arrays have room for the capacity. */
struct cli_input {
    uint32_t count;
    int64_t *ids;
    int32_t *ids32;
    float *weights;
    uint8_t *x;
    uint8_t *scales;
    uint16_t *bias;
};

int cli_input_alloc(const struct cli_job *job, struct cli_input *input_out);
void cli_input_free(struct cli_input *input);
/* Tokens of source s in exchange n. */
void cli_input_fill(const struct cli_job *job, uint64_t exchange, uint32_t s, uint32_t tokens,
                    struct cli_input *input);

/* Where a row's scales are: `row` points to scale 0, scale g is g * group_stride bytes further. */
struct cli_row {
    const uint8_t *payload;
    const uint8_t *scales;
    uint64_t group_stride;
};
/* What expert `e` answers to a row in exchange n: a different function for every expert and
 * exchange; identity: the row itself as BF16 (opaque rows: numbers made of their bytes). */
void cli_expert(const struct cli_job *job, const struct cli_row *row, uint32_t e, uint64_t exchange,
                int identity, uint16_t *answer_out);
/* What source s must collect for its input. rows_out: [count][hidden]. 0 or CLI_FAILED. */
int cli_expected(const struct cli_job *job, uint64_t exchange, const struct cli_input *input,
                 int identity, uint16_t *rows_out);
/* Number of values of a batch at FFN rank f that differ from the reference; expert_ids: the ids
 * that the buffer says are this rank's. */
uint64_t cli_batch_check(const struct cli_job *job, uint32_t f, uint64_t exchange, uint32_t tokens,
                         const uint32_t *expert_ids, const struct afd_batch *batch);
/* What identity experts answer to the batch of FFN rank f, in its order: [row_count][hidden], to be
 * freed. NULL if there is no memory. */
uint16_t *cli_batch_identity(const struct cli_job *job, uint32_t f, uint64_t exchange,
                             uint32_t tokens, uint64_t *row_count_out);

uint64_t cli_mix(uint64_t x);

#endif
