/* SPDX-License-Identifier: Apache-2.0 */
/* buffer.h - a buffer of one rank: plan, windows, private memory, stages, fault. */
#ifndef AFD_BUFFER_H
#define AFD_BUFFER_H

#include "afd/afd.h"
#include "control.h"
#include "exec/inline.h"
#include "fabric/shm.h"
#include "group.h"
#include "plan.h"
#include "steps/attention_collect.h"
#include "steps/attention_dispatch.h"
#include "steps/ffn_receive.h"
#include "steps/ffn_reply.h"

/* The host's side of a stage. */
struct afd_stage_host {
    uint32_t open;        /* dispatched or received, not yet collected or replied */
    uint32_t tokens;      /* Attention: bound of T of the open exchange */
    uint32_t reply_words; /* Attention: as the open exchange asked */
    uint64_t row_count;   /* FFN: of the open exchange */
};

struct afd_buffer {
    struct afd_group *group;
    struct afd_buffer_config config; /* placement points to `placement` */
    uint32_t *placement;
    struct afd_plan plan;
    uint8_t *private_memory;
    struct afd_window *window; /* [world] */
    uint8_t **ffn_window;      /* [F] */
    uint8_t **source_window;   /* [N] */
    uint8_t **rank_window;     /* [world] */
    uint32_t *ffn_rank;        /* [F] world ranks */
    uint32_t *source_rank;     /* [N] world ranks */
    struct afd_inline inl;
    struct afd_stage_host stage[AFD_STAGES_MAX];
    uint64_t deadline_us;
    uint32_t busy; /* atomic: a call is running */
    uint32_t failed;
    struct afd_fault fault;
    /* of the running step, for waits that last */
    uint32_t running_phase;
    uint32_t running_stage;
    uint32_t adopted; /* `fault` came from a peer's record */
};

/* This rank's own control block, and a peer's. */
static inline struct afd_control *afd_buffer_control(const struct afd_buffer *buffer, uint32_t rank)
{
    return (struct afd_control *)(void *)buffer->window[rank].base;
}

/* Start of a private array on a stage (stage 0 for those that exist once). */
static inline void *afd_buffer_private(const struct afd_buffer *buffer, enum afd_private kind,
                                       uint32_t stage)
{
    uint64_t shift = kind < AFD_PRIVATE_PER_STAGE ? buffer->plan.private_stage_stride * stage : 0;
    return buffer->private_memory + buffer->plan.private_offset[kind] + shift;
}

static inline struct afd_stage_state *afd_buffer_state(const struct afd_buffer *buffer,
                                                       uint32_t stage)
{
    return (struct afd_stage_state *)afd_buffer_private(buffer, AFD_PRIVATE_STATE, stage);
}

/* ---------------------------------------------------------------- fault.c: what went wrong, and
 * who */

/* The watch of this buffer's waits (exec/inline.h). `context` is the buffer. */
struct afd_verdict afd_buffer_watch(void *context, const struct afd_wait *wait, uint64_t waited_us);
/* After a step that left with a trouble: the buffer fails, peers are told, the last error says
 * it. */
int afd_buffer_fail(struct afd_buffer *buffer);
/* The buffer fails because this rank's group was aborted. */
void afd_buffer_fail_aborted(struct afd_buffer *buffer);
/* The sentence of the buffer's fault again; returns its code. */
int afd_buffer_failed_again(const struct afd_buffer *buffer);
/* Tells every peer that this rank's group was aborted. Async-signal-safe. */
void afd_buffer_publish_abort(struct afd_buffer *buffer);

#endif
