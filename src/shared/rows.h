/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.h - the data movers: one primitive per kind of movement, with the copy loop that suits the
 * machine behind it. Steps decide what moves where; movers only move.
 *
 * All of them are called by every thread of a block and share the work; none of them synchronises:
 * the step's afd_block_sync() before a release, or before a read by another thread, does.
 */
#ifndef AFD_SHARED_ROWS_H
#define AFD_SHARED_ROWS_H

#include <string.h>

#include "shared/order.h"
#include "shared/quant.h"

/* Sums `count` rows of n BF16 elements in the given order, each times its weight if weights is not
 * NULL: FP32, the accumulator starts as the first term, one rounding to BF16 (doc/protocol.md,
 * Numerics). count >= 1. Chosen at start-up for the machine's vector width; host executors only. */
typedef void (*afd_vector_sum_fn)(uint16_t *row_out, const uint16_t *const *terms,
                                  const float *weights, uint32_t count, uint32_t n);
#if defined(__cplusplus)
extern "C" {
#endif
extern afd_vector_sum_fn afd_vector_sum;
#if defined(__cplusplus)
}
#endif

/* -------------------------------------------------------------------------------------- copies */

AFD_FN void afd_bytes_copy(struct afd_lane lane, uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
#if AFD_ON_DEVICE
    uint64_t both = (uint64_t)(uintptr_t)dst | (uint64_t)(uintptr_t)src;
    if ((both & 15u) == 0) {
        for (uint64_t i = lane.thread; i < bytes / 16; i += lane.threads)
            ((uint4 *)dst)[i] = ((const uint4 *)src)[i];
        for (uint64_t i = bytes / 16 * 16 + lane.thread; i < bytes; i += lane.threads)
            dst[i] = src[i];
    } else if ((both & 1u) == 0) {
        for (uint64_t i = lane.thread; i < bytes / 2; i += lane.threads)
            ((uint16_t *)dst)[i] = ((const uint16_t *)src)[i];
        if ((bytes & 1u) != 0 && lane.thread == 0)
            dst[bytes - 1] = src[bytes - 1];
    } else {
        for (uint64_t i = lane.thread; i < bytes; i += lane.threads)
            dst[i] = src[i];
    }
#elif AFD_ON_SIM
    (void)lane;
    afd_sim_copy(dst, src, bytes);
#else
    (void)lane;
    memcpy(dst, src, bytes);
#endif
}

/* Into a peer's window; ordered by the word that follows. */
AFD_FN void afd_row_put(struct afd_lane lane, uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    afd_traffic_count(lane, 0, 0, 0, bytes);
    afd_bytes_copy(lane, dst, src, bytes);
}

/* Out of this rank's own window, after the wait that covers it. */
AFD_FN void afd_row_get(struct afd_lane lane, uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    afd_bytes_copy(lane, dst, src, bytes);
}

/* Sets n BF16 elements to `value`. */
AFD_FN void afd_row_fill(struct afd_lane lane, uint8_t *dst, uint16_t value, uint32_t n)
{
#if AFD_ON_SIM
    for (uint32_t i = lane.thread; i < n; i += lane.threads)
        afd_item_put_u16((uint16_t *)(void *)dst + i, value);
#else
    for (uint32_t i = lane.thread; i < n; i += lane.threads)
        memcpy(dst + (uint64_t)i * 2, &value, 2);
#endif
}

AFD_FN void afd_bytes_zero(struct afd_lane lane, uint8_t *dst, uint64_t bytes)
{
#if AFD_ON_DEVICE
    for (uint64_t i = lane.thread; i < bytes; i += lane.threads)
        dst[i] = 0;
#else
    (void)lane;
    memset(dst, 0, bytes);
#endif
}

/* ------------------------------------------------------------------------------------ reduction */

/* afd_vector_sum() by all threads of a block. */
AFD_FN void afd_rows_sum(struct afd_lane lane, uint16_t *row_out, const uint16_t *const *terms,
                         const float *weights, uint32_t count, uint32_t n)
{
#if AFD_ON_DEVICE
    for (uint32_t i = lane.thread; i < n; i += lane.threads) {
        float sum = afd_bf16_to_f32(terms[0][i]);
        if (weights != 0)
            sum = weights[0] * sum;
        for (uint32_t j = 1; j < count; j++) {
            float term = afd_bf16_to_f32(terms[j][i]);
            if (weights != 0)
                term = weights[j] * term;
            sum = sum + term;
        }
        row_out[i] = afd_f32_to_bf16(sum);
    }
#elif AFD_ON_SIM
    (void)lane;
    afd_sim_rows_sum(row_out, terms, weights, count, n);
#else
    (void)lane;
    afd_vector_sum(row_out, terms, weights, count, n);
#endif
}

/* afd_rows_sum() into a peer's window: a row, or a part of one. */
AFD_FN void afd_rows_sum_put(struct afd_lane lane, uint16_t *row_out, const uint16_t *const *terms,
                             const float *weights, uint32_t count, uint32_t n)
{
    afd_traffic_count(lane, 0, 0, 1, (uint64_t)n * 2);
    afd_rows_sum(lane, row_out, terms, weights, count, n);
}

/* ------------------------------------------------------------------------------------- LL words */

/* 12 bytes from src + 12 * index of a row of `bytes` bytes, the rest of the last word zero. */
AFD_FN struct afd_ll afd_ll_pack(const uint8_t *src, uint32_t index, uint64_t bytes, uint32_t tag)
{
    struct afd_ll word;
    uint64_t at = (uint64_t)index * AFD_LL_PAYLOAD;
    uint64_t left = bytes - at;
    const uint8_t *from = src + at;
    word.data[0] = word.data[1] = word.data[2] = 0;
    word.tag = tag;
    if (left >= AFD_LL_PAYLOAD && ((uintptr_t)from & 3u) == 0) {
        const uint32_t *words = (const uint32_t *)(const void *)from;
        word.data[0] = words[0];
        word.data[1] = words[1];
        word.data[2] = words[2];
    } else {
        memcpy(word.data, from, left < AFD_LL_PAYLOAD ? left : AFD_LL_PAYLOAD);
    }
    return word;
}

/* The inverse: the word's bytes to dst + 12 * index, never past `bytes`. */
AFD_FN void afd_ll_unpack(struct afd_ll word, uint8_t *dst, uint32_t index, uint64_t bytes)
{
    uint64_t at = (uint64_t)index * AFD_LL_PAYLOAD;
    uint64_t left = bytes - at;
    uint8_t *to = dst + at;
    if (left >= AFD_LL_PAYLOAD && ((uintptr_t)to & 3u) == 0) {
        uint32_t *words = (uint32_t *)(void *)to;
        words[0] = word.data[0];
        words[1] = word.data[1];
        words[2] = word.data[2];
    } else {
        memcpy(to, word.data, left < AFD_LL_PAYLOAD ? left : AFD_LL_PAYLOAD);
    }
}

/* Two BF16 elements lie in each of a word's three data fields, the lower index in the low half. */
#define AFD_LL_ELEMENTS 6u

AFD_FN uint16_t afd_ll_element(struct afd_ll word, uint32_t i)
{
    return (uint16_t)(word.data[i / 2u] >> (16u * (i % 2u)));
}

AFD_FN void afd_ll_set_element(struct afd_ll *word, uint32_t i, uint16_t value)
{
    uint32_t shift = 16u * (i % 2u);
    word->data[i / 2u] = (word->data[i / 2u] & ~(0xffffu << shift)) | (uint32_t)value << shift;
}

/* Wipes the tag of a consumed LL word of this rank's own window. */
AFD_FN void afd_ll_wipe(uint64_t *place)
{
    struct afd_ll word;
    word.data[0] = word.data[1] = word.data[2] = word.tag = 0;
    afd_ll_store(place, word);
}

#endif
