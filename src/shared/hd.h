/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hd.h - one name for "a function of host and device": what C11, C++17 and CUDA call differently.
 *
 * Everything in src/shared/ and src/steps/ compiles as all three. This file, lane.h and order.h are
 * the only ones there that may ask which compiler it is.
 */
#ifndef AFD_SHARED_HD_H
#define AFD_SHARED_HD_H

#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define AFD_FN static __host__ __device__ __forceinline__
#define AFD_STEP static __device__ __forceinline__
#elif defined(__cplusplus)
#define AFD_FN static inline
#define AFD_STEP static inline
#else
#define AFD_FN static inline __attribute__((unused))
#define AFD_STEP static inline __attribute__((unused))
#endif

/* 1 where device code is generated: for movers whose loop is another one there. */
#if defined(__CUDA_ARCH__)
#define AFD_ON_DEVICE 1
#else
#define AFD_ON_DEVICE 0
#endif

/* 1 where the steps are compiled for the simulator: every access to memory that others see is
 * then a call, and AFD_MUTANT(name) is 1 while that mutant is being hunted (exec/sim/mutants.h). */
#if defined(AFD_SIM)
#define AFD_ON_SIM 1
#include "exec/sim/hooks.h"
#define AFD_TAG_PERIOD afd_sim_tag_period
#else
#define AFD_ON_SIM 0
#define AFD_TAG_PERIOD 0xffffffffu /* epochs after which the tag of an LL word repeats */
#define AFD_MUTANT(name) 0
#endif

/* Alignment of a struct: put it on the first member (a C11 rule). */
#if defined(__cplusplus)
#define AFD_ALIGNAS(n) alignas(n)
#define AFD_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define AFD_ALIGNAS(n) _Alignas(n)
#define AFD_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

AFD_FN uint64_t afd_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

AFD_FN uint32_t afd_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Smallest multiple of `unit` that is >= value; unit >= 1, and the result must fit. */
AFD_FN uint64_t afd_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

AFD_FN uint64_t afd_div_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit;
}

AFD_FN uint32_t afd_bits_count(uint64_t bits)
{
#if defined(__CUDA_ARCH__)
    return (uint32_t)__popcll(bits);
#else
    return (uint32_t)__builtin_popcountll(bits);
#endif
}

/* Index of the lowest bit that is set; bits != 0. */
AFD_FN uint32_t afd_bits_lowest(uint64_t bits)
{
#if defined(__CUDA_ARCH__)
    return (uint32_t)__ffsll((long long)bits) - 1u;
#else
    return (uint32_t)__builtin_ctzll(bits);
#endif
}

#endif
