/* SPDX-License-Identifier: Apache-2.0 */
/* What the command expects a source to collect, against the sums written out the plain way. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../cli/job.h"

#define HIDDEN 130u /* more than one group of scales, and not a whole one */
#define TOKENS 9u
#define EXCHANGE 5u

static float f32_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* To nearest, ties to even; no input here is NaN or infinite. */
static uint16_t bf16_of(float value)
{
    uint32_t bits;
    uint32_t half;
    memcpy(&bits, &value, sizeof(bits));
    half = bits & 0xffffu;
    bits >>= 16;
    if (half > 0x8000u || (half == 0x8000u && (bits & 1) != 0))
        bits++;
    return (uint16_t)bits;
}

/* Lane of token t that has expert e, or -1. */
static int lane_of(const struct cli_job *job, const struct cli_input *in, uint32_t t, uint32_t e)
{
    for (uint32_t i = 0; i < job->config.topk; i++)
        if (in->ids[t * job->config.topk + i] == (int64_t)e)
            return (int)i;
    return -1;
}

/* FFN rank f's rows of token t, in ascending order of expert; 0 if it has none. */
static int partial(const struct cli_job *job, const struct cli_input *in, uint32_t t, uint32_t f,
                   uint16_t *row_out)
{
    struct cli_row row = {in->x + t * job->ref.payload_bytes, in->scales + t * job->ref.scale_bytes,
                          job->config.payload == AFD_PAYLOAD_FP8 ? 4 : 1};
    float sum[HIDDEN];
    uint16_t answer[HIDDEN];
    int terms = 0;
    for (uint32_t e = 0; e < job->config.experts; e++) {
        int lane = lane_of(job, in, t, e);
        if (lane < 0 || job->placement[e] != f)
            continue;
        cli_expert(job, &row, e, EXCHANGE, 0, answer);
        for (uint32_t h = 0; h < HIDDEN; h++) {
            float term = f32_of(answer[h]);
            if (job->options.weights)
                term = in->weights[t * job->config.topk + (uint32_t)lane] * term;
            sum[h] = terms == 0 ? term : sum[h] + term;
        }
        terms++;
    }
    for (uint32_t h = 0; terms != 0 && h < HIDDEN; h++)
        row_out[h] = bf16_of(sum[h]);
    return terms != 0;
}

static void plain_row(const struct cli_job *job, const struct cli_input *in, uint32_t t,
                      uint16_t *row_out)
{
    float sum[HIDDEN] = {0};
    uint16_t term[HIDDEN];
    int terms = 0;
    if (job->options.bias) {
        for (uint32_t h = 0; h < HIDDEN; h++)
            sum[h] = f32_of(in->bias[t * HIDDEN + h]);
        terms = 1;
    }
    for (uint32_t f = 0; f < job->layout.ffn_ranks; f++) {
        if (!partial(job, in, t, f, term))
            continue;
        for (uint32_t h = 0; h < HIDDEN; h++)
            sum[h] = terms == 0 ? f32_of(term[h]) : sum[h] + f32_of(term[h]);
        terms++;
    }
    for (uint32_t h = 0; h < HIDDEN; h++)
        row_out[h] = bf16_of(sum[h]);
}

static void check(int weights, int bias, char *payload, char *routing)
{
    static char layout[] = "2A3F";
    static char tokens[] = "9";
    const char *argv[] = {"run"};
    struct cli_options options;
    struct cli_job *job = calloc(1, sizeof(*job));
    struct cli_input in;
    uint16_t got[TOKENS * HIDDEN];
    uint16_t want[HIDDEN];
    assert_non_null(job);
    assert_int_equal(cli_options_parse("run", 1, argv, &options), CLI_OK);
    options.layout = layout;
    options.tokens = tokens;
    options.payload = payload;
    options.routing = routing;
    options.hidden = HIDDEN;
    options.experts = 7;
    options.topk = 4;
    options.weights = weights;
    options.bias = bias;
    assert_int_equal(cli_job_make(&options, job), CLI_OK);
    assert_int_equal(cli_input_alloc(job, &in), CLI_OK);
    cli_input_fill(job, EXCHANGE, 1, TOKENS, &in);
    assert_int_equal(cli_expected(job, EXCHANGE, &in, 0, got), CLI_OK);
    for (uint32_t t = 0; t < TOKENS; t++) {
        plain_row(job, &in, t, want);
        assert_memory_equal(got + t * HIDDEN, want, sizeof(want));
    }
    cli_input_free(&in);
    cli_job_free(job);
    free(job);
}

static void rows_are_the_sums_written_out(void **state)
{
    static char *const payloads[] = {"bf16", "fp8", "fp8-ue8m0", "bytes:33"};
    (void)state;
    for (size_t p = 0; p < sizeof(payloads) / sizeof(payloads[0]); p++)
        for (int how = 0; how < 4; how++)
            check(how & 1, how >> 1, payloads[p], "uniform");
}

static void a_token_without_routes_has_its_bias_or_zero(void **state)
{
    (void)state;
    check(0, 0, "bf16", "none");
    check(0, 1, "bf16", "none");
    check(1, 1, "bf16", "one-expert");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_the_sums_written_out),
        cmocka_unit_test(a_token_without_routes_has_its_bias_or_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
