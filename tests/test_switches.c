/* SPDX-License-Identifier: Apache-2.0 */
/* test_switches.c - every AFD_* variable: unset, set, and with a bad value. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "switches.h"

static const struct {
    const char *variable;
    const char *good;
    const char *bad[4];
} cases[] = {
    {"AFD_BLOCKS", "7", {"0", "257", "x", "-1"}},
    {"AFD_VARIANT", "words", {"word", "0", "WORDS", " rows"}},
    {"AFD_REPLY_VARIANT", "rows", {"word", "2", "ROWS", "row"}},
    {"AFD_WORDS_TOKENS", "16", {"257", "1.5", "x", "-1"}},
    {"AFD_RECEIVE", "indexed", {"index", "2", "both", "expand"}},
    {"AFD_ZERO_PADDING", "1", {"2", "yes", "on", "-1"}},
    {"AFD_DEADLINE_MS", "1234", {"0", "3600001", "1s", "99999999999999999999"}},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

static struct afd_buffer_config defaults(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 32;
    c.hidden = 64;
    c.experts = 5;
    c.topk = 2;
    return c;
}

static void unset_variables_change_nothing(void **state)
{
    struct afd_buffer_config c = defaults();
    struct afd_buffer_config same = defaults();
    (void)state;
    assert_int_equal(afd_switches_apply(&c), 0);
    assert_memory_equal(&c, &same, sizeof(c));
    for (size_t i = 0; i < CASES; i++)
        setenv(cases[i].variable, "", 1);
    assert_int_equal(afd_switches_apply(&c), 0);
    assert_memory_equal(&c, &same, sizeof(c));
    for (size_t i = 0; i < CASES; i++)
        unsetenv(cases[i].variable);
}

static void set_variable_changes_its_field_and_nothing_else(void **state)
{
    const struct afd_buffer_config same = defaults();
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        struct afd_buffer_config c = defaults();
        size_t changed = 0;
        setenv(cases[i].variable, cases[i].good, 1);
        assert_int_equal(afd_switches_apply(&c), 0);
        unsetenv(cases[i].variable);
        for (size_t word = 0; word < sizeof(c) / 8; word++)
            changed += memcmp((const char *)&c + 8 * word, (const char *)&same + 8 * word, 8) != 0;
        assert_int_equal(changed, 1);
    }
}

static void bad_value_is_an_error_that_names_variable_and_value(void **state)
{
    const struct afd_buffer_config same = defaults();
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        for (size_t b = 0; b < 4; b++) {
            struct afd_buffer_config c = defaults();
            setenv(cases[i].variable, cases[i].bad[b], 1);
            assert_int_equal(afd_switches_apply(&c), AFD_EINVAL);
            unsetenv(cases[i].variable);
            assert_memory_equal(&c, &same, sizeof(c));
            assert_non_null(strstr(afd_last_error(), cases[i].variable));
            assert_non_null(strstr(afd_last_error(), cases[i].bad[b]));
        }
    }
}

static void create_reads_them_once_and_exchanges_stay_right(void **state)
{
    struct afd_buffer_config c = defaults();
    const uint32_t tokens[JOB_RANKS_MAX] = {9, 3};
    struct job job;
    (void)state;
    setenv("AFD_BLOCKS", "5", 1);
    setenv("AFD_VARIANT", "words", 1);
    setenv("AFD_REPLY_VARIANT", "words", 1);
    setenv("AFD_WORDS_TOKENS", "16", 1);
    job_init(&job, "AFAF", &c);
    assert_int_equal(job_open(&job), 0);
    for (size_t i = 0; i < CASES; i++)
        unsetenv(cases[i].variable);
    for (uint64_t n = 1; n <= 6; n++)
        assert_int_equal(job_exchange(&job, 0, n, tokens), 0);
    assert_int_equal(job.mismatches, 0);
    job_close(&job);
}

static void bad_value_on_a_rank_fails_create_on_every_rank(void **state)
{
    struct afd_buffer_config c = defaults();
    struct job job;
    (void)state;
    setenv("AFD_BLOCKS", "many", 1);
    job_init(&job, "AF", &c);
    assert_int_equal(job_open(&job), AFD_EINVAL);
    unsetenv("AFD_BLOCKS");
    for (uint32_t r = 0; r < job.world; r++)
        assert_non_null(strstr(job.create_error[r], "AFD_BLOCKS is \"many\""));
    job_close(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unset_variables_change_nothing),
        cmocka_unit_test(set_variable_changes_its_field_and_nothing_else),
        cmocka_unit_test(bad_value_is_an_error_that_names_variable_and_value),
        cmocka_unit_test(create_reads_them_once_and_exchanges_stay_right),
        cmocka_unit_test(bad_value_on_a_rank_fails_create_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
