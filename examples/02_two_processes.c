/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 02_two_processes.c - the same exchange between two processes of one host, which meet over TCP.
 *
 *     parent: rank 0, Attention           child: rank 1, FFN
 *     listens on a free port              connects to that port
 *     dispatch, collect, check            receive, double the rows, reply
 *
 * Only create functions use the connection; the rows go through shared memory. In a real job a
 * launcher starts the ranks, and the rendezvous is a host and port that all of them are told.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "afd/afd.h"

enum { TOKENS = 4, HIDDEN = 8, EXPERTS = 3, TOPK = 2 };

static const uint8_t roles[2] = {AFD_ROLE_ATTENTION, AFD_ROLE_FFN};

static void check(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, afd_last_error(), afd_error_name(rc));
    exit(1);
}

/* A socket that listens on a free port of this host, so that no port number has to be agreed on. */
static int listen_on_free_port(char *rendezvous, size_t bytes)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t address_bytes = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        listen(fd, 8) != 0 || getsockname(fd, (struct sockaddr *)&address, &address_bytes) != 0) {
        perror("listening on loopback");
        exit(1);
    }
    snprintf(rendezvous, bytes, "127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
    return fd;
}

/* listen_fd: rank 0's socket, which the group takes over; -1 on other ranks. */
static void join(uint32_t rank, const char *rendezvous, int listen_fd, struct afd_group **group,
                 struct afd_buffer **buffer)
{
    struct afd_group_config group_config;
    struct afd_buffer_config config;
    afd_group_config_init(&group_config); /* TCP is the default */
    group_config.rank = rank;
    group_config.world = 2;
    group_config.roles = roles;
    group_config.rendezvous = rendezvous;
    group_config.listen_fd = listen_fd;
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

static void ffn_rank(const char *rendezvous)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct afd_batch batch;
    uint16_t answers[TOKENS * TOPK * HIDDEN];
    join(1, rendezvous, -1, &group, &buffer);
    afd_batch_init(&batch);
    check(afd_receive(buffer, 0, &batch, NULL), "receive");
    for (uint32_t i = 0; i < batch.row_count * HIDDEN; i++)
        answers[i] = twice(((const uint16_t *)batch.rows)[i]);
    check(afd_reply(buffer, 0, answers, 0, NULL), "reply");
    leave(group, buffer);
}

/* Each token goes to two experts, which both double it: four times the token comes back. */
static int attention_rank(const char *rendezvous, int listen_fd)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct afd_tokens tokens = {0};
    struct afd_output output;
    uint16_t x[TOKENS * HIDDEN];
    uint16_t y[TOKENS * HIDDEN];
    const int64_t ids[TOKENS * TOPK] = {0, 1, 1, 2, 2, 0, 0, 2};
    int wrong = 0;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (uint16_t)(0x3f80 + i); /* 1.0, 1.0078125, ... */
    join(0, rendezvous, listen_fd, &group, &buffer);
    tokens.count = TOKENS;
    tokens.x = x;
    tokens.ids = ids;
    check(afd_dispatch(buffer, 0, &tokens, NULL), "dispatch");
    afd_output_init(&output);
    output.rows = y;
    check(afd_collect(buffer, 0, &output, NULL), "collect");
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        wrong += y[i] != twice(twice(x[i]));
    leave(group, buffer);
    return wrong;
}

int main(void)
{
    char rendezvous[32];
    int listen_fd = listen_on_free_port(rendezvous, sizeof(rendezvous));
    int status = 1;
    int wrong;
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        close(listen_fd);
        ffn_rank(rendezvous);
        return 0;
    }
    wrong = attention_rank(rendezvous, listen_fd);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 1;
    printf("%d tokens went to process %d and came back to process %d, %d wrong values\n", TOKENS,
           (int)child, (int)getpid(), wrong);
    return wrong != 0;
}
