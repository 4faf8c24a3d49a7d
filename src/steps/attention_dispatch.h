/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_dispatch.h - a source pushes its rows to the FFN ranks that hold their experts.
 *
 * Waits for:   nothing.
 * Certifies:   to every FFN rank, also to one without a row: the header of this exchange (L1), and,
 *              in the rows variant, the route table and credits for the rows that are there.
 * Why that is enough: every inbox it writes is free. This source finished collect n-1 only after a
 *              reply header n-1 of every FFN rank (L2), which that rank wrote after its last read
 *              of this source's exchange n-1. A header is written by one block and says all
 *              that the receiver needs to know about the others' work: T, units to come, which
 *              slots.
 */
#ifndef AFD_STEPS_ATTENTION_DISPATCH_H
#define AFD_STEPS_ATTENTION_DISPATCH_H

#include "shared/route.h"
#include "steps/stage.h"

struct afd_dispatch_args {
    const struct afd_shape *shape;
    const struct afd_layout *ffn_layout;
    uint8_t *const *ffn_window; /* [F] the FFN ranks' windows, as this rank sees them */
    struct afd_placement placement;
    struct afd_stage_state *state;
    uint64_t *hits;        /* [capacity][afd_hit_words(F)] out, private: each token's FFN ranks */
    uint32_t *reply_rows;  /* [F] out, private: rows each FFN rank will answer */
    uint32_t *sent;        /* [blocks][F] private */
    uint64_t *credit_sent; /* [F] private: credits of earlier exchanges */
    uint32_t *count_out;   /* out, private: T */
    const uint32_t *device_count; /* NULL, or where T stands; `tokens` then bounds it */
    const uint8_t *x;
    uint64_t x_stride;
    const uint8_t *scales; /* NULL without scales */
    uint64_t scales_stride;
    struct afd_ids ids;
    const float *weights; /* NULL without weights */
    uint32_t tokens;
    uint32_t stage;
    uint32_t source;      /* s */
    uint32_t rank;        /* world rank of this source */
    uint32_t rows;        /* 1: rows with credits, 0: words (tokens <= words_tokens) */
    uint32_t reply_words; /* 1: the reply is wanted as words */
};

AFD_STEP uint64_t afd_dispatch_slot(const struct afd_dispatch_args *a, uint32_t t, uint32_t slots)
{
    return (uint64_t)a->source * slots + t;
}

/* One entry of the route row that FFN rank f gets for token t. */
AFD_STEP uint16_t afd_dispatch_route_item(const struct afd_dispatch_args *a, uint32_t t, uint32_t f,
                                          uint32_t item)
{
    if (item < a->shape->topk)
        return afd_route_local(&a->placement, a->ids, t, item, f);
    return (uint16_t)afd_reply_region(a->shape, f,
                                      a->shape->ffn_ranks <= a->shape->topk
                                          ? 0
                                          : afd_route_hits_before(&a->placement, a->ids, t, f));
}

/* --------------------------------------------------------------------------------------- header */

/* Route and weight tables of the rows variant: plain bytes, certified by the routes word. */
AFD_STEP void afd_dispatch_tables_put(struct afd_lane lane, const struct afd_dispatch_args *a,
                                      uint32_t f, uint32_t tokens)
{
    const struct afd_layout *layout = a->ffn_layout;
    uint32_t items = afd_route_row_items(a->shape);
    uint16_t *routes = (uint16_t *)(void *)afd_region_at(a->ffn_window[f], layout,
                                                         layout->stage.routes, a->stage, a->source);
    uint8_t *weights =
        afd_region_at(a->ffn_window[f], layout, layout->stage.weights, a->stage, a->source);
    afd_traffic_count(lane, 0, 0, 0, (uint64_t)tokens * items * sizeof(uint16_t));
    for (uint64_t i = lane.thread; i < (uint64_t)tokens * items; i += lane.threads)
        afd_item_put_u16(&routes[i], afd_dispatch_route_item(a, (uint32_t)(i / items), f,
                                                             (uint32_t)(i % items)));
    if (a->weights != 0)
        afd_row_put(lane, weights, (const uint8_t *)a->weights,
                    (uint64_t)tokens * a->shape->topk * sizeof(float));
}

/* The presence mask of the words variant: words 1 .. 3 of the header. */
AFD_STEP void afd_dispatch_mask_put(struct afd_lane lane, const struct afd_dispatch_args *a,
                                    uint32_t f, uint32_t tokens, uint64_t *header, uint32_t tag)
{
    for (uint32_t w = 1; w < AFD_HEADER_WORDS; w++) {
        struct afd_ll word;
        word.tag = tag;
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t first = ((w - 1) * 3 + i) * 32;
            uint32_t bits = 0;
            word.data[i] = 0;
            if (a->rows != 0 || first >= tokens)
                continue;
            for (uint32_t t = lane.thread; t < 32; t += lane.threads)
                if (first + t < tokens && afd_route_hits(&a->placement, a->ids, first + t, f))
                    bits |= 1u << t;
            word.data[i] = afd_block_or(lane, bits);
        }
        if (lane.thread == 0)
            afd_peer_ll(lane, header + 2 * w, word); /* pairs with mask_wait in ffn_routes.h */
    }
}

/* Records what is wrong with token t: expected = token, seen = the id at full width. */
AFD_STEP void afd_dispatch_route_trouble(struct afd_lane lane, const struct afd_dispatch_args *a,
                                         uint32_t t)
{
    uint32_t bad = afd_route_bad_lane(&a->placement, a->ids, t);
    int64_t id = afd_id_load(a->ids, (uint64_t)t * a->shape->topk + bad);
    afd_trouble_report(lane, AFD_CODE_ROUTE, a->rank,
                       afd_wait_for(AFD_WORD_NONE, a->rank, (uint64_t)t << 8 | bad), (uint64_t)id);
}

/* 0 if all routes are legal, else the code of the fault, which is then recorded. */
AFD_STEP int32_t afd_dispatch_routes_check(struct afd_lane lane, const struct afd_dispatch_args *a,
                                           uint32_t tokens)
{
    int32_t ok = 1;
    for (uint32_t t = lane.thread; ok && t < tokens; t += lane.threads) {
        ok = afd_route_bad_lane(&a->placement, a->ids, t) == a->shape->topk;
        if (!ok)
            afd_dispatch_route_trouble(lane, a, t);
    }
    return afd_block_all(lane, ok) ? 0 : AFD_CODE_ROUTE;
}

/* A fault in the place of a header: the receiver leaves with the first cause and does not time
 * out. */
AFD_STEP void afd_dispatch_fault_put(struct afd_lane lane, uint64_t *header, int32_t code,
                                     uint64_t epoch)
{
    struct afd_header h;
    h.tokens = h.units = 0;
    h.flags = (uint32_t)-code << AFD_HEADER_FAULT_SHIFT;
    if (lane.thread == 0 && !AFD_MUTANT(fault_header_skipped))
        afd_peer_ll(lane, header, afd_header_word(h, afd_tag(epoch)));
}

/* Header of this exchange for FFN rank f: exactly one block writes it, in every exchange, also for
 * T = 0. Its routes are legal. */
AFD_STEP void afd_dispatch_header_put(struct afd_lane lane, const struct afd_dispatch_args *a,
                                      uint32_t f, uint32_t tokens, uint64_t *header, uint64_t epoch)
{
    uint32_t parts =
        a->rows != 0 ? afd_row_parts(tokens, lane.blocks, afd_row_bytes(a->shape)) : 1u;
    uint32_t hits = 0;
    struct afd_header h;
    for (uint32_t t = lane.thread; t < tokens; t += lane.threads)
        hits += (uint32_t)afd_route_hits(&a->placement, a->ids, t, f);
    hits = afd_block_sum(lane, hits);
    if (AFD_MUTANT(parts_off_by_one) && parts > 1)
        parts -= 1;
    if (AFD_MUTANT(part_in_one_credit))
        parts = 1;
    h.tokens = tokens;
    h.units = a->rows != 0 ? hits * parts : 0;
    h.flags =
        (a->rows != 0 ? AFD_HEADER_ROWS : 0u) | (a->weights != 0 ? AFD_HEADER_WEIGHTS : 0u) |
        (a->reply_words != 0 ? AFD_HEADER_REPLY_WORDS : 0u) |
        (a->rows != 0 && (lane.blocks == 1 || AFD_MUTANT(in_order_by_blocks)) ? AFD_HEADER_IN_ORDER
                                                                              : 0u) |
        (parts - 1) << AFD_HEADER_PARTS_SHIFT;
    if (lane.thread == 0) {
        a->reply_rows[f] = hits;
        if (!AFD_MUTANT(header_of_no_rows_skipped) || hits != 0) /* pairs with header_wait */
            afd_peer_ll(lane, header, afd_header_word(h, afd_tag(epoch)));
    }
    afd_dispatch_mask_put(lane, a, f, tokens, header, afd_tag(epoch));
    if (a->rows != 0) {
        if (AFD_MUTANT(table_after_word))
            afd_word_release(header + AFD_HEADER_ROUTES_OFFSET / sizeof(uint64_t), epoch);
        afd_dispatch_tables_put(lane, a, f, tokens);
        afd_block_sync(lane);
        if (lane.thread == 0) /* pairs with routes_wait in ffn_routes.h */
            afd_peer_release(lane, header + AFD_HEADER_ROUTES_OFFSET / sizeof(uint64_t), epoch);
    }
}

/* The headers this block owes: FFN ranks lane.block, lane.block + lane.blocks, ... Returns 0, or
 * the code of the fault that went out instead. */
AFD_STEP int32_t afd_dispatch_headers(struct afd_lane lane, const struct afd_dispatch_args *a,
                                      uint32_t tokens, int32_t code, uint64_t epoch)
{
    const struct afd_layout *layout = a->ffn_layout;
    if (lane.block >= a->shape->ffn_ranks)
        return code;
    if (code == 0 && !(AFD_MUTANT(routes_checked_by_block_0) && lane.block != 0))
        code = afd_dispatch_routes_check(lane, a, tokens);
    for (uint32_t f = lane.block; f < a->shape->ffn_ranks; f += lane.blocks) {
        uint64_t *header =
            afd_region_word(a->ffn_window[f], layout, layout->stage.headers, a->stage, a->source);
        if (code != 0)
            afd_dispatch_fault_put(lane, header, code, epoch);
        else
            afd_dispatch_header_put(lane, a, f, tokens, header, epoch);
    }
    return code;
}

/* ----------------------------------------------------------------------------------------- rows */

/* One add per FFN rank, after all of this block's rows for it. */
AFD_STEP void afd_dispatch_credits_add(struct afd_lane lane, const struct afd_dispatch_args *a)
{
    const struct afd_layout *layout = a->ffn_layout;
    afd_block_sync(lane);
    for (uint32_t f = lane.thread; f < a->shape->ffn_ranks; f += lane.threads) {
        uint32_t *sent = &a->sent[(uint64_t)lane.block * a->shape->ffn_ranks + f];
        if (*sent != 0 && lane.blocks > 1) /* pairs with credit_wait in ffn_receive */
            afd_peer_add(lane,
                         afd_region_word(a->ffn_window[f], layout, layout->stage.credits, a->stage,
                                         AFD_MUTANT(word_shared) ? 0 : a->source),
                         AFD_MUTANT(credit_counts_blocks) ? 1u : *sent);
        *sent = 0;
    }
}

/* One more unit for FFN rank f is written. A lone block says so at once: it is the only
 * writer of the credit, so a store does, and the receiver may start before the last row is
 * there. */
AFD_STEP void afd_dispatch_sent(struct afd_lane lane, const struct afd_dispatch_args *a, uint32_t f)
{
    const struct afd_layout *layout = a->ffn_layout;
    uint32_t *sent = &a->sent[(uint64_t)lane.block * a->shape->ffn_ranks + f];
    if (lane.blocks == 1)
        afd_block_sync(lane);
    if (lane.thread != 0)
        return;
    *sent += 1;
    if (lane.blocks == 1) /* pairs with credit_wait in ffn_receive */
        afd_peer_release(
            lane,
            afd_region_word(a->ffn_window[f], layout, layout->stage.credits, a->stage, a->source),
            a->credit_sent[f] + *sent);
    if (AFD_MUTANT(credit_before_rows))
        afd_dispatch_credits_add(lane, a);
}

/* Part `part` of row t into its slot at every FFN rank of `bits` (ranks 64 * word ...). */
AFD_STEP void afd_dispatch_row_put(struct afd_lane lane, const struct afd_dispatch_args *a,
                                   uint32_t t, uint32_t part, uint32_t parts, uint32_t word,
                                   uint64_t bits)
{
    const struct afd_layout *layout = a->ffn_layout;
    uint64_t begin = afd_part_begin(a->shape->payload_bytes, parts, part);
    uint64_t end = afd_part_begin(a->shape->payload_bytes, parts, part + 1);
    for (; bits != 0; bits &= bits - 1) {
        uint32_t f = word * 64 + afd_bits_lowest(bits);
        uint8_t *row = afd_region_at(
            a->ffn_window[f], layout, layout->stage.inbox, a->stage,
            afd_dispatch_slot(a, AFD_MUTANT(slot_off_by_one) ? t ^ 1u : t, a->shape->capacity));
        afd_traffic_count(lane, 0, 0, 1, 0);
        if (AFD_MUTANT(credit_before_its_row) || AFD_MUTANT(credit_before_rows))
            afd_dispatch_sent(lane, a, f);
        afd_row_put(lane, row + begin, a->x + a->x_stride * t + begin, end - begin);
        if (part == 0 && a->shape->scale_bytes != 0)
            afd_row_put(lane, row + afd_row_scales_offset(a->shape),
                        a->scales + a->scales_stride * t, a->shape->scale_bytes);
        if (!AFD_MUTANT(credit_before_its_row) && !AFD_MUTANT(credit_before_rows) &&
            !(AFD_MUTANT(part_in_one_credit) && part != 0))
            afd_dispatch_sent(lane, a, f);
    }
}

/* The LL word `index` of the slot of token t at FFN rank f. */
AFD_STEP struct afd_ll afd_dispatch_slot_word(const struct afd_dispatch_args *a,
                                              const struct afd_slot_plan *plan, uint32_t t,
                                              uint32_t f, uint32_t index, uint32_t tag)
{
    if (index < plan->route_words) {
        struct afd_ll word = {{0, 0, 0}, 0};
        word.tag = tag;
        for (uint32_t i = 0; i < AFD_LL_ELEMENTS; i++) {
            uint32_t item = index * AFD_LL_ELEMENTS + i;
            if (item < afd_route_row_items(a->shape))
                afd_ll_set_element(&word, i, afd_dispatch_route_item(a, t, f, item));
        }
        return word;
    }
    index -= plan->route_words;
    if (index < plan->weight_words) {
        struct afd_ll none = {{0, 0, 0}, 0};
        none.tag = tag;
        if (a->weights == 0)
            return none;
        return afd_ll_pack((const uint8_t *)(a->weights + (uint64_t)t * a->shape->topk), index,
                           (uint64_t)a->shape->topk * sizeof(float), tag);
    }
    index -= plan->weight_words;
    if (index < plan->payload_words)
        return afd_ll_pack(a->x + a->x_stride * t, index, a->shape->payload_bytes, tag);
    return afd_ll_pack(a->scales + a->scales_stride * t, index - plan->payload_words,
                       a->shape->scale_bytes, tag);
}

/* The whole slot of token t at every FFN rank of `bits`. Each word vouches for itself. */
AFD_STEP void afd_dispatch_slot_put(struct afd_lane lane, const struct afd_dispatch_args *a,
                                    uint32_t t, uint32_t word, uint64_t bits, uint32_t tag)
{
    const struct afd_layout *layout = a->ffn_layout;
    struct afd_slot_plan plan = afd_slot_plan(a->shape);
    for (; bits != 0; bits &= bits - 1) {
        uint32_t f = word * 64 + afd_bits_lowest(bits);
        uint64_t *slot = afd_region_word(a->ffn_window[f], layout, layout->stage.words, a->stage,
                                         afd_dispatch_slot(a, t, a->shape->words_tokens));
        for (uint32_t i = lane.thread; i < plan.words; i += lane.threads) /* pairs with slot_wait */
            afd_peer_ll(lane, slot + 2 * i, afd_dispatch_slot_word(a, &plan, t, f, i, tag));
    }
}

/* This block's share of the rows: item i is part i % parts of token i / parts. */
AFD_STEP void afd_dispatch_rows(struct afd_lane lane, const struct afd_dispatch_args *a,
                                uint32_t tokens, uint32_t tag)
{
    uint32_t words = afd_hit_words(a->shape->ffn_ranks);
    uint32_t parts =
        a->rows != 0 ? afd_row_parts(tokens, lane.blocks, afd_row_bytes(a->shape)) : 1u;
    for (uint64_t i = lane.block; i < (uint64_t)tokens * parts; i += lane.blocks) {
        uint32_t t = (uint32_t)(i / parts);
        uint32_t part = (uint32_t)(i % parts);
        if (lane.block >= a->shape->ffn_ranks &&
            afd_route_bad_lane(&a->placement, a->ids, t) != a->shape->topk)
            continue; /* a block that writes headers has checked; it tells every FFN rank */
        for (uint32_t w = 0; w < words; w++) {
            uint64_t bits = afd_route_hit_word(&a->placement, a->ids, t, w);
            if (part == 0 && lane.thread == 0)
                a->hits[(uint64_t)t * words + w] = bits;
            if (a->rows != 0)
                afd_dispatch_row_put(lane, a, t, part, parts, w, bits);
            else
                afd_dispatch_slot_put(lane, a, t, w, bits, tag);
        }
    }
}

/* T, into *tokens_out; returns 0 or the code of the fault, which is then recorded. */
AFD_STEP int32_t afd_dispatch_tokens(struct afd_lane lane, const struct afd_dispatch_args *a,
                                     uint32_t *tokens_out)
{
    uint32_t tokens = a->device_count != 0 ? *a->device_count : a->tokens;
    *tokens_out = tokens <= a->tokens ? tokens : 0;
    if (tokens <= a->tokens)
        return 0;
    afd_trouble_report(lane, AFD_CODE_CAPACITY, a->rank,
                       afd_wait_for(AFD_WORD_NONE, a->rank, a->tokens), tokens);
    return AFD_CODE_CAPACITY;
}

/* The last block: what all blocks have credited. */
AFD_STEP void afd_dispatch_finish(struct afd_lane lane, const struct afd_dispatch_args *a)
{
    uint32_t parts = afd_row_parts(*a->count_out, lane.blocks, afd_row_bytes(a->shape));
    if (a->rows == 0 || afd_trouble_seen(lane))
        return;
    for (uint32_t f = lane.thread; f < a->shape->ffn_ranks; f += lane.threads)
        a->credit_sent[f] += (uint64_t)a->reply_rows[f] * parts;
}

AFD_STEP void afd_step_attention_dispatch(struct afd_lane lane, const struct afd_dispatch_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->state, AFD_STAGE_IDLE))) {
        uint64_t epoch = a->state->epoch + 1;
        uint32_t tokens;
        int32_t code = afd_dispatch_tokens(lane, a, &tokens);
        if (lane.block == 0 && lane.thread == 0 && !AFD_MUTANT(count_of_last_exchange))
            *a->count_out = tokens;
        code = afd_dispatch_headers(lane, a, tokens, code, epoch);
        if (code == 0)
            afd_dispatch_rows(lane, a, tokens, afd_tag(epoch));
        if (a->rows != 0)
            afd_dispatch_credits_add(lane, a);
    }
    if (afd_stage_last_block(lane, a->state)) {
        afd_dispatch_finish(lane, a);
        afd_stage_commit(lane, a->state, AFD_STAGE_OPEN, 0);
    }
}

#endif
