/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fleet.h - four ranks as processes, two FFN and two Attention, that exchange until told otherwise
 * or until something fails; what each of them saw is in memory shared with the test.
 */
#ifndef TESTS_FLEET_H
#define TESTS_FLEET_H

#include <sys/types.h>

#include "afd/afd.h"

#define FLEET_RANKS 4u
#define FLEET_DEADLINE_MS 1500

struct fleet_outcome {
    int rc; /* of the first call that failed */
    struct afd_fault fault;
    char sentence[512];
    double waited_ms;   /* in the failing call */
    int stale;          /* collected values that are neither right nor NaN */
    int descriptors;    /* left over after close */
    uint32_t exchanges; /* complete ones */
};

/* enum afd_protocol of the next fleet. */
extern uint32_t fleet_protocol;

/* What a rank does before the call of `phase` in exchange n (1, 2, ...); may not return. */
typedef void (*fleet_hook)(uint32_t rank, uint32_t phase, uint32_t n, struct afd_group *group,
                           struct afd_buffer *buffer);

/* One outcome per rank, zeroed by fleet_start(). NULL if the memory could not be had. */
struct fleet_outcome *fleet_outcomes(void);
/* Starts all ranks; each makes `exchanges` exchanges. */
void fleet_start(uint32_t exchanges, fleet_hook hook, pid_t pids_out[FLEET_RANKS]);
/* Waits for all; statuses as of waitpid(). */
void fleet_wait(const pid_t pids[FLEET_RANKS], int statuses_out[FLEET_RANKS]);
uint32_t fleet_role(uint32_t rank);

#endif
