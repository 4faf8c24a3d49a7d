/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reference_sums.c - the model's replies and last sums against cases worked out by hand.
 *
 * BF16 literals: 0x3f80 = 1, 0xbf80 = -1, 0x3f81 = 1 + 2^-7, 0x4000 = 2; the powers 2^-8, 2^-9,
 * 2^-23 and 2^-24 are 0x3b80, 0x3b00, 0x3400 and 0x3380.
 */
#include "afd/afd.h"
#include "reference.h"
#include "shared/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t on_rank_0[] = {0, 0, 0, 0, 0, 0, 0, 0};

/* One source, one FFN rank, one element; the fields a test is about are set by the test. */
static struct afd_reference shape(uint32_t experts, uint32_t topk)
{
    struct afd_reference ref;

    memset(&ref, 0, sizeof(ref));
    ref.sources = 1;
    ref.ffn_ranks = 1;
    ref.capacity = 8;
    ref.hidden = 1;
    ref.experts = experts;
    ref.topk = topk;
    ref.payload_bytes = 2;
    ref.alignment = 1;
    ref.placement = on_rank_0;
    return ref;
}

static const uint8_t any_row[64] = {1, 2, 3};

static struct afd_reference_source tokens(uint32_t count, const int64_t *ids)
{
    struct afd_reference_source source = {count, ids, NULL, any_row, NULL};

    return source;
}

/* -------------------------------------------------------------------------------------- replies */

/* The reply to one token whose `count` rows have these values, in ascending order of expert. */
static uint16_t reply_of(const uint16_t *rows, const float *weights, uint32_t count)
{
    int64_t ids[8];
    struct afd_reference ref = shape(8, count);
    struct afd_reference_source source = tokens(1, ids);
    struct afd_reference_batch batch;
    uint16_t row = 0x1234;

    for (uint32_t i = 0; i < count; i++)
        ids[i] = i;
    source.weights = weights;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, weights != NULL, 0, 0, &row), count);
    afd_reference_batch_free(&batch);
    return row;
}

static uint16_t sum_of(const uint16_t *values, uint32_t count)
{
    const uint16_t *terms[8];
    uint16_t row = 0x1234;

    for (uint32_t i = 0; i < count; i++)
        terms[i] = values + i;
    afd_reference_sum(terms, count, 1, &row);
    return row;
}

/* Both stages of the same unweighted terms. */
static void assert_both(uint16_t want, uint32_t count, const uint16_t *values)
{
    assert_int_equal(reply_of(values, NULL, count), want);
    assert_int_equal(sum_of(values, count), want);
}

/* Rows 0 .. 3 are experts 0, 0, 2, 3 (a second token takes row 1); hidden 2. */
static void reply_sums_the_rows_of_its_token_only(void **state)
{
    static const int64_t ids_0[] = {3, 0, 2};
    static const int64_t ids_1[] = {-1, 0, -1};
    static const uint16_t rows[] = {0x3f80, 0x4000, 0x7f80, 0x7f80, 0x4000, 0x3f80, 0x4000, 0xbf80};
    struct afd_reference ref = shape(4, 3);
    struct afd_reference_source sources[] = {tokens(1, ids_0), tokens(1, ids_1)};
    struct afd_reference_batch batch;
    uint16_t row[3] = {7, 7, 7};

    (void)state;
    ref.sources = 2;
    ref.hidden = 2;
    assert_int_equal(afd_reference_batch(&ref, sources, 0, &batch), 0);
    assert_int_equal(batch.row_count, 4);
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 0, 0, 0, row), 3);
    assert_int_equal(row[0], 0x40a0); /* 1 + 2 + 2 */
    assert_int_equal(row[1], 0x4000); /* 2 + 1 - 1 */
    assert_int_equal(row[2], 7);
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 0, 1, 0, row), 1);
    assert_int_equal(row[0], 0x7f80);
    afd_reference_batch_free(&batch);
}

static void reply_without_rows_writes_nothing(void **state)
{
    static const int64_t ids[] = {-1, 0};
    static const uint16_t rows[] = {0x3f80};
    struct afd_reference ref = shape(1, 1);
    struct afd_reference_source source = tokens(2, ids);
    struct afd_reference_batch batch;
    uint16_t row = 0x1234;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 0, 0, 0, &row), 0);
    assert_int_equal(row, 0x1234);
    afd_reference_batch_free(&batch);
}

/* Lanes in descending order, padding between the groups: the order is that of the experts. */
static void reply_adds_in_ascending_order_of_expert_whatever_the_lanes(void **state)
{
    static const int64_t ids[] = {3, 2, 1, 0};
    static const uint16_t rows[] = {0x3380, 0x7fc0, 0x3380, 0x7fc0, 0x3f80, 0x7fc0, 0xbf80, 0x7fc0};
    struct afd_reference ref = shape(4, 4);
    struct afd_reference_source source = tokens(1, ids);
    struct afd_reference_batch batch;
    uint16_t row = 0x1234;

    (void)state;
    ref.alignment = 2;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 0, 0, 0, &row), 4);
    assert_int_equal(row, 0x3400); /* ((2^-24 + 2^-24) + 1) - 1; the other way round gives 0 */
    afd_reference_batch_free(&batch);
}

/* In double, or as a tree, the sum would be 2^-23. */
static void sums_are_rounded_to_fp32_after_every_term(void **state)
{
    static const uint16_t values[] = {0x3f80, 0x3380, 0x3380, 0xbf80};

    (void)state;
    assert_both(0x0000, 4, values);
}

static void sum_adds_in_the_given_order_so_bias_comes_first(void **state)
{
    static const uint16_t bias_first[] = {0x3380, 0x3380, 0x3f80, 0xbf80};
    static const uint16_t bias_last[] = {0x3f80, 0xbf80, 0x3380, 0x3380};
    static const uint16_t bias_between[] = {0x3f80, 0x3380, 0xbf80, 0x3380};

    (void)state;
    assert_int_equal(sum_of(bias_first, 4), 0x3400);
    assert_int_equal(sum_of(bias_last, 4), 0x3400);
    assert_int_equal(sum_of(bias_between, 4), 0x3380);
}

/* FFN rank 0: 1 + 2^-8 is halfway and goes to 1; then 1 + 2^-9 goes to 1. At once: 1 + 2^-7. */
static void each_stage_rounds_to_bf16(void **state)
{
    static const uint16_t rank_0[] = {0x3f80, 0x3b80};
    static const uint16_t at_once[] = {0x3f80, 0x3b80, 0x3b00};
    uint16_t replies[2];

    (void)state;
    replies[0] = reply_of(rank_0, NULL, 2);
    replies[1] = reply_of(at_once + 2, NULL, 1);
    assert_int_equal(replies[0], 0x3f80);
    assert_int_equal(replies[1], 0x3b00);
    assert_int_equal(sum_of(replies, 2), 0x3f80);
    assert_both(0x3f81, 3, at_once);
}

static void one_rounding_goes_to_the_nearest_even(void **state)
{
    static const uint16_t down[] = {0x3f80, 0x3b80};     /* 1 + half a unit: 1 */
    static const uint16_t up[] = {0x3f81, 0x3b80};       /* 1 + 2^-7 + half: 1 + 2^-6 */
    static const uint16_t carry[] = {0x3fff, 0x3b80};    /* the largest below 2: 2 */
    static const uint16_t negative[] = {0xbf81, 0xbb80}; /* and of the other sign */

    (void)state;
    assert_both(0x3f80, 2, down);
    assert_both(0x3f82, 2, up);
    assert_both(0x4000, 2, carry);
    assert_both(0xbf82, 2, negative);
}

static void negative_zero_survives_because_the_first_term_starts_the_sum(void **state)
{
    static const uint16_t minus[] = {0x8000, 0x8000};
    static const uint16_t mixed[] = {0x8000, 0x0000};
    static const float one[] = {1.0f, 1.0f};
    static const float minus_one[] = {-1.0f, -1.0f};

    (void)state;
    assert_both(0x8000, 1, minus);
    assert_both(0x8000, 2, minus);
    assert_both(0x0000, 2, mixed);
    assert_int_equal(reply_of(minus, one, 2), 0x8000);
    assert_int_equal(reply_of(minus, minus_one, 2), 0x0000);
}

static void nan_becomes_0x7fc0_also_in_a_single_row(void **state)
{
    static const uint16_t nans[] = {0x7f81, 0x7fff, 0xffc1, 0xff80 + 1, 0x7fc0};
    static const uint16_t infinities[] = {0x7f80, 0xff80};
    static const float zero[] = {0.0f};

    (void)state;
    for (size_t i = 0; i < sizeof(nans) / sizeof(nans[0]); i++) {
        uint16_t values[2] = {0x3f80, nans[i]};

        assert_both(0x7fc0, 1, values + 1);
        assert_both(0x7fc0, 2, values);
    }
    assert_both(0x7fc0, 2, infinities);
    assert_both(0xff80, 1, infinities + 1);
    assert_int_equal(reply_of(infinities, zero, 1), 0x7fc0);
}

static void subnormals_are_kept_and_overflow_is_infinity(void **state)
{
    static const uint16_t tiny[] = {0x0001, 0x0001, 0x8001};
    static const uint16_t border[] = {0x007f, 0x0001};
    static const uint16_t huge[] = {0x7f7f, 0x7f7f, 0xff7f};
    static const float half[] = {0.5f, 0.5f};

    (void)state;
    assert_both(0x0002, 2, tiny);
    assert_both(0x0001, 3, tiny);
    assert_both(0x0080, 2, border);
    assert_both(0x7f80, 2, huge);
    assert_both(0x7f80, 3, huge); /* FP32 overflows before the third term */
    assert_int_equal(reply_of(tiny, half, 2), 0x0001);
}

static void weights_multiply_only_when_asked_for(void **state)
{
    static const int64_t ids[] = {1, 0};
    static const float weights[] = {2.0f, 0.5f};
    static const uint16_t rows[] = {0x4000, 0x3f80}; /* expert 0: 2, expert 1: 1 */
    struct afd_reference ref = shape(2, 2);
    struct afd_reference_source source = tokens(1, ids);
    struct afd_reference_batch batch;
    uint16_t row;

    (void)state;
    source.weights = weights;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 1, 0, 0, &row), 2);
    assert_int_equal(row, 0x4040); /* 0.5 x 2 + 2 x 1 */
    batch.weights[0] = 0.25f;
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 1, 0, 0, &row), 2);
    assert_int_equal(row, 0x4020); /* 0.25 x 2 + 2 x 1 */
    assert_int_equal(afd_reference_reply(&ref, &batch, rows, 0, 0, 0, &row), 2);
    assert_int_equal(row, 0x4040); /* 2 + 1 */
    afd_reference_batch_free(&batch);
}

/* (1 + 2^-23)(1 + 2^-7) ends in 2^-30, which FP32 drops; a fused operation would keep it. */
static void products_are_rounded_before_they_are_added(void **state)
{
    static const uint16_t rows[] = {0xbf81, 0x3f81};
    static const float weights[] = {1.0f, 1.0f + 0x1p-23f};

    (void)state;
    assert_int_equal(reply_of(rows, weights, 2), 0x3400);
}

static void sum_of_nothing_is_zero(void **state)
{
    uint16_t row[3] = {0x1234, 0x1234, 0x1234};

    (void)state;
    afd_reference_sum(NULL, 0, 2, row);
    assert_int_equal(row[0], 0);
    assert_int_equal(row[1], 0);
    assert_int_equal(row[2], 0x1234);
}

/* ------------------------------------------------------------------------------------ agreement */

static uint32_t random_next(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

static void single_terms_agree_with_the_shared_conversions_for_every_bf16(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++) {
        uint16_t value = (uint16_t)code;

        assert_int_equal(sum_of(&value, 1), afd_f32_to_bf16(afd_bf16_to_f32(value)));
    }
}

/* Two of three pairs have near exponents, so that the sums need rounding. */
static void sums_and_products_agree_with_fp32_and_the_shared_conversions(void **state)
{
    uint32_t seed = 7;
    uint16_t rows[1];
    struct afd_reference ref = shape(1, 1);
    uint32_t slot = 0;
    float weight;
    struct afd_reference_batch batch;

    (void)state;
    memset(&batch, 0, sizeof(batch));
    batch.row_count = 1;
    batch.slots = &slot;
    batch.weights = &weight;
    for (uint32_t i = 0; i < 300000; i++) {
        uint16_t pair[2] = {(uint16_t)random_next(&seed), (uint16_t)random_next(&seed)};
        uint16_t got;
        float a = afd_bf16_to_f32(pair[0]);
        float b;

        if (i % 3 != 0)
            pair[1] = (uint16_t)(pair[0] ^ (random_next(&seed) & 0x83ffu));
        b = afd_bf16_to_f32(pair[1]);
        assert_int_equal(sum_of(pair, 2), afd_f32_to_bf16(a + b));
        rows[0] = pair[0];
        weight = afd_f32_from_bits(random_next(&seed));
        assert_int_equal(afd_reference_reply(&ref, &batch, rows, 1, 0, 0, &got), 1);
        assert_int_equal(got, afd_f32_to_bf16(weight * a));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reply_sums_the_rows_of_its_token_only),
        cmocka_unit_test(reply_without_rows_writes_nothing),
        cmocka_unit_test(reply_adds_in_ascending_order_of_expert_whatever_the_lanes),
        cmocka_unit_test(sums_are_rounded_to_fp32_after_every_term),
        cmocka_unit_test(sum_adds_in_the_given_order_so_bias_comes_first),
        cmocka_unit_test(each_stage_rounds_to_bf16),
        cmocka_unit_test(one_rounding_goes_to_the_nearest_even),
        cmocka_unit_test(negative_zero_survives_because_the_first_term_starts_the_sum),
        cmocka_unit_test(nan_becomes_0x7fc0_also_in_a_single_row),
        cmocka_unit_test(subnormals_are_kept_and_overflow_is_infinity),
        cmocka_unit_test(weights_multiply_only_when_asked_for),
        cmocka_unit_test(products_are_rounded_before_they_are_added),
        cmocka_unit_test(sum_of_nothing_is_zero),
        cmocka_unit_test(single_terms_agree_with_the_shared_conversions_for_every_bf16),
        cmocka_unit_test(sums_and_products_agree_with_fp32_and_the_shared_conversions),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
