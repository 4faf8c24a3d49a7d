/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reference.c - the model's placement, batches and refusals against cases worked out by hand.
 */
#include "afd/afd.h"
#include "reference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NONE AFD_SLOT_NONE

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

static void assert_u32(const uint32_t *got, const uint32_t *want, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("[%zu] is %u instead of %u", i, got[i], want[i]);
}

/* ------------------------------------------------------------------------------------ placement */

static void placement_gives_the_first_ranks_one_expert_more(void **state)
{
    static const uint32_t want_7_of_3[] = {0, 0, 0, 1, 1, 2, 2};
    static const uint32_t want_6_of_3[] = {0, 0, 1, 1, 2, 2};
    static const uint32_t want_2_of_3[] = {0, 1};
    uint32_t got[8];

    (void)state;
    memset(got, 0xff, sizeof(got));
    afd_reference_placement(7, 3, got);
    assert_u32(got, want_7_of_3, 7);
    assert_int_equal(got[7], 0xffffffffu);
    afd_reference_placement(6, 3, got);
    assert_u32(got, want_6_of_3, 6);
    afd_reference_placement(2, 3, got);
    assert_u32(got, want_2_of_3, 2);
}

/* -------------------------------------------------------------------------------------- batches */

/*
 * Two sources of 3 and 2 tokens, two FFN ranks, an uneven placement that is not contiguous, groups
 * of 4 rows. Row of token t of source s: three bytes {s, t, 9}, scales {0x80 + s, t}.
 */
static const uint32_t two_placement[] = {1, 0, 1, 1, 0};
static const int64_t two_ids_0[] = {2, 0, -1, 3, 4, 2};
static const int64_t two_ids_1[] = {2, -1, 3, 2};
static const float two_weights_0[] = {0.5f, 0.25f, 9.0f, 3.0f, 4.0f, 5.0f};
static const uint8_t two_x_0[] = {0, 0, 9, 0, 1, 9, 0, 2, 9};
static const uint8_t two_x_1[] = {1, 0, 9, 1, 1, 9};
static const uint8_t two_scales_0[] = {0x80, 0, 0x80, 1, 0x80, 2};
static const uint8_t two_scales_1[] = {0x81, 0, 0x81, 1};

static const struct afd_reference_source two_sources[] = {
    {3, two_ids_0, two_weights_0, two_x_0, two_scales_0},
    {2, two_ids_1, NULL, two_x_1, two_scales_1},
};

static struct afd_reference two_shape(void)
{
    struct afd_reference ref = shape(5, 2);

    ref.sources = 2;
    ref.ffn_ranks = 2;
    ref.payload_bytes = 3;
    ref.scale_bytes = 2;
    ref.alignment = 4;
    ref.placement = two_placement;
    return ref;
}

static void batch_is_ordered_by_expert_then_source_then_token(void **state)
{
    static const uint32_t experts[] = {0, 2, 3};
    static const uint32_t counts[] = {1, 4, 2};
    static const uint32_t offsets[] = {0, 4, 8, 12};
    static const uint32_t slots[] = {0, NONE, NONE, NONE, 0, 2, 8, 9, 1, 9, NONE, NONE};
    struct afd_reference ref = two_shape();
    struct afd_reference_batch batch;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, two_sources, 1, &batch), 0);
    assert_int_equal(batch.local_experts, 3);
    assert_u32(batch.expert_ids, experts, 3);
    assert_u32(batch.counts, counts, 3);
    assert_u32(batch.offsets, offsets, 4);
    assert_int_equal(batch.row_count, 12);
    assert_int_equal(batch.token_count, 5);
    assert_u32(batch.slots, slots, 12);
    afd_reference_batch_free(&batch);
}

static void batch_rows_carry_payload_scales_and_weights_and_padding_is_zero(void **state)
{
    static const float weights[] = {0.25f, 0, 0, 0, 0.5f, 5.0f, 0, 0, 3.0f, 0, 0, 0};
    static const uint8_t zero[3] = {0, 0, 0};
    struct afd_reference ref = two_shape();
    struct afd_reference_batch batch;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, two_sources, 1, &batch), 0);
    for (uint32_t r = 0; r < 12; r++) {
        uint32_t s = batch.slots[r] / 8;
        uint32_t t = batch.slots[r] % 8;
        uint8_t row[] = {(uint8_t)s, (uint8_t)t, 9};
        uint8_t scales[] = {(uint8_t)(0x80 + s), (uint8_t)t};
        int padding = batch.slots[r] == NONE;

        assert_memory_equal(batch.rows + (size_t)r * 3, padding ? zero : row, 3);
        assert_memory_equal(batch.scales + (size_t)r * 2, padding ? zero : scales, 2);
        assert_true(batch.weights[r] == weights[r]);
    }
    afd_reference_batch_free(&batch);
}

static void expert_without_rows_takes_no_rows(void **state)
{
    static const uint32_t counts[] = {0, 1};
    static const uint32_t offsets[] = {0, 0, 4};
    static const uint32_t slots[] = {2, NONE, NONE, NONE};
    struct afd_reference ref = two_shape();
    struct afd_reference_batch batch;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, two_sources, 0, &batch), 0);
    assert_u32(batch.counts, counts, 2);
    assert_u32(batch.offsets, offsets, 3);
    assert_int_equal(batch.row_count, 4);
    assert_int_equal(batch.token_count, 1);
    assert_u32(batch.slots, slots, 4);
    afd_reference_batch_free(&batch);
}

static void group_that_fills_its_alignment_gets_no_padding(void **state)
{
    static const int64_t ids[] = {0, 0, 0, 1, 1};
    static const uint32_t offsets[] = {0, 3, 6};
    struct afd_reference ref = shape(2, 1);
    struct afd_reference_source source = tokens(5, ids);
    struct afd_reference_batch batch;

    (void)state;
    ref.alignment = 3;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_u32(batch.offsets, offsets, 3);
    assert_int_equal(batch.slots[5], NONE);
    assert_null(batch.scales);
    afd_reference_batch_free(&batch);
}

static void sources_without_tokens_and_tokens_without_routes_take_no_rows(void **state)
{
    static const int64_t none[] = {-1, -1, -1, -1};
    struct afd_reference ref = shape(3, 2);
    struct afd_reference_source sources[] = {{0, NULL, NULL, NULL, NULL}, tokens(2, none)};
    struct afd_reference_batch batch;

    (void)state;
    ref.sources = 2;
    ref.alignment = 16;
    assert_int_equal(afd_reference_batch(&ref, sources, 0, &batch), 0);
    assert_int_equal(batch.local_experts, 3);
    assert_int_equal(batch.row_count, 0);
    assert_int_equal(batch.token_count, 0);
    assert_int_equal(batch.offsets[3], 0);
    afd_reference_batch_free(&batch);
}

static void rank_without_experts_has_an_empty_batch(void **state)
{
    static const int64_t ids[] = {0};
    struct afd_reference ref = shape(1, 1);
    struct afd_reference_source source = tokens(1, ids);
    struct afd_reference_batch batch;

    (void)state;
    ref.ffn_ranks = 2;
    assert_int_equal(afd_reference_batch(&ref, &source, 1, &batch), 0);
    assert_int_equal(batch.local_experts, 0);
    assert_int_equal(batch.offsets[0], 0);
    assert_int_equal(batch.row_count, 0);
    assert_int_equal(batch.token_count, 0);
    afd_reference_batch_free(&batch);
}

static void token_with_several_local_routes_counts_once(void **state)
{
    static const int64_t ids[] = {2, 0, 1, -1, 1, -1};
    struct afd_reference ref = shape(3, 3);
    struct afd_reference_source source = tokens(2, ids);
    struct afd_reference_batch batch;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_int_equal(batch.row_count, 4);
    assert_int_equal(batch.token_count, 2);
    afd_reference_batch_free(&batch);
}

/* ------------------------------------------------------------------------------------- refusals */

/* Two sources; the second's last token of three lanes has the given ids. */
static void assert_refused(int64_t a, int64_t b, int64_t c, const char *sentence)
{
    static const int64_t good[] = {0, 1, 2};
    int64_t bad[] = {-1, -1, -1, a, b, c};
    uint32_t half[] = {0, 0, 1, 1};
    struct afd_reference ref = shape(4, 3);
    struct afd_reference_source sources[] = {tokens(1, good), tokens(2, bad)};
    struct afd_reference_batch batch;
    struct afd_reference_batch before;

    ref.sources = 2;
    ref.ffn_ranks = 2;
    ref.placement = half;
    memset(&batch, 0x5a, sizeof(batch));
    before = batch;
    for (uint32_t f = 0; f < 2; f++) {
        assert_int_equal(afd_reference_batch(&ref, sources, f, &batch), AFD_EROUTE);
        assert_string_equal(afd_last_error(), sentence);
        assert_memory_equal(&batch, &before, sizeof(batch));
    }
}

static void id_outside_the_experts_is_refused_at_full_width(void **state)
{
    (void)state;
    assert_refused(4, 0, 1, "source 1, token 1, lane 0: expert id 4 is not in -1 .. 3");
    assert_refused(0, -2, 1, "source 1, token 1, lane 1: expert id -2 is not in -1 .. 3");
    assert_refused(0, 1, INT64_C(0x100000002),
                   "source 1, token 1, lane 2: expert id 4294967298 is not in -1 .. 3");
    assert_refused(INT64_MIN, 0, 1,
                   "source 1, token 1, lane 0: expert id -9223372036854775808 is not in -1 .. 3");
    assert_refused(INT64_C(0xffffffff), 0, 1,
                   "source 1, token 1, lane 0: expert id 4294967295 is not in -1 .. 3");
}

static void id_twice_in_a_token_is_refused(void **state)
{
    (void)state;
    assert_refused(3, 3, -1, "source 1, token 1, lane 1: expert id 3 is already in lane 0");
    assert_refused(-1, 0, 0, "source 1, token 1, lane 2: expert id 0 is already in lane 1");
    assert_refused(2, -1, 2, "source 1, token 1, lane 2: expert id 2 is already in lane 0");
}

static void same_id_in_two_tokens_is_accepted(void **state)
{
    static const int64_t ids[] = {1, 0, 1, 0};
    struct afd_reference ref = shape(2, 2);
    struct afd_reference_source source = tokens(2, ids);
    struct afd_reference_batch batch;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), 0);
    assert_int_equal(batch.row_count, 4);
    afd_reference_batch_free(&batch);
}

static void more_tokens_than_the_capacity_are_refused(void **state)
{
    static const int64_t ids[9] = {0};
    struct afd_reference ref = shape(1, 1);
    struct afd_reference_source source = tokens(9, ids);
    struct afd_reference_batch batch;

    (void)state;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), AFD_ECAPACITY);
    assert_string_equal(afd_last_error(), "source 0 has 9 tokens, the capacity is 8");
}

static void batch_that_no_memory_holds_is_an_error(void **state)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)state;
    skip(); /* a sanitizer's allocator stops the program */
#else
    static const int64_t ids[] = {0};
    struct afd_reference ref = shape(1, 1);
    struct afd_reference_source source = tokens(1, ids);
    struct afd_reference_batch batch;

    (void)state;
    ref.payload_bytes = 0xffffffffu;
    ref.alignment = 0x80000000u;
    assert_int_equal(afd_reference_batch(&ref, &source, 0, &batch), AFD_ENOMEM);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(placement_gives_the_first_ranks_one_expert_more),
        cmocka_unit_test(batch_is_ordered_by_expert_then_source_then_token),
        cmocka_unit_test(batch_rows_carry_payload_scales_and_weights_and_padding_is_zero),
        cmocka_unit_test(expert_without_rows_takes_no_rows),
        cmocka_unit_test(group_that_fills_its_alignment_gets_no_padding),
        cmocka_unit_test(sources_without_tokens_and_tokens_without_routes_take_no_rows),
        cmocka_unit_test(rank_without_experts_has_an_empty_batch),
        cmocka_unit_test(token_with_several_local_routes_counts_once),
        cmocka_unit_test(id_outside_the_experts_is_refused_at_full_width),
        cmocka_unit_test(id_twice_in_a_token_is_refused),
        cmocka_unit_test(same_id_in_two_tokens_is_accepted),
        cmocka_unit_test(more_tokens_than_the_capacity_are_refused),
        cmocka_unit_test(batch_that_no_memory_holds_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
