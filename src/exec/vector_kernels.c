/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vector_kernels.c - the CPU's inner loops, compiled once per vector width (see the Makefile) under
 * the suffix AFD_VECTOR_SUFFIX; vector.c picks one at start-up. Plain loops: the compiler
 * vectorises.
 *
 * Products and sums are rounded separately (-ffp-contract=off), so every width gives the same bits.
 */

#include "exec/vector.h"

#include "shared/quant.h"

#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)

#define CHUNK 1024u /* accumulators: 4 KiB, they stay in the first-level cache */

static void first_term(float *sum, const uint16_t *term, const float *weight, uint32_t n)
{
    if (weight == NULL) {
        for (uint32_t i = 0; i < n; i++)
            sum[i] = afd_bf16_to_f32(term[i]);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        sum[i] = *weight * afd_bf16_to_f32(term[i]);
}

static void next_term(float *restrict sum, const uint16_t *restrict term, const float *weight,
                      uint32_t n)
{
    if (weight == NULL) {
        for (uint32_t i = 0; i < n; i++)
            sum[i] = sum[i] + afd_bf16_to_f32(term[i]);
        return;
    }
    float w = *weight;
    for (uint32_t i = 0; i < n; i++) {
        float product = w * afd_bf16_to_f32(term[i]);
        sum[i] = sum[i] + product;
    }
}

static void round_sum(uint16_t *restrict row_out, const float *restrict sum, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        row_out[i] = afd_f32_to_bf16(sum[i]);
}

/* The sum of one term: itself, but for NaNs. */
static void round_one(uint16_t *restrict row_out, const uint16_t *restrict term, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        row_out[i] = (uint16_t)((term[i] & 0x7fffu) > 0x7f80u ? 0x7fc0u : term[i]);
}

void JOIN(afd_vector_sum, AFD_VECTOR_SUFFIX)(uint16_t *row_out, const uint16_t *const *terms,
                                             const float *weights, uint32_t count, uint32_t n)
{
    float sum[CHUNK];
    if (count == 1 && weights == NULL) {
        round_one(row_out, terms[0], n);
        return;
    }
    for (uint32_t begin = 0; begin < n; begin += CHUNK) {
        uint32_t m = n - begin < CHUNK ? n - begin : CHUNK;
        first_term(sum, terms[0] + begin, weights, m);
        for (uint32_t j = 1; j < count; j++)
            next_term(sum, terms[j] + begin, weights == NULL ? NULL : weights + j, m);
        round_sum(row_out + begin, sum, m);
    }
}
