/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_silence.c - between create and close the data path allocates nothing, locks nothing and
 * makes no system call. One thread drives all ranks in turn, so that nothing waits; a seccomp
 * filter makes every system call of that thread a SIGSYS, and the allocator and the mutex are
 * counted here.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "afd/afd.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

enum { TOKENS = 6, HIDDEN = 96, EXPERTS = 7, TOPK = 3, EXCHANGES = 50, RANKS = 4 };

static const uint8_t roles[RANKS] = {AFD_ROLE_FFN, AFD_ROLE_ATTENTION, AFD_ROLE_FFN,
                                     AFD_ROLE_ATTENTION};

/* ----------------------------------------------------------------------------------------
 * counting */

static volatile int counting;
static volatile unsigned allocations;
static volatile unsigned locks;

#if !SANITIZED
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

void *malloc(size_t bytes)
{
    allocations += (unsigned)counting;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += (unsigned)counting;
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    allocations += (unsigned)counting;
    return __libc_realloc(old, bytes);
}

void free(void *p)
{
    allocations += (unsigned)counting;
    __libc_free(p);
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*real)(pthread_mutex_t *);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    locks += (unsigned)counting;
    return real(mutex);
}
#endif

/* ---------------------------------------------------------------------------------------- the
 * job */

static struct afd_hub *hub;
static struct afd_group *group[RANKS];
static struct afd_buffer *buffer[RANKS];
static struct afd_buffer_config config;
static uint16_t x[TOKENS * HIDDEN];
static uint16_t y[TOKENS * HIDDEN];
static int64_t ids[TOKENS * TOPK];
static uint16_t answers[2 * TOKENS * TOPK * HIDDEN];

static void *open_rank(void *arg)
{
    uint32_t rank = (uint32_t)(uintptr_t)arg;
    struct afd_group_config g;
    afd_group_config_init(&g);
    g.rank = rank;
    g.world = RANKS;
    g.roles = roles;
    g.bootstrap = AFD_BOOTSTRAP_HUB;
    g.hub = hub;
    if (afd_group_create(&g, &group[rank]) != 0 ||
        afd_buffer_create(group[rank], &config, &buffer[rank]) != 0)
        abort();
    return NULL;
}

static void open_all(void)
{
    pthread_t thread[RANKS];
    if (afd_hub_create(RANKS, &hub) != 0)
        abort();
    for (uintptr_t r = 0; r < RANKS; r++)
        if (pthread_create(&thread[r], NULL, open_rank, (void *)r) != 0)
            abort();
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        x[i] = (uint16_t)(0x3f80 + i % 64);
    for (int i = 0; i < TOKENS * TOPK; i++)
        ids[i] = (i / TOPK * 2 + i % TOPK) % EXPERTS;
}

/* One exchange of all ranks in turn; 0 if every call succeeded. */
static int exchange(void)
{
    int rc = 0;
    for (int r = 0; r < RANKS; r++) {
        struct afd_tokens tokens;
        if (roles[r] != AFD_ROLE_ATTENTION)
            continue;
        memset(&tokens, 0, sizeof(tokens));
        tokens.count = TOKENS;
        tokens.x = x;
        tokens.ids = ids;
        rc |= afd_dispatch(buffer[r], 0, &tokens, NULL);
    }
    for (int r = 0; r < RANKS; r++) {
        struct afd_batch batch;
        if (roles[r] != AFD_ROLE_FFN)
            continue;
        afd_batch_init(&batch);
        rc |= afd_receive(buffer[r], 0, &batch, NULL);
        rc |= afd_reply(buffer[r], 0, answers, 0, NULL);
    }
    for (int r = 0; r < RANKS; r++) {
        struct afd_output output;
        if (roles[r] != AFD_ROLE_ATTENTION)
            continue;
        afd_output_init(&output);
        output.rows = y;
        rc |= afd_collect(buffer[r], 0, &output, NULL);
    }
    return rc;
}

/* ------------------------------------------------------------------------------------------
 * filter */

struct verdict {
    int rc;
    unsigned allocations;
    unsigned locks;
    unsigned calls;
    long first_call;
};
static struct verdict *verdict; /* shared with the parent */

static void on_system_call(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (verdict->calls++ == 0)
        verdict->first_call = info->si_syscall;
}

/* Every call but exit, sigreturn and write raises SIGSYS. */
static int forbid_system_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_system_call;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGSYS, &action, NULL) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0;
}

/* In a child: warms up, forbids, exchanges. `provoke` makes one call, to prove that it is seen. */
static void child(int provoke)
{
    open_all();
    for (int i = 0; i < 3; i++)
        if (exchange() != 0)
            _exit(3);
    if (forbid_system_calls())
        _exit(4);
    counting = 1;
    for (int i = 0; i < EXCHANGES; i++)
        verdict->rc |= exchange();
    if (provoke) {
        free(malloc(1));
        (void)getppid();
    }
    counting = 0;
    verdict->allocations = allocations;
    verdict->locks = locks;
    _exit(0);
}

static void run(int provoke)
{
    int status;
    pid_t pid;
    if (SANITIZED)
        skip(); /* the sanitizers' own calls would be counted */
    memset(verdict, 0, sizeof(*verdict));
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        child(provoke);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(verdict->rc, 0);
}

static void expect_silence(void)
{
    run(0);
    if (verdict->calls != 0)
        fail_msg("%u system calls, the first is number %ld", verdict->calls, verdict->first_call);
    assert_int_equal(verdict->allocations, 0);
    assert_int_equal(verdict->locks, 0);
}

/* -------------------------------------------------------------------------------------------
 * tests */

static int set_up(void **state)
{
    (void)state;
    afd_buffer_config_init(&config);
    config.capacity = 16;
    config.hidden = HIDDEN;
    config.experts = EXPERTS;
    config.topk = TOPK;
    config.words_tokens = 16;
    return 0;
}

static void rows_are_silent(void **state)
{
    (void)state;
    expect_silence();
}

static void words_are_silent(void **state)
{
    (void)state;
    config.variant = config.reply_variant = AFD_VARIANT_WORDS;
    expect_silence();
}

static void indexed_rows_are_silent(void **state)
{
    (void)state;
    config.receive = AFD_RECEIVE_INDEXED;
    expect_silence();
}

static void blocks_as_fibers_are_silent(void **state)
{
    (void)state;
    config.blocks = 7;
    expect_silence();
}

static void a_call_and_an_allocation_would_be_seen(void **state)
{
    (void)state;
    run(1);
    assert_int_equal(verdict->calls, 1);
    assert_int_equal(verdict->first_call, SYS_getppid);
    assert_int_equal(verdict->allocations, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_are_silent, set_up),
        cmocka_unit_test_setup(words_are_silent, set_up),
        cmocka_unit_test_setup(indexed_rows_are_silent, set_up),
        cmocka_unit_test_setup(blocks_as_fibers_are_silent, set_up),
        cmocka_unit_test_setup(a_call_and_an_allocation_would_be_seen, set_up),
    };
    verdict =
        mmap(NULL, sizeof(*verdict), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (verdict == MAP_FAILED)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
