/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_survivors.c - ranks as processes, one of which dies, stays away or leaves: the others end in time,
 * name it, and show nothing that looks valid.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "afd/afd.h"

enum { RANKS = 4, TOKENS = 5, HIDDEN = 64, EXPERTS = 6, TOPK = 2 };
enum { DEADLINE_MS = 1500 };

static const uint8_t roles[RANKS] = {AFD_ROLE_FFN, AFD_ROLE_FFN, AFD_ROLE_ATTENTION,
                                     AFD_ROLE_ATTENTION};

enum misdeed {
    DIE,       /* kill -9 before the call of `phase` */
    STAY_AWAY, /* sleep instead of the call */
    CLOSE,     /* close the buffer instead of the call, and live on */
    ABORT,     /* abort the group instead of the call */
};

struct outcome {
    int rc;
    struct afd_fault fault;
    char sentence[512];
    double waited_ms; /* in the failing call */
    int stale;        /* collected rows that are neither right nor NaN */
    int descriptors;  /* left over after close */
};

static struct outcome *outcome; /* [RANKS], shared */

struct plan {
    uint32_t culprit;
    uint32_t phase; /* enum afd_phase at which the misdeed happens, in exchange 3 */
    enum misdeed misdeed;
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

/* ------------------------------------------------------------------------------------------- ranks */

struct self {
    const struct plan *plan;
    uint32_t rank;
    struct afd_group *group;
    struct afd_buffer *buffer;
};

static void misbehave(struct self *self, uint32_t phase, int exchange)
{
    if (self->rank != self->plan->culprit || phase != self->plan->phase || exchange != 3)
        return;
    if (self->plan->misdeed == DIE)
        raise(SIGKILL);
    if (self->plan->misdeed == STAY_AWAY) {
        struct timespec nap = {DEADLINE_MS / 1000 + 3, 0};
        nanosleep(&nap, NULL);
        _exit(0);
    }
    if (self->plan->misdeed == CLOSE) {
        struct timespec nap = {1, 0};
        _exit(afd_buffer_close(self->buffer) == 0 ? (nanosleep(&nap, NULL), 0) : 9);
    }
    afd_group_abort(self->group);
}

/* Runs `call` and keeps what it said if it failed. */
#define CALL(phase, call)                                                                          \
    do {                                                                                           \
        double begin_;                                                                             \
        misbehave(self, phase, n);                                                                 \
        begin_ = now_ms();                                                                         \
        if (outcome[self->rank].rc == 0) {                                                         \
            outcome[self->rank].rc = (call);                                                       \
            outcome[self->rank].waited_ms = now_ms() - begin_;                                     \
            if (outcome[self->rank].rc != 0)                                                       \
                snprintf(outcome[self->rank].sentence, sizeof(outcome[0].sentence), "%s",          \
                         afd_last_error());                                                        \
        }                                                                                          \
    } while (0)

static void attention(struct self *self, int n)
{
    static uint16_t x[TOKENS * HIDDEN];
    static uint16_t y[TOKENS * HIDDEN];
    static int64_t ids[TOKENS * TOPK];
    struct afd_tokens tokens;
    struct afd_output output;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (uint16_t)(0x3f80 + n);
    for (int i = 0; i < TOKENS * TOPK; i++)
        ids[i] = (i * 3) % EXPERTS; /* one expert on each FFN rank */
    memset(&tokens, 0, sizeof(tokens));
    tokens.count = TOKENS;
    tokens.x = x;
    tokens.ids = ids;
    CALL(AFD_PHASE_DISPATCH, afd_dispatch(self->buffer, 0, &tokens, NULL));
    if (outcome[self->rank].rc != 0)
        return;
    memset(y, 0x11, sizeof(y));
    afd_output_init(&output);
    output.rows = y;
    CALL(AFD_PHASE_COLLECT, afd_collect(self->buffer, 0, &output, NULL));
    for (int i = 0; i < TOKENS * HIDDEN; i++) /* x + x: one more in the exponent; or NaN */
        outcome[self->rank].stale += outcome[self->rank].rc == 0
                                         ? y[i] != x[i] + 0x80
                                         : y[i] != x[i] + 0x80 && y[i] != 0x7fc0;
}

static void ffn(struct self *self, int n)
{
    struct afd_batch batch;
    afd_batch_init(&batch);
    CALL(AFD_PHASE_RECEIVE, afd_receive(self->buffer, 0, &batch, NULL));
    if (outcome[self->rank].rc != 0)
        return;
    CALL(AFD_PHASE_REPLY, afd_reply(self->buffer, 0, batch.rows, 0, NULL));
}

static void live(struct self *self)
{
    struct afd_group_config g;
    struct afd_buffer_config c;
    int before = count_descriptors();
    afd_group_config_init(&g);
    g.rank = self->rank;
    g.world = RANKS;
    g.roles = roles;
    g.rendezvous = self->plan->rendezvous;
    g.listen_fd = self->rank == 0 ? self->plan->listener : -1;
    g.deadline_us = DEADLINE_MS * 1000;
    afd_buffer_config_init(&c);
    c.capacity = 8;
    c.hidden = HIDDEN;
    c.experts = EXPERTS;
    c.topk = TOPK;
    if (self->rank == 0)
        before--; /* the listener goes with the group */
    else
        close(self->plan->listener), before--;
    if (afd_group_create(&g, &self->group) != 0 ||
        afd_buffer_create(self->group, &c, &self->buffer) != 0)
        _exit(8);
    for (int n = 1; n <= 5 && outcome[self->rank].rc == 0; n++) {
        if (roles[self->rank] == AFD_ROLE_FFN)
            ffn(self, n);
        else
            attention(self, n);
    }
    if (outcome[self->rank].rc != 0 &&
        afd_buffer_fault(self->buffer, &outcome[self->rank].fault) != 0)
        _exit(7);
    if (afd_buffer_close(self->buffer) != 0 || afd_group_destroy(self->group) != 0)
        _exit(6);
    outcome[self->rank].descriptors = count_descriptors() - before;
    _exit(0);
}

/* ----------------------------------------------------------------------------------------- running */

static void listen_somewhere(struct plan *plan)
{
    struct sockaddr_in at;
    socklen_t bytes = sizeof(at);
    memset(&at, 0, sizeof(at));
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    plan->listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(plan->listener >= 0);
    assert_int_equal(bind(plan->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(plan->listener, RANKS), 0);
    assert_int_equal(getsockname(plan->listener, (struct sockaddr *)&at, &bytes), 0);
    snprintf(plan->rendezvous, sizeof(plan->rendezvous), "127.0.0.1:%u", ntohs(at.sin_port));
}

static void run(uint32_t culprit, uint32_t phase, enum misdeed misdeed)
{
    struct plan plan = {culprit, phase, misdeed, "", -1};
    pid_t pid[RANKS];
    memset(outcome, 0, RANKS * sizeof(*outcome));
    listen_somewhere(&plan);
    for (uint32_t r = 0; r < RANKS; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            struct self self = {&plan, r, NULL, NULL};
            live(&self);
        }
    }
    close(plan.listener);
    for (uint32_t r = 0; r < RANKS; r++) {
        int status;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        if (r == culprit && misdeed == DIE)
            assert_true(WIFSIGNALED(status));
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("rank %u ended with status 0x%x", r, status);
    }
}

/* Every survivor failed with `code`, naming the culprit, in time; no descriptor is left. */
static void check(uint32_t culprit, uint32_t phase, int code, int is_prompt)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct outcome *o = &outcome[r];
        char name[32];
        if (o->stale != 0)
            fail_msg("rank %u has %d stale values", r, o->stale);
        if (r == culprit)
            continue;
        snprintf(name, sizeof(name), "rank %u", culprit);
        if (o->rc != code || o->fault.rank != culprit || strstr(o->sentence, name) == NULL)
            fail_msg("culprit %u in %s: rank %u got %d, blamed %u: %s", culprit,
                     afd_phase_name(phase), r, o->rc, o->fault.rank, o->sentence);
        if (o->waited_ms > DEADLINE_MS + 1000 || (is_prompt && o->waited_ms > DEADLINE_MS))
            fail_msg("rank %u waited %.0f ms", r, o->waited_ms);
        if (o->descriptors > 0)
            fail_msg("rank %u has %d descriptors left", r, o->descriptors);
    }
}

static const struct {
    uint32_t culprit;
    uint32_t phase;
} moments[] = {
    {0, AFD_PHASE_RECEIVE},  {0, AFD_PHASE_REPLY},    {1, AFD_PHASE_RECEIVE},
    {1, AFD_PHASE_REPLY},    {2, AFD_PHASE_DISPATCH}, {2, AFD_PHASE_COLLECT},
    {3, AFD_PHASE_DISPATCH}, {3, AFD_PHASE_COLLECT},
};
#define MOMENTS (sizeof(moments) / sizeof(moments[0]))

static void killed_rank_is_named_by_every_survivor_at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i++) {
        run(moments[i].culprit, moments[i].phase, DIE);
        check(moments[i].culprit, moments[i].phase, AFD_EPEER, 1);
    }
}

static void rank_that_stays_away_is_named_and_not_the_one_that_waits_for_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i += 2) {
        run(moments[i].culprit, moments[i].phase, STAY_AWAY);
        check(moments[i].culprit, moments[i].phase, AFD_EPEER, 0);
    }
}

static void rank_that_closes_early_is_named_at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i += 3) {
        run(moments[i].culprit, moments[i].phase, CLOSE);
        check(moments[i].culprit, moments[i].phase, AFD_EPEER, 1);
    }
}

static void abort_releases_every_wait_and_names_the_aborter(void **state)
{
    (void)state;
    for (size_t i = 0; i < MOMENTS; i++) {
        run(moments[i].culprit, moments[i].phase, ABORT);
        check(moments[i].culprit, moments[i].phase, AFD_EABORTED, 1);
        assert_int_equal(outcome[moments[i].culprit].rc, AFD_EABORTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_rank_is_named_by_every_survivor_at_once),
        cmocka_unit_test(rank_that_stays_away_is_named_and_not_the_one_that_waits_for_it),
        cmocka_unit_test(rank_that_closes_early_is_named_at_once),
        cmocka_unit_test(abort_releases_every_wait_and_names_the_aborter),
    };
    outcome = mmap(NULL, RANKS * sizeof(*outcome), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcome == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
