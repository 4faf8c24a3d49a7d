/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inline.h - the executor of CPU ranks: a step runs in the calling thread, its blocks as fibers.
 *
 * A wait spins, then yields to the operating system, then sleeps shortly; from the first yield on
 * it consults the watch from time to time, which knows about dead peers, faults, aborts and
 * deadlines.
 */
#ifndef AFD_EXEC_INLINE_H
#define AFD_EXEC_INLINE_H

#include "afd/afd.h"
#include "exec/fiber.h"
#include "shared/lane.h"

/* What a watch found. */
struct afd_verdict {
    int32_t code; /* AFD_E*, 0: nothing, go on waiting */
    uint32_t rank;
};

/* Asked while a wait lasts; waited_us is how long. A verdict must be final: the wait looks once
 * more, then leaves. */
typedef struct afd_verdict (*afd_watch_fn)(void *context, const struct afd_wait *wait,
                                           uint64_t waited_us);

struct afd_inline {
    struct afd_exec exec;
    struct afd_trouble trouble;
    struct afd_fibers *fibers;
    afd_watch_fn watch;
    void *watch_context;
    uint32_t spin_rounds; /* looks before the first yield */
    /* of the running step */
    uint32_t blocks;
    uint32_t idle; /* fibers that looked in vain since one of them began a new wait */
    uint64_t rounds;
    uint64_t wait_start_us; /* 0: not yet yielding */
    uint64_t next_watch_us;
    struct afd_verdict verdict; /* found while `verdict_of` was unsatisfied */
    struct afd_wait verdict_of;
    uint64_t yields; /* how often waits gave the processor away, for statistics */
};

typedef void (*afd_inline_step)(struct afd_lane lane, const void *args);

int afd_inline_init(struct afd_inline *inl, uint32_t blocks, uint32_t spin_rounds,
                    afd_watch_fn watch, void *watch_context);
void afd_inline_fini(struct afd_inline *inl);
/* Prepares for `blocks` blocks; not between a step's start and end. */
int afd_inline_set_blocks(struct afd_inline *inl, uint32_t blocks);
/* Runs all blocks of a step. 1 if it completed, 0 if inl->trouble says why not. */
int afd_inline_run(struct afd_inline *inl, afd_inline_step step, const void *args);

uint64_t afd_clock_us(void);

#endif
