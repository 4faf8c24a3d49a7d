/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lane.c - collectives of a block on the host, and the executor that runs blocks as fibers.
 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/fiber.h"
#include "exec/inline.h"
#include "job.h"
#include "steps/stage.h"

/* ---------------------------------------------------------------------------------- collectives */

static const struct afd_lane alone = {0, 1, 0, 1, NULL};

static void a_block_of_one_thread_is_its_own_collective(void **state)
{
    uint32_t total = 7;
    uint32_t bin = 40;
    (void)state;
    assert_int_equal(afd_block_all(alone, 0), 0);
    assert_int_not_equal(afd_block_all(alone, 1), 0);
    assert_int_not_equal(afd_block_all(alone, -8), 0);
    assert_int_equal(afd_block_or(alone, 0x80000001u), 0x80000001u);
    assert_int_equal(afd_block_scan(alone, 5, &total), 0);
    assert_int_equal(total, 5);
    assert_int_equal(afd_block_sum(alone, 0xffffffffu), 0xffffffffu);
    afd_block_count(alone, &bin, 2);
    afd_block_count(alone, &bin, 0);
    assert_int_equal(bin, 42);
    afd_block_sync(alone);
}

/* Place of item i among all items, by keys and then by position. */
static uint32_t place_of(const uint32_t *key, uint32_t count, uint32_t i)
{
    uint32_t place = 0;
    for (uint32_t j = 0; j < count; j++)
        if (key[j] != AFD_KEY_NONE)
            place += key[j] < key[i] || (j < i && key[j] == key[i]);
    return place;
}

static void block_rank_is_a_stable_ranking_by_key(void **state)
{
    uint64_t random = 1;
    (void)state;
    for (uint32_t count = 1; count <= 120; count++) {
        uint32_t keys = 1 + count % 7;
        uint32_t key[120];
        uint32_t cursor[8] = {0};
        uint32_t taken = 0;
        for (uint32_t i = 0; i < count; i++) {
            key[i] = (uint32_t)(job_random(&random) % (keys + 1));
            key[i] = key[i] == keys ? AFD_KEY_NONE : key[i];
            taken += key[i] != AFD_KEY_NONE;
        }
        for (uint32_t k = 0; k < keys; k++)
            for (uint32_t i = 0; i < count; i++)
                cursor[k] += key[i] < k; /* AFD_KEY_NONE is the largest */
        for (uint32_t i = 0; i < count; i++) {
            uint32_t place = afd_block_rank(alone, key[i], cursor);
            if (key[i] != AFD_KEY_NONE)
                assert_int_equal(place, place_of(key, count, i));
        }
        assert_int_equal(cursor[keys - 1], taken);
    }
}

/* --------------------------------------------------------------------------------------- fibers */

struct visits {
    struct afd_fibers *fibers;
    uint32_t count;
    uint32_t yields;
    uint32_t turn[AFD_BLOCKS_MAX];
    uint32_t done;
    int wrong;
};

static void visit(void *context, uint32_t index)
{
    struct visits *v = context;
    char filler[512]; /* a stack of its own: what it holds survives the others' turns */
    memset(filler, (int)index, sizeof(filler));
    for (uint32_t i = 0; i < v->yields; i++) {
        uint32_t running = afd_fibers_yield(v->fibers);
        v->turn[index]++;
        v->wrong |= running == 0 || running > v->count - v->done;
        for (uint32_t other = 0; other < v->count; other++) /* turns go round */
            v->wrong |= v->turn[other] + 1 < v->turn[index];
    }
    for (size_t i = 0; i < sizeof(filler); i++)
        v->wrong |= filler[i] != (char)index;
    v->done++;
}

static void run_visits(struct visits *v, uint32_t count, uint32_t yields)
{
    v->count = count;
    v->yields = yields;
    v->done = 0;
    memset(v->turn, 0, sizeof(v->turn));
    afd_fibers_run(v->fibers, count, visit, v);
    assert_int_equal(v->wrong, 0);
    assert_int_equal(v->done, count);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(v->turn[i], yields);
}

static void fibers_of_any_number_take_turns(void **state)
{
    struct visits v;
    (void)state;
    memset(&v, 0, sizeof(v));
    assert_int_equal(afd_fibers_create(AFD_BLOCKS_MAX, &v.fibers), 0);
    for (uint32_t count = 1; count <= AFD_BLOCKS_MAX; count += count < 20 ? 1 : 59) {
        assert_int_equal(afd_fibers_prepare(v.fibers, count), 0);
        run_visits(&v, count, count % 3 == 0 ? 0 : 9);
    }
    run_visits(&v, 2, 20000);
    run_visits(&v, 1, 5);
    afd_fibers_destroy(v.fibers);
}

static void all_256_fibers_keep_their_stacks(void **state)
{
    struct visits v;
    (void)state;
    memset(&v, 0, sizeof(v));
    assert_int_equal(afd_fibers_create(AFD_BLOCKS_MAX, &v.fibers), 0);
    assert_int_equal(afd_fibers_prepare(v.fibers, AFD_BLOCKS_MAX), 0);
    run_visits(&v, AFD_BLOCKS_MAX, 30);
    afd_fibers_destroy(v.fibers);
    afd_fibers_destroy(NULL);
}

static void *run_elsewhere(void *arg)
{
    struct visits *v = arg;
    afd_fibers_run(v->fibers, v->count, visit, v);
    return NULL;
}

static void fibers_prepared_by_one_thread_run_in_others(void **state)
{
    struct visits v;
    (void)state;
    memset(&v, 0, sizeof(v));
    assert_int_equal(afd_fibers_create(8, &v.fibers), 0);
    assert_int_equal(afd_fibers_prepare(v.fibers, 8), 0);
    run_visits(&v, 8, 4); /* they have lived here before they move */
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        v.done = 0;
        memset(v.turn, 0, sizeof(v.turn));
        assert_int_equal(pthread_create(&thread, NULL, run_elsewhere, &v), 0);
        pthread_join(thread, NULL);
        assert_int_equal(v.done, 8);
        assert_int_equal(v.wrong, 0);
    }
    afd_fibers_destroy(v.fibers);
}

/* ------------------------------------------------------------------------------------- executor */

struct fixture {
    struct afd_inline inl;
    struct afd_stage_state stage;
    uint64_t word[AFD_BLOCKS_MAX];
    uint32_t seen[AFD_BLOCKS_MAX];
    uint32_t left; /* blocks that left a wait without success */
    uint32_t last; /* blocks that came last */
    uint32_t rounds;
    uint32_t watched;
    struct afd_verdict verdict;
    uint64_t *set_by_watch;
    struct afd_wait watched_wait;
};

static struct afd_verdict watch(void *context, const struct afd_wait *wait, uint64_t waited_us)
{
    struct fixture *f = context;
    (void)waited_us;
    f->watched++;
    f->watched_wait = *wait;
    if (f->set_by_watch != NULL)
        *f->set_by_watch = wait->expected;
    return f->verdict;
}

static void fixture_init(struct fixture *f, uint32_t blocks)
{
    memset(f, 0, sizeof(*f));
    assert_int_equal(afd_inline_init(&f->inl, blocks, 20, watch, f), 0);
}

static struct fixture *fixture_of(struct afd_lane lane)
{
    return ((struct afd_inline *)lane.exec->owner)->watch_context;
}

static void step_lane(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    f->seen[lane.block]++;
    f->left +=
        args != &f->stage || lane.blocks != f->inl.blocks || lane.thread != 0 || lane.threads != 1;
}

static void every_block_of_a_step_runs_exactly_once(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f, 3);
    for (uint32_t blocks = 1; blocks <= AFD_BLOCKS_MAX; blocks += blocks < 18 ? 1 : 119) {
        memset(f.seen, 0, sizeof(f.seen));
        assert_int_equal(afd_inline_set_blocks(&f.inl, blocks), 0);
        assert_int_equal(afd_inline_run(&f.inl, step_lane, &f.stage), 1);
        assert_int_equal(f.left, 0);
        for (uint32_t b = 0; b < AFD_BLOCKS_MAX; b++)
            assert_int_equal(f.seen[b], b < blocks);
    }
    afd_inline_fini(&f.inl);
}

/* Blocks write, meet, and read what all the others wrote. */
static void step_gate(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    (void)args;
    for (uint32_t gate = 1; gate <= f->rounds; gate++) {
        f->word[lane.block] = gate;
        f->left += !afd_stage_gate(lane, &f->stage, gate);
        for (uint32_t b = 0; b < lane.blocks; b++) /* nobody is a whole gate ahead */
            f->seen[lane.block] += f->word[b] < gate || f->word[b] > gate + 1;
    }
    if (afd_stage_last_block(lane, &f->stage)) {
        f->last++;
        afd_stage_commit(lane, &f->stage, AFD_STAGE_OPEN, 1);
    }
}

static void gates_hold_every_block_until_all_have_come(void **state)
{
    static const uint32_t blocks[] = {1, 2, 3, 17, 256, 5, 1, 4};
    struct fixture f;
    (void)state;
    fixture_init(&f, 1);
    for (uint32_t i = 0; i < 8; i++) { /* one state for all: cumulative counts carry on */
        f.rounds = 1 + i % 3;
        f.stage.state = AFD_STAGE_IDLE;
        memset(f.word, 0, sizeof(f.word));
        assert_int_equal(afd_inline_set_blocks(&f.inl, blocks[i]), 0);
        assert_int_equal(afd_inline_run(&f.inl, step_gate, NULL), 1);
        assert_int_equal(f.left, 0);
        assert_int_equal(f.last, i + 1);
        assert_int_equal(f.stage.epoch, i + 1);
        assert_int_equal(f.stage.state, AFD_STAGE_OPEN);
        assert_int_equal(f.stage.done, f.stage.done_base);
        for (uint32_t b = 0; b < blocks[i]; b++)
            assert_int_equal(f.seen[b], 0);
    }
    afd_inline_fini(&f.inl);
}

/* Each block passes a token on to the next one, `rounds` times round the ring. */
static void step_ring(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    uint32_t before = (lane.block + lane.blocks - 1) % lane.blocks;
    (void)args;
    for (uint64_t round = 1; round <= f->rounds; round++) {
        struct afd_wait wait = {AFD_WORD_BLOCKS, AFD_WAIT_OWN_BLOCKS,
                                lane.block == 0 ? round - 1 : round};
        if (!afd_wait_word(lane, &f->word[before], wait))
            f->left++;
        f->seen[lane.block] += f->word[before] != wait.expected;
        afd_word_release(&f->word[lane.block], round);
    }
}

static void blocks_that_wait_for_each_other_in_a_ring_all_get_on(void **state)
{
    static const uint32_t blocks[] = {2, 3, 8, 100, 256};
    struct fixture f;
    (void)state;
    fixture_init(&f, 1);
    f.rounds = 50;
    for (uint32_t i = 0; i < 5; i++) {
        memset(f.word, 0, sizeof(f.word));
        assert_int_equal(afd_inline_set_blocks(&f.inl, blocks[i]), 0);
        assert_int_equal(afd_inline_run(&f.inl, step_ring, NULL), 1);
        assert_int_equal(f.left, 0);
        for (uint32_t b = 0; b < blocks[i]; b++)
            assert_int_equal(f.seen[b] + f.word[b], f.rounds);
    }
    afd_inline_fini(&f.inl);
}

/* Block `rounds` reports a trouble; the others wait for what never comes, on a word or an LL
 * word. */
static void step_trouble(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    struct afd_wait wait = {AFD_WORD_HEADER, lane.block, 1000 + lane.block};
    struct afd_ll word;
    (void)args;
    if (lane.block == f->rounds) {
        afd_trouble_report(lane, AFD_EPROTO, 77, wait, 42);
        afd_trouble_report(lane, AFD_EROUTE, 78, wait, 43); /* the first one stays */
        f->left += afd_trouble_seen(lane) != 0;
        return;
    }
    if (lane.block % 2 == 0)
        f->left += !afd_wait_word(lane, &f->word[0], wait);
    else
        f->left += !afd_wait_ll(lane, &f->word[2], 5, wait, &word);
    if (afd_stage_last_block(lane, &f->stage))
        afd_stage_commit(lane, &f->stage, AFD_STAGE_OPEN, 1);
}

static void a_trouble_makes_all_blocks_leave_and_the_first_one_stays(void **state)
{
    (void)state;
    for (uint32_t blocks = 2; blocks <= AFD_BLOCKS_MAX; blocks *= 2) {
        for (uint32_t i = 0; i < 3; i++) {
            struct fixture f;
            fixture_init(&f, blocks);
            f.rounds = i * (blocks - 1) / 2; /* first, middle, last block */
            f.stage.done = 1;                /* in the place of the block that reports */
            assert_int_equal(afd_inline_run(&f.inl, step_trouble, NULL), 0);
            assert_int_equal(f.left, blocks);
            assert_int_equal(f.stage.state, AFD_STAGE_FAILED);
            assert_int_equal(f.stage.epoch, 0);
            assert_int_equal(f.inl.trouble.ready, 1);
            assert_int_equal(f.inl.trouble.code, AFD_EPROTO);
            assert_int_equal(f.inl.trouble.rank, 77);
            assert_int_equal(f.inl.trouble.kind, AFD_WORD_HEADER);
            assert_int_equal(f.inl.trouble.peer, f.rounds);
            assert_int_equal(f.inl.trouble.block, f.rounds);
            assert_int_equal(f.inl.trouble.expected, 1000 + f.rounds);
            assert_int_equal(f.inl.trouble.seen, 42);
            afd_inline_fini(&f.inl);
        }
    }
}

static void step_wait_twice(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    struct afd_wait wait = {AFD_WORD_CREDIT, 6, 3};
    (void)args;
    f->left += !afd_wait_word(lane, &f->word[0], wait);
    f->left += !afd_wait_word(lane, &f->word[1], wait);
}

static void a_verdict_of_the_watch_ends_the_wait_with_its_code_and_rank(void **state)
{
    (void)state;
    for (uint32_t blocks = 1; blocks <= 3; blocks++) {
        struct fixture f;
        fixture_init(&f, blocks);
        f.verdict.code = AFD_EPEER;
        f.verdict.rank = 12;
        f.word[0] = 2;
        assert_int_equal(afd_inline_run(&f.inl, step_wait_twice, NULL), 0);
        assert_int_equal(f.left, 2 * blocks);
        assert_int_equal(f.watched, 1);
        assert_int_equal(f.watched_wait.peer, 6);
        assert_int_equal(f.inl.trouble.code, AFD_EPEER);
        assert_int_equal(f.inl.trouble.rank, 12);
        assert_int_equal(f.inl.trouble.peer, 6);
        assert_int_equal(f.inl.trouble.expected, 3);
        assert_int_equal(f.inl.trouble.seen, 2);
        afd_inline_fini(&f.inl);
    }
}

static void what_arrives_with_the_verdict_still_counts(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f, 1);
    f.verdict.code = AFD_EPEER;
    f.set_by_watch = &f.word[0];
    f.word[1] = 3;
    assert_int_equal(afd_inline_run(&f.inl, step_wait_twice, NULL), 1);
    assert_int_equal(f.left, 0);
    assert_int_equal(f.watched, 1);
    afd_inline_fini(&f.inl);
}

static void a_wait_lasts_as_long_as_the_watch_has_no_verdict(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f, 2);
    f.set_by_watch = &f.word[0];
    f.word[1] = 3;
    assert_int_equal(afd_inline_run(&f.inl, step_wait_twice, NULL), 1);
    assert_int_equal(f.left, 0);
    assert_true(f.watched >= 1);
    afd_inline_fini(&f.inl);
}

/* Block 1 waits for a peer; the others stand at a gate. */
static void step_peer_and_gate(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    struct afd_wait wait = {AFD_WORD_SLOT, 31, 3};
    (void)args;
    if (lane.block == 1)
        f->left += !afd_wait_word(lane, &f->word[0], wait);
    else
        f->left += !afd_stage_gate(lane, &f->stage, 1);
}

static void the_block_that_waits_for_a_peer_asks_not_one_at_a_gate(void **state)
{
    (void)state;
    for (uint32_t blocks = 2; blocks <= 5; blocks++) {
        struct fixture f;
        fixture_init(&f, blocks);
        f.verdict.code = AFD_EPEER;
        assert_int_equal(afd_inline_run(&f.inl, step_peer_and_gate, NULL), 0);
        assert_int_equal(f.left, blocks);
        assert_int_equal(f.watched, 1);
        assert_int_equal(f.watched_wait.peer, 31);
        assert_int_equal(f.inl.trouble.peer, 31);
        assert_int_equal(f.inl.trouble.kind, AFD_WORD_SLOT);
        afd_inline_fini(&f.inl);
    }
}

static void step_gate_alone(struct afd_lane lane, const void *args)
{
    struct fixture *f = fixture_of(lane);
    (void)args;
    if (lane.block != 1) /* block 1 never comes, which no step does */
        f->left += !afd_stage_gate(lane, &f->stage, 1);
}

static void a_gate_that_nobody_can_open_asks_as_well(void **state)
{
    struct fixture f;
    (void)state;
    fixture_init(&f, 4);
    f.verdict.code = AFD_EPEER;
    assert_int_equal(afd_inline_run(&f.inl, step_gate_alone, NULL), 0);
    assert_int_equal(f.left, 3);
    assert_int_equal(f.watched_wait.peer, AFD_WAIT_OWN_BLOCKS);
    afd_inline_fini(&f.inl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_of_one_thread_is_its_own_collective),
        cmocka_unit_test(block_rank_is_a_stable_ranking_by_key),
        cmocka_unit_test(fibers_of_any_number_take_turns),
        cmocka_unit_test(all_256_fibers_keep_their_stacks),
        cmocka_unit_test(fibers_prepared_by_one_thread_run_in_others),
        cmocka_unit_test(every_block_of_a_step_runs_exactly_once),
        cmocka_unit_test(gates_hold_every_block_until_all_have_come),
        cmocka_unit_test(blocks_that_wait_for_each_other_in_a_ring_all_get_on),
        cmocka_unit_test(a_trouble_makes_all_blocks_leave_and_the_first_one_stays),
        cmocka_unit_test(a_verdict_of_the_watch_ends_the_wait_with_its_code_and_rank),
        cmocka_unit_test(what_arrives_with_the_verdict_still_counts),
        cmocka_unit_test(a_wait_lasts_as_long_as_the_watch_has_no_verdict),
        cmocka_unit_test(the_block_that_waits_for_a_peer_asks_not_one_at_a_gate),
        cmocka_unit_test(a_gate_that_nobody_can_open_asks_as_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
