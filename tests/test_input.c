/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_input.c - bad arguments of the four verbs: one error with both values and the rank that has
 * them, nothing has moved, and the next exchange is right in every bit.
 */

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "buffer.h"
#include "sentence.h"
#include "verbs.h"

#define CAPACITY VERBS_CAPACITY
#define EXPERTS VERBS_EXPERTS
#define TOPK VERBS_TOPK
#define HIDDEN VERBS_HIDDEN

/* "FAFA": source 0 is rank 1, source 1 rank 3, FFN ranks are 0 and 2. */
static struct verbs v;

static void begin(uint32_t payload, uint32_t receive)
{
    struct afd_buffer_config c = verbs_config();
    c.payload = payload;
    c.receive = receive;
    verbs_begin(&v, "FAFA", &c);
}

static void begin_fp8(void)
{
    begin(AFD_PAYLOAD_FP8, AFD_RECEIVE_EXPANDED);
}

/* ------------------------------------------------------------------------------------- dispatch */

/* Five legal tokens of rank 1, and copies of all windows. */
struct legal {
    int64_t ids[5 * TOPK];
    int32_t ids32[5 * TOPK];
    float weights[5 * TOPK + 1];
    uint8_t x[5 * HIDDEN];
    uint8_t scales[5 * 4];
    struct afd_tokens tokens;
    uint8_t *window[4];
};

static void legal_init(struct legal *legal)
{
    memset(legal, 0, sizeof(*legal));
    for (uint32_t i = 0; i < 5 * TOPK; i++) {
        legal->ids[i] = i % TOPK == 2 ? -1 : (int64_t)((i + i / TOPK) % EXPERTS);
        legal->ids32[i] = (int32_t)legal->ids[i];
    }
    legal->tokens.count = 5;
    legal->tokens.x = legal->x;
    legal->tokens.scales = legal->scales;
    legal->tokens.ids = legal->ids;
    legal->tokens.weights = legal->weights;
    for (uint32_t r = 0; r < v.job.world; r++) {
        const struct afd_window *window = &v.job.buffer[r]->window[r];
        legal->window[r] = job_need(malloc(window->bytes));
        memcpy(legal->window[r], window->base, window->bytes);
    }
}

/* Dispatches on rank 1 and checks that no window has changed, of any rank. */
static int dispatch(const struct legal *legal, const struct afd_tokens *tokens)
{
    int rc = afd_dispatch(v.job.buffer[1], 0, tokens, NULL);
    for (uint32_t r = 0; r < v.job.world; r++) {
        const struct afd_window *window = &v.job.buffer[r]->window[r];
        if (memcmp(legal->window[r], window->base, window->bytes) != 0)
            fail_msg("a rejected dispatch has written to rank %u", r);
    }
    return rc;
}

static void legal_free(struct legal *legal)
{
    for (uint32_t r = 0; r < v.job.world; r++)
        free(legal->window[r]);
}

static void more_tokens_than_capacity_name_both_numbers_and_the_rank(void **state)
{
    struct legal legal;
    struct afd_tokens t;
    uint32_t found = 6;
    (void)state;
    begin_fp8();
    legal_init(&legal);
    t = legal.tokens;
    t.count = CAPACITY + 1;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_ECAPACITY, "rank 1", "10 tokens", "capacity is 9");
    t.count = UINT32_MAX;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_ECAPACITY, "rank 1", "4294967295", "9");
    t.device_count = &found;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_ECAPACITY, "rank 1", "4294967295", "9");
    t.count = 5; /* the bound holds for what is found */
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_ECAPACITY, "rank 1", "6", "5");
    legal_free(&legal);
    verbs_end(&v);
}

static void a_bad_id_names_rank_token_lane_and_the_whole_id(void **state)
{
    static const struct {
        int64_t id;
        const char *text;
    } bad[] = {
        {-2, "id -2;"},
        {EXPERTS, "id 6;"},
        {EXPERTS + 1, "id 7;"},
        {INT_MIN, "id -2147483648;"},
        {INT_MAX, "id 2147483647;"},
        {(1ll << 32) + 3, "id 4294967299;"},
        {(1ll << 32) - 1, "id 4294967295;"},
        {INT64_MIN, "id -9223372036854775808;"},
        {INT64_MAX, "id 9223372036854775807;"},
    };
    (void)state;
    begin_fp8();
    for (uint32_t place = 0; place < 5 * TOPK; place++) {
        char token[32];
        char lane[32];
        snprintf(token, sizeof(token), "token %u,", place / TOPK);
        snprintf(lane, sizeof(lane), "lane %u ", place % TOPK);
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            struct legal legal;
            legal_init(&legal);
            legal.ids[place] = bad[i].id;
            legal.ids32[place] = (int32_t)bad[i].id;
            CHECK_SENTENCE(dispatch(&legal, &legal.tokens), AFD_EROUTE, "rank 1", token, lane,
                           bad[i].text, "0 .. 5");
            legal.tokens.ids = legal.ids32;
            legal.tokens.id_type = AFD_IDS_INT32;
            if (i < 5)
                CHECK_SENTENCE(dispatch(&legal, &legal.tokens), AFD_EROUTE, "rank 1", token, lane,
                               bad[i].text);
            legal_free(&legal);
        }
    }
    verbs_end(&v);
}

static void an_expert_twice_in_a_token_names_both_places(void **state)
{
    struct legal legal;
    (void)state;
    begin_fp8();
    legal_init(&legal);
    legal.ids[3 * TOPK + 2] = legal.ids[3 * TOPK];
    CHECK_SENTENCE(dispatch(&legal, &legal.tokens), AFD_EROUTE, "rank 1", "token 3", "lane 2",
                   "repeats expert id 0");
    legal.ids[3 * TOPK + 2] = legal.ids[3 * TOPK + 1];
    CHECK_SENTENCE(dispatch(&legal, &legal.tokens), AFD_EROUTE, "token 3", "lane 2", "id 1");
    legal_free(&legal);
    verbs_end(&v);
}

static void arrays_of_dispatch_are_checked(void **state)
{
    struct legal legal;
    struct afd_tokens t;
    (void)state;
    begin_fp8();
    legal_init(&legal);
    t = legal.tokens;
    t.x = NULL;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "x is NULL", "5 rows");
    t = legal.tokens;
    t.ids = NULL;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "ids is NULL", "5 rows");
    t = legal.tokens;
    t.scales = NULL;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "scales is NULL", "5 rows");
    t = legal.tokens;
    t.ids = (const uint8_t *)legal.ids + 4;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "ids is at", "multiple of 8");
    t.ids = (const uint8_t *)legal.ids32 + 2;
    t.id_type = AFD_IDS_INT32;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "ids is at", "multiple of 4");
    t = legal.tokens;
    t.weights = (const float *)(const void *)((const uint8_t *)legal.weights + 1);
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "weights is at", "multiple of 4");
    t = legal.tokens;
    t.device_count = (const uint32_t *)(const void *)((const uint8_t *)legal.ids32 + 1);
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "device_count is at", "multiple of 4");
    t = legal.tokens;
    t.id_type = 2;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "id_type is 2");
    CHECK_SENTENCE(dispatch(&legal, NULL), AFD_EINVAL, "tokens is NULL");
    legal_free(&legal);
    verbs_end(&v);
}

static void strides_of_dispatch_are_at_least_a_row(void **state)
{
    struct legal legal;
    struct afd_tokens t;
    (void)state;
    begin_fp8();
    legal_init(&legal);
    t = legal.tokens;
    t.x_stride = HIDDEN - 1;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "x_stride is 39", "40");
    t = legal.tokens;
    t.scales_stride = 3;
    CHECK_SENTENCE(dispatch(&legal, &t), AFD_EINVAL, "scales_stride is 3", "4");
    legal_free(&legal);
    verbs_end(&v);
}

static void scales_of_a_payload_without_scales_are_refused(void **state)
{
    struct legal legal;
    uint16_t x[5 * HIDDEN] = {0};
    (void)state;
    begin(AFD_PAYLOAD_BF16, AFD_RECEIVE_EXPANDED);
    legal_init(&legal);
    legal.tokens.x = x;
    CHECK_SENTENCE(dispatch(&legal, &legal.tokens), AFD_EINVAL, "scales are given");
    legal_free(&legal);
    verbs_end(&v);
}

static void no_tokens_need_no_arrays(void **state)
{
    static const uint32_t none[JOB_RANKS_MAX] = {0, 0};
    struct afd_tokens t;
    struct afd_output output;
    (void)state;
    begin_fp8();
    memset(&t, 0, sizeof(t));
    afd_output_init(&output);
    for (uint32_t s = 0; s < 2; s++)
        assert_int_equal(afd_dispatch(v.job.buffer[v.job.source_rank[s]], 0, &t, NULL), 0);
    v.job.options.with_weights = JOB_WEIGHTS_NONE;
    for (uint32_t f = 0; f < 2; f++) {
        assert_int_equal(job_receive(&v.job, f, 0, 99, none), 0);
        assert_int_equal(afd_reply(v.job.buffer[v.job.ffn_rank[f]], 0, NULL, 0, NULL), 0);
    }
    v.job.options.with_weights = JOB_WEIGHTS_ALL;
    for (uint32_t s = 0; s < 2; s++) {
        assert_int_equal(afd_collect(v.job.buffer[v.job.source_rank[s]], 0, &output, NULL), 0);
        assert_int_equal(output.count, 0);
    }
    verbs_end(&v);
}

/* ------------------------------------------------------------------------------- receive, reply */

static void batches_of_receive_are_checked(void **state)
{
    struct afd_batch batch;
    uint8_t memory[HIDDEN];
    char size[32];
    (void)state;
    begin_fp8();
    verbs_dispatch(&v);
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, NULL, NULL), AFD_EINVAL, "batch is NULL");
    afd_batch_init(&batch);
    batch.size -= 4;
    snprintf(size, sizeof(size), "%zu", sizeof(batch));
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, NULL), AFD_EINVAL, size,
                   "afd_batch_init");
    afd_batch_init(&batch);
    batch.rows_capacity = 77;
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, NULL), AFD_EINVAL, "rows is NULL", "77");
    batch.rows = memory;
    batch.rows_stride = HIDDEN - 1;
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, NULL), AFD_EINVAL, "rows_stride is 39",
                   "40");
    afd_batch_init(&batch);
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, &batch), AFD_EINVAL, "stream");
    verbs_finish(&v, 0);
    verbs_end(&v);
}

static void an_indexed_receive_takes_no_batch_memory(void **state)
{
    struct afd_batch batch;
    uint8_t memory[HIDDEN];
    (void)state;
    begin(AFD_PAYLOAD_FP8, AFD_RECEIVE_INDEXED);
    verbs_dispatch(&v);
    afd_batch_init(&batch);
    batch.rows = memory;
    batch.rows_capacity = 1;
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, NULL), AFD_EINVAL, "1 rows", "indexed");
    verbs_finish(&v, 0);
    verbs_end(&v);
}

static void rows_of_reply_are_checked(void **state)
{
    static uint16_t rows[64 * HIDDEN];
    uint8_t *odd = (uint8_t *)rows + 1;
    (void)state;
    begin_fp8();
    verbs_dispatch(&v);
    assert_int_equal(job_receive(&v.job, 0, 0, v.exchange, v.tokens), 0);
    assert_true(v.job.received[0][0].truth->batch[0].row_count != 0);
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, NULL, 0, NULL), AFD_EINVAL, "rows is NULL");
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, odd, 0, NULL), AFD_EINVAL, "rows is at", "of 2");
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, rows, 2 * HIDDEN - 2, NULL), AFD_EINVAL,
                   "rows_stride is 78", "80");
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, rows, 2 * HIDDEN + 1, NULL), AFD_EINVAL,
                   "rows_stride is 81", "odd");
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, rows, 0, rows), AFD_EINVAL, "stream");
    verbs_finish(&v, 1);
    verbs_end(&v);
}

static void reply_rows_inside_the_window_are_refused(void **state)
{
    const struct afd_window *own;
    uint64_t row_count;
    (void)state;
    begin(AFD_PAYLOAD_BF16, AFD_RECEIVE_INDEXED);
    verbs_dispatch(&v);
    assert_int_equal(job_receive(&v.job, 0, 0, v.exchange, v.tokens), 0);
    own = &v.job.buffer[0]->window[0];
    row_count = v.job.received[0][0].truth->batch[0].row_count;
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, own->base + own->bytes / 2, 0, NULL), AFD_EINVAL,
                   "inbox");
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, own->base + own->bytes - 2, 0, NULL), AFD_EINVAL,
                   "inbox"); /* begins in its last bytes */
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, own->base - row_count * 2 * HIDDEN + 2, 0, NULL),
                   AFD_EINVAL, "inbox"); /* ends in its first */
    verbs_finish(&v, 1);
    verbs_end(&v);
}

/* -------------------------------------------------------------------------------------- collect */

static void outputs_of_collect_are_checked(void **state)
{
    static uint16_t rows[CAPACITY * HIDDEN + 1];
    struct afd_output output;
    char size[32];
    (void)state;
    begin_fp8();
    verbs_dispatch(&v);
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, NULL, NULL), AFD_EINVAL, "output is NULL");
    afd_output_init(&output);
    output.size += 8;
    snprintf(size, sizeof(size), "%zu", sizeof(output));
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, size,
                   "afd_output_init");
    afd_output_init(&output);
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "rows is NULL", "5");
    output.rows = (uint8_t *)rows + 1;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "rows is at",
                   "of 2");
    output.rows = rows;
    output.rows_stride = 2 * HIDDEN - 2;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "rows_stride is 78",
                   "80");
    output.rows_stride = 2 * HIDDEN + 3;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "rows_stride is 83",
                   "odd");
    output.rows_stride = 0;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, rows), AFD_EINVAL, "stream");
    for (uint32_t b = 0; b < 2; b++) {
        output.bias[b] = (uint8_t *)rows + 1;
        CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL,
                       b == 0 ? "bias[0]" : "bias[1]", "of 2");
        output.bias[b] = NULL;
    }
    verbs_finish(&v, 0);
    verbs_end(&v);
}

static void a_view_needs_one_ffn_rank_and_no_bias(void **state)
{
    static uint16_t bias[CAPACITY * HIDDEN];
    struct afd_buffer_config c = verbs_config();
    struct afd_output output;
    (void)state;
    begin_fp8();
    verbs_dispatch(&v);
    afd_output_init(&output);
    output.view = 2;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "view is 2",
                   "0 or 1");
    output.view = 1;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "1 FFN rank", "2");
    verbs_finish(&v, 0);
    verbs_end(&v);
    verbs_begin(&v, "FAA", &c);
    verbs_dispatch(&v);
    output.bias[1] = bias;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_EINVAL, "view", "bias");
    output.bias[1] = NULL;
    verbs_finish(&v, 0);
    job_close(&v.job);
}

static void a_view_of_a_reply_in_words_is_refused(void **state)
{
    static const uint32_t few[JOB_RANKS_MAX] = {3, 2};
    struct afd_buffer_config c = verbs_config();
    struct afd_output output;
    (void)state;
    c.reply_variant = AFD_VARIANT_WORDS;
    verbs_begin(&v, "FAA", &c);
    for (uint32_t s = 0; s < 2; s++) {
        struct job_truth *truth = job_truth_get(&v.job, 1, few);
        assert_int_equal(job_dispatch(&v.job, s, 0, &truth->input[s]), 0);
        job_truth_put(&v.job, truth);
    }
    afd_output_init(&output);
    output.view = 1;
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, NULL), AFD_ESTATE, "view", "words",
                   "stage 0");
    assert_int_equal(job_ffn(&v.job, 0, 0, 1, few), 0);
    for (uint32_t s = 0; s < 2; s++)
        assert_int_equal(job_collect(&v.job, s, 0, 1, few), 0);
    assert_int_equal(v.job.mismatches, 0);
    verbs_end(&v);
}

/* Also for a rank without tokens, which is not to differ from the others. */
static void without_words_any_wanted_variant_gives_views(void **state)
{
    struct afd_buffer_config c = verbs_config();
    (void)state;
    c.words_tokens = 0;
    c.variant = c.reply_variant = AFD_VARIANT_WORDS;
    verbs_begin(&v, "FAA", &c);
    v.job.options.view = 1;
    verbs_work(&v);
    v.tokens[0] = 0;
    verbs_end(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_tokens_than_capacity_name_both_numbers_and_the_rank),
        cmocka_unit_test(a_bad_id_names_rank_token_lane_and_the_whole_id),
        cmocka_unit_test(an_expert_twice_in_a_token_names_both_places),
        cmocka_unit_test(arrays_of_dispatch_are_checked),
        cmocka_unit_test(strides_of_dispatch_are_at_least_a_row),
        cmocka_unit_test(scales_of_a_payload_without_scales_are_refused),
        cmocka_unit_test(no_tokens_need_no_arrays),
        cmocka_unit_test(batches_of_receive_are_checked),
        cmocka_unit_test(an_indexed_receive_takes_no_batch_memory),
        cmocka_unit_test(rows_of_reply_are_checked),
        cmocka_unit_test(reply_rows_inside_the_window_are_refused),
        cmocka_unit_test(outputs_of_collect_are_checked),
        cmocka_unit_test(a_view_needs_one_ffn_rank_and_no_bias),
        cmocka_unit_test(a_view_of_a_reply_in_words_is_refused),
        cmocka_unit_test(without_words_any_wanted_variant_gives_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
