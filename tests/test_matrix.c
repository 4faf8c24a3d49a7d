/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_matrix.c - every pair of options of a job, each exchange compared bit for bit with the
 * model.
 *
 * A few tables run, which pair their options in different rows. AFD_MATRIX_SEED=n runs table n
 * alone, and AFD_MATRIX_ROW=n its row n alone.
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

#define TABLES 2u

static uint32_t number_of(const char *name, uint32_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void fail_row(uint32_t seed, uint32_t row, uint32_t wave, const char *why)
{
    char text[1024];
    matrix_describe(&matrix.row[row], text, sizeof(text));
    fail_msg("row %u, wave %u: %s\n    %s\n    AFD_MATRIX_SEED=%u AFD_MATRIX_ROW=%u runs it alone",
             row, wave, why, text, seed, row);
}

static void run_row(uint32_t seed, uint32_t row)
{
    struct job *job = &current.job;
    matrix_case_begin(&matrix.row[row], seed * 1000 + row, &current);
    if (job_open(job) != 0)
        for (uint32_t r = 0; r < job->world; r++)
            if (job->create_rc[r] != 0)
                fail_row(seed, row, 0, job->create_error[r]);
    for (uint32_t wave = 0; wave < current.waves; wave++) {
        int rc = matrix_case_wave(&current, wave);
        if (job->mismatches != 0)
            fail_row(seed, row, wave, job->first_mismatch);
        if (rc != 0)
            fail_row(seed, row, wave, afd_last_error());
    }
    matrix_case_end(&current);
}

static void run_table(uint32_t seed)
{
    uint32_t only = number_of("AFD_MATRIX_ROW", UINT32_MAX);
    assert_int_equal(matrix_make(seed, &matrix), 0);
    for (uint32_t row = 0; row < matrix.counts.rows; row++)
        if (only == UINT32_MAX || only == row)
            run_row(seed, row);
}

static void every_pair_of_options_matches_the_reference(void **state)
{
    uint32_t only = number_of("AFD_MATRIX_SEED", 0);
    uint32_t rows = 0;
    (void)state;
    for (uint32_t seed = 1; seed <= TABLES && only == 0; seed++) {
        run_table(seed);
        rows += matrix.counts.rows;
    }
    if (only != 0) {
        run_table(only);
        rows = matrix.counts.rows;
    }
    printf(
        "report: matrix: %u combinations; a table covers %u pairs of %u options (%u not legal)\n",
        rows, matrix.counts.pairs - matrix.counts.illegal, matrix.factors, matrix.counts.illegal);
}

/* Credits are added by several blocks and stored by a lone one, whole rows or parts. */
static void blocks_change_between_one_and_many_in_any_order(void **state)
{
    static const uint32_t blocks[] = {1, 16, 1, 1, 3, 16, 2, 1, 7, 1, 16, 16, 1};
    static struct job job;
    struct afd_buffer_config c;
    (void)state;
    afd_buffer_config_init(&c);
    c.capacity = 20;
    c.hidden = 3000; /* up to 11 parts */
    c.experts = 6;
    c.topk = 2;
    job_init(&job, "FAFA", &c);
    assert_int_equal(job_open(&job), 0);
    for (uint32_t n = 0; n < 13 * 13; n++) {
        uint32_t tokens[JOB_RANKS_MAX] = {n % 4, n % 5 == 4 ? 20 : 1};
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t turn = job.roles[r] == AFD_ROLE_FFN ? n / 13 : n % 13;
            assert_int_equal(afd_buffer_set_blocks(job.buffer[r], blocks[turn]), 0);
        }
        if (job_exchange(&job, 0, n + 1, tokens) != 0 || job.mismatches != 0)
            fail_msg("exchange %u: %s %s", n, job.first_mismatch, afd_last_error());
    }
    job_close(&job);
}

/* The presence mask in every position; more tokens than pairwise rows have in words. */
static void words_carry_any_count_of_tokens_up_to_256(void **state)
{
    static const uint32_t counts[] = {1, 31, 32, 33, 95, 96, 97, 191, 192, 193, 255, 256};
    static struct job job;
    struct afd_buffer_config c;
    (void)state;
    afd_buffer_config_init(&c);
    c.capacity = c.words_tokens = 256;
    c.hidden = 7;
    c.experts = 6;
    c.topk = 2;
    c.variant = c.reply_variant = AFD_VARIANT_WORDS;
    job_init(&job, "FAFA", &c);
    job.options.no_routes_in = 3;
    assert_int_equal(job_open(&job), 0);
    for (uint32_t n = 0; n < 12; n++) {
        uint32_t tokens[JOB_RANKS_MAX] = {counts[n], counts[11 - n]};
        if (job_exchange(&job, 0, n + 1, tokens) != 0 || job.mismatches != 0)
            fail_msg("%u tokens: %s %s", counts[n], job.first_mismatch, afd_last_error());
    }
    job_close(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_options_matches_the_reference),
        cmocka_unit_test(blocks_change_between_one_and_many_in_any_order),
        cmocka_unit_test(words_carry_any_count_of_tokens_up_to_256),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
