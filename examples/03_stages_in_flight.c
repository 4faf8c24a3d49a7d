/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 03_stages_in_flight.c - several exchanges in flight: one micro-batch on each stage of a buffer.
 *
 *     Attention: dispatch 0, dispatch 1, dispatch 2, collect 0, collect 1, collect 2, again ...
 *     FFN:       receive 0, reply 0, receive 1, reply 1, receive 2, reply 2, again ...
 *
 * Stages share no word and no memory, so an FFN rank works on one micro-batch while the next one is
 * already on its way. Two Attention and two FFN ranks, all threads of this process.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "afd/afd.h"

enum { TOKENS = 6, HIDDEN = 16, EXPERTS = 5, TOPK = 2, STAGES = 3, ROUNDS = 40, WORLD = 4 };

static const uint8_t roles[WORLD] = {AFD_ROLE_FFN, AFD_ROLE_FFN, AFD_ROLE_ATTENTION,
                                     AFD_ROLE_ATTENTION};
static uint32_t rank_of[WORLD] = {0, 1, 2, 3};
static struct afd_hub *hub;
static uint32_t wrong[WORLD]; /* by rank */

static void check(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, afd_last_error(), afd_error_name(rc));
    exit(1);
}

static void join(uint32_t rank, struct afd_group **group, struct afd_buffer **buffer)
{
    struct afd_group_config group_config;
    struct afd_buffer_config config;
    afd_group_config_init(&group_config);
    group_config.rank = rank;
    group_config.world = WORLD;
    group_config.roles = roles;
    group_config.bootstrap = AFD_BOOTSTRAP_HUB;
    group_config.hub = hub;
    check(afd_group_create(&group_config, group), "group");
    afd_buffer_config_init(&config);
    config.capacity = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.stages = STAGES;
    check(afd_buffer_create(*group, &config, buffer), "buffer");
}

static void leave(struct afd_group *group, struct afd_buffer *buffer)
{
    check(afd_buffer_close(buffer), "close");
    check(afd_group_destroy(group), "destroy");
}

/* BF16 doubling: one more in the exponent. */
static uint16_t twice(uint16_t x)
{
    return (uint16_t)(x + 0x80);
}

/* A value that says where it belongs. */
static uint16_t value(uint32_t rank, uint32_t round, uint32_t stage, uint32_t i)
{
    return (uint16_t)(0x3f80 + (rank * 29 + round * 7 + stage * 41 + i) % 128);
}

static void *ffn_rank(void *context)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    uint16_t answers[2 * TOKENS * TOPK * HIDDEN];
    join(*(const uint32_t *)context, &group, &buffer);
    for (uint32_t exchange = 0; exchange < ROUNDS * STAGES; exchange++) {
        uint32_t stage = exchange % STAGES;
        struct afd_batch batch;
        afd_batch_init(&batch); /* every time: some fields are in- and outputs */
        check(afd_receive(buffer, stage, &batch, NULL), "receive");
        for (uint32_t i = 0; i < batch.row_count * HIDDEN; i++)
            answers[i] = twice(((const uint16_t *)batch.rows)[i]);
        check(afd_reply(buffer, stage, answers, 0, NULL), "reply");
    }
    leave(group, buffer);
    return NULL;
}

static void dispatch(struct afd_buffer *buffer, uint32_t rank, uint32_t round, uint32_t stage)
{
    struct afd_tokens tokens = {0};
    uint16_t x[TOKENS * HIDDEN];
    int64_t ids[TOKENS * TOPK];
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = value(rank, round, stage, i);
    for (uint32_t t = 0; t < TOKENS; t++) { /* two different experts */
        ids[t * TOPK] = (int64_t)((t + round + stage) % EXPERTS);
        ids[t * TOPK + 1] = (int64_t)((t + round + stage + 1 + t % 3) % EXPERTS);
    }
    tokens.count = TOKENS;
    tokens.x = x;
    tokens.ids = ids;
    check(afd_dispatch(buffer, stage, &tokens, NULL), "dispatch"); /* x and ids are free again */
}

static void collect(struct afd_buffer *buffer, uint32_t rank, uint32_t round, uint32_t stage)
{
    struct afd_output output;
    uint16_t y[TOKENS * HIDDEN];
    afd_output_init(&output);
    output.rows = y;
    check(afd_collect(buffer, stage, &output, NULL), "collect");
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++) /* two experts double it: four times the token */
        wrong[rank] += y[i] != twice(twice(value(rank, round, stage, i)));
}

static void *attention_rank(void *context)
{
    const uint32_t rank = *(const uint32_t *)context;
    struct afd_group *group;
    struct afd_buffer *buffer;
    join(rank, &group, &buffer);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t stage = 0; stage < STAGES; stage++)
            dispatch(buffer, rank, round, stage);
        for (uint32_t stage = 0; stage < STAGES; stage++)
            collect(buffer, rank, round, stage);
    }
    leave(group, buffer);
    return NULL;
}

int main(void)
{
    pthread_t thread[WORLD];
    uint32_t sum = 0;
    check(afd_hub_create(WORLD, &hub), "hub");
    for (uint32_t r = 0; r < WORLD; r++)
        if (pthread_create(&thread[r], NULL, roles[r] == AFD_ROLE_FFN ? ffn_rank : attention_rank,
                           &rank_of[r]) != 0)
            return 1;
    for (uint32_t r = 0; r < WORLD; r++) {
        pthread_join(thread[r], NULL);
        sum += wrong[r];
    }
    afd_hub_destroy(hub);
    printf("%d exchanges, %d in flight at a time, %u wrong values\n", ROUNDS * STAGES, STAGES, sum);
    return sum != 0;
}
