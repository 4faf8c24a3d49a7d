/* SPDX-License-Identifier: Apache-2.0 */
/* job_check.c - the truth about an exchange, and the comparisons with it. */

#include "job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRUTHS_KEPT 8u

void job_mismatch(struct job *job, const char *format, ...)
{
    va_list args;
    if (__atomic_fetch_add(&job->mismatches, 1, __ATOMIC_RELAXED) != 0)
        return;
    va_start(args, format);
    vsnprintf(job->first_mismatch, sizeof(job->first_mismatch), format, args);
    va_end(args);
}

/* ---------------------------------------------------------------------------------------- truth */

static void make_batches(const struct job *job, struct job_truth *truth)
{
    struct afd_reference_source source[JOB_RANKS_MAX];
    for (uint32_t s = 0; s < job->sources; s++) {
        const struct job_input *in = &truth->input[s];
        source[s].count = in->count;
        source[s].ids = in->ids;
        source[s].weights = job_sends_weights(job, s) ? in->weights : NULL;
        source[s].x = in->x;
        source[s].scales = job->ref.scale_bytes != 0 ? in->scales : NULL;
    }
    for (uint32_t f = 0; f < job->ffn_ranks; f++) {
        struct afd_reference ref = job->ref;
        ref.alignment = job->config[job->ffn_rank[f]].alignment;
        ref.scale_layout = job->config[job->ffn_rank[f]].scale_layout;
        if (afd_reference_batch(&ref, source, f, &truth->batch[f]) != 0)
            abort();
        truth->answer[f] = job_answer_make(job, &truth->batch[f], truth->exchange);
    }
}

/* What source s must collect. */
static uint16_t *make_collected(const struct job *job, const struct job_truth *truth, uint32_t s)
{
    uint64_t hidden = job->ref.hidden;
    uint32_t count = truth->tokens[s];
    uint16_t *out = job_need(calloc(count * hidden + 1, sizeof(*out)));
    uint16_t *partial = job_need(calloc(job->ffn_ranks * hidden, sizeof(*partial)));
    for (uint32_t t = 0; t < count; t++) {
        const uint16_t *terms[JOB_RANKS_MAX + 2];
        uint32_t term_count = 0;
        for (uint32_t b = 0; b < job->options.bias_count; b++)
            terms[term_count++] = truth->input[s].bias + t * hidden;
        for (uint32_t f = 0; f < job->ffn_ranks; f++) {
            int weighted = (int)job->config[job->ffn_rank[f]].weighted_reply;
            if (afd_reference_reply(&job->ref, &truth->batch[f], truth->answer[f], weighted, s, t,
                                    partial + f * hidden) != 0)
                terms[term_count++] = partial + f * hidden;
        }
        afd_reference_sum(terms, term_count, job->ref.hidden, out + t * hidden);
    }
    free(partial);
    return out;
}

static struct job_truth *truth_make(const struct job *job, uint64_t exchange,
                                    const uint32_t *tokens)
{
    struct job_truth *truth = job_need(calloc(1, sizeof(*truth)));
    truth->exchange = exchange;
    for (uint32_t s = 0; s < job->sources; s++) {
        truth->tokens[s] = tokens[s];
        job_input_make(job, s, exchange, tokens[s], &truth->input[s]);
    }
    make_batches(job, truth);
    for (uint32_t s = 0; s < job->sources; s++)
        truth->collected[s] = make_collected(job, truth, s);
    return truth;
}

static void truth_free(const struct job *job, struct job_truth *truth)
{
    for (uint32_t s = 0; s < job->sources; s++) {
        job_input_free(&truth->input[s]);
        free(truth->collected[s]);
    }
    for (uint32_t f = 0; f < job->ffn_ranks; f++) {
        afd_reference_batch_free(&truth->batch[f]);
        free(truth->answer[f]);
    }
    free(truth);
}

/* Frees what nobody uses, from the `keep`-th newest on. */
static void truths_trim(struct job *job, uint32_t keep)
{
    struct job_truth **link = &job->truths;
    while (*link != NULL) {
        struct job_truth *truth = *link;
        if (keep > 0 || truth->users != 0) {
            keep -= keep > 0;
            link = &truth->next;
            continue;
        }
        *link = truth->next;
        truth_free(job, truth);
    }
}

struct job_truth *job_truth_get(struct job *job, uint64_t exchange, const uint32_t *tokens)
{
    struct job_truth *truth;
    pthread_mutex_lock(&job->truth_lock);
    truth = job->truths;
    while (truth != NULL && (truth->exchange != exchange ||
                             memcmp(truth->tokens, tokens, job->sources * sizeof(*tokens)) != 0))
        truth = truth->next;
    if (truth == NULL) {
        truths_trim(job, TRUTHS_KEPT);
        truth = truth_make(job, exchange, tokens);
        truth->next = job->truths;
        job->truths = truth;
    }
    truth->users++;
    pthread_mutex_unlock(&job->truth_lock);
    return truth;
}

void job_truth_put(struct job *job, struct job_truth *truth)
{
    pthread_mutex_lock(&job->truth_lock);
    truth->users--;
    pthread_mutex_unlock(&job->truth_lock);
}

void job_truths_free(struct job *job)
{
    truths_trim(job, 0);
}

/* ----------------------------------------------------------------------------------------- info */

static void check_experts(struct job *job, uint32_t f, const struct afd_buffer_info *info)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < job->ref.experts; e++) {
        if (job->placement[e] != f)
            continue;
        if (count >= info->local_experts || info->expert_ids[count] != e)
            job_mismatch(job, "expert %u is not number %u of FFN rank %u", e, count, f);
        count++;
    }
    if (count != info->local_experts)
        job_mismatch(job, "FFN rank %u says %u experts, not %u", f, info->local_experts, count);
}

void job_check_info(struct job *job)
{
    uint32_t index[3] = {0, 0, 0}; /* by role */
    uint32_t protocol = job->config[0].protocol;
    if (protocol == AFD_PROTOCOL_AUTO)
        protocol = AFD_PROTOCOL_DIRECT;
    for (uint32_t r = 0; r < job->world; r++) {
        uint32_t role = job->roles[r];
        struct afd_buffer_info info;
        if (afd_buffer_info(job->buffer[r], &info) != 0)
            abort();
        if (info.role != role || info.index != index[role] || info.sources != job->sources ||
            info.ffn_ranks != job->ffn_ranks || info.protocol != protocol ||
            info.payload_bytes != job->ref.payload_bytes ||
            info.scale_bytes != job->ref.scale_bytes || info.reply_stride < job->ref.hidden * 2ull)
            job_mismatch(job, "afd_buffer_info() of rank %u", r);
        if (role == AFD_ROLE_FFN)
            check_experts(job, info.index, &info);
        else if (info.local_experts != 0 || info.expert_ids != NULL)
            job_mismatch(job, "rank %u says it holds %u experts", r, info.local_experts);
        index[role]++;
    }
}

/* ---------------------------------------------------------------------------------------- batch */

static void check_scales(struct job *job, const struct afd_buffer_config *c,
                         const struct afd_batch *got, const struct afd_reference_batch *want,
                         uint64_t r)
{
    uint32_t each = c->scale_layout == AFD_SCALES_ROW_MAJOR ? job->ref.scale_bytes
                    : c->payload == AFD_PAYLOAD_FP8         ? 4
                                                            : 1;
    for (uint32_t i = 0; i < job->ref.scale_bytes / each; i++) {
        const uint8_t *scale = (const uint8_t *)got->scales + r * got->scales_row_stride +
                               i * got->scales_group_stride;
        if (memcmp(scale, want->scales + r * job->ref.scale_bytes + (uint64_t)i * each, each) != 0)
            job_mismatch(job, "scale %u of row %llu", i, (unsigned long long)r);
    }
}

static void check_row(struct job *job, const struct afd_buffer_config *c,
                      const struct afd_batch *got, const struct afd_reference_batch *want,
                      uint64_t r)
{
    uint64_t bytes = job->ref.payload_bytes;
    const uint8_t *row;
    const uint8_t *scales = NULL;
    int padding = want->slots[r] == AFD_SLOT_NONE;
    if (got->slots[r] != want->slots[r]) {
        job_mismatch(job, "row %llu is slot %u, not %u", (unsigned long long)r, got->slots[r],
                     want->slots[r]);
        return;
    }
    if (got->weights != NULL && memcmp(&got->weights[r], &want->weights[r], sizeof(float)) != 0)
        job_mismatch(job, "weight of row %llu", (unsigned long long)r);
    if (padding && (c->receive == AFD_RECEIVE_INDEXED || !c->zero_padding))
        return;
    if (c->receive == AFD_RECEIVE_INDEXED) {
        row = (const uint8_t *)got->inbox + got->slots[r] * got->inbox_stride;
        scales = row + got->inbox_scales_offset;
    } else {
        row = (const uint8_t *)got->rows + r * got->rows_stride;
    }
    if (memcmp(row, want->rows + r * bytes, bytes) != 0)
        job_mismatch(job, "bytes of row %llu", (unsigned long long)r);
    if (job->ref.scale_bytes == 0)
        return;
    if (scales == NULL)
        check_scales(job, c, got, want, r);
    else if (memcmp(scales, want->scales + r * job->ref.scale_bytes, job->ref.scale_bytes) != 0)
        job_mismatch(job, "scales of row %llu", (unsigned long long)r);
}

/* Rows per expert since the buffer was made. */
static void check_totals(struct job *job, uint32_t f, const struct afd_batch *got,
                         const struct afd_reference_batch *want)
{
    for (uint32_t e = 0; e < want->local_experts; e++) {
        job->totals[f][e] += want->counts[e];
        if (got->expert_totals[e] != job->totals[f][e])
            job_mismatch(job, "FFN rank %u, expert %u: %llu rows in all, not %llu", f, e,
                         (unsigned long long)got->expert_totals[e],
                         (unsigned long long)job->totals[f][e]);
    }
}

/* Which arrays there are, and how they lie. */
static void check_arrays(struct job *job, const struct afd_buffer_config *c,
                         const struct afd_batch *got)
{
    int indexed = c->receive == AFD_RECEIVE_INDEXED;
    uint32_t senders = 0;
    for (uint32_t s = 0; s < job->sources; s++)
        senders += (uint32_t)job_sends_weights(job, s);
    if ((got->weights != NULL) != (senders != 0))
        job_mismatch(job, "weights of %u sources, but the array is %p", senders,
                     (const void *)got->weights);
    if ((got->rows != NULL) == indexed || (got->inbox != NULL) != indexed)
        job_mismatch(job, "rows %p, inbox %p", got->rows, got->inbox);
    if ((got->scales != NULL) != (!indexed && job->ref.scale_bytes != 0))
        job_mismatch(job, "scales %p", got->scales);
    if (c->scale_layout == AFD_SCALES_COL_MAJOR && !indexed && got->scales_group_stride % 16 != 0)
        job_mismatch(job, "columns of scales are %llu bytes apart",
                     (unsigned long long)got->scales_group_stride);
    if (!indexed && got->rows_stride < job->ref.payload_bytes)
        job_mismatch(job, "rows are %llu bytes apart", (unsigned long long)got->rows_stride);
}

void job_check_batch(struct job *job, uint32_t f, const struct afd_batch *got,
                     const struct afd_reference_batch *want)
{
    const struct afd_buffer_config *c = &job->config[job->ffn_rank[f]];
    if (got->row_count != want->row_count || got->token_count != want->token_count) {
        job_mismatch(job, "FFN rank %u has %llu rows of %llu tokens, not %llu of %llu", f,
                     (unsigned long long)got->row_count, (unsigned long long)got->token_count,
                     (unsigned long long)want->row_count, (unsigned long long)want->token_count);
        return;
    }
    if (memcmp(got->counts, want->counts, want->local_experts * sizeof(uint32_t)) != 0 ||
        memcmp(got->offsets, want->offsets, (want->local_experts + 1ull) * sizeof(uint32_t)) != 0)
        job_mismatch(job, "counts or offsets of FFN rank %u", f);
    check_arrays(job, c, got);
    check_totals(job, f, got, want);
    for (uint64_t r = 0; r < want->row_count; r++)
        check_row(job, c, got, want, r);
}

void job_check_collected(struct job *job, uint32_t s, const struct job_truth *truth,
                         const struct afd_output *output)
{
    uint64_t bytes = job->ref.hidden * 2ull;
    uint64_t stride = output->rows_stride != 0 ? output->rows_stride : bytes;
    if (output->count != truth->tokens[s]) {
        job_mismatch(job, "collect counts %u tokens, not %u", output->count, truth->tokens[s]);
        return;
    }
    for (uint32_t t = 0; t < output->count; t++)
        if (memcmp((const uint8_t *)output->rows + t * stride,
                   truth->collected[s] + t * (uint64_t)job->ref.hidden, bytes) != 0)
            job_mismatch(job, "collected row %u of source %u, exchange %llu", t, s,
                         (unsigned long long)truth->exchange);
}
