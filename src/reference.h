/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.h - the bit-exact model of an exchange: what every executor must produce.
 *
 * Written for reading, not for speed, and without anything of src/shared/, so that a mistake there
 * does not repeat here. Numerics are those of doc/protocol.md, "Numerics": each stage sums in FP32
 * in ascending order of expert / FFN rank, the accumulator starts as the first term, bias rows come
 * first, one rounding to BF16 at the end, NaN rounds to 0x7FC0.
 */
#ifndef AFD_REFERENCE_H
#define AFD_REFERENCE_H

#include "afd/afd.h"

/* The shape of a job. */
struct afd_reference {
    uint32_t sources;   /* N */
    uint32_t ffn_ranks; /* F */
    uint32_t capacity;
    uint32_t hidden;
    uint32_t experts;
    uint32_t topk;
    uint32_t payload_bytes;
    uint32_t scale_bytes;
    uint32_t alignment;
    uint32_t scale_layout;     /* enum afd_scale_layout */
    const uint32_t *placement; /* [experts] FFN index of each expert */
};

/* One source's tokens of one exchange; rows are packed. */
struct afd_reference_source {
    uint32_t count;
    const int64_t *ids;    /* [count][topk], -1: none */
    const float *weights;  /* [count][topk] or NULL */
    const uint8_t *x;      /* [count][payload_bytes] */
    const uint8_t *scales; /* [count][scale_bytes] or NULL */
};

/* What one FFN rank must see; every array is owned by it, see afd_reference_batch_free(). */
struct afd_reference_batch {
    uint32_t local_experts;
    uint32_t *expert_ids; /* [local_experts] ascending */
    uint32_t *counts;     /* [local_experts] */
    uint32_t *offsets;    /* [local_experts + 1] */
    uint64_t row_count;
    uint64_t token_count;
    uint32_t *slots; /* [row_count], AFD_SLOT_NONE in padding */
    float *weights;  /* [row_count], 0 in padding and where a source sent none */
    uint8_t *rows;   /* [row_count][payload_bytes], zero in padding */
    uint8_t *scales; /* [row_count][scale_bytes] row-major, zero in padding; or NULL */
};

/* The even contiguous placement: the first experts % ffn_ranks FFN ranks hold one expert more. */
void afd_reference_placement(uint32_t experts, uint32_t ffn_ranks, uint32_t *placement_out);

/* Canonical batch of FFN rank f. An id that is not in -1 .. experts - 1, or twice in a token, of
 * any source and for whichever FFN rank, is AFD_EROUTE; count > capacity is AFD_ECAPACITY; else
 * AFD_ENOMEM.
 * Order: by expert, then source, then token; each expert's rows start at a multiple of alignment
 * (>= 1), and an expert without rows takes none. batch_out is written on success only. */
int afd_reference_batch(const struct afd_reference *ref, const struct afd_reference_source *sources,
                        uint32_t f, struct afd_reference_batch *batch_out);
void afd_reference_batch_free(struct afd_reference_batch *batch);

/* The reply of FFN rank f to token t of source s: expert_rows is [row_count][hidden] BF16 in batch
 * order; weighted multiplies by the batch's weights, each product rounded to FP32 before it is
 * added. Writes hidden BF16 values; returns the number of local rows summed (0: nothing written).
 * One row alone, unweighted, comes back as it is, but for NaN. */
uint32_t afd_reference_reply(const struct afd_reference *ref,
                             const struct afd_reference_batch *batch, const uint16_t *expert_rows,
                             int weighted, uint32_t source, uint32_t token, uint16_t *row_out);

/* Sums terms in the given order as the last stage of a source does: bias rows first, then replies.
 * No term at all gives +0. */
void afd_reference_sum(const uint16_t *const *terms, uint32_t term_count, uint32_t hidden,
                       uint16_t *row_out);

#endif
