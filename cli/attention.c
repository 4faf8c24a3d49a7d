/* SPDX-License-Identifier: Apache-2.0 */
/* attention.c - an Attention rank of `afd run`: dispatches, collects, checks, times. */

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rank.h"

/* Input, output and expectation of one exchange in flight. */
struct slot {
    struct cli_input input;
    uint16_t *out;
    uint16_t *want;
    double begin_us;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int slot_alloc(const struct cli_job *job, struct slot *slot)
{
    size_t values = (size_t)job->config.capacity * job->config.hidden;
    int rc = cli_input_alloc(job, &slot->input);
    slot->out = calloc(values, sizeof(*slot->out));
    slot->want = calloc(values, sizeof(*slot->want));
    if (rc == CLI_OK && (slot->out == NULL || slot->want == NULL))
        rc = cli_error(CLI_FAILED, "no memory for %zu values", values);
    return rc;
}

static void slot_free(struct slot *slot)
{
    cli_input_free(&slot->input);
    free(slot->out);
    free(slot->want);
}

static int send_tokens(struct cli_rank *rank, uint32_t stage, uint64_t exchange,
                       const struct cli_input *in)
{
    const struct cli_job *job = rank->job;
    struct afd_tokens tokens;
    memset(&tokens, 0, sizeof(tokens));
    tokens.count = in->count;
    tokens.x = in->x;
    tokens.scales = job->ref.scale_bytes != 0 ? in->scales : NULL;
    tokens.ids = job->narrow_ids ? (const void *)in->ids32 : (const void *)in->ids;
    tokens.id_type = job->narrow_ids ? AFD_IDS_INT32 : AFD_IDS_INT64;
    tokens.weights = job->options.weights ? in->weights : NULL;
    cli_rank_at(rank, AFD_PHASE_DISPATCH, stage, exchange);
    return afd_dispatch(rank->buffer, stage, &tokens, NULL) == 0
               ? CLI_OK
               : cli_rank_failed(rank, "dispatch");
}

static int take_rows(struct cli_rank *rank, uint32_t stage, uint64_t exchange, struct slot *slot,
                     const struct cli_input *in, struct afd_output *output)
{
    afd_output_init(output);
    output->view = (uint32_t)rank->job->options.view;
    output->rows = output->view ? NULL : slot->out;
    output->bias[0] = rank->job->options.bias ? in->bias : NULL;
    cli_rank_at(rank, AFD_PHASE_COLLECT, stage, exchange);
    return afd_collect(rank->buffer, stage, output, NULL) == 0 ? CLI_OK
                                                               : cli_rank_failed(rank, "collect");
}

static void compare(struct cli_rank *rank, const struct afd_output *output, const uint16_t *want,
                    uint32_t tokens)
{
    size_t hidden = rank->job->config.hidden;
    uint64_t stride = output->view ? output->rows_stride : hidden * 2;
    rank->record->checked++;
    rank->record->mismatches += output->count != tokens;
    for (uint32_t t = 0; t < tokens; t++) {
        const uint16_t *row =
            (const uint16_t *)(const void *)((const uint8_t *)output->rows + t * stride);
        if (memcmp(row, want + t * hidden, hidden * 2) == 0)
            continue;
        for (size_t h = 0; h < hidden; h++)
            rank->record->mismatches += row[h] != want[t * hidden + h];
    }
}

/* What an exchange does not write must not look right. */
static void poison(const struct cli_job *job, const struct cli_visit *v, struct slot *slot)
{
    memset(slot->out, 0xff, (size_t)v->tokens * job->config.hidden * sizeof(*slot->out));
}

/* The distinct exchanges, as many in flight as there are stages; every one has its own data and its
 * own function per expert. */
static int run_distinct(struct cli_rank *rank, const struct cli_visit *v, struct slot *slots)
{
    const struct cli_job *job = rank->job;
    uint32_t stages = job->config.stages;
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < v->distinct; i += stages) {
        uint32_t flight = v->distinct - i < stages ? v->distinct - i : stages;
        for (uint32_t j = 0; rc == CLI_OK && j < flight; j++) {
            cli_input_fill(job, v->first_exchange + i + j, rank->index, v->tokens, &slots[j].input);
            poison(job, v, &slots[j]);
            rc = send_tokens(rank, j, v->first_exchange + i + j, &slots[j].input);
        }
        for (uint32_t j = 0; rc == CLI_OK && j < flight; j++) {
            uint64_t exchange = v->first_exchange + i + j;
            struct afd_output output;
            rc = take_rows(rank, j, exchange, &slots[j], &slots[j].input, &output);
            if (rc == CLI_OK)
                rc = cli_expected(job, exchange, &slots[j].input, 0, slots[j].want);
            if (rc == CLI_OK)
                compare(rank, &output, slots[j].want, v->tokens);
        }
    }
    return rc;
}

static int prepare_sets(const struct cli_rank *rank, const struct cli_visit *v, struct slot *sets)
{
    uint32_t count = cli_timed_sets(rank->job, v);
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < count; i++) {
        uint64_t label = cli_timed_label(v, i);
        cli_input_fill(rank->job, label, rank->index, v->tokens, &sets[i].input);
        rc = cli_expected(rank->job, label, &sets[i].input, 1, sets[i].want);
    }
    return rc;
}

/* The timed exchanges: identity experts, results compared after the clock stops. */
static int run_timed(struct cli_rank *rank, const struct cli_visit *v, struct slot *slots,
                     struct slot *sets)
{
    const struct cli_job *job = rank->job;
    uint32_t stages = job->config.stages;
    uint64_t first = v->first_exchange + v->distinct;
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < v->timed; i += stages) {
        uint32_t flight = v->timed - i < stages ? v->timed - i : stages;
        for (uint32_t j = 0; j < flight; j++)
            poison(job, v, &slots[j]);
        for (uint32_t j = 0; rc == CLI_OK && j < flight; j++) {
            struct slot *set = &sets[cli_timed_set(job, v, i + j)];
            slots[j].begin_us = now_us();
            rc = send_tokens(rank, j, first + i + j, &set->input);
        }
        for (uint32_t j = 0; rc == CLI_OK && j < flight; j++) {
            struct slot *set = &sets[cli_timed_set(job, v, i + j)];
            struct afd_output output;
            rc = take_rows(rank, j, first + i + j, &slots[j], &set->input, &output);
            rank->times_us[v->first_time + i + j] = now_us() - slots[j].begin_us;
            if (rc == CLI_OK)
                compare(rank, &output, set->want, v->tokens);
        }
    }
    return rc;
}

int cli_attention_run(struct cli_rank *rank)
{
    struct slot slots[AFD_STAGES_MAX];
    struct slot sets[CLI_SETS_MAX];
    int rc = CLI_OK;
    memset(slots, 0, sizeof(slots));
    memset(sets, 0, sizeof(sets));
    for (uint32_t i = 0; rc == CLI_OK && i < rank->job->config.stages; i++)
        rc = slot_alloc(rank->job, &slots[i]);
    for (uint32_t i = 0; rc == CLI_OK && i < CLI_SETS_MAX; i++)
        rc = slot_alloc(rank->job, &sets[i]);
    for (uint32_t i = 0; rc == CLI_OK && i < rank->job->visit_count; i++) {
        rc = prepare_sets(rank, &rank->job->visit[i], sets);
        if (rc == CLI_OK)
            rc = run_distinct(rank, &rank->job->visit[i], slots);
        if (rc == CLI_OK)
            rc = run_timed(rank, &rank->job->visit[i], slots, sets);
    }
    for (uint32_t i = 0; i < AFD_STAGES_MAX; i++)
        slot_free(&slots[i]);
    for (uint32_t i = 0; i < CLI_SETS_MAX; i++)
        slot_free(&sets[i]);
    return rc;
}
