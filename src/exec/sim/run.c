/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - one schedule: everything is reset, inputs are made, then the scheduler moves. */

#include <string.h>

#include "error.h"
#include "exec/sim/hooks.h"
#include "exec/sim/state.h"

static void reset(struct afd_sim *sim, uint64_t seed, struct afd_sim_report *report)
{
    sim->random = afd_sim_mix(seed + 0x9e3779b97f4a7c15ull) | 1u;
    sim->accesses = sim->digest = 0;
    sim->stopping = sim->fault_told = 0;
    sim->fault_at = 0;
    sim->ready_count = sim->full_count = 0;
    sim->clock_used = sim->clock_free_count = sim->word_count = 0;
    memset(sim->word, 0, sim->word_room * sizeof(*sim->word));
    memset(sim->cell, 0, (sim->arena_bytes / AFD_SIM_CELL + 8) * sizeof(*sim->cell));
    memset(sim->full_at, 0xff, sim->block_count * sizeof(uint32_t));
    memset(report, 0, sizeof(*report));
    report->seed = seed;
    sim->report = report;
    afd_sim_mode_draw(sim);
    report->hunt = sim->mode.hunt;
    for (uint32_t r = 0; r < sim->world; r++)
        afd_sim_rank_reset(sim, &sim->rank[r]);
}

/* What goes wrong, where and when. */
static void draw_fault(struct afd_sim *sim)
{
    const struct afd_sim_options *o = &sim->options;
    if (o->fault == AFD_SIM_FAULT_NONE)
        return;
    sim->fault_rank = afd_sim_below(sim, sim->world);
    sim->fault_at = 1 + afd_sim_below(sim, 1u << afd_sim_below(sim, 14));
    if (o->fault != AFD_SIM_FAULT_ROUTE)
        return;
    /* any source; the last exchange may be hit too */
    sim->fault_rank = o->ffn_ranks + afd_sim_below(sim, o->sources);
    sim->fault_epoch = afd_sim_below(sim, o->exchanges);
    struct afd_sim_input *in =
        &sim->truth->exchange[sim->fault_epoch].input[sim->fault_rank - o->ffn_ranks];
    if (in->tokens == 0)
        return;
    in->ids[afd_sim_below(sim, in->tokens) * o->config.topk + afd_sim_below(sim, o->config.topk)] =
        (int64_t)o->config.experts + (int64_t)afd_sim_below(sim, 100);
}

int afd_sim_run(struct afd_sim *sim, uint64_t seed, struct afd_sim_report *report_out)
{
    int rc = afd_sim_truth_make(sim->truth, &sim->options, seed);
    if (rc != 0)
        return afd_error_set(rc, "no memory for the inputs of a schedule");
    afd_sim_now = sim;
    afd_sim_mutant = sim->options.mutant;
    afd_sim_tag_period = sim->options.tag_period != 0 ? sim->options.tag_period : 0xffffffffu;
    reset(sim, seed, report_out);
    draw_fault(sim);
    for (uint32_t r = 0; r < sim->world; r++)
        afd_sim_rank_go(sim, &sim->rank[r]);
    afd_sim_schedule(sim);
    if (!sim->stopping)
        afd_sim_ranks_check(sim);
    report_out->accesses = sim->accesses;
    report_out->digest = sim->digest;
    afd_sim_mutant = AFD_MUTANT_none;
    return 0;
}
