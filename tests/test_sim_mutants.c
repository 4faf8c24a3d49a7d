/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sim_mutants.c - every mutant is found by the simulator, every rule has a mutant, and every
 * oracle is the one that finds some.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/sim/sim.h"

#define SCHEDULES 2000u
#define RULES 17u

static uint64_t schedules[AFD_MUTANT_COUNT];
static uint64_t by_oracle[AFD_ORACLE_COUNT];

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void every_mutant_is_found(void **state)
{
    uint32_t survivors = 0;
    uint64_t sorted[AFD_MUTANT_COUNT];
    (void)state;
    for (uint32_t m = 1; m < AFD_MUTANT_COUNT; m++) {
        struct afd_mutant_kill kill;
        if (afd_mutant_hunt(m, SCHEDULES, &kill) != 0)
            fail_msg("%s: %s", afd_mutant_info(m)->name, afd_last_error());
        schedules[m] = kill.schedules;
        by_oracle[kill.report.oracle]++;
        if (kill.report.oracle != AFD_ORACLE_NONE)
            continue;
        survivors++;
        print_error("%s (%s) survives %u schedules: %s\n", afd_mutant_info(m)->name,
                    afd_mutant_info(m)->rule, SCHEDULES, afd_mutant_info(m)->what);
    }
    assert_int_equal(survivors, 0);
    memcpy(sorted, schedules, sizeof(sorted));
    qsort(sorted + 1, AFD_MUTANT_COUNT - 1, sizeof(sorted[0]), ascending);
    printf("report: %u mutants found, each within %llu schedules, half within %llu\n",
           (unsigned)AFD_MUTANT_COUNT - 1, (unsigned long long)sorted[AFD_MUTANT_COUNT - 1],
           (unsigned long long)sorted[AFD_MUTANT_COUNT / 2]);
}

/* The same scenario without its mutant has nothing to find: it is the mutant that was found. */
static void scenarios_are_clean_without_their_mutant(void **state)
{
    (void)state;
    for (uint32_t m = 1; m < AFD_MUTANT_COUNT; m++) {
        struct afd_sim_options options;
        struct afd_sim *sim = NULL;
        struct afd_sim_report report;
        afd_mutant_options(m, &options);
        options.mutant = AFD_MUTANT_none;
        assert_int_equal(afd_sim_create(&options, &sim), 0);
        for (uint64_t seed = 1; seed <= schedules[m] + 50; seed++) {
            assert_int_equal(afd_sim_run(sim, seed, &report), 0);
            if (report.oracle != AFD_ORACLE_NONE)
                fail_msg("%s, seed %llu: %s", afd_mutant_info(m)->name, (unsigned long long)seed,
                         report.text);
        }
        afd_sim_destroy(sim);
    }
}

static void every_rule_has_a_mutant(void **state)
{
    (void)state;
    for (uint32_t rule = 1; rule <= RULES; rule++) {
        char name[8];
        uint32_t count = 0;
        snprintf(name, sizeof(name), "R-%02u", rule);
        for (uint32_t m = 1; m < AFD_MUTANT_COUNT; m++)
            count += strcmp(afd_mutant_info(m)->rule, name) == 0;
        if (count == 0)
            fail_msg("no mutant breaks [%s]", name);
    }
}

static void every_oracle_finds_some(void **state)
{
    (void)state;
    assert_true(by_oracle[AFD_ORACLE_RACE] > 0);
    assert_true(by_oracle[AFD_ORACLE_WORD] > 0);
    assert_true(by_oracle[AFD_ORACLE_BATCH] > 0);
    assert_true(by_oracle[AFD_ORACLE_COLLECTED] > 0);
    assert_true(by_oracle[AFD_ORACLE_DEADLOCK] > 0);
    assert_true(by_oracle[AFD_ORACLE_CODE] > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mutant_is_found),
        cmocka_unit_test(scenarios_are_clean_without_their_mutant),
        cmocka_unit_test(every_rule_has_a_mutant),
        cmocka_unit_test(every_oracle_finds_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
