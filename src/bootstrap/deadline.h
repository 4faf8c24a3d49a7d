/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadline.h - points in time of the monotonic clock, in microseconds, that never overflow.
 */
#ifndef AFD_BOOTSTRAP_DEADLINE_H
#define AFD_BOOTSTRAP_DEADLINE_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t afd_deadline_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Capped so that the result also fits into a timespec: 10^15 us are 31 years. */
static inline uint64_t afd_deadline_after(uint64_t timeout_us)
{
    const uint64_t most_us = 1000000000000000u;

    return afd_deadline_now_us() + (timeout_us < most_us ? timeout_us : most_us);
}

static inline uint64_t afd_deadline_min(uint64_t a_us, uint64_t b_us)
{
    return a_us < b_us ? a_us : b_us;
}

/* For poll(): rounded up, so that a poll that returns 0 means that the deadline has passed. */
static inline int afd_deadline_left_ms(uint64_t deadline_us)
{
    uint64_t now_us = afd_deadline_now_us();
    uint64_t left_ms = deadline_us > now_us ? (deadline_us - now_us + 999u) / 1000u : 0u;

    return left_ms < INT_MAX ? (int)left_ms : INT_MAX;
}

static inline double afd_deadline_seconds(uint64_t time_us)
{
    return (double)time_us / 1e6;
}

#endif
