/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - a whole job inside one test. */

#include "job.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *p)
{
    if (p == NULL)
        abort();
    return p;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

uint64_t job_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return mix(*state);
}

void job_mismatch(struct job *job, const char *format, ...)
{
    va_list args;
    if (__atomic_fetch_add(&job->mismatches, 1, __ATOMIC_RELAXED) != 0)
        return;
    va_start(args, format);
    vsnprintf(job->first_mismatch, sizeof(job->first_mismatch), format, args);
    va_end(args);
}

/* -------------------------------------------------------------------------------------------
 * ranks */

void job_init(struct job *job, const char *roles, const struct afd_buffer_config *config)
{
    memset(job, 0, sizeof(*job));
    job->world = (uint32_t)strlen(roles);
    if (job->world > JOB_RANKS_MAX)
        abort();
    for (uint32_t r = 0; r < job->world; r++) {
        job->roles[r] = roles[r] == 'F' ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION;
        if (roles[r] == 'F')
            job->ffn_rank[job->ffn_ranks++] = r;
        else
            job->source_rank[job->sources++] = r;
        job->config[r] = *config;
    }
    afd_group_config_init(&job->group_config);
    job->group_config.bootstrap = AFD_BOOTSTRAP_HUB;
    job->group_config.world = job->world;
    job->group_config.roles = job->roles;
    job->group_config.deadline_us = 20000000;
    job->seed = 1;
}

struct opener {
    struct job *job;
    uint32_t rank;
};

static void *open_rank(void *arg)
{
    struct opener *o = arg;
    struct job *job = o->job;
    struct afd_group_config config = job->group_config;
    int rc;
    config.rank = o->rank;
    config.hub = job->hub;
    rc = afd_group_create(&config, &job->group[o->rank]);
    if (rc == 0)
        rc = afd_buffer_create(job->group[o->rank], &job->config[o->rank], &job->buffer[o->rank]);
    job->create_rc[o->rank] = rc;
    snprintf(job->create_error[o->rank], sizeof(job->create_error[0]), "%s",
             rc != 0 ? afd_last_error() : "");
    return NULL;
}

static void fill_reference(struct job *job)
{
    struct afd_buffer_info info;
    const struct afd_buffer_config *c = &job->config[job->ffn_rank[0]];
    if (afd_buffer_info(job->buffer[job->ffn_rank[0]], &info) != 0)
        abort();
    job->placement = need(malloc(c->experts * sizeof(*job->placement)));
    if (c->placement != NULL)
        memcpy(job->placement, c->placement, c->experts * sizeof(*job->placement));
    else
        afd_reference_placement(c->experts, job->ffn_ranks, job->placement);
    job->ref.sources = job->sources;
    job->ref.ffn_ranks = job->ffn_ranks;
    job->ref.capacity = c->capacity;
    job->ref.hidden = c->hidden;
    job->ref.experts = c->experts;
    job->ref.topk = c->topk;
    job->ref.payload_bytes = info.payload_bytes;
    job->ref.scale_bytes = info.scale_bytes;
    job->ref.placement = job->placement;
}

int job_open(struct job *job)
{
    pthread_t thread[JOB_RANKS_MAX];
    struct opener opener[JOB_RANKS_MAX];
    int rc = afd_hub_create(job->world, &job->hub);
    if (rc != 0)
        return rc;
    for (uint32_t r = 0; r < job->world; r++) {
        opener[r].job = job;
        opener[r].rank = r;
        if (pthread_create(&thread[r], NULL, open_rank, &opener[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < job->world; r++) {
        pthread_join(thread[r], NULL);
        rc = rc != 0 ? rc : job->create_rc[r];
    }
    if (rc == 0)
        fill_reference(job);
    return rc;
}

void job_close(struct job *job)
{
    for (uint32_t r = 0; r < job->world; r++)
        if (afd_buffer_close(job->buffer[r]) != 0 || afd_group_destroy(job->group[r]) != 0)
            abort();
    afd_hub_destroy(job->hub);
    free(job->placement);
    job->placement = NULL;
}

/* -------------------------------------------------------------------------------------------
 * input */

/* Byte b of a row: any bit pattern may occur, but BF16 rows keep to finite values of mixed sign
 * with some zeros, subnormals and negative zeros among them. */
static uint8_t row_byte(uint64_t key, uint32_t b)
{
    uint64_t word = mix(key + b / 2);
    uint16_t value = (uint16_t)(word & 0x83ff);
    if ((word >> 20 & 15) != 0)
        value |= 0x3c00;
    if ((word >> 24 & 63) == 0)
        value &= 0x8000;
    return (uint8_t)(b % 2 == 0 ? value : value >> 8);
}

static uint64_t row_key(const struct job *job, uint64_t exchange, uint32_t s, uint32_t t)
{
    return mix(job->seed * 1000003 + exchange) ^ mix(((uint64_t)s << 32) + t + 1);
}

static void make_routes(const struct job *job, uint64_t *state, uint32_t t, int64_t *ids)
{
    uint32_t k = job->ref.topk;
    uint32_t every = job->options.no_routes_in;
    for (uint32_t i = 0; i < k; i++) {
        ids[i] = -1;
        if ((every != 0 && t % every == every - 1) || i >= job->ref.experts)
            continue;
        if (job_random(state) % 8 == 0)
            continue;
        for (int again = 1; again;) {
            ids[i] = (int64_t)(job_random(state) % job->ref.experts);
            again = 0;
            for (uint32_t j = 0; j < i; j++)
                again |= ids[j] == ids[i];
        }
    }
}

void job_input_make(const struct job *job, uint32_t s, uint64_t exchange, uint32_t tokens,
                    struct job_input *in)
{
    const struct afd_reference *ref = &job->ref;
    uint64_t state = mix(job->seed) + exchange * 7919 + s;
    uint64_t k = ref->topk;
    in->count = tokens;
    in->ids = need(calloc(tokens * k + 1, sizeof(*in->ids)));
    in->ids32 = need(calloc(tokens * k + 1, sizeof(*in->ids32)));
    in->weights = need(calloc(tokens * k + 1, sizeof(*in->weights)));
    in->x = need(calloc((uint64_t)tokens * ref->payload_bytes + 1, 1));
    in->scales = need(calloc((uint64_t)tokens * ref->scale_bytes + 1, 1));
    in->bias = need(calloc((uint64_t)tokens * ref->hidden + 1, sizeof(*in->bias)));
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t key = row_key(job, exchange, s, t);
        make_routes(job, &state, t, in->ids + t * k);
        for (uint32_t i = 0; i < k; i++) {
            in->ids32[t * k + i] = (int32_t)in->ids[t * k + i];
            in->weights[t * k + i] = (float)(int64_t)(job_random(&state) % 4001 - 2000) / 1024.0f;
        }
        for (uint32_t b = 0; b < ref->payload_bytes; b++)
            in->x[(uint64_t)t * ref->payload_bytes + b] = row_byte(key, b);
        for (uint32_t b = 0; b < ref->scale_bytes; b++)
            in->scales[(uint64_t)t * ref->scale_bytes + b] = (uint8_t)mix(key + 77 + b);
        for (uint32_t h = 0; h < ref->hidden; h++)
            in->bias[(uint64_t)t * ref->hidden + h] =
                (uint16_t)(row_byte(key + 5, 2 * h) | row_byte(key + 5, 2 * h + 1) << 8);
    }
}

void job_input_free(struct job_input *in)
{
    free(in->ids);
    free(in->ids32);
    free(in->weights);
    free(in->x);
    free(in->scales);
    free(in->bias);
    memset(in, 0, sizeof(*in));
}

static struct afd_reference_source as_source(const struct job *job, const struct job_input *in)
{
    struct afd_reference_source source = {in->count, in->ids, NULL, in->x, NULL};
    if (job->options.with_weights)
        source.weights = in->weights;
    if (job->ref.scale_bytes != 0)
        source.scales = in->scales;
    return source;
}

/* Answer of a global expert to a row: of its bytes, the expert, the exchange and the element. */
static uint16_t expert_value(const uint8_t *row, uint32_t payload_bytes, uint32_t expert,
                             uint64_t exchange, uint32_t h)
{
    uint64_t seen = row[(2ull * h) % payload_bytes] | (uint64_t)row[(2ull * h + 1) % payload_bytes]
                                                          << 8;
    uint64_t word = mix(seen * 65537 + expert * 1009ull + exchange * 31 + h);
    uint16_t value = (uint16_t)((word & 0x80ff) | (0x3d00 + (word >> 20 & 0x2ff)));
    if ((word >> 40 & 1023) == 0)
        value = (uint16_t)(word >> 50 & 1 ? 0x8000 : 0x7fc1); /* -0, or a NaN with a payload */
    return value;
}

/* The answers to a whole reference batch; padding rows are poison. */
static uint16_t *expert_rows(const struct job *job, const struct afd_reference_batch *b,
                             uint64_t exchange)
{
    uint32_t hidden = job->ref.hidden;
    uint16_t *rows = need(malloc((b->row_count * hidden + 1) * sizeof(*rows)));
    memset(rows, 0xff, b->row_count * hidden * sizeof(*rows));
    for (uint32_t e = 0; e < b->local_experts; e++)
        for (uint64_t r = b->offsets[e]; r < b->offsets[e] + b->counts[e]; r++)
            for (uint32_t h = 0; h < hidden; h++)
                rows[r * hidden + h] =
                    expert_value(b->rows + r * job->ref.payload_bytes, job->ref.payload_bytes,
                                 b->expert_ids[e], exchange, h);
    return rows;
}

/* ------------------------------------------------------------------------------------------
 * checks */

static void reference_batch(struct job *job, uint32_t f, uint64_t exchange, const uint32_t *tokens,
                            struct afd_reference_batch *batch)
{
    struct afd_reference_source source[JOB_RANKS_MAX];
    struct job_input in[JOB_RANKS_MAX];
    struct afd_reference ref = job->ref;
    ref.alignment = job->config[job->ffn_rank[f]].alignment;
    ref.scale_layout = job->config[job->ffn_rank[f]].scale_layout;
    for (uint32_t s = 0; s < job->sources; s++) {
        job_input_make(job, s, exchange, tokens[s], &in[s]);
        source[s] = as_source(job, &in[s]);
    }
    if (afd_reference_batch(&ref, source, f, batch) != 0)
        abort();
    for (uint32_t s = 0; s < job->sources; s++)
        job_input_free(&in[s]);
}

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

static void check_row(struct job *job, const struct afd_buffer_config *c, const struct afd_batch *got,
                      const struct afd_reference_batch *want, uint64_t r)
{
    uint64_t bytes = job->ref.payload_bytes;
    const uint8_t *row;
    const uint8_t *scales = NULL;
    int padding = want->slots[r] == AFD_SLOT_NONE;
    if (got->slots[r] != want->slots[r])
        job_mismatch(job, "row %llu is slot %u, not %u", (unsigned long long)r, got->slots[r],
                     want->slots[r]);
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

static void check_batch(struct job *job, uint32_t f, const struct afd_batch *got,
                        const struct afd_reference_batch *want)
{
    if (got->row_count != want->row_count || got->token_count != want->token_count) {
        job_mismatch(job, "FFN rank %u has %llu rows of %llu tokens, not %llu of %llu", f,
                     (unsigned long long)got->row_count, (unsigned long long)got->token_count,
                     (unsigned long long)want->row_count, (unsigned long long)want->token_count);
        return;
    }
    if (memcmp(got->counts, want->counts, want->local_experts * sizeof(uint32_t)) != 0 ||
        memcmp(got->offsets, want->offsets, (want->local_experts + 1ull) * sizeof(uint32_t)) != 0)
        job_mismatch(job, "counts or offsets of FFN rank %u", f);
    for (uint64_t r = 0; r < want->row_count; r++)
        check_row(job, &job->config[job->ffn_rank[f]], got, want, r);
}

/* -----------------------------------------------------------------------------------------
 * exchange */

int job_dispatch(struct job *job, uint32_t s, uint32_t stage, const struct job_input *in)
{
    struct afd_tokens tokens;
    memset(&tokens, 0, sizeof(tokens));
    tokens.count = in->count;
    tokens.x = in->x;
    tokens.scales = job->ref.scale_bytes != 0 ? in->scales : NULL;
    tokens.ids = job->options.narrow_ids ? (const void *)in->ids32 : (const void *)in->ids;
    tokens.id_type = job->options.narrow_ids ? AFD_IDS_INT32 : AFD_IDS_INT64;
    tokens.weights = job->options.with_weights ? in->weights : NULL;
    return afd_dispatch(job->buffer[job->source_rank[s]], stage, &tokens, NULL);
}

int job_ffn(struct job *job, uint32_t f, uint32_t stage, uint64_t exchange, const uint32_t *tokens)
{
    struct afd_buffer *buffer = job->buffer[job->ffn_rank[f]];
    struct afd_reference_batch want;
    struct afd_batch batch;
    uint16_t *rows;
    int rc;
    afd_batch_init(&batch);
    rc = afd_receive(buffer, stage, &batch, NULL);
    if (rc != 0)
        return rc;
    reference_batch(job, f, exchange, tokens, &want);
    check_batch(job, f, &batch, &want);
    rows = expert_rows(job, &want, exchange);
    rc = afd_reply(buffer, stage, rows, 0, NULL);
    memset(rows, 0xee, want.row_count * job->ref.hidden * sizeof(*rows)); /* it must be done with */
    free(rows);
    afd_reference_batch_free(&want);
    return rc;
}

/* What source s must collect. */
static uint16_t *reference_rows(struct job *job, uint32_t s, uint64_t exchange,
                                const uint32_t *tokens, const struct job_input *in)
{
    uint32_t hidden = job->ref.hidden;
    uint64_t n = (uint64_t)tokens[s] * hidden;
    uint16_t *out = need(calloc(n + 1, sizeof(*out)));
    uint16_t *partial = need(calloc(n * job->ffn_ranks + 1, sizeof(*partial)));
    const uint16_t **terms = need(calloc((uint64_t)tokens[s] * (job->ffn_ranks + 2) + 1, sizeof(*terms)));
    uint32_t *count = need(calloc(tokens[s] + 1ull, sizeof(*count)));
    int weighted = (int)job->config[job->ffn_rank[0]].weighted_reply;
    uint64_t stride = job->ffn_ranks + 2ull;
    for (uint32_t t = 0; t < tokens[s]; t++)
        for (uint32_t b = 0; b < job->options.bias_count; b++)
            terms[t * stride + count[t]++] = in->bias + (uint64_t)t * hidden;
    for (uint32_t f = 0; f < job->ffn_ranks; f++) {
        struct afd_reference_batch batch;
        uint16_t *rows;
        reference_batch(job, f, exchange, tokens, &batch);
        rows = expert_rows(job, &batch, exchange);
        for (uint32_t t = 0; t < tokens[s]; t++) {
            uint16_t *row = partial + f * n + (uint64_t)t * hidden;
            if (afd_reference_reply(&job->ref, &batch, rows, weighted, s, t, row) != 0)
                terms[t * stride + count[t]++] = row;
        }
        free(rows);
        afd_reference_batch_free(&batch);
    }
    for (uint32_t t = 0; t < tokens[s]; t++)
        afd_reference_sum(terms + t * stride, count[t], hidden, out + (uint64_t)t * hidden);
    free(count);
    free(terms);
    free(partial);
    return out;
}

int job_collect(struct job *job, uint32_t s, uint32_t stage, uint64_t exchange,
                const uint32_t *tokens)
{
    uint64_t bytes = (uint64_t)job->ref.hidden * 2;
    uint8_t *rows = need(malloc(tokens[s] * bytes + 1));
    struct job_input in;
    struct afd_output output;
    uint16_t *want;
    int rc;
    memset(rows, 0xa5, tokens[s] * bytes);
    job_input_make(job, s, exchange, tokens[s], &in);
    afd_output_init(&output);
    output.view = job->options.view;
    output.rows = job->options.view ? NULL : rows;
    for (uint32_t b = 0; b < job->options.bias_count; b++)
        output.bias[b] = in.bias;
    rc = afd_collect(job->buffer[job->source_rank[s]], stage, &output, NULL);
    if (rc == 0) {
        want = reference_rows(job, s, exchange, tokens, &in);
        for (uint32_t t = 0; t < tokens[s]; t++) {
            uint64_t stride = output.rows_stride != 0 ? output.rows_stride : bytes;
            if (memcmp((uint8_t *)output.rows + t * stride, want + (uint64_t)t * job->ref.hidden,
                       bytes) != 0)
                job_mismatch(job, "collected row %u of source %u, exchange %llu", t, s,
                             (unsigned long long)exchange);
        }
        if (output.count != tokens[s])
            job_mismatch(job, "collect counts %u tokens, not %u", output.count, tokens[s]);
        free(want);
    }
    job_input_free(&in);
    free(rows);
    return rc;
}

static int source_exchange(struct job *job, uint32_t s, uint32_t stage, uint64_t exchange,
                           const uint32_t *tokens)
{
    struct job_input in;
    int rc;
    job_input_make(job, s, exchange, tokens[s], &in);
    rc = job_dispatch(job, s, stage, &in);
    job_input_free(&in); /* dispatch has let go of it */
    return rc;
}

struct runner {
    struct job *job;
    uint32_t rank;
    uint32_t index;
    uint32_t stage;
    uint64_t exchange;
    const uint32_t *tokens;
    int rc;
};

static void *run_rank(void *arg)
{
    struct runner *r = arg;
    struct job *job = r->job;
    if (job->roles[r->rank] == AFD_ROLE_FFN) {
        r->rc = job_ffn(job, r->index, r->stage, r->exchange, r->tokens);
        return NULL;
    }
    r->rc = source_exchange(job, r->index, r->stage, r->exchange, r->tokens);
    if (r->rc == 0)
        r->rc = job_collect(job, r->index, r->stage, r->exchange, r->tokens);
    return NULL;
}

static int exchange_by_threads(struct job *job, uint32_t stage, uint64_t exchange,
                               const uint32_t *tokens)
{
    pthread_t thread[JOB_RANKS_MAX];
    struct runner runner[JOB_RANKS_MAX];
    uint32_t sources = 0;
    uint32_t ffn_ranks = 0;
    int rc = 0;
    for (uint32_t r = 0; r < job->world; r++) {
        uint32_t index = job->roles[r] == AFD_ROLE_FFN ? ffn_ranks++ : sources++;
        struct runner one = {job, r, index, stage, exchange, tokens, 0};
        runner[r] = one;
        if (pthread_create(&thread[r], NULL, run_rank, &runner[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < job->world; r++) {
        pthread_join(thread[r], NULL);
        rc = rc != 0 ? rc : runner[r].rc;
    }
    return rc;
}

int job_exchange(struct job *job, uint32_t stage, uint64_t exchange, const uint32_t *tokens)
{
    int rc = 0;
    if (job->options.threads)
        return exchange_by_threads(job, stage, exchange, tokens);
    for (uint32_t s = 0; rc == 0 && s < job->sources; s++)
        rc = source_exchange(job, s, stage, exchange, tokens);
    for (uint32_t f = 0; rc == 0 && f < job->ffn_ranks; f++)
        rc = job_ffn(job, f, stage, exchange, tokens);
    for (uint32_t s = 0; rc == 0 && s < job->sources; s++)
        rc = job_collect(job, s, stage, exchange, tokens);
    return rc;
}
