/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.h - where everything lies in a rank's window.
 *
 * One window per rank, sized by its role; nothing overlaps. Strides come from the capacity, never
 * from a call's T, so ranks need not agree on T.
 *
 *     FFN rank                                    Attention rank
 *     +-----------------------------------+       +-----------------------------------+
 *     | control (identity, faults)        |       | control                           |
 *     +-- stage 0 ------------------------+       +-- stage 0 ------------------------+
 *     | headers       [N] 4 LL + 1 word   |       | reply headers [F] 1 LL word       |
 *     | credits       [N] 1 word          |       | reply credits [F] 1 word          |
 *     | routes        [N][capacity][k+1]  |       | reply inbox   [R][capacity] rows  |
 *     | weights       [N][capacity][k]    |       | reply words   [R][W] slots        |
 *     | inbox         [N][capacity] rows  |       +-- stage 1 ... --------------------+
 *     | words         [N][W] slots        |
 *     +-- stage 1 ... --------------------+       N sources, F FFN ranks, R = min(F, k),
 *                                                 W = words_tokens
 *
 * Size and address of a region come from the one struct afd_region that places it.
 */
#ifndef AFD_SHARED_LAYOUT_H
#define AFD_SHARED_LAYOUT_H

#include "shared/word.h"

/* What all ranks of a buffer agree on, as numbers. */
struct afd_shape {
    uint32_t sources;   /* N */
    uint32_t ffn_ranks; /* F */
    uint32_t world;
    uint32_t capacity;
    uint32_t topk;
    uint32_t hidden;
    uint32_t stages;
    uint32_t words_tokens;  /* W */
    uint32_t payload_bytes; /* of a row, without padding */
    uint32_t scale_bytes;
    uint32_t experts;
    uint32_t reserved;
};

/* count elements, `stride` bytes apart, from `offset`. */
struct afd_region {
    uint64_t offset;
    uint64_t stride;
    uint64_t count;
};

#define AFD_WORD_STRIDE 64u    /* words of different peers never share a cache line */
#define AFD_HEADER_STRIDE 128u /* 4 LL words, then the routes word on a line of its own */
#define AFD_HEADER_ROUTES_OFFSET 64u
#define AFD_REGION_ALIGN 256u
#define AFD_PAGE 4096u

/* Regions of one stage. An Attention rank leaves the FFN's at count 0, and the other way round. */
struct afd_stage_layout {
    struct afd_region headers;       /* [N] */
    struct afd_region credits;       /* [N] */
    struct afd_region routes;        /* [N] tables */
    struct afd_region weights;       /* [N] tables */
    struct afd_region inbox;         /* [N * capacity] rows */
    struct afd_region words;         /* [N * W] slots */
    struct afd_region reply_headers; /* [F] */
    struct afd_region reply_credits; /* [F] */
    struct afd_region reply_inbox;   /* [R * capacity] rows */
    struct afd_region reply_words;   /* [R * W] slots */
};

struct afd_layout {
    uint64_t control_bytes;
    uint64_t stage_stride;
    uint64_t window_bytes;
    struct afd_stage_layout stage; /* offsets of stage 0; stage i is i * stage_stride further */
};

/* ------------------------------------------------------------------------------- sizes of a row */

AFD_FN uint64_t afd_row_scales_offset(const struct afd_shape *shape)
{
    return afd_round_up(shape->payload_bytes, 16);
}

AFD_FN uint64_t afd_row_bytes(const struct afd_shape *shape)
{
    return afd_row_scales_offset(shape) + afd_round_up(shape->scale_bytes, 16);
}

AFD_FN uint64_t afd_reply_bytes(const struct afd_shape *shape)
{
    return (uint64_t)shape->hidden * 2;
}

AFD_FN uint64_t afd_reply_stride(const struct afd_shape *shape)
{
    return afd_round_up(afd_reply_bytes(shape), 32);
}

/* Reply regions at a source: one per FFN rank, or per position among a token's FFN ranks
 * (ascending) when there are more FFN ranks than routes of a token. */
AFD_FN uint32_t afd_reply_regions(const struct afd_shape *shape)
{
    return afd_min_u32(shape->ffn_ranks, shape->topk);
}

/* A row of the route table: k local expert numbers (AFD_ROUTE_NONE: not here), then the reply
 * region. */
AFD_FN uint32_t afd_route_row_items(const struct afd_shape *shape)
{
    return shape->topk + 1;
}

/* A slot of the words inbox is LL words in this order. */
struct afd_slot_plan {
    uint32_t route_words;
    uint32_t weight_words;
    uint32_t payload_words;
    uint32_t scale_words;
    uint32_t words; /* all of them */
};

AFD_FN struct afd_slot_plan afd_slot_plan(const struct afd_shape *shape)
{
    struct afd_slot_plan plan;
    uint64_t route_bytes = (uint64_t)afd_route_row_items(shape) * sizeof(uint16_t);
    uint64_t weight_bytes = (uint64_t)shape->topk * sizeof(float);
    plan.route_words = (uint32_t)afd_div_up(route_bytes, AFD_LL_PAYLOAD);
    plan.weight_words = (uint32_t)afd_div_up(weight_bytes, AFD_LL_PAYLOAD);
    plan.payload_words = (uint32_t)afd_div_up(shape->payload_bytes, AFD_LL_PAYLOAD);
    plan.scale_words = (uint32_t)afd_div_up(shape->scale_bytes, AFD_LL_PAYLOAD);
    plan.words = plan.route_words + plan.weight_words + plan.payload_words + plan.scale_words;
    return plan;
}

AFD_FN uint32_t afd_reply_slot_words(const struct afd_shape *shape)
{
    return (uint32_t)afd_div_up(afd_reply_bytes(shape), AFD_LL_PAYLOAD);
}

/* ------------------------------------------------------------------------------------ placement */

AFD_FN struct afd_region afd_region_place(uint64_t *cursor, uint64_t count, uint64_t stride)
{
    struct afd_region region;
    region.offset = afd_round_up(*cursor, AFD_REGION_ALIGN);
    region.stride = stride;
    region.count = count;
    *cursor = region.offset + count * stride;
    return region;
}

AFD_FN struct afd_layout afd_layout_finish(struct afd_layout layout, uint64_t control_bytes,
                                           uint64_t stage_end, uint32_t stages)
{
    layout.control_bytes = control_bytes;
    layout.stage_stride = afd_round_up(stage_end - control_bytes, AFD_PAGE);
    layout.window_bytes = control_bytes + layout.stage_stride * stages;
    return layout;
}

/* The window of an FFN rank. control_bytes is a multiple of AFD_PAGE. */
AFD_FN struct afd_layout afd_layout_ffn(const struct afd_shape *shape, uint64_t control_bytes)
{
    struct afd_layout layout = {0,
                                0,
                                0,
                                {{0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0}}};
    uint64_t cursor = control_bytes;
    uint64_t n = shape->sources;
    uint64_t tokens = shape->capacity;
    uint64_t route_table = tokens * afd_route_row_items(shape) * sizeof(uint16_t);
    uint64_t weight_table = tokens * shape->topk * sizeof(float);
    uint64_t slot_bytes = (uint64_t)afd_slot_plan(shape).words * AFD_LL_BYTES;
    layout.stage.headers = afd_region_place(&cursor, n, AFD_HEADER_STRIDE);
    layout.stage.credits = afd_region_place(&cursor, n, AFD_WORD_STRIDE);
    layout.stage.routes = afd_region_place(&cursor, n, afd_round_up(route_table, AFD_WORD_STRIDE));
    if (AFD_MUTANT(regions_overlap))
        cursor = layout.stage.routes.offset;
    layout.stage.weights =
        afd_region_place(&cursor, n, afd_round_up(weight_table, AFD_WORD_STRIDE));
    layout.stage.inbox = afd_region_place(&cursor, n * tokens, afd_row_bytes(shape));
    layout.stage.words = afd_region_place(&cursor, n * shape->words_tokens, slot_bytes);
    return afd_layout_finish(layout, control_bytes, cursor, shape->stages);
}

/* The window of an Attention rank. */
AFD_FN struct afd_layout afd_layout_attention(const struct afd_shape *shape, uint64_t control_bytes)
{
    struct afd_layout layout = {0,
                                0,
                                0,
                                {{0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0},
                                 {0, 0, 0}}};
    uint64_t cursor = control_bytes;
    uint64_t f = shape->ffn_ranks;
    uint64_t regions = afd_reply_regions(shape);
    uint64_t slot_bytes = (uint64_t)afd_reply_slot_words(shape) * AFD_LL_BYTES;
    layout.stage.reply_headers = afd_region_place(&cursor, f, AFD_WORD_STRIDE);
    layout.stage.reply_credits = afd_region_place(&cursor, f, AFD_WORD_STRIDE);
    layout.stage.reply_inbox =
        afd_region_place(&cursor, regions * shape->capacity, afd_reply_stride(shape));
    layout.stage.reply_words = afd_region_place(&cursor, regions * shape->words_tokens, slot_bytes);
    return afd_layout_finish(layout, control_bytes, cursor, shape->stages);
}

/* Address of element `index` of `region` on `stage` of the window at `window`. */
AFD_FN uint8_t *afd_region_at(uint8_t *window, const struct afd_layout *layout,
                              struct afd_region region, uint32_t stage, uint64_t index)
{
    return window + layout->stage_stride * stage + region.offset + region.stride * index;
}

AFD_FN uint64_t *afd_region_word(uint8_t *window, const struct afd_layout *layout,
                                 struct afd_region region, uint32_t stage, uint64_t index)
{
    return (uint64_t *)(void *)afd_region_at(window, layout, region, stage, index);
}

#endif
