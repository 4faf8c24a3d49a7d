/* SPDX-License-Identifier: Apache-2.0 */
/*
 * union_expand.h - an FFN rank copies what union_dispatch brought into a batch: expert, source,
 * token.
 *
 * Waits for:   nothing from peers: the dispatch before it is complete. Resident: its blocks meet
 *              when all metadata are read, and when all pairs are counted.
 * Certifies:   nothing; the entry of this exchange's combine says that the inbox is read.
 * Why that is enough: the exit barrier of the dispatch covered every row and its metadata, and
 *              nobody writes an inbox before the entry of the combine, where this rank comes after
 *              this step.
 *
 * Rows lie in the order in which a source's blocks took their slots. A bit per token finds each
 * row's place among its source's tokens, so the sequence q of all rows is by source and token; from
 * there on it is the counting sort of ffn_routes.h.
 */
#ifndef AFD_STEPS_UNION_EXPAND_H
#define AFD_STEPS_UNION_EXPAND_H

#include "steps/ffn_receive.h"
#include "steps/union_barrier.h"

struct afd_union_expand_args {
    struct afd_receive_args receive; /* the batch, and scratch and results of the sort */
    struct afd_union_group group;
    const uint64_t *arrived;     /* [R] of the dispatch */
    const uint32_t *expert_rows; /* [EPR] of the dispatch */
    uint32_t *slot_of;           /* [N * capacity] scratch, by source and token */
    uint64_t *present;           /* [N][words] scratch, a bit per token; 0 between exchanges */
    uint32_t *tokens;            /* [N * capacity] out, private: token of row q */
};

AFD_STEP uint32_t afd_union_present_words(uint32_t capacity)
{
    return (capacity + 63u) / 64u;
}

/* Row `slot` of source s. */
AFD_STEP const uint8_t *afd_union_inbox_row(const struct afd_union_expand_args *a, uint32_t s,
                                            uint32_t slot)
{
    const struct afd_union_group *g = &a->group;
    return afd_union_at(g->window[g->rank], g->layout, g->layout->inbox, g->stage,
                        (uint64_t)a->receive.source_rank[s] * g->shape->capacity + slot);
}

AFD_STEP const uint32_t *afd_union_meta(const struct afd_union_expand_args *a, uint32_t s,
                                        uint32_t slot)
{
    return (const uint32_t *)(const void *)(afd_union_inbox_row(a, s, slot) +
                                            afd_union_meta_offset(a->group.shape));
}

AFD_STEP int32_t afd_union_impossible(struct afd_lane lane, const struct afd_union_expand_args *a,
                                      uint32_t s, uint64_t expected, uint64_t seen)
{
    afd_trouble_report(lane, AFD_CODE_PROTO, a->receive.source_rank[s],
                       afd_wait_for(AFD_WORD_CREDIT, a->receive.source_rank[s], expected), seen);
    return 0;
}

/* -------------------------------------------------------------------------------------- sources */

/* What source s said, as the sort wants it. One thread; 0: leave the step. */
AFD_STEP int32_t afd_union_source(struct afd_lane lane, const struct afd_union_expand_args *a,
                                  uint32_t s, struct afd_source_meta *meta_out)
{
    uint32_t rank = a->receive.source_rank[s];
    uint64_t value = a->arrived[rank];
    meta_out->tokens = meta_out->rows = afd_union_rows(value);
    meta_out->units = 0;
    meta_out->flags =
        AFD_HEADER_ROWS | ((value & AFD_UNION_WEIGHTS) != 0 ? AFD_HEADER_WEIGHTS : 0u);
    if (a->receive.weighted == 0 || (value & AFD_UNION_TOKENS) == 0 ||
        (value & AFD_UNION_WEIGHTS) != 0)
        return 1;
    afd_trouble_report(lane, AFD_CODE_INVALID, rank,
                       afd_wait_for(AFD_WORD_HEADER, rank, AFD_HEADER_WEIGHTS), meta_out->flags);
    return 0;
}

/* All sources into this block's meta; the number of rows into *rows_out. */
AFD_STEP int32_t afd_union_sources(struct afd_lane lane, const struct afd_union_expand_args *a,
                                   uint32_t *rows_out)
{
    uint32_t n = a->receive.shape->sources;
    struct afd_source_meta *meta = a->receive.meta + (uint64_t)lane.block * n;
    uint32_t before = 0;
    int32_t ok = 1;
    for (uint32_t base = 0; base < n; base += lane.threads) {
        uint32_t s = base + lane.thread;
        uint32_t total;
        uint32_t first;
        if (s < n)
            ok = ok && afd_union_source(lane, a, s, &meta[s]);
        first = afd_block_scan(lane, s < n ? meta[s].rows : 0, &total);
        if (s < n)
            meta[s].first = before + first;
        before += total;
    }
    *rows_out = before;
    return afd_block_all(lane, ok);
}

/* ---------------------------------------------------------------------------------------- order */

/* Marks the token of every row of this block's share, in the order of slots. */
AFD_STEP int32_t afd_union_mark(struct afd_lane lane, const struct afd_union_expand_args *a,
                                uint32_t rows)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, &a->receive);
    uint32_t capacity = a->group.shape->capacity;
    uint32_t words = afd_union_present_words(capacity);
    int32_t ok = 1;
    for (uint64_t i = (uint64_t)lane.block * lane.threads + lane.thread; ok && i < rows;
         i += (uint64_t)lane.blocks * lane.threads) {
        uint32_t s = afd_receive_source(meta, a->receive.shape->sources, (uint32_t)i);
        uint32_t slot = (uint32_t)i - meta[s].first;
        uint32_t global = afd_item_get_u32(&afd_union_meta(a, s, slot)[2 * a->group.shape->topk]);
        uint32_t t = global - a->receive.source_rank[s] * capacity;
        if (t >= capacity) {
            ok = afd_union_impossible(lane, a, s, capacity, t);
            continue;
        }
        a->slot_of[(uint64_t)s * capacity + t] = slot;
        afd_bits_set(&a->present[(uint64_t)s * words + t / 64u], (uint64_t)1 << (t % 64u));
    }
    return afd_block_all(lane, ok);
}

/* The `index`-th token of source s that has a row; `capacity` if there are fewer. */
AFD_STEP uint32_t afd_union_token(const struct afd_union_expand_args *a, uint32_t s, uint32_t index)
{
    uint32_t words = afd_union_present_words(a->group.shape->capacity);
    const uint64_t *present = a->present + (uint64_t)s * words;
    for (uint32_t w = 0; w < words; w++) {
        uint64_t bits = present[w];
        uint32_t count = afd_bits_count(bits);
        if (index >= count) {
            index -= count;
            continue;
        }
        for (; index != 0; index--)
            bits &= bits - 1;
        return w * 64u + afd_bits_lowest(bits);
    }
    return a->group.shape->capacity;
}

/* Routes of row q, and its reply region, as ffn_routes.h keeps them. 0: leave the step. */
AFD_STEP int32_t afd_union_route(struct afd_lane lane, const struct afd_union_expand_args *a,
                                 uint32_t q)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, &a->receive);
    const struct afd_shape *shape = a->group.shape;
    uint32_t each = a->group.layout->rank_experts;
    uint16_t *row = a->receive.routes + (uint64_t)q * afd_route_row_items(shape);
    uint32_t s = afd_receive_source(meta, shape->sources, q);
    uint32_t t = afd_union_token(a, s, q - meta[s].first);
    uint32_t pairs = 0;
    const uint32_t *ids;
    if (t == shape->capacity) /* a token stands in two rows */
        return afd_union_impossible(lane, a, s, meta[s].rows, q - meta[s].first);
    ids = afd_union_meta(a, s, a->slot_of[(uint64_t)s * shape->capacity + t]);
    a->tokens[q] = t;
    row[shape->topk] = (uint16_t)a->group.rank;
    for (uint32_t l = 0; l < shape->topk; l++) {
        uint32_t local = afd_item_get_u32(&ids[l]) - each * a->group.rank;
        row[l] = AFD_ROUTE_NONE;
        if (local >= each)
            continue;
        if (local >= a->receive.local_experts)
            return afd_union_impossible(lane, a, s, a->receive.local_experts, local);
        row[l] = (uint16_t)local;
        pairs++;
        if (!afd_union_by_rank(shape)) /* the highest lane is the master */
            row[shape->topk] = (uint16_t)l;
    }
    return pairs != 0 || afd_union_impossible(lane, a, s, 1, 0);
}

/* Orders and counts the routes of this block's piece. */
AFD_STEP int32_t afd_union_order(struct afd_lane lane, const struct afd_union_expand_args *a,
                                 struct afd_piece piece)
{
    const struct afd_receive_args *r = &a->receive;
    uint32_t *histogram = r->histogram + (uint64_t)lane.block * r->local_experts;
    uint32_t items = afd_route_row_items(r->shape);
    int32_t ok = 1;
    for (uint32_t e = lane.thread; e < r->local_experts; e += lane.threads)
        histogram[e] = 0;
    afd_block_sync(lane);
    for (uint32_t q = piece.begin + lane.thread; ok && q < piece.end; q += lane.threads) {
        const uint16_t *row = r->routes + (uint64_t)q * items;
        ok = afd_union_route(lane, a, q);
        for (uint32_t l = 0; ok && l < r->shape->topk; l++)
            if (row[l] != AFD_ROUTE_NONE)
                afd_block_count(lane, &histogram[row[l]], 1);
    }
    return afd_block_all(lane, ok);
}

/* ---------------------------------------------------------------------------------------- batch */

/* What was counted here is what the union count promised. Collective; 0: leave the step. */
AFD_STEP int32_t afd_union_totals_check(struct afd_lane lane, const struct afd_union_expand_args *a)
{
    const struct afd_receive_args *r = &a->receive;
    const uint32_t *total = r->total + (uint64_t)lane.block * r->local_experts;
    int32_t ok = 1;
    for (uint32_t e = lane.thread; ok && e < r->local_experts; e += lane.threads)
        if (total[e] != a->expert_rows[e])
            ok = afd_union_impossible(lane, a, 0, a->expert_rows[e], total[e]);
    return afd_block_all(lane, ok);
}

/* Gives every pair of this block its row of the batch: all threads take part in each round. */
AFD_STEP void afd_union_place(struct afd_lane lane, const struct afd_union_expand_args *a,
                              struct afd_piece piece)
{
    const struct afd_receive_args *r = &a->receive;
    const struct afd_source_meta *meta = afd_receive_meta(lane, r);
    uint32_t *cursor = r->cursor + (uint64_t)lane.block * r->local_experts;
    uint32_t topk = r->shape->topk;
    uint64_t end = (uint64_t)piece.end * topk;
    for (uint64_t base = (uint64_t)piece.begin * topk; base < end; base += lane.threads) {
        uint64_t item = base + lane.thread;
        uint32_t q = (uint32_t)(item / topk);
        uint32_t l = (uint32_t)(item % topk);
        uint32_t key = AFD_KEY_NONE;
        uint32_t row;
        if (item < end && r->routes[(uint64_t)q * (topk + 1) + l] != AFD_ROUTE_NONE)
            key = r->routes[(uint64_t)q * (topk + 1) + l];
        row = afd_block_rank(lane, key, cursor);
        if (item < end)
            r->token_rows[item] = key == AFD_KEY_NONE ? AFD_KEY_NONE : row;
        if (key != AFD_KEY_NONE) {
            uint32_t s = afd_receive_source(meta, r->shape->sources, q);
            uint64_t token = (uint64_t)s * r->shape->capacity + a->tokens[q];
            const uint32_t *items = afd_union_meta(a, s, a->slot_of[token]);
            r->slots[row] = (uint32_t)token;
            r->weights[row] = afd_f32_from_bits(afd_item_get_u32(&items[topk + l]));
        }
    }
    afd_block_sync(lane);
}

AFD_STEP void afd_union_expand_rows(struct afd_lane lane, const struct afd_union_expand_args *a,
                                    struct afd_piece piece)
{
    const struct afd_receive_args *r = &a->receive;
    const struct afd_source_meta *meta = afd_receive_meta(lane, r);
    for (uint32_t q = piece.begin; q < piece.end; q++) {
        uint32_t s = afd_receive_source(meta, r->shape->sources, q);
        uint32_t slot = a->slot_of[(uint64_t)s * r->shape->capacity + a->tokens[q]];
        afd_receive_row_expand(lane, r, afd_union_inbox_row(a, s, slot),
                               r->token_rows + (uint64_t)q * r->shape->topk);
    }
}

/* ----------------------------------------------------------------------------------------- step */

AFD_STEP void afd_union_expand_body(struct afd_lane lane, const struct afd_union_expand_args *a)
{
    const struct afd_receive_args *r = &a->receive;
    struct afd_piece piece;
    uint32_t tokens;
    uint32_t rows;
    if (!afd_union_sources(lane, a, &tokens) || !afd_union_mark(lane, a, tokens))
        return;
    if (!afd_stage_gate(lane, a->group.state, 1))
        return;
    piece = afd_receive_piece(lane, tokens);
    if (!afd_union_order(lane, a, piece))
        return;
    if (!afd_stage_gate(lane, a->group.state, 2))
        return;
    afd_receive_offsets(lane, r, &rows);
    if (rows > r->rows_capacity) {
        afd_trouble_report(lane, AFD_CODE_CAPACITY, r->rank,
                           afd_wait_for(AFD_WORD_NONE, r->rank, r->rows_capacity), rows);
        return;
    }
    if (!afd_union_totals_check(lane, a))
        return;
    afd_receive_publish(lane, r, rows);
    afd_union_place(lane, a, piece);
    afd_receive_sort(lane, r, piece);
    afd_receive_pad(lane, r, rows);
    afd_union_expand_rows(lane, a, piece);
}

/* The last block: no token is marked any more. */
AFD_STEP void afd_union_unmark(struct afd_lane lane, const struct afd_union_expand_args *a)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, &a->receive);
    uint32_t words = afd_union_present_words(a->group.shape->capacity);
    for (uint32_t s = 0; s < a->group.shape->sources; s++)
        for (uint32_t i = lane.thread; i < meta[s].rows; i += lane.threads)
            a->present[(uint64_t)s * words + a->tokens[meta[s].first + i] / 64u] = 0;
}

AFD_STEP void afd_step_union_expand(struct afd_lane lane, const struct afd_union_expand_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->group.state, AFD_STAGE_BETWEEN)))
        afd_union_expand_body(lane, a);
    if (afd_stage_last_block(lane, a->group.state)) {
        afd_receive_finish(lane, &a->receive);
        if (!afd_trouble_seen(lane))
            afd_union_unmark(lane, a);
        afd_stage_commit(lane, a->group.state, AFD_STAGE_OPEN, 0);
    }
}

#endif
