/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_reply.h - an FFN rank sums each token's local rows and sends them to their sources.
 *
 * Waits for:   nothing. The reply inboxes it writes are free: receive n heard every source's header
 *              n (L1), which that source wrote after it finished collect n-1.
 * Certifies:   to every source, also to one without a row: the reply header of this exchange (L2),
 *              and credits for its rows in the rows variant.
 * Why that is enough: this rank's last read of exchange n's inboxes, routes and headers was in
 *              receive n or by the caller before this call (L0); reply reads private copies only,
 *              so the header may go first.
 */
#ifndef AFD_STEPS_FFN_REPLY_H
#define AFD_STEPS_FFN_REPLY_H

#include "steps/ffn_routes.h"

struct afd_reply_args {
    const struct afd_shape *shape;
    const struct afd_layout *attention_layout;
    uint8_t *const *source_window; /* [N] the sources' windows, as this rank sees them */
    struct afd_stage_state *state;
    const struct afd_source_meta *source; /* [N] of the receive */
    const uint16_t *routes;               /* [N * capacity][k + 1] by q */
    const uint32_t *token_rows;           /* [N * capacity][k] by q */
    const float *weights;                 /* [rows], NULL: unweighted */
    const uint8_t *rows;                  /* the caller's, by row of the batch */
    uint64_t rows_stride;
    const uint16_t **terms; /* [blocks][k] scratch */
    float *term_weights;    /* [blocks][k] scratch */
    uint64_t *credit_sent;  /* [N] private: credits of earlier exchanges */
    uint32_t stage;
    uint32_t ffn; /* f */
};

AFD_STEP int32_t afd_reply_is_rows(const struct afd_reply_args *a, uint32_t s)
{
    return (a->source[s].flags & AFD_HEADER_REPLY_WORDS) == 0;
}

/* Parts of each reply row to source s. */
AFD_STEP uint32_t afd_reply_parts(struct afd_lane lane, const struct afd_reply_args *a, uint32_t s)
{
    if (!afd_reply_is_rows(a, s))
        return 1;
    return afd_row_parts(a->source[s].tokens, lane.blocks, afd_reply_bytes(a->shape));
}

/* One block writes it, in every exchange, also when this source gets no row. */
AFD_STEP void afd_reply_header_put(struct afd_lane lane, const struct afd_reply_args *a, uint32_t s,
                                   uint64_t epoch)
{
    const struct afd_layout *layout = a->attention_layout;
    struct afd_reply_header h;
    h.rows = a->source[s].rows;
    h.units = afd_reply_is_rows(a, s) ? h.rows * afd_reply_parts(lane, a, s) : 0;
    h.flags = afd_reply_is_rows(a, s)
                  ? AFD_REPLY_ROWS | (lane.blocks == 1 ? AFD_REPLY_IN_ORDER : 0u)
                  : 0u;
    if (AFD_MUTANT(reply_header_of_no_rows_skipped) && h.rows == 0)
        return;
    if (lane.thread == 0) /* pairs with reply_header_wait in attention_collect */
        afd_peer_ll(lane,
                    afd_region_word(a->source_window[s], layout, layout->stage.reply_headers,
                                    a->stage, a->ffn),
                    afd_reply_header_word(h, afd_tag(epoch)));
}

/* The rows to add for token q as this block's terms, shifted by `begin` elements; returns how
 * many. */
AFD_STEP uint32_t afd_reply_terms(struct afd_lane lane, const struct afd_reply_args *a, uint32_t q,
                                  uint64_t begin)
{
    uint32_t topk = a->shape->topk;
    const uint32_t *rows = a->token_rows + (uint64_t)q * topk;
    uint64_t own = (uint64_t)lane.block * topk;
    uint32_t count = 0;
    while (count < topk && rows[count] != AFD_KEY_NONE)
        count++;
    afd_block_sync(lane);
    for (uint32_t i = lane.thread; i < count; i += lane.threads) {
        a->terms[own + i] =
            (const uint16_t *)(const void *)(a->rows + a->rows_stride * rows[i]) + begin;
        a->term_weights[own + i] = a->weights != 0 ? a->weights[rows[i]] : 1.0f;
    }
    afd_block_sync(lane);
    return count;
}

/* Slot of token t of source s in the reply region this rank uses for it. */
AFD_STEP uint64_t afd_reply_slot(const struct afd_reply_args *a, uint32_t q, uint32_t t,
                                 uint32_t slots)
{
    uint32_t items = afd_route_row_items(a->shape);
    uint32_t region = a->routes[(uint64_t)q * items + a->shape->topk];
    return (uint64_t)region * slots + t;
}

AFD_STEP void afd_reply_row_put(struct afd_lane lane, const struct afd_reply_args *a, uint32_t s,
                                uint32_t q, uint32_t part, uint32_t parts)
{
    const struct afd_layout *layout = a->attention_layout;
    uint64_t own = (uint64_t)lane.block * a->shape->topk;
    uint64_t bytes = afd_reply_bytes(a->shape);
    uint64_t begin = afd_part_begin(bytes, parts, part) / 2;
    uint64_t end = afd_part_begin(bytes, parts, part + 1) / 2;
    uint8_t *row = afd_region_at(a->source_window[s], layout, layout->stage.reply_inbox, a->stage,
                                 afd_reply_slot(a, q, q - a->source[s].first, a->shape->capacity));
    uint32_t count = afd_reply_terms(lane, a, q, begin);
    afd_rows_sum_put(lane, (uint16_t *)(void *)row + begin, a->terms + own,
                     a->weights != 0 ? a->term_weights + own : 0, count, (uint32_t)(end - begin));
}

/* Sum of elements 6 * index .. of the token's rows, packed as one LL word. */
AFD_STEP struct afd_ll afd_reply_sum_word(struct afd_lane lane, const struct afd_reply_args *a,
                                          uint32_t count, uint32_t index, uint32_t tag)
{
    uint64_t own = (uint64_t)lane.block * a->shape->topk;
    struct afd_ll word = {{0, 0, 0}, 0};
    word.tag = tag;
    for (uint32_t i = 0; i < AFD_LL_ELEMENTS; i++) {
        uint32_t h = index * AFD_LL_ELEMENTS + i;
        float sum = 0;
        for (uint32_t j = 0; j < count && h < a->shape->hidden; j++) {
            float term = afd_bf16_to_f32(a->terms[own + j][h]);
            if (a->weights != 0)
                term = a->term_weights[own + j] * term;
            sum = j == 0 ? term : sum + term;
        }
        afd_ll_set_element(&word, i, afd_f32_to_bf16(sum));
    }
    return word;
}

AFD_STEP void afd_reply_slot_put(struct afd_lane lane, const struct afd_reply_args *a, uint32_t s,
                                 uint32_t q, uint32_t tag)
{
    const struct afd_layout *layout = a->attention_layout;
    uint64_t *slot =
        afd_region_word(a->source_window[s], layout, layout->stage.reply_words, a->stage,
                        afd_reply_slot(a, q, q - a->source[s].first, a->shape->words_tokens));
    uint32_t count = afd_reply_terms(lane, a, q, 0);
    for (uint32_t i = lane.thread; i < afd_reply_slot_words(a->shape); i += lane.threads)
        afd_peer_ll(lane,
                    slot + 2 * (uint64_t)i, /* pairs with reply_slot_wait in attention_collect */
                    afd_reply_sum_word(lane, a, count, i, tag));
}

/* A lone block says after each row that one more is there. */
AFD_STEP void afd_reply_credit_store(struct afd_lane lane, const struct afd_reply_args *a,
                                     uint32_t s, uint32_t units)
{
    const struct afd_layout *layout = a->attention_layout;
    afd_block_sync(lane);
    if (lane.thread == 0) /* pairs with reply_credit_wait in attention_collect */
        afd_peer_release(lane,
                         afd_region_word(a->source_window[s], layout, layout->stage.reply_credits,
                                         a->stage, a->ffn),
                         a->credit_sent[s] + units);
}

/* Credits for `units` of this block's parts, after all of them. */
AFD_STEP void afd_reply_credit_add(struct afd_lane lane, const struct afd_reply_args *a, uint32_t s,
                                   uint32_t units)
{
    const struct afd_layout *layout = a->attention_layout;
    afd_block_sync(lane);
    if (lane.thread == 0 && units != 0) /* pairs with reply_credit_wait in attention_collect */
        afd_peer_add(lane,
                     afd_region_word(a->source_window[s], layout, layout->stage.reply_credits,
                                     a->stage, a->ffn),
                     AFD_MUTANT(reply_credit_counts_blocks) ? 1u : units);
}

/* This block's share of the replies to source s. */
AFD_STEP void afd_reply_source(struct afd_lane lane, const struct afd_reply_args *a, uint32_t s,
                               uint64_t epoch)
{
    uint32_t parts = afd_reply_parts(lane, a, s);
    uint32_t units = 0;
    uint64_t items = (uint64_t)a->source[s].tokens * parts;
    /* start so that the sources' first items fall on different blocks */
    uint64_t item = (lane.block + lane.blocks - s % lane.blocks) % lane.blocks;
    for (; item < items; item += lane.blocks) {
        uint32_t q = a->source[s].first + (uint32_t)(item / parts);
        if (a->token_rows[(uint64_t)q * a->shape->topk] == AFD_KEY_NONE)
            continue;
        if (AFD_MUTANT(reply_credit_before_row) && afd_reply_is_rows(a, s) && lane.blocks == 1)
            afd_reply_credit_store(lane, a, s, units + 1);
        if (afd_reply_is_rows(a, s))
            afd_reply_row_put(lane, a, s, q, (uint32_t)(item % parts), parts);
        else
            afd_reply_slot_put(lane, a, s, q, afd_tag(epoch));
        units++;
        if (afd_reply_is_rows(a, s) && lane.blocks == 1 && !AFD_MUTANT(reply_credit_before_row))
            afd_reply_credit_store(lane, a, s, units);
    }
    if (afd_reply_is_rows(a, s) && lane.blocks > 1)
        afd_reply_credit_add(lane, a, s, units);
}

/* The last block: what all blocks have credited. */
AFD_STEP void afd_reply_finish(struct afd_lane lane, const struct afd_reply_args *a)
{
    for (uint32_t s = lane.thread; s < a->shape->sources && !afd_trouble_seen(lane);
         s += lane.threads)
        if (afd_reply_is_rows(a, s))
            a->credit_sent[s] += (uint64_t)a->source[s].rows * afd_reply_parts(lane, a, s);
}

AFD_STEP void afd_step_ffn_reply(struct afd_lane lane, const struct afd_reply_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->state, AFD_STAGE_OPEN))) {
        uint64_t epoch = a->state->epoch + 1;
        for (uint32_t s = lane.block; s < a->shape->sources; s += lane.blocks)
            afd_reply_header_put(lane, a, s, epoch);
        for (uint32_t s = 0; s < a->shape->sources; s++)
            afd_reply_source(lane, a, s, epoch);
    }
    if (afd_stage_last_block(lane, a->state)) {
        afd_reply_finish(lane, a);
        afd_stage_commit(lane, a->state, AFD_STAGE_IDLE, 1);
    }
}

#endif
