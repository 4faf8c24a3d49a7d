/* SPDX-License-Identifier: Apache-2.0 */
/*
 * call.h - what the four verbs share: who may call, in which state, and how a step is run.
 *
 *                 Attention                       FFN
 *     closed  -- dispatch -->  open       closed -- receive -->  open
 *     open    -- collect  -->  closed     open   -- reply   -->  closed
 */
#ifndef AFD_CALL_H
#define AFD_CALL_H

#include "buffer.h"

/* Everything that makes a call illegal before its own arguments are looked at: role, stage, state,
 * a failed buffer, another thread inside. On success the buffer is this thread's until
 * afd_call_leave(). `open`: the state the stage must be in. */
int afd_call_enter(struct afd_buffer *buffer, uint32_t stage, uint32_t phase, uint32_t open);
/* Gives the buffer back; returns rc. */
int afd_call_leave(struct afd_buffer *buffer, int rc);
/* Runs a step; on trouble the buffer has failed and the code is returned. */
int afd_call_run(struct afd_buffer *buffer, afd_inline_step step, const void *args);
/* Backend inline takes no stream. */
int afd_call_check_stream(const void *stream);
/* `stride` bytes from row to row are 0 (packed) or at least a row. */
int afd_call_check_stride(const char *name, uint64_t stride, uint64_t bytes);
/* An array that `count` elements live in: not NULL unless count is 0, aligned. */
int afd_call_check_array(const char *name, const void *array, uint64_t alignment, uint64_t count);

#endif
