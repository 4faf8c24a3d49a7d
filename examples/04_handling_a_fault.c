/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 04_handling_a_fault.c - an FFN rank dies in the middle of an exchange, and the source lives on.
 *
 * The child process is the FFN rank: it answers one exchange, receives the second one, and is gone.
 * The parent's collect returns AFD_EPEER instead of rows. A failed exchange fails the buffer for
 * good, but never the process: look at the fault, close, and start anew with the ranks left.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "afd/afd.h"

enum { TOKENS = 2, HIDDEN = 8, EXPERTS = 2, TOPK = 1, ATTENTION = 0, FFN = 1 };

static const uint8_t roles[2] = {AFD_ROLE_ATTENTION, AFD_ROLE_FFN};

static void check(int rc, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, afd_last_error(), afd_error_name(rc));
    exit(1);
}

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

static void join(uint32_t rank, const char *rendezvous, int listen_fd, struct afd_group **group,
                 struct afd_buffer **buffer)
{
    struct afd_group_config group_config;
    struct afd_buffer_config config;
    afd_group_config_init(&group_config);
    group_config.rank = rank;
    group_config.world = 2;
    group_config.roles = roles;
    group_config.rendezvous = rendezvous;
    group_config.listen_fd = listen_fd;
    group_config.deadline_us = 1000000; /* no wait of an exchange lasts longer than 1 s */
    check(afd_group_create(&group_config, group), "group");
    afd_buffer_config_init(&config);
    config.capacity = TOKENS;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
    check(afd_buffer_create(*group, &config, buffer), "buffer");
}

static void ffn_rank(const char *rendezvous)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct afd_batch batch;
    join(FFN, rendezvous, -1, &group, &buffer);
    afd_batch_init(&batch);
    check(afd_receive(buffer, 0, &batch, NULL), "receive");
    check(afd_reply(buffer, 0, batch.rows, 0, NULL), "reply"); /* what came goes back */
    afd_batch_init(&batch);
    check(afd_receive(buffer, 0, &batch, NULL), "second receive");
    _exit(0); /* dies without a reply, and without closing anything */
}

static int exchange(struct afd_buffer *buffer, uint16_t *y)
{
    static const uint16_t x[TOKENS * HIDDEN] = {0x3f80, 0x4000, 0x4040, 0x4080};
    static const int32_t ids[TOKENS * TOPK] = {0, 1};
    struct afd_tokens tokens = {0};
    struct afd_output output;
    tokens.count = TOKENS;
    tokens.x = x;
    tokens.ids = ids;
    tokens.id_type = AFD_IDS_INT32;
    check(afd_dispatch(buffer, 0, &tokens, NULL), "dispatch");
    afd_output_init(&output);
    output.rows = y;
    return afd_collect(buffer, 0, &output, NULL);
}

static int attention_rank(const char *rendezvous, int listen_fd)
{
    struct afd_group *group;
    struct afd_buffer *buffer;
    struct afd_fault fault;
    uint16_t y[TOKENS * HIDDEN];
    int right;
    int rc;
    join(ATTENTION, rendezvous, listen_fd, &group, &buffer);
    check(exchange(buffer, y), "first exchange");
    rc = exchange(buffer, y);
    if (rc == 0) {
        fprintf(stderr, "the second exchange succeeded, but nobody answered it\n");
        return 1;
    }
    printf("%s: %s\n", afd_error_name(rc), afd_last_error());
    check(afd_buffer_fault(buffer, &fault), "fault");
    printf("rank %u is at fault, rank %u found it in %s, exchange %llu\n", fault.rank,
           fault.reporter, afd_phase_name(fault.phase), (unsigned long long)fault.epoch);
    right = rc == AFD_EPEER && fault.rank == FFN && fault.reporter == ATTENTION &&
            fault.phase == AFD_PHASE_COLLECT && fault.epoch == 2 && y[0] == 0x7fc0; /* NaN */
    check(afd_buffer_close(buffer), "close"); /* needs no live peer */
    check(afd_group_destroy(group), "destroy");
    return !right;
}

int main(void)
{
    char rendezvous[32];
    int listen_fd = listen_on_free_port(rendezvous, sizeof(rendezvous));
    int status = 1;
    int failed;
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        close(listen_fd);
        ffn_rank(rendezvous);
    }
    failed = attention_rank(rendezvous, listen_fd);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 1;
    return failed;
}
