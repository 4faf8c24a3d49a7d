/* SPDX-License-Identifier: Apache-2.0 */
/*
 * union_combine.h - FFN ranks sum each token's local rows and push them; Attention ranks take part.
 *
 * Waits for:   all ranks to enter, and all ranks to leave. Resident: its blocks meet behind the
 *              entry and before the exit.
 * Certifies:   by the exit barrier, that its rows are there.
 * Why that is enough: replies lie over the dispatch inbox. The entry says that every rank has read
 *              its inbox of this exchange, and what it collected in the exchange before; the exit
 *              says that no rank writes any more. An Attention rank writes nothing but its adds,
 *              and must wait all the same: it learns nowhere else that its replies are complete.
 */
#ifndef AFD_STEPS_UNION_COMBINE_H
#define AFD_STEPS_UNION_COMBINE_H

#include "steps/ffn_reply.h"
#include "steps/union_barrier.h"

struct afd_union_combine_args {
    struct afd_reply_args reply; /* the experts' rows; `source` is NULL on an Attention rank */
    struct afd_union_group group;
    const uint32_t *source_rank; /* [N] world ranks */
    const uint32_t *tokens;      /* [N * capacity] of the expansion, by q */
    uint32_t next_state;         /* the stage's, after this step */
    uint32_t exchanges;          /* that are then complete */
};

/* Rows that this rank owes. */
AFD_STEP uint32_t afd_union_owed(const struct afd_union_combine_args *a)
{
    const struct afd_source_meta *last;
    if (a->reply.source == 0)
        return 0;
    last = &a->reply.source[a->group.shape->sources - 1];
    return last->first + last->rows;
}

/* The sum of row q's pairs, to its source. */
AFD_STEP void afd_union_reply_put(struct afd_lane lane, const struct afd_union_combine_args *a,
                                  uint32_t q)
{
    const struct afd_reply_args *reply = &a->reply;
    const struct afd_union_group *g = &a->group;
    uint64_t own = (uint64_t)lane.block * g->shape->topk;
    uint32_t items = afd_route_row_items(g->shape);
    uint32_t region = reply->routes[(uint64_t)q * items + g->shape->topk];
    uint32_t s = afd_receive_source(reply->source, g->shape->sources, q);
    uint8_t *row = afd_union_at(g->window[a->source_rank[s]], g->layout, g->layout->reply, g->stage,
                                (uint64_t)region * g->shape->capacity + a->tokens[q]);
    uint32_t count = afd_reply_terms(lane, reply, q, 0);
    afd_rows_sum_put(lane, (uint16_t *)(void *)row, reply->terms + own,
                     reply->weights != 0 ? reply->term_weights + own : 0, count, g->shape->hidden);
}

AFD_STEP void afd_union_combine_body(struct afd_lane lane, const struct afd_union_combine_args *a)
{
    uint32_t rows = afd_union_owed(a);
    uint32_t first;
    if (!afd_union_enter(lane, &a->group))
        return;
    /* each rank begins with another source, or all would write to one */
    first = (uint32_t)((uint64_t)rows * a->reply.ffn / a->group.shape->ffn_ranks);
    for (uint32_t i = lane.block; i < rows; i += lane.blocks)
        afd_union_reply_put(lane, a, i < rows - first ? first + i : first + i - rows);
    (void)afd_union_leave(lane, &a->group);
}

AFD_STEP void afd_step_union_combine(struct afd_lane lane, const struct afd_union_combine_args *a)
{
    if (afd_block_all(lane, afd_stage_enter(lane, a->group.state, AFD_STAGE_OPEN)))
        afd_union_combine_body(lane, a);
    if (afd_stage_last_block(lane, a->group.state)) {
        afd_union_finish(lane, &a->group);
        afd_stage_commit(lane, a->group.state, a->next_state, a->exchanges);
    }
}

#endif
