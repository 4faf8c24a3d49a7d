/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls.c - who may call what, in which state: a call out of order is refused with a sentence
 * and does no harm.
 */

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sentence.h"
#include "verbs.h"

static struct verbs v; /* mostly "FAFA": sources are ranks 1 and 3, FFN ranks 0 and 2 */

static void begin(void)
{
    struct afd_buffer_config c = verbs_config();
    verbs_begin(&v, "FAFA", &c);
}

static const struct afd_tokens no_tokens;
static uint16_t rows[VERBS_CAPACITY * VERBS_HIDDEN];

static int dispatch(uint32_t rank, uint32_t stage)
{
    return afd_dispatch(v.job.buffer[rank], stage, &no_tokens, NULL);
}

static int receive(uint32_t rank, uint32_t stage)
{
    struct afd_batch batch;
    afd_batch_init(&batch);
    return afd_receive(v.job.buffer[rank], stage, &batch, NULL);
}

static int reply(uint32_t rank, uint32_t stage)
{
    return afd_reply(v.job.buffer[rank], stage, rows, 0, NULL);
}

static int collect(uint32_t rank, uint32_t stage)
{
    struct afd_output output;
    afd_output_init(&output);
    output.rows = rows;
    return afd_collect(v.job.buffer[rank], stage, &output, NULL);
}

/* ---------------------------------------------------------------------------------------- roles */

static void check_roles(void)
{
    CHECK_SENTENCE(dispatch(0, 0), AFD_EROLE, "dispatch", "rank 0", "FFN");
    CHECK_SENTENCE(collect(2, 0), AFD_EROLE, "collect", "rank 2", "FFN");
    CHECK_SENTENCE(receive(1, 0), AFD_EROLE, "receive", "rank 1", "Attention");
    CHECK_SENTENCE(reply(3, 0), AFD_EROLE, "reply", "rank 3", "Attention");
}

static void a_verb_of_the_other_role_is_refused_in_every_state(void **state)
{
    (void)state;
    begin();
    check_roles();
    verbs_dispatch(&v);
    check_roles();
    assert_int_equal(job_receive(&v.job, 0, 0, v.exchange, v.tokens), 0);
    check_roles();
    verbs_finish(&v, 1);
    check_roles();
    verbs_end(&v);
}

/* ---------------------------------------------------------------------------------------- order */

static void check_closed_attention(uint32_t stage)
{
    char text[32];
    snprintf(text, sizeof(text), "stage %u", stage);
    CHECK_SENTENCE(collect(1, stage), AFD_ESTATE, "collect", text, "rank 1",
                   "nothing was dispatched");
}

static void check_closed_ffn(uint32_t stage)
{
    char text[32];
    snprintf(text, sizeof(text), "stage %u", stage);
    CHECK_SENTENCE(reply(0, stage), AFD_ESTATE, "reply", text, "rank 0", "nothing was received");
}

static void calls_out_of_order_are_refused_on_every_stage(void **state)
{
    (void)state;
    begin();
    for (uint32_t stage = 0; stage < 2; stage++) {
        check_closed_attention(stage);
        check_closed_ffn(stage);
    }
    for (uint32_t round = 0; round < 2; round++) {
        verbs_dispatch(&v);
        CHECK_SENTENCE(dispatch(1, 0), AFD_ESTATE, "dispatch", "stage 0", "rank 1",
                       "not collected yet");
        check_closed_attention(1);
        check_closed_ffn(0);
        assert_int_equal(job_receive(&v.job, 0, 0, v.exchange, v.tokens), 0);
        CHECK_SENTENCE(receive(0, 0), AFD_ESTATE, "receive", "stage 0", "rank 0",
                       "not replied yet");
        check_closed_ffn(1);
        verbs_finish(&v, 1);
        check_closed_attention(0);
        check_closed_ffn(0);
    }
    verbs_end(&v);
}

static void stages_that_do_not_exist_name_both_numbers(void **state)
{
    static const uint32_t bad[] = {2, 8, UINT32_MAX};
    (void)state;
    begin();
    for (uint32_t i = 0; i < 3; i++) {
        char text[32];
        snprintf(text, sizeof(text), "stage %u ", bad[i]);
        CHECK_SENTENCE(dispatch(1, bad[i]), AFD_EINVAL, "dispatch", text, "rank 1", "2 stages");
        CHECK_SENTENCE(collect(1, bad[i]), AFD_EINVAL, "collect", text, "rank 1", "2 stages");
        CHECK_SENTENCE(receive(0, bad[i]), AFD_EINVAL, "receive", text, "rank 0", "2 stages");
        CHECK_SENTENCE(reply(0, bad[i]), AFD_EINVAL, "reply", text, "rank 0", "2 stages");
    }
    verbs_end(&v);
}

static void a_stream_is_refused_by_every_verb(void **state)
{
    struct afd_batch batch;
    struct afd_output output;
    int stream;
    (void)state;
    begin();
    afd_batch_init(&batch);
    afd_output_init(&output);
    CHECK_SENTENCE(afd_dispatch(v.job.buffer[1], 0, &no_tokens, &stream), AFD_EINVAL, "stream",
                   "inline");
    CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, &stream), AFD_EINVAL, "stream");
    verbs_dispatch(&v);
    assert_int_equal(job_receive(&v.job, 0, 0, v.exchange, v.tokens), 0);
    CHECK_SENTENCE(afd_reply(v.job.buffer[0], 0, rows, 0, &stream), AFD_EINVAL, "stream");
    CHECK_SENTENCE(afd_collect(v.job.buffer[1], 0, &output, &stream), AFD_EINVAL, "stream");
    verbs_finish(&v, 1);
    verbs_end(&v);
}

static void calls_without_a_buffer_are_refused(void **state)
{
    struct afd_batch batch;
    struct afd_output output;
    struct afd_buffer_info info;
    struct afd_fault fault;
    (void)state;
    afd_batch_init(&batch);
    afd_output_init(&output);
    CHECK_SENTENCE(afd_dispatch(NULL, 0, &no_tokens, NULL), AFD_EINVAL, "dispatch", "NULL");
    CHECK_SENTENCE(afd_receive(NULL, 0, &batch, NULL), AFD_EINVAL, "receive", "NULL");
    CHECK_SENTENCE(afd_reply(NULL, 0, rows, 0, NULL), AFD_EINVAL, "reply", "NULL");
    CHECK_SENTENCE(afd_collect(NULL, 0, &output, NULL), AFD_EINVAL, "collect", "NULL");
    CHECK_SENTENCE(afd_buffer_set_blocks(NULL, 4), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_set_variant(NULL, 0, 0), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_info(NULL, &info), AFD_EINVAL, "NULL");
    CHECK_SENTENCE(afd_buffer_fault(NULL, &fault), AFD_EINVAL, "NULL");
}

static void settings_change_between_exchanges_only(void **state)
{
    struct afd_fault fault;
    (void)state;
    begin();
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct afd_buffer *buffer = v.job.buffer[rank];
        CHECK_SENTENCE(afd_buffer_set_blocks(buffer, 0), AFD_EINVAL, "blocks is 0", "1 .. 256");
        CHECK_SENTENCE(afd_buffer_set_blocks(buffer, 257), AFD_EINVAL, "257", "1 .. 256");
        CHECK_SENTENCE(afd_buffer_set_variant(buffer, 3, 0), AFD_EINVAL, "3 and 0", "0 .. 2");
        CHECK_SENTENCE(afd_buffer_set_variant(buffer, 0, 9), AFD_EINVAL, "0 and 9", "0 .. 2");
        CHECK_SENTENCE(afd_buffer_fault(buffer, &fault), AFD_ESTATE, "no fault");
        CHECK_SENTENCE(afd_buffer_fault(buffer, NULL), AFD_EINVAL, "NULL");
        CHECK_SENTENCE(afd_buffer_info(buffer, NULL), AFD_EINVAL, "NULL");
        assert_int_equal(afd_buffer_set_blocks(buffer, 256), 0);
        assert_int_equal(afd_buffer_set_blocks(buffer, 1), 0);
    }
    verbs_dispatch(&v);
    assert_int_equal(job_receive(&v.job, 0, 0, v.exchange, v.tokens), 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        char text[64];
        snprintf(text, sizeof(text), "stage 0 of rank %u has an open exchange", rank);
        CHECK_SENTENCE(afd_buffer_set_blocks(v.job.buffer[rank], 2), AFD_ESTATE, text);
        CHECK_SENTENCE(afd_buffer_set_variant(v.job.buffer[rank], 1, 1), AFD_ESTATE, text);
    }
    verbs_finish(&v, 1);
    verbs_end(&v);
}

/* -------------------------------------------------------------------------------------- threads */

static void *receive_first(void *arg)
{
    int *rc = arg;
    do /* the other thread may be inside just now */
        *rc = job_receive(&v.job, 0, 0, 1, v.tokens);
    while (*rc == AFD_ESTATE);
    return NULL;
}

static void a_second_thread_on_a_buffer_is_refused_while_one_waits_inside(void **state)
{
    pthread_t thread;
    int rc = 1;
    (void)state;
    begin();
    assert_int_equal(pthread_create(&thread, NULL, receive_first, &rc), 0);
    do
        assert_int_equal(reply(0, 0), AFD_ESTATE);
    while (strstr(afd_last_error(), "another thread") == NULL && sched_yield() == 0);
    CHECK_SENTENCE(receive(0, 1), AFD_ESTATE, "receive", "rank 0", "another thread");
    CHECK_SENTENCE(dispatch(0, 0), AFD_ESTATE, "dispatch", "rank 0", "another thread");
    CHECK_SENTENCE(afd_buffer_set_blocks(v.job.buffer[0], 2), AFD_ESTATE, "another thread");
    CHECK_SENTENCE(afd_buffer_set_variant(v.job.buffer[0], 1, 1), AFD_ESTATE, "another thread");
    CHECK_SENTENCE(afd_buffer_close(v.job.buffer[0]), AFD_ESTATE, "another thread");
    verbs_dispatch(&v);
    pthread_join(thread, NULL);
    assert_int_equal(rc, 0);
    verbs_finish(&v, 1);
    verbs_end(&v);
}

/* ------------------------------------------------------------------------------ life of a group */

static void a_group_with_open_buffers_is_not_destroyed(void **state)
{
    (void)state;
    begin();
    CHECK_SENTENCE(afd_group_destroy(v.job.group[3]), AFD_ESTATE, "rank 3", "1 open");
    assert_int_equal(afd_group_rank(v.job.group[3]), 3);
    assert_int_equal(afd_group_world(v.job.group[3]), 4);
    assert_int_equal(afd_group_role(v.job.group[3], 0), AFD_ROLE_FFN);
    assert_int_equal(afd_group_role(v.job.group[3], 1), AFD_ROLE_ATTENTION);
    assert_int_equal(afd_group_role(v.job.group[3], 4), 0);
    verbs_end(&v);
}

#define BUFFERS_MAX 64u

struct maker {
    struct afd_group *group;
    struct afd_buffer *buffer[BUFFERS_MAX];
    int wrong;
    char error[512];
};

/* Fills the group with buffers; one more fails; after one was closed it does not. */
static void *make_buffers(void *arg)
{
    struct maker *m = arg;
    struct afd_buffer_config c = verbs_config();
    struct afd_buffer *more = NULL;
    for (uint32_t i = 1; i < BUFFERS_MAX; i++)
        m->wrong += afd_buffer_create(m->group, &c, &m->buffer[i]) != 0;
    m->wrong += afd_buffer_create(m->group, &c, &more) != AFD_ESTATE || more != NULL;
    snprintf(m->error, sizeof(m->error), "%s", afd_last_error());
    m->wrong += afd_buffer_close(m->buffer[7]) != 0;
    m->wrong += afd_buffer_create(m->group, &c, &m->buffer[7]) != 0;
    for (uint32_t i = 1; i < BUFFERS_MAX; i++)
        m->wrong += afd_buffer_close(m->buffer[i]) != 0;
    return NULL;
}

static void a_group_has_at_most_64_buffers_and_says_so(void **state)
{
    static struct maker maker[2];
    struct afd_buffer_config c = verbs_config();
    pthread_t thread[2];
    (void)state;
    verbs_begin(&v, "AF", &c);
    for (uint32_t r = 0; r < 2; r++) {
        maker[r].group = v.job.group[r];
        assert_int_equal(pthread_create(&thread[r], NULL, make_buffers, &maker[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(maker[r].wrong, 0);
        assert_non_null(strstr(maker[r].error, "64 open buffers"));
    }
    verbs_end(&v);
}

/* --------------------------------------------------------- inputs that fail an exchange at work */

/* Every rank's next call fails with the code, and the same sentence each time. */
static void check_failed(int code, const char *words)
{
    struct afd_fault fault;
    memset(rows, 0, sizeof(rows));
    for (uint32_t round = 0; round < 2; round++) {
        CHECK_SENTENCE(receive(0, 1), code, words);
        CHECK_SENTENCE(collect(1, 0), code, words);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(afd_buffer_fault(v.job.buffer[rank], &fault), 0);
        assert_int_equal(fault.code, code);
        assert_int_equal(fault.reporter, 0);
        assert_int_equal(fault.phase, AFD_PHASE_RECEIVE);
    }
    for (uint32_t i = 0; i < 5 * VERBS_HIDDEN; i++) /* nothing that looks valid */
        assert_int_equal(rows[i], 0x7fc0);
    job_close(&v.job);
}

static void a_batch_that_does_not_fit_fails_the_exchange_with_both_numbers(void **state)
{
    for (uint32_t own = 0; own < 2; own++) {
        struct afd_buffer_config c = verbs_config();
        struct afd_batch batch;
        struct job_truth *truth;
        static uint8_t memory[32 * VERBS_HIDDEN];
        char text[64];
        (void)state;
        c.batch_rows = own ? 0 : 3;
        verbs_begin(&v, "FA", &c);
        verbs_dispatch(&v);
        truth = job_truth_get(&v.job, v.exchange, v.tokens);
        afd_batch_init(&batch);
        batch.rows = memory;
        batch.rows_capacity = own ? truth->batch[0].row_count - 1 : 0;
        snprintf(text, sizeof(text), "rank 0: %u rows in stage 0, exchange 1",
                 (unsigned)truth->batch[0].row_count);
        CHECK_SENTENCE(afd_receive(v.job.buffer[0], 0, &batch, NULL), AFD_ECAPACITY, text);
        snprintf(text, sizeof(text), "room for %u",
                 own ? (unsigned)truth->batch[0].row_count - 1 : 3);
        CHECK_SENTENCE(AFD_ECAPACITY, AFD_ECAPACITY, text);
        job_truth_put(&v.job, truth);
        check_failed(AFD_ECAPACITY, text);
    }
}

static void a_weighted_reply_without_weights_names_the_source(void **state)
{
    struct afd_buffer_config c = verbs_config();
    (void)state;
    c.weighted_reply = 1;
    verbs_begin(&v, "FAA", &c);
    v.job.options.with_weights = JOB_WEIGHTS_ODD; /* source 0, rank 1, sends none */
    v.tokens[0] = 0;                              /* and needs none without tokens */
    verbs_work(&v);
    v.tokens[0] = 5;
    verbs_dispatch(&v);
    CHECK_SENTENCE(receive(0, 0), AFD_EINVAL, "rank 1 sent no weights", "exchange 2",
                   "rank 0 has weighted_reply");
    check_failed(AFD_EINVAL, "rank 1 sent no weights");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_verb_of_the_other_role_is_refused_in_every_state),
        cmocka_unit_test(calls_out_of_order_are_refused_on_every_stage),
        cmocka_unit_test(stages_that_do_not_exist_name_both_numbers),
        cmocka_unit_test(a_stream_is_refused_by_every_verb),
        cmocka_unit_test(calls_without_a_buffer_are_refused),
        cmocka_unit_test(settings_change_between_exchanges_only),
        cmocka_unit_test(a_second_thread_on_a_buffer_is_refused_while_one_waits_inside),
        cmocka_unit_test(a_group_with_open_buffers_is_not_destroyed),
        cmocka_unit_test(a_group_has_at_most_64_buffers_and_says_so),
        cmocka_unit_test(a_batch_that_does_not_fit_fails_the_exchange_with_both_numbers),
        cmocka_unit_test(a_weighted_reply_without_weights_names_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
