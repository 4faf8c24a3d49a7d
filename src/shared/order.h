/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.h - every access to memory that another rank, or another block, can see.
 *
 * Three kinds of access exist, and each call names its partner in a comment:
 *
 *   - a 64-bit WORD is released (or added to) by one rank and acquired by another: what the
 *     writer's block did before its release is visible after the acquire. The writer's block calls
 *     afd_block_sync() first, so that one thread's release covers all of them.
 *
 *   - a self-validating LL WORD carries 12 bytes and a 32-bit tag in one single-copy-atomic access:
 *     a valid tag vouches for its own 12 bytes and for nothing else.
 *
 *   - ROWS are plain bytes, ordered by a word.
 *
 * On a GPU an LL word is ld/st.relaxed.sys.b128 (a v4.b32 access is not one atomic access). A CPU
 * has no portable 16-byte atomic load: it stores the low half, then releases the half with the tag,
 * and reads in the other order; as the tag's half is acquired, the low half is the one stored with
 * it.
 */
#ifndef AFD_SHARED_ORDER_H
#define AFD_SHARED_ORDER_H

#include "shared/lane.h"

/* ---------------------------------------------------------------------------------------- words */

AFD_FN uint64_t afd_word_acquire(const uint64_t *word)
{
#if defined(__CUDA_ARCH__)
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#elif AFD_ON_SIM
    return afd_sim_word_acquire(word);
#else
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

AFD_FN void afd_word_release(uint64_t *word, uint64_t value)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#elif AFD_ON_SIM
    afd_sim_word_release(word, value);
#else
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

/* Adds; returns the value before. Orders like a release (and, for the caller, like an acquire). */
AFD_FN uint64_t afd_word_add(uint64_t *word, uint64_t add)
{
#if defined(__CUDA_ARCH__)
    uint64_t before;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(word), "l"(add)
                 : "memory");
    return before;
#elif AFD_ON_SIM
    return afd_sim_word_add(word, add);
#else
    return __atomic_fetch_add(word, add, __ATOMIC_ACQ_REL);
#endif
}

/* A word that is its own message: nothing else is ordered by it. */
AFD_FN void afd_word_store(uint64_t *word, uint64_t value)
{
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#elif AFD_ON_SIM
    afd_sim_word_release(word, value);
#else
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
#endif
}

AFD_FN uint64_t afd_word_load(const uint64_t *word)
{
#if defined(__CUDA_ARCH__)
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
#elif AFD_ON_SIM
    return afd_sim_word_acquire(word);
#else
    return __atomic_load_n(word, __ATOMIC_RELAXED);
#endif
}

/* ------------------------------------------------------------------------------------- LL words */

#define AFD_LL_BYTES 16u   /* of memory */
#define AFD_LL_PAYLOAD 12u /* bytes of data in it */

struct afd_ll {
    uint32_t data[3];
    uint32_t tag;
};
AFD_STATIC_ASSERT(sizeof(struct afd_ll) == AFD_LL_BYTES, "an LL word is 16 bytes");

/* `place` is 16-byte aligned. Pairs with afd_ll_load(). */
AFD_FN void afd_ll_store(uint64_t *place, struct afd_ll word)
{
    uint64_t low = word.data[0] | (uint64_t)word.data[1] << 32;
    uint64_t high = word.data[2] | (uint64_t)word.tag << 32;
#if defined(__CUDA_ARCH__)
    asm volatile(
        "{ .reg .b128 w; mov.b128 w, {%1, %2}; st.relaxed.sys.global.b128 [%0], w; }" ::"l"(place),
        "l"(low), "l"(high)
        : "memory");
#elif AFD_ON_SIM
    afd_sim_ll_store(place, low, high);
#else
    __atomic_store_n(&place[0], low, __ATOMIC_RELAXED);
    __atomic_store_n(&place[1], high, __ATOMIC_RELEASE);
#endif
}

/* Pairs with afd_ll_store(): if the tag is the one waited for, the data came with it. */
AFD_FN struct afd_ll afd_ll_load(const uint64_t *place)
{
    struct afd_ll word;
    uint64_t low, high;
#if defined(__CUDA_ARCH__)
    asm volatile("{ .reg .b128 w; ld.relaxed.sys.global.b128 w, [%2]; mov.b128 {%0, %1}, w; }"
                 : "=l"(low), "=l"(high)
                 : "l"(place)
                 : "memory");
#elif AFD_ON_SIM
    afd_sim_ll_load(place, &low, &high);
#else
    high = __atomic_load_n(&place[1], __ATOMIC_ACQUIRE);
    low = __atomic_load_n(&place[0], __ATOMIC_RELAXED);
#endif
    word.data[0] = (uint32_t)low;
    word.data[1] = (uint32_t)(low >> 32);
    word.data[2] = (uint32_t)high;
    word.tag = (uint32_t)(high >> 32);
    return word;
}

/* ------------------------------------------------------------------------------- words to ranks */

/* The same, to a rank's window: counted. */
AFD_FN void afd_peer_release(struct afd_lane lane, uint64_t *word, uint64_t value)
{
    afd_traffic_count(lane, 1, 0, 0, 0);
    afd_word_release(word, value);
}

AFD_FN void afd_peer_add(struct afd_lane lane, uint64_t *word, uint64_t add)
{
    afd_traffic_count(lane, 1, 0, 0, 0);
    (void)afd_word_add(word, add);
}

AFD_FN void afd_peer_store(struct afd_lane lane, uint64_t *word, uint64_t value)
{
    afd_traffic_count(lane, 1, 0, 0, 0);
    afd_word_store(word, value);
}

AFD_FN void afd_peer_ll(struct afd_lane lane, uint64_t *place, struct afd_ll word)
{
    afd_traffic_count(lane, 1, 0, 0, 0);
    afd_ll_store(place, word);
}

/* ---------------------------------------------------------------------------------- plain items */

/* Single items of a window's tables: plain accesses, ordered by the word that certifies the
 * table. */
AFD_FN void afd_item_put_u16(uint16_t *place, uint16_t value)
{
#if AFD_ON_SIM
    afd_sim_store(place, &value, sizeof(value));
#else
    *place = value;
#endif
}

AFD_FN uint16_t afd_item_get_u16(const uint16_t *place)
{
#if AFD_ON_SIM
    uint16_t value;
    afd_sim_load(&value, place, sizeof(value));
    return value;
#else
    return *place;
#endif
}

AFD_FN uint32_t afd_item_get_u32(const uint32_t *place)
{
#if AFD_ON_SIM
    uint32_t value;
    afd_sim_load(&value, place, sizeof(value));
    return value;
#else
    return *place;
#endif
}

AFD_FN float afd_item_get_f32(const float *place)
{
#if AFD_ON_SIM
    float value;
    afd_sim_load(&value, place, sizeof(value));
    return value;
#else
    return *place;
#endif
}

AFD_FN uint8_t afd_item_get_u8(const uint8_t *place)
{
#if AFD_ON_SIM
    uint8_t value;
    afd_sim_load(&value, place, sizeof(value));
    return value;
#else
    return *place;
#endif
}

/* ---------------------------------------------------------------------------------------- waits */

/* Claims the rank's trouble record; the first one stays. Callers then leave their step. */
AFD_FN void afd_trouble_report(struct afd_lane lane, int32_t code, uint32_t rank,
                               struct afd_wait wait, uint64_t seen)
{
    struct afd_trouble *trouble = lane.exec->trouble;
#if defined(__CUDA_ARCH__)
    if (atomicCAS(&trouble->taken, 0u, 1u) != 0u)
        return;
#else
    if (__atomic_exchange_n(&trouble->taken, 1u, __ATOMIC_ACQ_REL) != 0)
        return;
#endif
    trouble->code = code;
    trouble->rank = rank;
    trouble->kind = wait.kind;
    trouble->peer = wait.peer;
    trouble->block = lane.block;
    trouble->expected = wait.expected;
    trouble->seen = seen;
#if defined(__CUDA_ARCH__)
    __threadfence_system();
    *(volatile uint32_t *)&trouble->ready = 1u;
#else
    __atomic_store_n(&trouble->ready, 1u, __ATOMIC_RELEASE);
#endif
}

AFD_FN int32_t afd_trouble_seen(struct afd_lane lane)
{
#if defined(__CUDA_ARCH__)
    return *(volatile uint32_t *)&lane.exec->trouble->taken != 0u;
#else
    return __atomic_load_n(&lane.exec->trouble->taken, __ATOMIC_ACQUIRE) != 0;
#endif
}

#if defined(__CUDA_ARCH__)
AFD_FN uint64_t afd_device_clock_ns(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    return now;
}
#endif

#define AFD_DEVICE_LOOKS_PER_CHECK 256u
#define AFD_CODE_PEER (-8)    /* AFD_EPEER, checked against afd.h in buffer.c */
#define AFD_CODE_ABORTED (-9) /* AFD_EABORTED */

/* One unsatisfied look of a wait. `start` is the wait's own, 0 at first. Nonzero: look again. */
AFD_FN int32_t afd_wait_pause(const struct afd_lane *lane, const struct afd_wait *wait,
                              uint64_t seen, uint64_t round, uint64_t *start)
{
#if defined(__CUDA_ARCH__)
    uint64_t now;
    if (round % AFD_DEVICE_LOOKS_PER_CHECK != AFD_DEVICE_LOOKS_PER_CHECK - 1)
        return 1;
    now = afd_device_clock_ns();
    if (*start == 0)
        *start = now;
    if (afd_trouble_seen(*lane))
        return 0;
    if (*(volatile const uint32_t *)lane->exec->abort_word != 0)
        afd_trouble_report(*lane, AFD_CODE_ABORTED, wait->peer, *wait, seen);
    else if (now - *start > lane->exec->deadline_ns)
        afd_trouble_report(*lane, AFD_CODE_PEER, wait->peer, *wait, seen);
    else
        return 1;
    return 0;
#else
    (void)start;
    return lane->exec->pause(lane, wait, seen, round);
#endif
}

/* Counts a wait for a word of a rank. */
AFD_FN void afd_wait_count(struct afd_lane lane, struct afd_wait wait)
{
    afd_traffic_count(lane, 0, wait.peer != AFD_WAIT_OWN_BLOCKS, 0, 0);
}

/* Waits until *word >= wait.expected, and acquires it; *seen_out is what it then was. Returns 0
 * if the step must be left instead. Each thread waits for itself; afd_block_all() joins a block. */
AFD_FN int32_t afd_wait_word_seen(struct afd_lane lane, const uint64_t *word, struct afd_wait wait,
                                  uint64_t *seen_out)
{
    uint64_t start = 0;
    afd_wait_count(lane, wait);
    for (uint64_t round = 0;; round++) {
        *seen_out = afd_word_acquire(word);
        if (*seen_out >= wait.expected)
            return 1;
        if (!afd_wait_pause(&lane, &wait, *seen_out, round, &start))
            return 0;
    }
}

AFD_FN int32_t afd_wait_word(struct afd_lane lane, const uint64_t *word, struct afd_wait wait)
{
    uint64_t seen;
    return afd_wait_word_seen(lane, word, wait, &seen);
}

/* Waits until a word that is its own message is not 0; acquires nothing. 0: leave the step. */
AFD_FN int32_t afd_wait_value(struct afd_lane lane, const uint64_t *word, struct afd_wait wait,
                              uint64_t *value_out)
{
    uint64_t start = 0;
    afd_wait_count(lane, wait);
    for (uint64_t round = 0;; round++) {
        *value_out = afd_word_load(word);
        if (*value_out != 0)
            return 1;
        if (!afd_wait_pause(&lane, &wait, 0, round, &start))
            return 0;
    }
}

/* Waits until the LL word at `place` has `tag`; its data is then in *word_out. 0: leave the
 * step. */
AFD_FN int32_t afd_wait_ll(struct afd_lane lane, const uint64_t *place, uint32_t tag,
                           struct afd_wait wait, struct afd_ll *word_out)
{
    uint64_t start = 0;
    afd_wait_count(lane, wait);
    for (uint64_t round = 0;; round++) {
        *word_out = afd_ll_load(place);
        if (word_out->tag == tag)
            return 1;
        if (AFD_MUTANT(stale_header_accepted) && word_out->tag + 1u == tag)
            return 1;
        if (!afd_wait_pause(&lane, &wait, word_out->tag, round, &start))
            return 0;
    }
}

#endif
