/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - a whole job in one thread under a seeded scheduler: the steps of every rank, each store
 * on its way to a peer, faults, and the oracles that look for what must not be.
 *
 * A schedule is a pure function of (options, seed). Every run of a sim resets it; nothing is kept
 * from one schedule to the next but memory.
 */
#ifndef AFD_EXEC_SIM_SIM_H
#define AFD_EXEC_SIM_SIM_H

#include <stdio.h>

#include "afd/afd.h"
#include "exec/sim/mutants.h"

#define AFD_SIM_WORLD_MAX 1024u
#define AFD_SIM_BLOCKS_MAX 8u

/* Who is hunted; the victim is drawn from the seed. MIX: the seed draws the mode. */
#define AFD_HUNT_LIST(X)                                                                           \
    X(MIX, "mix", "the seed draws one of the others")                                              \
    X(UNIFORM, "uniform", "every block and every store buffer has the same chance")                \
    X(STARVE, "starve", "one block hardly ever runs")                                              \
    X(FREEZE, "freeze", "one rank stands still while any other can move")                          \
    X(LATE, "late", "stores from and to one rank arrive when nothing else can move")               \
    X(WORDS, "words", "words overtake every plain store that may still lag")                       \
    X(PCT, "pct", "random priorities, few changes")

enum afd_sim_hunt {
#define AFD_HUNT_ENUM(name, text, what) AFD_HUNT_##name,
    AFD_HUNT_LIST(AFD_HUNT_ENUM) AFD_HUNT_COUNT
};

#define AFD_SIM_FAULT_LIST(X)                                                                      \
    X(NONE, "none", "nothing goes wrong")                                                          \
    X(DIE, "die", "a rank dies at some access; its stores on the way are lost")                    \
    X(STALL, "stall", "a rank stands still past the others' deadline, then goes on")               \
    X(ABORT, "abort", "a rank's group is aborted at some moment")                                  \
    X(ROUTE, "route", "a source has an illegal route that its host did not see")

enum afd_sim_fault {
#define AFD_SIM_FAULT_ENUM(name, text, what) AFD_SIM_FAULT_##name,
    AFD_SIM_FAULT_LIST(AFD_SIM_FAULT_ENUM) AFD_SIM_FAULT_COUNT
};

/* What an oracle saw. */
#define AFD_ORACLE_LIST(X)                                                                         \
    X(NONE, "none")                                                                                \
    X(RACE, "race")           /* bytes of another rank that no acquire covers */                   \
    X(WORD, "word")           /* a word with two writers, cleared, or of mixed accesses */         \
    X(BATCH, "batch")         /* a batch differs from the reference */                             \
    X(COLLECTED, "collected") /* collected rows differ from the reference */                       \
    X(DEADLOCK, "deadlock")   /* nobody can move */                                                \
    X(ADDRESS, "address")     /* an access outside every window of the writer's business */        \
    X(CODE, "code")           /* a rank ended with the wrong error */                              \
    X(LIVELOCK, "livelock")   /* too many accesses */

enum afd_sim_oracle {
#define AFD_ORACLE_ENUM(name, text) AFD_ORACLE_##name,
    AFD_ORACLE_LIST(AFD_ORACLE_ENUM) AFD_ORACLE_COUNT
};

enum afd_sim_routing {
    AFD_SIM_ROUTING_UNIFORM,
    AFD_SIM_ROUTING_SKEWED, /* a few experts get most */
    AFD_SIM_ROUTING_SPARSE, /* most tokens have no route */
    AFD_SIM_ROUTING_ONE,    /* every token goes to one expert */
    AFD_SIM_ROUTING_NONE,
};

struct afd_sim_options {
    uint32_t sources;
    uint32_t ffn_ranks;    /* FFN ranks are numbered first, as by the command */
    uint32_t exchanges;    /* of each schedule, over all stages */
    uint32_t blocks;       /* 0: 1 .. 4, drawn per rank and exchange */
    uint32_t fixed_tokens; /* 1: T is the capacity; 0: drawn per source and exchange, 0 too */
    uint32_t view;         /* 1: sources collect views where they can (F = 1) */
    uint32_t weights;      /* 1: sources send weights */
    uint32_t routing;      /* enum afd_sim_routing */
    uint32_t hunt;         /* enum afd_sim_hunt */
    uint32_t fault;        /* enum afd_sim_fault */
    uint32_t strong;       /* 1: stores of a block arrive in their order */
    uint32_t tag_period;   /* epochs after which tags repeat, 0: 2^32 - 1 */
    uint32_t mutant;       /* enum afd_mutant */
    uint32_t preemptions;  /* exhaustive mode: how many decisions differ from the default */
    struct afd_buffer_config config; /* of every rank; variant AUTO: drawn */
};

/* 2A2F, T = 8, H = 16, 4 exchanges, all else drawn. */
void afd_sim_options_init(struct afd_sim_options *options);

struct afd_sim_report {
    uint32_t oracle; /* enum afd_sim_oracle; NONE: nothing was found */
    uint32_t hunt;   /* the mode of this schedule */
    uint64_t seed;
    uint64_t accesses; /* primitives executed: the virtual time */
    uint64_t digest;   /* of the schedule: equal if and only if it was the same */
    char text[1024];
};

struct afd_sim;

/* Memory for schedules with these options. 0, or an error with its sentence. */
int afd_sim_create(const struct afd_sim_options *options, struct afd_sim **sim_out);
void afd_sim_destroy(struct afd_sim *sim);
/* One schedule. A finding is in the report; the return value is 0 or AFD_ENOMEM. */
int afd_sim_run(struct afd_sim *sim, uint64_t seed, struct afd_sim_report *report_out);

/* All schedules of one seed's job with at most options.preemptions decisions that differ from the
 * default, up to `most`. *schedules_out: how many ran; *complete_out: 1 if there are no more. */
int afd_sim_explore(struct afd_sim *sim, uint64_t seed, uint64_t most,
                    struct afd_sim_report *report_out, uint64_t *schedules_out,
                    uint32_t *complete_out);

/* The same schedule again, with its timeline: as text, and as a Chrome trace. NULL: not wanted. */
int afd_sim_explain(struct afd_sim *sim, uint64_t seed, FILE *text, FILE *chrome,
                    struct afd_sim_report *report_out);

/* -------------------------------------------------------------------------------------- mutants */

struct afd_mutant_info {
    const char *name;
    const char *rule;
    const char *what;
};
/* NULL past the last one; mutants are numbered from 1. */
const struct afd_mutant_info *afd_mutant_info(uint32_t mutant);
/* The options under which `mutant` is hunted. */
void afd_mutant_options(uint32_t mutant, struct afd_sim_options *options_out);

/* Runs schedules, seed 1 and up, until one has a finding or `most` are done. */
struct afd_mutant_kill {
    uint64_t schedules; /* that ran */
    struct afd_sim_report report;
};
int afd_mutant_hunt(uint32_t mutant, uint64_t most, struct afd_mutant_kill *kill_out);

const char *afd_hunt_name(uint32_t hunt);
const char *afd_oracle_name(uint32_t oracle);
const char *afd_sim_fault_name(uint32_t fault);

#endif
