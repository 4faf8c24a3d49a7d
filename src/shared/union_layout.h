/* SPDX-License-Identifier: Apache-2.0 */
/*
 * union_layout.h - where everything lies in a window of protocol union: the same on every rank.
 *
 *     control (identity, faults)
 *     +-- stage 0 --------------------------------------------------------------+
 *     | barrier   1 word                                                        |
 *     | counts    [R] x (1 + EPR) words: from each rank its rows, then its pairs |
 *     |                                  for each of this rank's experts         |
 *     | inbox     [R][capacity] rows   \  one over the other: the entry barrier  |
 *     | reply     [L][capacity] rows   /  of the phase stands between them       |
 *     +-- stage 1 ... ----------------------------------------------------------+
 *
 *     row of the inbox   payload, scales | k ids, k weights, token, k links (not used in one
 *     domain) row of a reply     hidden BF16     | k unused, k weights (not sent back)
 *
 * R ranks; EPR, the most experts of an FFN rank, is what every rank owns, Attention ranks as
 * dummies; L = min(R, k). doc/protocol-union.md compares this with the record.
 */
#ifndef AFD_SHARED_UNION_LAYOUT_H
#define AFD_SHARED_UNION_LAYOUT_H

#include "shared/layout.h"

struct afd_union_layout {
    uint64_t control_bytes;
    uint64_t stage_stride;
    uint64_t window_bytes;
    uint32_t rank_experts; /* EPR */
    uint32_t reserved;
    /* of stage 0; stage i is i * stage_stride further */
    struct afd_region barrier; /* [1] */
    struct afd_region counts;  /* [R] blocks of words */
    struct afd_region inbox;   /* [R * capacity] rows */
    struct afd_region reply;   /* [L * capacity] rows, from the inbox's first byte */
};

#define AFD_UNION_ROW_ALIGN 32u

/* ------------------------------------------------------------------------------- sizes of a row */

/* Metadata are 32-bit items: k ids, k weights, the token; links follow and are not written. */
AFD_FN uint32_t afd_union_meta_items(const struct afd_shape *shape)
{
    return 2 * shape->topk + 1;
}

AFD_FN uint64_t afd_union_meta_offset(const struct afd_shape *shape)
{
    return afd_round_up(afd_row_scales_offset(shape) + shape->scale_bytes, AFD_UNION_ROW_ALIGN);
}

AFD_FN uint64_t afd_union_row_bytes(const struct afd_shape *shape)
{
    uint64_t meta = ((uint64_t)afd_union_meta_items(shape) + shape->topk) * sizeof(uint32_t);
    return afd_union_meta_offset(shape) + afd_round_up(meta, AFD_UNION_ROW_ALIGN);
}

AFD_FN uint64_t afd_union_reply_row_bytes(const struct afd_shape *shape)
{
    uint64_t meta = 2ull * shape->topk * sizeof(uint32_t);
    return afd_round_up(afd_reply_bytes(shape), AFD_UNION_ROW_ALIGN) +
           afd_round_up(meta, AFD_UNION_ROW_ALIGN);
}

/* A token's replies lie by the rank that sent them, or by lane where ranks outnumber the lanes. */
AFD_FN int32_t afd_union_by_rank(const struct afd_shape *shape)
{
    return shape->world <= shape->topk;
}

AFD_FN uint32_t afd_union_reply_regions(const struct afd_shape *shape)
{
    return afd_min_u32(shape->world, shape->topk);
}

/* ------------------------------------------------------------------------------------ placement */

AFD_FN uint32_t afd_union_count_words(uint32_t rank_experts)
{
    return 1 + rank_experts;
}

AFD_FN struct afd_union_layout afd_union_layout_make(const struct afd_shape *shape,
                                                     uint32_t rank_experts, uint64_t control_bytes)
{
    struct afd_union_layout layout;
    uint64_t cursor = control_bytes;
    uint64_t reply_end;
    uint64_t counts = afd_union_count_words(rank_experts) * sizeof(uint64_t);
    layout.rank_experts = rank_experts;
    layout.reserved = 0;
    layout.barrier = afd_region_place(&cursor, 1, AFD_WORD_STRIDE);
    layout.counts = afd_region_place(&cursor, shape->world, afd_round_up(counts, AFD_WORD_STRIDE));
    cursor = afd_round_up(cursor, AFD_PAGE);
    reply_end = cursor;
    layout.inbox = afd_region_place(&cursor, (uint64_t)shape->world * shape->capacity,
                                    afd_union_row_bytes(shape));
    layout.reply =
        afd_region_place(&reply_end, (uint64_t)afd_union_reply_regions(shape) * shape->capacity,
                         afd_union_reply_row_bytes(shape));
    if (cursor < reply_end)
        cursor = reply_end;
    layout.control_bytes = control_bytes;
    layout.stage_stride = afd_round_up(cursor - control_bytes, AFD_PAGE);
    layout.window_bytes = control_bytes + layout.stage_stride * shape->stages;
    return layout;
}

/* Address of element `index` of `region` on `stage` of the window at `window`. */
AFD_FN uint8_t *afd_union_at(uint8_t *window, const struct afd_union_layout *layout,
                             struct afd_region region, uint32_t stage, uint64_t index)
{
    return window + layout->stage_stride * stage + region.offset + region.stride * index;
}

/* ---------------------------------------------------------------------------------- count words */

/* A count word holds -v-1, so that 0 says "not there yet"; its reader clears it. v of the word
 * for a rank: rows, and what the reader must know of the sender. */
#define AFD_UNION_WEIGHTS ((uint64_t)1 << 32) /* it sends weights */
#define AFD_UNION_TOKENS ((uint64_t)1 << 33)  /* it has tokens, though perhaps none for you */
#define AFD_UNION_FAULT_SHIFT 40u             /* -(fault code), 8 bits */

AFD_FN uint64_t afd_union_count_word(uint64_t value)
{
    return ~value;
}

AFD_FN uint64_t afd_union_count_value(uint64_t word)
{
    return ~word;
}

AFD_FN uint32_t afd_union_rows(uint64_t value)
{
    return (uint32_t)value;
}

AFD_FN int32_t afd_union_fault(uint64_t value)
{
    return -(int32_t)(value >> AFD_UNION_FAULT_SHIFT & 0xffu);
}

#endif
