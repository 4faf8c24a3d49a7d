/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bootstrap_ranks.h - ranks as threads for the tests of the bootstrap.
 *
 * A thread only records what happened; the test's own thread asserts.
 */
#ifndef AFD_TESTS_BOOTSTRAP_RANKS_H
#define AFD_TESTS_BOOTSTRAP_RANKS_H

#include "bootstrap/bootstrap.h"
#include "bootstrap/deadline.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define RANKS_MAX 8u
#define SIZE_COUNT 7u
/* Far longer than any test takes: who waits that long fails the test by the time it took. */
#define PATIENT_US 60000000u
#define SOON_US 20000000u

static const size_t sizes[SIZE_COUNT] = {8, 0, 1, 65536, 3, 0, 4097};

struct rank_run {
    struct afd_group_config config;
    uint32_t delay_ms;  /* before it opens */
    uint32_t rounds;    /* allgathers, through `sizes` */
    size_t extra_bytes; /* added to the size of the last round: a mistake */
    uint32_t linger_ms; /* before it closes */
    int code;           /* of the first call that failed */
    char error[512];    /* and its sentence */
    uint32_t done;      /* allgathers that were right */
    bool opened;
    uint32_t rank; /* as the bootstrap says */
    uint32_t world;
    pthread_t thread;
};

static inline void sleep_ms(uint32_t ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};

    nanosleep(&time, NULL);
}

static inline uint8_t byte_of(uint32_t rank, uint32_t round, size_t at)
{
    return (uint8_t)(rank * 31u + round * 7u + at * 13u + (at >> 8) + 1u);
}

static inline bool is_right(const uint8_t *out, uint32_t world, uint32_t round, size_t bytes)
{
    for (uint32_t rank = 0; rank < world; rank++) {
        for (size_t at = 0; at < bytes; at++) {
            if (out[rank * bytes + at] != byte_of(rank, round, at))
                return false;
        }
    }
    return true;
}

/* One allgather of exactly `bytes` on the heap, so that a sanitizer sees the byte behind it. */
static inline int gather_once(struct afd_bootstrap *bootstrap, uint32_t round, size_t bytes)
{
    uint8_t *in = malloc(bytes + 1);
    uint8_t *out = malloc(bootstrap->world * bytes + 1);
    int code = 1;

    if (in && out) {
        for (size_t at = 0; at < bytes; at++)
            in[at] = byte_of(bootstrap->rank, round, at);
        memset(out, 0xee, bootstrap->world * bytes + 1);
        code = bootstrap->ops->allgather(bootstrap, in, out, bytes);
        if (code == 0 && (!is_right(out, bootstrap->world, round, bytes) ||
                          out[bootstrap->world * bytes] != 0xee))
            code = 2;
    }
    free(in);
    free(out);
    return code;
}

static inline void rank_note(struct rank_run *run, int code)
{
    run->code = code;
    snprintf(run->error, sizeof(run->error), "%s", code ? afd_last_error() : "");
}

static inline void *rank_main(void *argument)
{
    struct rank_run *run = argument;
    struct afd_bootstrap *bootstrap;

    sleep_ms(run->delay_ms);
    rank_note(run, afd_bootstrap_open(&run->config, &bootstrap));
    if (run->code)
        return NULL;
    run->opened = true;
    run->rank = bootstrap->rank;
    run->world = bootstrap->world;
    for (uint32_t round = 0; round < run->rounds && !run->code; round++) {
        size_t bytes = sizes[round % SIZE_COUNT];

        if (round + 1 == run->rounds)
            bytes += run->extra_bytes;
        rank_note(run, gather_once(bootstrap, round, bytes));
        run->done += run->code ? 0 : 1;
    }
    sleep_ms(run->linger_ms);
    bootstrap->ops->close(bootstrap);
    return NULL;
}

static inline void ranks_start(struct rank_run *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(pthread_create(&runs[i].thread, NULL, rank_main, &runs[i]), 0);
}

static inline void ranks_join(struct rank_run *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(pthread_join(runs[i].thread, NULL), 0);
}

static inline void ranks_run(struct rank_run *runs, uint32_t count)
{
    ranks_start(runs, count);
    ranks_join(runs, count);
}

/* `count` ranks of a world of `count`; a test then spoils what it is about. */
static inline void ranks_init(struct rank_run *runs, uint32_t count, uint32_t bootstrap)
{
    memset(runs, 0, count * sizeof(*runs));
    for (uint32_t rank = 0; rank < count; rank++) {
        runs[rank].config.rank = rank;
        runs[rank].config.world = count;
        runs[rank].config.bootstrap = bootstrap;
        runs[rank].config.listen_fd = -1;
        runs[rank].config.bootstrap_timeout_us = PATIENT_US;
        runs[rank].rounds = SIZE_COUNT;
    }
}

static inline void assert_all_right(const struct rank_run *runs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(runs[i].error, "");
        assert_int_equal(runs[i].code, 0);
        assert_int_equal(runs[i].done, runs[i].rounds);
    }
}

/* The sentence has each of the parts (up to a NULL); if not, the failure shows it. */
static inline void assert_says(const struct rank_run *run, int code, const char *a, const char *b,
                               const char *c)
{
    const char *parts[] = {a, b, c};

    assert_string_equal(afd_error_name(run->code), afd_error_name(code));
    for (size_t i = 0; i < 3 && parts[i]; i++) {
        if (!strstr(run->error, parts[i]))
            fail_msg("rank %u should say \"%s\", said \"%s\"", run->config.rank, parts[i],
                     run->error);
    }
}

#endif
