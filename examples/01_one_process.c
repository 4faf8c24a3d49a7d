/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 01_one_process.c - one exchange between one Attention and one FFN rank, both threads of this
 * process.
 *
 * The expert doubles its rows, so every collected row must be twice the token.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "afd/afd.h"

enum { TOKENS = 4, HIDDEN = 8, EXPERTS = 2, TOPK = 1 };

static const uint8_t roles[2] = {AFD_ROLE_FFN, AFD_ROLE_ATTENTION};
static struct afd_hub *hub;

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
    group_config.world = 2;
    group_config.roles = roles;
    group_config.bootstrap = AFD_BOOTSTRAP_HUB;
    group_config.hub = hub;
    check(afd_group_create(&group_config, group), "group");
    afd_buffer_config_init(&config);
    config.capacity = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
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

static void *ffn_rank(void *unused)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct afd_batch batch;
    uint16_t answers[TOKENS * HIDDEN];
    (void)unused;
    join(0, &group, &buffer);
    afd_batch_init(&batch);
    check(afd_receive(buffer, 0, &batch, NULL), "receive");
    for (uint32_t i = 0; i < batch.row_count * HIDDEN; i++)
        answers[i] = twice(((const uint16_t *)batch.rows)[i]);
    check(afd_reply(buffer, 0, answers, 0, NULL), "reply");
    leave(group, buffer);
    return NULL;
}

static void *attention_rank(void *unused)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct afd_tokens tokens = {0};
    struct afd_output output;
    uint16_t x[TOKENS * HIDDEN];
    uint16_t y[TOKENS * HIDDEN];
    const int64_t ids[TOKENS * TOPK] = {0, 1, 1, 0};
    int wrong = 0;
    (void)unused;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (uint16_t)(0x3f80 + i); /* 1.0, 1.0078125, ... */
    join(1, &group, &buffer);
    tokens.count = TOKENS;
    tokens.x = x;
    tokens.ids = ids;
    check(afd_dispatch(buffer, 0, &tokens, NULL), "dispatch");
    afd_output_init(&output);
    output.rows = y;
    check(afd_collect(buffer, 0, &output, NULL), "collect");
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        wrong += y[i] != twice(x[i]);
    leave(group, buffer);
    printf("%d tokens went to their experts and came back, %d wrong values\n", TOKENS, wrong);
    if (wrong != 0)
        exit(1);
    return NULL;
}

int main(void)
{
    pthread_t thread[2];
    check(afd_hub_create(2, &hub), "hub");
    if (pthread_create(&thread[0], NULL, ffn_rank, NULL) != 0 ||
        pthread_create(&thread[1], NULL, attention_rank, NULL) != 0)
        return 1;
    pthread_join(thread[0], NULL);
    pthread_join(thread[1], NULL);
    afd_hub_destroy(hub);
    return 0;
}
