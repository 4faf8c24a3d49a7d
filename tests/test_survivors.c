/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_survivors.c - a rank dies, stays away, leaves or aborts: the others end in time, name it,
 * and show nothing that looks valid.
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
#include <unistd.h>

#include "fleet.h"

enum misdeed {
    DIE,       /* kill -9 before the call of `phase` */
    STAY_AWAY, /* sleep instead of the call */
    CLOSE,     /* close the buffer instead of the call, and live on for a while */
    ABORT,     /* abort the group, then make the call */
};

static struct {
    uint32_t culprit;
    uint32_t phase; /* at which the misdeed happens, in exchange 3 */
    enum misdeed misdeed;
} plan;

static struct fleet_outcome *outcome;

static void nap_ms(long ms)
{
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&nap, NULL);
}

static void misbehave(uint32_t rank, uint32_t phase, uint32_t n, struct afd_group *group,
                      struct afd_buffer *buffer)
{
    if (rank != plan.culprit || phase != plan.phase || n != 3)
        return;
    switch (plan.misdeed) {
    case DIE:
        raise(SIGKILL);
        break;
    case STAY_AWAY:
        nap_ms(FLEET_DEADLINE_MS + 1500);
        _exit(0);
    case CLOSE:
        if (afd_buffer_close(buffer) != 0)
            _exit(9);
        nap_ms(1000);
        _exit(0);
    default:
        afd_group_abort(group);
    }
}

static void run(uint32_t culprit, uint32_t phase, enum misdeed misdeed)
{
    pid_t pids[FLEET_RANKS];
    int statuses[FLEET_RANKS];
    plan.culprit = culprit;
    plan.phase = phase;
    plan.misdeed = misdeed;
    fleet_start(5, misbehave, pids);
    fleet_wait(pids, statuses);
    for (uint32_t r = 0; r < FLEET_RANKS; r++) {
        if (r == culprit && misdeed == DIE)
            assert_true(WIFSIGNALED(statuses[r]));
        else if (!WIFEXITED(statuses[r]) || WEXITSTATUS(statuses[r]) != 0)
            fail_msg("rank %u ended with status 0x%x", r, (unsigned)statuses[r]);
    }
}

/* Every survivor failed with `code`, naming the culprit, in time; no descriptor is left. */
static void check(uint32_t culprit, uint32_t phase, int code, int is_prompt)
{
    for (uint32_t r = 0; r < FLEET_RANKS; r++) {
        const struct fleet_outcome *o = &outcome[r];
        char name[32];
        if (o->stale != 0)
            fail_msg("rank %u has %d stale values", r, o->stale);
        if (r == culprit)
            continue;
        snprintf(name, sizeof(name), "rank %u", culprit);
        if (o->rc != code || o->fault.rank != culprit || strstr(o->sentence, name) == NULL)
            fail_msg("culprit %u in %s: rank %u got %d, blamed %u: %s", culprit,
                     afd_phase_name(phase), r, o->rc, o->fault.rank, o->sentence);
        if (o->waited_ms > FLEET_DEADLINE_MS + 1000 ||
            (is_prompt && o->waited_ms > FLEET_DEADLINE_MS))
            fail_msg("rank %u waited %.0f ms", r, o->waited_ms);
        if (o->descriptors > 0)
            fail_msg("rank %u has %d descriptors left", r, o->descriptors);
    }
}

static const struct {
    uint32_t culprit;
    uint32_t phase;
} moments[] = {
    {0, AFD_PHASE_RECEIVE},  {0, AFD_PHASE_REPLY},    {1, AFD_PHASE_RECEIVE},
    {1, AFD_PHASE_REPLY},    {2, AFD_PHASE_DISPATCH}, {2, AFD_PHASE_COLLECT},
    {3, AFD_PHASE_DISPATCH}, {3, AFD_PHASE_COLLECT},
};
#define MOMENTS (sizeof(moments) / sizeof(moments[0]))

static void killed_rank_is_named_by_every_survivor_at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i++) {
        run(moments[i].culprit, moments[i].phase, DIE);
        check(moments[i].culprit, moments[i].phase, AFD_EPEER, 1);
    }
}

static void rank_that_stays_away_is_named_and_not_the_one_that_waits_for_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i += 2) {
        run(moments[i].culprit, moments[i].phase, STAY_AWAY);
        check(moments[i].culprit, moments[i].phase, AFD_EPEER, 0);
    }
}

static void rank_that_closes_early_is_named_at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i += 3) {
        run(moments[i].culprit, moments[i].phase, CLOSE);
        check(moments[i].culprit, moments[i].phase, AFD_EPEER, 1);
    }
}

static void abort_releases_every_wait_and_names_the_aborter(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i++) {
        run(moments[i].culprit, moments[i].phase, ABORT);
        check(moments[i].culprit, moments[i].phase, AFD_EABORTED, 1);
        assert_int_equal(outcome[moments[i].culprit].rc, AFD_EABORTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_rank_is_named_by_every_survivor_at_once),
        cmocka_unit_test(rank_that_stays_away_is_named_and_not_the_one_that_waits_for_it),
        cmocka_unit_test(rank_that_closes_early_is_named_at_once),
        cmocka_unit_test(abort_releases_every_wait_and_names_the_aborter),
    };
    outcome = fleet_outcomes();
    return outcome == NULL ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
