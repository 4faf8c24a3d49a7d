/* SPDX-License-Identifier: Apache-2.0 */
/* fleet.c - four ranks as processes. */

#include "fleet.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TOKENS = 5, HIDDEN = 64, EXPERTS = 6, TOPK = 2 };

static const uint8_t roles[FLEET_RANKS] = {AFD_ROLE_FFN, AFD_ROLE_FFN, AFD_ROLE_ATTENTION,
                                           AFD_ROLE_ATTENTION};
static struct fleet_outcome *outcome;
uint32_t fleet_protocol = AFD_PROTOCOL_AUTO;

struct self {
    uint32_t rank;
    uint32_t exchanges;
    fleet_hook hook;
    struct afd_group *group;
    struct afd_buffer *buffer;
    char rendezvous[32];
    int listener;
};

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static int count_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    while (dir != NULL && readdir(dir) != NULL)
        count++;
    if (dir != NULL)
        closedir(dir);
    return count;
}

struct fleet_outcome *fleet_outcomes(void)
{
    if (outcome == NULL) {
        void *shared = mmap(NULL, FLEET_RANKS * sizeof(*outcome), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        outcome = shared == MAP_FAILED ? NULL : shared;
    }
    return outcome;
}

uint32_t fleet_role(uint32_t rank)
{
    return roles[rank];
}

/* ---------------------------------------------------------------------------------------- ranks */

static void before(struct self *self, uint32_t phase, uint32_t n)
{
    if (self->hook != NULL)
        self->hook(self->rank, phase, n, self->group, self->buffer);
}

/* Keeps what the first failing call said. */
static void after(struct self *self, int rc, double begin_ms)
{
    struct fleet_outcome *o = &outcome[self->rank];
    if (rc == 0 || o->rc != 0)
        return;
    o->rc = rc;
    o->waited_ms = now_ms() - begin_ms;
    snprintf(o->sentence, sizeof(o->sentence), "%s", afd_last_error());
}

/* Each token goes to one expert of each FFN rank, which return it as it came: x + x. */
static void attention(struct self *self, uint32_t n)
{
    static uint16_t x[TOKENS * HIDDEN];
    static uint16_t y[TOKENS * HIDDEN];
    static int64_t ids[TOKENS * TOPK];
    struct afd_tokens tokens;
    struct afd_output output;
    double begin;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (uint16_t)(0x3f80 + n % 64);
    for (int i = 0; i < TOKENS * TOPK; i++)
        ids[i] = i % TOPK * (EXPERTS / 2) + i / TOPK % (EXPERTS / 2);
    memset(&tokens, 0, sizeof(tokens));
    tokens.count = TOKENS;
    tokens.x = x;
    tokens.ids = ids;
    before(self, AFD_PHASE_DISPATCH, n);
    begin = now_ms();
    after(self, afd_dispatch(self->buffer, 0, &tokens, NULL), begin);
    if (outcome[self->rank].rc != 0)
        return;
    memset(y, 0x11, sizeof(y));
    afd_output_init(&output);
    output.rows = y;
    before(self, AFD_PHASE_COLLECT, n);
    begin = now_ms();
    after(self, afd_collect(self->buffer, 0, &output, NULL), begin);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        outcome[self->rank].stale +=
            y[i] != x[i] + 0x80 && (outcome[self->rank].rc == 0 || y[i] != 0x7fc0);
}

static void ffn(struct self *self, uint32_t n)
{
    struct afd_batch batch;
    double begin;
    afd_batch_init(&batch);
    before(self, AFD_PHASE_RECEIVE, n);
    begin = now_ms();
    after(self, afd_receive(self->buffer, 0, &batch, NULL), begin);
    if (outcome[self->rank].rc != 0)
        return;
    before(self, AFD_PHASE_REPLY, n);
    begin = now_ms();
    after(self, afd_reply(self->buffer, 0, batch.rows, 0, NULL), begin);
}

static int create(struct self *self)
{
    struct afd_group_config g;
    struct afd_buffer_config c;
    int rc;
    afd_group_config_init(&g);
    g.rank = self->rank;
    g.world = FLEET_RANKS;
    g.roles = roles;
    g.rendezvous = self->rendezvous;
    g.listen_fd = self->rank == 0 ? self->listener : -1;
    g.deadline_us = FLEET_DEADLINE_MS * 1000;
    g.bootstrap_timeout_us = 2000000;
    afd_buffer_config_init(&c);
    c.capacity = 8;
    c.hidden = HIDDEN;
    c.experts = EXPERTS;
    c.topk = TOPK;
    c.protocol = fleet_protocol;
    rc = afd_group_create(&g, &self->group);
    return rc != 0 ? rc : afd_buffer_create(self->group, &c, &self->buffer);
}

static void live(struct self *self)
{
    struct fleet_outcome *o = &outcome[self->rank];
    int descriptors = count_descriptors() - 1; /* the listener goes */
    double begin = now_ms();
    if (self->rank != 0)
        close(self->listener);
    after(self, create(self), begin);
    for (uint32_t n = 1; n <= self->exchanges && o->rc == 0; n++) {
        if (roles[self->rank] == AFD_ROLE_FFN)
            ffn(self, n);
        else
            attention(self, n);
        o->exchanges += o->rc == 0;
    }
    if (o->rc != 0 && self->buffer != NULL && afd_buffer_fault(self->buffer, &o->fault) != 0)
        _exit(7);
    if (afd_buffer_close(self->buffer) != 0 || afd_group_destroy(self->group) != 0)
        _exit(6);
    o->descriptors = count_descriptors() - descriptors;
    _exit(0);
}

/* -------------------------------------------------------------------------------------- running */

static void listen_somewhere(struct self *self)
{
    struct sockaddr_in at;
    socklen_t bytes = sizeof(at);
    memset(&at, 0, sizeof(at));
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    self->listener = socket(AF_INET, SOCK_STREAM, 0);
    if (self->listener < 0 || bind(self->listener, (struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(self->listener, FLEET_RANKS) != 0 ||
        getsockname(self->listener, (struct sockaddr *)&at, &bytes) != 0)
        abort();
    snprintf(self->rendezvous, sizeof(self->rendezvous), "127.0.0.1:%u", ntohs(at.sin_port));
}

void fleet_start(uint32_t exchanges, fleet_hook hook, pid_t pids_out[FLEET_RANKS])
{
    struct self self;
    memset(&self, 0, sizeof(self));
    self.exchanges = exchanges;
    self.hook = hook;
    listen_somewhere(&self);
    memset(outcome, 0, FLEET_RANKS * sizeof(*outcome));
    fflush(NULL);
    for (uint32_t r = 0; r < FLEET_RANKS; r++) {
        pids_out[r] = fork();
        if (pids_out[r] < 0)
            abort();
        if (pids_out[r] == 0) {
            self.rank = r;
            live(&self);
        }
    }
    close(self.listener);
}

void fleet_wait(const pid_t pids[FLEET_RANKS], int statuses_out[FLEET_RANKS])
{
    for (uint32_t r = 0; r < FLEET_RANKS; r++)
        if (waitpid(pids[r], &statuses_out[r], 0) != pids[r])
            abort();
}
