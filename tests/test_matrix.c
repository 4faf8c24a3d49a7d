/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_matrix.c - every pair of options of a job, each exchange compared bit for bit with the model.
 *
 * AFD_MATRIX_ROW=n runs row n alone.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "matrix.h"

static struct matrix matrix;
static struct matrix_case current;

static int make_table(void **state)
{
    (void)state;
    return matrix_make(&matrix);
}

static void fail_row(uint32_t row, uint32_t wave, const char *why)
{
    char text[1024];
    matrix_describe(&matrix.row[row], text, sizeof(text));
    fail_msg("row %u, wave %u: %s\n    %s\n    AFD_MATRIX_ROW=%u runs it alone", row, wave, why,
             text, row);
}

static void run_row(uint32_t row)
{
    struct job *job = &current.job;
    matrix_case_begin(&matrix.row[row], row + 1, &current);
    if (job_open(job) != 0)
        for (uint32_t r = 0; r < job->world; r++)
            if (job->create_rc[r] != 0)
                fail_row(row, 0, job->create_error[r]);
    for (uint32_t wave = 0; wave < current.waves; wave++) {
        int rc = matrix_case_wave(&current, wave);
        if (job->mismatches != 0)
            fail_row(row, wave, job->first_mismatch);
        if (rc != 0)
            fail_row(row, wave, afd_last_error());
    }
    matrix_case_end(&current);
}

static void every_pair_of_options_matches_the_reference(void **state)
{
    const char *only = getenv("AFD_MATRIX_ROW");
    (void)state;
    if (only != NULL) {
        uint32_t row = (uint32_t)strtoul(only, NULL, 10);
        assert_in_range(row, 0, matrix.counts.rows - 1);
        run_row(row);
        return;
    }
    for (uint32_t row = 0; row < matrix.counts.rows; row++)
        run_row(row);
    printf(
        "report: matrix: %u combinations cover %u pairs of %u options (%u pairs are not legal)\n",
        matrix.counts.rows, matrix.counts.pairs - matrix.counts.illegal, matrix.factors,
        matrix.counts.illegal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_options_matches_the_reference),
    };
    return cmocka_run_group_tests(tests, make_table, NULL);
}
