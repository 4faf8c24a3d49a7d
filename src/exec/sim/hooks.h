/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.h - what the primitives of src/shared/ call where steps are compiled for the simulator.
 *
 * The running block is the simulator's own knowledge; addresses outside all windows are plain
 * memory.
 */
#ifndef AFD_EXEC_SIM_HOOKS_H
#define AFD_EXEC_SIM_HOOKS_H

#include <stdint.h>

#include "exec/sim/mutants.h"
#include "shared/hd.h"

/* The mutant that is alive in this thread, AFD_MUTANT_none without one. */
extern _Thread_local uint32_t afd_sim_mutant;
#undef AFD_MUTANT
#define AFD_MUTANT(name) (afd_sim_mutant == AFD_MUTANT_##name)
/* Epochs after which tags repeat: small, so that a wrap is reached. */
extern _Thread_local uint32_t afd_sim_tag_period;

uint64_t afd_sim_word_acquire(const uint64_t *word);
void afd_sim_word_release(uint64_t *word, uint64_t value);
uint64_t afd_sim_word_add(uint64_t *word, uint64_t add);
void afd_sim_ll_store(uint64_t *place, uint64_t low, uint64_t high);
void afd_sim_ll_load(const uint64_t *place, uint64_t *low_out, uint64_t *high_out);
void afd_sim_store(void *place, const void *from, uint64_t bytes);
void afd_sim_load(void *to, const void *place, uint64_t bytes);
void afd_sim_copy(uint8_t *dst, const uint8_t *src, uint64_t bytes);
void afd_sim_rows_sum(uint16_t *row_out, const uint16_t *const *terms, const float *weights,
                      uint32_t count, uint32_t n);

#endif
