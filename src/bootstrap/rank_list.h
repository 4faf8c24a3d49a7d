/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_list.h - a set of ranks as words for an error: "rank 3", "ranks 1, 4-7".
 */
#ifndef AFD_BOOTSTRAP_RANK_LIST_H
#define AFD_BOOTSTRAP_RANK_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tells whether a rank belongs into the list. */
typedef bool afd_rank_test(const void *context, uint32_t rank);

#define AFD_RANK_LIST_BYTES 160u

/* Writes the ranks of 0 .. world-1 for which `test` holds, as ranges; what does not fit becomes
 * "and N more". */
void afd_rank_list_write(afd_rank_test *test, const void *context, uint32_t world,
                         char text_out[AFD_RANK_LIST_BYTES]);

#endif
