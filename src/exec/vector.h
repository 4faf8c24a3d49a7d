/* SPDX-License-Identifier: Apache-2.0 */
/* vector.h - vector code for this machine, chosen when the library is loaded. */
#ifndef AFD_EXEC_VECTOR_H
#define AFD_EXEC_VECTOR_H

#include "shared/rows.h"

void afd_vector_sum_generic(uint16_t *row_out, const uint16_t *const *terms, const float *weights,
                            uint32_t count, uint32_t n);
#ifdef AFD_VECTOR_X86
void afd_vector_sum_avx2(uint16_t *row_out, const uint16_t *const *terms, const float *weights,
                         uint32_t count, uint32_t n);
void afd_vector_sum_avx512(uint16_t *row_out, const uint16_t *const *terms, const float *weights,
                           uint32_t count, uint32_t n);
#endif

/* "generic", "avx2" or "avx512": what afd_vector_sum is. */
const char *afd_vector_name(void);
/* Chooses by name, for tests. 0, or AFD_EUNSUPPORTED if this machine lacks it. */
int afd_vector_choose(const char *name);

#endif
