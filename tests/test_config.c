/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_config.c - every field of both configurations below, at and above its limits: the exact
 * code, and a sentence that has both numbers.
 */

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "job.h"
#include "sentence.h"

static const uint8_t roles[1025] = {AFD_ROLE_FFN, AFD_ROLE_ATTENTION, AFD_ROLE_ATTENTION};

static struct afd_group_config good_group(void)
{
    struct afd_group_config group;
    afd_group_config_init(&group);
    group.world = 3;
    group.roles = roles;
    group.bootstrap = AFD_BOOTSTRAP_HUB;
    return group;
}

static struct afd_buffer_config good_buffer(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 256;
    c.hidden = 64;
    c.experts = 9;
    return c;
}

static int memory_rc(const struct afd_group_config *group, const struct afd_buffer_config *c)
{
    struct afd_memory memory;
    struct afd_memory untouched;
    int rc;
    memset(&memory, 0x5a, sizeof(memory));
    untouched = memory;
    rc = afd_buffer_memory(group, c, group->rank, &memory);
    if (rc != 0)
        assert_memory_equal(&memory, &untouched, sizeof(memory));
    return rc;
}

static int group_rc(const struct afd_group_config *group)
{
    struct afd_group *out = (struct afd_group *)&out;
    int rc = afd_group_create(group, &out);
    assert_int_not_equal(rc, 0);
    assert_ptr_equal(out, &out);
    return rc;
}

/* --------------------------------------------------------------------------------------- buffer */

/* A field and the values it may have: those between low and high. */
struct limits {
    const char *name;
    size_t offset;
    size_t bytes;
    uint64_t low;
    uint64_t high;
};
#define LIMITS(field, low, high)                                                                   \
    {                                                                                              \
#field, offsetof(struct afd_buffer_config, field),                                         \
            sizeof(((struct afd_buffer_config *)0)->field), low, high                              \
    }

static const struct limits buffer_limits[] = {
    LIMITS(capacity, 1, 65536),   LIMITS(hidden, 1, 1u << 24),  LIMITS(experts, 1, 1u << 24),
    LIMITS(topk, 1, 32),          LIMITS(payload, 1, 4),        LIMITS(reply, 1, 2),
    LIMITS(receive, 1, 2),        LIMITS(protocol, 0, 2),       LIMITS(stages, 1, 8),
    LIMITS(words_tokens, 0, 256), LIMITS(alignment, 1, 65536),  LIMITS(scale_layout, 0, 1),
    LIMITS(zero_padding, 0, 1),   LIMITS(weighted_reply, 0, 1), LIMITS(blocks, 0, 256),
    LIMITS(variant, 0, 2),        LIMITS(reply_variant, 0, 2),  LIMITS(first_epoch, 1, 1ull << 62),
};
#define LIMIT_COUNT (sizeof(buffer_limits) / sizeof(buffer_limits[0]))

static void set_field(void *config, const struct limits *limits, uint64_t value)
{
    uint32_t narrow = (uint32_t)value;
    const void *from = limits->bytes == 8 ? (const void *)&value : (const void *)&narrow;
    memcpy((uint8_t *)config + limits->offset, from, limits->bytes);
}

/* A configuration in which `limits` at `value` is the only thing that could be wrong. */
static int rc_with(const struct limits *limits, uint64_t value)
{
    static uint8_t many[302];
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    if (strcmp(limits->name, "experts") == 0) { /* no FFN rank may hold more than 65,535 */
        memset(many, AFD_ROLE_FFN, sizeof(many));
        many[1] = AFD_ROLE_ATTENTION;
        group.world = sizeof(many);
        group.roles = many;
    }
    if (strcmp(limits->name, "payload") == 0 && value == AFD_PAYLOAD_BYTES)
        c.payload_bytes = 1;
    if (strcmp(limits->name, "scale_layout") == 0)
        c.payload = AFD_PAYLOAD_FP8;
    set_field(&c, limits, value);
    return memory_rc(&group, &c);
}

static void buffer_fields_at_their_limits_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < LIMIT_COUNT; i++) {
        const struct limits *limits = &buffer_limits[i];
        int rc = rc_with(limits, limits->low);
        if (rc != 0)
            fail_msg("%s at %" PRIu64 ": %s", limits->name, limits->low, afd_last_error());
        rc = rc_with(limits, limits->high);
        if (rc != 0 && strcmp(limits->name, "reply") != 0)
            fail_msg("%s at %" PRIu64 ": %s", limits->name, limits->high, afd_last_error());
    }
}

static void check_outside(const struct limits *limits, uint64_t value)
{
    char got[32];
    char range[64];
    snprintf(got, sizeof(got), "%s is %" PRIu64, limits->name, value);
    snprintf(range, sizeof(range), "%" PRIu64 " .. %" PRIu64, limits->low, limits->high);
    CHECK_SENTENCE(rc_with(limits, value), AFD_EINVAL, got, range);
}

static void buffer_fields_outside_their_limits_are_refused_with_both_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < LIMIT_COUNT; i++) {
        const struct limits *limits = &buffer_limits[i];
        if (limits->low > 0)
            check_outside(limits, limits->low - 1);
        check_outside(limits, limits->high + 1);
        check_outside(limits, limits->bytes == 8 ? UINT64_MAX : UINT32_MAX);
    }
}

static void a_buffers_deadline_is_the_groups_or_within_its_limits(void **state)
{
    static const struct limits deadline = LIMITS(deadline_us, 1000, 3600000000);
    (void)state;
    assert_int_equal(rc_with(&deadline, 0), 0);
    assert_int_equal(rc_with(&deadline, 1000), 0);
    assert_int_equal(rc_with(&deadline, 3600000000), 0);
    check_outside(&deadline, 1);
    check_outside(&deadline, 999);
    check_outside(&deadline, 3600000001);
    check_outside(&deadline, UINT64_MAX);
}

static void more_words_tokens_than_capacity_are_refused(void **state)
{
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    c.capacity = 77;
    c.words_tokens = 77;
    assert_int_equal(memory_rc(&group, &c), 0);
    c.words_tokens = 78;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "words_tokens is 78", "77");
}

static void opaque_rows_have_the_sizes_of_the_fields_and_others_do_not(void **state)
{
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    c.payload_bytes = 12;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "payload_bytes is 12", "scale_bytes 0");
    c.payload_bytes = 0;
    c.scale_bytes = 13;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "payload_bytes is 0", "scale_bytes 13");
    c.payload = AFD_PAYLOAD_BYTES;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "payload_bytes is 0", "1 .. 67108864");
    c.payload_bytes = 1u << 26;
    c.scale_bytes = 1u << 26;
    assert_int_equal(memory_rc(&group, &c), 0);
    c.scale_bytes++;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "scale_bytes is 67108865", "0 .. 67108864");
    c.scale_bytes = 0;
    c.payload_bytes++;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "payload_bytes is 67108865", "67108864");
}

static void columns_of_scales_need_scales_of_known_size(void **state)
{
    static const uint32_t payload[] = {AFD_PAYLOAD_BF16, AFD_PAYLOAD_BYTES, AFD_PAYLOAD_FP8,
                                       AFD_PAYLOAD_FP8_UE8M0};
    struct afd_group_config group = good_group();
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct afd_buffer_config c = good_buffer();
        c.payload = payload[i];
        c.payload_bytes = c.payload == AFD_PAYLOAD_BYTES ? 16 : 0;
        c.scale_bytes = c.payload == AFD_PAYLOAD_BYTES ? 4 : 0;
        c.scale_layout = AFD_SCALES_COL_MAJOR;
        if (i >= 2)
            assert_int_equal(memory_rc(&group, &c), 0);
        else
            CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "column-major",
                           i == 0 ? "payload 1" : "payload 4");
    }
}

static void replies_in_fp8_are_not_supported_yet(void **state)
{
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    c.reply = AFD_REPLY_FP8;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EUNSUPPORTED, "FP8", "direct");
}

static void a_placement_out_of_range_names_expert_and_rank(void **state)
{
    uint32_t placement[9] = {0, 0, 0, 0, 0, 0, 0, 1, 0};
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    c.placement = placement;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "expert 7", "FFN rank 1", "there are 1");
    placement[7] = UINT32_MAX;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "expert 7", "4294967295");
    placement[7] = 0;
    assert_int_equal(memory_rc(&group, &c), 0);
}

static void an_ffn_rank_holds_at_most_65535_experts(void **state)
{
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    c.experts = 65535;
    assert_int_equal(memory_rc(&group, &c), 0);
    c.experts = 65536;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "FFN rank 0", "65535");
}

static void configs_of_another_size_are_refused(void **state)
{
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    char size[32];
    (void)state;
    c.size -= 8;
    snprintf(size, sizeof(size), "%zu", sizeof(c));
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, size, "afd_buffer_config_init");
    memset(&c, 0, sizeof(c));
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, "size 0", size);
    c = good_buffer();
    group.size += 8;
    snprintf(size, sizeof(size), "%zu", sizeof(group));
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, size, "afd_group_config_init");
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, size);
}

static void null_pointers_are_refused(void **state)
{
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    struct afd_memory memory;
    struct afd_group *out;
    struct afd_buffer *buffer;
    (void)state;
    CHECK_SENTENCE(afd_buffer_memory(NULL, &c, 0, &memory), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_memory(&group, NULL, 0, &memory), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_memory(&group, &c, 0, NULL), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_memory(&group, &c, 3, &memory), AFD_EINVAL, "rank is 3", "3 ranks");
    CHECK_SENTENCE(afd_group_create(NULL, &out), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_group_create(&group, NULL), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_create(NULL, &c, &buffer), AFD_EINVAL, "NULL");
    assert_int_equal(afd_buffer_close(NULL), 0);
    assert_int_equal(afd_group_destroy(NULL), 0);
}

/* ---------------------------------------------------------------------------------------- group */

static void worlds_have_2_to_1024_ranks(void **state)
{
    static uint8_t many[1025];
    static const uint32_t bad[] = {0, 1, 1025, UINT32_MAX};
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    memset(many, AFD_ROLE_ATTENTION, sizeof(many));
    many[0] = AFD_ROLE_FFN;
    group.roles = many;
    for (uint32_t i = 0; i < 4; i++) {
        char text[32];
        snprintf(text, sizeof(text), "world is %u", bad[i]);
        group.world = bad[i];
        CHECK_SENTENCE(memory_rc(&group, &c), AFD_EINVAL, text, "2 .. 1024");
        CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, text, "2 .. 1024");
    }
    group.world = 2;
    assert_int_equal(memory_rc(&group, &c), 0);
    group.world = 1024;
    assert_int_equal(memory_rc(&group, &c), 0);
}

static void a_rank_lies_inside_its_world(void **state)
{
    struct afd_group_config group = good_group();
    (void)state;
    group.rank = 3;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "rank is 3", "3 ranks");
    group.rank = UINT32_MAX;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "rank is 4294967295", "3 ranks");
}

static void roles_are_given_known_and_both_present(void **state)
{
    static const uint8_t none[3] = {1, 0, 2};
    static const uint8_t three[3] = {1, 2, 3};
    static const uint8_t all_attention[3] = {1, 1, 1};
    static const uint8_t all_ffn[3] = {2, 2, 2};
    struct afd_group_config group = good_group();
    (void)state;
    group.roles = NULL;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "roles is NULL", "3");
    group.roles = none;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "role of rank 1 is 0", "1", "2");
    group.roles = three;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "role of rank 2 is 3", "1", "2");
    group.roles = all_attention;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "3 Attention", "0 FFN");
    group.roles = all_ffn;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "0 Attention", "3 FFN");
}

static void several_domains_are_not_supported_yet_and_named(void **state)
{
    static const uint32_t one[3] = {7, 7, 7};
    static const uint32_t two[3] = {7, 7, 9};
    struct afd_group_config group = good_group();
    struct afd_buffer_config c = good_buffer();
    (void)state;
    group.domains = one;
    assert_int_equal(memory_rc(&group, &c), 0);
    group.domains = two;
    CHECK_SENTENCE(memory_rc(&group, &c), AFD_EUNSUPPORTED, "rank 0", "domain 7", "rank 2",
                   "domain 9");
}

static void backends_are_known_and_built_in(void **state)
{
    struct afd_group_config group = good_group();
    (void)state;
    group.backend = 0;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "backend is 0", "1", "2");
    group.backend = 3;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "backend is 3", "1", "2");
    group.backend = AFD_BACKEND_CUDA;
    CHECK_SENTENCE(group_rc(&group), AFD_EUNSUPPORTED, "cuda", "inline");
}

static void bootstraps_are_known_and_have_what_they_need(void **state)
{
    struct afd_group_config group = good_group();
    (void)state;
    group.bootstrap = 0;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "bootstrap is 0", "1 .. 4");
    group.bootstrap = 5;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "bootstrap is 5", "1 .. 4");
    group.bootstrap = AFD_BOOTSTRAP_HUB;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "hub is NULL");
    group.bootstrap = AFD_BOOTSTRAP_CALLBACKS;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "allgather is NULL");
    group.bootstrap = AFD_BOOTSTRAP_TCP;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "rendezvous");
    group.rendezvous = "127.0.0.1:1";
    group.bootstrap_timeout_us = 0;
    CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, "bootstrap_timeout_us is 0", "1");
}

static void deadlines_are_1_ms_to_1_h(void **state)
{
    static const uint64_t bad[] = {0, 999, 3600000001, UINT64_MAX};
    struct afd_group_config group = good_group();
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        char text[48];
        snprintf(text, sizeof(text), "deadline is %" PRIu64, bad[i]);
        group.deadline_us = bad[i];
        CHECK_SENTENCE(group_rc(&group), AFD_EINVAL, text, "1000", "3600000000");
    }
    for (uint32_t i = 0; i < 2; i++) {
        struct afd_buffer_config c = good_buffer();
        struct job job;
        c.deadline_us = i == 0 ? 3600000000 : 1000;
        job_init(&job, "AF", &c);
        job.group_config.deadline_us = i == 0 ? 1000 : 3600000000;
        assert_int_equal(job_open(&job), 0);
        job_close(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffer_fields_at_their_limits_are_accepted),
        cmocka_unit_test(buffer_fields_outside_their_limits_are_refused_with_both_numbers),
        cmocka_unit_test(a_buffers_deadline_is_the_groups_or_within_its_limits),
        cmocka_unit_test(more_words_tokens_than_capacity_are_refused),
        cmocka_unit_test(opaque_rows_have_the_sizes_of_the_fields_and_others_do_not),
        cmocka_unit_test(columns_of_scales_need_scales_of_known_size),
        cmocka_unit_test(replies_in_fp8_are_not_supported_yet),
        cmocka_unit_test(a_placement_out_of_range_names_expert_and_rank),
        cmocka_unit_test(an_ffn_rank_holds_at_most_65535_experts),
        cmocka_unit_test(configs_of_another_size_are_refused),
        cmocka_unit_test(null_pointers_are_refused),
        cmocka_unit_test(worlds_have_2_to_1024_ranks),
        cmocka_unit_test(a_rank_lies_inside_its_world),
        cmocka_unit_test(roles_are_given_known_and_both_present),
        cmocka_unit_test(several_domains_are_not_supported_yet_and_named),
        cmocka_unit_test(backends_are_known_and_built_in),
        cmocka_unit_test(bootstraps_are_known_and_have_what_they_need),
        cmocka_unit_test(deadlines_are_1_ms_to_1_h),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
