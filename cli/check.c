/* SPDX-License-Identifier: Apache-2.0 */
/* check.c - an FFN rank's batch against the reference, value by value. */

#include <stdlib.h>
#include <string.h>

#include "job.h"

/* Reference batch of FFN rank f. */
static int make_reference(const struct cli_job *job, uint32_t f, uint64_t exchange, uint32_t tokens,
                          struct afd_reference_batch *want_out)
{
    uint32_t n = job->layout.sources;
    struct cli_input *in = calloc(n, sizeof(*in));
    struct afd_reference_source *source = calloc(n, sizeof(*source));
    int rc = in == NULL || source == NULL ? CLI_FAILED : CLI_OK;
    for (uint32_t s = 0; rc == CLI_OK && s < n; s++) {
        rc = cli_input_alloc(job, &in[s]);
        if (rc != CLI_OK)
            break;
        cli_input_fill(job, exchange, s, tokens, &in[s]);
        source[s].count = tokens;
        source[s].ids = in[s].ids;
        source[s].weights = job->options.weights ? in[s].weights : NULL;
        source[s].x = in[s].x;
        source[s].scales = job->ref.scale_bytes != 0 ? in[s].scales : NULL;
    }
    if (rc == CLI_OK && afd_reference_batch(&job->ref, source, f, want_out) != 0)
        rc = CLI_FAILED;
    for (uint32_t s = 0; in != NULL && s < n; s++)
        cli_input_free(&in[s]);
    free(source);
    free(in);
    return rc;
}

/* Differences of one row that is not padding. */
static uint64_t row_differences(const struct cli_job *job, const struct afd_batch *got,
                                const struct afd_reference_batch *want, uint64_t r)
{
    uint64_t bytes = job->ref.payload_bytes;
    uint64_t scale_bytes = job->ref.scale_bytes;
    int indexed = job->config.receive == AFD_RECEIVE_INDEXED;
    uint32_t each = job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1;
    uint64_t wrong = 0;
    const uint8_t *row = indexed ? (const uint8_t *)got->inbox + got->slots[r] * got->inbox_stride
                                 : (const uint8_t *)got->rows + r * got->rows_stride;
    if (memcmp(row, want->rows + r * bytes, bytes) != 0)
        for (uint64_t b = 0; b < bytes; b++)
            wrong += row[b] != want->rows[r * bytes + b];
    for (uint64_t b = 0; b < scale_bytes; b++) {
        const uint8_t *scale = indexed ? row + got->inbox_scales_offset + b
                                       : (const uint8_t *)got->scales + r * got->scales_row_stride +
                                             b / each * got->scales_group_stride + b % each;
        wrong += *scale != want->scales[r * scale_bytes + b];
    }
    if (got->weights != NULL)
        wrong += memcmp(&got->weights[r], &want->weights[r], sizeof(float)) != 0;
    return wrong;
}

/* Bytes of a padding row that are not zero, where zeros are asked for. */
static uint64_t padding_differences(const struct cli_job *job, const struct afd_batch *got,
                                    uint64_t r)
{
    const uint8_t *row = (const uint8_t *)got->rows + r * got->rows_stride;
    uint64_t wrong = 0;
    for (uint32_t b = 0; b < job->ref.payload_bytes; b++)
        wrong += row[b] != 0;
    return wrong;
}

uint64_t cli_batch_check(const struct cli_job *job, uint32_t f, uint64_t exchange, uint32_t tokens,
                         const uint32_t *expert_ids, const struct afd_batch *got)
{
    struct afd_reference_batch want;
    uint64_t wrong = 0;
    if (make_reference(job, f, exchange, tokens, &want) != CLI_OK)
        return 1;
    if (got->row_count != want.row_count || got->token_count != want.token_count) {
        wrong = 1;
        goto out;
    }
    for (uint32_t e = 0; e < want.local_experts; e++)
        wrong += got->counts[e] != want.counts[e] || got->offsets[e] != want.offsets[e] ||
                 expert_ids[e] != want.expert_ids[e];
    wrong += got->offsets[want.local_experts] != want.row_count;
    wrong += job->options.weights && want.row_count != 0 && got->weights == NULL;
    for (uint64_t r = 0; r < want.row_count; r++) {
        wrong += got->slots[r] != want.slots[r];
        if (got->slots[r] != want.slots[r])
            continue;
        if (want.slots[r] != AFD_SLOT_NONE)
            wrong += row_differences(job, got, &want, r);
        else if (job->config.zero_padding && job->config.receive == AFD_RECEIVE_EXPANDED)
            wrong += padding_differences(job, got, r);
    }
out:
    afd_reference_batch_free(&want);
    return wrong;
}

uint16_t *cli_batch_identity(const struct cli_job *job, uint32_t f, uint64_t exchange,
                             uint32_t tokens, uint64_t *row_count_out)
{
    struct afd_reference_batch batch;
    size_t hidden = job->config.hidden;
    uint16_t *rows;
    if (make_reference(job, f, exchange, tokens, &batch) != CLI_OK)
        return NULL;
    rows = calloc(batch.row_count * hidden + 1, sizeof(*rows));
    for (uint32_t e = 0; rows != NULL && e < batch.local_experts; e++) {
        for (uint64_t r = batch.offsets[e]; r < batch.offsets[e] + batch.counts[e]; r++) {
            const uint8_t *payload = batch.rows + r * job->ref.payload_bytes;
            struct cli_row row = {payload, payload, job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1};
            if (batch.scales != NULL)
                row.scales = batch.scales + r * job->ref.scale_bytes;
            cli_expert(job, &row, batch.expert_ids[e], exchange, 1, rows + r * hidden);
        }
    }
    *row_count_out = batch.row_count;
    afd_reference_batch_free(&batch);
    return rows;
}
