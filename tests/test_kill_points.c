/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_kill_points.c - kill -9 of any rank at a thousand random moments, from bootstrap on: the
 * survivors name the dead rank, nothing is corrupt, no descriptor is left.
 *
 * AFD_KILL_POINTS sets the number (fewer under the sanitizers), AFD_KILL_SEED the seed.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "fleet.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define POINTS 40
#else
#define POINTS 1000
#endif
#define ENDLESS 1000000u
#define AFTER_US_MIN 4000u /* bootstrap takes about 3 ms; one kill in twenty comes earlier */
#define AFTER_US_MAX 12000u

static struct fleet_outcome *outcome;

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void check(uint64_t point, uint32_t victim, const int *statuses)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %u", victim);
    assert_true(WIFSIGNALED(statuses[victim]));
    for (uint32_t r = 0; r < FLEET_RANKS; r++) {
        const struct fleet_outcome *o = &outcome[r];
        if (o->stale != 0)
            fail_msg("point %llu: rank %u has %d stale values", (unsigned long long)point, r,
                     o->stale);
        if (r == victim)
            continue;
        if (!WIFEXITED(statuses[r]) || WEXITSTATUS(statuses[r]) != 0)
            fail_msg("point %llu: rank %u ended with status 0x%x", (unsigned long long)point, r,
                     (unsigned)statuses[r]);
        if (o->exchanges == 0 && o->rc != 0 && o->fault.code == 0)
            continue; /* in create: who had not joined yet finds that rank 0 has given up */
        if (o->rc != AFD_EPEER || o->fault.rank != victim || strstr(o->sentence, name) == NULL)
            fail_msg("point %llu: rank %u does not name rank %u: %s", (unsigned long long)point, r,
                     victim, o->sentence);
        if (o->descriptors > 0)
            fail_msg("point %llu: rank %u has %d descriptors left", (unsigned long long)point, r,
                     o->descriptors);
    }
}

static void survivors_of_random_kills_name_the_dead_rank(void **state)
{
    uint64_t points = number_from("AFD_KILL_POINTS", POINTS);
    uint64_t seed = number_from("AFD_KILL_SEED", 20) * 2654435761u + 1;
    uint64_t in_exchange = 0;
    (void)state;
    for (uint64_t i = 0; i < points; i++) {
        uint32_t victim = (uint32_t)(next_random(&seed) % FLEET_RANKS);
        uint64_t span_us = i % 20 == 0 ? AFTER_US_MIN : AFTER_US_MAX - AFTER_US_MIN;
        uint64_t after_us = next_random(&seed) % span_us + (i % 20 == 0 ? 0 : AFTER_US_MIN);
        struct timespec nap = {0, (long)after_us * 1000};
        pid_t pids[FLEET_RANKS];
        int statuses[FLEET_RANKS];
        fleet_start(ENDLESS, NULL, pids);
        nanosleep(&nap, NULL);
        kill(pids[victim], SIGKILL);
        fleet_wait(pids, statuses);
        check(i, victim, statuses);
        in_exchange += outcome[(victim + 1) % FLEET_RANKS].exchanges != 0;
    }
    printf("report: %llu kills, %llu of them while ranks exchanged\n", (unsigned long long)points,
           (unsigned long long)in_exchange);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_random_kills_name_the_dead_rank),
    };
    outcome = fleet_outcomes();
    return outcome == NULL ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
