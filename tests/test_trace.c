/* SPDX-License-Identifier: Apache-2.0 */
/* Routing traces: what is read is what was written, and a file that lies gets one sentence. */

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../cli/cli.h"
#include "../cli/trace.h"

#define TOKENS 5u
#define TOPK 2u
#define EXPERTS 7u
#define SEQUENCES 2u
#define ROUTES_AT (24u + 4u * SEQUENCES)
#define BYTES (ROUTES_AT + 5u * TOKENS * TOPK)

static void put_u32(uint8_t *at, uint32_t value)
{
    for (uint32_t i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

/* A right trace of BYTES bytes. */
static void make(uint8_t *bytes)
{
    const uint32_t header[] = {TOKENS, TOPK, EXPERTS, 13, SEQUENCES, 2, 3};
    memset(bytes, 0, BYTES);
    memcpy(bytes, "RTR1", 4); /* NOLINT: a magic has no end mark */
    for (uint32_t i = 0; i < 7; i++)
        put_u32(bytes + 4 + 4 * (size_t)i, header[i]);
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        bytes[ROUTES_AT + i] = (uint8_t)(i % EXPERTS);
        put_u32(bytes + ROUTES_AT + TOKENS * TOPK + 4 * (size_t)i, 0x3f800000u + i);
    }
}

/* A copy on the heap with exactly `length` bytes, so that a read behind the end is found. */
static int parse(const uint8_t *bytes, size_t length, struct cli_trace *trace, char *error)
{
    uint8_t *exact = malloc(length + (length == 0));
    int rc;
    assert_non_null(exact);
    memcpy(exact, bytes, length);
    error[0] = '\0';
    rc = cli_trace_parse(exact, length, trace, error, 256);
    free(exact);
    return rc;
}

static void refuse(const uint8_t *bytes, size_t length, const char *part_a, const char *part_b)
{
    struct cli_trace trace;
    char error[256];
    memset(&trace, 0xaa, sizeof(trace));
    assert_int_equal(parse(bytes, length, &trace, error), -1);
    if (strstr(error, part_a) == NULL || strstr(error, part_b) == NULL)
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", error, part_a, part_b);
    assert_int_equal(trace.tokens, 0xaaaaaaaau); /* written on success only */
}

static void a_trace_reads_as_it_was_written(void **state)
{
    uint8_t bytes[BYTES];
    struct cli_trace trace;
    char error[256];
    (void)state;
    make(bytes);
    assert_int_equal(parse(bytes, BYTES, &trace, error), 0);
    assert_int_equal(trace.tokens, TOKENS);
    assert_int_equal(trace.topk, TOPK);
    assert_int_equal(trace.experts, EXPERTS);
    assert_int_equal(trace.layer, 13);
    assert_int_equal(trace.sequences, SEQUENCES);
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        uint32_t bits;
        memcpy(&bits, &trace.weight[i], sizeof(bits));
        assert_int_equal(trace.expert[i], i % EXPERTS);
        assert_int_equal(bits, 0x3f800000u + i);
    }
    cli_trace_free(&trace);
    assert_null(trace.expert);
}

static void every_truncation_is_refused(void **state)
{
    uint8_t bytes[BYTES + 1];
    struct cli_trace trace;
    char error[256];
    (void)state;
    make(bytes);
    bytes[BYTES] = 0;
    for (size_t length = 0; length < BYTES; length++) {
        assert_int_equal(parse(bytes, length, &trace, error), -1);
        assert_true(error[0] != '\0');
    }
    refuse(bytes, BYTES + 1, "which are 82 bytes", "has 83");
}

static void another_magic_is_refused(void **state)
{
    uint8_t bytes[BYTES];
    (void)state;
    make(bytes);
    bytes[3] = '2';
    refuse(bytes, BYTES, "not an RTR1 trace", "RTR1\"");
    refuse(bytes, 3, "it has 3 bytes", "header has 24");
}

static void sizes_that_lie_are_refused_before_memory_is_taken(void **state)
{
    static const struct {
        uint32_t at;
        uint32_t value;
        const char *part_a;
        const char *part_b;
    } lies[] = {
        {4, 4294967295u, "4294967295 tokens", "has 82"},
        {4, 6, "6 tokens", "has 82"},
        {4, 0, "0 tokens", "at least 1"},
        {8, 33, "top-k 33", ".. 32"},
        {8, 0, "top-k 0", "at least 1"},
        {12, 0, "0 experts", "1 .. 256"},
        {12, 257, "257 experts", "1 .. 256"},
        {20, 4294967295u, "4294967295 sequences", "has 82"},
        {20, 1, "in 1 sequences", "has 82"},
        {24, 3, "6 tokens together", "it says 5"},
        {28, 4294967295u, "4294967297 tokens", "5"},
    };
    uint8_t bytes[BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        make(bytes);
        put_u32(bytes + lies[i].at, lies[i].value);
        refuse(bytes, BYTES, lies[i].part_a, lies[i].part_b);
    }
}

static void an_expert_that_is_not_there_is_named(void **state)
{
    uint8_t bytes[BYTES];
    (void)state;
    make(bytes);
    bytes[ROUTES_AT + 7] = EXPERTS;
    refuse(bytes, BYTES, "token 3, lane 1", "expert 7 of 7");
}

static void an_expert_twice_in_a_token_is_named(void **state)
{
    uint8_t bytes[BYTES];
    (void)state;
    make(bytes);
    bytes[ROUTES_AT + 5] = bytes[ROUTES_AT + 4];
    refuse(bytes, BYTES, "token 2 has expert 4", "lanes 0 and 1");
}

static void a_weight_that_is_no_number_is_kept(void **state)
{
    uint8_t bytes[BYTES];
    struct cli_trace trace;
    char error[256];
    (void)state;
    make(bytes);
    put_u32(bytes + ROUTES_AT + TOKENS * TOPK, 0x7fc00001u);
    assert_int_equal(parse(bytes, BYTES, &trace, error), 0);
    assert_true(isnan(trace.weight[0]));
    cli_trace_free(&trace);
}

/* Any byte of a right trace may be anything: it is read or refused, and nothing else happens. */
static void any_changed_byte_is_read_or_refused(void **state)
{
    uint8_t bytes[BYTES];
    struct cli_trace trace;
    char error[256];
    (void)state;
    for (uint32_t at = 0; at < BYTES; at++) {
        for (uint32_t value = 0; value < 256; value++) {
            make(bytes);
            bytes[at] = (uint8_t)value;
            if (parse(bytes, BYTES, &trace, error) != 0)
                continue;
            for (uint32_t i = 0; i < trace.tokens * trace.topk; i++)
                assert_true(trace.expert[i] < trace.experts);
            cli_trace_free(&trace);
        }
    }
}

/* Routes of the hottest expert over their mean; data/traces/README.md says 2 .. 7. */
static double skew_of(const struct cli_trace *trace)
{
    uint32_t count[256] = {0};
    uint32_t most = 0;
    size_t pairs = (size_t)trace->tokens * trace->topk;
    for (size_t i = 0; i < pairs; i++)
        count[trace->expert[i]]++;
    for (uint32_t e = 0; e < trace->experts; e++)
        most = count[e] > most ? count[e] : most;
    return (double)most * trace->experts / (double)pairs;
}

static void the_traces_of_the_repository_are_right(void **state)
{
    static const char *const files[] = {
        "data/traces/esft_dsv2lite_intent_L01.rtr", "data/traces/esft_dsv2lite_intent_L13.rtr",
        "data/traces/esft_dsv2lite_intent_L26.rtr", "data/traces/esft_dsv2lite_law_L13.rtr",
        "data/traces/gptoss20b_mmlu_L00.rtr",       "data/traces/gptoss20b_mmlu_L12.rtr"};
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        int gptoss = strstr(files[i], "gptoss") != NULL;
        struct cli_trace trace;
        assert_int_equal(cli_trace_load(files[i], &trace), CLI_OK);
        assert_int_equal(trace.experts, gptoss ? 32 : 64);
        assert_int_equal(trace.topk, gptoss ? 4 : 6);
        assert_true(trace.tokens > 1000);
        assert_int_equal(trace.layer, atoi(strstr(files[i], "_L") + 2));
        assert_in_range((uint64_t)(10 * skew_of(&trace)), 15, 75);
        cli_trace_free(&trace);
    }
}

static void a_file_that_is_not_there_is_a_usage_error(void **state)
{
    struct cli_trace trace;
    (void)state;
    assert_int_equal(cli_trace_load("data/traces/none.rtr", &trace), CLI_USAGE);
    assert_int_equal(cli_trace_load("data/traces", &trace), CLI_USAGE);
    assert_int_equal(cli_trace_load("/dev/null", &trace), CLI_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_reads_as_it_was_written),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(another_magic_is_refused),
        cmocka_unit_test(sizes_that_lie_are_refused_before_memory_is_taken),
        cmocka_unit_test(an_expert_that_is_not_there_is_named),
        cmocka_unit_test(an_expert_twice_in_a_token_is_named),
        cmocka_unit_test(a_weight_that_is_no_number_is_kept),
        cmocka_unit_test(any_changed_byte_is_read_or_refused),
        cmocka_unit_test(the_traces_of_the_repository_are_right),
        cmocka_unit_test(a_file_that_is_not_there_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
