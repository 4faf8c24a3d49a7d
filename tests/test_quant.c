/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_quant.c - the conversions against what their formats say, in double and by search.
 *
 * The oracles know a format only as the ascending list of its magnitudes; rounding is then a search
 * for the nearest one. No oracle looks at the bits of the value it rounds.
 */
#include "shared/quant.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BF16_INFINITY 0x7f80u
#define E4M3_MAX 0x7eu

static double bf16_magnitudes[BF16_INFINITY + 1]; /* the last: 2^128, where infinity begins */
static double e4m3_magnitudes[E4M3_MAX + 1];

static int magnitudes_init(void **state)
{
    (void)state;
    for (int code = 0; code <= (int)BF16_INFINITY; code++)
        bf16_magnitudes[code] =
            code < 128 ? ldexp(code, -126 - 7) : ldexp(128 + code % 128, code / 128 - 127 - 7);
    for (int code = 0; code <= (int)E4M3_MAX; code++)
        e4m3_magnitudes[code] =
            code < 8 ? ldexp(code, -6 - 3) : ldexp(8 + code % 8, code / 8 - 7 - 3);
    return 0;
}

/* Index of the magnitude nearest to |value|, the even one of two; value is not NaN. */
static uint32_t nearest(const double *magnitudes, uint32_t last, double value)
{
    double magnitude = fabs(value);
    uint32_t low = 0;
    uint32_t high = last;

    if (magnitude >= magnitudes[last])
        return last;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (magnitudes[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    if (magnitude - magnitudes[low] == magnitudes[high] - magnitude)
        return low % 2 == 0 ? low : high;
    return magnitude - magnitudes[low] < magnitudes[high] - magnitude ? low : high;
}

static uint16_t bf16_oracle(float value)
{
    if (isnan(value))
        return 0x7fc0;
    return (uint16_t)(nearest(bf16_magnitudes, BF16_INFINITY, (double)value) |
                      (signbit(value) ? 0x8000u : 0u));
}

/* By brute force over all codes: the first of the nearest, or the second where that is even. */
static uint8_t e4m3_oracle(double value)
{
    double magnitude = fabs(value) < 1000 ? fabs(value) : 1000; /* as far above 448 as any */
    uint32_t best = 0;

    if (isnan(value))
        return 0x7f;
    for (uint32_t code = 1; code <= E4M3_MAX; code++) {
        double distance = fabs(magnitude - e4m3_magnitudes[code]);
        double least = fabs(magnitude - e4m3_magnitudes[best]);

        if (distance < least || (distance == least && code % 2 == 0))
            best = code;
    }
    return (uint8_t)(best | (signbit(value) ? 0x80u : 0u));
}

static void assert_bf16_of(uint32_t bits)
{
    float value = afd_f32_from_bits(bits);
    uint16_t got = afd_f32_to_bf16(value);
    uint16_t want = bf16_oracle(value);

    if (got != want)
        fail_msg("FP32 0x%08x gives BF16 0x%04x instead of 0x%04x", bits, got, want);
}

static void assert_e4m3_of(float value)
{
    uint8_t got = afd_f32_to_e4m3(value);
    uint8_t want = e4m3_oracle((double)value);

    if (got != want)
        fail_msg("FP32 0x%08x gives E4M3 0x%02x instead of 0x%02x", afd_f32_bits(value), got, want);
}

static void assert_f32_bits(float value, uint32_t want)
{
    if (afd_f32_bits(value) != want)
        fail_msg("value 0x%08x instead of 0x%08x", afd_f32_bits(value), want);
}

/* ----------------------------------------------------------------------------------------- bf16 */

static void every_bf16_has_the_value_of_its_format(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= BF16_INFINITY; code++) {
        double magnitude = code == BF16_INFINITY ? (double)INFINITY : bf16_magnitudes[code];
        float plus = afd_bf16_to_f32((uint16_t)code);
        float minus = afd_bf16_to_f32((uint16_t)(code | 0x8000u));

        assert_true((double)plus == magnitude && !signbit(plus));
        assert_true((double)minus == -magnitude && signbit(minus));
    }
    for (uint32_t code = BF16_INFINITY + 1; code < 0x8000; code++) {
        assert_true(isnan(afd_bf16_to_f32((uint16_t)code)));
        assert_true(isnan(afd_bf16_to_f32((uint16_t)(code | 0x8000u))));
    }
}

static void every_bf16_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++) {
        uint32_t want = (code & 0x7fffu) > BF16_INFINITY ? 0x7fc0 : code;

        assert_int_equal(afd_f32_to_bf16(afd_bf16_to_f32((uint16_t)code)), want);
    }
}

static void bf16_rounds_to_nearest_even_around_every_boundary(void **state)
{
    static const uint32_t offsets[] = {0x0000, 0x0001, 0x0002, 0x7ffe, 0x7fff, 0x8000,
                                       0x8001, 0x8002, 0xfffe, 0xffff, 0x4000, 0xc000};

    (void)state;
    for (uint32_t code = 0; code < BF16_INFINITY; code++) {
        for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
            assert_bf16_of(code << 16 | offsets[i]);
            assert_bf16_of(code << 16 | offsets[i] | 0x80000000u);
        }
    }
}

static void bf16_rounds_to_nearest_even_over_the_whole_range(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(0x100000000); bits += 1021)
        assert_bf16_of((uint32_t)bits);
}

static void bf16_overflows_to_infinity_and_keeps_subnormals_and_signs(void **state)
{
    (void)state;
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x7f7f7fff)), 0x7f7f);
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x7f7f8000)), 0x7f80);
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0xff7fffff)), 0xff80);
    assert_int_equal(afd_f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(afd_f32_to_bf16(-INFINITY), 0xff80);
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x00010000)), 0x0001);
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x00008000)), 0x0000);
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x00008001)), 0x0001);
    assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x007fffff)), 0x0080);
    assert_int_equal(afd_f32_to_bf16(-0.0f), 0x8000);
}

/* Payloads only in the lower half would round to infinity, all ones to zero of the other sign. */
static void bf16_of_every_class_of_nan_is_0x7fc0(void **state)
{
    (void)state;
    for (uint32_t low = 1; low < 0x10000; low++) {
        assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x7f800000u | low)), 0x7fc0);
        assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0xff800000u | low)), 0x7fc0);
        assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x7fff0000u | low)), 0x7fc0);
        assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0xffff0000u | low)), 0x7fc0);
    }
    for (uint32_t payload = 1; payload < 0x800000; payload += 97)
        assert_int_equal(afd_f32_to_bf16(afd_f32_from_bits(0x7f800000u | payload)), 0x7fc0);
}

/* ----------------------------------------------------------------------------------------- e4m3 */

static void every_e4m3_has_the_value_of_its_format(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= E4M3_MAX; code++) {
        float plus = afd_e4m3_to_f32((uint8_t)code);
        float minus = afd_e4m3_to_f32((uint8_t)(code | 0x80u));

        assert_true((double)plus == e4m3_magnitudes[code] && !signbit(plus));
        assert_true((double)minus == -e4m3_magnitudes[code] && signbit(minus));
    }
    assert_f32_bits(afd_e4m3_to_f32(0x7f), 0x7fc00000);
    assert_f32_bits(afd_e4m3_to_f32(0xff), 0x7fc00000);
    /* the table of OFP8 1.0 */
    assert_true(afd_e4m3_to_f32(0x7e) == 448.0f);
    assert_true(afd_e4m3_to_f32(0x08) == 0x1p-6f);
    assert_true(afd_e4m3_to_f32(0x01) == 0x1p-9f);
    assert_true(afd_e4m3_to_f32(0x38) == 1.0f);
}

static void every_e4m3_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x100; code++) {
        uint32_t want = (code & 0x7fu) == 0x7fu ? 0x7f : code;

        assert_int_equal(afd_f32_to_e4m3(afd_e4m3_to_f32((uint8_t)code)), want);
    }
}

static void e4m3_of_every_bf16_is_the_nearest_code(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++)
        assert_e4m3_of(afd_bf16_to_f32((uint16_t)code));
}

static void e4m3_rounds_to_nearest_even_around_every_midpoint(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < E4M3_MAX; code++) {
        float middle = (float)((e4m3_magnitudes[code] + e4m3_magnitudes[code + 1]) / 2);
        uint32_t bits = afd_f32_bits(middle);

        for (uint32_t i = 0; i <= 16; i++) {
            assert_e4m3_of(afd_f32_from_bits(bits - 8 + i));
            assert_e4m3_of(-afd_f32_from_bits(bits - 8 + i));
        }
        bits = afd_f32_bits((float)e4m3_magnitudes[code + 1]);
        for (uint32_t i = 0; i <= 16; i++)
            assert_e4m3_of(afd_f32_from_bits(bits - 8 + i));
    }
}

static void e4m3_rounds_to_nearest_even_over_the_whole_range(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits < UINT64_C(0x100000000); bits += 12289)
        assert_e4m3_of(afd_f32_from_bits((uint32_t)bits));
    /* closer where E4M3 has its codes: 2^-12 .. 2^10 */
    for (uint32_t bits = 0x39800000; bits < 0x44800000; bits += 509)
        assert_e4m3_of(afd_f32_from_bits(bits));
}

static void e4m3_saturates_and_has_one_nan(void **state)
{
    static const uint32_t nans[] = {0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff};

    (void)state;
    assert_int_equal(afd_f32_to_e4m3(464.0f), 0x7e);
    assert_int_equal(afd_f32_to_e4m3(480.0f), 0x7e);
    assert_int_equal(afd_f32_to_e4m3(-480.0f), 0xfe);
    assert_int_equal(afd_f32_to_e4m3(afd_f32_from_bits(0x7f7fffff)), 0x7e);
    assert_int_equal(afd_f32_to_e4m3(INFINITY), 0x7e);
    assert_int_equal(afd_f32_to_e4m3(-INFINITY), 0xfe);
    for (size_t i = 0; i < sizeof(nans) / sizeof(nans[0]); i++) {
        assert_int_equal(afd_f32_to_e4m3(afd_f32_from_bits(nans[i])), 0x7f);
        assert_int_equal(afd_f32_to_e4m3(afd_f32_from_bits(nans[i] | 0x80000000u)), 0x7f);
    }
}

/* --------------------------------------------------------------------------------------- scales */

static void every_ue8m0_is_its_power_of_two(void **state)
{
    (void)state;
    for (int byte = 0; byte < 255; byte++)
        assert_true((double)afd_ue8m0_to_f32((uint8_t)byte) == ldexp(1, byte - 127));
    assert_f32_bits(afd_ue8m0_to_f32(0), 0x00400000);
    assert_f32_bits(afd_ue8m0_to_f32(255), 0x7fc00000);
}

static void scale_exponent_is_the_smallest_that_holds_amax(void **state)
{
    static const uint32_t mantissas[] = {0,        1,        2,        0x200000,
                                         0x400000, 0x5ffffe, 0x5fffff, 0x600000,
                                         0x600001, 0x600002, 0x7ffffe, 0x7fffff};

    (void)state;
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        for (size_t i = 0; i < sizeof(mantissas) / sizeof(mantissas[0]); i++) {
            float amax = afd_f32_from_bits(exponent << 23 | mantissas[i]);
            int32_t e = afd_fp8_scale_exponent(amax);

            assert_true((double)amax <= ldexp(448, e));
            assert_true(e >= -117);
            assert_true(e == -117 || (double)amax > ldexp(448, e - 1));
            assert_int_equal(afd_fp8_scale_byte(amax), 127 + e);
            assert_true((double)afd_ue8m0_to_f32(afd_fp8_scale_byte(amax)) == ldexp(1, e));
        }
    }
}

static void scale_exponent_of_zero_subnormal_and_infinity(void **state)
{
    (void)state;
    assert_int_equal(afd_fp8_scale_exponent(0.0f), -117);
    assert_int_equal(afd_fp8_scale_exponent(afd_f32_from_bits(1)), -117);
    assert_int_equal(afd_fp8_scale_exponent(afd_f32_from_bits(0x007fffff)), -117);
    assert_int_equal(afd_fp8_scale_exponent(INFINITY), 120);
    assert_int_equal(afd_fp8_scale_exponent(448.0f), 0);
    assert_int_equal(afd_fp8_scale_exponent(450.0f), 1);
    assert_int_equal(afd_fp8_scale_byte(0.0f), 10);
    assert_int_equal(afd_fp8_scale_byte(INFINITY), 247);
}

static void scale_groups_count_a_ragged_last_group(void **state)
{
    (void)state;
    assert_int_equal(AFD_SCALE_GROUP, 128);
    assert_int_equal(afd_scale_groups(1), 1);
    assert_int_equal(afd_scale_groups(127), 1);
    assert_int_equal(afd_scale_groups(128), 1);
    assert_int_equal(afd_scale_groups(129), 2);
    assert_int_equal(afd_scale_groups(2880), 23);
    assert_int_equal(afd_scale_groups(7168), 56);
    assert_int_equal(afd_scale_groups(0xffffffffu), 0x2000000);
}

/* --------------------------------------------------------------------------------------- groups */

/* One group against its definition: every code, every decoded value, and nothing beyond n. */
static void assert_group(const uint16_t *x, uint32_t n)
{
    uint8_t q[AFD_SCALE_GROUP + 1];
    float back[AFD_SCALE_GROUP + 1];
    double amax = 0;
    uint8_t scale;

    memset(q, 0xa5, sizeof(q));
    back[n] = 12345.0f;
    scale = afd_fp8_quantize_group(x, n, q);
    afd_fp8_dequantize_group(q, n, scale, back);
    for (uint32_t i = 0; i < n; i++) {
        double magnitude = fabs((double)afd_bf16_to_f32(x[i]));

        amax = magnitude > amax ? magnitude : amax; /* never true of NaN */
    }
    assert_int_equal(scale, afd_fp8_scale_byte((float)amax));
    for (uint32_t i = 0; i < n; i++) {
        double value = (double)afd_bf16_to_f32(x[i]);
        double exact = q[i] == 0x7f ? (double)NAN : e4m3_magnitudes[q[i] & 0x7fu];
        float want = (float)ldexp(q[i] < 0x80 ? exact : -exact, scale - 127);

        assert_int_equal(q[i], e4m3_oracle(ldexp(value, 127 - scale)));
        assert_f32_bits(back[i], isnan(value) ? 0x7fc00000 : afd_f32_bits(want));
    }
    assert_int_equal(q[n], 0xa5);
    assert_true(back[n] == 12345.0f);
}

static uint32_t random_next(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

static void groups_of_every_length_follow_the_definition(void **state)
{
    uint16_t x[AFD_SCALE_GROUP];
    uint32_t seed = 1;

    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t n = 0; n <= AFD_SCALE_GROUP; n++) {
            /* 16 exponents below a random one, now and then anything at all */
            uint32_t top = random_next(&seed) % 256;

            for (uint32_t i = 0; i < n; i++) {
                uint32_t exponent = top - random_next(&seed) % (top < 16 ? top + 1 : 16);
                uint32_t sign_and_mantissa = random_next(&seed) & 0x807fu;

                x[i] = (uint16_t)(exponent << 7 | sign_and_mantissa);
                if (round % 4 == 3)
                    x[i] = (uint16_t)random_next(&seed);
            }
            assert_group(x, n);
        }
    }
}

static void each_bf16_alone_and_beside_a_large_value_follows_the_definition(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x10000; code++) {
        uint16_t pair[2] = {(uint16_t)code, 0x7f70}; /* 1.875 x 2^127: e = 120 */

        assert_group(pair, 1);
        assert_group(pair, 2);
    }
}

static void quantized_values_keep_four_bits(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < BF16_INFINITY; code++) {
        uint16_t x = (uint16_t)code;
        uint8_t q;
        uint8_t scale = afd_fp8_quantize_group(&x, 1, &q);
        double value = bf16_magnitudes[code];
        double error = fabs((double)afd_fp8_dequantize(q, scale) - value);

        if (value >= 0x1p-123 && value < 248 * 0x1p120)
            assert_true(error <= value / 16);
    }
}

static void infinity_survives_a_group_and_nan_does_not_touch_its_scale(void **state)
{
    static const uint16_t x[] = {0x7f80, 0xff80, 0x3f80, 0x7fc1};
    static const uint16_t with_nan[] = {0xffff, 0x3f80, 0x7f81};
    uint8_t q[4];
    float back[4];

    (void)state;
    assert_int_equal(afd_fp8_quantize_group(x, 4, q), 247);
    assert_int_equal(q[0], 0x7e);
    assert_int_equal(q[1], 0xfe);
    assert_int_equal(q[2], 0);
    assert_int_equal(q[3], 0x7f);
    afd_fp8_dequantize_group(q, 4, 247, back);
    assert_f32_bits(back[0], 0x7f800000);
    assert_f32_bits(back[1], 0xff800000);
    assert_f32_bits(back[2], 0);
    assert_true(isnan(back[3]));
    assert_int_equal(afd_fp8_quantize_group(with_nan, 3, q), afd_fp8_scale_byte(1.0f));
    assert_int_equal(q[1], 0x78); /* 1.0 = 256 x 2^-8 */
    assert_int_equal(afd_fp8_quantize_group(with_nan, 1, q), 10);
}

/* 248 x 2^120 is halfway between 240 and 256, and 256 x 2^120 is 2^128. */
static void the_largest_finite_values_decode_to_infinity_from_248_on(void **state)
{
    static const uint16_t x[] = {0x7f77, 0x7f78};
    uint8_t q[2];
    float back[2];

    (void)state;
    assert_int_equal(afd_fp8_quantize_group(x, 2, q), 247);
    afd_fp8_dequantize_group(q, 2, 247, back);
    assert_true((double)back[0] == ldexp(240, 120));
    assert_f32_bits(back[1], 0x7f800000);
}

static void zero_groups_keep_their_signs_and_take_the_smallest_scale(void **state)
{
    static const uint16_t x[] = {0x0000, 0x8000};
    uint8_t q[2];
    float back[2];

    (void)state;
    assert_int_equal(afd_fp8_quantize_group(x, 2, q), 10);
    assert_int_equal(q[0], 0x00);
    assert_int_equal(q[1], 0x80);
    afd_fp8_dequantize_group(q, 2, 10, back);
    assert_f32_bits(back[0], 0);
    assert_f32_bits(back[1], 0x80000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_has_the_value_of_its_format),
        cmocka_unit_test(every_bf16_survives_the_round_trip),
        cmocka_unit_test(bf16_rounds_to_nearest_even_around_every_boundary),
        cmocka_unit_test(bf16_rounds_to_nearest_even_over_the_whole_range),
        cmocka_unit_test(bf16_overflows_to_infinity_and_keeps_subnormals_and_signs),
        cmocka_unit_test(bf16_of_every_class_of_nan_is_0x7fc0),
        cmocka_unit_test(every_e4m3_has_the_value_of_its_format),
        cmocka_unit_test(every_e4m3_survives_the_round_trip),
        cmocka_unit_test(e4m3_of_every_bf16_is_the_nearest_code),
        cmocka_unit_test(e4m3_rounds_to_nearest_even_around_every_midpoint),
        cmocka_unit_test(e4m3_rounds_to_nearest_even_over_the_whole_range),
        cmocka_unit_test(e4m3_saturates_and_has_one_nan),
        cmocka_unit_test(every_ue8m0_is_its_power_of_two),
        cmocka_unit_test(scale_exponent_is_the_smallest_that_holds_amax),
        cmocka_unit_test(scale_exponent_of_zero_subnormal_and_infinity),
        cmocka_unit_test(scale_groups_count_a_ragged_last_group),
        cmocka_unit_test(groups_of_every_length_follow_the_definition),
        cmocka_unit_test(each_bf16_alone_and_beside_a_large_value_follows_the_definition),
        cmocka_unit_test(quantized_values_keep_four_bits),
        cmocka_unit_test(infinity_survives_a_group_and_nan_does_not_touch_its_scale),
        cmocka_unit_test(the_largest_finite_values_decode_to_infinity_from_248_on),
        cmocka_unit_test(zero_groups_keep_their_signs_and_take_the_smallest_scale),
    };

    return cmocka_run_group_tests(tests, magnitudes_init, NULL);
}
