/* SPDX-License-Identifier: Apache-2.0 */
/* call.c - what the four verbs share. */

#include "call.h"

#include "error.h"

static const char *why_not(uint32_t phase)
{
    switch (phase) {
    case AFD_PHASE_DISPATCH:
        return "the last dispatch is not collected yet";
    case AFD_PHASE_RECEIVE:
        return "the last receive is not replied yet";
    case AFD_PHASE_REPLY:
        return "nothing was received";
    default:
        return "nothing was dispatched";
    }
}

static int check_call(struct afd_buffer *buffer, uint32_t stage, uint32_t phase, uint32_t open)
{
    const char *verb = afd_phase_name(phase);
    uint32_t rank = buffer->group->config.rank;
    uint32_t attention = phase == AFD_PHASE_DISPATCH || phase == AFD_PHASE_COLLECT;
    if (buffer->plan.role != (attention ? AFD_ROLE_ATTENTION : AFD_ROLE_FFN))
        return afd_error_set(AFD_EROLE, "%s on rank %u, which is an %s rank", verb, rank,
                             attention ? "FFN" : "Attention");
    if (stage >= buffer->plan.shape.stages)
        return afd_error_set(AFD_EINVAL, "%s on stage %u of rank %u, but the buffer has %u stages",
                             verb, stage, rank, buffer->plan.shape.stages);
    if (!buffer->failed && afd_group_is_aborted(buffer->group))
        afd_buffer_fail_aborted(buffer);
    if (buffer->failed)
        return afd_buffer_failed_again(buffer);
    if (buffer->stage[stage].open != open)
        return afd_error_set(AFD_ESTATE, "%s on stage %u of rank %u: %s", verb, stage, rank,
                             why_not(phase));
    return 0;
}

int afd_call_enter(struct afd_buffer *buffer, uint32_t stage, uint32_t phase, uint32_t open)
{
    int rc;
    if (buffer == NULL)
        return afd_error_set(AFD_EINVAL, "the buffer of %s is NULL", afd_phase_name(phase));
    if (__atomic_exchange_n(&buffer->busy, 1, __ATOMIC_ACQUIRE) != 0)
        return afd_error_set(AFD_ESTATE,
                             "%s on rank %u while another thread is inside a call on this buffer",
                             afd_phase_name(phase), buffer->group->config.rank);
    rc = check_call(buffer, stage, phase, open);
    if (rc != 0)
        return afd_call_leave(buffer, rc);
    buffer->running_phase = phase;
    buffer->running_stage = stage;
    return 0;
}

int afd_call_leave(struct afd_buffer *buffer, int rc)
{
    __atomic_store_n(&buffer->busy, 0, __ATOMIC_RELEASE);
    return rc;
}

int afd_call_run(struct afd_buffer *buffer, afd_inline_step step, const void *args)
{
    struct afd_control *own = afd_buffer_control(buffer, buffer->group->config.rank);
    int rc = afd_inline_run(&buffer->inl, step, args) ? 0 : afd_buffer_fail(buffer);
    if (__atomic_load_n(&own->waiting, __ATOMIC_RELAXED) != 0)
        /* pairs with waiting_of() in fault.c: whoever sees it sees the fault told before */
        __atomic_store_n(&own->waiting, 0, __ATOMIC_RELEASE);
    return rc;
}

int afd_call_check_stream(const void *stream)
{
    if (stream == NULL)
        return 0;
    return afd_error_set(AFD_EINVAL, "stream is %p, but backend inline takes NULL only", stream);
}

int afd_call_check_array(const char *name, const void *array, uint64_t alignment, uint64_t count)
{
    if (array == NULL && count != 0)
        return afd_error_set(AFD_EINVAL, "%s is NULL, but there are %llu rows", name,
                             (unsigned long long)count);
    if (((uintptr_t)array & (alignment - 1)) != 0)
        return afd_error_set(AFD_EINVAL, "%s is at %p, which is not a multiple of %llu", name,
                             array, (unsigned long long)alignment);
    return 0;
}

int afd_call_check_stride(const char *name, uint64_t stride, uint64_t bytes)
{
    if (stride == 0 || stride >= bytes)
        return 0;
    return afd_error_set(AFD_EINVAL, "%s is %llu bytes, but a row has %llu", name,
                         (unsigned long long)stride, (unsigned long long)bytes);
}
