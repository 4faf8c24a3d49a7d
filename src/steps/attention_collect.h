/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_collect.h - a source waits for the replies to its tokens and adds them.
 *
 * Waits for:   every FFN rank's reply header of this exchange (L2), then the credits or the slot
 *              words of the rows it owes.
 * Certifies:   nothing; the next dispatch's header certifies that this collect is complete.
 * Why that is enough: which FFN ranks owe a row follows from this source's own routes, kept
 *              privately since dispatch, and each header must confirm the number. Every FFN rank is
 *              heard, so dispatch n+1 may write all their inboxes.
 */
#ifndef AFD_STEPS_ATTENTION_COLLECT_H
#define AFD_STEPS_ATTENTION_COLLECT_H

#include "shared/route.h"
#include "steps/stage.h"

#define AFD_BIAS_MAX 2u
#define AFD_BF16_NAN 0x7fc0u

/* What a block knows of an FFN rank's reply. */
struct afd_collect_peer {
    struct afd_reply_header header;
    uint32_t rows; /* so far */
    uint64_t seen; /* credits */
};

struct afd_collect_args {
    const struct afd_shape *shape;
    const struct afd_layout *layout;
    uint8_t *window;
    const uint32_t *ffn_rank; /* [F] world ranks */
    struct afd_stage_state *state;
    const uint64_t *hits;               /* [capacity][afd_hit_words(F)] of the dispatch */
    const uint32_t *reply_rows;         /* [F] of the dispatch */
    const uint32_t *count;              /* T of the dispatch */
    uint64_t *credit_base;              /* [F] credits of earlier exchanges */
    const uint16_t **terms;             /* [blocks][k + AFD_BIAS_MAX] scratch */
    struct afd_collect_peer *peers;     /* [blocks][F] scratch */
    const uint16_t *bias[AFD_BIAS_MAX]; /* NULL or [T][hidden] */
    uint8_t *rows;                      /* [T][hidden] BF16; not used by a view */
    uint64_t rows_stride;
    uint32_t stage;
    uint32_t reply_words; /* as the dispatch asked */
    uint32_t view;        /* 1: no copy, the inbox is the output; F = 1 */
};

AFD_STEP uint32_t afd_collect_terms_stride(const struct afd_collect_args *a)
{
    return a->shape->topk + AFD_BIAS_MAX;
}

/* ---------------------------------------------------------------------------------------- waits */

AFD_STEP struct afd_collect_peer *afd_collect_peers(struct afd_lane lane,
                                                    const struct afd_collect_args *a)
{
    return a->peers + (uint64_t)lane.block * a->shape->ffn_ranks;
}

/* `units` of FFN rank f are there. 0: leave the step. */
AFD_STEP int32_t afd_collect_credit_wait(struct afd_lane lane, const struct afd_collect_args *a,
                                         uint32_t f, uint32_t units, uint64_t *seen_out)
{
    return afd_wait_word_seen(
        lane, /* reply_credit_wait */
        afd_region_word(a->window, a->layout, a->layout->stage.reply_credits, a->stage, f),
        afd_wait_for(AFD_WORD_REPLY_CREDIT, a->ffn_rank[f],
                     AFD_MUTANT(reply_credit_wait_skipped) ? 0 : a->credit_base[f] + units),
        seen_out);
}

/* A lone block takes the rows of an FFN rank as they come. */
AFD_STEP int32_t afd_collect_in_order(struct afd_lane lane, const struct afd_collect_args *a,
                                      struct afd_reply_header header)
{
    return lane.blocks == 1 && a->view == 0 && (header.flags & AFD_REPLY_IN_ORDER) != 0;
}

/* Reply header of FFN rank f, and all its credits unless its rows are taken as they come. 0: leave
 * the step. */
AFD_STEP int32_t afd_collect_wait(struct afd_lane lane, const struct afd_collect_args *a,
                                  uint32_t f, uint64_t epoch, struct afd_collect_peer *peer_out)
{
    struct afd_reply_header *header_out = &peer_out->header;
    struct afd_wait wait = afd_wait_for(AFD_WORD_REPLY_HEADER, a->ffn_rank[f], afd_tag(epoch));
    const uint64_t *place =
        afd_region_word(a->window, a->layout, a->layout->stage.reply_headers, a->stage, f);
    struct afd_ll word;
    if (AFD_MUTANT(l2_of_silent_ffn_skipped) && a->reply_rows[f] == 0) {
        header_out->flags = 0;
        return 1;
    }
    if (AFD_MUTANT(reply_header_wait_skipped))
        word = afd_ll_load(place);
    else if (!afd_wait_ll(lane, place, afd_tag(epoch), wait, &word)) /* reply_header_wait */
        return 0;
    *header_out = afd_reply_header_of(word);
    if (header_out->rows != a->reply_rows[f] ||
        ((header_out->flags & AFD_REPLY_ROWS) == 0) != (a->reply_words != 0)) {
        wait.expected = a->reply_rows[f];
        afd_trouble_report(lane, AFD_CODE_PROTO, a->ffn_rank[f], wait, header_out->rows);
        return 0;
    }
    peer_out->rows = 0;
    peer_out->seen = 0;
    if ((header_out->flags & AFD_REPLY_ROWS) == 0 || afd_collect_in_order(lane, a, *header_out))
        return 1;
    return afd_collect_credit_wait(lane, a, f, header_out->units, &peer_out->seen);
}

AFD_STEP int32_t afd_collect_waits(struct afd_lane lane, const struct afd_collect_args *a,
                                   uint64_t epoch)
{
    int32_t ok = 1;
    for (uint32_t f = lane.thread; ok && f < a->shape->ffn_ranks; f += lane.threads)
        ok = afd_collect_wait(lane, a, f, epoch, &afd_collect_peers(lane, a)[f]);
    return afd_block_all(lane, ok);
}

/* ----------------------------------------------------------------------------------------- rows */

/* The next row of FFN rank f is there. One thread; 0: leave the step. */
AFD_STEP int32_t afd_collect_arrived(struct afd_lane lane, const struct afd_collect_args *a,
                                     uint32_t f)
{
    struct afd_collect_peer *peer = &afd_collect_peers(lane, a)[f];
    if (!afd_collect_in_order(lane, a, peer->header))
        return 1;
    peer->rows++;
    return peer->seen >= a->credit_base[f] + peer->rows ||
           afd_collect_credit_wait(lane, a, f, peer->rows, &peer->seen);
}

/* Terms of token t: bias rows, then reply rows by ascending FFN rank, as they are there. One
 * thread; 0: leave the step. */
AFD_STEP int32_t afd_collect_terms(struct afd_lane lane, const struct afd_collect_args *a,
                                   uint32_t t, const uint16_t **terms)
{
    uint32_t words = afd_hit_words(a->shape->ffn_ranks);
    uint32_t count = 0;
    uint32_t before = 0;
    for (uint32_t b = 0; b < AFD_BIAS_MAX; b++)
        if (a->bias[b] != 0)
            terms[count++] = a->bias[b] + (uint64_t)t * a->shape->hidden;
    for (uint32_t w = 0; w < words; w++) {
        for (uint64_t bits = a->hits[(uint64_t)t * words + w]; bits != 0; bits &= bits - 1) {
            uint32_t f = w * 64 + afd_bits_lowest(bits);
            uint32_t region = afd_reply_region(a->shape, f, before++);
            if (!afd_collect_arrived(lane, a, f))
                return 0;
            terms[count++] = (const uint16_t *)(const void *)afd_region_at(
                a->window, a->layout, a->layout->stage.reply_inbox, a->stage,
                (uint64_t)region * a->shape->capacity + t);
        }
    }
    return 1;
}

AFD_STEP uint32_t afd_collect_terms_count(const struct afd_collect_args *a, uint32_t t)
{
    uint32_t words = afd_hit_words(a->shape->ffn_ranks);
    uint32_t count = (a->bias[0] != 0 ? 1u : 0u) + (a->bias[1] != 0 ? 1u : 0u);
    for (uint32_t w = 0; w < words; w++)
        count += afd_bits_count(a->hits[(uint64_t)t * words + w]);
    return count;
}

/* Token t from rows. Collective; 0: leave the step. */
AFD_STEP int32_t afd_collect_row(struct afd_lane lane, const struct afd_collect_args *a, uint32_t t)
{
    const uint16_t **terms = a->terms + (uint64_t)lane.block * afd_collect_terms_stride(a);
    uint32_t count = afd_collect_terms_count(a, t);
    uint8_t *row = a->rows + a->rows_stride * t;
    int32_t ok = 1;
    afd_block_sync(lane); /* the last token's terms have been read */
    if (lane.thread == 0)
        ok = afd_collect_terms(lane, a, t, terms);
    if (!afd_block_all(lane, ok))
        return 0;
    if (count == 0)
        afd_row_fill(lane, row, 0, a->shape->hidden);
    else if (count == 1 && a->bias[0] == 0 && a->bias[1] == 0) /* rounded by the reply already */
        afd_row_get(lane, row, (const uint8_t *)terms[0], afd_reply_bytes(a->shape));
    else
        afd_rows_sum(lane, (uint16_t *)(void *)row, terms, 0, count, a->shape->hidden);
    return 1;
}

AFD_STEP uint64_t *afd_collect_slot(const struct afd_collect_args *a, uint32_t region, uint32_t t)
{
    return afd_region_word(a->window, a->layout, a->layout->stage.reply_words, a->stage,
                           (uint64_t)region * a->shape->words_tokens + t);
}

/* Running sums of six elements. */
struct afd_collect_sum {
    float value[AFD_LL_ELEMENTS];
    uint32_t terms;
};

AFD_STEP void afd_collect_sum_add(struct afd_collect_sum *sum, struct afd_ll word)
{
    for (uint32_t i = 0; i < AFD_LL_ELEMENTS; i++) {
        float term = afd_bf16_to_f32(afd_ll_element(word, i));
        sum->value[i] = sum->terms == 0 ? term : sum->value[i] + term;
    }
    sum->terms++;
}

/* Elements 6 * index .. of token t: bias, then every FFN rank's word as it arrives. */
AFD_STEP int32_t afd_collect_sum_word(struct afd_lane lane, const struct afd_collect_args *a,
                                      uint32_t t, uint32_t index, uint32_t tag,
                                      struct afd_ll *word_out)
{
    uint32_t words = afd_hit_words(a->shape->ffn_ranks);
    uint32_t before = 0;
    struct afd_collect_sum sum = {{0, 0, 0, 0, 0, 0}, 0};
    struct afd_ll word;
    for (uint32_t b = 0; b < AFD_BIAS_MAX; b++)
        if (a->bias[b] != 0)
            afd_collect_sum_add(
                &sum, afd_ll_pack((const uint8_t *)(a->bias[b] + (uint64_t)t * a->shape->hidden),
                                  index, afd_reply_bytes(a->shape), 0));
    for (uint32_t w = 0; w < words; w++) {
        for (uint64_t bits = a->hits[(uint64_t)t * words + w]; bits != 0; bits &= bits - 1) {
            uint32_t f = w * 64 + afd_bits_lowest(bits);
            const uint64_t *slot = afd_collect_slot(a, afd_reply_region(a->shape, f, before++), t);
            if (!afd_wait_ll(lane, slot + 2 * (uint64_t)index, tag, /* reply_slot_wait */
                             afd_wait_for(AFD_WORD_REPLY_SLOT, a->ffn_rank[f], tag), &word))
                return 0;
            afd_collect_sum_add(&sum, word);
        }
    }
    for (uint32_t i = 0; i < AFD_LL_ELEMENTS; i++)
        afd_ll_set_element(word_out, i, sum.terms == 0 ? 0 : afd_f32_to_bf16(sum.value[i]));
    return 1;
}

/* Token t from self-validating words. Collective; 0: leave the step. */
AFD_STEP int32_t afd_collect_slot_row(struct afd_lane lane, const struct afd_collect_args *a,
                                      uint32_t t, uint64_t epoch)
{
    int32_t ok = 1;
    for (uint32_t i = lane.thread; ok && i < afd_reply_slot_words(a->shape); i += lane.threads) {
        struct afd_ll sum = {{0, 0, 0}, 0};
        ok = afd_collect_sum_word(lane, a, t, i, afd_tag(epoch), &sum);
        if (ok)
            afd_ll_unpack(sum, a->rows + a->rows_stride * t, i, afd_reply_bytes(a->shape));
    }
    return afd_block_all(lane, ok);
}

/* Wipes one slot of every region: by the block that read it, if one did. */
AFD_STEP void afd_collect_scrub(struct afd_lane lane, const struct afd_collect_args *a,
                                uint32_t tokens, uint64_t epoch)
{
    uint32_t slot = afd_scrub_slot(epoch, a->shape->words_tokens);
    uint32_t owner = a->reply_words != 0 && slot < tokens ? slot % lane.blocks : 0;
    if (a->shape->words_tokens == 0 || owner != lane.block || AFD_MUTANT(reply_scrub_skipped))
        return;
    afd_block_sync(lane);
    for (uint32_t r = 0; r < afd_reply_regions(a->shape); r++)
        for (uint32_t i = lane.thread; i < afd_reply_slot_words(a->shape); i += lane.threads)
            afd_ll_wipe(afd_collect_slot(a, r, slot) + 2 * (uint64_t)i);
}

/* ----------------------------------------------------------------------------------------- step */

/* A view's rows are the inbox's; those of tokens that no FFN rank answers are zeroed here. */
AFD_STEP void afd_collect_view_row(struct afd_lane lane, const struct afd_collect_args *a,
                                   uint32_t t)
{
    if (a->hits[t] == 0 && !AFD_MUTANT(view_row_stale))
        afd_row_fill(lane,
                     afd_region_at(a->window, a->layout, a->layout->stage.reply_inbox, a->stage, t),
                     0, a->shape->hidden);
}

/* This block's rows; returns the first one that is not finished, `tokens` or more if all are. */
AFD_STEP uint32_t afd_collect_rows(struct afd_lane lane, const struct afd_collect_args *a,
                                   uint32_t tokens, uint64_t epoch)
{
    uint32_t t = lane.block;
    int32_t ok = 1;
    for (; t < tokens; t += lane.blocks) {
        if (a->view != 0)
            afd_collect_view_row(lane, a, t);
        else if (a->reply_words == 0)
            ok = afd_collect_row(lane, a, t);
        else
            ok = afd_collect_slot_row(lane, a, t, epoch);
        if (!ok)
            break;
    }
    return t;
}

/* The last block: credits consumed. */
AFD_STEP void afd_collect_finish(struct afd_lane lane, const struct afd_collect_args *a)
{
    const struct afd_collect_peer *peers = afd_collect_peers(lane, a);
    if (afd_trouble_seen(lane))
        return;
    for (uint32_t f = lane.thread; f < a->shape->ffn_ranks; f += lane.threads)
        if ((peers[f].header.flags & AFD_REPLY_ROWS) != 0 && !AFD_MUTANT(reply_base_not_advanced))
            a->credit_base[f] += peers[f].header.units;
}

AFD_STEP void afd_step_attention_collect(struct afd_lane lane, const struct afd_collect_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->state, AFD_STAGE_OPEN))) {
        uint64_t epoch = a->state->epoch + 1;
        uint32_t tokens = *a->count;
        uint32_t next = lane.block;
        if (afd_collect_waits(lane, a, epoch))
            next = afd_collect_rows(lane, a, tokens, epoch);
        if (next >= tokens)
            afd_collect_scrub(lane, a, tokens, epoch);
        for (; next < tokens && a->view == 0; next += lane.blocks) /* nothing stale looks valid */
            afd_row_fill(lane, a->rows + a->rows_stride * next, AFD_BF16_NAN, a->shape->hidden);
    }
    if (afd_stage_last_block(lane, a->state)) {
        afd_collect_finish(lane, a);
        afd_stage_commit(lane, a->state, AFD_STAGE_IDLE, 1);
    }
}

#endif
