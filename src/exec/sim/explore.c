/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explore.c - all schedules of a small job, by depth-first search over the scheduler's decisions.
 *
 * The default decision lets the running block go on, then the first that is ready, then the oldest
 * store arrive. A schedule is a list of decisions; those that differ from the default are bounded
 * (options.preemptions). Blocks are not interrupted right before a store is issued, because only
 * its arrival is seen by others: every order of arrivals is still there.
 */
#include "exec/sim/state.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

#define MOVES_MAX 64u

struct afd_sim_script {
    uint8_t *choice;
    uint8_t *options;
    uint32_t length; /* decisions that are given */
    uint32_t at;
    uint32_t room;
};

struct move {
    uint32_t block;
    uint32_t store; /* UINT32_MAX: the block goes on */
};

static uint32_t add_blocks(struct afd_sim *sim, struct move *moves)
{
    uint32_t count = 0;
    const struct afd_sim_block *current = sim->current;
    if (current != NULL && current->state == AFD_SIM_READY) {
        moves[count].block = current->id;
        moves[count++].store = UINT32_MAX;
    }
    for (uint32_t i = 0; i < sim->block_count && count < MOVES_MAX / 2; i++) {
        if (sim->block[i].state != AFD_SIM_READY || &sim->block[i] == current)
            continue;
        moves[count].block = i;
        moves[count++].store = UINT32_MAX;
    }
    return count;
}

static uint32_t add_stores(struct afd_sim *sim, struct move *moves, uint32_t count)
{
    for (uint32_t i = 0; i < sim->block_count; i++) {
        const struct afd_sim_block *b = &sim->block[i];
        for (uint32_t s = b->head; s < b->tail && count < MOVES_MAX; s++) {
            if (!afd_sim_may_arrive(sim, b, s))
                continue;
            moves[count].block = i;
            moves[count++].store = s;
        }
    }
    return count;
}

int afd_sim_script_move(struct afd_sim *sim)
{
    struct afd_sim_script *script = sim->script;
    struct move moves[MOVES_MAX];
    uint32_t count = add_stores(sim, moves, add_blocks(sim, moves));
    uint32_t choice = 0;
    if (count == 0)
        return 0;
    if (script->at == script->room) {
        script->room *= 2;
        script->choice = realloc(script->choice, script->room);
        script->options = realloc(script->options, script->room);
        AFD_ASSERT(script->choice != NULL && script->options != NULL);
    }
    if (script->at < script->length)
        choice = script->choice[script->at];
    AFD_ASSERT(choice < count);
    script->choice[script->at] = (uint8_t)choice;
    script->options[script->at++] = (uint8_t)count;
    if (moves[choice].store != UINT32_MAX)
        afd_sim_arrive(sim, &sim->block[moves[choice].block], moves[choice].store);
    else
        afd_sim_run_block(sim, &sim->block[moves[choice].block], 1);
    return 1;
}

/* The next schedule within the bound. 0: there is none. */
static int advance(struct afd_sim_script *script, uint32_t bound)
{
    uint32_t used = 0;
    uint32_t last = UINT32_MAX;
    for (uint32_t i = 0; i < script->at; i++) {
        uint32_t others = used;
        used += script->choice[i] != 0;
        if (script->choice[i] + 1u < script->options[i] && others < bound)
            last = i;
    }
    if (last == UINT32_MAX)
        return 0;
    script->choice[last]++;
    script->length = last + 1;
    return 1;
}

int afd_sim_explore(struct afd_sim *sim, uint64_t seed, uint64_t most,
                    struct afd_sim_report *report_out, uint64_t *schedules_out,
                    uint32_t *complete_out)
{
    struct afd_sim_script script = {malloc(1024), malloc(1024), 0, 0, 1024};
    int rc = script.choice == NULL || script.options == NULL
                 ? afd_error_set(AFD_ENOMEM, "no memory for the decisions of a schedule")
                 : 0;
    *schedules_out = 0;
    *complete_out = 0;
    while (rc == 0 && *schedules_out < most) {
        script.at = 0;
        sim->script = &script;
        sim->current = NULL;
        rc = afd_sim_run(sim, seed, report_out);
        sim->script = NULL;
        if (rc != 0)
            break;
        *schedules_out += 1;
        if (report_out->oracle != AFD_ORACLE_NONE)
            break;
        if (!advance(&script, sim->options.preemptions)) {
            *complete_out = 1;
            break;
        }
    }
    free(script.choice);
    free(script.options);
    return rc;
}
