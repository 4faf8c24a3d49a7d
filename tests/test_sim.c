/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sim.c - protocol direct under the simulator: layouts, variants, stages, blocks, hunts,
 * faults.
 *
 * AFD_SIM_SEEDS=n runs n seeds of every case instead of the default.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/sim/sim.h"

#define FIRST_EPOCH_NEAR_WRAP 0xfffffffdull /* tags repeat in the third exchange */

static uint64_t total;

static uint64_t seeds_of(uint64_t otherwise)
{
    const char *text = getenv("AFD_SIM_SEEDS");
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void expect_nothing(const char *what, const struct afd_sim_options *options, uint64_t seeds)
{
    struct afd_sim *sim = NULL;
    struct afd_sim_report report;
    if (afd_sim_create(options, &sim) != 0)
        fail_msg("%s: %s", what, afd_last_error());
    seeds = seeds_of(seeds);
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        assert_int_equal(afd_sim_run(sim, seed, &report), 0);
        if (report.oracle != AFD_ORACLE_NONE)
            fail_msg("%s: %uA%uF, seed %llu, hunt %s, oracle %s: %s", what, options->sources,
                     options->ffn_ranks, (unsigned long long)seed, afd_hunt_name(report.hunt),
                     afd_oracle_name(report.oracle), report.text);
    }
    total += seeds;
    afd_sim_destroy(sim);
}

/* -------------------------------------------------------------------------------------- layouts */

static const struct {
    uint32_t sources;
    uint32_t ffn_ranks;
    uint32_t topk;
} layouts[] = {{1, 1, 2}, {2, 2, 4}, {3, 1, 4}, {1, 3, 2}, {5, 3, 2}};
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

static void layout(struct afd_sim_options *options, size_t i)
{
    afd_sim_options_init(options);
    options->sources = layouts[i].sources;
    options->ffn_ranks = layouts[i].ffn_ranks;
    options->config.topk = layouts[i].topk;
}

static void every_layout_variant_and_hunt(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAYOUTS; i++)
        for (uint32_t variant = AFD_VARIANT_AUTO; variant <= AFD_VARIANT_ROWS; variant++)
            for (uint32_t hunt = AFD_HUNT_UNIFORM; hunt < AFD_HUNT_COUNT; hunt++) {
                struct afd_sim_options options;
                layout(&options, i);
                options.hunt = hunt;
                options.config.variant = variant;
                options.config.reply_variant = variant;
                expect_nothing("layouts", &options, 25);
            }
}

static void every_block_count_and_stage(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAYOUTS; i++)
        for (uint32_t blocks = 0; blocks <= 5; blocks++)
            for (uint32_t stages = 1; stages <= 3; stages++) {
                struct afd_sim_options options;
                layout(&options, i);
                options.blocks = blocks;
                options.exchanges = 2 * stages;
                options.config.stages = stages;
                options.config.capacity = 5;
                options.config.words_tokens = 5;
                expect_nothing("blocks and stages", &options, 15);
            }
}

static void every_way_to_receive_and_collect(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAYOUTS; i++)
        for (uint32_t receive = AFD_RECEIVE_EXPANDED; receive <= AFD_RECEIVE_INDEXED; receive++)
            for (uint32_t payload = AFD_PAYLOAD_BF16; payload <= AFD_PAYLOAD_FP8_UE8M0; payload++) {
                struct afd_sim_options options;
                layout(&options, i);
                options.config.receive = receive;
                options.config.payload = payload;
                options.config.hidden = 160;
                options.config.capacity = 4;
                options.config.words_tokens = 3;
                options.config.alignment = 4;
                options.config.weighted_reply = 1;
                options.weights = 1;
                options.view = options.ffn_ranks == 1;
                if (payload != AFD_PAYLOAD_BF16)
                    options.config.scale_layout = AFD_SCALES_COL_MAJOR;
                expect_nothing("receive and collect", &options, 30);
            }
}

static void rows_in_parts(void **state)
{
    (void)state;
    for (uint32_t blocks = 2; blocks <= 8; blocks += 3) {
        struct afd_sim_options options;
        layout(&options, 1);
        options.blocks = blocks;
        options.config.hidden = 1024;
        options.config.capacity = 2;
        options.config.words_tokens = 0;
        expect_nothing("parts", &options, 30);
    }
}

static void every_routing(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAYOUTS; i++)
        for (uint32_t routing = 0; routing <= AFD_SIM_ROUTING_NONE; routing++) {
            struct afd_sim_options options;
            layout(&options, i);
            options.routing = routing;
            options.fixed_tokens = routing & 1u;
            expect_nothing("routing", &options, 30);
        }
}

static void stores_in_order_too(void **state)
{
    struct afd_sim_options options;
    (void)state;
    layout(&options, 1);
    options.strong = 1;
    expect_nothing("strong", &options, 200);
}

/* ----------------------------------------------------------------------------------------- tags */

static void tags_may_repeat_after_w_plus_1_epochs(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAYOUTS; i++)
        for (uint32_t words = 1; words <= 4; words++) {
            struct afd_sim_options options;
            layout(&options, i);
            options.routing = AFD_SIM_ROUTING_SPARSE;
            options.exchanges = 4 * words + 4;
            options.config.capacity = words + 1;
            options.config.words_tokens = words;
            options.tag_period = words + 1;
            expect_nothing("tags repeat", &options, 40);
        }
}

static void epochs_wrap_at_32_bits(void **state)
{
    struct afd_sim_options options;
    (void)state;
    layout(&options, 1);
    options.exchanges = 8;
    options.config.first_epoch = FIRST_EPOCH_NEAR_WRAP;
    expect_nothing("32 bits", &options, 100);
}

/* --------------------------------------------------------------------------------------- faults */

static void survivors_end_with_the_right_code(void **state)
{
    (void)state;
    for (size_t i = 0; i < LAYOUTS; i++)
        for (uint32_t fault = AFD_SIM_FAULT_DIE; fault < AFD_SIM_FAULT_COUNT; fault++)
            for (uint32_t stages = 1; stages <= 2; stages++) {
                struct afd_sim_options options;
                layout(&options, i);
                options.fault = fault;
                options.config.stages = stages;
                expect_nothing(afd_sim_fault_name(fault), &options, 60);
            }
}

/* Found by the simulator: blocks that began after another block's trouble left at once, and neither
 * told their FFN ranks of a bad route nor filled their rows with NaN. */
static void late_blocks_tell_the_fault_and_poison_their_rows(void **state)
{
    struct afd_sim_options options;
    (void)state;
    layout(&options, 1);
    options.blocks = 4;
    options.hunt = AFD_HUNT_STARVE;
    options.fault = AFD_SIM_FAULT_ROUTE;
    expect_nothing("bad route", &options, 200);
    options.fault = AFD_SIM_FAULT_STALL;
    expect_nothing("stall", &options, 200);
    options.fault = AFD_SIM_FAULT_ABORT;
    expect_nothing("abort", &options, 200);
}

/* -------------------------------------------------------------------------------------- the sim */

static void same_seed_is_the_same_schedule(void **state)
{
    struct afd_sim_options options;
    struct afd_sim *sim = NULL;
    struct afd_sim *again = NULL;
    struct afd_sim_report a;
    struct afd_sim_report b;
    struct afd_sim_report other;
    (void)state;
    layout(&options, 1);
    assert_int_equal(afd_sim_create(&options, &sim), 0);
    assert_int_equal(afd_sim_create(&options, &again), 0);
    for (uint64_t seed = 1; seed <= 30; seed++) {
        assert_int_equal(afd_sim_run(sim, seed, &a), 0);
        assert_int_equal(afd_sim_run(again, 31 - seed, &b), 0);
        assert_int_equal(afd_sim_run(again, seed, &b), 0);
        assert_int_equal(a.digest, b.digest);
        assert_int_equal(a.accesses, b.accesses);
        assert_int_equal(afd_sim_run(sim, seed + 1000, &other), 0);
        assert_int_not_equal(a.digest, other.digest);
    }
    afd_sim_destroy(sim);
    afd_sim_destroy(again);
}

static void illegal_options_are_named(void **state)
{
    struct afd_sim_options options;
    struct afd_sim *sim = NULL;
    (void)state;
    layout(&options, 1);
    options.tag_period = options.config.words_tokens;
    assert_int_equal(afd_sim_create(&options, &sim), AFD_EINVAL);
    assert_non_null(strstr(afd_last_error(), "words_tokens"));
    layout(&options, 1);
    options.view = 1;
    assert_int_equal(afd_sim_create(&options, &sim), AFD_EINVAL);
    assert_null(sim);
}

static void said_at_the_end(void **state)
{
    (void)state;
    printf("report: %llu schedules of protocol direct, no finding\n", (unsigned long long)total);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_variant_and_hunt),
        cmocka_unit_test(every_block_count_and_stage),
        cmocka_unit_test(every_way_to_receive_and_collect),
        cmocka_unit_test(rows_in_parts),
        cmocka_unit_test(every_routing),
        cmocka_unit_test(stores_in_order_too),
        cmocka_unit_test(tags_may_repeat_after_w_plus_1_epochs),
        cmocka_unit_test(epochs_wrap_at_32_bits),
        cmocka_unit_test(survivors_end_with_the_right_code),
        cmocka_unit_test(late_blocks_tell_the_fault_and_poison_their_rows),
        cmocka_unit_test(same_seed_is_the_same_schedule),
        cmocka_unit_test(illegal_options_are_named),
        cmocka_unit_test(said_at_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
