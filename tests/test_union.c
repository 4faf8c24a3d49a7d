/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_union.c - protocol union moves the same bits as direct, with the messages and the memory of
 * the symmetric baseline (doc/protocol-union.md).
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "buffer.h"
#include "matrix.h"
#include "sentence.h"

static struct afd_buffer_config small(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.protocol = AFD_PROTOCOL_UNION;
    c.capacity = 70; /* more than a word of bits */
    c.hidden = 48;
    c.experts = 13;
    c.topk = 4;
    return c;
}

static void open_job(struct job *job)
{
    int rc;
    job->options.threads = 1; /* every call waits for all ranks */
    rc = job_open(job);
    for (uint32_t r = 0; r < job->world; r++)
        if (job->create_rc[r] != 0)
            fail_msg("rank %u: %s", r, job->create_error[r]);
    assert_int_equal(rc, 0);
}

static const uint32_t sizes[] = {0, 1, 5, 70, 64, 3, 17, 0, 8, 65};

/* Exchanges in turn on all stages, then an exchange on every stage at once. */
static void run(struct job *job, uint32_t exchanges)
{
    uint32_t tokens[AFD_STAGES_MAX][JOB_RANKS_MAX];
    struct job_flight flight[AFD_STAGES_MAX];
    uint32_t stages = job->config[0].stages;
    open_job(job);
    for (uint32_t n = 1; n <= exchanges + stages; n++) {
        uint32_t stage = (n - 1) % stages;
        uint32_t i = n <= exchanges ? 0 : n - exchanges - 1;
        for (uint32_t s = 0; s < job->sources; s++)
            tokens[i][s] = sizes[(n + s) % 10];
        flight[i].stage = stage;
        flight[i].exchange = n;
        flight[i].tokens = tokens[i];
        if (n > exchanges && n < exchanges + stages)
            continue;
        if (job_fly(job, flight, i + 1) != 0 || job->mismatches != 0)
            fail_msg("exchange %u: %s", n, job->first_mismatch);
    }
    job_close(job);
}

/* -------------------------------------------------------------------------------- the same bits */

static void every_layout_matches_the_reference(void **state)
{
    static const char *const layouts[] = {"AF",     "FA",       "AAFF",    "FAFA",
                                          "AAAF",   "AFFF",     "FFFFFAA", "AAAAAAFF",
                                          "FAAFAA", "FFFFAAAA", "AAFFF",   "FFFFFFFFFFFFFA"};
    (void)state;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        for (uint32_t topk = 1; topk <= 8; topk += i % 2 == 0 ? 3 : 7) {
            struct afd_buffer_config c = small();
            struct job job;
            c.topk = topk; /* replies lie by rank or, if there are more ranks, by lane */
            job_init(&job, layouts[i], &c);
            job.options.bias_count = (uint32_t)i % 3;
            job.options.with_weights = JOB_WEIGHTS_ALL;
            run(&job, 20);
        }
    }
}

static void blocks_that_differ_between_ranks_match(void **state)
{
    static const uint32_t blocks[] = {1, 3, 7, 2, 17};
    (void)state;
    for (uint32_t shift = 0; shift < 5; shift++) {
        struct afd_buffer_config c = small();
        struct job job;
        c.topk = shift % 2 == 0 ? 8 : 3;
        c.stages = 1 + shift % 3;
        job_init(&job, "AFAFA", &c);
        job.options.with_weights = JOB_WEIGHTS_ODD;
        for (uint32_t r = 0; r < job.world; r++)
            job.config[r].blocks = blocks[(r + shift) % 5];
        run(&job, 30);
    }
}

static struct matrix matrix;
static struct matrix_case current;

static void fail_row(uint32_t row, uint32_t wave, const char *why)
{
    char text[1024];
    matrix_describe(&matrix.row[row], text, sizeof(text));
    fail_msg("row %u, wave %u: %s\n    %s", row, wave, why, text);
}

static int run_row(uint32_t row)
{
    struct job *job = &current.job;
    matrix_case_begin(&matrix.row[row], 5000 + row, &current);
    for (uint32_t r = 0; r < job->world; r++) {
        job->config[r].protocol = AFD_PROTOCOL_UNION;
        job->config[r].receive = AFD_RECEIVE_EXPANDED;
    }
    job->options.view = 0;
    job->options.threads = 1;
    if (job_open(job) != 0)
        for (uint32_t r = 0; r < job->world; r++)
            if (job->create_rc[r] != 0)
                fail_row(row, 0, job->create_error[r]);
    for (uint32_t wave = 0; wave < 3; wave++) {
        int rc = matrix_case_wave(&current, wave);
        if (rc != 0 || job->mismatches != 0)
            fail_row(row, wave, job->mismatches != 0 ? job->first_mismatch : afd_last_error());
    }
    matrix_case_end(&current);
    return 1;
}

static void every_pair_of_options_matches_the_reference(void **state)
{
    const char *only = getenv("AFD_MATRIX_ROW");
    uint32_t rows = 0;
    (void)state;
    assert_int_equal(matrix_make(3, &matrix), 0);
    for (uint32_t row = 0; row < matrix.counts.rows; row++)
        if (only == NULL || strtoul(only, NULL, 10) == row)
            rows += (uint32_t)run_row(row);
    printf("report: union: %u combinations of options\n", rows);
}

/* ------------------------------------------------------------------------------------- messages */

enum { TOKENS = 4, TOPK = 3, HIDDEN = 64, EXPERTS = 4 };

static struct job job;
static struct afd_traffic traffic[JOB_RANKS_MAX];
static struct afd_traffic half[JOB_RANKS_MAX]; /* what was counted when the first verb returned */
static const uint32_t tokens_of[JOB_RANKS_MAX] = {TOKENS, TOKENS, TOKENS, TOKENS,
                                                  TOKENS, TOKENS, TOKENS, TOKENS};

static void *exchange_once(void *arg)
{
    uint32_t rank = (uint32_t)(uintptr_t)arg;
    uint32_t index = job.buffer[rank]->plan.index;
    int rc;
    memset(&traffic[rank], 0, sizeof(traffic[rank]));
    job.buffer[rank]->inl.exec.traffic = &traffic[rank];
    if (job.roles[rank] == AFD_ROLE_FFN) {
        rc = job_receive(&job, index, 0, 1, tokens_of);
        half[rank] = traffic[rank];
        rc = rc ? rc : job_reply(&job, index, 0);
    } else {
        struct job_truth *truth = job_truth_get(&job, 1, tokens_of);
        rc = job_dispatch(&job, index, 0, &truth->input[index]);
        half[rank] = traffic[rank];
        rc = rc ? rc : job_collect(&job, index, 0, 1, tokens_of);
        job_truth_put(&job, truth);
    }
    return rc == 0 ? NULL : arg;
}

/* One exchange of 4 tokens per source, each of which goes to both FFN ranks. */
static void count_messages(uint32_t protocol, uint32_t attention_blocks, uint32_t ffn_blocks)
{
    struct afd_buffer_config c;
    pthread_t thread[JOB_RANKS_MAX];
    afd_buffer_config_init(&c);
    c.protocol = protocol;
    c.capacity = 8;
    c.hidden = HIDDEN;
    c.experts = EXPERTS;
    c.topk = TOPK;
    job_init(&job, "FAFAA", &c);
    job.options.routing = JOB_ROUTING_FULL;
    for (uint32_t r = 0; r < job.world; r++)
        job.config[r].blocks = job.roles[r] == AFD_ROLE_FFN ? ffn_blocks : attention_blocks;
    open_job(&job);
    for (uint32_t r = 0; r < job.world; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, exchange_once, (void *)(uintptr_t)r), 0);
    for (uint32_t r = 0; r < job.world; r++)
        pthread_join(thread[r], NULL);
    if (job.mismatches != 0)
        fail_msg("%s", job.first_mismatch);
    for (uint32_t r = 0; r < job.world; r++) { /* the second verb alone */
        traffic[r].words -= half[r].words;
        traffic[r].waits -= half[r].waits;
        traffic[r].rows -= half[r].rows;
        traffic[r].bytes -= half[r].bytes;
    }
    job_close(&job);
}

static void check_traffic(uint32_t rank, const char *verb, const struct afd_traffic *got,
                          struct afd_traffic want)
{
    if (memcmp(got, &want, sizeof(want)) != 0)
        fail_msg("rank %u, %s: words %u of %u, waits %u of %u, rows %u of %u, bytes %u of %u", rank,
                 verb, (unsigned)got->words, (unsigned)want.words, (unsigned)got->waits,
                 (unsigned)want.waits, (unsigned)got->rows, (unsigned)want.rows,
                 (unsigned)got->bytes, (unsigned)want.bytes);
}

/* R ranks, EPR experts each: R x EPR logical ones. */
static void union_sends_and_awaits_what_the_symmetric_baseline_does(void **state)
{
    enum { R = 5, EPR = 2, F = 2, N = 3, META = (2 * TOPK + 1) * 4 };
    (void)state;
    for (uint32_t blocks = 1; blocks <= 7; blocks += 3) {
        count_messages(AFD_PROTOCOL_UNION, blocks, 8 - blocks);
        for (uint32_t r = 0; r < R; r++) {
            int ffn = job.roles[r] == AFD_ROLE_FFN;
            uint64_t sent = ffn ? 0 : TOKENS * F;
            uint64_t answered = ffn ? TOKENS * N : 0;
            struct afd_traffic dispatch = {2 * R + R + R * EPR, 2 + R + R * EPR, sent,
                                           sent * (HIDDEN * 2 + META)};
            struct afd_traffic combine = {2 * R, 2, answered, answered * HIDDEN * 2};
            check_traffic(r, "dispatch", &half[r], dispatch);
            check_traffic(r, "combine", &traffic[r], combine);
        }
    }
}

/* Several blocks on the Attention ranks, one on the FFN ranks: nothing then depends on time. */
static void direct_sends_and_awaits_what_its_words_say(void **state)
{
    enum { F = 2, N = 3, B = 2, TABLE = TOKENS * (TOPK + 1) * 2 };
    (void)state;
    count_messages(AFD_PROTOCOL_DIRECT, B, 1);
    for (uint32_t r = 0; r < job.world; r++) {
        /* per FFN rank a header of 4 words, the routes word, and a credit of each block */
        struct afd_traffic dispatch = {F * (4 + 1 + B), 0, TOKENS * F,
                                       F * (TOKENS * HIDDEN * 2 + TABLE)};
        /* each block: a header and the credits of each FFN rank */
        struct afd_traffic collect = {0, (uint64_t)B * F * 2, 0, 0};
        /* of each source a header, the routes word, the credits */
        struct afd_traffic receive = {0, N * 3, 0, 0};
        /* to each source a header, and a credit per row */
        struct afd_traffic reply = {N * (1 + TOKENS), 0, N * TOKENS, N * TOKENS * HIDDEN * 2};
        int ffn = job.roles[r] == AFD_ROLE_FFN;
        check_traffic(r, ffn ? "receive" : "dispatch", &half[r], ffn ? receive : dispatch);
        check_traffic(r, ffn ? "reply" : "collect", &traffic[r], ffn ? reply : collect);
    }
}

/* --------------------------------------------------------------------------------------- memory */

static void rows_are_as_long_as_in_the_record(void **state)
{
    static const uint32_t table[][5] = {/* H, BF16, FP8 with FP32 scales, with UE8M0, reply */
                                        {2048, 4224, 2240, 2208, 4160},
                                        {4096, 8320, 4352, 4256, 8256},
                                        {7168, 14464, 7520, 7360, 14400},
                                        {8192, 16512, 8576, 8384, 16448}};
    struct afd_shape shape;
    (void)state;
    memset(&shape, 0, sizeof(shape));
    shape.topk = 8;
    for (size_t i = 0; i < 4; i++) {
        shape.hidden = table[i][0];
        shape.payload_bytes = 2 * shape.hidden;
        shape.scale_bytes = 0;
        assert_int_equal(afd_union_row_bytes(&shape), table[i][1]);
        assert_int_equal(afd_union_reply_row_bytes(&shape), table[i][4]);
        shape.payload_bytes = shape.hidden;
        shape.scale_bytes = shape.hidden / 32;
        assert_int_equal(afd_union_row_bytes(&shape), table[i][2]);
        shape.scale_bytes = shape.hidden / 128;
        assert_int_equal(afd_union_row_bytes(&shape), table[i][3]);
    }
}

static uint64_t largest_window(const char *roles, uint32_t protocol, uint64_t *inbox_out)
{
    uint8_t role[JOB_RANKS_MAX];
    struct afd_group_config group;
    struct afd_buffer_config c;
    uint64_t largest = 0;
    afd_group_config_init(&group);
    group.world = (uint32_t)strlen(roles);
    group.roles = role;
    for (uint32_t r = 0; r < group.world; r++)
        role[r] = roles[r] == 'F' ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION;
    afd_buffer_config_init(&c);
    c.protocol = protocol;
    c.capacity = 2048;
    c.hidden = 2048;
    c.experts = 96;
    for (uint32_t r = 0; r < group.world; r++) {
        struct afd_memory memory;
        assert_int_equal(afd_buffer_memory(&group, &c, r, &memory), 0);
        if (protocol == AFD_PROTOCOL_UNION && r > 0) /* symmetric */
            assert_int_equal(memory.registered_bytes, largest);
        largest = memory.registered_bytes > largest ? memory.registered_bytes : largest;
        for (uint32_t i = 0; i < memory.region_count; i++)
            if (strcmp(memory.region[i].name, "inbox") == 0)
                *inbox_out = memory.region[i].bytes;
    }
    return largest;
}

static void direct_registers_half_or_three_quarters_of_union(void **state)
{
    static const struct {
        const char *roles;
        double ratio;
    } layouts[] = {{"FFAA", 0.50}, {"FAAA", 0.75}, {"FFFA", 0.75}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        uint64_t inbox = 0;
        uint64_t ignored;
        uint64_t whole = largest_window(layouts[i].roles, AFD_PROTOCOL_UNION, &inbox);
        uint64_t direct = largest_window(layouts[i].roles, AFD_PROTOCOL_DIRECT, &ignored);
        assert_int_equal(inbox, 4ull * 2048 * 4224);
        assert_in_range(whole - inbox, 0, 65536);
        printf("report: union %s: %.2f MB registered, direct %.2f MB\n", layouts[i].roles,
               (double)whole / 1e6, (double)direct / 1e6);
        assert_in_range((uint64_t)(1e4 * (double)direct / (double)whole),
                        (uint64_t)(1e4 * layouts[i].ratio) - 300,
                        (uint64_t)(1e4 * layouts[i].ratio) + 100);
    }
}

static void replies_and_rows_share_their_first_byte_and_words_lie_before(void **state)
{
    struct afd_shape shape;
    (void)state;
    memset(&shape, 0, sizeof(shape));
    for (uint32_t world = 2; world <= 40; world += 19) {
        struct afd_union_layout l;
        shape.world = world;
        shape.topk = 8;
        shape.capacity = 33;
        shape.hidden = 300;
        shape.payload_bytes = 37;
        shape.stages = 2;
        l = afd_union_layout_make(&shape, 5, AFD_PAGE);
        assert_int_equal(l.inbox.offset, l.reply.offset);
        assert_int_equal(l.inbox.count, world * 33u);
        assert_int_equal(l.reply.count, (world < 8 ? world : 8) * 33u);
        assert_true(l.barrier.offset >= l.control_bytes);
        assert_true(l.counts.offset >= l.barrier.offset + AFD_WORD_STRIDE);
        assert_true(l.counts.stride >= 6 * 8 && l.counts.stride % 64 == 0);
        assert_true(l.inbox.offset >= l.counts.offset + l.counts.count * l.counts.stride);
        assert_true(l.control_bytes + l.stage_stride >=
                    l.inbox.offset + l.inbox.count * l.inbox.stride);
        assert_true(l.control_bytes + l.stage_stride >=
                    l.reply.offset + l.reply.count * l.reply.stride);
        assert_int_equal(l.window_bytes, l.control_bytes + 2 * l.stage_stride);
    }
}

/* ---------------------------------------------------------------------------- what there is not */

static void refused_at_create(void **state)
{
    struct afd_buffer_config c = small();
    struct afd_memory memory;
    uint32_t domains[4] = {0, 0, 1, 1};
    (void)state;
    job_init(&job, "AAFF", &c);
    c.receive = AFD_RECEIVE_INDEXED;
    CHECK_SENTENCE(afd_buffer_memory(&job.group_config, &c, 0, &memory), AFD_EUNSUPPORTED,
                   "indexed", "union", "expanded");
    c = small();
    c.reply = AFD_REPLY_FP8;
    CHECK_SENTENCE(afd_buffer_memory(&job.group_config, &c, 0, &memory), AFD_EUNSUPPORTED, "FP8",
                   "union");
    c = small();
    job.group_config.domains = domains;
    CHECK_SENTENCE(afd_buffer_memory(&job.group_config, &c, 0, &memory), AFD_EUNSUPPORTED, "union",
                   "domain 0", "rank 2 in domain 1");
}

static int ffn_rc;

static void *call_ffn(void *arg)
{
    ffn_rc = job_ffn(&job, 0, 0, 1, arg);
    return NULL;
}

static void a_view_is_refused_and_the_exchange_goes_on(void **state)
{
    struct afd_buffer_config c = small();
    struct job_truth *truth;
    struct afd_output output;
    pthread_t thread;
    (void)state;
    c.words_tokens = 16; /* no effect: rows all the same */
    c.variant = c.reply_variant = AFD_VARIANT_WORDS;
    job_init(&job, "AF", &c);
    open_job(&job);
    truth = job_truth_get(&job, 1, tokens_of);
    assert_int_equal(pthread_create(&thread, NULL, call_ffn, (void *)(uintptr_t)tokens_of), 0);
    assert_int_equal(job_dispatch(&job, 0, 0, &truth->input[0]), 0);
    afd_output_init(&output);
    output.view = 1;
    CHECK_SENTENCE(afd_collect(job.buffer[0], 0, &output, NULL), AFD_EUNSUPPORTED, "view", "union",
                   "copy");
    assert_int_equal(job_collect(&job, 0, 0, 1, tokens_of), 0);
    pthread_join(thread, NULL);
    assert_int_equal(ffn_rc, 0);
    job_truth_put(&job, truth);
    if (job.mismatches != 0)
        fail_msg("%s", job.first_mismatch);
    job_close(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_matches_the_reference),
        cmocka_unit_test(blocks_that_differ_between_ranks_match),
        cmocka_unit_test(every_pair_of_options_matches_the_reference),
        cmocka_unit_test(union_sends_and_awaits_what_the_symmetric_baseline_does),
        cmocka_unit_test(direct_sends_and_awaits_what_its_words_say),
        cmocka_unit_test(rows_are_as_long_as_in_the_record),
        cmocka_unit_test(direct_registers_half_or_three_quarters_of_union),
        cmocka_unit_test(replies_and_rows_share_their_first_byte_and_words_lie_before),
        cmocka_unit_test(refused_at_create),
        cmocka_unit_test(a_view_is_refused_and_the_exchange_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
