/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_direct.c - protocol direct: a verb is a step. */

#include "exchange.h"

static void step_dispatch(struct afd_lane lane, const void *args)
{
    afd_step_attention_dispatch(lane, args);
}

static int dispatch(struct afd_buffer *buffer, uint32_t stage, const struct afd_dispatch_args *args)
{
    (void)stage;
    return afd_call_run(buffer, step_dispatch, args);
}

static void step_receive(struct afd_lane lane, const void *args)
{
    afd_step_ffn_receive(lane, args);
}

static int receive(struct afd_buffer *buffer, uint32_t stage, const struct afd_receive_args *args)
{
    (void)stage;
    return afd_call_run(buffer, step_receive, args);
}

static void step_reply(struct afd_lane lane, const void *args)
{
    afd_step_ffn_reply(lane, args);
}

static int reply(struct afd_buffer *buffer, uint32_t stage, const struct afd_reply_args *args)
{
    (void)stage;
    return afd_call_run(buffer, step_reply, args);
}

static void step_collect(struct afd_lane lane, const void *args)
{
    afd_step_attention_collect(lane, args);
}

static int collect(struct afd_buffer *buffer, uint32_t stage, const struct afd_collect_args *args)
{
    (void)stage;
    return afd_call_run(buffer, step_collect, args);
}

const struct afd_exchange_ops afd_exchange_direct = {dispatch, receive, reply, collect};
