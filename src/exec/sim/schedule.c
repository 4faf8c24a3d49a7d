/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.c - who moves next: a block to its next access, or a store that arrives.
 *
 * Everything follows from the seed. A block that waits sleeps until the word it looked at changes;
 * when nobody can move, the job is deadlocked, or a deadline of a job with a fault has come.
 */
#include "exec/sim/state.h"

#include <stdarg.h>
#include <string.h>

#include "error.h"
#include "exec/sim/hooks.h"
#include "shared/order.h"

#define ACCESSES_MAX 200000000ull

uint64_t afd_sim_random(struct afd_sim *sim)
{
    uint64_t x = sim->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    sim->random = x;
    return x * 0x2545f4914f6cdd1dull;
}

void afd_sim_found(struct afd_sim *sim, uint32_t oracle, const char *format, ...)
{
    va_list args;
    if (sim->report->oracle != AFD_ORACLE_NONE)
        return;
    sim->report->oracle = oracle;
    sim->stopping = 1;
    va_start(args, format);
    vsnprintf(sim->report->text, sizeof(sim->report->text), format, args);
    va_end(args);
}

/* ---------------------------------------------------------------------------------------- lists */

void afd_sim_ready(struct afd_sim *sim, struct afd_sim_block *b)
{
    if (b->state == AFD_SIM_READY)
        return;
    b->state = AFD_SIM_READY;
    sim->ready_at[b->id] = sim->ready_count;
    sim->ready[sim->ready_count++] = b->id;
}

static void unready(struct afd_sim *sim, struct afd_sim_block *b, uint32_t state)
{
    uint32_t at = sim->ready_at[b->id];
    uint32_t moved = sim->ready[--sim->ready_count];
    AFD_ASSERT(b->state == AFD_SIM_READY);
    b->state = state;
    sim->ready[at] = moved;
    sim->ready_at[moved] = at;
}

void afd_sim_full(struct afd_sim *sim, struct afd_sim_block *b, int is_full)
{
    uint32_t at = sim->full_at[b->id];
    if (is_full == (at != UINT32_MAX))
        return;
    if (is_full) {
        sim->full_at[b->id] = sim->full_count;
        sim->full[sim->full_count++] = b->id;
        return;
    }
    uint32_t moved = sim->full[--sim->full_count];
    sim->full[at] = moved;
    sim->full_at[moved] = at;
    sim->full_at[b->id] = UINT32_MAX;
}

/* ----------------------------------------------------------------------------------------- mode */

void afd_sim_mode_draw(struct afd_sim *sim)
{
    static const uint32_t weights[] = {1, 4, 16, 32, 60};
    static const uint32_t quanta[] = {1, 3, 8, 32, 200};
    struct afd_sim_mode *mode = &sim->mode;
    mode->hunt = sim->options.hunt;
    if (mode->hunt == AFD_HUNT_MIX)
        mode->hunt = 1 + afd_sim_below(sim, AFD_HUNT_COUNT - 1);
    mode->victim_rank = afd_sim_below(sim, sim->world);
    mode->victim_block = mode->victim_rank * sim->blocks_each +
                         afd_sim_below(sim, sim->options.blocks != 0 ? sim->blocks_each : 2);
    if (mode->victim_block >= sim->block_count)
        mode->victim_block = sim->block_count - 1;
    mode->drain_weight = weights[afd_sim_below(sim, 5)];
    mode->quantum = quanta[afd_sim_below(sim, 5)];
    mode->changes = 1 + afd_sim_below(sim, 8);
    mode->change_at = afd_sim_below(sim, 500);
    for (uint32_t i = 0; i < sim->block_count; i++) {
        sim->block[i].priority = 16 + afd_sim_below(sim, 1u << 16);
        sim->block[i].drain_priority = 16 + afd_sim_below(sim, 1u << 16);
    }
}

/* Held back by the hunt or a fault while others can move. */
static int held_back(struct afd_sim *sim, const struct afd_sim_block *b)
{
    if (sim->rank[b->rank].stalled)
        return 1;
    switch (sim->mode.hunt) {
    case AFD_HUNT_STARVE:
        return b->id == sim->mode.victim_block && afd_sim_below(sim, 64) != 0;
    case AFD_HUNT_FREEZE:
        return b->rank == sim->mode.victim_rank;
    default:
        return 0;
    }
}

/* --------------------------------------------------------------------------------------- faults */

static void strike(struct afd_sim *sim)
{
    struct afd_sim_rank *rank = &sim->rank[sim->fault_rank];
    if (rank->ended)
        return;
    switch (sim->options.fault) {
    case AFD_SIM_FAULT_DIE:
        rank->dead = 1;
        rank->ended = 1;
        for (uint32_t i = 0; i < sim->blocks_each; i++) {
            struct afd_sim_block *b = afd_sim_block_of(sim, rank, i);
            afd_sim_drop(sim, b);
            if (b->state == AFD_SIM_ASLEEP)
                afd_sim_ready(sim, b);
        }
        break;
    case AFD_SIM_FAULT_STALL:
        rank->stalled = 1;
        break;
    case AFD_SIM_FAULT_ABORT:
        rank->verdict = AFD_EABORTED;
        rank->verdict_rank = rank->rank;
        for (uint32_t i = 0; i < sim->blocks_each; i++)
            if (afd_sim_block_of(sim, rank, i)->state == AFD_SIM_ASLEEP)
                afd_sim_ready(sim, afd_sim_block_of(sim, rank, i));
        break;
    default:
        break;
    }
}

/* ------------------------------------------------------------------------------ access and wait */

int afd_sim_point(struct afd_sim *sim, int visible)
{
    struct afd_sim_block *b = sim->current;
    if (b->look_hit)
        afd_sim_look_commit(sim, b);
    if (sim->stopping)
        return 1;
    if (++sim->accesses == sim->fault_at)
        strike(sim);
    if (sim->accesses > ACCESSES_MAX)
        afd_sim_found(sim, AFD_ORACLE_LIVELOCK, "%llu accesses, and no end",
                      (unsigned long long)sim->accesses);
    if (sim->script != NULL && !visible)
        return 0;
    if (--sim->quantum == 0)
        (void)afd_fibers_yield(sim->fibers);
    return sim->stopping != 0 || sim->rank[b->rank].dead != 0;
}

static void sleep_here(struct afd_sim *sim, struct afd_sim_block *b)
{
    if (b->look != 0)
        for (uint64_t c = (b->look - 1) / AFD_SIM_CELL, i = 0; i < 4; i++)
            sim->cell[c + i].awaited = 1;
    unready(sim, b, AFD_SIM_ASLEEP);
    (void)afd_fibers_yield(sim->fibers);
}

int32_t afd_sim_pause(const struct afd_lane *lane, const struct afd_wait *wait, uint64_t seen,
                      uint64_t round)
{
    struct afd_sim_rank *rank = lane->exec->owner;
    struct afd_sim *sim = rank->sim;
    struct afd_sim_block *b = sim->current;
    b->look_hit = 0;
    if (round == 0)
        b->warned = 0;
    if (sim->stopping || rank->dead || afd_trouble_seen(*lane))
        return 0;
    if (rank->verdict != 0 && (sim->options.fault != AFD_SIM_FAULT_ROUTE || sim->fault_told)) {
        if (b->warned++ == 0)
            return 1; /* looks once more */
        afd_trouble_report(*lane, rank->verdict, rank->verdict_rank, *wait, seen);
        return 0;
    }
    b->wait = *wait;
    b->seen = seen;
    sleep_here(sim, b);
    return !(sim->stopping || rank->dead);
}

/* --------------------------------------------------------------------------------- nobody moves */

static void say_deadlock(struct afd_sim *sim)
{
    static const char *const kinds[] = {"nothing",    "header",       "routes word",  "credit",
                                        "slot",       "reply header", "reply credit", "reply slot",
                                        "own blocks", "state"};
    char text[900] = "nobody can move:";
    size_t used = strlen(text);
    for (uint32_t i = 0; i < sim->block_count && used < sizeof(text) - 1; i++) {
        const struct afd_sim_block *b = &sim->block[i];
        int n;
        if (b->state != AFD_SIM_ASLEEP)
            continue;
        n = snprintf(text + used, sizeof(text) - used,
                     "\n    %s waits for %s of rank %d, %llu, and sees %llu", afd_sim_where(sim, i),
                     b->wait.kind < 10 ? kinds[b->wait.kind] : "a word", (int)b->wait.peer,
                     (unsigned long long)b->wait.expected, (unsigned long long)b->seen);
        used += n > 0 ? (size_t)n : 0;
    }
    afd_sim_found(sim, AFD_ORACLE_DEADLOCK, "%s", text);
}

static int wake_rank(struct afd_sim *sim, struct afd_sim_rank *rank)
{
    int woken = 0;
    for (uint32_t i = 0; i < sim->blocks_each; i++) {
        struct afd_sim_block *b = afd_sim_block_of(sim, rank, i);
        if (b->state != AFD_SIM_ASLEEP)
            continue;
        afd_sim_ready(sim, b);
        woken = 1;
    }
    return woken;
}

/* A source with an illegal route tells every FFN rank itself: nobody needs to be told by its
 * host. */
static int route_is_told(struct afd_sim *sim)
{
    uint32_t woken = 0;
    for (uint32_t i = 0; i < sim->block_count && sim->fault_told == 0; i++) {
        const struct afd_sim_block *b = &sim->block[i];
        if (b->state == AFD_SIM_ASLEEP && sim->rank[b->rank].role == AFD_ROLE_FFN &&
            b->wait.peer == sim->fault_rank && sim->rank[sim->fault_rank].code == AFD_EROUTE)
            afd_sim_found(sim, AFD_ORACLE_CODE, "%s waits for a source that had a fault to tell",
                          afd_sim_where(sim, i));
    }
    if (sim->fault_told)
        return 0;
    sim->fault_told = 1;
    for (uint32_t r = 0; r < sim->world; r++)
        if (sim->rank[r].verdict != 0)
            woken += (uint32_t)wake_rank(sim, &sim->rank[r]);
    return woken != 0;
}

/* Time jumps to the first deadline. 0: there is none that would change anything. */
static int expire(struct afd_sim *sim)
{
    struct afd_sim_rank *hit = &sim->rank[sim->fault_rank];
    uint32_t first = afd_sim_below(sim, sim->world);
    if (sim->options.fault == AFD_SIM_FAULT_ROUTE)
        return route_is_told(sim);
    if (!hit->dead && !hit->stalled)
        return 0;
    for (uint32_t i = 0; i < sim->world; i++) {
        struct afd_sim_rank *rank = &sim->rank[(first + i) % sim->world];
        if (rank->verdict != 0 || rank->stalled || !wake_rank(sim, rank))
            continue;
        rank->verdict = AFD_EPEER;
        rank->verdict_rank = hit->rank;
        return 1;
    }
    if (!hit->stalled)
        return 0;
    hit->stalled = 0;
    return 1;
}

/* ---------------------------------------------------------------------------------------- moves */

static void run(struct afd_sim *sim, struct afd_sim_block *b)
{
    struct afd_sim_rank *rank = &sim->rank[b->rank];
    sim->current = b;
    sim->digest = (sim->digest ^ (b->id + 1)) * 0x9e3779b97f4a7c15ull;
    if (afd_fibers_resume(sim->fibers, b->id))
        return;
    afd_sim_look_commit(sim, b);
    unready(sim, b, AFD_SIM_IDLE);
    if (sim->trace != NULL)
        afd_sim_trace_step(sim, b, 0);
    if (rank->trouble.taken)
        wake_rank(sim, rank); /* its other blocks leave too */
    if (--rank->running == 0)
        afd_sim_rank_done(sim, rank);
}

static int move_block(struct afd_sim *sim, int lazy)
{
    uint32_t start = sim->ready_count == 0 ? 0 : afd_sim_below(sim, sim->ready_count);
    for (uint32_t i = 0; i < sim->ready_count; i++) {
        struct afd_sim_block *b = &sim->block[sim->ready[(start + i) % sim->ready_count]];
        if (lazy ? sim->rank[b->rank].stalled : (uint32_t)held_back(sim, b))
            continue;
        sim->quantum = 1 + afd_sim_below(sim, sim->mode.quantum);
        run(sim, b);
        return 1;
    }
    return 0;
}

static int move_store(struct afd_sim *sim, int lazy)
{
    uint32_t start = sim->full_count == 0 ? 0 : afd_sim_below(sim, sim->full_count);
    for (uint32_t i = 0; i < sim->full_count; i++) {
        struct afd_sim_block *b = &sim->block[sim->full[(start + i) % sim->full_count]];
        if (afd_sim_drain(sim, b, afd_sim_below(sim, 1u << 16), lazy))
            return 1;
    }
    return 0;
}

/* PCT: whoever has the highest priority moves, be it a block or a store buffer. */
static int move_priority(struct afd_sim *sim)
{
    struct afd_sim_block *best = NULL;
    uint32_t best_priority = 0;
    int drains = 0;
    for (uint32_t i = 0; i < sim->ready_count; i++) {
        struct afd_sim_block *b = &sim->block[sim->ready[i]];
        if (b->priority > best_priority && !sim->rank[b->rank].stalled) {
            best = b;
            best_priority = b->priority;
        }
    }
    for (uint32_t i = 0; i < sim->full_count; i++) {
        struct afd_sim_block *b = &sim->block[sim->full[i]];
        if (b->drain_priority > best_priority) {
            best = b;
            best_priority = b->drain_priority;
            drains = 1;
        }
    }
    if (best == NULL)
        return 0;
    if (sim->mode.changes != 0 && sim->accesses >= sim->mode.change_at) {
        uint32_t *priority = drains ? &best->drain_priority : &best->priority;
        *priority = sim->mode.changes--;
        sim->mode.change_at = sim->accesses + afd_sim_below(sim, 2000);
    }
    if (drains)
        return afd_sim_drain(sim, best, afd_sim_below(sim, 1u << 16), 0) || move_store(sim, 1);
    sim->quantum = 8;
    run(sim, best);
    return 1;
}

static int move(struct afd_sim *sim)
{
    int stores_first = afd_sim_below(sim, 64) < sim->mode.drain_weight;
    if (sim->script != NULL)
        return afd_sim_script_move(sim);
    if (sim->mode.hunt == AFD_HUNT_PCT)
        return move_priority(sim);
    if (stores_first && move_store(sim, 0))
        return 1;
    if (move_block(sim, 0) || (!stores_first && move_store(sim, 0)))
        return 1;
    return move_store(sim, 1) || move_block(sim, 1);
}

static int anybody_asleep(const struct afd_sim *sim)
{
    for (uint32_t i = 0; i < sim->block_count; i++)
        if (sim->block[i].state == AFD_SIM_ASLEEP ||
            (sim->block[i].state == AFD_SIM_READY && sim->rank[sim->block[i].rank].stalled))
            return 1;
    return 0;
}

/* After a finding every block leaves its step. */
static void stop(struct afd_sim *sim)
{
    for (uint32_t i = 0; i < sim->block_count; i++) {
        struct afd_sim_block *b = &sim->block[i];
        if (b->state == AFD_SIM_ASLEEP)
            afd_sim_ready(sim, b);
        while (b->state == AFD_SIM_READY) {
            sim->quantum = UINT32_MAX;
            run(sim, b);
        }
    }
}

void afd_sim_run_block(struct afd_sim *sim, struct afd_sim_block *b, uint32_t quantum)
{
    sim->quantum = quantum;
    run(sim, b);
}

void afd_sim_schedule(struct afd_sim *sim)
{
    while (!sim->stopping) {
        if (move(sim))
            continue;
        if (!anybody_asleep(sim))
            break;
        if (!expire(sim) && !sim->stopping)
            say_deadlock(sim);
    }
    if (sim->stopping)
        stop(sim);
}
