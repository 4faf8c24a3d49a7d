/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults.c - a rank stays away, skips, leaves or has bad input: the ranks that wait name that
 * rank and not each other, in time, what is lost does not look valid, and what is not touched by it
 * goes on.
 *
 * Ranks are threads. test_aborts.c has aborts, test_kills.c ranks that die.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sched.h>

#include "buffer.h"
#include "life.h"
#include "processes.h"
#include "sentence.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DEADLINE_US 1000000u
#else
#define DEADLINE_US 250000u
#endif
#define LONG_US 60000000u /* nobody waits so long */
#define SECOND_US 1000000u
#define ROLES "FAFA"
#define RANKS 4u

static struct crew crew;

/* Where the rank at fault leaves the path: at its call of `phase` in exchange n. */
struct moment {
    uint32_t culprit;
    uint32_t phase;
    uint32_t n;
};
static const struct moment moments[] = {
    {0, AFD_PHASE_RECEIVE, 3},  {0, AFD_PHASE_REPLY, 3},   {1, AFD_PHASE_DISPATCH, 3},
    {1, AFD_PHASE_COLLECT, 3},  {2, AFD_PHASE_RECEIVE, 1}, {2, AFD_PHASE_REPLY, 2},
    {3, AFD_PHASE_DISPATCH, 1}, {3, AFD_PHASE_COLLECT, 1},
};
#define MOMENTS (sizeof(moments) / sizeof(moments[0]))

static const struct moment *moment;

static int is_moment(const struct life *life, uint32_t phase, uint32_t n)
{
    return life->rank == moment->culprit && phase == moment->phase && n == moment->n;
}

static int is_attention(uint32_t rank)
{
    return crew.job.roles[rank] == AFD_ROLE_ATTENTION;
}

/* The three ways in which rows travel and steps run. */
static struct afd_buffer_config config_of(uint32_t which)
{
    struct afd_buffer_config c = crew_config();
    c.blocks = which == 0 ? 1 : 3;
    c.variant = c.reply_variant = which == 2 ? AFD_VARIANT_WORDS : AFD_VARIANT_ROWS;
    return c;
}
#define WAYS 3u

/* ---- absence */

static int stay_away(struct life *life, uint32_t phase, uint32_t n)
{
    return is_moment(life, phase, n);
}

/* The reporter waited for the deadline, in a phase in which its role waits, and says so. */
static void check_report(uint32_t rank)
{
    const struct life_outcome *o = &crew.life[rank].outcome;
    uint32_t phase = is_attention(o->fault.reporter) ? AFD_PHASE_COLLECT : AFD_PHASE_RECEIVE;
    char words[64];
    assert_int_not_equal(o->fault.reporter, moment->culprit);
    assert_int_equal(o->fault.phase, phase);
    snprintf(words, sizeof(words), "in %s, stage 0, exchange %u", afd_phase_name(phase),
             (unsigned)o->fault.epoch);
    if (strstr(o->sentence, words) == NULL || strstr(o->sentence, "did not come in time") == NULL)
        fail_msg("no \"%s\" in: %s", words, o->sentence);
    if (crew.life[o->fault.reporter].outcome.waited_us < DEADLINE_US)
        fail_msg("rank %u blames after %u us", o->fault.reporter,
                 (unsigned)crew.life[o->fault.reporter].outcome.waited_us);
    assert_in_range(o->fault.epoch, moment->n, moment->n + 1);
}

static void a_rank_that_stays_away_is_named_by_all_that_wait(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WAYS * MOMENTS; i++) {
        struct afd_buffer_config c = config_of(i % WAYS);
        moment = &moments[i / WAYS];
        crew_open(&crew, ROLES, &c, DEADLINE_US);
        crew_start(&crew, 6, stay_away);
        crew_join(&crew);
        crew_check_blame(&crew, moment->culprit, AFD_EPEER, DEADLINE_US + SECOND_US);
        for (uint32_t r = 0; r < RANKS; r++)
            if (r != moment->culprit)
                check_report(r);
        job_close(&crew.job);
    }
}

/* An exchange on each stage; `skip` leaves out stage 1. */
static int round_of(struct job *job, uint32_t rank, uint64_t n, int skip)
{
    uint32_t index = crew.life[rank].index;
    int rc = 0;
    for (uint32_t stage = 0; rc == 0 && stage < (skip ? 1 : 2); stage++) {
        struct job_truth *truth = job_truth_get(job, 2 * n + stage, crew.tokens);
        if (is_attention(rank))
            rc = job_dispatch(job, index, stage, &truth->input[index]);
        else
            rc = job_ffn(job, index, stage, 2 * n + stage, crew.tokens);
        if (rc == 0 && is_attention(rank))
            rc = job_collect(job, index, stage, 2 * n + stage, crew.tokens);
        job_truth_put(job, truth);
    }
    return rc;
}

static void *live_in_rounds(void *arg)
{
    struct life *life = arg;
    struct life_outcome *o = &life->outcome;
    uint64_t begin_us = 0;
    for (uint32_t n = 1; n <= 8 && o->rc == 0; n++) {
        begin_us = afd_clock_us();
        o->rc = round_of(life->job, life->rank, n, life->rank == moment->culprit && n == moment->n);
    }
    o->waited_us = afd_clock_us() - begin_us;
    snprintf(o->sentence, sizeof(o->sentence), "%s", afd_last_error());
    if (afd_buffer_fault(life->job->buffer[life->rank], &o->fault) != 0)
        o->fault.code = 0;
    return NULL;
}

/* A micro-batch without tokens that is left out on one rank: that rank goes on and then waits
 * itself, for ranks that wait for it. */
static void a_rank_that_skips_an_exchange_and_goes_on_is_named(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3 * RANKS; i++) {
        struct afd_buffer_config c = config_of(i / RANKS);
        struct moment at = {i % RANKS, 0, 3};
        moment = &at;
        crew_open(&crew, ROLES, &c, DEADLINE_US);
        for (uint32_t r = 0; r < RANKS; r++) {
            crew.life[r].job = &crew.job;
            crew.life[r].rank = r;
            crew.life[r].index = r / 2;
            assert_int_equal(
                pthread_create(&crew.life[r].thread, NULL, live_in_rounds, &crew.life[r]), 0);
        }
        crew_join(&crew);
        crew_check_blame(&crew, moment->culprit, AFD_EPEER, DEADLINE_US + SECOND_US);
        assert_int_equal(crew.life[moment->culprit].outcome.fault.rank, moment->culprit);
        job_close(&crew.job);
    }
}

/* ---- leaving */

static int leave(struct life *life, uint32_t phase, uint32_t n)
{
    if (!is_moment(life, phase, n))
        return 0;
    crew_close_rank(&crew, life->rank);
    return 1;
}

static void a_rank_that_closes_early_is_named_at_once_by_those_that_need_it(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WAYS * MOMENTS; i++) {
        struct afd_buffer_config c = config_of(i % WAYS);
        moment = &moments[i / WAYS];
        crew_open(&crew, ROLES, &c, LONG_US);
        crew_start(&crew, 6, leave);
        crew_join(&crew);
        crew_check_blame(&crew, moment->culprit, AFD_EPEER, LONG_US / 4);
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct life_outcome *o = &crew.life[r].outcome;
            if (r == moment->culprit)
                continue;
            if (strstr(o->sentence, "closed its buffer") == NULL)
                fail_msg("rank %u: %s", r, o->sentence);
            /* a source that does not collect is missed one exchange later */
            assert_in_range(o->exchanges, moment->n - 1, moment->n);
            if (moment->phase == AFD_PHASE_COLLECT)
                assert_int_equal(o->exchanges, moment->n);
        }
        job_close(&crew.job);
    }
}

static void ranks_that_need_nothing_of_a_closed_rank_finish(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < WAYS * 2; i++) {
        struct afd_buffer_config c = config_of(i % WAYS);
        struct moment at = {i < WAYS ? 1 : 3, AFD_PHASE_COLLECT, 3};
        moment = &at; /* its last collect, which it leaves out */
        crew_open(&crew, ROLES, &c, LONG_US);
        crew_start(&crew, 3, leave);
        crew_join(&crew);
        for (uint32_t r = 0; r < RANKS; r++)
            if (r != moment->culprit)
                crew_check_done(&crew, r, 3);
        assert_int_equal(crew.life[moment->culprit].outcome.exchanges, 2);
        job_close(&crew.job);
    }
}

/* Sleeps before its last call; closes behind it. */
static void *finish_at_its_own_time(void *arg)
{
    struct life *life = arg;
    life_run(life);
    crew_close_rank(&crew, life->rank);
    return NULL;
}

static uint32_t order;

static int hesitate(struct life *life, uint32_t phase, uint32_t n)
{
    if (n == 2 && (phase == AFD_PHASE_REPLY || phase == AFD_PHASE_COLLECT))
        processes_sleep_us(4000ull * ((life->rank + order) % RANKS));
    return 0;
}

static void ranks_close_behind_their_last_exchange_in_any_order(void **state)
{
    (void)state;
    for (order = 0; order < 2 * RANKS; order++) {
        struct afd_buffer_config c = config_of(order % WAYS);
        crew_open(&crew, ROLES, &c, LONG_US);
        for (uint32_t r = 0; r < RANKS; r++) {
            struct life life = {.job = &crew.job, .rank = r, .exchanges = 2};
            life.tokens = crew.tokens;
            life.hook = hesitate;
            crew.life[r] = life;
            assert_int_equal(
                pthread_create(&crew.life[r].thread, NULL, finish_at_its_own_time, &crew.life[r]),
                0);
        }
        crew_join(&crew);
        for (uint32_t r = 0; r < RANKS; r++)
            crew_check_done(&crew, r, 2);
        job_close(&crew.job);
    }
}

/* ---- after that */

/* The rank's legal calls on a stage, in turn, all fail with the buffer's fault. */
static void check_failed_again(uint32_t rank, uint32_t stage, int code)
{
    struct afd_buffer *buffer = crew.job.buffer[rank];
    struct afd_fault first;
    struct afd_fault fault;
    struct afd_tokens tokens;
    struct afd_output output;
    struct afd_batch batch;
    static uint16_t rows[8 * 80];
    memset(&tokens, 0, sizeof(tokens));
    afd_output_init(&output);
    output.rows = rows;
    afd_batch_init(&batch);
    assert_int_equal(afd_buffer_fault(buffer, &first), 0);
    for (uint32_t round = 0; round < 3; round++) {
        if (is_attention(rank)) {
            assert_int_equal(afd_dispatch(buffer, stage, &tokens, NULL), code);
            assert_int_equal(afd_collect(buffer, stage, &output, NULL), code);
        } else {
            assert_int_equal(afd_receive(buffer, stage, &batch, NULL), code);
            assert_int_equal(afd_reply(buffer, stage, rows, 0, NULL), code);
        }
        assert_int_not_equal(strlen(afd_last_error()), 0);
        assert_int_equal(afd_buffer_fault(buffer, &fault), 0);
        assert_memory_equal(&fault, &first, sizeof(fault));
    }
    assert_int_equal(first.code, code);
}

static void every_call_after_a_fault_returns_that_fault(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MOMENTS; i++) {
        struct afd_buffer_config c = config_of(i % WAYS);
        moment = &moments[i];
        crew_open(&crew, ROLES, &c, LONG_US);
        crew_start(&crew, 6, leave);
        crew_join(&crew);
        for (uint32_t r = 0; r < RANKS; r++)
            for (uint32_t stage = 0; r != moment->culprit && stage < 2; stage++)
                check_failed_again(r, stage, AFD_EPEER);
        job_close(&crew.job);
    }
}

/* A life whose exchanges are on a second buffer of the same groups. */
static void open_second(struct job *second)
{
    struct afd_buffer_config c = crew_config();
    job_init(second, ROLES, &c);
    second->options = crew.job.options;
    second->hub = crew.job.hub;
    for (uint32_t r = 0; r < RANKS; r++)
        second->group[r] = crew.job.group[r];
    assert_int_equal(job_open(second), 0);
}

static void a_failed_buffer_does_not_harm_another_one_of_its_group(void **state)
{
    static struct job second;
    struct afd_buffer_config c = config_of(0);
    struct afd_fault fault;
    (void)state;
    for (uint32_t i = 0; i < MOMENTS; i += 3) {
        moment = &moments[i];
        crew_open(&crew, ROLES, &c, LONG_US);
        open_second(&second);
        assert_int_equal(job_exchange(&second, 0, 1, crew.tokens), 0);
        crew_start(&crew, 6, leave);
        crew_join(&crew);
        crew_check_blame(&crew, moment->culprit, AFD_EPEER, LONG_US / 4);
        second.options.threads = 1;
        for (uint64_t n = 2; n < 6; n++)
            assert_int_equal(job_exchange(&second, (uint32_t)n % 2, n, crew.tokens), 0);
        assert_int_equal(second.mismatches, 0);
        for (uint32_t r = 0; r < RANKS; r++) {
            CHECK_SENTENCE(afd_buffer_fault(second.buffer[r], &fault), AFD_ESTATE, "no fault");
            assert_int_equal(afd_buffer_close(crew.job.buffer[r]), 0);
            crew.job.buffer[r] = NULL;
            crew.job.group[r] = NULL; /* destroyed by the other job */
        }
        crew.job.hub = NULL;
        job_close(&second);
        job_close(&crew.job);
    }
}

/* ---- deadlines */

static void a_buffers_deadline_is_used_and_not_its_groups(void **state)
{
    struct afd_buffer_config c = config_of(0);
    (void)state;
    moment = &moments[2]; /* rank 1 does not dispatch */
    c.deadline_us = DEADLINE_US;
    crew_open(&crew, ROLES, &c, LONG_US);
    crew_start(&crew, 6, stay_away);
    crew_join(&crew);
    crew_check_blame(&crew, moment->culprit, AFD_EPEER, DEADLINE_US + SECOND_US);
    job_close(&crew.job);
}

static int come_late(struct life *life, uint32_t phase, uint32_t n)
{
    if (is_moment(life, phase, n))
        processes_sleep_us(60000);
    return 0;
}

static void a_rank_that_is_late_but_within_the_deadline_is_waited_for(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < MOMENTS; i++) {
        struct afd_buffer_config c = config_of(i % WAYS);
        moment = &moments[i];
        c.deadline_us = LONG_US;
        crew_open(&crew, ROLES, &c, 1000); /* the group's: 1 ms */
        crew_start(&crew, 6, come_late);
        crew_join(&crew);
        for (uint32_t r = 0; r < RANKS; r++)
            crew_check_done(&crew, r, 6);
        job_close(&crew.job);
    }
}

/* ---- bad input */

static void check_everyone_says(int code, const char *one, const char *other)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct life_outcome *o = &crew.life[r].outcome;
        if (o->wrong[0] != '\0')
            fail_msg("rank %u: %s", r, o->wrong);
        if (o->rc != code || strstr(o->sentence, one) == NULL || strstr(o->sentence, other) == NULL)
            fail_msg("rank %u, %s: no \"%s\" or \"%s\" in: %s", r, afd_error_name(o->rc), one,
                     other, o->sentence);
    }
}

static void a_source_without_weights_is_named_on_every_rank(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < WAYS; way++) {
        struct afd_buffer_config c = config_of(way);
        char name[64];
        c.weighted_reply = 1;
        crew_open(&crew, ROLES, &c, LONG_US);
        crew.job.options.with_weights = JOB_WEIGHTS_ODD; /* source 0, rank 1, sends none */
        crew_start(&crew, 3, NULL);
        crew_join(&crew);
        snprintf(name, sizeof(name), "rank 1 sent no weights in stage 0, exchange 1");
        check_everyone_says(AFD_EINVAL, name, "weighted_reply");
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(crew.life[r].outcome.fault.rank, 1);
        job_close(&crew.job);
    }
}

static void a_batch_that_is_too_large_is_told_to_every_rank_with_both_numbers(void **state)
{
    (void)state;
    for (uint32_t way = 0; way < WAYS; way++) {
        struct afd_buffer_config c = config_of(way);
        crew_open(&crew, ROLES, &c, LONG_US);
        job_close(&crew.job);
        crew.job.config[2].batch_rows = 7; /* of at least 2 sources x 5 tokens x 1 */
        assert_int_equal(job_open(&crew.job), 0);
        crew_start(&crew, 3, NULL);
        crew_join(&crew);
        check_everyone_says(AFD_ECAPACITY, "rank 2: ", "room for 7");
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct life_outcome *o = &crew.life[r].outcome;
            char rows[32];
            snprintf(rows, sizeof(rows), " %u rows", (unsigned)o->fault.seen);
            assert_in_range(o->fault.seen, 10, 30);
            assert_int_equal(o->fault.expected, 7);
            assert_non_null(strstr(o->sentence, rows));
        }
        job_close(&crew.job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_stays_away_is_named_by_all_that_wait),
        cmocka_unit_test(a_rank_that_skips_an_exchange_and_goes_on_is_named),
        cmocka_unit_test(a_rank_that_closes_early_is_named_at_once_by_those_that_need_it),
        cmocka_unit_test(ranks_that_need_nothing_of_a_closed_rank_finish),
        cmocka_unit_test(ranks_close_behind_their_last_exchange_in_any_order),
        cmocka_unit_test(every_call_after_a_fault_returns_that_fault),
        cmocka_unit_test(a_failed_buffer_does_not_harm_another_one_of_its_group),
        cmocka_unit_test(a_buffers_deadline_is_used_and_not_its_groups),
        cmocka_unit_test(a_rank_that_is_late_but_within_the_deadline_is_waited_for),
        cmocka_unit_test(a_source_without_weights_is_named_on_every_rank),
        cmocka_unit_test(a_batch_that_is_too_large_is_told_to_every_rank_with_both_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
