/* SPDX-License-Identifier: Apache-2.0 */
/* lint_hints.h - included before every file that clang-tidy reads: what it cannot see by itself. */
#ifndef AFD_LINT_HINTS_H
#define AFD_LINT_HINTS_H

#include "error.h"

/* The result is the code, so a caller that was given it did fail. */
#define afd_error_set(code, ...) (afd_error_set((code), __VA_ARGS__), (code))

#endif
