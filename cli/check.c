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

uint64_t cli_batch_check(const struct cli_job *job, uint32_t f, uint64_t exchange, uint32_t tokens,
                         const struct afd_batch *got)
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
        wrong += got->counts[e] != want.counts[e] || got->offsets[e] != want.offsets[e];
    for (uint64_t r = 0; r < want.row_count; r++) {
        wrong += got->slots[r] != want.slots[r];
        if (want.slots[r] != AFD_SLOT_NONE && got->slots[r] == want.slots[r])
            wrong += row_differences(job, got, &want, r);
    }
out:
    afd_reference_batch_free(&want);
    return wrong;
}
