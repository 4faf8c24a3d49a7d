/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command generates: any rank can say what any other sends, experts can be told apart, and
 * every exchange that was asked for is planned.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../cli/job.h"
#include "../cli/rank.h"

#define ARGS_MAX 24

/* A job from a line of options. */
static struct cli_job *job_of(const char *line, struct cli_options *options)
{
    static char text[512];
    const char *argv[ARGS_MAX] = {"run"};
    struct cli_job *job = calloc(1, sizeof(*job));
    char *save = NULL;
    int argc = 1;
    assert_non_null(job);
    snprintf(text, sizeof(text), "%s", line);
    for (char *word = strtok_r(text, " ", &save); word != NULL && argc < ARGS_MAX;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    assert_int_equal(cli_options_parse("run", argc, argv, options), CLI_OK);
    assert_int_equal(cli_job_make(options, job), CLI_OK);
    return job;
}

static void job_end(struct cli_job *job, struct cli_options *options)
{
    cli_job_free(job);
    cli_options_free(options);
    free(job);
}

static void fill(const struct cli_job *job, uint64_t exchange, uint32_t s, uint32_t tokens,
                 struct cli_input *in)
{
    assert_int_equal(cli_input_alloc(job, in), CLI_OK);
    cli_input_fill(job, exchange, s, tokens, in);
}

static int same(const struct cli_job *job, const struct cli_input *a, const struct cli_input *b)
{
    size_t pairs = (size_t)a->count * job->config.topk;
    return a->count == b->count && memcmp(a->ids, b->ids, pairs * sizeof(*a->ids)) == 0 &&
           memcmp(a->weights, b->weights, pairs * sizeof(*a->weights)) == 0 &&
           memcmp(a->x, b->x, (size_t)a->count * job->ref.payload_bytes) == 0 &&
           memcmp(a->scales, b->scales, (size_t)a->count * job->ref.scale_bytes) == 0;
}

static void input_is_a_function_of_seed_exchange_and_source(void **state)
{
    static const char *const lines[] = {"", "--routing skewed --payload fp8",
                                        "--routing lognormal --payload fp8-ue8m0",
                                        "--payload bytes:100"};
    (void)state;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        struct cli_options options[3];
        struct cli_input in[5];
        char line[256];
        struct cli_job *job[3];
        for (int seed = 0; seed < 3; seed++) { /* the first two are alike */
            snprintf(line, sizeof(line), "--hidden 200 --tokens 16 --seed %d %s", seed == 2 ? 9 : 5,
                     lines[i]);
            job[seed] = job_of(line, &options[seed]);
        }
        fill(job[0], 3, 1, 16, &in[0]);
        fill(job[1], 3, 1, 16, &in[1]);
        fill(job[2], 3, 1, 16, &in[2]);
        fill(job[0], 4, 1, 16, &in[3]);
        fill(job[0], 3, 0, 16, &in[4]);
        assert_true(same(job[0], &in[0], &in[1]));
        for (int j = 2; j < 5; j++)
            assert_false(same(job[0], &in[0], &in[j]));
        for (int j = 0; j < 5; j++)
            cli_input_free(&in[j]);
        for (int j = 0; j < 3; j++)
            job_end(job[j], &options[j]);
    }
}

/* Each token has min(k, experts) different experts in range; the rest are -1. Returns the rows of
 * the most wanted expert over the mean. */
static double check_routes(const char *line, uint32_t expected)
{
    struct cli_options options;
    struct cli_job *job = job_of(line, &options);
    uint32_t k = job->config.topk;
    uint32_t *count = calloc(job->config.experts, sizeof(*count));
    uint32_t most = 0;
    struct cli_input in;
    assert_non_null(count);
    fill(job, 0, 0, 256, &in);
    for (uint32_t t = 0; t < 256; t++) {
        uint32_t routes = 0;
        for (uint32_t i = 0; i < k; i++) {
            int64_t id = in.ids[t * k + i];
            assert_true(id >= -1 && id < (int64_t)job->config.experts);
            assert_int_equal(in.ids32[t * k + i], id);
            if (id < 0)
                continue;
            routes++;
            count[id]++;
            for (uint32_t j = 0; j < i; j++)
                assert_true(in.ids[t * k + j] != id);
        }
        assert_int_equal(routes, expected);
    }
    for (uint32_t e = 0; e < job->config.experts; e++)
        most = count[e] > most ? count[e] : most;
    cli_input_free(&in);
    free(count);
    most *= job->config.experts;
    job_end(job, &options);
    return expected == 0 ? 0 : (double)most / (256.0 * expected);
}

static void routes_are_different_experts_of_the_job(void **state)
{
    double uniform = check_routes("--hidden 8 --tokens 256 --experts 64", 8);
    (void)state;
    assert_true(uniform < 2);
    assert_true(check_routes("--hidden 8 --tokens 256 --experts 64 --routing skewed", 8) >
                1.5 * uniform);
    assert_true(check_routes("--hidden 8 --tokens 256 --experts 64 --routing lognormal", 8) >
                uniform);
    check_routes("--hidden 8 --tokens 256 --experts 3 --topk 8", 3);
    check_routes("--hidden 8 --tokens 256 --experts 3 --topk 8 --routing skewed", 3);
    check_routes("--hidden 8 --tokens 256 --experts 1 --topk 1 --routing lognormal", 1);
    check_routes("--hidden 8 --tokens 256 --experts 32 --topk 32", 32);
}

static void one_expert_and_none_are_what_they_say(void **state)
{
    (void)state;
    assert_true(check_routes("--hidden 8 --tokens 256 --experts 16 --routing one-expert", 1) == 16);
    assert_true(check_routes("--hidden 8 --tokens 256 --routing none", 0) == 0);
}

static void sources_take_different_parts_of_a_trace_and_wrap(void **state)
{
    struct cli_options options;
    struct cli_job *job = job_of("--layout 3A1F --hidden 8 --tokens 16 --trace "
                                 "data/traces/gptoss20b_mmlu_L00.rtr",
                                 &options);
    const struct cli_trace *trace = &job->trace;
    uint32_t k = trace->topk;
    struct cli_input in;
    (void)state;
    assert_int_equal(job->config.experts, 32);
    assert_int_equal(job->config.topk, 4);
    for (uint32_t s = 0; s < 3; s++) {
        uint64_t exchange = 1000; /* past the end */
        uint64_t at = ((uint64_t)s * trace->tokens / 3 + exchange * 16) % trace->tokens;
        fill(job, exchange, s, 16, &in);
        for (uint32_t t = 0; t < 16; t++, at = (at + 1) % trace->tokens) {
            for (uint32_t i = 0; i < k; i++)
                assert_int_equal(in.ids[t * k + i], trace->expert[at * k + i]);
            assert_memory_equal(in.weights + t * k, trace->weight + at * k, k * sizeof(float));
        }
        cli_input_free(&in);
    }
    job_end(job, &options);
}

/* A wrong expert, a wrong exchange or a wrong row must show in what an expert answers. */
static void answers_tell_expert_exchange_and_row_apart(void **state)
{
    static const char *const payloads[] = {"bf16", "fp8", "fp8-ue8m0", "bytes:40", "bytes:1000"};
    (void)state;
    for (size_t p = 0; p < sizeof(payloads) / sizeof(payloads[0]); p++) {
        struct cli_options options;
        char line[128];
        uint16_t answer[4][200];
        struct cli_job *job;
        struct cli_input in;
        snprintf(line, sizeof(line), "--hidden 200 --tokens 4 --payload %s", payloads[p]);
        job = job_of(line, &options);
        fill(job, 0, 0, 4, &in);
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t t = i == 3;
            struct cli_row row = {in.x + t * job->ref.payload_bytes,
                                  in.scales + t * job->ref.scale_bytes,
                                  job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1};
            cli_expert(job, &row, i == 1, i == 2, 0, answer[i]);
            for (uint32_t j = 0; j < i; j++)
                assert_true(memcmp(answer[i], answer[j], sizeof(answer[0])) != 0);
        }
        cli_input_free(&in);
        job_end(job, &options);
    }
}

/* Opaque rows longer than the reply: no byte is without effect. */
static void every_byte_of_an_opaque_row_counts(void **state)
{
    struct cli_options options;
    struct cli_job *job = job_of("--hidden 16 --tokens 1 --payload bytes:50", &options);
    uint16_t before[16];
    uint16_t after[16];
    struct cli_input in;
    struct cli_row row;
    (void)state;
    fill(job, 0, 0, 1, &in);
    row.payload = row.scales = in.x;
    row.group_stride = 1;
    cli_expert(job, &row, 0, 0, 1, before);
    for (uint32_t b = 0; b < 50; b++) {
        in.x[b] ^= 0x10;
        cli_expert(job, &row, 0, 0, 1, after);
        assert_true(memcmp(before, after, sizeof(before)) != 0);
        in.x[b] ^= 0x10;
    }
    cli_input_free(&in);
    job_end(job, &options);
}

static void all_exchanges_of_each_size_are_planned(void **state)
{
    static const char *const walks[] = {"1,8,32,128", "1..8", "5,5,5,5", "0..3", "7"};
    (void)state;
    for (int exchanges = 1; exchanges < 12; exchanges++) {
        for (size_t w = 0; w < sizeof(walks) / sizeof(walks[0]); w++) {
            uint32_t of_size[CLI_SIZES_MAX] = {0};
            uint32_t timed[CLI_SIZES_MAX] = {0};
            struct cli_options options;
            char line[128];
            struct cli_job *job;
            uint64_t next = 0;
            snprintf(line, sizeof(line), "--hidden 8 --tokens %s --exchanges %d", walks[w],
                     exchanges);
            job = job_of(line, &options);
            for (uint32_t i = 0; i < job->visit_count; i++) {
                const struct cli_visit *v = &job->visit[i];
                assert_int_equal(v->first_exchange, next);
                next += v->distinct + v->timed;
                of_size[v->size] += v->distinct + v->timed;
                timed[v->size] += v->timed;
            }
            assert_int_equal(next, job->exchanges);
            for (uint32_t s = 0; s < job->size_count; s++) {
                assert_int_equal(of_size[s], exchanges);
                if (exchanges > 1)
                    assert_true(timed[s] >= 1 && timed[s] < (uint32_t)exchanges);
            }
            job_end(job, &options);
        }
    }
}

/* What an exchange leaves behind must not be what the next one on its stage should bring. */
static void a_stage_never_times_one_set_twice_in_a_row(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 8; stages++) {
        struct cli_options options;
        char line[128];
        struct cli_job *job;
        snprintf(line, sizeof(line), "--hidden 8 --tokens 8 --exchanges 100 --stages %d", stages);
        job = job_of(line, &options);
        assert_int_equal(cli_timed_sets(job, &job->visit[0]), CLI_SETS_MAX);
        for (uint32_t i = (uint32_t)stages; i < job->visit[0].timed; i++)
            assert_int_not_equal(cli_timed_set(job, &job->visit[0], i),
                                 cli_timed_set(job, &job->visit[0], i - (uint32_t)stages));
        job_end(job, &options);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(input_is_a_function_of_seed_exchange_and_source),
        cmocka_unit_test(routes_are_different_experts_of_the_job),
        cmocka_unit_test(one_expert_and_none_are_what_they_say),
        cmocka_unit_test(sources_take_different_parts_of_a_trace_and_wrap),
        cmocka_unit_test(answers_tell_expert_exchange_and_row_apart),
        cmocka_unit_test(every_byte_of_an_opaque_row_counts),
        cmocka_unit_test(all_exchanges_of_each_size_are_planned),
        cmocka_unit_test(a_stage_never_times_one_set_twice_in_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
