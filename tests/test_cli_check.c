/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command's own check of a batch: a right one passes, and any single wrong value is counted. A
 * check that finds nothing is worth nothing.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../cli/job.h"

#define TOKENS 6u
#define EXCHANGE 11u

struct fixture {
    struct cli_options options;
    struct cli_job *job;
    struct afd_reference_batch want; /* a batch as FFN rank 1 must see it; tests spoil it */
    struct afd_batch got;
};

static void setup(struct fixture *f, const char *payload)
{
    const char *argv[] = {
        "run", "--layout",  "2A2F",     "--hidden",       "130",       "--experts",
        "7",   "--topk",    "3",        "--tokens",       "6",         "--align",
        "4",   "--weights", "--switch", "zero-padding=1", "--payload", payload};
    struct afd_reference_source source[2];
    struct cli_input in[2];
    memset(f, 0, sizeof(*f));
    f->job = calloc(1, sizeof(*f->job));
    assert_non_null(f->job);
    assert_int_equal(
        cli_options_parse("run", (int)(sizeof(argv) / sizeof(argv[0])), argv, &f->options), CLI_OK);
    assert_int_equal(cli_job_make(&f->options, f->job), CLI_OK);
    memset(source, 0, sizeof(source));
    for (uint32_t s = 0; s < 2; s++) {
        assert_int_equal(cli_input_alloc(f->job, &in[s]), CLI_OK);
        cli_input_fill(f->job, EXCHANGE, s, TOKENS, &in[s]);
        source[s].count = TOKENS;
        source[s].ids = in[s].ids;
        source[s].weights = in[s].weights;
        source[s].x = in[s].x;
        source[s].scales = f->job->ref.scale_bytes != 0 ? in[s].scales : NULL;
    }
    assert_int_equal(afd_reference_batch(&f->job->ref, source, 1, &f->want), 0);
    for (uint32_t s = 0; s < 2; s++)
        cli_input_free(&in[s]);
    f->got.rows = f->want.rows;
    f->got.rows_stride = f->job->ref.payload_bytes;
    f->got.counts = f->want.counts;
    f->got.offsets = f->want.offsets;
    f->got.scales = f->want.scales;
    f->got.scales_row_stride = f->job->ref.scale_bytes;
    f->got.scales_group_stride = f->job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1;
    f->got.weights = f->want.weights;
    f->got.slots = f->want.slots;
    f->got.row_count = f->want.row_count;
    f->got.token_count = f->want.token_count;
}

static uint64_t wrong(const struct fixture *f)
{
    return cli_batch_check(f->job, 1, EXCHANGE, TOKENS, f->want.expert_ids, &f->got);
}

static void teardown(struct fixture *f)
{
    afd_reference_batch_free(&f->want);
    cli_job_free(f->job);
    cli_options_free(&f->options);
    free(f->job);
}

/* The first row that is padding (1) or not (0). */
static uint64_t row_of(const struct fixture *f, int padding)
{
    for (uint64_t r = 0; r < f->want.row_count; r++)
        if ((f->want.slots[r] == AFD_SLOT_NONE) == padding)
            return r;
    fail_msg("no such row");
    return 0;
}

static void a_right_batch_has_nothing_wrong(void **state)
{
    static const char *const payloads[] = {"bf16", "fp8", "fp8-ue8m0", "bytes:33"};
    (void)state;
    for (size_t i = 0; i < sizeof(payloads) / sizeof(payloads[0]); i++) {
        struct fixture f;
        setup(&f, payloads[i]);
        assert_int_equal(wrong(&f), 0);
        teardown(&f);
    }
}

static void each_wrong_byte_of_a_row_is_counted(void **state)
{
    struct fixture f;
    uint8_t *row;
    (void)state;
    setup(&f, "bf16");
    row = f.want.rows + row_of(&f, 0) * f.got.rows_stride;
    for (uint32_t b = 0; b < f.job->ref.payload_bytes; b++) {
        row[b] ^= 1;
        assert_int_equal(wrong(&f), 1);
        row[b] ^= 1;
    }
    row[0] ^= 1;
    row[f.job->ref.payload_bytes - 1] ^= 1;
    assert_int_equal(wrong(&f), 2);
    teardown(&f);
}

static void padding_that_is_not_zero_is_counted(void **state)
{
    struct fixture f;
    (void)state;
    setup(&f, "bf16");
    f.want.rows[row_of(&f, 1) * f.got.rows_stride + 7] = 1;
    assert_int_equal(wrong(&f), 1);
    f.job->config.zero_padding = 0; /* then it may be anything */
    assert_int_equal(wrong(&f), 0);
    teardown(&f);
}

static void each_wrong_scale_byte_is_counted(void **state)
{
    static const char *const payloads[] = {"fp8", "fp8-ue8m0"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct fixture f;
        uint8_t *scales;
        setup(&f, payloads[i]);
        scales = f.want.scales + row_of(&f, 0) * f.got.scales_row_stride;
        for (uint32_t b = 0; b < f.job->ref.scale_bytes; b++) {
            scales[b] ^= 1;
            assert_int_equal(wrong(&f), 1);
            scales[b] ^= 1;
        }
        teardown(&f);
    }
}

static void a_wrong_slot_weight_count_offset_or_expert_is_counted(void **state)
{
    struct fixture f;
    uint64_t row;
    (void)state;
    setup(&f, "bf16");
    row = row_of(&f, 0);
    f.want.slots[row]++;
    assert_int_equal(wrong(&f), 1);
    f.want.slots[row]--;
    f.want.weights[row] += 1;
    assert_int_equal(wrong(&f), 1);
    f.want.weights[row] -= 1;
    f.want.counts[0]++;
    assert_int_equal(wrong(&f), 1);
    f.want.counts[0]--;
    f.want.offsets[1]++;
    assert_int_equal(wrong(&f), 1);
    f.want.offsets[1]--;
    f.want.offsets[f.want.local_experts]++;
    assert_int_equal(wrong(&f), 1);
    f.want.offsets[f.want.local_experts]--;
    f.want.expert_ids[1]++;
    assert_int_equal(wrong(&f), 1);
    f.want.expert_ids[1]--;
    f.got.row_count++;
    assert_int_equal(wrong(&f), 1);
    f.got.row_count--;
    f.got.token_count--;
    assert_int_equal(wrong(&f), 1);
    f.got.token_count++;
    f.got.weights = NULL; /* although the sources sent some */
    assert_int_equal(wrong(&f), 1);
    f.got.weights = f.want.weights;
    assert_int_equal(wrong(&f), 0);
    teardown(&f);
}

static void the_batch_of_another_exchange_is_wrong(void **state)
{
    struct fixture f;
    (void)state;
    setup(&f, "bf16");
    assert_true(cli_batch_check(f.job, 1, EXCHANGE + 1, TOKENS, f.want.expert_ids, &f.got) != 0);
    teardown(&f);
}

/* Identity answers are prepared in the order of the batch: row r answers row r. */
static void identity_answers_stand_where_the_rows_do(void **state)
{
    struct fixture f;
    uint64_t row_count = 0;
    uint16_t *answers;
    (void)state;
    setup(&f, "bf16");
    answers = cli_batch_identity(f.job, 1, EXCHANGE, TOKENS, &row_count);
    assert_non_null(answers);
    assert_int_equal(row_count, f.want.row_count);
    assert_memory_equal(answers, f.want.rows, row_count * f.got.rows_stride);
    free(answers);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_batch_has_nothing_wrong),
        cmocka_unit_test(each_wrong_byte_of_a_row_is_counted),
        cmocka_unit_test(padding_that_is_not_zero_is_counted),
        cmocka_unit_test(each_wrong_scale_byte_is_counted),
        cmocka_unit_test(a_wrong_slot_weight_count_offset_or_expert_is_counted),
        cmocka_unit_test(the_batch_of_another_exchange_is_wrong),
        cmocka_unit_test(identity_answers_stand_where_the_rows_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
