/* SPDX-License-Identifier: Apache-2.0 */
/* truth.c - inputs of a schedule's exchanges, and what each must give. */

#include "exec/sim/truth.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

uint64_t afd_sim_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* --------------------------------------------------------------------------------------- create */

static int input_create(const struct afd_reference *ref, struct afd_sim_input *in)
{
    uint64_t tokens = ref->capacity;
    in->ids = calloc(tokens * ref->topk, sizeof(*in->ids));
    in->weights = calloc(tokens * ref->topk, sizeof(*in->weights));
    in->x = calloc(tokens, ref->payload_bytes);
    in->scales = calloc(tokens, ref->scale_bytes + 1ull);
    in->collected = calloc(tokens * ref->hidden, sizeof(*in->collected));
    return in->ids && in->weights && in->x && in->scales && in->collected ? 0 : -1;
}

static int exchange_create(const struct afd_reference *ref, struct afd_sim_exchange *e)
{
    e->input = calloc(ref->sources, sizeof(*e->input));
    e->batch = calloc(ref->ffn_ranks, sizeof(*e->batch));
    e->answer = calloc(ref->ffn_ranks, sizeof(*e->answer));
    if (e->input == NULL || e->batch == NULL || e->answer == NULL)
        return -1;
    for (uint32_t s = 0; s < ref->sources; s++)
        if (input_create(ref, &e->input[s]) != 0)
            return -1;
    return 0;
}

int afd_sim_truth_create(const struct afd_sim_options *o, struct afd_sim_truth **truth_out)
{
    const struct afd_buffer_config *c = &o->config;
    struct afd_sim_truth *truth = calloc(1, sizeof(*truth));
    struct afd_reference *ref;
    int rc = 0;
    if (truth == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for the truth of a simulation");
    ref = &truth->ref;
    ref->sources = o->sources;
    ref->ffn_ranks = o->ffn_ranks;
    ref->capacity = c->capacity;
    ref->hidden = c->hidden;
    ref->experts = c->experts;
    ref->topk = c->topk;
    ref->payload_bytes = c->payload == AFD_PAYLOAD_BF16    ? c->hidden * 2
                         : c->payload == AFD_PAYLOAD_BYTES ? c->payload_bytes
                                                           : c->hidden;
    ref->scale_bytes = c->payload == AFD_PAYLOAD_FP8         ? (c->hidden + 127) / 128 * 4
                       : c->payload == AFD_PAYLOAD_FP8_UE8M0 ? (c->hidden + 127) / 128
                       : c->payload == AFD_PAYLOAD_BYTES     ? c->scale_bytes
                                                             : 0;
    ref->alignment = c->alignment;
    ref->scale_layout = c->scale_layout;
    truth->weighted = c->weighted_reply;
    truth->exchanges = o->exchanges;
    truth->placement = calloc(c->experts, sizeof(*truth->placement));
    truth->exchange = calloc(o->exchanges, sizeof(*truth->exchange));
    if (truth->placement == NULL || truth->exchange == NULL)
        rc = -1;
    for (uint32_t e = 0; rc == 0 && e < o->exchanges; e++)
        rc = exchange_create(ref, &truth->exchange[e]);
    if (rc != 0) {
        afd_sim_truth_destroy(truth);
        return afd_error_set(AFD_ENOMEM, "no memory for %u exchanges", o->exchanges);
    }
    if (c->placement != NULL)
        memcpy(truth->placement, c->placement, c->experts * sizeof(*truth->placement));
    else
        afd_reference_placement(c->experts, o->ffn_ranks, truth->placement);
    ref->placement = truth->placement;
    *truth_out = truth;
    return 0;
}

/* The answers of an earlier seed. */
static void forget(struct afd_sim_truth *truth, struct afd_sim_exchange *e)
{
    for (uint32_t f = 0; f < truth->ref.ffn_ranks; f++) {
        if (e->batch != NULL)
            afd_reference_batch_free(&e->batch[f]);
        if (e->answer != NULL) {
            free(e->answer[f]);
            e->answer[f] = NULL;
        }
    }
}

void afd_sim_truth_destroy(struct afd_sim_truth *truth)
{
    if (truth == NULL)
        return;
    for (uint32_t x = 0; truth->exchange != NULL && x < truth->exchanges; x++) {
        struct afd_sim_exchange *e = &truth->exchange[x];
        forget(truth, e);
        for (uint32_t s = 0; e->input != NULL && s < truth->ref.sources; s++) {
            free(e->input[s].ids);
            free(e->input[s].weights);
            free(e->input[s].x);
            free(e->input[s].scales);
            free(e->input[s].collected);
        }
        free(e->input);
        free(e->batch);
        free(e->answer);
    }
    free(truth->exchange);
    free(truth->placement);
    free(truth);
}

/* ----------------------------------------------------------------------------------------- make */

static uint64_t next(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    return afd_sim_mix(*state);
}

static int64_t draw_expert(const struct afd_reference *ref, const struct afd_sim_options *o,
                           uint64_t *state)
{
    uint64_t random = next(state);
    uint64_t limit = ref->experts;
    if (o->routing == AFD_SIM_ROUTING_SKEWED && random % 4 != 0)
        limit = (limit + 3) / 4;
    return (int64_t)(random / 4 % limit);
}

static int is_new(const int64_t *ids, uint32_t count, int64_t id)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] == id)
            return 0;
    return 1;
}

static void make_routes(const struct afd_reference *ref, const struct afd_sim_options *o,
                        uint64_t exchange, uint64_t *state, int64_t *ids)
{
    uint32_t one_in = o->routing == AFD_SIM_ROUTING_SPARSE ? 6 : 1;
    int silent = o->routing == AFD_SIM_ROUTING_NONE || next(state) % 16 == 0;
    for (uint32_t i = 0; i < ref->topk; i++) {
        ids[i] = -1;
        if (silent || i >= ref->experts || next(state) % one_in != 0 || next(state) % 8 == 0)
            continue;
        if (o->routing == AFD_SIM_ROUTING_ONE) {
            ids[i] = i == 0 ? (int64_t)(exchange % ref->experts) : -1;
            continue;
        }
        for (int tries = 0; tries < 8 && ids[i] < 0; tries++) {
            int64_t id = draw_expert(ref, o, state);
            ids[i] = is_new(ids, i, id) ? id : -1;
        }
    }
}

/* A row: exchange, source, token and element are in its bits, as finite BF16 values. */
static void make_row(uint64_t key, uint8_t *row, uint32_t bytes)
{
    for (uint32_t b = 0; b < bytes; b += 2) {
        uint64_t word = afd_sim_mix(key + b);
        uint16_t value = (uint16_t)((word & 0x83ff) | 0x3c00);
        row[b] = (uint8_t)value;
        if (b + 1 < bytes)
            row[b + 1] = (uint8_t)(value >> 8);
    }
}

static void make_input(const struct afd_reference *ref, const struct afd_sim_options *o,
                       uint64_t seed, uint32_t x, uint32_t s, struct afd_sim_input *in)
{
    uint64_t state = afd_sim_mix(seed * 1000003 + x * 977 + s + 1);
    uint32_t k = ref->topk;
    in->tokens = ref->capacity;
    if (!o->fixed_tokens)
        in->tokens = (uint32_t)(next(&state) % (ref->capacity + 1ull));
    for (uint32_t t = 0; t < in->tokens; t++) {
        uint64_t key = afd_sim_mix(((seed * 64 + x) * 1024 + s) * 65536 + t);
        make_routes(ref, o, x, &state, in->ids + (uint64_t)t * k);
        for (uint32_t i = 0; i < k; i++)
            in->weights[(uint64_t)t * k + i] = (float)(1 + next(&state) % 255) / 64.0f;
        make_row(key, in->x + (uint64_t)t * ref->payload_bytes, ref->payload_bytes);
        make_row(key + 7, in->scales + (uint64_t)t * ref->scale_bytes, ref->scale_bytes);
    }
}

/* A function of the received bytes, the expert and the exchange. */
static void make_answer(const struct afd_reference *ref, const struct afd_reference_batch *b,
                        uint64_t x, uint16_t *rows)
{
    for (uint32_t e = 0; e < b->local_experts; e++)
        for (uint64_t r = b->offsets[e]; r < b->offsets[e] + b->counts[e]; r++) {
            const uint8_t *row = b->rows + r * ref->payload_bytes;
            uint64_t key = afd_sim_mix(b->expert_ids[e] * 1009ull + x * 31);
            for (uint32_t h = 0; h < ref->hidden; h++) {
                uint64_t word = afd_sim_mix(key + h + row[h % ref->payload_bytes] * 65537ull);
                rows[r * ref->hidden + h] =
                    (uint16_t)((word & 0x807f) | (0x3e80 + (word >> 20 & 0x80)));
            }
        }
}

static void make_collected(struct afd_sim_truth *truth, struct afd_sim_exchange *e, uint32_t s,
                           uint16_t *scratch)
{
    const struct afd_reference *ref = &truth->ref;
    const uint16_t *terms[AFD_SIM_WORLD_MAX];
    for (uint32_t t = 0; t < e->input[s].tokens; t++) {
        uint32_t count = 0;
        for (uint32_t f = 0; f < ref->ffn_ranks && count < ref->topk; f++) {
            uint16_t *row = scratch + (uint64_t)count * ref->hidden;
            if (afd_reference_reply(ref, &e->batch[f], e->answer[f], (int)truth->weighted, s, t,
                                    row) != 0)
                terms[count++] = row;
        }
        afd_reference_sum(terms, count, ref->hidden,
                          e->input[s].collected + (uint64_t)t * ref->hidden);
    }
}

static int make_exchange(struct afd_sim_truth *truth, const struct afd_sim_options *o,
                         uint64_t seed, uint32_t x, uint16_t *scratch)
{
    const struct afd_reference *ref = &truth->ref;
    struct afd_sim_exchange *e = &truth->exchange[x];
    struct afd_reference_source *sources = calloc(ref->sources, sizeof(*sources));
    int rc = sources == NULL ? AFD_ENOMEM : 0;
    forget(truth, e);
    for (uint32_t s = 0; rc == 0 && s < ref->sources; s++) {
        struct afd_sim_input *in = &e->input[s];
        make_input(ref, o, seed, x, s, in);
        sources[s].count = in->tokens;
        sources[s].ids = in->ids;
        sources[s].weights = o->weights ? in->weights : NULL;
        sources[s].x = in->x;
        sources[s].scales = ref->scale_bytes != 0 ? in->scales : NULL;
    }
    for (uint32_t f = 0; rc == 0 && f < ref->ffn_ranks; f++) {
        rc = afd_reference_batch(ref, sources, f, &e->batch[f]);
        if (rc != 0)
            break;
        e->answer[f] = calloc(e->batch[f].row_count * ref->hidden + 1, sizeof(uint16_t));
        if (e->answer[f] == NULL)
            rc = AFD_ENOMEM;
        else
            make_answer(ref, &e->batch[f], x, e->answer[f]);
    }
    free(sources);
    for (uint32_t s = 0; rc == 0 && s < ref->sources; s++)
        make_collected(truth, e, s, scratch);
    return rc;
}

int afd_sim_truth_make(struct afd_sim_truth *truth, const struct afd_sim_options *options,
                       uint64_t seed)
{
    uint16_t *scratch = calloc((uint64_t)truth->ref.topk * truth->ref.hidden, sizeof(*scratch));
    int rc = scratch == NULL ? AFD_ENOMEM : 0;
    for (uint32_t x = 0; rc == 0 && x < truth->exchanges; x++)
        rc = make_exchange(truth, options, seed, x, scratch);
    free(scratch);
    return rc;
}
