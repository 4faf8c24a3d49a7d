/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ffn_receive.h - an FFN rank receives the rows of one exchange and groups them by expert.
 *
 * Waits for:   every source's header (L1, see ffn_routes.h), then the credits or the slot words of
 *              the rows that the headers promise. Resident: its blocks meet at one gate.
 * Certifies:   nothing; the certificate of what was read here is the reply header of this exchange.
 * Why that is enough: a credit target is what earlier exchanges brought plus this header's units,
 *              and units are added after the rows they count, so the full sum covers every
 *              row. Every source is heard, so this rank's replies go only to sources that finished
 *              exchange n-1.
 */
#ifndef AFD_STEPS_FFN_RECEIVE_H
#define AFD_STEPS_FFN_RECEIVE_H

#include "steps/ffn_routes.h"

/* --------------------------------------------------------------------------------------- output */

/* What is known once all histograms are: block 0 writes the counts, every block its share of the
 * padding. */
AFD_STEP void afd_receive_publish(struct afd_lane lane, const struct afd_receive_args *a,
                                  uint32_t rows)
{
    uint64_t own = (uint64_t)lane.block * a->local_experts;
    if (lane.block != 0)
        return;
    for (uint32_t e = lane.thread; e < a->local_experts; e += lane.threads) {
        a->counts[e] = a->total[own + e];
        a->offsets[e] = a->begin[own + e];
        a->expert_totals[e] += a->total[own + e];
    }
    if (lane.thread == 0)
        a->offsets[a->local_experts] = rows;
}

AFD_STEP void afd_receive_scales_store(const struct afd_receive_args *a, uint32_t row,
                                       uint32_t item, const uint8_t *scale)
{
    uint8_t *to = a->scales + a->scales_row_stride * row + a->scales_group_stride * item;
    for (uint32_t i = 0; i < a->scale_item_bytes; i++)
        to[i] = afd_item_get_u8(&scale[i]);
}

/* Padding rows of this block's experts. */
AFD_STEP void afd_receive_pad(struct afd_lane lane, const struct afd_receive_args *a, uint32_t rows)
{
    uint64_t own = (uint64_t)lane.block * a->local_experts;
    const uint8_t zero[4] = {0, 0, 0, 0};
    for (uint32_t e = lane.block; e < a->local_experts; e += lane.blocks) {
        uint32_t end = e + 1 < a->local_experts ? a->begin[own + e + 1] : rows;
        for (uint32_t row = a->begin[own + e] + a->total[own + e]; row < end; row++) {
            if (lane.thread == 0) {
                a->slots[row] = AFD_KEY_NONE;
                a->weights[row] = 0;
            }
            if (a->zero_padding == 0 || a->rows == 0)
                continue;
            afd_bytes_zero(lane, a->rows + a->rows_stride * row, a->shape->payload_bytes);
            if (a->scales == 0)
                continue;
            if (a->scale_item_bytes == a->shape->scale_bytes)
                afd_bytes_zero(lane, a->scales + a->scales_row_stride * row, a->shape->scale_bytes);
            else
                for (uint32_t i = lane.thread; i < a->shape->scale_bytes / a->scale_item_bytes;
                     i += lane.threads)
                    afd_receive_scales_store(a, row, i, zero);
        }
    }
}

/* ----------------------------------------------------------------------------------------- rows */

/* What a block knows of the credits of the source whose rows it handles. */
struct afd_arrival {
    uint32_t source;
    uint32_t in_order; /* wait row by row */
    uint32_t rows;     /* of this source, so far */
    uint64_t seen;     /* credits */
};

/* `units` of source s are there. Collective; 0: leave the step. */
AFD_STEP int32_t afd_receive_credit_wait(struct afd_lane lane, const struct afd_receive_args *a,
                                         uint32_t s, uint32_t units, uint64_t *seen_out)
{
    int32_t ok = 1;
    if (lane.thread == 0) /* credit_wait: pairs with credits_add in attention_dispatch */
        ok = afd_wait_word_seen(
            lane, afd_region_word(a->window, a->layout, a->layout->stage.credits, a->stage, s),
            afd_wait_for(AFD_WORD_CREDIT, a->source_rank[s],
                         AFD_MUTANT(credit_wait_skipped) ? 0 : a->credit_base[s] + units),
            seen_out);
    return afd_block_all(lane, ok);
}

/* The next row of source s is there: with all of them, or in its turn if this block
 * handles the source from its first token. Collective; 0: leave the step. */
AFD_STEP int32_t afd_receive_arrived(struct afd_lane lane, const struct afd_receive_args *a,
                                     struct afd_piece piece, uint32_t s, int32_t present,
                                     struct afd_arrival *arrival)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, a);
    if (arrival->source != s) {
        arrival->source = s;
        arrival->rows = 0;
        arrival->seen = 0;
        arrival->in_order = (meta[s].flags & AFD_HEADER_IN_ORDER) != 0 &&
                            (piece.begin <= meta[s].first || AFD_MUTANT(in_order_from_the_middle));
        if (arrival->in_order == 0)
            return afd_receive_credit_wait(lane, a, s, meta[s].units, &arrival->seen);
    }
    if (arrival->in_order == 0 || !present)
        return 1;
    arrival->rows++;
    if (lane.threads == 1 && arrival->seen >= a->credit_base[s] + arrival->rows)
        return 1;
    return afd_receive_credit_wait(lane, a, s, arrival->rows, &arrival->seen);
}

/* One inbox row to all its places in the batch. */
AFD_STEP void afd_receive_row_expand(struct afd_lane lane, const struct afd_receive_args *a,
                                     const uint8_t *inbox_row, const uint32_t *rows)
{
    const uint8_t *scales = inbox_row + afd_row_scales_offset(a->shape);
    for (uint32_t p = 0; p < a->shape->topk && rows[p] != AFD_KEY_NONE; p++) {
        afd_row_get(lane, a->rows + a->rows_stride * rows[p], inbox_row, a->shape->payload_bytes);
        if (a->scales == 0)
            continue;
        if (a->scale_item_bytes == a->shape->scale_bytes)
            afd_row_get(lane, a->scales + a->scales_row_stride * rows[p], scales,
                        a->shape->scale_bytes);
        else
            for (uint32_t i = lane.thread; i < a->shape->scale_bytes / a->scale_item_bytes;
                 i += lane.threads)
                afd_receive_scales_store(a, rows[p], i, scales + (uint64_t)i * a->scale_item_bytes);
    }
}

/* The scales in one LL word: 12 bytes from scale byte 12 * index on. */
AFD_STEP void afd_receive_scale_word(const struct afd_receive_args *a, struct afd_ll word,
                                     uint32_t index, uint32_t row)
{
    uint8_t bytes[AFD_LL_PAYLOAD];
    memcpy(bytes, word.data, AFD_LL_PAYLOAD);
    if (a->scale_item_bytes == a->shape->scale_bytes) {
        afd_ll_unpack(word, a->scales + a->scales_row_stride * row, index, a->shape->scale_bytes);
        return;
    }
    for (uint32_t i = 0; i < AFD_LL_PAYLOAD / a->scale_item_bytes; i++) {
        uint32_t item = index * (AFD_LL_PAYLOAD / a->scale_item_bytes) + i;
        if (item < a->shape->scale_bytes / a->scale_item_bytes)
            afd_receive_scales_store(a, row, item, bytes + (uint64_t)i * a->scale_item_bytes);
    }
}

/* One slot, word by word as they arrive, to all its places. Collective; 0: leave the step. */
AFD_STEP int32_t afd_receive_slot_expand(struct afd_lane lane, const struct afd_receive_args *a,
                                         uint32_t s, uint32_t t, const uint32_t *rows,
                                         uint64_t epoch)
{
    struct afd_slot_plan plan = afd_slot_plan(a->shape);
    struct afd_wait wait = afd_wait_for(AFD_WORD_SLOT, a->source_rank[s], afd_tag(epoch));
    const uint64_t *slot =
        afd_receive_slot(a, s, t) + 2 * (uint64_t)(plan.route_words + plan.weight_words);
    int32_t ok = 1;
    for (uint32_t i = lane.thread; ok && i < plan.payload_words + plan.scale_words;
         i += lane.threads) {
        struct afd_ll word;
        ok = afd_wait_ll(lane, slot + 2 * (uint64_t)i, afd_tag(epoch), wait, &word);
        for (uint32_t p = 0; ok && p < a->shape->topk && rows[p] != AFD_KEY_NONE; p++) {
            if (i < plan.payload_words)
                afd_ll_unpack(word, a->rows + a->rows_stride * rows[p], i, a->shape->payload_bytes);
            else
                afd_receive_scale_word(a, word, i - plan.payload_words, rows[p]);
        }
    }
    return afd_block_all(lane, ok);
}

/* The rows of this block's tokens. Collective; 0: leave the step. */
AFD_STEP int32_t afd_receive_rows(struct afd_lane lane, const struct afd_receive_args *a,
                                  struct afd_piece piece, uint64_t epoch)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, a);
    struct afd_arrival arrival = {AFD_KEY_NONE, 0, 0, 0};
    for (uint32_t q = piece.begin; q < piece.end; q++) {
        uint32_t s = afd_receive_source(meta, a->shape->sources, q);
        uint32_t t = q - meta[s].first;
        const uint32_t *rows = a->token_rows + (uint64_t)q * a->shape->topk;
        int32_t plain = (meta[s].flags & AFD_HEADER_ROWS) != 0;
        if (plain && !afd_receive_arrived(lane, a, piece, s, rows[0] != AFD_KEY_NONE, &arrival))
            return 0;
        if (rows[0] == AFD_KEY_NONE || a->indexed != 0)
            continue;
        if (plain)
            afd_receive_row_expand(lane, a,
                                   afd_region_at(a->window, a->layout, a->layout->stage.inbox,
                                                 a->stage, (uint64_t)s * a->shape->capacity + t),
                                   rows);
        else if (!afd_receive_slot_expand(lane, a, s, t, rows, epoch))
            return 0;
    }
    return 1;
}

/* Wipes one slot of every source: by the block that read it in this exchange, if one did. */
AFD_STEP void afd_receive_scrub(struct afd_lane lane, const struct afd_receive_args *a,
                                struct afd_piece piece, uint64_t epoch)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, a);
    uint32_t slot = afd_scrub_slot(epoch, a->shape->words_tokens);
    uint32_t words = afd_slot_plan(a->shape).words;
    if (a->shape->words_tokens == 0 || AFD_MUTANT(scrub_skipped))
        return;
    afd_block_sync(lane);
    for (uint32_t s = 0; s < a->shape->sources; s++) {
        uint32_t q = meta[s].first + slot;
        int32_t mine = s % lane.blocks == lane.block;
        if ((meta[s].flags & AFD_HEADER_ROWS) == 0 && slot < meta[s].tokens &&
            !AFD_MUTANT(scrub_by_other_block))
            mine = q >= piece.begin && q < piece.end;
        for (uint32_t i = lane.thread; mine && i < words; i += lane.threads)
            afd_ll_wipe(afd_receive_slot(a, s, slot) + 2 * (uint64_t)i);
    }
}

/* ----------------------------------------------------------------------------------------- step */

AFD_STEP struct afd_piece afd_receive_piece(struct afd_lane lane, uint32_t tokens)
{
    struct afd_piece piece;
    piece.begin = (uint32_t)((uint64_t)tokens * lane.block / lane.blocks);
    piece.end = (uint32_t)((uint64_t)tokens * (lane.block + 1) / lane.blocks);
    return piece;
}

AFD_STEP int32_t afd_receive_body(struct afd_lane lane, const struct afd_receive_args *a)
{
    uint64_t epoch = a->state->epoch + 1;
    struct afd_piece piece;
    uint32_t tokens;
    uint32_t rows;
    if (!afd_receive_headers(lane, a, epoch, &tokens))
        return 0;
    piece = afd_receive_piece(lane, tokens);
    if (!afd_receive_count(lane, a, piece, epoch))
        return 0;
    if (!afd_stage_gate(lane, a->state, 1))
        return 0;
    afd_receive_offsets(lane, a, &rows);
    if (rows > a->rows_capacity) {
        afd_trouble_report(lane, AFD_CODE_CAPACITY, a->rank,
                           afd_wait_for(AFD_WORD_NONE, a->rank, a->rows_capacity), rows);
        return 0;
    }
    afd_receive_publish(lane, a, rows);
    if (!afd_receive_place(lane, a, piece, epoch))
        return 0;
    afd_receive_sort(lane, a, piece);
    afd_receive_pad(lane, a, rows);
    if (AFD_MUTANT(scrub_before_read))
        afd_receive_scrub(lane, a, piece, epoch);
    if (!afd_receive_rows(lane, a, piece, epoch))
        return 0;
    afd_receive_scrub(lane, a, piece, epoch);
    return 1;
}

/* The last block: what reply needs, or counts that read 0 after a trouble. */
AFD_STEP void afd_receive_finish(struct afd_lane lane, const struct afd_receive_args *a)
{
    const struct afd_source_meta *meta = afd_receive_meta(lane, a);
    int32_t failed = afd_trouble_seen(lane);
    uint64_t tokens = 0;
    for (uint32_t e = lane.thread; failed && e <= a->local_experts; e += lane.threads) {
        a->offsets[e] = 0;
        if (e < a->local_experts)
            a->counts[e] = 0;
    }
    for (uint32_t s = 0; !failed && s < a->shape->sources; s++)
        tokens += meta[s].rows;
    for (uint32_t s = lane.thread; !failed && s < a->shape->sources; s += lane.threads) {
        a->source_out[s] = meta[s];
        if ((meta[s].flags & AFD_HEADER_ROWS) != 0 && !AFD_MUTANT(credit_base_not_advanced))
            a->credit_base[s] += meta[s].units;
        if (AFD_MUTANT(word_cleared))
            afd_word_release(
                afd_region_word(a->window, a->layout, a->layout->stage.credits, a->stage, s), 0);
    }
    if (lane.thread == 0)
        *a->token_count = tokens;
}

AFD_STEP void afd_step_ffn_receive(struct afd_lane lane, const struct afd_receive_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->state, AFD_STAGE_IDLE)))
        (void)afd_receive_body(lane, a);
    if (afd_stage_last_block(lane, a->state)) {
        afd_receive_finish(lane, a);
        afd_stage_commit(lane, a->state, AFD_STAGE_OPEN, 0);
    }
}

#endif
