/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank_list.c - a set of ranks as words for an error.
 */
#include "bootstrap/rank_list.h"

#include <stdio.h>

/* Room for the longest range and the longest ending: ", 1000-1001" and " and 1024 more". */
#define ROOM_BYTES 32u

static uint32_t count_from(afd_rank_test *test, const void *context, uint32_t rank, uint32_t world)
{
    uint32_t count = 0;

    for (; rank < world; rank++)
        count += test(context, rank) ? 1u : 0u;
    return count;
}

void afd_rank_list_write(afd_rank_test *test, const void *context, uint32_t world,
                         char text_out[AFD_RANK_LIST_BYTES])
{
    uint32_t count = count_from(test, context, 0, world);
    size_t used = (size_t)snprintf(text_out, AFD_RANK_LIST_BYTES, "%s",
                                   count == 0   ? "no rank"
                                   : count == 1 ? "rank"
                                                : "ranks");
    const char *separator = " ";

    for (uint32_t first = 0; first < world; first++) {
        uint32_t last = first;

        if (!test(context, first))
            continue;
        if (used + ROOM_BYTES > AFD_RANK_LIST_BYTES) {
            snprintf(text_out + used, AFD_RANK_LIST_BYTES - used, " and %u more",
                     count_from(test, context, first, world));
            return;
        }
        while (last + 1 < world && test(context, last + 1))
            last++;
        used +=
            (size_t)snprintf(text_out + used, AFD_RANK_LIST_BYTES - used, "%s%u", separator, first);
        if (last > first)
            used += (size_t)snprintf(text_out + used, AFD_RANK_LIST_BYTES - used, "-%u", last);
        separator = ", ";
        first = last;
    }
}
