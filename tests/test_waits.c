/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_waits.c - every word that doc/protocol.md says is waited for is waited for.
 *
 * After the writer is done, one word is put back to what it was an exchange ago. The reader then
 * must stand in a wait, for that rank, until the word is given back; and nothing in the result may
 * be wrong.
 */

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "buffer.h"
#include "job.h"

#define WORDS 6u

static struct job job;
static uint32_t tokens[JOB_RANKS_MAX];
static uint64_t exchange;

/* Blocks of sources and of FFN ranks: either side alone or not, so that rows come in order and are
 * taken in order, or not; with 4 blocks, rows come in parts. */
static const struct {
    uint32_t sources;
    uint32_t ffn_ranks;
} blocks[] = {{1, 1}, {4, 4}, {1, 4}, {4, 1}};
#define BLOCKS 4u

static void begin(const char *roles, uint32_t variant, uint32_t hidden, uint32_t which)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 8;
    c.hidden = hidden;
    c.experts = 4; /* so that every token goes to both of two FFN ranks */
    c.topk = 3;
    c.payload = AFD_PAYLOAD_FP8;
    c.words_tokens = WORDS;
    c.variant = c.reply_variant = variant;
    job_init(&job, roles, &c);
    job.group_config.deadline_us = 5000000;
    job.options.with_weights = JOB_WEIGHTS_ALL;
    job.options.routing = JOB_ROUTING_FULL;
    for (uint32_t s = 0; s < JOB_RANKS_MAX; s++)
        tokens[s] = s == 1 ? 0 : 2; /* source 1 has nothing, and is waited for all the same */
    for (uint32_t r = 0; r < job.world; r++)
        job.config[r].blocks =
            job.roles[r] == AFD_ROLE_FFN ? blocks[which].ffn_ranks : blocks[which].sources;
    exchange = 0;
    assert_int_equal(job_open(&job), 0);
    exchange++; /* old tags and credits come from a real exchange */
    assert_int_equal(job_exchange(&job, 0, exchange, tokens), 0);
}

static void check_result(void)
{
    if (job.mismatches != 0)
        fail_msg("exchange %u: %s", (unsigned)exchange, job.first_mismatch);
}

static void dispatch_all(void)
{
    struct job_truth *truth = job_truth_get(&job, ++exchange, tokens);
    for (uint32_t s = 0; s < job.sources; s++)
        assert_int_equal(job_dispatch(&job, s, 0, &truth->input[s]), 0);
    job_truth_put(&job, truth);
}

/* ----------------------------------------------------------------------------------- held words */

struct reader {
    uint32_t rank;
    uint32_t index;
    int rc;
    uint32_t done; /* atomic */
};

static void *read_exchange(void *arg)
{
    struct reader *r = arg;
    if (job.roles[r->rank] == AFD_ROLE_FFN)
        r->rc = job_receive(&job, r->index, 0, exchange, tokens);
    else
        r->rc = job_collect(&job, r->index, 0, exchange, tokens);
    __atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* A word of a window: two halves for an LL word, one for a plain one. */
struct held {
    uint64_t *place;
    uint32_t halves;
    uint64_t value[2];
    uint64_t old[2];
};

static void put(struct held *h, const uint64_t *value)
{
    for (uint32_t i = 0; i < h->halves; i++)
        __atomic_store_n(&h->place[i], value[i], __ATOMIC_RELEASE);
}

static struct held hold_ll(uint64_t *place)
{
    struct held h = {place, 2, {0, 0}, {0, 0}};
    struct afd_ll word = afd_ll_load(place);
    h.value[0] = place[0];
    h.value[1] = place[1];
    assert_int_equal(word.tag, afd_tag(exchange)); /* or nobody wrote it */
    h.old[0] = ~h.value[0];
    h.old[1] = (uint64_t)afd_tag(exchange - 1) << 32 | (~h.value[1] & 0xffffffffu);
    return h;
}

static struct held hold_word(uint64_t *place, uint64_t less)
{
    struct held h = {place, 1, {*place, 0}, {*place - less, 0}};
    return h;
}

/* The reader waits for `peer` while the word is held, and is right once it is not. */
static void check_held(struct held h, uint32_t rank, uint32_t index, uint32_t peer)
{
    const struct afd_control *control = afd_buffer_control(job.buffer[rank], rank);
    struct reader reader = {rank, index, 1, 0};
    uint64_t waiting = 0;
    pthread_t thread;
    put(&h, h.old);
    assert_int_equal(pthread_create(&thread, NULL, read_exchange, &reader), 0);
    while (waiting == 0 && __atomic_load_n(&reader.done, __ATOMIC_ACQUIRE) == 0) {
        waiting = __atomic_load_n(&control->waiting, __ATOMIC_ACQUIRE);
        sched_yield();
    }
    put(&h, h.value);
    pthread_join(thread, NULL);
    if (waiting == 0)
        fail_msg("rank %u did not wait for a word of rank %u", rank, peer);
    assert_int_equal(afd_waiting_peer(waiting), peer);
    assert_int_equal(reader.rc, 0);
    check_result();
}

static uint64_t *word_at(uint32_t rank, struct afd_region region, uint64_t index)
{
    const struct afd_buffer *buffer = job.buffer[rank];
    const struct afd_layout *layout =
        job.roles[rank] == AFD_ROLE_FFN ? &buffer->plan.ffn_layout : &buffer->plan.attention_layout;
    return afd_region_word(buffer->window[rank].base, layout, region, 0, index);
}

/* -------------------------------------------------------------------------------------- receive */

enum word { HEADER, MASK, ROUTES, CREDIT, SLOT };

/* The `number`-th word of this kind of source s at FFN rank f; place NULL if there are fewer. */
static struct held receive_word(enum word kind, uint32_t f, uint32_t s, uint32_t number)
{
    uint32_t rank = job.ffn_rank[f];
    const struct afd_plan *plan = &job.buffer[rank]->plan;
    const struct afd_stage_layout *layout = &plan->ffn_layout.stage;
    uint64_t *header = word_at(rank, layout->headers, s);
    uint64_t *credit = word_at(rank, layout->credits, s);
    uint32_t units = afd_header_of(afd_ll_load(header)).units;
    uint32_t words = afd_slot_plan(&plan->shape).words;
    struct held none = {NULL, 0, {0, 0}, {0, 0}};
    if (kind == MASK && number < AFD_HEADER_WORDS - 1)
        return hold_ll(header + 2 + 2 * number);
    if (kind == SLOT && number < tokens[s] * words)
        return hold_ll(word_at(rank, layout->words, (uint64_t)s * WORDS + number / words) +
                       2 * (number % words));
    if (kind == CREDIT && number < units)
        return hold_word(credit, number + 1);
    if (kind == HEADER && number == 0)
        return hold_ll(header);
    if (kind == ROUTES && number == 0)
        return hold_word(header + AFD_HEADER_ROUTES_OFFSET / 8, 1);
    return none;
}

static void finish(void)
{
    for (uint32_t f = 0; f < job.ffn_ranks; f++)
        assert_int_equal(job_reply(&job, f, 0), 0);
    for (uint32_t s = 0; s < job.sources; s++)
        assert_int_equal(job_collect(&job, s, 0, exchange, tokens), 0);
    check_result();
}

/* Holds each word of this kind in turn; each FFN rank in turn is the reader. Returns how many. */
static uint32_t check_receive(enum word kind)
{
    uint32_t count = 0;
    for (uint32_t f = 0; f < job.ffn_ranks; f++) {
        for (uint32_t s = 0; s < job.sources; s++) {
            for (uint32_t number = 0;; number++) {
                struct held h;
                dispatch_all();
                h = receive_word(kind, f, s, number);
                for (uint32_t other = 0; other < job.ffn_ranks; other++)
                    if (other != f || h.place == NULL)
                        assert_int_equal(job_receive(&job, other, 0, exchange, tokens), 0);
                if (h.place != NULL)
                    check_held(h, job.ffn_rank[f], f, job.source_rank[s]);
                finish();
                if (h.place == NULL)
                    break;
                count++;
            }
        }
    }
    return count;
}

/* Units of a source's two rows of 1,136 bytes, or of the two replies of 2,200 bytes. */
static uint32_t units_of(uint32_t writer_blocks)
{
    return writer_blocks == 1 ? 2 : 4;
}

static void receive_waits_for_every_word_of_rows(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("FAFAA", AFD_VARIANT_ROWS, 1100, i);
        assert_int_equal(check_receive(HEADER), 2 * 3);
        assert_int_equal(check_receive(ROUTES), 2 * 3);
        assert_int_equal(check_receive(CREDIT), 2 * 2 * units_of(blocks[i].sources));
        job_close(&job);
    }
}

static void receive_waits_for_every_word_of_words(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("FAA", AFD_VARIANT_WORDS, 300, i);
        assert_int_equal(check_receive(HEADER), 2);
        assert_int_equal(check_receive(MASK), 2 * 3);
        /* of each token: one word of routes, one of weights, 25 of payload, one of scales */
        assert_int_equal(check_receive(SLOT), 2 * (1 + 1 + 25 + 1));
        job_close(&job);
    }
}

static void an_indexed_receive_waits_for_rows_though_it_copies_none(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("FAA", AFD_VARIANT_ROWS, 1100, i);
        job_close(&job);
        for (uint32_t r = 0; r < job.world; r++)
            job.config[r].receive = AFD_RECEIVE_INDEXED;
        assert_int_equal(job_open(&job), 0);
        exchange = 0;
        dispatch_all();
        assert_int_equal(job_receive(&job, 0, 0, exchange, tokens), 0);
        finish();
        assert_int_equal(check_receive(CREDIT), units_of(blocks[i].sources));
        job_close(&job);
    }
}

/* -------------------------------------------------------------------------------------- collect */

/* As receive_word(), of FFN rank f at source s. */
static struct held collect_word(enum word kind, uint32_t s, uint32_t f, uint32_t number)
{
    uint32_t rank = job.source_rank[s];
    const struct afd_plan *plan = &job.buffer[rank]->plan;
    const struct afd_stage_layout *layout = &plan->attention_layout.stage;
    uint64_t *header = word_at(rank, layout->reply_headers, f);
    uint64_t *credit = word_at(rank, layout->reply_credits, f);
    uint32_t units = afd_reply_header_of(afd_ll_load(header)).units;
    uint32_t words = afd_reply_slot_words(&plan->shape);
    struct held none = {NULL, 0, {0, 0}, {0, 0}};
    if (kind == SLOT && number < tokens[s] * words)
        return hold_ll(word_at(rank, layout->reply_words, (uint64_t)f * WORDS + number / words) +
                       2 * (number % words));
    if (kind == CREDIT && number < units)
        return hold_word(credit, number + 1);
    if (kind == HEADER && number == 0)
        return hold_ll(header);
    return none;
}

static void answer_all(void)
{
    for (uint32_t f = 0; f < job.ffn_ranks; f++)
        assert_int_equal(job_ffn(&job, f, 0, exchange, tokens), 0);
}

/* As check_receive(), each source in turn is the reader. */
static uint32_t check_collect(enum word kind)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < job.sources; s++) {
        for (uint32_t f = 0; f < job.ffn_ranks; f++) {
            for (uint32_t number = 0;; number++) {
                struct held h;
                dispatch_all();
                answer_all();
                h = collect_word(kind, s, f, number);
                if (h.place != NULL)
                    check_held(h, job.source_rank[s], s, job.ffn_rank[f]);
                for (uint32_t other = 0; other < job.sources; other++)
                    if (other != s || h.place == NULL)
                        assert_int_equal(job_collect(&job, other, 0, exchange, tokens), 0);
                check_result();
                if (h.place == NULL)
                    break;
                count++;
            }
        }
    }
    return count;
}

static void collect_waits_for_every_word_of_rows(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("AAFFA", AFD_VARIANT_ROWS, 1100, i);
        assert_int_equal(check_collect(HEADER), 3 * 2);
        assert_int_equal(check_collect(CREDIT), 2 * 2 * units_of(blocks[i].ffn_ranks));
        job_close(&job);
    }
}

static void collect_waits_for_every_word_of_words(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("AF", AFD_VARIANT_WORDS, 120, i);
        assert_int_equal(check_collect(HEADER), 1);
        assert_int_equal(check_collect(SLOT), 2 * 20);
        job_close(&job);
    }
}

static void a_view_waits_for_its_rows(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("FAA", AFD_VARIANT_ROWS, 1100, i);
        job.options.view = 1;
        assert_int_equal(check_collect(HEADER), 2);
        assert_int_equal(check_collect(CREDIT), units_of(blocks[i].ffn_ranks));
        job_close(&job);
    }
}

/* ------------------------------------------------------------------------------ old tags */

/* Every LL word of the words inboxes: calls `visit`, which returns 0 to stop. */
static void for_slot_words(void (*visit)(uint64_t *place, uint32_t slot))
{
    for (uint32_t r = 0; r < job.world; r++) {
        const struct afd_plan *plan = &job.buffer[r]->plan;
        int ffn = job.roles[r] == AFD_ROLE_FFN;
        struct afd_region region =
            ffn ? plan->ffn_layout.stage.words : plan->attention_layout.stage.reply_words;
        for (uint64_t slot = 0; slot < region.count; slot++)
            for (uint64_t i = 0; i < region.stride / AFD_LL_BYTES; i++)
                visit(word_at(r, region, slot) + 2 * i, (uint32_t)(slot % WORDS));
    }
}

static void plant_old_tag(uint64_t *place, uint32_t slot)
{
    struct afd_ll word = {{1, 2, 3}, 0x77777777};
    (void)slot;
    afd_ll_store(place, word);
}

static void check_no_tag(uint64_t *place, uint32_t slot)
{
    if (afd_ll_load(place).tag != 0)
        fail_msg("slot %u has tag %x", slot, afd_ll_load(place).tag);
}

/* No tag is older than WORDS exchanges; slot n % WORDS was just wiped. */
static void check_young_tag(uint64_t *place, uint32_t slot)
{
    uint32_t tag = afd_ll_load(place).tag;
    uint32_t young = tag == 0;
    for (uint64_t n = exchange; n + WORDS > exchange; n--)
        young |= tag == afd_tag(n);
    if (!young || (slot == exchange % WORDS && tag != 0))
        fail_msg("slot %u has tag %x after exchange %u", slot, tag, (unsigned)exchange);
}

static void exchange_next(void)
{
    exchange++;
    assert_int_equal(job_exchange(&job, 0, exchange, tokens), 0);
    check_result();
}

static void old_tags_are_wiped_within_as_many_exchanges_as_slots(void **state)
{
    static const uint32_t variants[] = {AFD_VARIANT_ROWS, AFD_VARIANT_WORDS};
    (void)state;
    for (uint32_t i = 0; i < 4; i++) { /* in either variant, with one block and with several */
        begin("FAFA", variants[i % 2], 300, i / 2);
        tokens[0] = tokens[1] = 0;
        for_slot_words(plant_old_tag);
        for (uint32_t n = 0; n < WORDS; n++)
            exchange_next();
        for_slot_words(check_no_tag);
        job_close(&job);
    }
}

static void tags_in_slots_are_always_young(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        begin("FAFA", AFD_VARIANT_WORDS, 300, i);
        for (uint32_t n = 0; n < 40; n++) {
            tokens[0] = n % (WORDS + 2); /* one more than fits goes as rows */
            tokens[1] = n * 3 % (WORDS + 1);
            exchange_next();
            for_slot_words(check_young_tag);
        }
        job_close(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(receive_waits_for_every_word_of_rows),
        cmocka_unit_test(receive_waits_for_every_word_of_words),
        cmocka_unit_test(an_indexed_receive_waits_for_rows_though_it_copies_none),
        cmocka_unit_test(collect_waits_for_every_word_of_rows),
        cmocka_unit_test(collect_waits_for_every_word_of_words),
        cmocka_unit_test(a_view_waits_for_its_rows),
        cmocka_unit_test(old_tags_are_wiped_within_as_many_exchanges_as_slots),
        cmocka_unit_test(tags_in_slots_are_always_young),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
