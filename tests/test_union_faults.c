/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_union_faults.c - a rank that is late for a barrier or with its counts, closes or dies is
 * named by all the others, and nothing stale looks valid.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "buffer.h"
#include "fleet.h"
#include "job.h"

#define DEADLINE_MS 400u

enum { TOKENS = 6, HIDDEN = 48 };

/* How far the rank at fault comes. */
enum moment {
    DISPATCH_ENTRY, /* it does not come */
    COUNTS,         /* it comes, and says nothing */
    DISPATCH_EXIT,  /* it has said that it sends nothing */
    COMBINE_ENTRY,  /* it has taken part in the dispatch */
    COMBINE_EXIT,   /* and has come to the combine */
    MOMENTS
};

static const char *const names[MOMENTS] = {"entry of", "counts", "exit of", "entry of", "exit of"};

static struct {
    struct job job;
    enum moment moment;
    uint32_t victim;
    uint32_t is_closing; /* closes its buffer instead of staying away */
    int rc[JOB_RANKS_MAX];
    char sentence[JOB_RANKS_MAX][512];
    uint64_t waited_us[JOB_RANKS_MAX];
    uint16_t row[JOB_RANKS_MAX][TOKENS * HIDDEN];
} t;

static const uint32_t tokens[JOB_RANKS_MAX] = {TOKENS, TOKENS, TOKENS, TOKENS};

/* ---------------------------------------------------------------------------- the rank at fault */

static uint64_t *word_at(uint32_t rank, struct afd_region region, uint32_t index)
{
    const struct afd_buffer *buffer = t.job.buffer[rank];
    return (uint64_t *)(void *)afd_union_at(buffer->window[rank].base, &buffer->plan.union_layout,
                                            region, 0, index);
}

/* What the steps of the victim would have sent until then. */
static void play_victim(void)
{
    const struct afd_union_layout *l = &t.job.buffer[0]->plan.union_layout;
    for (uint32_t r = 0; r < t.job.world; r++) {
        if (t.moment == COUNTS || t.moment == DISPATCH_EXIT || t.moment == COMBINE_EXIT)
            (void)afd_word_add(word_at(r, l->barrier, 0), 1);
        for (uint32_t i = 0; t.moment == DISPATCH_EXIT && i < 1 + l->rank_experts; i++)
            afd_word_store(&word_at(r, l->counts, t.victim)[i], afd_union_count_word(0));
    }
}

/* ------------------------------------------------------------------------------------ all ranks */

static int first_verb(uint32_t rank, uint32_t index)
{
    struct job_truth *truth;
    int rc;
    if (t.job.roles[rank] == AFD_ROLE_FFN)
        return job_receive(&t.job, index, 0, 1, tokens);
    truth = job_truth_get(&t.job, 1, tokens);
    rc = job_dispatch(&t.job, index, 0, &truth->input[index]);
    job_truth_put(&t.job, truth);
    return rc;
}

static int second_verb(uint32_t rank, uint32_t index)
{
    struct afd_output output;
    if (t.job.roles[rank] == AFD_ROLE_FFN)
        return job_reply(&t.job, index, 0);
    afd_output_init(&output);
    output.rows = t.row[rank];
    return afd_collect(t.job.buffer[rank], 0, &output, NULL);
}

static void *live(void *arg)
{
    uint32_t rank = (uint32_t)(uintptr_t)arg;
    uint32_t index = t.job.buffer[rank]->plan.index;
    int is_victim = rank == t.victim;
    uint64_t begin;
    if (!is_victim || t.moment >= COMBINE_ENTRY)
        t.rc[rank] = first_verb(rank, index);
    begin = afd_clock_us();
    if (is_victim) {
        play_victim();
        if (t.is_closing && afd_buffer_close(t.job.buffer[rank]) != 0)
            abort();
        return NULL;
    }
    if (t.rc[rank] == 0)
        t.rc[rank] = second_verb(rank, index);
    snprintf(t.sentence[rank], sizeof(t.sentence[0]), "%s", afd_last_error());
    t.waited_us[rank] = afd_clock_us() - begin;
    return NULL;
}

static void check_survivor(uint32_t rank)
{
    struct afd_fault fault;
    char name[32];
    snprintf(name, sizeof(name), "rank %u", t.victim);
    if (t.rc[rank] != AFD_EPEER || strncmp(t.sentence[rank], name, strlen(name)) != 0 ||
        (!t.is_closing && strstr(t.sentence[rank], names[t.moment]) == NULL))
        fail_msg("victim %u, moment %u, rank %u: %d: %s", t.victim, t.moment, rank, t.rc[rank],
                 t.sentence[rank]);
    assert_int_equal(afd_buffer_fault(t.job.buffer[rank], &fault), 0);
    assert_int_equal(fault.rank, t.victim);
    assert_int_equal(fault.peer, t.victim);
    if (!t.is_closing) /* else it is found in any wait, also for ranks that are just late */
        assert_int_equal(fault.word, t.moment == COUNTS ? AFD_WORD_COUNTS : AFD_WORD_BARRIER);
    if (t.is_closing && t.waited_us[rank] > 5000000)
        fail_msg("rank %u waited %u us for a rank that had closed", rank,
                 (unsigned)t.waited_us[rank]);
    for (uint32_t i = 0; t.moment >= COMBINE_ENTRY && i < TOKENS * HIDDEN; i++)
        if (t.job.roles[rank] == AFD_ROLE_ATTENTION)
            assert_int_equal(t.row[rank][i], 0x7fc0);
    if (t.job.roles[rank] == AFD_ROLE_FFN && t.moment < COMBINE_ENTRY) {
        const uint32_t *counts = afd_buffer_private(t.job.buffer[rank], AFD_PRIVATE_COUNTS, 0);
        for (uint32_t e = 0; e < t.job.buffer[rank]->plan.local_experts; e++)
            assert_int_equal(counts[e], 0);
    }
}

static void run(uint32_t victim, enum moment moment, uint32_t is_closing)
{
    struct afd_buffer_config c;
    pthread_t thread[JOB_RANKS_MAX];
    memset(&t, 0, sizeof(t));
    t.victim = victim;
    t.moment = moment;
    t.is_closing = is_closing;
    afd_buffer_config_init(&c);
    c.protocol = AFD_PROTOCOL_UNION;
    c.capacity = TOKENS;
    c.hidden = HIDDEN;
    c.experts = 6;
    c.topk = 3;
    job_init(&t.job, "FAFA", &c);
    t.job.group_config.deadline_us = (is_closing ? 20000u : DEADLINE_MS) * 1000u;
    for (uint32_t r = 0; r < t.job.world; r++)
        t.job.config[r].blocks = 1 + (r + victim) % 3;
    assert_int_equal(job_open(&t.job), 0);
    for (uint32_t r = 0; r < t.job.world; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, live, (void *)(uintptr_t)r), 0);
    for (uint32_t r = 0; r < t.job.world; r++)
        pthread_join(thread[r], NULL);
    if (t.job.mismatches != 0)
        fail_msg("%s", t.job.first_mismatch);
    for (uint32_t r = 0; r < t.job.world; r++)
        if (r != victim)
            check_survivor(r);
    if (is_closing)
        t.job.buffer[victim] = NULL;
    job_close(&t.job);
}

static void a_late_rank_is_named_in_every_barrier(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < MOMENTS; moment++)
        for (uint32_t victim = 0; victim < 4; victim++)
            run(victim, (enum moment)moment, 0);
}

static void a_rank_that_closes_is_named_at_once(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < MOMENTS; moment++)
        run(moment % 4, (enum moment)moment, 1);
}

/* A source cannot be refused by the host when T is read in the step: every rank hears the cause. */
static void an_impossible_count_is_named_and_becomes_no_address(void **state)
{
    static const uint64_t values[] = {TOKENS + 1, (uint64_t)-AFD_EROUTE << AFD_UNION_FAULT_SHIFT};
    static const int codes[] = {AFD_EPROTO, AFD_EROUTE};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct afd_buffer_config c;
        struct afd_fault fault;
        const struct afd_union_layout *l;
        afd_buffer_config_init(&c);
        c.protocol = AFD_PROTOCOL_UNION;
        c.capacity = TOKENS;
        c.hidden = HIDDEN;
        c.experts = 2;
        memset(&t, 0, sizeof(t));
        job_init(&t.job, "FA", &c);
        assert_int_equal(job_open(&t.job), 0);
        l = &t.job.buffer[0]->plan.union_layout;
        (void)afd_word_add(word_at(0, l->barrier, 0), 1); /* rank 1 came */
        afd_word_store(word_at(0, l->counts, 1), afd_union_count_word(values[i]));
        for (uint32_t e = 1; e < 1 + l->rank_experts; e++)
            afd_word_store(&word_at(0, l->counts, 1)[e], afd_union_count_word(0));
        assert_int_equal(job_receive(&t.job, 0, 0, 1, tokens), codes[i]);
        assert_int_equal(afd_buffer_fault(t.job.buffer[0], &fault), 0);
        assert_int_equal(fault.rank, 1);
        job_close(&t.job);
    }
}

/* ---------------------------------------------------------------------------------------- kills */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KILLS 20u
#else
#define KILLS 150u
#endif

static struct fleet_outcome *outcome;

static void check_killed(uint32_t kill_number, uint32_t victim, const int *statuses)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %u", victim);
    for (uint32_t r = 0; r < FLEET_RANKS; r++) {
        const struct fleet_outcome *o = &outcome[r];
        if (o->stale != 0)
            fail_msg("kill %u: rank %u has %d stale values", kill_number, r, o->stale);
        if (r == victim || (o->exchanges == 0 && o->rc != 0 && o->fault.code == 0))
            continue; /* in create, who had not joined yet finds that rank 0 has given up */
        if (!WIFEXITED(statuses[r]) || WEXITSTATUS(statuses[r]) != 0 || o->rc != AFD_EPEER ||
            o->fault.rank != victim || strstr(o->sentence, name) == NULL)
            fail_msg("kill %u of rank %u: rank %u: status 0x%x, %s", kill_number, victim, r,
                     (unsigned)statuses[r], o->sentence);
    }
}

static void a_killed_rank_is_named_wherever_it_dies(void **state)
{
    uint64_t seed = 77;
    uint32_t in_exchange = 0;
    (void)state;
    fleet_protocol = AFD_PROTOCOL_UNION;
    for (uint32_t i = 0; i < KILLS; i++) {
        uint32_t victim = (uint32_t)(job_random(&seed) % FLEET_RANKS);
        struct timespec nap = {0, (long)(2000 + job_random(&seed) % 12000) * 1000};
        pid_t pids[FLEET_RANKS];
        int statuses[FLEET_RANKS];
        fleet_start(1000000, NULL, pids);
        nanosleep(&nap, NULL);
        kill(pids[victim], SIGKILL);
        fleet_wait(pids, statuses);
        check_killed(i, victim, statuses);
        in_exchange += outcome[(victim + 1) % FLEET_RANKS].exchanges != 0;
    }
    printf("report: union: %u kills, %u of them while ranks exchanged\n", KILLS, in_exchange);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_is_named_in_every_barrier),
        cmocka_unit_test(a_rank_that_closes_is_named_at_once),
        cmocka_unit_test(an_impossible_count_is_named_and_becomes_no_address),
        cmocka_unit_test(a_killed_rank_is_named_wherever_it_dies),
    };
    outcome = fleet_outcomes();
    return outcome == NULL ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
