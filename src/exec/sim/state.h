/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.h - what the files of the simulator share.
 *
 *     memory.c    the primitives, store buffers, what becomes visible when
 *     race.c      clocks, and the checks of every access against them
 *     schedule.c  who moves next; waits, deadlocks, deadlines
 *     rank.c      a rank's program: exchanges, steps, checks of their results
 *     truth.c     inputs, and what every exchange must give
 *     steps.c     the steps themselves, compiled with AFD_SIM, and their arguments
 *
 * Two kinds of order between blocks are kept apart. A clock (`now`) counts accesses whose stores
 * are released and acquired: what makes plain bytes readable. A witness counts steps of a rank
 * whose reads are known to be complete: an LL word carries it, because it is stored by a later
 * step, but no store on its way. Both take effect on other blocks of the reader when its step ends
 * [R-01].
 */
#ifndef AFD_EXEC_SIM_STATE_H
#define AFD_EXEC_SIM_STATE_H

#include "exec/fiber.h"
#include "exec/sim/sim.h"
#include "exec/sim/truth.h"
#include "control.h"
#include "plan.h"
#include "shared/lane.h"

#define AFD_SIM_CELL 4u         /* bytes of a window that one shadow cell stands for */
#define AFD_SIM_STORE_BYTES 64u /* largest piece of a row that arrives at once */

enum afd_sim_kind { AFD_SIM_PLAIN = 1, AFD_SIM_LL, AFD_SIM_RELEASE, AFD_SIM_ADD };

/* Shadow of 4 bytes of a window. Sequence numbers count from 1; 0 means never. */
struct afd_sim_cell {
    uint32_t w_seq; /* last store issued, by block w_block */
    uint16_t w_block;
    uint8_t w_kind;
    uint8_t awaited; /* a block sleeps until this changes */
    uint32_t r_seq;  /* last read since that store, in step r_step of its rank */
    uint16_t r_block;
    uint16_t r_step;
    uint32_t o_seq; /* last one by another block */
    uint16_t o_block;
    uint16_t pending; /* stores on their way */
    uint32_t v_seq;   /* store that is visible */
    uint16_t v_block;
    uint16_t v_step;
};

/* A store on its way. */
struct afd_sim_store {
    uint64_t at; /* in the arena */
    uint32_t seq;
    uint32_t clock; /* release, add: index of the clock it carries */
    uint16_t bytes;
    uint16_t step;
    uint8_t kind;
    uint8_t done;
    uint8_t data[AFD_SIM_STORE_BYTES];
};

/* A 64-bit word that some block has released or added to. */
struct afd_sim_word {
    const void *place;
    uint64_t value;  /* highest issued by a release */
    uint32_t writer; /* rank + 1 */
    uint32_t clock;
};

enum afd_sim_run_state { AFD_SIM_IDLE, AFD_SIM_READY, AFD_SIM_ASLEEP };

struct afd_sim_block {
    uint32_t rank;
    uint32_t index;    /* within the rank */
    uint32_t id;       /* over all ranks */
    uint32_t state;    /* enum afd_sim_run_state */
    uint32_t seq;      /* accesses issued */
    uint32_t step_seq; /* at the begin of its step */
    uint32_t priority;
    uint32_t drain_priority;
    uint32_t *now; /* [block_count] */
    struct afd_sim_store *store;
    uint32_t head; /* oldest store on its way */
    uint32_t tail;
    uint32_t room;
    uint64_t look;     /* last LL word looked at, or word acquired: arena offset + 1; 0: none */
    uint32_t look_hit; /* it may be consumed: an LL word whose reader has not paused since */
    uint32_t warned;   /* it has looked once more after a verdict */
    struct afd_wait wait;
    uint64_t seen;
};

struct afd_sim_rank;
typedef void (*afd_sim_step)(struct afd_lane lane, struct afd_sim_rank *rank);

/* One act of a rank's program. */
struct afd_sim_act {
    uint8_t phase; /* enum afd_phase, or one of these */
    uint8_t stage;
    uint16_t exchange;
};
#define AFD_SIM_ACT_EXPERTS 10u /* the caller reads the batch */
#define AFD_SIM_ACT_LOOK 11u    /* the caller reads what it collected */

struct afd_sim_args; /* steps.c */

struct afd_sim_rank {
    struct afd_sim *sim;
    uint32_t rank;
    uint32_t index; /* s or f */
    uint32_t role;
    struct afd_plan plan;
    uint8_t *window; /* in the arena */
    uint8_t *private_memory;
    struct afd_exec exec;
    struct afd_trouble trouble;
    struct afd_sim_args *args;
    /* program */
    struct afd_sim_act *act;
    uint32_t act_count;
    uint32_t act_next;
    uint32_t blocks;  /* of the running step */
    uint32_t running; /* blocks that have not left it */
    afd_sim_step step;
    uint32_t steps; /* complete */
    /* fault */
    uint32_t dead;
    uint32_t stalled;
    int32_t code;    /* it ended with this */
    int32_t verdict; /* what waits of this rank are told: a peer's fault, a deadline, an abort */
    uint32_t verdict_rank;
    uint32_t ended;
    /* witness */
    uint32_t *witness; /* [world] steps of each rank whose reads are known to be complete */
    uint32_t *heard;   /* the same, from the end of the running step on */
    uint32_t *history; /* [steps][world] witness at each step's begin */
    uint32_t history_room;
    /* this exchange's options */
    uint16_t *out; /* collected rows [stages][capacity][hidden] */
    uint64_t view_stride;
    uint8_t *view[AFD_STAGES_MAX];
    uint32_t variant[AFD_STAGES_MAX];
};

struct afd_sim_mode {
    uint32_t hunt;
    uint32_t victim_block;
    uint32_t victim_rank;
    uint32_t drain_weight; /* of 64: how often a store arrives where a block could run */
    uint32_t quantum;      /* longest run of accesses */
    uint32_t changes;      /* PCT: priority changes left */
    uint64_t change_at;
};

struct afd_sim {
    struct afd_sim_options options;
    uint32_t world;
    uint32_t block_count;
    uint32_t blocks_each;
    struct afd_sim_rank *rank;
    struct afd_sim_block *block;
    struct afd_fibers *fibers;
    uint8_t *arena;
    uint64_t arena_bytes;
    uint16_t *page_rank;
    struct afd_sim_cell *cell;
    uint8_t **ffn_window;
    uint8_t **source_window;
    uint32_t *ffn_rank;
    uint32_t *source_rank;
    uint16_t *expert_ffn;
    uint16_t *expert_local;
    struct afd_sim_truth *truth;
    /* words and their clocks */
    struct afd_sim_word *word;
    uint32_t word_room; /* a power of two */
    uint32_t word_count;
    uint32_t *clock; /* [clock_room][block_count] */
    uint32_t clock_room;
    uint32_t clock_used;
    uint32_t *clock_free;
    uint32_t clock_free_count;
    /* scheduling */
    struct afd_sim_block *current;
    uint32_t *ready; /* block ids */
    uint32_t *ready_at;
    uint32_t ready_count;
    uint32_t *full; /* ids of blocks with stores on their way */
    uint32_t *full_at;
    uint32_t full_count;
    struct afd_sim_mode mode;
    uint64_t random;
    uint64_t accesses;
    uint64_t digest;
    uint32_t quantum;
    uint32_t stopping; /* everybody leaves: a finding */
    /* fault of this schedule */
    uint32_t fault_rank;
    uint64_t fault_at;    /* access number */
    uint32_t fault_told;  /* ROUTE: waits may look at what peers published */
    uint32_t fault_epoch; /* ROUTE: the exchange */
    struct afd_sim_report *report;
    struct afd_sim_script *script; /* exhaustive mode */
    struct afd_sim_trace *trace;
};

extern _Thread_local struct afd_sim *afd_sim_now;

/* --------------------------------------------------------------------------------- small things */

uint64_t afd_sim_random(struct afd_sim *sim);
static inline uint32_t afd_sim_below(struct afd_sim *sim, uint32_t limit)
{
    return (uint32_t)((afd_sim_random(sim) >> 32) * limit >> 32);
}

/* Arena offset of an address, UINT64_MAX if it is no window's. */
static inline uint64_t afd_sim_offset(const struct afd_sim *sim, const void *place)
{
    uint64_t at = (uint64_t)((uintptr_t)place - (uintptr_t)sim->arena);
    return at < sim->arena_bytes ? at : UINT64_MAX;
}

static inline uint32_t afd_sim_owner(const struct afd_sim *sim, uint64_t at)
{
    return sim->page_rank[at / AFD_PAGE];
}

static inline uint32_t *afd_sim_clock(struct afd_sim *sim, uint32_t index)
{
    return sim->clock + (uint64_t)index * sim->block_count;
}

/* The first finding of a schedule stays, and everybody leaves. */
void afd_sim_found(struct afd_sim *sim, uint32_t oracle, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "rank 2 (source 0), collect, stage 0, exchange 3, block 1" */
const char *afd_sim_where(const struct afd_sim *sim, uint32_t block);
/* "inbox row 3 of rank 0 + 16" */
const char *afd_sim_place_name(const struct afd_sim *sim, uint64_t at);

/* ------------------------------------------------------------------------------------- memory.c */

/* One store of block b arrives: `pick` chooses among them. 0: none may yet. */
int afd_sim_drain(struct afd_sim *sim, struct afd_sim_block *b, uint32_t pick, int lazy);
/* The i-th store of block b's buffer arrives now. */
void afd_sim_arrive(struct afd_sim *sim, struct afd_sim_block *b, uint32_t i);
int afd_sim_may_arrive(const struct afd_sim *sim, const struct afd_sim_block *b, uint32_t i);
/* At the end of a step: the rank's stores to its own window arrive. */
void afd_sim_flush_own(struct afd_sim *sim, struct afd_sim_block *b);
/* A dead rank's stores never arrive. */
void afd_sim_drop(struct afd_sim *sim, struct afd_sim_block *b);
/* A read that may turn out to be consumed, is. */
void afd_sim_look_commit(struct afd_sim *sim, struct afd_sim_block *b);

/* --------------------------------------------------------------------------------------- race.c */

void afd_sim_race_store(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at, uint64_t bytes,
                        uint32_t kind);
void afd_sim_race_load(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at, uint64_t bytes);
void afd_sim_race_ll(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at);
struct afd_sim_word *afd_sim_word_of(struct afd_sim *sim, const void *place);
uint32_t afd_sim_clock_take(struct afd_sim *sim, const uint32_t *from);
void afd_sim_clock_give(struct afd_sim *sim, uint32_t index);
void afd_sim_clock_join(struct afd_sim *sim, uint32_t *into, const uint32_t *from);
/* The end of a step: what one block knows, all know. */
void afd_sim_step_joins(struct afd_sim *sim, struct afd_sim_rank *rank);

/* ----------------------------------------------------------------------------------- schedule.c */

/* Every access begins here: others may move first. Nonzero: the block's rank is dead or leaving.
 * A store that is only issued is not `visible`: nothing is gained by moving others right before
 * it. */
int afd_sim_point(struct afd_sim *sim, int visible);
void afd_sim_ready(struct afd_sim *sim, struct afd_sim_block *b);
void afd_sim_full(struct afd_sim *sim, struct afd_sim_block *b, int is_full);
void afd_sim_schedule(struct afd_sim *sim);
int32_t afd_sim_pause(const struct afd_lane *lane, const struct afd_wait *wait, uint64_t seen,
                      uint64_t round);
void afd_sim_mode_draw(struct afd_sim *sim);
/* Lets a block go on for `quantum` accesses. */
void afd_sim_run_block(struct afd_sim *sim, struct afd_sim_block *b, uint32_t quantum);

/* --------------------------------------------------------------------------------------- rank.c */

/* The next act of a rank, if it has one. */
void afd_sim_rank_go(struct afd_sim *sim, struct afd_sim_rank *rank);
void afd_sim_rank_reset(struct afd_sim *sim, struct afd_sim_rank *rank);
/* All blocks have left the step. */
void afd_sim_rank_done(struct afd_sim *sim, struct afd_sim_rank *rank);
/* The whole job is over: did everybody end as it should? */
void afd_sim_ranks_check(struct afd_sim *sim);
/* The rank ends with `code`; its peers are told. */
void afd_sim_rank_fail(struct afd_sim *sim, struct afd_sim_rank *rank, int32_t code,
                       uint32_t blame);
static inline struct afd_sim_block *afd_sim_block_of(struct afd_sim *sim,
                                                     const struct afd_sim_rank *rank, uint32_t i)
{
    return &sim->block[rank->rank * sim->blocks_each + i];
}
static inline void *afd_sim_private(const struct afd_sim_rank *rank, enum afd_private kind,
                                    uint32_t stage)
{
    uint64_t shift = kind < AFD_PRIVATE_PER_STAGE ? rank->plan.private_stage_stride * stage : 0;
    return rank->private_memory + rank->plan.private_offset[kind] + shift;
}

/* -------------------------------------------------------------------------------------- steps.c */

/* A protocol: its steps, with their arguments filled for an act. Adding one is adding a row. */
struct afd_sim_protocol {
    uint32_t protocol; /* enum afd_protocol */
    void (*fill)(struct afd_sim_rank *rank, struct afd_sim_act act);
    /* The earliest moment at which peers may write, before dispatch and reply:
     * what is consumed becomes junk, so that a late reader sees it. NULL: not done. */
    void (*poison)(struct afd_sim_rank *rank, uint32_t stage);
    afd_sim_step step[5]; /* by enum afd_phase */
};
const struct afd_sim_protocol *afd_sim_protocol_of(uint32_t protocol);
uint64_t afd_sim_args_bytes(void);
/* The layouts as the steps know them: mutants may have moved a region. */
void afd_sim_layouts(struct afd_plan *plan, uint64_t control_bytes);
/* "inbox 3 of rank 0 + 16": byte `inside` of the rank's window. */
void afd_sim_region_name(const struct afd_sim_rank *rank, uint64_t inside, uint32_t owner,
                         char *text, size_t bytes);

/* -------------------------------------------------------------------------------------- trace.c */

void afd_sim_trace_access(struct afd_sim *sim, const struct afd_sim_block *b, const char *what,
                          uint64_t at, uint64_t bytes, uint64_t value);
void afd_sim_trace_arrival(struct afd_sim *sim, const struct afd_sim_block *b,
                           const struct afd_sim_store *store);
void afd_sim_trace_step(struct afd_sim *sim, const struct afd_sim_block *b, int begin);

/* ------------------------------------------------------------------------------------ explore.c */

/* The next move of the script, or the default. 0: nobody can move. */
int afd_sim_script_move(struct afd_sim *sim);

#endif
