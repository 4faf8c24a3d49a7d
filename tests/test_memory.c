/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c - what afd_buffer_memory() announces is what a buffer takes, at any scale. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "buffer.h"
#include "job.h"

#define MB 1e6

/* A world of `sources` Attention ranks, then FFN ranks. */
static struct afd_group_config world_of(uint32_t sources, uint32_t ffn_ranks)
{
    static uint8_t roles[1024];
    struct afd_group_config group;
    memset(roles, AFD_ROLE_ATTENTION, sources);
    memset(roles + sources, AFD_ROLE_FFN, ffn_ranks);
    afd_group_config_init(&group);
    group.world = sources + ffn_ranks;
    group.roles = roles;
    return group;
}

static struct afd_buffer_config config_of(uint32_t capacity, uint32_t hidden, uint32_t experts)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = capacity;
    c.hidden = hidden;
    c.experts = experts;
    return c;
}

static struct afd_memory memory_of(const struct afd_group_config *group,
                                   const struct afd_buffer_config *c, uint32_t rank)
{
    struct afd_memory memory;
    int rc = afd_buffer_memory(group, c, rank, &memory);
    if (rc != 0)
        fail_msg("rank %u: %s", rank, afd_last_error());
    return memory;
}

static uint64_t region_bytes(const struct afd_memory *memory, const char *name)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < memory->region_count; i++)
        if (strcmp(memory->region[i].name, name) == 0)
            bytes += memory->region[i].bytes;
    return bytes;
}

/* Regions have names of their own and add up to the totals. */
static void check_sums(const struct afd_memory *memory)
{
    uint64_t sum[2] = {0, 0};
    assert_in_range(memory->region_count, 3, AFD_MEMORY_REGIONS_MAX);
    for (uint32_t i = 0; i < memory->region_count; i++) {
        assert_true(memory->region[i].bytes != 0);
        assert_in_range(memory->region[i].registered, 0, 1);
        sum[memory->region[i].registered] += memory->region[i].bytes;
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(memory->region[i].name, memory->region[j].name);
    }
    assert_int_equal(sum[1], memory->registered_bytes);
    assert_int_equal(sum[0], memory->private_bytes);
}

/* ---------------------------------------------------------------------------- taken = announced */

/* Bytes of this process's mappings of windows. */
static uint64_t mapped_windows(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long long begin;
    unsigned long long end;
    uint64_t bytes = 0;
    char line[512];
    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        if (strstr(line, "memfd:afd-window") != NULL &&
            sscanf(line, "%llx-%llx", &begin, &end) == 2)
            bytes += end - begin;
    fclose(maps);
    return bytes;
}

/* No private array of a rank lies in another one or outside. */
static void check_private(const struct afd_plan *plan)
{
    for (int a = 0; a < AFD_PRIVATE_COUNT_OF_KINDS; a++) {
        uint64_t begin = plan->private_offset[a];
        uint64_t end = begin + plan->private_bytes_of[a];
        if (plan->private_bytes_of[a] == 0)
            continue;
        assert_int_equal(begin % 64, 0);
        if (a < AFD_PRIVATE_PER_STAGE)
            assert_true(end <= plan->private_stage_stride);
        else
            assert_true(begin >= plan->private_stage_stride * plan->shape.stages &&
                        end <= plan->private_bytes);
        for (int b = 0; b < a; b++)
            assert_true(end <= plan->private_offset[b] ||
                        begin >= plan->private_offset[b] + plan->private_bytes_of[b]);
    }
}

static void check_taken(const char *roles, const struct afd_buffer_config *c)
{
    struct job job;
    uint64_t announced = 0;
    uint64_t before = mapped_windows();
    job_init(&job, roles, c);
    assert_int_equal(job_open(&job), 0);
    for (uint32_t r = 0; r < job.world; r++) {
        struct afd_memory memory = memory_of(&job.group_config, c, r);
        check_sums(&memory);
        check_private(&job.buffer[r]->plan);
        assert_int_equal(memory.registered_bytes, job.buffer[r]->window[r].bytes);
        assert_int_equal(memory.private_bytes, job.buffer[r]->plan.private_bytes);
        announced += memory.registered_bytes;
    }
    assert_int_equal(mapped_windows() - before, announced);
    job_close(&job);
    assert_int_equal(mapped_windows(), before);
}

static void buffers_take_exactly_what_was_announced(void **state)
{
    struct afd_buffer_config c = config_of(33, 300, 13);
    (void)state;
    check_taken("AF", &c);
    check_taken("AAFF", &c);
    c.stages = 3;
    c.words_tokens = 16;
    c.payload = AFD_PAYLOAD_FP8;
    c.alignment = 128;
    check_taken("FAFFFA", &c);
    c.receive = AFD_RECEIVE_INDEXED;
    c.stages = 8;
    check_taken("AAAFA", &c);
    c.experts = 1;
    c.topk = 1;
    c.batch_rows = 7;
    check_taken("FFA", &c);
}

static void batch_memory_follows_from_rows_and_alignment(void **state)
{
    struct afd_group_config group = world_of(2, 1);
    struct afd_buffer_config c = config_of(10, 8, 4);
    struct afd_memory memory;
    (void)state;
    c.topk = 3; /* 2 sources x 10 tokens x 3 routes = 60 rows of 16 bytes, slot and weight 4 each */
    memory = memory_of(&group, &c, 2);
    assert_int_equal(region_bytes(&memory, "batch"), 60 * (16 + 4 + 4));
    c.alignment = 8; /* 4 groups, each with up to 7 rows of padding */
    memory = memory_of(&group, &c, 2);
    assert_int_equal(region_bytes(&memory, "batch"), (60 + 4 * 7) * (16 + 4 + 4));
    c.receive = AFD_RECEIVE_INDEXED;
    memory = memory_of(&group, &c, 2);
    assert_int_equal(region_bytes(&memory, "batch"), (60 + 4 * 7) * (4 + 4));
    c.batch_rows = 5;
    c.stages = 2;
    memory = memory_of(&group, &c, 2);
    assert_int_equal(region_bytes(&memory, "batch"), 2 * 5 * (4 + 4));
}

/* ---------------------------------------------------------------------------------------- scale */

static void check_scale(uint32_t sources, uint32_t ffn_ranks)
{
    struct afd_group_config group = world_of(sources, ffn_ranks);
    struct afd_buffer_config c = config_of(128, 7168, 256);
    uint32_t world = sources + ffn_ranks;
    uint32_t regions = ffn_ranks < 8 ? ffn_ranks : 8;
    for (uint32_t rank = 0; rank < world; rank += rank == 0 ? sources : world) {
        struct afd_memory memory = memory_of(&group, &c, rank);
        check_sums(&memory);
        if (rank == 0)
            assert_int_equal(region_bytes(&memory, "reply inbox"), regions * 128ull * 14336);
        else
            assert_int_equal(region_bytes(&memory, "inbox"), sources * 128ull * 14336);
    }
}

static void memory_is_known_for_161_and_512_and_1024_ranks(void **state)
{
    (void)state;
    check_scale(160, 1);
    check_scale(1, 160);
    check_scale(81, 80);
    check_scale(256, 256);
    check_scale(1023, 1);
    check_scale(1, 1023);
    check_scale(900, 124);
}

static void memory_beyond_32_bits_is_announced_right(void **state)
{
    struct afd_group_config group = world_of(1023, 1);
    struct afd_buffer_config c = config_of(65536, 16384, 8);
    struct afd_memory memory = memory_of(&group, &c, 1023);
    (void)state;
    check_sums(&memory);
    assert_int_equal(region_bytes(&memory, "inbox"), 1023ull * 65536 * 32768);
    assert_true(memory.registered_bytes > 1023ull * 65536 * 32768);
    /* 1,023 x 65,536 x 8 rows, each 32,768 bytes and a slot and a weight */
    assert_int_equal(region_bytes(&memory, "batch"), 1023ull * 65536 * 8 * (32768 + 8));
}

static void more_rows_than_can_be_numbered_are_refused_with_both_numbers(void **state)
{
    struct afd_group_config group = world_of(1023, 1);
    struct afd_buffer_config c = config_of(65536, 16, 65535);
    struct afd_memory memory;
    struct afd_memory untouched;
    (void)state;
    memset(&memory, 0x5a, sizeof(memory));
    untouched = memory;
    c.topk = 32; /* 1,023 x 65,536 x 32 rows can be numbered */
    c.alignment = 32801;
    (void)memory_of(&group, &c, 1023);
    c.alignment = 32802; /* and up to 65,535 x 32,801 of padding cannot */
    assert_int_equal(afd_buffer_memory(&group, &c, 1023, &memory), AFD_EINVAL);
    assert_non_null(strstr(afd_last_error(), "4295000031"));
    assert_non_null(strstr(afd_last_error(), "4294967294"));
    assert_memory_equal(&memory, &untouched, sizeof(memory));
}

/* --------------------------------------------------------------------------------------- record */

/* Largest window of a job in the setting of the record's fourth table. */
static uint64_t largest_window(uint32_t sources, uint32_t ffn_ranks)
{
    struct afd_group_config group = world_of(sources, ffn_ranks);
    struct afd_buffer_config c = config_of(2048, 2048, 128);
    uint64_t largest = 0;
    for (uint32_t rank = 0; rank < sources + ffn_ranks; rank++) {
        struct afd_memory memory = memory_of(&group, &c, rank);
        if (memory.registered_bytes > largest)
            largest = memory.registered_bytes;
    }
    return largest;
}

static void registered_memory_stays_below_the_unions(void **state)
{
    const double union_bytes = 34.6 * MB;
    (void)state;
    printf("report: registered bytes of the largest rank, of the union's 34.6 MB: "
           "2A2F %.1f %%, 3A1F %.1f %%, 1A3F %.1f %%\n",
           100 * (double)largest_window(2, 2) / union_bytes,
           100 * (double)largest_window(3, 1) / union_bytes,
           100 * (double)largest_window(1, 3) / union_bytes);
    assert_true((double)largest_window(2, 2) <= 0.52 * union_bytes);
    assert_true((double)largest_window(3, 1) <= 0.76 * union_bytes);
    assert_true((double)largest_window(1, 3) <= 0.76 * union_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_take_exactly_what_was_announced),
        cmocka_unit_test(batch_memory_follows_from_rows_and_alignment),
        cmocka_unit_test(memory_is_known_for_161_and_512_and_1024_ranks),
        cmocka_unit_test(memory_beyond_32_bits_is_announced_right),
        cmocka_unit_test(more_rows_than_can_be_numbered_are_refused_with_both_numbers),
        cmocka_unit_test(registered_memory_stays_below_the_unions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
