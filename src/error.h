/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.h - the calling thread's last error: one sentence, written by whoever first knew the cause.
 */
#ifndef AFD_ERROR_H
#define AFD_ERROR_H

#include "afd/afd.h"

/* Stores the sentence for afd_last_error() and returns `code`, so that a caller can write
 * `return afd_error_set(AFD_EINVAL, "hidden is %u, must be at least 1", hidden);`. Names the values
 * of both sides and the rank that has them. Callers further up pass the code on and do not call it
 * again. Never allocates; a longer text than 511 bytes is cut. */
__attribute__((format(printf, 2, 3))) int afd_error_set(int code, const char *format, ...);

/* A broken invariant of the library itself (never a caller's mistake): on in every build. */
#define AFD_ASSERT(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            afd_assert_failed(#condition, __FILE__, __LINE__);                                     \
    } while (0)
__attribute__((noreturn)) void afd_assert_failed(const char *text, const char *file, int line);

#endif
