/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.h - what a protocol does in each verb. The verbs check their arguments and fill them in
 * as the steps of protocol direct take them; a protocol runs its own steps with what it needs of
 * them.
 */
#ifndef AFD_EXCHANGE_H
#define AFD_EXCHANGE_H

#include "call.h"

struct afd_exchange_ops {
    int (*dispatch)(struct afd_buffer *buffer, uint32_t stage,
                    const struct afd_dispatch_args *args);
    int (*receive)(struct afd_buffer *buffer, uint32_t stage, const struct afd_receive_args *args);
    int (*reply)(struct afd_buffer *buffer, uint32_t stage, const struct afd_reply_args *args);
    int (*collect)(struct afd_buffer *buffer, uint32_t stage, const struct afd_collect_args *args);
};

extern const struct afd_exchange_ops afd_exchange_direct;
extern const struct afd_exchange_ops afd_exchange_union;

/* The protocol of this buffer. */
static inline const struct afd_exchange_ops *afd_exchange_of(const struct afd_buffer *buffer)
{
    return buffer->plan.protocol == AFD_PROTOCOL_UNION ? &afd_exchange_union : &afd_exchange_direct;
}

#endif
