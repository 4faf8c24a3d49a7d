/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - from a configuration to numbers: is it legal, what shape has it, what memory does it
 * need.
 *
 * Pure: no group, no allocation. afd_buffer_memory() and afd_buffer_create() use the same plan, so
 * what is announced is what is taken.
 */
#ifndef AFD_PLAN_H
#define AFD_PLAN_H

#include "afd/afd.h"
#include "shared/union_layout.h"

/* Private arrays of a rank; an Attention rank uses the first group, an FFN rank the second. Each is
 * per stage unless said otherwise. */
enum afd_private {
    AFD_PRIVATE_STATE,       /* struct afd_stage_state */
    AFD_PRIVATE_CREDIT_BASE, /* u64 per peer */
    AFD_PRIVATE_CREDIT_SENT, /* u64 per peer */
    AFD_PRIVATE_HITS,        /* Attention: u64 [capacity][hit words] */
    AFD_PRIVATE_REPLY_ROWS,  /* Attention: u32 [F] */
    AFD_PRIVATE_COUNT,       /* Attention: u32 */
    AFD_PRIVATE_ROUTES,      /* FFN: u16 [N * capacity][k + 1] */
    AFD_PRIVATE_TOKEN_ROWS,  /* FFN: u32 [N * capacity][k] */
    AFD_PRIVATE_SOURCES,     /* FFN: struct afd_source_meta [N] */
    AFD_PRIVATE_COUNTS,      /* FFN: u32 [local experts] */
    AFD_PRIVATE_OFFSETS,     /* FFN: u32 [local experts + 1] */
    AFD_PRIVATE_TOKEN_COUNT, /* FFN: u64 */
    AFD_PRIVATE_ROUNDS,      /* union: u64 */
    AFD_PRIVATE_ARRIVED,     /* union: u64 [R] */
    AFD_PRIVATE_EXPERT_ROWS, /* union: u32 [EPR] */
    AFD_PRIVATE_MASTER,      /* union, Attention: u16 [capacity][k] */
    AFD_PRIVATE_ROW_TOKENS,  /* union, FFN: u32 [N * capacity] */
    AFD_PRIVATE_SLOTS,       /* FFN: u32 [batch rows] */
    AFD_PRIVATE_WEIGHTS,     /* FFN: f32 [batch rows] */
    AFD_PRIVATE_ROWS,        /* FFN, expanded: [batch rows] payloads */
    AFD_PRIVATE_SCALES,      /* FFN, expanded: [batch rows] scales */
    /* one for all stages: a rank runs one step at a time on a buffer */
    AFD_PRIVATE_TERMS,        /* pointers [blocks][k + 2] */
    AFD_PRIVATE_TERM_WEIGHTS, /* FFN: f32 [blocks][k] */
    AFD_PRIVATE_REPLY_PEERS,  /* Attention: [blocks][F] */
    AFD_PRIVATE_SENT,         /* Attention: u32 [blocks][F] */
    AFD_PRIVATE_META,         /* FFN: struct afd_source_meta [blocks][N] */
    AFD_PRIVATE_HISTOGRAM,    /* FFN: u32 [blocks][local experts], four arrays */
    AFD_PRIVATE_TOTALS,       /* FFN: u64 [local experts] */
    AFD_PRIVATE_EXPERT_FFN,   /* Attention: u16 [experts] */
    AFD_PRIVATE_EXPERT_LOCAL, /* Attention: u16 [experts] */
    AFD_PRIVATE_EXPERT_IDS,   /* FFN: u32 [local experts] */
    AFD_PRIVATE_COUNT_BINS,   /* union: u32 [R][1 + EPR] */
    AFD_PRIVATE_NEXT_SLOT,    /* union: u32 [R] */
    AFD_PRIVATE_ROW_SLOTS,    /* union: u32 [blocks][k] */
    AFD_PRIVATE_ROW_META,     /* union: u32 [blocks][2k + 1] */
    AFD_PRIVATE_SLOT_OF,      /* union, FFN: u32 [N * capacity] */
    AFD_PRIVATE_PRESENT,      /* union, FFN: u64 [N][capacity / 64] */
    AFD_PRIVATE_COUNT_OF_KINDS
};
#define AFD_PRIVATE_PER_STAGE AFD_PRIVATE_TERMS /* kinds before it exist once per stage */

struct afd_plan {
    struct afd_shape shape;
    struct afd_layout ffn_layout;
    struct afd_layout attention_layout;
    struct afd_union_layout union_layout; /* protocol union: of every rank, in place of the two */
    uint32_t role;
    uint32_t index;         /* s or f of this rank */
    uint32_t local_experts; /* FFN */
    uint32_t protocol;      /* never auto */
    uint64_t batch_rows;    /* FFN: rows of the batch arrays */
    uint64_t scales_row_stride;
    uint64_t scales_group_stride;
    uint32_t scale_item_bytes;
    uint64_t private_offset[AFD_PRIVATE_COUNT_OF_KINDS];   /* of stage 0 */
    uint64_t private_bytes_of[AFD_PRIVATE_COUNT_OF_KINDS]; /* one stage */
    uint64_t private_stage_stride;
    uint64_t private_bytes;
};

/* Checks everything that one rank can know and computes the plan of `rank`. 0, or an error with its
 * sentence. */
int afd_plan_make(const struct afd_group_config *group, const struct afd_buffer_config *config,
                  uint32_t rank, struct afd_plan *plan_out);
/* The group part alone: sizes, roles present, ranks in range. */
int afd_plan_check_group(const struct afd_group_config *group);

/* Bytes of this rank's window. */
uint64_t afd_plan_window_bytes(const struct afd_plan *plan);

/* FFN index of expert e under this configuration. */
uint32_t afd_plan_expert_ffn(const struct afd_buffer_config *config, uint32_t ffn_ranks,
                             uint32_t e);

#endif
