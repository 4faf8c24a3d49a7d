/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_aborts.c - an abort, from any thread or a signal handler and in any state, releases every
 * wait on every rank and names who aborted; close works in every state and every order.
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
#include <signal.h>

#include "buffer.h"
#include "life.h"
#include "processes.h"
#include "sentence.h"

#define LONG_US 60000000u /* nobody waits so long */
#define ROLES "AFFA"
#define RANKS 4u

static struct crew crew;

static struct {
    uint32_t absent; /* this rank stays away from its call of `phase` in exchange 2 */
    uint32_t phase;
    uint32_t gone; /* atomic: it has */
} plan;

static int stay_away(struct life *life, uint32_t phase, uint32_t n)
{
    if (life->rank != plan.absent || phase != plan.phase || n != 2)
        return 0;
    __atomic_store_n(&plan.gone, 1, __ATOMIC_RELEASE);
    return 1;
}

static void begin(uint32_t absent, uint32_t phase, uint32_t blocks)
{
    struct afd_buffer_config c = crew_config();
    c.blocks = blocks;
    memset(&plan, 0, sizeof(plan));
    plan.absent = absent;
    plan.phase = phase;
    crew_open(&crew, ROLES, &c, LONG_US);
    crew_start(&crew, 6, stay_away);
}

/* Until all but the absent rank wait. */
static void wait_for_waits(void)
{
    uint32_t waiting = 0;
    while (waiting + 1 < RANKS) {
        waiting = 0;
        sched_yield();
        for (uint32_t r = 0; r < RANKS; r++)
            if (r != plan.absent && __atomic_load_n(&plan.gone, __ATOMIC_ACQUIRE) != 0)
                waiting += __atomic_load_n(&afd_buffer_control(crew.job.buffer[r], r)->waiting,
                                           __ATOMIC_ACQUIRE) != 0;
    }
}

/* A call on every stage of a rank fails with EABORTED, names the aborter, and does so again. */
static void check_aborted(uint32_t rank, uint32_t aborter)
{
    struct afd_buffer *buffer = crew.job.buffer[rank];
    struct afd_tokens tokens;
    struct afd_batch batch;
    struct afd_fault fault;
    char name[32];
    memset(&tokens, 0, sizeof(tokens));
    afd_batch_init(&batch);
    snprintf(name, sizeof(name), "rank %u aborted", aborter);
    for (uint32_t i = 0; i < 4; i++) {
        if (crew.job.roles[rank] == AFD_ROLE_ATTENTION)
            CHECK_SENTENCE(afd_dispatch(buffer, i % 2, &tokens, NULL), AFD_EABORTED, name);
        else
            CHECK_SENTENCE(afd_receive(buffer, i % 2, &batch, NULL), AFD_EABORTED, name);
        assert_int_equal(afd_buffer_fault(buffer, &fault), 0);
        assert_int_equal(fault.code, AFD_EABORTED);
        assert_int_equal(fault.rank, aborter);
    }
}

/* ---- who and where */

static const struct {
    uint32_t absent;
    uint32_t phase;
} states[] = {
    {0, AFD_PHASE_DISPATCH}, {0, AFD_PHASE_COLLECT}, {1, AFD_PHASE_RECEIVE},
    {1, AFD_PHASE_REPLY},    {2, AFD_PHASE_REPLY},   {3, AFD_PHASE_COLLECT},
};
#define STATES (sizeof(states) / sizeof(states[0]))

static void abort_by_a_thread(uint32_t aborter)
{
    afd_group_abort(crew.job.group[aborter]);
}

static struct afd_group *in_handler; /* whose group the handler aborts */

static void on_signal(int number)
{
    (void)number;
    afd_group_abort(in_handler);
}

static void abort_by_a_handler(uint32_t aborter)
{
    in_handler = crew.job.group[aborter];
    if (aborter == plan.absent) /* its thread has ended */
        raise(SIGUSR1);
    else
        assert_int_equal(pthread_kill(crew.life[aborter].thread, SIGUSR1), 0);
}

static void check_every_state_and_aborter(void (*abort_by)(uint32_t aborter))
{
    for (uint32_t i = 0; i < STATES * RANKS; i++) {
        uint32_t aborter = i % RANKS;
        begin(states[i / RANKS].absent, states[i / RANKS].phase, 1 + i % 3);
        wait_for_waits();
        abort_by(aborter);
        crew_join(&crew);
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct life_outcome *o = &crew.life[r].outcome;
            if (r == plan.absent)
                continue;
            if (o->rc != AFD_EABORTED || o->fault.rank != aborter || o->wrong[0] != '\0')
                fail_msg("aborter %u, rank %u: %s %s", aborter, r, o->sentence, o->wrong);
            check_aborted(r, aborter);
        }
        if (aborter == plan.absent)
            check_aborted(aborter, aborter);
        job_close(&crew.job);
    }
}

static void an_abort_by_another_thread_releases_every_wait(void **state)
{
    (void)state;
    check_every_state_and_aborter(abort_by_a_thread);
}

static void an_abort_in_a_signal_handler_releases_every_wait(void **state)
{
    struct sigaction action;
    struct sigaction before;
    (void)state;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
    check_every_state_and_aborter(abort_by_a_handler);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
}

static void an_abort_between_exchanges_fails_every_later_call(void **state)
{
    struct afd_buffer_config c = crew_config();
    (void)state;
    for (uint32_t aborter = 0; aborter < RANKS; aborter++) {
        crew_open(&crew, ROLES, &c, LONG_US);
        assert_int_equal(job_exchange(&crew.job, 0, 1, crew.tokens), 0);
        afd_group_abort(crew.job.group[aborter]);
        check_aborted(aborter, aborter);
        if (crew.job.roles[aborter] == AFD_ROLE_FFN) /* the others' first wait that lasts */
            check_aborted(3 - aborter, aborter);
        job_close(&crew.job);
    }
}

/* ---- at the same time as ... */

static void *live_and_close(void *arg)
{
    struct life *life = arg;
    life_run(life);
    crew_close_rank(&crew, life->rank);
    return NULL;
}

static uint32_t aborting; /* atomic */

static void *abort_again_and_again(void *arg)
{
    while (__atomic_load_n(&aborting, __ATOMIC_ACQUIRE) != 0)
        afd_group_abort(arg);
    return NULL;
}

static void an_abort_may_meet_exchanges_other_aborts_and_close(void **state)
{
    struct afd_buffer_config c = crew_config();
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        pthread_t aborter[2];
        crew_open(&crew, ROLES, &c, LONG_US);
        for (uint32_t r = 0; r < RANKS; r++) {
            struct life life = {.job = &crew.job, .rank = r, .exchanges = 1000000};
            life.tokens = crew.tokens;
            crew.life[r] = life;
            assert_int_equal(
                pthread_create(&crew.life[r].thread, NULL, live_and_close, &crew.life[r]), 0);
        }
        processes_sleep_us(i * 300);
        __atomic_store_n(&aborting, 1, __ATOMIC_RELEASE);
        for (uint32_t k = 0; k < 2; k++)
            assert_int_equal(pthread_create(&aborter[k], NULL, abort_again_and_again,
                                            crew.job.group[(i + k) % RANKS]),
                             0);
        crew_join(&crew);
        __atomic_store_n(&aborting, 0, __ATOMIC_RELEASE);
        for (uint32_t k = 0; k < 2; k++)
            pthread_join(aborter[k], NULL);
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct life_outcome *o = &crew.life[r].outcome;
            if (o->rc != AFD_EABORTED || o->wrong[0] != '\0' ||
                (o->fault.rank != i % RANKS && o->fault.rank != (i + 1) % RANKS))
                fail_msg("rank %u: %s %s", r, o->sentence, o->wrong);
        }
        job_close(&crew.job);
    }
}

/* ---- in create */

/* A bootstrap of the caller that aborts its rank's group in the n-th allgather. */
struct meeting {
    struct afd_bootstrap *hub;
    struct afd_group *group;
    uint32_t calls;
    uint32_t abort_in; /* 0: never */
};

static int gather(void *context, const void *in, void *out, size_t bytes)
{
    struct meeting *meeting = context;
    int rc = meeting->hub->ops->allgather(meeting->hub, in, out, bytes);
    if (meeting->group != NULL && ++meeting->calls == meeting->abort_in)
        afd_group_abort(meeting->group);
    return rc;
}

struct creator {
    uint32_t rank;
    struct meeting meeting;
    struct afd_buffer *buffer;
    int rc;
    int receive_rc;
    char sentence[512];
};

static struct afd_hub *hub;

/* The FFN rank waits; the source, which aborts, makes no call at all. */
static void *create_and_wait(void *arg)
{
    static const uint8_t roles[2] = {AFD_ROLE_FFN, AFD_ROLE_ATTENTION};
    struct creator *self = arg;
    struct afd_buffer_config c = crew_config();
    struct afd_group_config g;
    struct afd_batch batch;
    afd_group_config_init(&g);
    g.rank = self->rank;
    g.world = 2;
    g.roles = roles;
    g.hub = hub;
    g.deadline_us = 5000000;
    g.bootstrap = AFD_BOOTSTRAP_CALLBACKS;
    g.callbacks.allgather = gather;
    g.callbacks.context = &self->meeting;
    self->rc = afd_bootstrap_hub_open(&g, &self->meeting.hub);
    self->rc = self->rc != 0 ? self->rc : afd_group_create(&g, &self->meeting.group);
    self->rc = self->rc != 0 ? self->rc : afd_buffer_create(self->meeting.group, &c, &self->buffer);
    if (self->rc != 0 || self->rank != 0)
        return NULL;
    afd_batch_init(&batch);
    self->receive_rc = afd_receive(self->buffer, 0, &batch, NULL);
    snprintf(self->sentence, sizeof(self->sentence), "%s", afd_last_error());
    return NULL;
}

static void run_creators(struct creator *creator)
{
    pthread_t thread[2];
    assert_int_equal(afd_hub_create(2, &hub), 0);
    for (uint32_t r = 0; r < 2; r++) {
        creator[r].rank = r;
        assert_int_equal(pthread_create(&thread[r], NULL, create_and_wait, &creator[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++)
        pthread_join(thread[r], NULL);
}

static void an_abort_during_create_reaches_the_buffer_that_it_makes(void **state)
{
    struct creator creator[2];
    uint32_t calls = 1;
    (void)state;
    for (uint32_t n = 1; n <= calls; n++) {
        struct afd_tokens tokens;
        memset(creator, 0, sizeof(creator));
        memset(&tokens, 0, sizeof(tokens));
        creator[1].meeting.abort_in = n;
        run_creators(creator);
        calls = creator[1].meeting.calls;
        assert_int_equal(creator[0].rc, 0);
        assert_int_equal(creator[1].rc, 0);
        assert_int_equal(creator[0].receive_rc, AFD_EABORTED);
        assert_non_null(strstr(creator[0].sentence, "rank 1 aborted"));
        assert_int_equal(afd_dispatch(creator[1].buffer, 0, &tokens, NULL), AFD_EABORTED);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(afd_buffer_close(creator[r].buffer), 0);
            assert_int_equal(afd_group_destroy(creator[r].meeting.group), 0);
            creator[r].meeting.hub->ops->close(creator[r].meeting.hub);
        }
        afd_hub_destroy(hub);
    }
    assert_in_range(calls, 2, 10);
}

static void an_aborted_group_makes_no_more_buffers_on_any_rank(void **state)
{
    struct afd_buffer_config c = crew_config();
    static struct job second;
    (void)state;
    crew_open(&crew, ROLES, &c, LONG_US);
    afd_group_abort(crew.job.group[2]);
    job_init(&second, ROLES, &c);
    second.hub = crew.job.hub;
    for (uint32_t r = 0; r < RANKS; r++)
        second.group[r] = crew.job.group[r];
    assert_int_equal(job_open(&second), AFD_EABORTED);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(second.create_rc[r], AFD_EABORTED);
        assert_null(second.buffer[r]);
        if (strstr(second.create_error[r], "group of rank 2 was aborted") == NULL)
            fail_msg("rank %u: %s", r, second.create_error[r]);
    }
    job_close(&crew.job);
}

/* ---- close */

/* Where a rank stands when it closes. */
static void come_to(uint32_t where)
{
    struct job_truth *truth = job_truth_get(&crew.job, 1, crew.tokens);
    if (where >= 1) /* rank 0 has dispatched, rank 3 not */
        assert_int_equal(job_dispatch(&crew.job, 0, 0, &truth->input[0]), 0);
    if (where >= 2) /* both have, on both stages; rank 1 has received */
        assert_int_equal(job_dispatch(&crew.job, 1, 0, &truth->input[1]), 0);
    if (where >= 2)
        assert_int_equal(job_receive(&crew.job, 0, 0, 1, crew.tokens), 0);
    if (where >= 3) /* rank 1 has replied */
        assert_int_equal(job_reply(&crew.job, 0, 0), 0);
    if (where >= 4)
        afd_group_abort(crew.job.group[3]);
    job_truth_put(&crew.job, truth);
}

static void close_works_in_every_state_and_every_order(void **state)
{
    struct afd_buffer_config c = crew_config();
    uint32_t windows = processes_windows();
    (void)state;
    for (uint32_t i = 0; i < 5 * 24; i++) {
        uint32_t left[RANKS] = {0, 1, 2, 3};
        uint32_t rest = i % 24;
        crew_open(&crew, ROLES, &c, LONG_US);
        come_to(i / 24);
        for (uint32_t count = RANKS; count > 0; count--) {
            uint32_t k = rest % count;
            uint32_t rank = left[k];
            rest /= count;
            left[k] = left[count - 1];
            assert_int_equal(afd_buffer_close(crew.job.buffer[rank]), 0);
            crew.job.buffer[rank] = NULL;
            assert_int_equal(afd_group_destroy(crew.job.group[rank]), 0);
            crew.job.group[rank] = NULL;
            assert_int_equal(processes_windows() - windows, count == 1 ? 0 : RANKS);
        }
        job_close(&crew.job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_by_another_thread_releases_every_wait),
        cmocka_unit_test(an_abort_in_a_signal_handler_releases_every_wait),
        cmocka_unit_test(an_abort_between_exchanges_fails_every_later_call),
        cmocka_unit_test(an_abort_may_meet_exchanges_other_aborts_and_close),
        cmocka_unit_test(an_abort_during_create_reaches_the_buffer_that_it_makes),
        cmocka_unit_test(an_aborted_group_makes_no_more_buffers_on_any_rank),
        cmocka_unit_test(close_works_in_every_state_and_every_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
