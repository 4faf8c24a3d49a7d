/* SPDX-License-Identifier: Apache-2.0 */
/*
 * route.h - the routes of a token: which ids are legal, which FFN ranks they hit, what each is
 * told.
 */
#ifndef AFD_SHARED_ROUTE_H
#define AFD_SHARED_ROUTE_H

#include "shared/layout.h"

#define AFD_ROUTE_NONE 0xffffu /* in a route table: this lane is not for you */
#define AFD_FFN_NONE 0xffffffffu

/* The experts' places: expert e is number local[e] on FFN rank ffn[e]. */
struct afd_placement {
    const uint16_t *ffn;
    const uint16_t *local;
    uint32_t experts;
    uint32_t topk;
};

/* A source's ids, [tokens][topk], 32 or 64 bits wide. */
struct afd_ids {
    const void *ids;
    uint32_t wide; /* 1: int64, 0: int32 */
};

/* Expert e in the even contiguous placement: the first experts % ranks ranks hold one more. */
AFD_FN uint32_t afd_placement_even(uint32_t expert, uint32_t experts, uint32_t ranks)
{
    uint32_t each = experts / ranks;
    uint32_t more = experts % ranks;
    uint32_t in_larger = more * (each + 1);
    if (each == 0 || expert < in_larger)
        return expert / (each + 1);
    return more + (expert - in_larger) / each;
}

/* The id at full width, before any check. */
AFD_FN int64_t afd_id_load(struct afd_ids ids, uint64_t index)
{
    if (ids.wide != 0)
        return ((const int64_t *)ids.ids)[index];
    return ((const int32_t *)ids.ids)[index];
}

/* Checked at full width before anything is derived from it: -1, or 0 .. experts - 1. */
AFD_FN int32_t afd_id_legal(int64_t id, uint32_t experts)
{
    return id >= -1 && id < (int64_t)experts;
}

/* Lane of token t whose id is illegal or stands twice; topk if all are fine. */
AFD_FN uint32_t afd_route_bad_lane(const struct afd_placement *placement, struct afd_ids ids,
                                   uint32_t t)
{
    uint64_t first = (uint64_t)t * placement->topk;
    for (uint32_t lane = 0; lane < placement->topk; lane++) {
        int64_t id = afd_id_load(ids, first + lane);
        if (!afd_id_legal(id, placement->experts))
            return lane;
        if (id < 0)
            continue;
        for (uint32_t other = 0; other < lane; other++)
            if (afd_id_load(ids, first + other) == id)
                return lane;
    }
    return placement->topk;
}

/* FFN rank of lane `lane` of token t, AFD_FFN_NONE for no route. Legal ids only. */
AFD_FN uint32_t afd_route_ffn(const struct afd_placement *placement, struct afd_ids ids, uint32_t t,
                              uint32_t lane)
{
    int64_t id = afd_id_load(ids, (uint64_t)t * placement->topk + lane);
    return id < 0 ? AFD_FFN_NONE : placement->ffn[id];
}

/* What FFN rank f is told of that lane: its local expert number or AFD_ROUTE_NONE. */
AFD_FN uint16_t afd_route_local(const struct afd_placement *placement, struct afd_ids ids,
                                uint32_t t, uint32_t lane, uint32_t f)
{
    int64_t id = afd_id_load(ids, (uint64_t)t * placement->topk + lane);
    if (id < 0 || placement->ffn[id] != f)
        return AFD_ROUTE_NONE;
    return placement->local[id];
}

AFD_FN int32_t afd_route_hits(const struct afd_placement *placement, struct afd_ids ids, uint32_t t,
                              uint32_t f)
{
    for (uint32_t lane = 0; lane < placement->topk; lane++)
        if (afd_route_ffn(placement, ids, t, lane) == f)
            return 1;
    return 0;
}

/* ------------------------------------------------------------------------- sets of FFN ranks */

/* A token's FFN ranks as bits: word f / 64, bit f % 64. */
AFD_FN uint32_t afd_hit_words(uint32_t ffn_ranks)
{
    return (ffn_ranks + 63u) / 64u;
}

AFD_FN uint64_t afd_route_hit_word(const struct afd_placement *placement, struct afd_ids ids,
                                   uint32_t t, uint32_t word)
{
    uint64_t bits = 0;
    for (uint32_t lane = 0; lane < placement->topk; lane++) {
        uint32_t f = afd_route_ffn(placement, ids, t, lane);
        if (f != AFD_FFN_NONE && f / 64u == word)
            bits |= (uint64_t)1 << (f % 64u);
    }
    return bits;
}

/* Region of a source's reply inbox that FFN rank f uses for a token: f itself, or its place
 * among the token's FFN ranks when there are more FFN ranks than regions. `before`: how many of the
 * token's FFN ranks are smaller than f. */
AFD_FN uint32_t afd_reply_region(const struct afd_shape *shape, uint32_t f, uint32_t before)
{
    if (AFD_MUTANT(reply_region_shared))
        return 0;
    return shape->ffn_ranks <= shape->topk ? f : before;
}

/* How many of token t's FFN ranks are smaller than f. */
AFD_FN uint32_t afd_route_hits_before(const struct afd_placement *placement, struct afd_ids ids,
                                      uint32_t t, uint32_t f)
{
    uint32_t count = 0;
    for (uint32_t word = 0; word <= f / 64u; word++) {
        uint64_t bits = afd_route_hit_word(placement, ids, t, word);
        if (word == f / 64u)
            bits &= ((uint64_t)1 << (f % 64u)) - 1;
        count += afd_bits_count(bits);
    }
    return count;
}

#endif
