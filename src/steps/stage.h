/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h - what the steps of one stage share: its private state, how a step is entered and left.
 *
 * Waits for:   the gate waits for this step's own blocks, which must be co-resident; nothing else.
 * Certifies:   nothing to peers.
 * Why that is enough: the state is private to the rank and steps of a stage are ordered by L0;
 *              every block reads it on entry, and only the last block to finish writes it.
 */
#ifndef AFD_STEPS_STAGE_H
#define AFD_STEPS_STAGE_H

#include "shared/layout.h"
#include "shared/rows.h"

#define AFD_STAGE_IDLE 0u
#define AFD_STAGE_OPEN 1u   /* dispatched (Attention), received (FFN) */
#define AFD_STAGE_FAILED 2u /* never leaves it */

/* One per stage, in memory of the rank's executor: replays of a graph count epochs here. */
struct afd_stage_state {
    uint64_t epoch; /* the last complete exchange; the running one is epoch + 1 */
    uint64_t gate;  /* arrivals at gates, cumulative */
    uint64_t gate_base;
    uint64_t done; /* blocks that finished steps, cumulative */
    uint64_t done_base;
    uint32_t state;
    uint32_t reserved;
};

#define AFD_CODE_STATE (-3)    /* AFD_ESTATE */
#define AFD_CODE_CAPACITY (-5) /* AFD_ECAPACITY */
#define AFD_CODE_ROUTE (-6)    /* AFD_EROUTE */
#define AFD_CODE_INVALID (-1)  /* AFD_EINVAL */
#define AFD_CODE_PROTO (-13)   /* AFD_EPROTO */

/* 1 if the stage is in `state`; otherwise the call is out of order, and it says so. A trouble of
 * this step's other blocks keeps no block out: it may owe its peers a fault, or its rows
 * a NaN. */
AFD_STEP int32_t afd_stage_enter(struct afd_lane lane, const struct afd_stage_state *stage,
                                 uint32_t state)
{
    if (stage->state == state)
        return 1;
    afd_trouble_report(lane, AFD_CODE_STATE, AFD_WAIT_OWN_BLOCKS,
                       afd_wait_for(AFD_WORD_STATE, AFD_WAIT_OWN_BLOCKS, state), stage->state);
    return 0;
}

/* The `number`-th gate (1, 2, ...) of a resident step: every block passes after all have
 * arrived, and sees what they wrote before it. 0: leave the step. */
AFD_STEP int32_t afd_stage_gate(struct afd_lane lane, struct afd_stage_state *stage,
                                uint32_t number)
{
    uint64_t all = stage->gate_base + (uint64_t)number * lane.blocks;
    int32_t ok = 1;
    if (AFD_MUTANT(gate_skipped))
        all = 0;
    if (AFD_MUTANT(gate_relaxed))
        all -= 1;
    if (lane.blocks == 1) {
        afd_block_sync(lane);
        if (lane.thread == 0)
            stage->gate += 1;
        return 1;
    }
    afd_block_sync(lane);
    if (lane.thread == 0) {
        (void)afd_word_add(&stage->gate, 1); /* pairs with the wait below in the other blocks */
        ok = afd_wait_word(lane, &stage->gate,
                           afd_wait_for(AFD_WORD_BLOCKS, AFD_WAIT_OWN_BLOCKS, all));
    }
    return afd_block_all(lane, ok);
}

/* Called once by every block as its last act. Nonzero in all threads of the block that came
 * last: it sees what all blocks wrote, and it alone may change the stage's state. */
AFD_STEP int32_t afd_stage_last_block(struct afd_lane lane, struct afd_stage_state *stage)
{
    uint32_t last = 0;
    afd_block_sync(lane);
    if (lane.thread == 0)
        last = afd_word_add(&stage->done, 1) + 1 ==
               stage->done_base + (AFD_MUTANT(commit_by_first_block) ? 1u : lane.blocks);
    return (int32_t)afd_block_or(lane, last);
}

/* The last block's commit: the stage enters `state`; `exchanges` is 1 if an exchange is
 * complete. */
AFD_STEP void afd_stage_commit(struct afd_lane lane, struct afd_stage_state *stage, uint32_t state,
                               uint32_t exchanges)
{
    if (lane.thread != 0)
        return;
    stage->gate_base = stage->gate;
    stage->done_base = stage->done;
    stage->state = afd_trouble_seen(lane) ? AFD_STAGE_FAILED : state;
    if (stage->state != AFD_STAGE_FAILED)
        stage->epoch += exchanges;
}

#endif
