/* SPDX-License-Identifier: Apache-2.0 */
/* job_input.c - tokens, routes and experts' answers: pure functions of the job's seed. */

#include "job.h"

#include <stdlib.h>
#include <string.h>

/* As BF16 a NaN that the library never writes; as an id "no route". */
#define POISON 0xff
#define GUARD_BYTES 64u

void *job_need(void *memory)
{
    if (memory == NULL)
        abort();
    return memory;
}

uint64_t job_mix(uint64_t x)
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
    return job_mix(*state);
}

/* --------------------------------------------------------------------------------------- tokens */

/* Element i of a row: any sign, mixed with zeros, subnormals and negative zeros, always finite. */
static uint16_t row_element(uint64_t key, uint32_t i)
{
    uint64_t word = job_mix(key + i);
    uint16_t value = (uint16_t)(word & 0x83ff);
    if ((word >> 20 & 15) != 0)
        value |= 0x3c00;
    if ((word >> 24 & 63) == 0)
        value &= 0x8000;
    return value;
}

static void fill_bytes(uint64_t key, uint8_t *bytes, uint64_t count)
{
    for (uint64_t b = 0; b < count; b++) {
        uint16_t value = row_element(key, (uint32_t)(b / 2));
        bytes[b] = (uint8_t)(b % 2 == 0 ? value : value >> 8);
    }
}

static uint64_t row_key(const struct job *job, uint64_t exchange, uint32_t s, uint32_t t)
{
    return job_mix(job->seed * 1000003 + exchange) ^ job_mix(((uint64_t)s << 32) + t + 1);
}

/* An expert that the token does not have yet. */
static int64_t another_expert(const struct job *job, uint64_t *state, const int64_t *ids,
                              uint32_t have)
{
    for (;;) {
        int64_t id = (int64_t)(job_random(state) % job->ref.experts);
        uint32_t i = 0;
        while (i < have && ids[i] != id)
            i++;
        if (i == have)
            return id;
    }
}

static void make_routes(const struct job *job, uint64_t exchange, uint64_t *state, uint32_t t,
                        int64_t *ids)
{
    uint32_t k = job->ref.topk;
    uint32_t every = job->options.no_routes_in;
    uint32_t routing = job->options.routing;
    int none = k == 0 || routing == JOB_ROUTING_NONE || (every != 0 && t % every == every - 1);
    for (uint32_t i = 0; i < k; i++)
        ids[i] = -1;
    if (!none && routing == JOB_ROUTING_HOT)
        ids[t % k] = (int64_t)(exchange * 7 % job->ref.experts);
    if (none || routing == JOB_ROUTING_HOT)
        return;
    for (uint32_t i = 0; i < k && i < job->ref.experts; i++)
        if (routing == JOB_ROUTING_FULL || job_random(state) % 8 != 0)
            ids[i] = another_expert(job, state, ids, i);
}

/* As row_element(), with some NaN, which a row of bias alone must not keep, and infinities. */
static uint16_t bias_element(uint64_t key, uint32_t i)
{
    static const uint16_t special[] = {0x7fa5, 0xffc3, 0x7f80, 0xff80};
    uint64_t word = job_mix(key + i + 99);
    return word % 61 == 0 ? special[word >> 20 & 3] : row_element(key, i);
}

/* Any finite value, not normalised; a few that no softmax makes. */
static float make_weight(uint64_t *state)
{
    static const uint32_t special[] = {0x7fc00001, 0xff800000, 0x7f800000, 0x80000000, 0x00000001};
    uint64_t random = job_random(state);
    float weight = (float)(int64_t)(random % 4001) / 1024.0f - 2.0f;
    if (random >> 32 & 63)
        return weight;
    memcpy(&weight, &special[(random >> 40) % 5], sizeof(weight));
    return weight;
}

int job_sends_weights(const struct job *job, uint32_t s)
{
    return job->options.with_weights == JOB_WEIGHTS_ALL ||
           (job->options.with_weights == JOB_WEIGHTS_ODD && s % 2 == 1);
}

void job_input_make(const struct job *job, uint32_t s, uint64_t exchange, uint32_t tokens,
                    struct job_input *in)
{
    const struct afd_reference *ref = &job->ref;
    uint64_t state = job_mix(job->seed) + exchange * 7919 + s;
    uint64_t k = ref->topk;
    in->source = s;
    in->count = tokens;
    in->ids = job_need(calloc(tokens * k + 1, sizeof(*in->ids)));
    in->ids32 = job_need(calloc(tokens * k + 1, sizeof(*in->ids32)));
    in->weights = job_need(calloc(tokens * k + 1, sizeof(*in->weights)));
    in->x = job_need(calloc((uint64_t)tokens * ref->payload_bytes + 1, 1));
    in->scales = job_need(calloc((uint64_t)tokens * ref->scale_bytes + 1, 1));
    in->bias = job_need(calloc((uint64_t)tokens * ref->hidden + 1, sizeof(*in->bias)));
    for (uint32_t t = 0; t < tokens; t++) {
        uint64_t key = row_key(job, exchange, s, t);
        make_routes(job, exchange, &state, t, in->ids + t * k);
        for (uint32_t i = 0; i < k; i++) {
            in->ids32[t * k + i] = (int32_t)in->ids[t * k + i];
            in->weights[t * k + i] = make_weight(&state);
        }
        fill_bytes(key, in->x + (uint64_t)t * ref->payload_bytes, ref->payload_bytes);
        for (uint32_t b = 0; b < ref->scale_bytes; b++)
            in->scales[(uint64_t)t * ref->scale_bytes + b] = (uint8_t)job_mix(key + 77 + b);
        for (uint32_t h = 0; h < ref->hidden; h++)
            in->bias[(uint64_t)t * ref->hidden + h] = bias_element(key + 5, h);
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

/* -------------------------------------------------------------------------------------- experts */

/* Answer of a global expert to a row: of its bytes, the expert, the exchange and the element. */
static uint16_t expert_value(const uint8_t *row, uint32_t payload_bytes, uint32_t expert,
                             uint64_t exchange, uint32_t h)
{
    uint64_t seen = row[(2ull * h) % payload_bytes] | (uint64_t)row[(2ull * h + 1) % payload_bytes]
                                                          << 8;
    uint64_t word = job_mix(seen * 65537 + expert * 1009ull + exchange * 31 + h);
    uint16_t value = (uint16_t)((word & 0x80ff) | (0x3d00 + (word >> 20 & 0x2ff)));
    if ((word >> 40 & 1023) == 0)
        value = (uint16_t)(word >> 50 & 1 ? 0x8000 : 0x7fc1); /* -0, or a NaN with a payload */
    return value;
}

uint16_t *job_answer_make(const struct job *job, const struct afd_reference_batch *b,
                          uint64_t exchange)
{
    uint32_t hidden = job->ref.hidden;
    uint16_t *rows = job_need(malloc((b->row_count * hidden + 1) * sizeof(*rows)));
    memset(rows, POISON, b->row_count * hidden * sizeof(*rows));
    for (uint32_t e = 0; e < b->local_experts; e++)
        for (uint64_t r = b->offsets[e]; r < b->offsets[e] + b->counts[e]; r++)
            for (uint32_t h = 0; h < hidden; h++)
                rows[r * hidden + h] =
                    expert_value(b->rows + r * job->ref.payload_bytes, job->ref.payload_bytes,
                                 b->expert_ids[e], exchange, h);
    return rows;
}

/* -------------------------------------------------------------------------------- rows and gaps */

static uint64_t memory_bytes(const struct job_rows *r)
{
    return 3 * GUARD_BYTES + r->count * r->stride;
}

void job_rows_make(const uint8_t *rows, uint64_t count, uint64_t bytes, uint64_t gap,
                   uint32_t shift, struct job_rows *out)
{
    out->count = count;
    out->bytes = bytes;
    out->stride = bytes + gap;
    out->memory = job_need(malloc(memory_bytes(out)));
    memset(out->memory, POISON, memory_bytes(out));
    out->rows = out->memory + GUARD_BYTES;
    out->rows += (GUARD_BYTES - (uintptr_t)out->rows % GUARD_BYTES) % GUARD_BYTES + shift;
    for (uint64_t r = 0; rows != NULL && r < count; r++)
        memcpy(out->rows + r * out->stride, rows + r * bytes, bytes);
}

static int is_poison(const uint8_t *from, const uint8_t *end)
{
    while (from < end && *from == POISON)
        from++;
    return from == end;
}

uint64_t job_rows_touched(const struct job_rows *r)
{
    if (!is_poison(r->memory, r->rows))
        return 0;
    for (uint64_t i = 0; i < r->count; i++)
        if (!is_poison(r->rows + i * r->stride + r->bytes, r->rows + (i + 1) * r->stride))
            return i;
    if (!is_poison(r->rows + r->count * r->stride, r->memory + memory_bytes(r)))
        return r->count;
    return r->count + 1;
}

int job_rows_untouched(const struct job_rows *rows, uint64_t r)
{
    const uint8_t *row = rows->rows + r * rows->stride;
    return is_poison(row, row + rows->bytes);
}

void job_rows_free(struct job_rows *r)
{
    memset(r->memory, POISON, memory_bytes(r));
    free(r->memory);
    memset(r, 0, sizeof(*r));
}
