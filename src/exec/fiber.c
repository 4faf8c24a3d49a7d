/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fiber.c - fibers on ucontext stacks, switched by _setjmp / _longjmp.
 *
 * swapcontext() saves the signal mask with a system call at every switch; so makecontext() is used
 * once, to get onto a fiber's stack, and jumps do the rest. The sanitizers are told of every
 * switch.
 */

/* The fortified longjmp refuses to jump to another stack, which is the point here. */
#undef _FORTIFY_SOURCE

#include "exec/fiber.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "error.h"

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define FIBER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FIBER_TSAN 1
#endif
#endif

#ifdef FIBER_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef FIBER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define FIBER_STACK_BYTES (128u * 1024u)

struct fiber {
    jmp_buf place;
    ucontext_t start;
    uint8_t *stack; /* with a guard page below */
    int started;    /* it has reached its loop and can be jumped to */
    int done;
#ifdef FIBER_ASAN
    void *fake_stack;
#endif
#ifdef FIBER_TSAN
    void *tsan;
#endif
};

struct afd_fibers {
    struct fiber *fiber;
    uint32_t most;
    uint32_t running; /* fibers of this run that are not done */
    uint32_t current;
    afd_fiber_fn body;
    void *context;
    jmp_buf home;
    ucontext_t home_context;
#ifdef FIBER_ASAN
    void *home_fake_stack;
    const void *home_stack;
    size_t home_bytes;
#endif
#ifdef FIBER_TSAN
    void *home_tsan;
#endif
};

static uint64_t guard_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ------------------------------------------------------------------------------------ switching */

static void to_home(struct afd_fibers *set, struct fiber *f)
{
    if (_setjmp(f->place) != 0)
        goto back;
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&f->fake_stack, set->home_stack, set->home_bytes);
#endif
#ifdef FIBER_TSAN
    __tsan_switch_to_fiber(set->home_tsan, 0);
#endif
    _longjmp(set->home, 1);
back:
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(f->fake_stack, NULL, NULL);
#endif
    return;
}

/* The loop every fiber lives in: one body per run. */
static void fiber_main(unsigned low, unsigned high)
{
    struct afd_fibers *set = (struct afd_fibers *)((uintptr_t)low | (uintptr_t)high << 32);
    struct fiber *f = &set->fiber[set->current];
    uint32_t index = set->current;
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(NULL, &set->home_stack, &set->home_bytes);
#endif
    for (;;) {
        set->body(set->context, index);
        f->done = 1;
        set->running--;
        to_home(set, f);
    }
}

static void to_fiber(struct afd_fibers *set, uint32_t index)
{
    struct fiber *f = &set->fiber[index];
    set->current = index;
    if (_setjmp(set->home) != 0)
        goto back;
#ifdef FIBER_ASAN
    __sanitizer_start_switch_fiber(&set->home_fake_stack, f->stack + guard_bytes(),
                                   FIBER_STACK_BYTES);
#endif
#ifdef FIBER_TSAN
    set->home_tsan = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(f->tsan, 0);
#endif
    if (f->started)
        _longjmp(f->place, 1);
    f->started = 1;
    setcontext(&f->start); /* never returns: the fiber comes back by to_home() */
    AFD_ASSERT(!"setcontext failed");
back:
#ifdef FIBER_ASAN
    __sanitizer_finish_switch_fiber(set->home_fake_stack, NULL, NULL);
#endif
    return;
}

/* --------------------------------------------------------------------------------------- fibers */

static int fiber_create(struct afd_fibers *set, struct fiber *f)
{
    uint64_t bytes = guard_bytes() + FIBER_STACK_BYTES;
    uintptr_t self = (uintptr_t)set;
    void *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return afd_error_set(AFD_ENOMEM, "no memory for a fiber stack of %u bytes",
                             FIBER_STACK_BYTES);
    f->stack = stack;
    (void)mprotect(f->stack, guard_bytes(), PROT_NONE);
    if (getcontext(&f->start) != 0)
        return afd_error_set(AFD_ESYSTEM, "getcontext failed");
    f->start.uc_stack.ss_sp = f->stack + guard_bytes();
    f->start.uc_stack.ss_size = FIBER_STACK_BYTES;
    f->start.uc_link = NULL;
    makecontext(&f->start, (void (*)(void))fiber_main, 2, (unsigned)(self & 0xffffffffu),
                (unsigned)(self >> 32));
#ifdef FIBER_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return 0;
}

int afd_fibers_create(uint32_t most, struct afd_fibers **fibers_out)
{
    struct afd_fibers *set = calloc(1, sizeof(*set));
    if (set != NULL)
        set->fiber = calloc(most, sizeof(*set->fiber));
    if (set == NULL || set->fiber == NULL) {
        free(set);
        return afd_error_set(AFD_ENOMEM, "no memory for %u fibers", most);
    }
    set->most = most;
    *fibers_out = set;
    return 0;
}

void afd_fibers_destroy(struct afd_fibers *fibers)
{
    if (fibers == NULL)
        return;
    for (uint32_t i = 0; i < fibers->most; i++) {
        struct fiber *f = &fibers->fiber[i];
        if (f->stack != NULL)
            munmap(f->stack, guard_bytes() + FIBER_STACK_BYTES);
#ifdef FIBER_TSAN
        if (f->tsan != NULL)
            __tsan_destroy_fiber(f->tsan);
#endif
    }
    free(fibers->fiber);
    free(fibers);
}

int afd_fibers_prepare(struct afd_fibers *fibers, uint32_t count)
{
    AFD_ASSERT(count <= fibers->most);
    for (uint32_t i = 0; i < count; i++) {
        int rc = fibers->fiber[i].stack != NULL ? 0 : fiber_create(fibers, &fibers->fiber[i]);
        if (rc != 0)
            return rc;
    }
    return 0;
}

void afd_fibers_run(struct afd_fibers *fibers, uint32_t count, afd_fiber_fn body, void *context)
{
    AFD_ASSERT(count <= fibers->most && fibers->fiber[count - 1].stack != NULL);
    for (uint32_t i = 0; i < count; i++)
        fibers->fiber[i].done = 0;
    fibers->body = body;
    fibers->context = context;
    fibers->running = count;
    while (fibers->running != 0)
        for (uint32_t i = 0; i < count; i++)
            if (!fibers->fiber[i].done)
                to_fiber(fibers, i);
}

uint32_t afd_fibers_yield(struct afd_fibers *fibers)
{
    to_home(fibers, &fibers->fiber[fibers->current]);
    return fibers->running;
}

void afd_fibers_bind(struct afd_fibers *fibers, afd_fiber_fn body, void *context)
{
    fibers->body = body;
    fibers->context = context;
    fibers->running = 0;
}

void afd_fibers_arm(struct afd_fibers *fibers, uint32_t index)
{
    AFD_ASSERT(index < fibers->most && fibers->fiber[index].stack != NULL);
    fibers->fiber[index].done = 0;
    fibers->running++;
}

int afd_fibers_resume(struct afd_fibers *fibers, uint32_t index)
{
    to_fiber(fibers, index);
    return !fibers->fiber[index].done;
}
