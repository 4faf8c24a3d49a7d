/* SPDX-License-Identifier: Apache-2.0 */
/* inline.c - the executor of CPU ranks. */

#include "exec/inline.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "shared/order.h"

#define WATCH_EVERY_US 2000u
#define SLEEP_AFTER_US 20000u /* a wait this long is not about latency any more */
#define SLEEP_US 100u

uint64_t afd_clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* A wait that lasts: gives the processor away and asks the watch. looked_us is next_watch_us when
 * this block looked: another block may have asked since. Returns 0 to leave. */
static int32_t wait_longer(struct afd_inline *inl, const struct afd_lane *lane,
                           const struct afd_wait *wait, uint64_t seen, uint64_t looked_us)
{
    uint64_t now = afd_clock_us();
    if (inl->wait_start_us == 0) {
        inl->wait_start_us = now;
        inl->next_watch_us = now + WATCH_EVERY_US;
    }
    if (inl->verdict.code != 0 && inl->next_watch_us == looked_us &&
        inl->verdict_of.peer == wait->peer &&
        inl->verdict_of.kind == wait->kind) { /* the look after it was in vain as well */
        afd_trouble_report(*lane, inl->verdict.code, inl->verdict.rank, *wait, seen);
        return 0;
    }
    if (now >= inl->next_watch_us) {
        inl->verdict = inl->watch(inl->watch_context, wait, now - inl->wait_start_us);
        inl->verdict_of = *wait;
        inl->next_watch_us = now + WATCH_EVERY_US;
        return 1;
    }
    inl->yields++;
    if (now - inl->wait_start_us > SLEEP_AFTER_US) {
        struct timespec nap = {0, SLEEP_US * 1000};
        nanosleep(&nap, NULL);
    } else {
        sched_yield();
    }
    return 1;
}

static int32_t pause_inline(const struct afd_lane *lane, const struct afd_wait *wait, uint64_t seen,
                            uint64_t round)
{
    struct afd_inline *inl = lane->exec->owner;
    uint64_t looked_us = inl->next_watch_us;
    if (afd_trouble_seen(*lane))
        return 0;
    if (round == 0) { /* a new wait: the block got on */
        inl->idle = 0;
        inl->rounds = 0;
        inl->wait_start_us = 0;
        inl->verdict.code = 0;
    }
    if (inl->blocks > 1) {
        uint32_t others = afd_fibers_yield(inl->fibers);
        /* a block at a gate leaves it to one that waits for a peer, if there is one, to ask */
        if (++inl->idle < (wait->peer == AFD_WAIT_OWN_BLOCKS ? 2 * others : others))
            return 1;
        inl->idle = 0;
    }
    if (inl->rounds++ < inl->spin_rounds) {
        relax();
        return 1;
    }
    return wait_longer(inl, lane, wait, seen, looked_us);
}

int afd_inline_init(struct afd_inline *inl, uint32_t blocks, uint32_t spin_rounds,
                    afd_watch_fn watch, void *watch_context)
{
    int rc;
    memset(inl, 0, sizeof(*inl));
    rc = afd_fibers_create(AFD_BLOCKS_MAX, &inl->fibers);
    if (rc != 0)
        return rc;
    inl->exec.pause = pause_inline;
    inl->exec.trouble = &inl->trouble;
    inl->exec.owner = inl;
    inl->watch = watch;
    inl->watch_context = watch_context;
    inl->spin_rounds = spin_rounds;
    rc = afd_inline_set_blocks(inl, blocks);
    if (rc != 0)
        afd_inline_fini(inl);
    return rc;
}

void afd_inline_fini(struct afd_inline *inl)
{
    afd_fibers_destroy(inl->fibers);
    inl->fibers = NULL;
}

int afd_inline_set_blocks(struct afd_inline *inl, uint32_t blocks)
{
    if (blocks > 1) {
        int rc = afd_fibers_prepare(inl->fibers, blocks);
        if (rc != 0)
            return rc;
    }
    inl->blocks = blocks;
    return 0;
}

struct run {
    struct afd_inline *inl;
    afd_inline_step step;
    const void *args;
};

static void run_block(void *context, uint32_t index)
{
    struct run *run = context;
    struct afd_lane lane = {index, run->inl->blocks, 0, 1, &run->inl->exec};
    run->step(lane, run->args);
}

int afd_inline_run(struct afd_inline *inl, afd_inline_step step, const void *args)
{
    struct run run = {inl, step, args};
    inl->idle = 0;
    inl->rounds = 0;
    inl->wait_start_us = 0;
    inl->verdict.code = 0;
    if (inl->blocks == 1)
        run_block(&run, 0);
    else
        afd_fibers_run(inl->fibers, inl->blocks, run_block, &run);
    return inl->trouble.taken == 0;
}
