/* SPDX-License-Identifier: Apache-2.0 */
/*
 * union_dispatch.h - every rank tells every rank how much will come, and pushes its rows.
 *
 * Waits for:   all ranks to enter; every rank's counts: its rows, and its pairs for each expert of
 *              this rank; all ranks to leave. Resident: its blocks meet behind the entry and before
 *              the exit.
 * Certifies:   by the exit barrier, that its rows are there; by its counts, how many they are.
 * Why that is enough: the entry says that nobody reads an inbox or a count of the exchange before
 *              any more. A count is its own message, not 0, and cleared before the exit, so that
 *              the next one is written over 0. Rows need no words of their own: the exit covers
 *              them.
 *
 * FFN ranks take part with 0 tokens, and Attention ranks own experts that nobody asks for: that is
 * what a symmetric protocol does with roles.
 */
#ifndef AFD_STEPS_UNION_DISPATCH_H
#define AFD_STEPS_UNION_DISPATCH_H

#include "steps/attention_dispatch.h"
#include "steps/union_barrier.h"

struct afd_union_dispatch_args {
    struct afd_dispatch_args call; /* the caller's tokens; 0 of them on an FFN rank */
    struct afd_union_group group;
    const uint32_t *ffn_rank; /* [F] world ranks */
    /* private scratch */
    uint32_t *histogram; /* [R][1 + EPR] like the count words; all 0 between exchanges */
    uint32_t *next_slot; /* [R] slots taken in each rank's inbox; all 0 between exchanges */
    uint32_t *slots;     /* [blocks][k] slot at the rank for which a lane is master, or none */
    uint32_t *meta;      /* [blocks][2k + 1] metadata of the row that a block sends */
    /* out, private */
    uint16_t *master;      /* [capacity][k] lanes that stand for a token's FFN ranks, ascending */
    uint64_t *arrived;     /* [R] what each rank said of its rows */
    uint32_t *expert_rows; /* [EPR] pairs for each expert of this rank, of all ranks */
    uint32_t next_state;   /* the stage's, after this step */
    uint32_t reserved;
};

AFD_STEP uint64_t *afd_union_counts(const struct afd_union_group *g, uint32_t at, uint32_t from)
{
    return (uint64_t *)(void *)afd_union_at(g->window[at], g->layout, g->layout->counts, g->stage,
                                            from);
}

/* FFN rank of lane `l` of token t if no higher lane goes there too: one lane stands for each
 * rank. */
AFD_STEP uint32_t afd_union_master(const struct afd_dispatch_args *call, uint32_t t, uint32_t l)
{
    uint32_t f = afd_route_ffn(&call->placement, call->ids, t, l);
    for (uint32_t other = l + 1; f != AFD_FFN_NONE && other < call->shape->topk; other++)
        if (afd_route_ffn(&call->placement, call->ids, t, other) == f)
            return AFD_FFN_NONE;
    return f;
}

/* --------------------------------------------------------------------------------------- notify */

/* Rows and pairs of all tokens. Returns 0, or the code of the fault, which is then recorded. */
AFD_STEP int32_t afd_union_count(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                 uint32_t tokens)
{
    const struct afd_dispatch_args *call = &a->call;
    uint64_t each = afd_union_count_words(a->group.layout->rank_experts);
    int32_t ok = 1;
    for (uint32_t t = lane.thread; ok && t < tokens; t += lane.threads) {
        ok = afd_route_bad_lane(&call->placement, call->ids, t) == call->shape->topk;
        if (!ok)
            afd_dispatch_route_trouble(lane, call, t);
        for (uint32_t l = 0; ok && l < call->shape->topk; l++) {
            int64_t id = afd_id_load(call->ids, (uint64_t)t * call->shape->topk + l);
            uint32_t *bins;
            if (id < 0)
                continue;
            bins = a->histogram + each * a->ffn_rank[call->placement.ffn[id]];
            afd_block_count(lane, &bins[1 + call->placement.local[id]], 1);
            if (afd_union_master(call, t, l) != AFD_FFN_NONE)
                afd_block_count(lane, &bins[0], 1);
        }
    }
    return afd_block_all(lane, ok) ? 0 : AFD_CODE_ROUTE;
}

/* One word per rank and one per logical expert, by value; leaves the histogram empty. */
AFD_STEP void afd_union_counts_put(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                   uint32_t tokens)
{
    uint32_t each = afd_union_count_words(a->group.layout->rank_experts);
    uint64_t flags = (a->call.weights != 0 ? AFD_UNION_WEIGHTS : 0) |
                     (tokens != 0 ? AFD_UNION_TOKENS : (uint64_t)0);
    for (uint32_t r = 0; r < a->call.shape->world; r++) {
        uint64_t *to = afd_union_counts(&a->group, r, a->group.rank);
        uint32_t *bins = a->histogram + (uint64_t)each * r;
        for (uint32_t i = lane.thread; i < each; i += lane.threads) {
            afd_peer_store(lane, &to[i], /* pairs with counts_wait */
                           afd_union_count_word(bins[i] | (i == 0 ? flags : 0)));
            bins[i] = 0;
        }
    }
}

/* A fault in the place of every rank's row count: all leave with the first cause. */
AFD_STEP void afd_union_fault_put(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                  int32_t code)
{
    uint64_t value = (uint64_t)-code << AFD_UNION_FAULT_SHIFT;
    for (uint32_t r = lane.thread; r < a->call.shape->world; r += lane.threads)
        if (r != a->group.rank)
            afd_peer_store(lane, afd_union_counts(&a->group, r, a->group.rank),
                           afd_union_count_word(value));
}

/* A count that no correct rank sends must not become an address. */
AFD_STEP int32_t afd_union_rank_legal(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                      uint32_t r, uint64_t value)
{
    struct afd_wait wait = afd_wait_for(AFD_WORD_COUNTS, r, a->call.shape->capacity);
    if (afd_union_fault(value) != 0)
        afd_trouble_report(lane, afd_union_fault(value), r, wait, value);
    else if (afd_union_rows(value) > a->call.shape->capacity)
        afd_trouble_report(lane, AFD_CODE_PROTO, r, wait, afd_union_rows(value));
    else
        return 1;
    return 0;
}

/* Takes word `i` of rank r's counts for this rank. One thread; 0: leave the step. */
AFD_STEP int32_t afd_union_count_take(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                      uint32_t r, uint32_t i, uint64_t *value_out)
{
    uint64_t *word = &afd_union_counts(&a->group, a->group.rank, r)[i];
    uint64_t seen;
    if (!afd_wait_value(lane, word, afd_wait_for(AFD_WORD_COUNTS, r, 1), &seen)) /* counts_wait */
        return 0;
    afd_word_store(word,
                   0); /* before the exit barrier; pairs with counts_put of the next exchange */
    *value_out = afd_union_count_value(seen);
    return i != 0 || afd_union_rank_legal(lane, a, r, *value_out);
}

/* All counts for this rank. Collective; 0: leave the step. */
AFD_STEP int32_t afd_union_counts_take(struct afd_lane lane,
                                       const struct afd_union_dispatch_args *a)
{
    uint32_t each = afd_union_count_words(a->group.layout->rank_experts);
    int32_t ok = 1;
    for (uint32_t i = lane.thread; ok && i < each; i += lane.threads) {
        uint64_t sum = 0;
        for (uint32_t r = 0; ok && r < a->call.shape->world; r++) {
            uint64_t value = 0;
            ok = afd_union_count_take(lane, a, r, i, &value);
            sum += value;
            if (i == 0)
                a->arrived[r] = value;
        }
        if (i != 0)
            a->expert_rows[i - 1] = (uint32_t)sum;
    }
    return afd_block_all(lane, ok);
}

/* ----------------------------------------------------------------------------------------- rows */

/* Metadata item i: a global id of rank-major experts, a weight, the token. */
AFD_STEP uint32_t afd_union_meta_item(const struct afd_union_dispatch_args *a, uint32_t t,
                                      uint32_t i)
{
    const struct afd_dispatch_args *call = &a->call;
    uint32_t topk = call->shape->topk;
    uint64_t first = (uint64_t)t * topk;
    if (i < topk) {
        int64_t id = afd_id_load(call->ids, first + i);
        if (id < 0)
            return AFD_KEY_NONE;
        return a->group.layout->rank_experts * a->ffn_rank[call->placement.ffn[id]] +
               call->placement.local[id];
    }
    if (i < 2 * topk)
        return call->weights == 0 ? 0 : afd_f32_bits(call->weights[first + i - topk]);
    return a->group.rank * call->shape->capacity + t;
}

/* This block's scratch for token t: metadata, and a slot at every rank it goes to. */
AFD_STEP void afd_union_row_plan(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                 uint32_t t)
{
    const struct afd_dispatch_args *call = &a->call;
    uint32_t topk = call->shape->topk;
    uint32_t words = afd_hit_words(call->shape->ffn_ranks);
    uint32_t items = afd_union_meta_items(call->shape);
    uint32_t *slots = a->slots + (uint64_t)lane.block * topk;
    for (uint32_t i = lane.thread; i < items; i += lane.threads)
        a->meta[(uint64_t)lane.block * items + i] = afd_union_meta_item(a, t, i);
    for (uint32_t w = lane.thread; w < words; w += lane.threads)
        call->hits[(uint64_t)t * words + w] = afd_route_hit_word(&call->placement, call->ids, t, w);
    for (uint32_t l = lane.thread; l < topk; l += lane.threads) {
        uint32_t f = afd_union_master(call, t, l);
        slots[l] = AFD_KEY_NONE;
        if (f == AFD_FFN_NONE)
            continue;
        slots[l] = afd_number_take(&a->next_slot[a->ffn_rank[f]]);
        if (!afd_union_by_rank(call->shape))
            a->master[(uint64_t)t * topk +
                      afd_route_hits_before(&call->placement, call->ids, t, f)] = (uint16_t)l;
    }
}

AFD_STEP void afd_union_row_put(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                uint32_t t, uint32_t to, uint32_t slot)
{
    const struct afd_dispatch_args *call = &a->call;
    uint32_t items = afd_union_meta_items(call->shape);
    uint8_t *row =
        afd_union_at(a->group.window[to], a->group.layout, a->group.layout->inbox, a->group.stage,
                     (uint64_t)a->group.rank * call->shape->capacity + slot);
    afd_traffic_count(lane, 0, 0, 1, 0);
    afd_row_put(lane, row, call->x + call->x_stride * t, call->shape->payload_bytes);
    if (call->shape->scale_bytes != 0)
        afd_row_put(lane, row + afd_row_scales_offset(call->shape),
                    call->scales + call->scales_stride * t, call->shape->scale_bytes);
    afd_row_put(lane, row + afd_union_meta_offset(call->shape),
                (const uint8_t *)(a->meta + (uint64_t)lane.block * items),
                (uint64_t)items * sizeof(uint32_t));
}

/* This block's share of the rows. Block 0 counts meanwhile, if it has others beside it. */
AFD_STEP void afd_union_rows_put(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                 uint32_t tokens)
{
    const struct afd_dispatch_args *call = &a->call;
    const uint32_t *slots = a->slots + (uint64_t)lane.block * call->shape->topk;
    uint32_t first = lane.blocks > 1 ? 1u : 0u;
    if (lane.block < first)
        return;
    for (uint32_t t = lane.block - first; t < tokens; t += lane.blocks - first) {
        if (first != 0 && afd_route_bad_lane(&call->placement, call->ids, t) != call->shape->topk)
            continue;         /* block 0 finds it too, and tells every rank */
        afd_block_sync(lane); /* the last row has been put */
        afd_union_row_plan(lane, a, t);
        afd_block_sync(lane);
        for (uint32_t l = 0; l < call->shape->topk; l++)
            if (slots[l] != AFD_KEY_NONE)
                afd_union_row_put(lane, a, t,
                                  a->ffn_rank[afd_route_ffn(&call->placement, call->ids, t, l)],
                                  slots[l]);
    }
}

/* ----------------------------------------------------------------------------------------- step */

/* What block 0 does for all: counts out, rows if it is alone, counts in. 0: leave the step. */
AFD_STEP int32_t afd_union_notify(struct afd_lane lane, const struct afd_union_dispatch_args *a,
                                  uint32_t tokens, int32_t code)
{
    if (code == 0)
        code = afd_union_count(lane, a, tokens);
    if (code != 0) {
        afd_union_fault_put(lane, a, code);
        return 0;
    }
    afd_union_counts_put(lane, a, tokens);
    afd_union_rows_put(lane, a, tokens);
    return afd_union_counts_take(lane, a);
}

AFD_STEP void afd_union_dispatch_body(struct afd_lane lane, const struct afd_union_dispatch_args *a)
{
    uint32_t tokens;
    int32_t code;
    if (!afd_union_enter(lane, &a->group))
        return;
    code = afd_dispatch_tokens(lane, &a->call, &tokens);
    if (lane.block == 0 && lane.thread == 0 && a->call.count_out != 0)
        *a->call.count_out = tokens;
    if (lane.block != 0)
        afd_union_rows_put(lane, a, tokens);
    else if (!afd_union_notify(lane, a, tokens, code))
        return;
    (void)afd_union_leave(lane, &a->group);
}

AFD_STEP void afd_step_union_dispatch(struct afd_lane lane, const struct afd_union_dispatch_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->group.state, AFD_STAGE_IDLE)))
        afd_union_dispatch_body(lane, a);
    if (afd_stage_last_block(lane, a->group.state)) {
        for (uint32_t r = lane.thread; r < a->call.shape->world; r += lane.threads)
            a->next_slot[r] = 0;
        afd_union_finish(lane, &a->group);
        afd_stage_commit(lane, a->group.state, a->next_state, 0);
    }
}

#endif
