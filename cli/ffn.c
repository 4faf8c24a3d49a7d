/* SPDX-License-Identifier: Apache-2.0 */
/* ffn.c - an FFN rank of `afd run`: receives, checks, lets its experts answer, replies. */

#include <stdlib.h>
#include <string.h>

#include "rank.h"

/* Answer rows that grow as needed. */
struct answers {
    uint16_t *rows;
    uint64_t capacity;  /* values */
    uint64_t row_count; /* a set's: rows that are answered */
};

struct ffn {
    struct cli_rank *rank;
    struct afd_buffer_info info;
    struct answers stage[AFD_STAGES_MAX];
    struct answers set[CLI_SETS_MAX];
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

/* The answer that a rank armed to lie spoils in this exchange, or NULL: the first one of its first
 * expert that has rows, because padding is not read. */
static uint16_t *spoiled(const struct ffn *ffn, const struct afd_batch *batch, uint64_t exchange,
                         void *rows, uint64_t stride)
{
    uint32_t e = 0;
    if (!cli_rank_lies(ffn->rank, exchange))
        return NULL;
    while (e < ffn->info.local_experts && batch->counts[e] == 0)
        e++;
    if (e == ffn->info.local_experts)
        return NULL;
    stride = stride != 0 ? stride : (uint64_t)ffn->rank->job->config.hidden * 2;
    return (uint16_t *)(void *)((uint8_t *)rows + batch->offsets[e] * stride);
}

static int reply(struct ffn *ffn, uint32_t stage, uint64_t exchange, const struct afd_batch *batch,
                 void *rows, uint64_t stride)
{
    uint16_t *wrong = spoiled(ffn, batch, exchange, rows, stride);
    int rc;
    if (wrong != NULL)
        *wrong ^= 0x4000; /* a large change of the exponent: no rounding hides it */
    cli_rank_at(ffn->rank, AFD_PHASE_REPLY, stage, exchange);
    rc = afd_reply(ffn->rank->buffer, stage, rows, stride, NULL);
    if (rc == 0 && wrong != NULL && rows != batch->rows)
        *wrong ^= 0x4000; /* prepared answers serve again */
    return rc == 0 ? CLI_OK : cli_rank_failed(ffn->rank, "reply");
}

/* Distinct exchange i of a visit, once received: every expert answers with its own function. */
static int reply_distinct(struct ffn *ffn, const struct cli_visit *v, uint32_t i,
                          const struct afd_batch *batch)
{
    const struct cli_job *job = ffn->rank->job;
    uint64_t exchange = v->first_exchange + i;
    uint32_t stage = i % job->config.stages;
    struct answers *answers = &ffn->stage[stage];
    int rc;
    ffn->rank->record->mismatches +=
        cli_batch_check(job, ffn->rank->index, exchange, v->tokens, ffn->info.expert_ids, batch);
    rc = answer(ffn, batch, exchange, 0, answers);
    return rc ? rc : reply(ffn, stage, exchange, batch, answers->rows, 0);
}

/* BF16 rows go back as they came; any other identity answer is prepared. */
static int as_they_came(const struct cli_job *job)
{
    return job->config.payload == AFD_PAYLOAD_BF16 && job->config.receive == AFD_RECEIVE_EXPANDED;
}

/* Answers to the batches that a visit's sets will give, so that the clock does not see them. */
static int prepare_sets(struct ffn *ffn, const struct cli_visit *v)
{
    const struct cli_job *job = ffn->rank->job;
    uint32_t count = as_they_came(job) ? 0 : cli_timed_sets(job, v);
    for (uint32_t i = 0; i < count; i++) {
        struct answers *set = &ffn->set[i];
        free(set->rows);
        set->rows = cli_batch_identity(job, ffn->rank->index, cli_timed_label(v, i), v->tokens,
                                       &set->row_count);
        if (set->rows == NULL)
            return CLI_FAILED;
        set->capacity = set->row_count * job->config.hidden + 1;
    }
    return CLI_OK;
}

/* Timed exchange i of a visit, once received. */
static int reply_timed(struct ffn *ffn, const struct cli_visit *v, uint32_t i,
                       const struct afd_batch *batch)
{
    const struct cli_job *job = ffn->rank->job;
    uint64_t exchange = v->first_exchange + v->distinct + i;
    uint32_t stage = i % job->config.stages;
    struct answers *set = &ffn->set[cli_timed_set(job, v, i)];
    int rc = CLI_OK;
    if (as_they_came(job))
        return reply(ffn, stage, exchange, batch, batch->rows, batch->rows_stride);
    if (batch->row_count != set->row_count) { /* answers would not be where they belong */
        ffn->rank->record->mismatches++;
        rc = answer(ffn, batch, 0, 1, set);
        set->row_count = batch->row_count;
    }
    return rc ? rc : reply(ffn, stage, exchange, batch, set->rows, 0);
}

/* One half of a visit. Protocol direct answers each exchange when it is received. With union all
 * ranks are in the same phase of a stage, and sources dispatch all their stages before they
 * collect: so this rank receives all of them before it replies. */
static int run_exchanges(struct ffn *ffn, const struct cli_visit *v, int timed)
{
    const struct afd_buffer_config *c = &ffn->rank->job->config;
    uint32_t at_once = c->protocol == AFD_PROTOCOL_UNION ? c->stages : 1;
    uint32_t count = timed ? v->timed : v->distinct;
    uint64_t first = v->first_exchange + (timed ? v->distinct : 0);
    struct afd_batch batch[AFD_STAGES_MAX];
    int rc = CLI_OK;
    for (uint32_t i = 0; rc == CLI_OK && i < count; i += at_once) {
        uint32_t flight = count - i < at_once ? count - i : at_once;
        for (uint32_t j = 0; rc == CLI_OK && j < flight; j++)
            rc = receive(ffn, v, (i + j) % c->stages, first + i + j, &batch[j]);
        for (uint32_t j = 0; rc == CLI_OK && j < flight; j++) {
            rc = timed ? reply_timed(ffn, v, i + j, &batch[j])
                       : reply_distinct(ffn, v, i + j, &batch[j]);
            if (rc == CLI_OK)
                ffn->rank->record->checked++;
        }
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
        rc = prepare_sets(&ffn, &rank->job->visit[i]);
        if (rc == CLI_OK)
            rc = run_exchanges(&ffn, &rank->job->visit[i], 0);
        if (rc == CLI_OK)
            rc = run_exchanges(&ffn, &rank->job->visit[i], 1);
    }
    for (uint32_t i = 0; i < AFD_STAGES_MAX; i++)
        free(ffn.stage[i].rows);
    for (uint32_t i = 0; i < CLI_SETS_MAX; i++)
        free(ffn.set[i].rows);
    return rc;
}
