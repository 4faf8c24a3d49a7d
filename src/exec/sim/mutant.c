/* SPDX-License-Identifier: Apache-2.0 */
/* mutant.c - the table of mutants, the scenario each is hunted in, and the hunt. */

#include <string.h>

#include "exec/sim/sim.h"

enum scenario {
    MIX,
    ROWS,
    WORDS,
    BLOCKS,
    SPARSE,
    WRAP,
    PARTS,
    INDEXED,
    BAD_ROUTE,
    MANY,
    VIEW,
    LONE
};

struct mutant_row {
    struct afd_mutant_info info;
    enum scenario scenario;
};

static const struct mutant_row table[] = {{{"none", "", ""}, MIX},
#define MUTANT_ROW(name, rule, scenario, what) {{#name, rule, what}, scenario},
                                          AFD_MUTANT_LIST(MUTANT_ROW)};

const struct afd_mutant_info *afd_mutant_info(uint32_t mutant)
{
    return mutant < AFD_MUTANT_COUNT ? &table[mutant].info : NULL;
}

static void rows_only(struct afd_sim_options *o)
{
    o->config.words_tokens = 0;
    o->config.variant = AFD_VARIANT_ROWS;
    o->config.reply_variant = AFD_VARIANT_ROWS;
}

static void words_only(struct afd_sim_options *o)
{
    o->config.variant = AFD_VARIANT_WORDS;
    o->config.reply_variant = AFD_VARIANT_WORDS;
}

/* Slots stay unwritten for long, and tags repeat as soon as the rule allows. */
static void wrap(struct afd_sim_options *o)
{
    words_only(o);
    o->sources = 1;
    o->routing = AFD_SIM_ROUTING_SPARSE;
    o->exchanges = 12;
    o->config.capacity = 3;
    o->config.words_tokens = 2;
    o->tag_period = 3;
}

void afd_mutant_options(uint32_t mutant, struct afd_sim_options *o)
{
    afd_sim_options_init(o);
    o->mutant = mutant;
    switch (table[mutant].scenario) {
    case ROWS:
    case LONE:
        rows_only(o);
        o->weights = mutant == AFD_MUTANT_regions_overlap;
        break;
    case WORDS:
        words_only(o);
        break;
    case BLOCKS:
        rows_only(o);
        o->blocks = 3;
        break;
    case SPARSE:
        o->routing = AFD_SIM_ROUTING_SPARSE;
        o->config.capacity = 2;
        o->config.words_tokens = 2;
        break;
    case WRAP:
        wrap(o);
        break;
    case PARTS:
        rows_only(o);
        o->sources = o->ffn_ranks = 1;
        o->blocks = 4;
        o->config.capacity = 2;
        o->config.hidden = 1024;
        break;
    case INDEXED:
        rows_only(o);
        o->config.receive = AFD_RECEIVE_INDEXED;
        break;
    case BAD_ROUTE:
        o->fault = AFD_SIM_FAULT_ROUTE;
        break;
    case MANY:
        o->sources = 1;
        o->ffn_ranks = 3;
        o->config.topk = 2;
        break;
    case VIEW:
        rows_only(o);
        o->ffn_ranks = 1;
        o->view = 1;
        o->routing = AFD_SIM_ROUTING_SPARSE;
        break;
    default:
        break;
    }
}

int afd_mutant_hunt(uint32_t mutant, uint64_t most, struct afd_mutant_kill *kill_out)
{
    struct afd_sim_options options;
    struct afd_sim *sim = NULL;
    int rc;
    memset(kill_out, 0, sizeof(*kill_out));
    afd_mutant_options(mutant, &options);
    rc = afd_sim_create(&options, &sim);
    for (uint64_t seed = 1; rc == 0 && seed <= most; seed++) {
        rc = afd_sim_run(sim, seed, &kill_out->report);
        kill_out->schedules = seed;
        if (kill_out->report.oracle != AFD_ORACLE_NONE)
            break;
    }
    if (sim != NULL)
        afd_sim_destroy(sim);
    return rc;
}
