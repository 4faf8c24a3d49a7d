/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange_union.c - protocol union: in every verb all ranks meet twice.
 *
 *     Attention   dispatch: union_dispatch                 collect: union_combine, union_reduce
 *     FFN         receive:  union_dispatch, union_expand   reply:   union_combine
 *
 * The second step of a verb runs after a first one that failed, too: it then clears what was left.
 */

#include <string.h>

#include "exchange.h"
#include "steps/union_combine.h"
#include "steps/union_dispatch.h"
#include "steps/union_expand.h"
#include "steps/union_reduce.h"

static void step_dispatch(struct afd_lane lane, const void *args)
{
    afd_step_union_dispatch(lane, args);
}

static void step_expand(struct afd_lane lane, const void *args)
{
    afd_step_union_expand(lane, args);
}

static void step_combine(struct afd_lane lane, const void *args)
{
    afd_step_union_combine(lane, args);
}

static void step_reduce(struct afd_lane lane, const void *args)
{
    afd_step_union_reduce(lane, args);
}

static void fill_group(const struct afd_buffer *buffer, uint32_t stage,
                       struct afd_union_group *group)
{
    group->shape = &buffer->plan.shape;
    group->layout = &buffer->plan.union_layout;
    group->window = buffer->rank_window;
    group->state = afd_buffer_state(buffer, stage);
    group->rounds = afd_buffer_private(buffer, AFD_PRIVATE_ROUNDS, stage);
    group->stage = stage;
    group->rank = buffer->group->config.rank;
}

/* `call` is the caller's tokens, or none. */
static int run_dispatch(struct afd_buffer *buffer, uint32_t stage,
                        const struct afd_dispatch_args *call, uint32_t next_state)
{
    struct afd_union_dispatch_args args;
    memset(&args, 0, sizeof(args));
    args.call = *call;
    fill_group(buffer, stage, &args.group);
    args.ffn_rank = buffer->ffn_rank;
    args.histogram = afd_buffer_private(buffer, AFD_PRIVATE_COUNT_BINS, 0);
    args.next_slot = afd_buffer_private(buffer, AFD_PRIVATE_NEXT_SLOT, 0);
    args.slots = afd_buffer_private(buffer, AFD_PRIVATE_ROW_SLOTS, 0);
    args.meta = afd_buffer_private(buffer, AFD_PRIVATE_ROW_META, 0);
    args.master = afd_buffer_private(buffer, AFD_PRIVATE_MASTER, stage);
    args.arrived = afd_buffer_private(buffer, AFD_PRIVATE_ARRIVED, stage);
    args.expert_rows = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_ROWS, stage);
    args.next_state = next_state;
    return afd_call_run(buffer, step_dispatch, &args);
}

static int dispatch(struct afd_buffer *buffer, uint32_t stage, const struct afd_dispatch_args *call)
{
    return run_dispatch(buffer, stage, call, AFD_STAGE_OPEN);
}

static int receive(struct afd_buffer *buffer, uint32_t stage, const struct afd_receive_args *call)
{
    struct afd_dispatch_args none;
    struct afd_union_expand_args args;
    int rc;
    int expand_rc;
    memset(&none, 0, sizeof(none));
    none.shape = call->shape;
    none.rank = call->rank;
    rc = run_dispatch(buffer, stage, &none, AFD_STAGE_BETWEEN);
    memset(&args, 0, sizeof(args));
    args.receive = *call;
    fill_group(buffer, stage, &args.group);
    args.arrived = afd_buffer_private(buffer, AFD_PRIVATE_ARRIVED, stage);
    args.expert_rows = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_ROWS, stage);
    args.slot_of = afd_buffer_private(buffer, AFD_PRIVATE_SLOT_OF, 0);
    args.present = afd_buffer_private(buffer, AFD_PRIVATE_PRESENT, 0);
    args.tokens = afd_buffer_private(buffer, AFD_PRIVATE_ROW_TOKENS, stage);
    expand_rc = afd_call_run(buffer, step_expand, &args);
    return rc != 0 ? rc : expand_rc;
}

/* `call` is the experts' rows, or none. */
static int run_combine(struct afd_buffer *buffer, uint32_t stage, const struct afd_reply_args *call,
                       uint32_t next_state)
{
    struct afd_union_combine_args args;
    memset(&args, 0, sizeof(args));
    args.reply = *call;
    fill_group(buffer, stage, &args.group);
    args.source_rank = buffer->source_rank;
    args.tokens = afd_buffer_private(buffer, AFD_PRIVATE_ROW_TOKENS, stage);
    args.next_state = next_state;
    args.exchanges = next_state == AFD_STAGE_IDLE;
    return afd_call_run(buffer, step_combine, &args);
}

static int reply(struct afd_buffer *buffer, uint32_t stage, const struct afd_reply_args *call)
{
    return run_combine(buffer, stage, call, AFD_STAGE_IDLE);
}

static int collect(struct afd_buffer *buffer, uint32_t stage, const struct afd_collect_args *call)
{
    struct afd_reply_args none;
    struct afd_union_reduce_args args;
    int rc;
    int reduce_rc;
    memset(&none, 0, sizeof(none));
    rc = run_combine(buffer, stage, &none, AFD_STAGE_BETWEEN);
    memset(&args, 0, sizeof(args));
    args.collect = *call;
    fill_group(buffer, stage, &args.group);
    args.ffn_rank = buffer->ffn_rank;
    args.master = afd_buffer_private(buffer, AFD_PRIVATE_MASTER, stage);
    reduce_rc = afd_call_run(buffer, step_reduce, &args);
    return rc != 0 ? rc : reduce_rc;
}

const struct afd_exchange_ops afd_exchange_union = {dispatch, receive, reply, collect};
