/* SPDX-License-Identifier: Apache-2.0 */
/* The small languages of the command line: numbers, layouts, token lists, durations, placements. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../cli/cli.h"

static void a_number_is_digits_and_nothing_else(void **state)
{
    static const char *const wrong[] = {
        "", " 1", "1 ", "-1", "+1", "0x1", "1e3", "11", "99999999999999999999"};
    uint64_t value = 7;
    (void)state;
    assert_int_equal(cli_number_parse("10", 10, &value), 0);
    assert_int_equal(value, 10);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(cli_number_parse(wrong[i], 10, &value), -1);
    assert_int_equal(value, 10);
}

static void a_layout_numbers_ffn_ranks_first(void **state)
{
    static struct cli_layout l;
    static const uint8_t roles[] = {AFD_ROLE_FFN, AFD_ROLE_FFN, AFD_ROLE_ATTENTION,
                                    AFD_ROLE_ATTENTION, AFD_ROLE_ATTENTION};
    static const uint32_t index[] = {0, 1, 0, 1, 2};
    (void)state;
    assert_int_equal(cli_layout_parse("3A2F", &l), CLI_OK);
    assert_int_equal(l.world, 5);
    assert_int_equal(l.sources, 3);
    assert_int_equal(l.ffn_ranks, 2);
    assert_string_equal(l.name, "3A2F");
    assert_memory_equal(l.roles, roles, sizeof(roles));
    assert_memory_equal(l.index, index, sizeof(index));
    for (uint32_t r = 0; r < l.world; r++)
        assert_int_equal(l.domains[r], 0);
}

static void a_layout_is_cut_into_domains_in_rank_order(void **state)
{
    static struct cli_layout l;
    (void)state;
    assert_int_equal(cli_layout_parse("22A2F@2", &l), CLI_OK);
    assert_int_equal(l.world, 24);
    assert_int_equal(l.per_domain, 2);
    for (uint32_t r = 0; r < l.world; r++)
        assert_int_equal(l.domains[r], r / 2);
}

static void what_is_no_layout_is_refused(void **state)
{
    static const char *const wrong[] = {"",      "2A",     "2F2A",    "2a2f",           "A2F",
                                        "2A2F@", "2A2F@0", "2A2F@x",  "2A2F ",          "-1A2F",
                                        "0A2F",  "2A0F",   "1024A1F", "2A99999999999F", "2A2F@1@1"};
    static struct cli_layout l;
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (cli_layout_parse(wrong[i], &l) != CLI_USAGE)
            fail_msg("\"%s\" is taken for a layout", wrong[i]);
    assert_int_equal(cli_layout_parse("1023A1F", &l), CLI_OK);
}

static void roles_stand_in_the_order_given(void **state)
{
    static const char *const wrong[] = {"", "A", "F,F", "A,F,", "A,,F", "A F", "AF", "A,X", ",A,F"};
    static struct cli_layout l;
    (void)state;
    assert_int_equal(cli_layout_from_roles("A,F,F,A", &l), CLI_OK);
    assert_string_equal(l.name, "2A2F");
    assert_int_equal(l.roles[0], AFD_ROLE_ATTENTION);
    assert_int_equal(l.roles[3], AFD_ROLE_ATTENTION);
    assert_int_equal(l.index[2], 1);
    assert_int_equal(l.index[3], 1);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (cli_layout_from_roles(wrong[i], &l) != CLI_USAGE)
            fail_msg("\"%s\" is taken for roles", wrong[i]);
}

static void expect_sizes(const char *text, const uint32_t *want, uint32_t count)
{
    uint32_t sizes[CLI_SIZES_MAX];
    uint32_t got;
    assert_int_equal(cli_tokens_parse(text, sizes, &got), CLI_OK);
    assert_int_equal(got, count);
    assert_memory_equal(sizes, want, count * sizeof(*want));
}

static void a_range_walks_the_powers_of_two_up_and_down(void **state)
{
    static const uint32_t list[] = {1, 8, 32};
    static const uint32_t walk[] = {1, 2, 4, 8, 4, 2, 1};
    static const uint32_t odd[] = {3, 4, 8, 11, 8, 4, 3};
    static const uint32_t zero[] = {0, 1, 2, 1, 0};
    static const uint32_t one[] = {5};
    static const uint32_t two[] = {5, 6, 5};
    static const uint32_t mixed[] = {7, 1, 2, 1, 0};
    (void)state;
    expect_sizes("1,8,32", list, 3);
    expect_sizes("1..8", walk, 7);
    expect_sizes("3..11", odd, 7);
    expect_sizes("0..2", zero, 5);
    expect_sizes("5..5", one, 1);
    expect_sizes("5..6", two, 3);
    expect_sizes("7,1..2,0", mixed, 5);
}

static void what_is_no_token_list_is_refused(void **state)
{
    static const char *const wrong[] = {"",      "8,",    ",8", "8,,8", "8..",     "..8",
                                        "64..1", "65537", "-1", "1 8",  "1..2..3", "x"};
    char many[2 * CLI_SIZES_MAX + 4];
    uint32_t sizes[CLI_SIZES_MAX];
    uint32_t count;
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (cli_tokens_parse(wrong[i], sizes, &count) != CLI_USAGE)
            fail_msg("\"%s\" is taken for token counts", wrong[i]);
    for (uint32_t i = 0; i <= CLI_SIZES_MAX; i++)
        snprintf(many + 2 * (size_t)i, 3, "1,");
    many[2 * CLI_SIZES_MAX - 1] = '\0';
    assert_int_equal(cli_tokens_parse(many, sizes, &count), CLI_OK);
    assert_int_equal(count, CLI_SIZES_MAX);
    many[2 * CLI_SIZES_MAX - 1] = ',';
    many[2 * CLI_SIZES_MAX + 1] = '\0';
    assert_int_equal(cli_tokens_parse(many, sizes, &count), CLI_USAGE);
}

static void durations_have_units_and_bounds(void **state)
{
    static const char *const wrong[] = {"",   "s",     "3 s", "-3s",   "3h",          "1.5s",
                                        "0s", "999us", "61m", "3601s", "99999999999s"};
    static const struct {
        const char *text;
        uint64_t us;
    } right[] = {{"3s", 3000000}, {"500ms", 500000},    {"2m", 120000000}, {"2500us", 2500},
                 {"3", 3000000},  {"60m", 3600000000u}, {"1ms", 1000}};
    uint64_t us = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        assert_int_equal(cli_duration_parse(right[i].text, &us), CLI_OK);
        assert_int_equal(us, right[i].us);
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (cli_duration_parse(wrong[i], &us) != CLI_USAGE)
            fail_msg("\"%s\" is taken for a duration", wrong[i]);
}

static int place(const char *text, uint32_t *placement, char *error)
{
    size_t length = strlen(text);
    char *exact = malloc(length + 1);
    int rc;
    assert_non_null(exact);
    memcpy(exact, text, length); /* NOLINT: a file has no end mark */
    rc = cli_placement_parse(exact, length, 4, 3, placement, error, 256);
    free(exact);
    return rc;
}

static void a_placement_is_one_ffn_index_per_expert(void **state)
{
    static const uint32_t want[] = {2, 0, 1, 2};
    uint32_t placement[4];
    char error[256];
    (void)state;
    assert_int_equal(place("2 0\n1\t2", placement, error), 0);
    assert_memory_equal(placement, want, sizeof(want));
    assert_int_equal(place("# all four\n2 # the first 9\n0 1 2\n#", placement, error), 0);
    assert_memory_equal(placement, want, sizeof(want));
}

static void a_wrong_placement_says_both_values(void **state)
{
    static const struct {
        const char *text;
        const char *part_a;
        const char *part_b;
    } wrong[] = {
        {"0 1 2", "has 3 entries", "4 experts"},
        {"", "has 0 entries", "4 experts"},
        {"0 1 2 0 1", "more entries", "4 experts"},
        {"0 1 3 0", "entry 2", "3 FFN ranks"},
        {"0 x 1 2", "entry 1", "3 FFN ranks"},
        {"0 -1 1 2", "entry 1", "3 FFN ranks"},
        {"0 4294967296 1 2", "entry 1", "3 FFN ranks"},
        {"0 99999999999999999999999 1 2", "entry 1", "3 FFN ranks"},
        {"0 1 2 0x", "entry 3", "3 FFN ranks"},
        {"0 0000000000001 1 2", "entry 1", "3 FFN ranks"},
        {"0;1", "entry 0", "3 FFN ranks"},
    };
    uint32_t placement[4];
    char error[256];
    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        error[0] = '\0';
        assert_int_equal(place(wrong[i].text, placement, error), -1);
        if (strstr(error, wrong[i].part_a) == NULL || strstr(error, wrong[i].part_b) == NULL)
            fail_msg("\"%s\": \"%s\" lacks \"%s\" or \"%s\"", wrong[i].text, error, wrong[i].part_a,
                     wrong[i].part_b);
    }
}

/* The smallest value that at least q n values do not exceed. */
static void quantiles_are_values_that_occurred(void **state)
{
    double values[] = {5, 1, 4, 2, 3};
    double hundred[100];
    double one[] = {7};
    (void)state;
    for (int i = 0; i < 100; i++)
        hundred[i] = 100 - i;
    assert_true(cli_quantile(values, 5, 0.5) == 3);
    assert_true(cli_quantile(values, 5, 0.99) == 5);
    assert_true(cli_quantile(values, 5, 0) == 1);
    assert_true(cli_quantile(values, 5, 1) == 5);
    assert_true(cli_quantile(values, 4, 0.5) == 2);
    assert_true(cli_quantile(hundred, 100, 0.99) == 99);
    assert_true(cli_quantile(hundred, 100, 0.5) == 50);
    assert_true(cli_quantile(one, 1, 0.99) == 7);
    assert_true(cli_quantile(one, 0, 0.5) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_number_is_digits_and_nothing_else),
        cmocka_unit_test(a_layout_numbers_ffn_ranks_first),
        cmocka_unit_test(a_layout_is_cut_into_domains_in_rank_order),
        cmocka_unit_test(what_is_no_layout_is_refused),
        cmocka_unit_test(roles_stand_in_the_order_given),
        cmocka_unit_test(a_range_walks_the_powers_of_two_up_and_down),
        cmocka_unit_test(what_is_no_token_list_is_refused),
        cmocka_unit_test(durations_have_units_and_bounds),
        cmocka_unit_test(a_placement_is_one_ffn_index_per_expert),
        cmocka_unit_test(a_wrong_placement_says_both_values),
        cmocka_unit_test(quantiles_are_values_that_occurred),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
