/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_blame.c - whom a rank blames when a wait has lasted too long: the watch of a buffer alone,
 * with the words by which ranks say what they wait for written by the test.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include "buffer.h"
#include "life.h"

#define DEADLINE_US 20000u
#define RANKS 5u /* sources 0, 1, 2 and FFN ranks 3, 4 */

static struct crew crew;

static int set_up(void **state)
{
    struct afd_buffer_config c = crew_config();
    (void)state;
    crew_open(&crew, "AAAFF", &c, DEADLINE_US);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    job_close(&crew.job);
    return 0;
}

static struct afd_control *control(uint32_t rank)
{
    return afd_buffer_control(crew.job.buffer[rank], rank);
}

/* Rank `rank` says that it waits for `peer` in an exchange; UINT32_MAX: for nobody. */
static void say(uint32_t rank, uint32_t peer, uint32_t stage, uint64_t epoch)
{
    uint32_t phase = rank < 3 ? AFD_PHASE_COLLECT : AFD_PHASE_RECEIVE;
    uint64_t waiting = peer == UINT32_MAX ? 0 : afd_waiting_pack(phase, stage, peer, epoch);
    __atomic_store_n(&control(rank)->waiting, waiting, __ATOMIC_RELEASE);
}

/* Rank `rank` has waited for a word of `peer` for so long. */
static struct afd_verdict watch(uint32_t rank, uint32_t peer, uint64_t epoch, uint64_t waited_us)
{
    struct afd_buffer *buffer = crew.job.buffer[rank];
    struct afd_wait wait = {AFD_WORD_HEADER, peer, 1};
    buffer->running_phase = rank < 3 ? AFD_PHASE_COLLECT : AFD_PHASE_RECEIVE;
    buffer->running_stage = 0;
    afd_buffer_state(buffer, 0)->epoch = epoch - 1;
    return afd_buffer_watch(buffer, &wait, waited_us);
}

static void check(struct afd_verdict verdict, int code, uint32_t rank)
{
    assert_int_equal(verdict.code, code);
    if (verdict.rank != rank)
        fail_msg("rank %u is blamed, not rank %u", verdict.rank, rank);
}

/* ---- who is to blame */

static void nobody_is_blamed_before_the_deadline(void **state)
{
    (void)state;
    assert_int_equal(watch(0, 3, 1, DEADLINE_US - 1).code, 0);
    assert_int_equal(afd_waiting_peer(control(0)->waiting), 3); /* but it says for whom it waits */
    check(watch(0, 3, 1, DEADLINE_US), AFD_EPEER, 3);
}

static void a_chain_is_followed_to_the_rank_that_waits_for_nobody(void **state)
{
    (void)state;
    say(3, 1, 0, 7);
    check(watch(0, 3, 7, DEADLINE_US), AFD_EPEER, 1);
    say(1, 4, 1, 6);
    check(watch(0, 3, 7, DEADLINE_US), AFD_EPEER, 4);
    say(4, 2, 1, 6);
    check(watch(0, 3, 7, DEADLINE_US), AFD_EPEER, 2);
    say(3, UINT32_MAX, 0, 0);
    check(watch(0, 3, 7, DEADLINE_US), AFD_EPEER, 3);
}

static void in_a_ring_the_rank_that_lags_behind_is_blamed(void **state)
{
    (void)state;
    say(3, 0, 1, 6); /* it misses exchange 6 of rank 0, which has gone on to 7 */
    check(watch(0, 3, 7, DEADLINE_US), AFD_EPEER, 0);
    say(3, 0, 1, 7); /* it has gone on to 7, and rank 0 misses its 6 */
    check(watch(0, 3, 6, DEADLINE_US), AFD_EPEER, 3);
    say(3, 1, 0, 7); /* a longer one: 0 for 3 for 1 for 4 for 0 */
    say(1, 4, 0, 5);
    say(4, 0, 0, 6);
    check(watch(0, 3, 7, DEADLINE_US), AFD_EPEER, 4);
    check(watch(1, 4, 5, DEADLINE_US), AFD_EPEER, 4);
    say(4, 1, 0, 4); /* one in which the asking rank is not: 0 for 3 for 1 for 4 for 1 */
    check(watch(0, 3, 3, DEADLINE_US), AFD_EPEER, 1);
}

static void exchanges_are_older_or_newer_across_a_wrap_of_their_numbers(void **state)
{
    (void)state;
    say(3, 0, 1, 0xffffffffull);
    check(watch(0, 3, 0x100000001ull, DEADLINE_US), AFD_EPEER, 0);
    say(3, 0, 1, 0x100000001ull);
    check(watch(0, 3, 0xffffffffull, DEADLINE_US), AFD_EPEER, 3);
}

static void a_rank_that_closed_is_blamed_at_once_by_those_that_wait_for_it(void **state)
{
    (void)state;
    __atomic_store_n(&control(4)->life, AFD_LIFE_CLOSED, __ATOMIC_RELEASE);
    assert_int_equal(watch(0, 3, 1, 0).code, 0);
    check(watch(0, 4, 1, 0), AFD_EPEER, 4);
}

static void publish(uint32_t writer, uint32_t to, uint32_t culprit)
{
    struct afd_control_fault *slot = afd_control_fault_of(control(to), writer);
    memset(&slot->fault, 0, sizeof(slot->fault));
    slot->fault.code = AFD_EPEER;
    slot->fault.rank = culprit;
    slot->fault.reporter = writer;
    __atomic_store_n(&slot->state, AFD_FAULT_READY, __ATOMIC_RELEASE);
}

static void a_fault_that_a_peer_told_comes_before_what_this_rank_sees(void **state)
{
    (void)state;
    __atomic_store_n(&control(3)->life, AFD_LIFE_CLOSED, __ATOMIC_RELEASE);
    publish(4, 0, 2);
    check(watch(0, 3, 1, 0), AFD_EPEER, 2);
    check(watch(0, 3, 1, DEADLINE_US), AFD_EPEER, 2);
    check(watch(1, 3, 1, 0), AFD_EPEER, 3); /* which was not told */
}

/* ---- at the same time */

static void *receive(void *arg)
{
    (void)arg;
    return job_receive(&crew.job, 0, 0, 1, crew.tokens) == AFD_EPEER ? &crew : NULL;
}

/* Else a rank that asks in between takes the one that knows the cause for the cause. */
static void a_rank_tells_its_fault_before_it_forgets_its_wait(void **state)
{
    for (uint32_t i = 0; i < 20; i++) {
        struct afd_buffer_config c = crew_config();
        const struct afd_control_fault *told;
        const struct afd_control *waiter;
        pthread_t thread;
        void *failed;
        (void)state;
        crew_open(&crew, "AF", &c, 5000);
        waiter = control(1);
        told = afd_control_fault_of(control(0), 1);
        assert_int_equal(pthread_create(&thread, NULL, receive, NULL), 0);
        while (__atomic_load_n(&waiter->waiting, __ATOMIC_ACQUIRE) == 0)
            sched_yield();
        while (__atomic_load_n(&waiter->waiting, __ATOMIC_ACQUIRE) != 0)
            ;
        assert_int_equal(__atomic_load_n(&told->state, __ATOMIC_ACQUIRE), AFD_FAULT_READY);
        pthread_join(thread, &failed);
        assert_non_null(failed);
        job_close(&crew.job);
    }
}

static uint32_t turn; /* atomic: the round whose fault is to be told */

/* Rank 3, whose wait for rank 1 fails. */
static void *fail_in_turn(void *arg)
{
    uint32_t rounds = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 1; i <= rounds; i++) {
        while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != i)
            ;
        publish(3, 0, 1);
        say(3, UINT32_MAX, 0, 0);
        __atomic_store_n(&turn, 0, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void the_cause_is_not_lost_when_two_ranks_give_up_at_once(void **state)
{
    const uint32_t rounds = 20000;
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, fail_in_turn, (void *)(uintptr_t)rounds), 0);
    for (uint32_t i = 1; i <= rounds; i++) {
        struct afd_verdict verdict;
        __atomic_store_n(&afd_control_fault_of(control(0), 3)->state, AFD_FAULT_EMPTY,
                         __ATOMIC_RELAXED);
        say(3, 1, 0, 1);
        __atomic_store_n(&turn, i, __ATOMIC_RELEASE);
        for (volatile uint32_t wait = 0; wait < i % 64; wait++)
            ;
        verdict = watch(0, 3, 1, DEADLINE_US);
        while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) != 0)
            sched_yield();
        check(verdict, AFD_EPEER, 1);
    }
    pthread_join(thread, NULL);
}

/* ---- blocks of one rank */

struct crowd {
    struct afd_inline inl;
    uint64_t word;
    uint32_t left;
};

static struct afd_verdict watch_and_deliver(void *context, const struct afd_wait *wait,
                                            uint64_t waited_us)
{
    struct crowd *crowd = context;
    struct afd_verdict verdict = {AFD_EPEER, wait->peer};
    (void)waited_us;
    crowd->word = 1; /* it came just before the verdict */
    return verdict;
}

static void step_wait(struct afd_lane lane, const void *args)
{
    struct crowd *crowd = lane.exec->owner; /* its first member */
    struct afd_wait wait = {AFD_WORD_HEADER, 1, 1};
    (void)args;
    crowd->left += !afd_wait_word(lane, &crowd->word, wait);
}

static void what_arrives_with_a_verdict_counts_for_every_block(void **state)
{
    (void)state;
    for (uint32_t blocks = 1; blocks <= 9; blocks++) {
        struct crowd crowd;
        memset(&crowd, 0, sizeof(crowd));
        assert_int_equal(afd_inline_init(&crowd.inl, blocks, 5, watch_and_deliver, &crowd), 0);
        assert_int_equal(afd_inline_run(&crowd.inl, step_wait, NULL), 1);
        assert_int_equal(crowd.left, 0);
        afd_inline_fini(&crowd.inl);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nobody_is_blamed_before_the_deadline, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_chain_is_followed_to_the_rank_that_waits_for_nobody,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(in_a_ring_the_rank_that_lags_behind_is_blamed, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(exchanges_are_older_or_newer_across_a_wrap_of_their_numbers,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            a_rank_that_closed_is_blamed_at_once_by_those_that_wait_for_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_fault_that_a_peer_told_comes_before_what_this_rank_sees,
                                        set_up, tear_down),
        cmocka_unit_test(a_rank_tells_its_fault_before_it_forgets_its_wait),
        cmocka_unit_test_setup_teardown(the_cause_is_not_lost_when_two_ranks_give_up_at_once,
                                        set_up, tear_down),
        cmocka_unit_test(what_arrives_with_a_verdict_counts_for_every_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
