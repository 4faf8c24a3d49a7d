/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lane.h - who runs a step: one thread of one block, and what its executor gives it.
 *
 * A step is called by every thread of every block of a rank. On a CPU a block is one thread (or one
 * fiber), so every collective below is a plain value there; on a GPU a block is a CUDA block and a
 * collective must be called by all of its threads.
 */
#ifndef AFD_SHARED_LANE_H
#define AFD_SHARED_LANE_H

#include "shared/hd.h"

/* What a thread waits for: enough to explain a hang. */
struct afd_wait {
    uint32_t kind; /* enum afd_word_kind */
    uint32_t peer; /* world rank whose word this is, or one of the two below */
    uint64_t expected;
};
#define AFD_WAIT_OWN_BLOCKS 0xffffffffu /* this step's own blocks */
#define AFD_WAIT_ALL_RANKS 0x00fffffeu  /* a word to which every rank adds */

/* A rank's first trouble in a step. `taken` is claimed by compare-and-swap; the winner fills the
 * rest and then releases `ready`. */
struct afd_trouble {
    uint32_t taken;
    uint32_t ready;
    int32_t code;  /* AFD_E* */
    uint32_t rank; /* world rank at fault */
    uint32_t kind; /* enum afd_word_kind, 0 if no wait was involved */
    uint32_t peer; /* whose word that is */
    uint32_t block;
    uint32_t reserved;
    uint64_t expected;
    uint64_t seen;
};

/* What a rank sent and waited for, for tests; host executors only. */
struct afd_traffic {
    uint64_t words; /* synchronisation words written to ranks; an LL word is one */
    uint64_t waits; /* words of ranks waited for */
    uint64_t rows;  /* rows, or parts of a row, written to ranks */
    uint64_t bytes; /* all that is written to ranks but words */
};

struct afd_lane;

/* The executor's side of a step. Host executors set `pause`; a device reads the two words. */
struct afd_exec {
    /* Called when a wait looked and was not satisfied, `round` times before. Returns nonzero to
     * look again, 0 to leave the step (the trouble is then recorded). */
    int32_t (*pause)(const struct afd_lane *lane, const struct afd_wait *wait, uint64_t seen,
                     uint64_t round);
    struct afd_trouble *trouble;
    const uint32_t *abort_word;  /* device: nonzero asks every wait to leave */
    uint64_t deadline_ns;        /* device: longest wait */
    void *owner;                 /* host: the executor's own state */
    struct afd_traffic *traffic; /* host: NULL, or where the primitives count */
};

struct afd_lane {
    uint32_t block;
    uint32_t blocks;
    uint32_t thread;
    uint32_t threads; /* of one block; 1 on a CPU, at most 1,024 */
    struct afd_exec *exec;
};

AFD_FN void afd_traffic_count(struct afd_lane lane, uint32_t words, uint32_t waits, uint32_t rows,
                              uint64_t bytes)
{
#if defined(__CUDA_ARCH__)
    (void)lane;
    (void)words;
    (void)waits;
    (void)rows;
    (void)bytes;
#else
    struct afd_traffic *traffic = lane.exec->traffic;
    if (traffic == 0)
        return;
    traffic->words += words;
    traffic->waits += waits;
    traffic->rows += rows;
    traffic->bytes += bytes;
#endif
}

/* ------------------------------------------------------------------------ collectives of a
 * block */

/* Orders all memory accesses of the block's threads before and after it, among themselves. */
AFD_FN void afd_block_sync(struct afd_lane lane)
{
#if defined(__CUDA_ARCH__)
    (void)lane;
    __syncthreads();
#else
    (void)lane;
#endif
}

/* Nonzero iff `value` is nonzero in every thread of the block; also an afd_block_sync(). */
AFD_FN int32_t afd_block_all(struct afd_lane lane, int32_t value)
{
    (void)lane;
#if defined(__CUDA_ARCH__)
    return __syncthreads_and(value);
#else
    return value;
#endif
}

/* Bitwise or of all threads' values; also an afd_block_sync(). */
AFD_FN uint32_t afd_block_or(struct afd_lane lane, uint32_t value)
{
#if defined(__CUDA_ARCH__)
    __shared__ uint32_t whole;
    __syncthreads();
    if (lane.thread == 0)
        whole = 0;
    __syncthreads();
    value = __reduce_or_sync(0xffffffffu, value);
    if ((lane.thread & 31u) == 0 && value != 0)
        atomicOr(&whole, value);
    __syncthreads();
    return whole;
#else
    (void)lane;
    return value;
#endif
}

/* Sum of `value` over threads before this one; *total_out: over all. Also an afd_block_sync(). */
AFD_FN uint32_t afd_block_scan(struct afd_lane lane, uint32_t value, uint32_t *total_out)
{
#if defined(__CUDA_ARCH__)
    __shared__ uint32_t warp_sum[32];
    uint32_t in_warp = lane.thread & 31u;
    uint32_t warp = lane.thread >> 5;
    uint32_t sum = value;
    uint32_t before = 0;
    uint32_t total = 0;
    for (uint32_t step = 1; step < 32; step <<= 1) {
        uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += in_warp >= step ? other : 0;
    }
    __syncthreads();
    if (in_warp == 31)
        warp_sum[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < lane.threads >> 5; w++) {
        before += w < warp ? warp_sum[w] : 0;
        total += warp_sum[w];
    }
    *total_out = total;
    return before + sum - value;
#else
    (void)lane;
    *total_out = value;
    return 0;
#endif
}

/* Sum over the block; also an afd_block_sync(). */
AFD_FN uint32_t afd_block_sum(struct afd_lane lane, uint32_t value)
{
    uint32_t total;
    (void)afd_block_scan(lane, value, &total);
    return total;
}

#define AFD_KEY_NONE 0xffffffffu

/* Stable ranking: returns cursor[key] + the number of threads before this one with the same key,
 * and advances the cursors past the block. AFD_KEY_NONE takes no place. `cursor` is private to
 * the block and ordered by the afd_block_sync() this also is. A block's calls, in turn, rank a
 * whole sequence: what would otherwise be a serial scan. */
AFD_FN uint32_t afd_block_rank(struct afd_lane lane, uint32_t key, uint32_t *cursor)
{
#if defined(__CUDA_ARCH__)
    uint32_t warp = lane.thread >> 5;
    uint32_t same = __match_any_sync(0xffffffffu, key);
    uint32_t leader = (uint32_t)__ffs((int)same) - 1u;
    uint32_t below = (uint32_t)__popc(same & ((1u << (lane.thread & 31u)) - 1u));
    uint32_t base = 0;
    for (uint32_t w = 0; w < lane.threads >> 5; w++) {
        __syncthreads();
        if (w == warp && key != AFD_KEY_NONE && (lane.thread & 31u) == leader) {
            base = cursor[key];
            cursor[key] = base + (uint32_t)__popc(same);
        }
    }
    __syncthreads();
    return __shfl_sync(0xffffffffu, base, (int)leader) + below;
#else
    (void)lane;
    return key == AFD_KEY_NONE ? 0 : cursor[key]++;
#endif
}

/* Adds to a histogram bin that the threads of one block share. */
AFD_FN void afd_block_count(struct afd_lane lane, uint32_t *bin, uint32_t add)
{
    (void)lane;
#if defined(__CUDA_ARCH__)
    atomicAdd(bin, add);
#else
    *bin += add;
#endif
}

/* -------------------------------------------------------------------- shared by a rank's blocks */

/* Both are atomic among all threads of a rank and order nothing: a gate or the last block's ticket
 * does. The blocks of a host executor share one thread. */

/* Takes the next number: 0, 1, ... */
AFD_FN uint32_t afd_number_take(uint32_t *next)
{
#if defined(__CUDA_ARCH__)
    return atomicAdd(next, 1u);
#else
    return (*next)++;
#endif
}

AFD_FN void afd_bits_set(uint64_t *word, uint64_t bits)
{
#if defined(__CUDA_ARCH__)
    atomicOr((unsigned long long *)word, (unsigned long long)bits);
#else
    *word |= bits;
#endif
}

#endif
