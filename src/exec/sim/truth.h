/* SPDX-License-Identifier: Apache-2.0 */
/*
 * truth.h - the inputs of a schedule's exchanges and what each must give, by reference.h.
 *
 * Values encode exchange, source, token and element; experts differ from each other and between
 * exchanges. All of it is a pure function of (options, seed).
 */
#ifndef AFD_EXEC_SIM_TRUTH_H
#define AFD_EXEC_SIM_TRUTH_H

#include "exec/sim/sim.h"
#include "reference.h"

struct afd_sim_input {
    uint32_t tokens;
    int64_t *ids;
    float *weights;
    uint8_t *x;
    uint8_t *scales;
    uint16_t *collected; /* [tokens][hidden] */
};

struct afd_sim_exchange {
    struct afd_sim_input *input;       /* [N] */
    struct afd_reference_batch *batch; /* [F] */
    uint16_t **answer;                 /* [F] by row of the batch */
};

struct afd_sim_truth {
    struct afd_reference ref;
    uint32_t *placement;
    struct afd_sim_exchange *exchange; /* [exchanges] */
    uint32_t exchanges;
    uint32_t weighted;
};

int afd_sim_truth_create(const struct afd_sim_options *options, struct afd_sim_truth **truth_out);
void afd_sim_truth_destroy(struct afd_sim_truth *truth);
/* Everything for this seed, in memory that is used again. 0 or AFD_ENOMEM. */
int afd_sim_truth_make(struct afd_sim_truth *truth, const struct afd_sim_options *options,
                       uint64_t seed);

uint64_t afd_sim_mix(uint64_t x);

#endif
