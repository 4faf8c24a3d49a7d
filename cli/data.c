/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data.c - rows, routes and experts: pure functions of (seed, exchange, source, token), so that a
 * wrong expert, row, weight or epoch shows in the values.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "shared/quant.h"

uint64_t cli_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* --------------------------------------------------------------------------------------- memory */

int cli_input_alloc(const struct cli_job *job, struct cli_input *in)
{
    size_t tokens = job->config.capacity;
    size_t pairs = tokens * job->config.topk;
    memset(in, 0, sizeof(*in));
    in->ids = calloc(pairs, sizeof(*in->ids));
    in->ids32 = calloc(pairs, sizeof(*in->ids32));
    in->weights = calloc(pairs, sizeof(*in->weights));
    in->x = calloc(tokens, job->ref.payload_bytes + 1);
    in->scales = calloc(tokens, job->ref.scale_bytes + 1);
    in->bias = calloc(tokens * job->config.hidden, sizeof(*in->bias));
    if (in->ids != NULL && in->ids32 != NULL && in->weights != NULL && in->x != NULL &&
        in->scales != NULL && in->bias != NULL)
        return CLI_OK;
    cli_input_free(in);
    return cli_error(CLI_FAILED, "no memory for %zu tokens", tokens);
}

void cli_input_free(struct cli_input *in)
{
    free(in->ids);
    free(in->ids32);
    free(in->weights);
    free(in->x);
    free(in->scales);
    free(in->bias);
    memset(in, 0, sizeof(*in));
}

/* --------------------------------------------------------------------------------------- routes */

static double unit(uint64_t word)
{
    return (double)(word >> 11) / 9007199254740992.0;
}

/* Popularity of expert e, up to a factor. */
static double popularity(const struct cli_job *job, uint32_t e)
{
    uint64_t word = cli_mix((uint64_t)job->options.seed * 77 + e);
    if (job->routing == CLI_ROUTING_LOGNORMAL)
        return exp(sqrt(-2 * log(unit(word) + 1e-12)) * cos(6.283185307 * unit(cli_mix(word))));
    return 1.0 / (1.0 + (double)(word % job->config.experts)); /* skewed: about Zipf */
}

/* k different experts: the k largest of popularity^(1/random) (weighted sampling), or uniform. */
static void draw(const struct cli_job *job, uint64_t key, int64_t *ids)
{
    uint32_t experts = job->config.experts;
    uint32_t k = job->config.topk < experts ? job->config.topk : experts;
    for (uint32_t i = 0; i < job->config.topk; i++)
        ids[i] = -1;
    for (uint32_t i = 0; i < k; i++) {
        for (int taken = 1; taken;) {
            key = cli_mix(key);
            ids[i] = (int64_t)(key % experts);
            taken = 0;
            if (job->routing != CLI_ROUTING_UNIFORM && i + 8 < experts) {
                double chance = popularity(job, (uint32_t)ids[i]);
                key = cli_mix(key);
                taken = unit(key) > (chance < 1 ? chance : 1) && key % 64 != 0;
            }
            for (uint32_t j = 0; j < i; j++)
                taken |= ids[j] == ids[i];
        }
    }
}

static void fill_routes(const struct cli_job *job, uint64_t exchange, uint32_t s, uint32_t t,
                        uint64_t key, struct cli_input *in)
{
    uint32_t k = job->config.topk;
    int64_t *ids = in->ids + (size_t)t * k;
    float *weights = in->weights + (size_t)t * k;
    const struct cli_trace *trace = &job->trace;
    if (trace->tokens != 0) {
        uint64_t first = (uint64_t)s * trace->tokens / job->layout.sources;
        uint64_t at = (first + exchange * in->count + t) % trace->tokens;
        for (uint32_t i = 0; i < k; i++) {
            ids[i] = trace->expert[at * k + i];
            weights[i] = trace->weight[at * k + i];
        }
    } else {
        if (job->routing == CLI_ROUTING_NONE || job->routing == CLI_ROUTING_ONE_EXPERT) {
            for (uint32_t i = 0; i < k; i++)
                ids[i] = i == 0 && job->routing == CLI_ROUTING_ONE_EXPERT ? 0 : -1;
        } else {
            draw(job, key, ids);
        }
        for (uint32_t i = 0; i < k; i++)
            weights[i] = (float)(1 + cli_mix(key + i) % 255) / 256.0f;
    }
    for (uint32_t i = 0; i < k; i++)
        in->ids32[(size_t)t * k + i] = (int32_t)ids[i];
}

/* ----------------------------------------------------------------------------------------- rows */

/* 16 bits with a sign, an exponent of 2^-4 .. 2^3 and 4 bits of mantissa. */
static uint16_t small_bf16(uint64_t word)
{
    return (uint16_t)((word & 0x8000) | (123 + (word >> 4 & 7)) << 7 | (word & 15) << 3);
}

static void fill_row(const struct cli_job *job, uint64_t key, uint8_t *row)
{
    uint32_t bytes = job->ref.payload_bytes;
    for (uint32_t at = 0; at < bytes; at += 8) {
        uint64_t word = cli_mix(key + at);
        uint32_t left = bytes - at < 8 ? bytes - at : 8;
        if (job->config.payload == AFD_PAYLOAD_BF16)
            word = (uint64_t)small_bf16(word) | (uint64_t)small_bf16(word >> 16) << 16 |
                   (uint64_t)small_bf16(word >> 32) << 32 | (uint64_t)small_bf16(word >> 48) << 48;
        else if (job->config.payload != AFD_PAYLOAD_BYTES)
            word &= 0xbfbfbfbfbfbfbfbfull; /* E4M3 below 2: no NaN */
        memcpy(row + at, &word, left);
    }
}

static void fill_scales(const struct cli_job *job, uint64_t key, uint8_t *scales)
{
    for (uint32_t at = 0; at < job->ref.scale_bytes; at++)
        scales[at] = (uint8_t)(125 + cli_mix(key + 3 + at) % 5);
    for (uint32_t g = 0; job->config.payload == AFD_PAYLOAD_FP8 && g < job->ref.scale_bytes / 4;
         g++) {
        float scale = ldexpf(1.0f + (float)(cli_mix(key + g) % 8) / 8, (int)(g % 5) - 2);
        memcpy(scales + (size_t)g * 4, &scale, sizeof(scale));
    }
}

void cli_input_fill(const struct cli_job *job, uint64_t exchange, uint32_t s, uint32_t tokens,
                    struct cli_input *in)
{
    in->count = tokens;
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t key = cli_mix(cli_mix((uint64_t)job->options.seed << 32 | s) ^ cli_mix(exchange)) +
                       ((uint64_t)t << 24);
        fill_routes(job, exchange, s, t, cli_mix(key), in);
        fill_row(job, key, in->x + (size_t)t * job->ref.payload_bytes);
        fill_scales(job, key, in->scales + (size_t)t * job->ref.scale_bytes);
        for (uint32_t h = 0; job->options.bias && h < job->config.hidden; h++)
            in->bias[(size_t)t * job->config.hidden + h] = small_bf16(cli_mix(key + h));
    }
}

/* -------------------------------------------------------------------------------------- experts */

static float element(const struct cli_job *job, const struct cli_row *row, uint32_t h)
{
    uint64_t scale = row->group_stride * (h / AFD_SCALE_GROUP);
    uint32_t folded;
    float factor;
    switch (job->config.payload) {
    case AFD_PAYLOAD_BF16:
        return afd_bf16_to_f32((uint16_t)(row->payload[2 * h] | row->payload[2 * h + 1] << 8));
    case AFD_PAYLOAD_FP8:
        memcpy(&factor, row->scales + scale, sizeof(factor));
        return factor * afd_e4m3_to_f32(row->payload[h]);
    case AFD_PAYLOAD_FP8_UE8M0:
        return afd_ue8m0_to_f32(row->scales[scale]) * afd_e4m3_to_f32(row->payload[h]);
    default: /* every byte counts, however many there are */
        folded = row->payload[h % job->ref.payload_bytes];
        for (uint64_t b = (uint64_t)h + job->config.hidden; b < job->ref.payload_bytes;
             b += job->config.hidden)
            folded = (folded * 3 + row->payload[b]) & 255;
        return (float)((int)folded - 128) / 16.0f;
    }
}

void cli_expert(const struct cli_job *job, const struct cli_row *row, uint32_t e, uint64_t exchange,
                int identity, uint16_t *answer_out)
{
    uint64_t word = cli_mix((uint64_t)e << 32 ^ exchange * 40503);
    float gain = identity ? 1.0f : 0.5f + (float)(word & 63) / 64.0f;
    float shift = identity ? 0.0f : (float)(word >> 8 & 255) / 128.0f - 1.0f;
    if (identity && job->config.payload == AFD_PAYLOAD_BF16) {
        memcpy(answer_out, row->payload, (size_t)job->config.hidden * 2);
        return;
    }
    for (uint32_t h = 0; h < job->config.hidden; h++) {
        float product = gain * element(job, row, h);
        answer_out[h] = afd_f32_to_bf16(product + (identity ? 0 : shift * (float)(1 + h % 3)));
    }
}

/* ------------------------------------------------------------------------------------- expected */

/* Lanes of a token that FFN rank f holds, by ascending expert. */
static uint32_t local_lanes(const struct cli_job *job, const int64_t *ids, uint32_t f,
                            uint32_t *lanes_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->config.topk; i++) {
        uint32_t at = count;
        if (ids[i] < 0 || job->placement[ids[i]] != f)
            continue;
        for (; at > 0 && ids[lanes_out[at - 1]] > ids[i]; at--)
            lanes_out[at] = lanes_out[at - 1];
        lanes_out[at] = i;
        count++;
    }
    return count;
}

/* The rounded partial of FFN rank f for token t; 0 if it holds none of its experts. */
static int partial(const struct cli_job *job, uint64_t exchange, const struct cli_input *in,
                   uint32_t t, uint32_t f, int identity, uint16_t *answer, uint16_t *row_out)
{
    const int64_t *ids = in->ids + (size_t)t * job->config.topk;
    const float *weights = in->weights + (size_t)t * job->config.topk;
    struct cli_row row = {in->x + (size_t)t * job->ref.payload_bytes,
                          in->scales + (size_t)t * job->ref.scale_bytes,
                          job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1};
    uint32_t hidden = job->config.hidden;
    uint32_t lanes[AFD_TOPK_MAX];
    uint32_t count = local_lanes(job, ids, f, lanes);
    float *sum = (float *)(void *)(answer + (hidden + 1u) / 2 * 2);
    for (uint32_t i = 0; i < count; i++) {
        cli_expert(job, &row, (uint32_t)ids[lanes[i]], exchange, identity, answer);
        for (uint32_t h = 0; h < hidden; h++) {
            float term = afd_bf16_to_f32(answer[h]);
            if (job->config.weighted_reply)
                term = weights[lanes[i]] * term;
            sum[h] = i == 0 ? term : sum[h] + term;
        }
    }
    for (uint32_t h = 0; count != 0 && h < hidden; h++)
        row_out[h] = afd_f32_to_bf16(sum[h]);
    return count != 0;
}

int cli_expected(const struct cli_job *job, uint64_t exchange, const struct cli_input *in,
                 int identity, uint16_t *rows_out)
{
    uint32_t ffn_ranks = job->layout.ffn_ranks;
    size_t hidden = job->config.hidden;
    uint16_t *scratch = malloc((hidden + 2) * 6);
    uint16_t *partials = malloc((ffn_ranks + 1) * hidden * sizeof(*partials));
    const uint16_t **terms = malloc((ffn_ranks + 1) * sizeof(*terms));
    int ok = scratch != NULL && partials != NULL && terms != NULL;
    for (uint32_t t = 0; ok && t < in->count; t++) {
        uint32_t count = 0;
        if (job->options.bias)
            terms[count++] = in->bias + (size_t)t * hidden;
        for (uint32_t f = 0; f < ffn_ranks; f++)
            if (partial(job, exchange, in, t, f, identity, scratch, partials + f * hidden))
                terms[count++] = partials + f * hidden;
        afd_reference_sum(terms, count, (uint32_t)hidden, rows_out + (size_t)t * hidden);
    }
    free((void *)terms);
    free(partials);
    free(scratch);
    return ok ? CLI_OK : cli_error(CLI_FAILED, "no memory to check %u rows", in->count);
}
