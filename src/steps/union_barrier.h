/* SPDX-License-Identifier: Apache-2.0 */
/*
 * union_barrier.h - all ranks of protocol union meet: at the entry and at the exit of a phase.
 *
 * Waits for:   this rank's barrier word to hold an add of every rank, itself included, for every
 *              round so far; the gates wait for this step's own blocks.
 * Certifies:   to every rank, that this rank has come here: all its blocks at an exit, and at an
 *              entry everything that its earlier steps did (L0).
 * Why that is enough: nobody adds for round r + 1 before it passed round r, so R * r is reached
 *              only by R adds of each round. An add releases what the rank did before it; at an
 *              exit the gate has collected the other blocks. Rounds are counted, so nothing is ever
 *              reset.
 */
#ifndef AFD_STEPS_UNION_BARRIER_H
#define AFD_STEPS_UNION_BARRIER_H

#include "shared/union_layout.h"
#include "steps/stage.h"

/* Between the two steps of one call: arrived and not yet expanded, combined and not yet reduced. */
#define AFD_STAGE_BETWEEN 3u

#define AFD_UNION_ENTRY 1u /* number of the barrier within its step, and of the gate beside it */
#define AFD_UNION_EXIT 2u

/* What every step of union knows. */
struct afd_union_group {
    const struct afd_shape *shape;
    const struct afd_union_layout *layout;
    uint8_t *const *window; /* [R] by world rank, as this rank sees them */
    struct afd_stage_state *state;
    uint64_t *rounds; /* private: barriers of the steps that are complete */
    uint32_t stage;
    uint32_t rank; /* world rank of this one */
};

AFD_STEP uint64_t *afd_union_barrier_word(const struct afd_union_group *g, uint32_t r)
{
    return (uint64_t *)(void *)afd_union_at(g->window[r], g->layout, g->layout->barrier, g->stage,
                                            0);
}

/* By one block. 0: leave the step. */
AFD_STEP int32_t afd_union_barrier(struct afd_lane lane, const struct afd_union_group *g,
                                   uint32_t number)
{
    uint64_t all = (*g->rounds + number) * g->shape->world;
    int32_t ok = 1;
    afd_block_sync(lane);
    for (uint32_t i = lane.thread; i < g->shape->world; i += lane.threads) /* another first each */
        afd_peer_add(lane, afd_union_barrier_word(g, (g->rank + i) % g->shape->world), 1);
    if (lane.thread == 0) /* pairs with the adds above at every rank */
        ok = afd_wait_word(lane, afd_union_barrier_word(g, g->rank),
                           afd_wait_for(AFD_WORD_BARRIER, AFD_WAIT_ALL_RANKS, all));
    return afd_block_all(lane, ok);
}

/* All ranks have come to this phase: what they read in the one before is done with. */
AFD_STEP int32_t afd_union_enter(struct afd_lane lane, const struct afd_union_group *g)
{
    if (lane.block == 0 && !afd_union_barrier(lane, g, AFD_UNION_ENTRY))
        return 0;
    return afd_stage_gate(lane, g->state, AFD_UNION_ENTRY);
}

/* All blocks of all ranks have sent: what they wrote here is there. */
AFD_STEP int32_t afd_union_leave(struct afd_lane lane, const struct afd_union_group *g)
{
    if (!afd_stage_gate(lane, g->state, AFD_UNION_EXIT))
        return 0;
    return lane.block != 0 || afd_union_barrier(lane, g, AFD_UNION_EXIT);
}

/* The last block: both barriers of the step are passed. */
AFD_STEP void afd_union_finish(struct afd_lane lane, const struct afd_union_group *g)
{
    if (lane.thread == 0 && !afd_trouble_seen(lane))
        *g->rounds += AFD_UNION_EXIT;
}

#endif
