/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_routes.h - the first half of ffn_receive: which rows will come, and where each one goes.
 *
 * Waits for:   every source's header of this exchange (L1, also for T = 0), its route table (rows)
 *              or the route words of its present slots (words).
 * Certifies:   nothing; everything later reads is copied privately.
 * Why that is enough: counts, offsets and places follow from routes alone, so rows may still be on
 *              their way. Every block reads the headers itself, and the routes of its own tokens;
 *              the gate then shows it the other blocks' histograms.
 *
 * The tokens of all sources form one sequence q: source 0's, then source 1's, ... Block b owns a
 * contiguous piece of it. A batch is a stable counting sort of the (token, route) pairs by expert:
 * expert, then source, then token.
 */
#ifndef AFD_STEPS_FFN_ROUTES_H
#define AFD_STEPS_FFN_ROUTES_H

#include "shared/route.h"
#include "steps/stage.h"

/* What an FFN rank keeps of a source's header for one exchange. */
struct afd_source_meta {
    uint32_t tokens;
    uint32_t first; /* q of its token 0 */
    uint32_t rows;  /* tokens with a row for this rank */
    uint32_t units; /* credits they bring (rows variant) */
    uint32_t flags; /* of the header */
    uint32_t reserved[3];
};

struct afd_receive_args {
    const struct afd_shape *shape;
    const struct afd_layout *layout;
    uint8_t *window;
    const uint32_t *source_rank; /* [N] world ranks */
    struct afd_stage_state *state;
    uint32_t stage;
    uint32_t rank; /* world rank of this FFN rank */
    uint32_t local_experts;
    uint32_t alignment;
    uint32_t indexed;
    uint32_t zero_padding;
    uint32_t weighted; /* weights will be needed */
    /* private scratch */
    struct afd_source_meta *meta; /* [blocks][N] */
    uint32_t *histogram;          /* [blocks][local_experts] pairs of each block */
    uint32_t *total;              /* [blocks][local_experts] pairs of all blocks */
    uint32_t *begin;              /* [blocks][local_experts] first row */
    uint32_t *cursor;             /* [blocks][local_experts] next row of this block */
    uint16_t *routes;             /* [N * capacity][k + 1] by q: copied route rows */
    uint64_t *credit_base;        /* [N] credits of earlier exchanges */
    /* out, private until reply */
    uint32_t *token_rows;               /* [N * capacity][k] by q: rows of a token, ascending */
    struct afd_source_meta *source_out; /* [N] */
    uint32_t *counts;                   /* [local_experts] */
    uint32_t *offsets;                  /* [local_experts + 1] */
    uint32_t *slots;                    /* [rows_capacity] */
    float *weights;                     /* [rows_capacity] */
    uint64_t *expert_totals;            /* [local_experts] */
    uint64_t *token_count;
    uint8_t *rows; /* expanded rows, NULL for indexed */
    uint64_t rows_stride;
    uint64_t rows_capacity;
    uint8_t *scales;
    uint64_t scales_row_stride;
    uint64_t scales_group_stride;
    uint32_t scale_item_bytes; /* one scale; all of a row's when the layout is row-major */
    uint32_t reserved;
};

/* A piece of the token sequence. */
struct afd_piece {
    uint32_t begin;
    uint32_t end;
};

AFD_STEP const struct afd_source_meta *afd_receive_meta(struct afd_lane lane,
                                                        const struct afd_receive_args *a)
{
    return a->meta + (uint64_t)lane.block * a->shape->sources;
}

AFD_STEP uint64_t *afd_receive_header(const struct afd_receive_args *a, uint32_t s)
{
    return afd_region_word(a->window, a->layout, a->layout->stage.headers, a->stage, s);
}

/* Source whose tokens include q; q is in the sequence. */
AFD_STEP uint32_t afd_receive_source(const struct afd_source_meta *meta, uint32_t sources,
                                     uint32_t q)
{
    uint32_t low = 0;
    uint32_t high = sources;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (meta[middle].first <= q)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* -------------------------------------------------------------------------------------- headers */

/* A header that no correct source writes must not become an address. */
AFD_STEP int32_t afd_receive_header_legal(const struct afd_receive_args *a, struct afd_header h)
{
    uint32_t rows = h.flags & AFD_HEADER_ROWS;
    if (h.tokens > a->shape->capacity)
        return 0;
    if (rows == 0)
        return h.tokens <= a->shape->words_tokens && a->indexed == 0;
    return h.units % afd_header_parts(h) == 0 && h.units / afd_header_parts(h) <= h.tokens;
}

/* Presence bits of tokens 96 * word .. of source s (words variant). 0: leave the step. */
AFD_STEP int32_t afd_receive_mask(struct afd_lane lane, const struct afd_receive_args *a,
                                  uint32_t s, uint32_t word, uint64_t epoch,
                                  struct afd_ll *mask_out)
{
    return afd_wait_ll(lane, afd_receive_header(a, s) + 2 * (1 + word),
                       afd_tag(epoch), /* mask_wait */
                       afd_wait_for(AFD_WORD_HEADER, a->source_rank[s], afd_tag(epoch)), mask_out);
}

AFD_STEP int32_t afd_receive_rows_of(struct afd_lane lane, const struct afd_receive_args *a,
                                     uint32_t s, struct afd_header h, uint64_t epoch,
                                     uint32_t *rows_out)
{
    uint32_t rows = 0;
    if ((h.flags & AFD_HEADER_ROWS) != 0) {
        *rows_out = h.units / afd_header_parts(h);
        return afd_wait_word(lane, /* routes_wait: pairs with the release in header_put */
                             afd_receive_header(a, s) + AFD_HEADER_ROUTES_OFFSET / sizeof(uint64_t),
                             afd_wait_for(AFD_WORD_ROUTES, a->source_rank[s],
                                          AFD_MUTANT(routes_wait_skipped) ? 0 : epoch));
    }
    for (uint32_t w = 0; w < AFD_HEADER_WORDS - 1; w++) {
        struct afd_ll mask;
        if (!afd_receive_mask(lane, a, s, w, epoch, &mask))
            return 0;
        for (uint32_t i = 0; i < 3; i++)
            rows += afd_bits_count(mask.data[i]);
    }
    *rows_out = rows;
    return 1;
}

/* Source s's header into *meta_out. 0: leave the step; the trouble is recorded. */
AFD_STEP int32_t afd_receive_header_wait(struct afd_lane lane, const struct afd_receive_args *a,
                                         uint32_t s, uint64_t epoch,
                                         struct afd_source_meta *meta_out)
{
    struct afd_wait wait = afd_wait_for(AFD_WORD_HEADER, a->source_rank[s], afd_tag(epoch));
    struct afd_ll word;
    struct afd_header h;
    if (AFD_MUTANT(header_wait_skipped))
        word = afd_ll_load(afd_receive_header(a, s));
    else if (!afd_wait_ll(lane, afd_receive_header(a, s), afd_tag(epoch), wait, &word))
        return 0; /* header_wait */
    h = afd_header_of(word);
    if (afd_header_fault(h) != 0) {
        afd_trouble_report(lane, AFD_MUTANT(cause_lost) ? AFD_CODE_PROTO : afd_header_fault(h),
                           a->source_rank[s], wait, h.flags);
        return 0;
    }
    if (!afd_receive_header_legal(a, h)) {
        wait.expected = a->shape->capacity;
        afd_trouble_report(lane, AFD_CODE_PROTO, a->source_rank[s], wait, h.tokens);
        return 0;
    }
    if (a->weighted != 0 && h.tokens != 0 && (h.flags & AFD_HEADER_WEIGHTS) == 0) {
        wait.expected = AFD_HEADER_WEIGHTS;
        afd_trouble_report(lane, AFD_CODE_INVALID, a->source_rank[s], wait, h.flags);
        return 0;
    }
    meta_out->tokens = h.tokens;
    meta_out->units = h.units;
    meta_out->flags = h.flags;
    return afd_receive_rows_of(lane, a, s, h, epoch, &meta_out->rows);
}

/* All headers into this block's meta; the length of the sequence into *tokens_out. */
AFD_STEP int32_t afd_receive_headers(struct afd_lane lane, const struct afd_receive_args *a,
                                     uint64_t epoch, uint32_t *tokens_out)
{
    struct afd_source_meta *meta = a->meta + (uint64_t)lane.block * a->shape->sources;
    uint32_t n = a->shape->sources;
    uint32_t before = 0;
    int32_t ok = 1;
    for (uint32_t s = lane.thread; ok && s < n; s += lane.threads)
        ok = afd_receive_header_wait(lane, a, s, epoch, &meta[s]);
    if (!afd_block_all(lane, ok))
        return 0;
    for (uint32_t base = 0; base < n; base += lane.threads) {
        uint32_t s = base + lane.thread;
        uint32_t total;
        uint32_t first = afd_block_scan(lane, s < n ? meta[s].tokens : 0, &total);
        if (s < n)
            meta[s].first = before + first;
        before += total;
    }
    afd_block_sync(lane);
    *tokens_out = before;
    return 1;
}

/* --------------------------------------------------------------------------------------- routes */

AFD_STEP uint64_t *afd_receive_slot(const struct afd_receive_args *a, uint32_t s, uint32_t t)
{
    return afd_region_word(a->window, a->layout, a->layout->stage.words, a->stage,
                           (uint64_t)s * a->shape->words_tokens + t);
}

/* Route words of a slot into `row`, if token t has one. 0: leave the step. */
AFD_STEP int32_t afd_receive_slot_routes(struct afd_lane lane, const struct afd_receive_args *a,
                                         uint32_t s, uint32_t t, uint64_t epoch, uint16_t *row)
{
    uint32_t items = afd_route_row_items(a->shape);
    struct afd_wait wait = afd_wait_for(AFD_WORD_SLOT, a->source_rank[s], afd_tag(epoch));
    struct afd_ll word;
    uint32_t bit = t % AFD_HEADER_MASK_BITS;
    if (!afd_receive_mask(lane, a, s, t / AFD_HEADER_MASK_BITS, epoch, &word))
        return 0;
    if ((word.data[bit / 32] >> (bit % 32) & 1u) == 0) {
        for (uint32_t i = 0; i < items; i++)
            row[i] = AFD_ROUTE_NONE;
        return 1;
    }
    for (uint32_t i = 0; i < items; i++) {
        if (i % AFD_LL_ELEMENTS == 0 && /* slot_wait */
            !afd_wait_ll(lane, afd_receive_slot(a, s, t) + 2 * (i / AFD_LL_ELEMENTS),
                         afd_tag(epoch), wait, &word))
            return 0;
        row[i] = afd_ll_element(word, i % AFD_LL_ELEMENTS);
    }
    return 1;
}

/* Route row of token q, copied to a->routes. 0: leave the step. */
AFD_STEP int32_t afd_receive_route(struct afd_lane lane, const struct afd_receive_args *a,
                                   uint32_t q, uint64_t epoch)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, a);
    uint32_t items = afd_route_row_items(a->shape);
    uint32_t s = afd_receive_source(meta, a->shape->sources, q);
    uint32_t t = q - meta[s].first;
    uint16_t *row = a->routes + (uint64_t)q * items;
    if ((meta[s].flags & AFD_HEADER_ROWS) != 0) {
        const uint16_t *table = (const uint16_t *)(const void *)afd_region_at(
            a->window, a->layout, a->layout->stage.routes, a->stage, s);
        for (uint32_t i = 0; i < items; i++)
            row[i] = afd_item_get_u16(&table[(uint64_t)t * items + i]);
    } else if (!afd_receive_slot_routes(lane, a, s, t, epoch, row)) {
        return 0;
    }
    for (uint32_t i = 0; i < a->shape->topk; i++) {
        if (row[i] == AFD_ROUTE_NONE || row[i] < a->local_experts)
            continue;
        afd_trouble_report(lane, AFD_CODE_PROTO, a->source_rank[s],
                           afd_wait_for(AFD_WORD_ROUTES, a->source_rank[s], a->local_experts),
                           row[i]);
        return 0;
    }
    return 1;
}

/* Copies and counts the routes of this block's tokens. */
AFD_STEP int32_t afd_receive_count(struct afd_lane lane, const struct afd_receive_args *a,
                                   struct afd_piece piece, uint64_t epoch)
{
    uint32_t *histogram = a->histogram + (uint64_t)lane.block * a->local_experts;
    uint32_t items = afd_route_row_items(a->shape);
    int32_t ok = 1;
    for (uint32_t e = lane.thread; e < a->local_experts; e += lane.threads)
        histogram[e] = 0;
    afd_block_sync(lane);
    for (uint32_t q = piece.begin + lane.thread; ok && q < piece.end; q += lane.threads) {
        const uint16_t *row = a->routes + (uint64_t)q * items;
        ok = afd_receive_route(lane, a, q, epoch);
        for (uint32_t i = 0; ok && i < a->shape->topk; i++)
            if (row[i] != AFD_ROUTE_NONE)
                afd_block_count(lane, &histogram[row[i]], 1);
    }
    return afd_block_all(lane, ok);
}

/* --------------------------------------------------------------------------------------- places */

/* After the gate: this block's begin, total and cursor of every expert. *rows_out: rows of the
 * whole batch, padding included. */
AFD_STEP void afd_receive_offsets(struct afd_lane lane, const struct afd_receive_args *a,
                                  uint32_t *rows_out)
{
    uint64_t own = (uint64_t)lane.block * a->local_experts;
    uint32_t rows = 0;
    for (uint32_t base = 0; base < a->local_experts; base += lane.threads) {
        uint32_t e = base + lane.thread;
        uint32_t total = 0;
        uint32_t before = 0;
        uint32_t all;
        uint32_t begin;
        for (uint32_t b = 0; e < a->local_experts && b < lane.blocks; b++) {
            uint32_t count = a->histogram[(uint64_t)b * a->local_experts + e];
            before += b < lane.block ? count : 0;
            total += count;
        }
        begin = rows + afd_block_scan(lane, (uint32_t)afd_round_up(total, a->alignment), &all);
        if (e < a->local_experts) {
            a->total[own + e] = total;
            a->begin[own + e] = begin;
            a->cursor[own + e] = begin + before;
        }
        rows += all;
    }
    afd_block_sync(lane);
    *rows_out = rows;
}

/* Weight of lane `i` of token t of source s; 0 if the source sent none. 0: leave the step. */
AFD_STEP int32_t afd_receive_weight(struct afd_lane lane, const struct afd_receive_args *a,
                                    uint32_t s, uint32_t t, uint32_t i, uint64_t epoch,
                                    float *weight_out)
{
    uint32_t flags = afd_receive_meta(lane, a)[s].flags;
    struct afd_ll word;
    *weight_out = 0;
    if ((flags & AFD_HEADER_WEIGHTS) == 0)
        return 1;
    if ((flags & AFD_HEADER_ROWS) != 0) {
        const float *table = (const float *)(const void *)afd_region_at(
            a->window, a->layout, a->layout->stage.weights, a->stage, s);
        *weight_out = afd_item_get_f32(&table[(uint64_t)t * a->shape->topk + i]);
        return 1;
    }
    if (!afd_wait_ll(lane,
                     afd_receive_slot(a, s, t) +
                         2 * (uint64_t)(afd_slot_plan(a->shape).route_words + i / 3u),
                     afd_tag(epoch), afd_wait_for(AFD_WORD_SLOT, a->source_rank[s], afd_tag(epoch)),
                     &word))
        return 0;
    *weight_out = afd_f32_from_bits(word.data[i % 3u]);
    return 1;
}

/* Gives every pair of this block its row: all threads take part in each round. */
AFD_STEP int32_t afd_receive_place(struct afd_lane lane, const struct afd_receive_args *a,
                                   struct afd_piece piece, uint64_t epoch)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, a);
    uint32_t *cursor = a->cursor + (uint64_t)lane.block * a->local_experts;
    uint32_t topk = a->shape->topk;
    uint64_t end = (uint64_t)piece.end * topk;
    int32_t ok = 1;
    for (uint64_t base = (uint64_t)piece.begin * topk; base < end; base += lane.threads) {
        uint64_t item = base + lane.thread;
        uint32_t q = (uint32_t)(item / topk);
        uint32_t i = (uint32_t)(item % topk);
        uint32_t key = AFD_KEY_NONE;
        uint32_t row;
        if (item < end && a->routes[(uint64_t)q * (topk + 1) + i] != AFD_ROUTE_NONE)
            key = a->routes[(uint64_t)q * (topk + 1) + i];
        row = afd_block_rank(lane, key, cursor);
        if (item < end)
            a->token_rows[item] = key == AFD_KEY_NONE ? AFD_KEY_NONE : row;
        if (key != AFD_KEY_NONE) {
            uint32_t s = afd_receive_source(meta, a->shape->sources, q);
            uint32_t t = q - meta[s].first;
            a->slots[row] = s * a->shape->capacity + t;
            ok = ok && afd_receive_weight(lane, a, s, t, i, epoch, &a->weights[row]);
        }
    }
    return afd_block_all(lane, ok);
}

/* Sorts the rows of each token ascending, AFD_KEY_NONE last: rows are expert-major, so this is the
 * ascending order of expert in which a reply adds. */
AFD_STEP void afd_receive_sort(struct afd_lane lane, const struct afd_receive_args *a,
                               struct afd_piece piece)
{
    uint32_t topk = a->shape->topk;
    for (uint32_t q = piece.begin + lane.thread; q < piece.end; q += lane.threads) {
        uint32_t *rows = a->token_rows + (uint64_t)q * topk;
        for (uint32_t i = 1; i < topk; i++) {
            uint32_t row = rows[i];
            uint32_t j = i;
            for (; j > 0 && rows[j - 1] > row; j--)
                rows[j] = rows[j - 1];
            rows[j] = row;
        }
    }
    afd_block_sync(lane);
}

#endif
