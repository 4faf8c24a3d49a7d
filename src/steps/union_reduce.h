/* SPDX-License-Identifier: Apache-2.0 */
/*
 * union_reduce.h - an Attention rank adds the replies that union_combine brought.
 *
 * Waits for:   nothing: the combine before it is complete.
 * Certifies:   nothing; the entry of the next dispatch says that the replies are read.
 * Why that is enough: the exit barrier of the combine covered every reply, and nobody writes here
 *              before the entry of the next dispatch on this stage, where this rank comes after
 *              this step.
 */
#ifndef AFD_STEPS_UNION_REDUCE_H
#define AFD_STEPS_UNION_REDUCE_H

#include "steps/attention_collect.h"
#include "steps/union_barrier.h"

struct afd_union_reduce_args {
    struct afd_collect_args collect; /* the output, and which FFN ranks owe a row */
    struct afd_union_group group;
    const uint32_t *ffn_rank; /* [F] world ranks */
    const uint16_t *master;   /* [capacity][k] of the dispatch */
};

/* Terms of token t: bias rows, then reply rows by ascending FFN rank. One thread. */
AFD_STEP void afd_union_terms(const struct afd_union_reduce_args *a, uint32_t t,
                              const uint16_t **terms)
{
    const struct afd_collect_args *c = &a->collect;
    const struct afd_union_group *g = &a->group;
    uint32_t words = afd_hit_words(c->shape->ffn_ranks);
    const uint16_t *master = a->master + (uint64_t)t * c->shape->topk;
    uint32_t count = 0;
    for (uint32_t b = 0; b < AFD_BIAS_MAX; b++)
        if (c->bias[b] != 0)
            terms[count++] = c->bias[b] + (uint64_t)t * c->shape->hidden;
    for (uint32_t w = 0; w < words; w++) {
        for (uint64_t bits = c->hits[(uint64_t)t * words + w]; bits != 0; bits &= bits - 1) {
            uint32_t f = w * 64 + afd_bits_lowest(bits);
            uint32_t region = afd_union_by_rank(c->shape) ? a->ffn_rank[f] : *master++;
            terms[count++] = (const uint16_t *)(const void *)afd_union_at(
                g->window[g->rank], g->layout, g->layout->reply, g->stage,
                (uint64_t)region * c->shape->capacity + t);
        }
    }
}

AFD_STEP void afd_union_reduce_row(struct afd_lane lane, const struct afd_union_reduce_args *a,
                                   uint32_t t)
{
    const struct afd_collect_args *c = &a->collect;
    const uint16_t **terms = c->terms + (uint64_t)lane.block * afd_collect_terms_stride(c);
    uint32_t count = afd_collect_terms_count(c, t);
    uint8_t *row = c->rows + c->rows_stride * t;
    afd_block_sync(lane); /* the last token's terms have been read */
    if (lane.thread == 0)
        afd_union_terms(a, t, terms);
    afd_block_sync(lane);
    if (count == 0)
        afd_row_fill(lane, row, 0, c->shape->hidden);
    else if (count == 1 && c->bias[0] == 0 && c->bias[1] == 0) /* rounded by the combine already */
        afd_row_get(lane, row, (const uint8_t *)terms[0], afd_reply_bytes(c->shape));
    else
        afd_rows_sum(lane, (uint16_t *)(void *)row, terms, 0, count, c->shape->hidden);
}

AFD_STEP void afd_step_union_reduce(struct afd_lane lane, const struct afd_union_reduce_args *a)
{
    const struct afd_collect_args *c = &a->collect;
    int32_t ok = afd_block_all(lane, afd_stage_enter(lane, a->group.state, AFD_STAGE_BETWEEN));
    for (uint32_t t = lane.block; t < *c->count; t += lane.blocks) {
        if (ok)
            afd_union_reduce_row(lane, a, t);
        else /* nothing stale looks valid */
            afd_row_fill(lane, c->rows + c->rows_stride * t, AFD_BF16_NAN, c->shape->hidden);
    }
    if (afd_stage_last_block(lane, a->group.state))
        afd_stage_commit(lane, a->group.state, AFD_STAGE_IDLE, 1);
}

#endif
