/* SPDX-License-Identifier: Apache-2.0 */
/* test_pairwise.c - the generator's own promises: complete, legal, deterministic, small. */

#include "pairwise.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROWS_MAX 400u

static struct pairwise_row rows[ROWS_MAX];

static int has_pair(uint32_t count, uint32_t a, uint32_t i, uint32_t b, uint32_t j)
{
    for (uint32_t r = 0; r < count; r++)
        if (rows[r].level[a] == i && rows[r].level[b] == j)
            return 1;
    return 0;
}

/* By brute force: each legal pair occurs, each row is legal, each count is right. */
static void check(const struct pairwise *p, const struct pairwise_counts *counts)
{
    uint32_t pairs = 0;
    uint32_t illegal = 0;
    for (uint32_t a = 0; a < p->factors; a++) {
        for (uint32_t b = a + 1; b < p->factors; b++) {
            for (uint32_t cell = 0; cell < p->levels[a] * p->levels[b]; cell++) {
                uint32_t i = cell / p->levels[b];
                uint32_t j = cell % p->levels[b];
                struct pairwise_row row;
                memset(&row, 0, sizeof(row));
                row.level[a] = (uint8_t)i;
                row.level[b] = (uint8_t)j;
                pairs++;
                if (p->legal != NULL && !p->legal(&row))
                    illegal++;
                else if (!has_pair(counts->rows, a, i, b, j))
                    fail_msg("factor %u at %u with factor %u at %u is in no row", a, i, b, j);
            }
        }
    }
    assert_int_equal(counts->pairs, pairs);
    assert_int_equal(counts->illegal, illegal);
    for (uint32_t r = 0; r < counts->rows; r++) {
        assert_true(p->legal == NULL || p->legal(&rows[r]));
        for (uint32_t a = 0; a < p->factors; a++)
            assert_true(rows[r].level[a] < p->levels[a]);
    }
}

static void every_pair_occurs_for_all_small_sizes(void **state)
{
    struct pairwise_counts counts;
    (void)state;
    for (uint32_t factors = 2; factors <= 7; factors++) {
        for (uint64_t seed = 0; seed < 40; seed++) {
            struct pairwise p = {factors, {0}, NULL, seed};
            for (uint32_t a = 0; a < factors; a++)
                p.levels[a] = 1 + (uint32_t)((seed * 7 + a * 5) % 5);
            assert_int_equal(pairwise_make(&p, rows, ROWS_MAX, &counts), 0);
            check(&p, &counts);
        }
    }
}

static void the_largest_table_is_complete_and_small(void **state)
{
    struct pairwise p = {PAIRWISE_FACTORS_MAX, {0}, NULL, 1};
    struct pairwise_counts counts;
    (void)state;
    for (uint32_t a = 0; a < p.factors; a++)
        p.levels[a] = PAIRWISE_LEVELS_MAX;
    assert_int_equal(pairwise_make(&p, rows, ROWS_MAX, &counts), 0);
    check(&p, &counts);
    assert_in_range(counts.rows, 144, 350);
}

/* Not together: 2 of factor 0 and 1 of factor 1; more than 6 in sum over the first four. */
static int some_legal(const struct pairwise_row *row)
{
    uint32_t sum = 0u + row->level[0] + row->level[1] + row->level[2] + row->level[3];
    return !(row->level[0] == 2 && row->level[1] == 1) && sum <= 6;
}

static void forbidden_combinations_occur_in_no_row(void **state)
{
    struct pairwise p = {8, {5, 5, 5, 5, 3, 2, 1, 4}, some_legal, 3};
    struct pairwise_counts counts;
    (void)state;
    assert_int_equal(pairwise_make(&p, rows, ROWS_MAX, &counts), 0);
    check(&p, &counts);
    assert_true(counts.illegal > 1);
    assert_false(has_pair(counts.rows, 0, 2, 1, 1));
}

static void the_same_seed_gives_the_same_table(void **state)
{
    struct pairwise p = {9, {5, 4, 5, 3, 3, 2, 6, 4, 2}, some_legal, 11};
    struct pairwise_counts first;
    struct pairwise_counts second;
    struct pairwise_row *kept = calloc(ROWS_MAX, sizeof(*kept));
    (void)state;
    assert_non_null(kept);
    assert_int_equal(pairwise_make(&p, kept, ROWS_MAX, &first), 0);
    memset(rows, 0xff, sizeof(rows));
    assert_int_equal(pairwise_make(&p, rows, ROWS_MAX, &second), 0);
    assert_int_equal(first.rows, second.rows);
    assert_memory_equal(kept, rows, first.rows * sizeof(*kept));
    free(kept);
}

static void too_little_room_is_said_and_not_overrun(void **state)
{
    struct pairwise p = {4, {4, 4, 4, 4}, NULL, 1};
    struct pairwise_counts counts = {77, 0, 0};
    (void)state;
    memset(rows, 0xee, sizeof(rows));
    assert_int_equal(pairwise_make(&p, rows, 15, &counts), -1);
    assert_int_equal(counts.rows, 77);
    assert_int_equal(rows[15].level[0], 0xee);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_occurs_for_all_small_sizes),
        cmocka_unit_test(the_largest_table_is_complete_and_small),
        cmocka_unit_test(forbidden_combinations_occur_in_no_row),
        cmocka_unit_test(the_same_seed_gives_the_same_table),
        cmocka_unit_test(too_little_room_is_said_and_not_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
