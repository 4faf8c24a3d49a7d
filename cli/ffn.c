/* SPDX-License-Identifier: Apache-2.0 */
/* ffn.c - an FFN rank of `afd run`: receives, checks, lets its experts answer, replies. */

#include <stdlib.h>
#include <string.h>

#include "rank.h"

/* Answer rows that grow as needed. */
struct answers {
    uint16_t *rows;
    uint64_t capacity; /* values */
};

struct ffn {
    struct cli_rank *rank;
    struct afd_buffer_info info;
    struct answers stage[AFD_STAGES_MAX];
    struct answers set[4];
};

static int reserve(struct answers *answers, uint64_t values)
{
    if (values <= answers->capacity)
        return CLI_OK;
    free(answers->rows);
    answers->rows = malloc(values * sizeof(*answers->rows));
    answers->capacity = answers->rows != NULL ? values : 0;
    return answers->rows != NULL
               ? CLI_OK
               : cli_error(CLI_FAILED, "no memory for %llu answers", (unsigned long long)values);
}

/* Every expert's answer to every row of a batch, in batch order. */
static int answer(struct ffn *ffn, const struct afd_batch *batch, uint64_t exchange, int identity,
                  struct answers *answers)
{
    const struct cli_job *job = ffn->rank->job;
    uint64_t hidden = job->config.hidden;
    int indexed = job->config.receive == AFD_RECEIVE_INDEXED;
    int rc = reserve(answers, batch->row_count * hidden + 1);
    for (uint32_t e = 0; rc == CLI_OK && e < ffn->info.local_experts; e++) {
        for (uint64_t r = batch->offsets[e]; r < batch->offsets[e] + batch->counts[e]; r++) {
            const uint8_t *row =
                indexed ? (const uint8_t *)batch->inbox + batch->slots[r] * batch->inbox_stride
                        : (const uint8_t *)batch->rows + r * batch->rows_stride;
            struct cli_row where = {row, row + batch->inbox_scales_offset,
                                    job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1};
            if (!indexed && batch->scales != NULL) {
                where.scales = (const uint8_t *)batch->scales + r * batch->scales_row_stride;
                where.group_stride = batch->scales_group_stride;
            }
            cli_expert(job, &where, ffn->info.expert_ids[e], exchange, identity,
                       answers->rows + r * hidden);
        }
    }
    return rc;
}

static int receive(struct ffn *ffn, const struct cli_visit *v, uint32_t stage, uint64_t exchange,
                   struct afd_batch *batch)
{
    struct cli_record *record = ffn->rank->record;
    afd_batch_init(batch);
    batch->tokens_hint = v->tokens;
    cli_rank_at(ffn->rank, AFD_PHASE_RECEIVE, stage, exchange);
    if (afd_receive(ffn->rank->buffer, stage, batch, NULL) != 0)
        return cli_rank_failed(ffn->rank, "receive");
    record->rows[v->size] += batch->token_count;
    for (uint32_t e = 0; e < ffn->info.local_experts; e++)
        record->expanded[v->size] += batch->counts[e];
    return CLI_OK;
}

static int reply(struct ffn *ffn, uint32_t stage, uint64_t exchange, const void *rows,
                 uint64_t stride)
{
    cli_rank_at(ffn->rank, AFD_PHASE_REPLY, stage, exchange);
    return afd_reply(ffn->rank->buffer, stage, rows, stride, NULL) == 0
               ? CLI_OK
               : cli_rank_failed(ffn->rank, "reply");
}

static int run_distinct(struct ffn *ffn, const struct cli_visit *v)
{
    const struct cli_job *job = ffn->rank->job;
    uint32_t stages = job->config.stages;
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < v->distinct; i++) {
        uint64_t exchange = v->first_exchange + i;
        struct answers *answers = &ffn->stage[i % stages];
        struct afd_batch batch;
        rc = receive(ffn, v, i % stages, exchange, &batch);
        if (rc != CLI_OK)
            return rc;
        ffn->rank->record->mismatches +=
            cli_batch_check(job, ffn->rank->index, exchange, v->tokens, &batch);
        rc = answer(ffn, &batch, exchange, 0, answers);
        if (rc == CLI_OK)
            rc = reply(ffn, i % stages, exchange, answers->rows, 0);
        if (rc == CLI_OK)
            ffn->rank->record->checked++;
    }
    return rc;
}

/* Identity answers: BF16 rows go back as they came; anything else is prepared at a set's first turn
 * and reused. */
static int run_timed(struct ffn *ffn, const struct cli_visit *v)
{
    const struct cli_job *job = ffn->rank->job;
    uint32_t stages = job->config.stages;
    uint32_t sets = cli_timed_sets(job, v);
    uint64_t first = v->first_exchange + v->distinct;
    int as_they_came =
        job->config.payload == AFD_PAYLOAD_BF16 && job->config.receive == AFD_RECEIVE_EXPANDED;
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < v->timed; i++) {
        struct answers *answers = &ffn->set[sets == 0 ? 0 : i % sets];
        struct afd_batch batch;
        rc = receive(ffn, v, i % stages, first + i, &batch);
        if (rc == CLI_OK && !as_they_came && i < sets)
            rc = answer(ffn, &batch, cli_timed_label(job, v, i), 1, answers);
        if (rc == CLI_OK && as_they_came)
            rc = reply(ffn, i % stages, first + i, batch.rows, batch.rows_stride);
        else if (rc == CLI_OK)
            rc = reply(ffn, i % stages, first + i, answers->rows, 0);
        if (rc == CLI_OK)
            ffn->rank->record->checked++;
    }
    return rc;
}

int cli_ffn_run(struct cli_rank *rank)
{
    struct ffn ffn;
    int rc = CLI_OK;
    memset(&ffn, 0, sizeof(ffn));
    ffn.rank = rank;
    if (afd_buffer_info(rank->buffer, &ffn.info) != 0)
        return cli_rank_failed(rank, "info");
    for (uint32_t i = 0; rc == CLI_OK && i < rank->job->visit_count; i++) {
        rc = run_distinct(&ffn, &rank->job->visit[i]);
        if (rc == CLI_OK)
            rc = run_timed(&ffn, &rank->job->visit[i]);
    }
    rank->record->exchange = rc == CLI_OK ? rank->job->exchanges : rank->record->exchange;
    for (uint32_t i = 0; i < AFD_STAGES_MAX; i++)
        free(ffn.stage[i].rows);
    for (uint32_t i = 0; i < 4; i++)
        free(ffn.set[i].rows);
    return rc;
}
