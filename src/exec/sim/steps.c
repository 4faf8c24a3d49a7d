/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.c - the steps, compiled for the simulator, and their arguments.
 *
 * The same sources as every other executor's: with AFD_SIM the primitives of src/shared/ call
 * memory.c, and mutants can be switched on. Adding a protocol is adding a row to `protocols`.
 */
#define AFD_SIM 1

#include "exec/sim/state.h"

#include <stdio.h>
#include <string.h>

#include "steps/attention_collect.h"
#include "steps/attention_dispatch.h"
#include "steps/ffn_receive.h"
#include "steps/ffn_reply.h"

struct afd_sim_args {
    union {
        struct afd_dispatch_args dispatch;
        struct afd_receive_args receive;
        struct afd_reply_args reply;
        struct afd_collect_args collect;
    } direct;
};

uint64_t afd_sim_args_bytes(void)
{
    return sizeof(struct afd_sim_args);
}

void afd_sim_layouts(struct afd_plan *plan, uint64_t control_bytes)
{
    plan->ffn_layout = afd_layout_ffn(&plan->shape, control_bytes);
    plan->attention_layout = afd_layout_attention(&plan->shape, control_bytes);
}

void afd_sim_region_name(const struct afd_sim_rank *rank, uint64_t inside, uint32_t owner,
                         char *text, size_t bytes)
{
    static const char *const names[] = {"header",    "credit",    "routes",       "weights",
                                        "inbox row", "slot",      "reply header", "reply credit",
                                        "reply row", "reply slot"};
    int ffn = rank->role == AFD_ROLE_FFN;
    const struct afd_layout *layout = ffn ? &rank->plan.ffn_layout : &rank->plan.attention_layout;
    const struct afd_region *region = &layout->stage.headers;
    uint64_t in_stage = (inside - layout->control_bytes) % layout->stage_stride;
    uint64_t stage = (inside - layout->control_bytes) / layout->stage_stride;
    for (uint32_t i = 0; i < 10 && inside >= layout->control_bytes; i++) {
        uint64_t begin = region[i].offset - layout->control_bytes;
        if (in_stage < begin || in_stage >= begin + region[i].count * region[i].stride)
            continue;
        snprintf(text, bytes, "%s %llu (+%llu) of rank %u, stage %llu", names[i],
                 (unsigned long long)((in_stage - begin) / region[i].stride),
                 (unsigned long long)((in_stage - begin) % region[i].stride), owner,
                 (unsigned long long)stage);
        return;
    }
    snprintf(text, bytes, "byte %llu of the window of rank %u", (unsigned long long)inside, owner);
}

/* --------------------------------------------------------------------------------------- direct */

static struct afd_sim_input *input_of(struct afd_sim_rank *rank, struct afd_sim_act act)
{
    return &rank->sim->truth->exchange[act.exchange].input[rank->index];
}

static void fill_dispatch(struct afd_sim_rank *rank, struct afd_sim_act act)
{
    struct afd_sim *sim = rank->sim;
    struct afd_dispatch_args *a = &rank->args->direct.dispatch;
    const struct afd_shape *shape = &rank->plan.shape;
    struct afd_sim_input *in = input_of(rank, act);
    a->shape = shape;
    a->ffn_layout = &rank->plan.ffn_layout;
    a->ffn_window = sim->ffn_window;
    a->placement.ffn = sim->expert_ffn;
    a->placement.local = sim->expert_local;
    a->placement.experts = shape->experts;
    a->placement.topk = shape->topk;
    a->state = afd_sim_private(rank, AFD_PRIVATE_STATE, act.stage);
    a->hits = afd_sim_private(rank, AFD_PRIVATE_HITS, act.stage);
    a->reply_rows = afd_sim_private(rank, AFD_PRIVATE_REPLY_ROWS, act.stage);
    a->sent = afd_sim_private(rank, AFD_PRIVATE_SENT, 0);
    a->credit_sent = afd_sim_private(rank, AFD_PRIVATE_CREDIT_SENT, act.stage);
    a->count_out = afd_sim_private(rank, AFD_PRIVATE_COUNT, act.stage);
    a->x = in->x;
    a->x_stride = shape->payload_bytes;
    a->scales = shape->scale_bytes != 0 ? in->scales : NULL;
    a->scales_stride = shape->scale_bytes;
    a->ids.ids = in->ids;
    a->ids.wide = 1;
    a->weights = sim->options.weights ? in->weights : NULL;
    a->tokens = in->tokens;
    a->stage = act.stage;
    a->source = rank->index;
    a->rank = rank->rank;
    a->rows = (rank->variant[act.stage] & 1u) == 0;
    a->reply_words = rank->variant[act.stage] >> 1;
}

static void fill_collect(struct afd_sim_rank *rank, struct afd_sim_act act)
{
    struct afd_collect_args *a = &rank->args->direct.collect;
    const struct afd_shape *shape = &rank->plan.shape;
    a->shape = shape;
    a->layout = &rank->plan.attention_layout;
    a->window = rank->window;
    a->ffn_rank = rank->sim->ffn_rank;
    a->state = afd_sim_private(rank, AFD_PRIVATE_STATE, act.stage);
    a->hits = afd_sim_private(rank, AFD_PRIVATE_HITS, act.stage);
    a->reply_rows = afd_sim_private(rank, AFD_PRIVATE_REPLY_ROWS, act.stage);
    a->count = afd_sim_private(rank, AFD_PRIVATE_COUNT, act.stage);
    a->credit_base = afd_sim_private(rank, AFD_PRIVATE_CREDIT_BASE, act.stage);
    a->terms = afd_sim_private(rank, AFD_PRIVATE_TERMS, 0);
    a->peers = afd_sim_private(rank, AFD_PRIVATE_REPLY_PEERS, 0);
    a->view = rank->sim->options.view != 0 && shape->ffn_ranks == 1;
    a->rows_stride = (uint64_t)shape->hidden * 2;
    a->rows = (uint8_t *)(rank->out + (uint64_t)act.stage * shape->capacity * shape->hidden);
    a->stage = act.stage;
    a->reply_words = rank->variant[act.stage] >> 1;
    rank->view[act.stage] = NULL;
    if (a->view) {
        rank->view[act.stage] =
            afd_region_at(a->window, a->layout, a->layout->stage.reply_inbox, act.stage, 0);
        rank->view_stride = a->layout->stage.reply_inbox.stride;
    }
}

static void fill_receive(struct afd_sim_rank *rank, struct afd_sim_act act)
{
    struct afd_receive_args *a = &rank->args->direct.receive;
    const struct afd_plan *plan = &rank->plan;
    const struct afd_buffer_config *config = &rank->sim->options.config;
    uint32_t *bins = afd_sim_private(rank, AFD_PRIVATE_HISTOGRAM, 0);
    uint64_t each = (uint64_t)AFD_BLOCKS_MAX * plan->local_experts;
    a->shape = &plan->shape;
    a->layout = &plan->ffn_layout;
    a->window = rank->window;
    a->source_rank = rank->sim->source_rank;
    a->state = afd_sim_private(rank, AFD_PRIVATE_STATE, act.stage);
    a->stage = act.stage;
    a->rank = rank->rank;
    a->local_experts = plan->local_experts;
    a->alignment = config->alignment;
    a->indexed = config->receive == AFD_RECEIVE_INDEXED;
    a->zero_padding = config->zero_padding;
    a->weighted = config->weighted_reply;
    a->meta = afd_sim_private(rank, AFD_PRIVATE_META, 0);
    a->histogram = bins;
    a->total = bins + each;
    a->begin = bins + 2 * each;
    a->cursor = bins + 3 * each;
    a->routes = afd_sim_private(rank, AFD_PRIVATE_ROUTES, act.stage);
    a->credit_base = afd_sim_private(rank, AFD_PRIVATE_CREDIT_BASE, act.stage);
    a->token_rows = afd_sim_private(rank, AFD_PRIVATE_TOKEN_ROWS, act.stage);
    a->source_out = afd_sim_private(rank, AFD_PRIVATE_SOURCES, act.stage);
    a->counts = afd_sim_private(rank, AFD_PRIVATE_COUNTS, act.stage);
    a->offsets = afd_sim_private(rank, AFD_PRIVATE_OFFSETS, act.stage);
    a->slots = afd_sim_private(rank, AFD_PRIVATE_SLOTS, act.stage);
    a->weights = afd_sim_private(rank, AFD_PRIVATE_WEIGHTS, act.stage);
    a->expert_totals = afd_sim_private(rank, AFD_PRIVATE_TOTALS, 0);
    a->token_count = afd_sim_private(rank, AFD_PRIVATE_TOKEN_COUNT, act.stage);
    a->rows_capacity = plan->batch_rows;
    if (a->indexed)
        return;
    a->rows = afd_sim_private(rank, AFD_PRIVATE_ROWS, act.stage);
    a->rows_stride = plan->shape.payload_bytes;
    if (plan->shape.scale_bytes == 0)
        return;
    a->scales = afd_sim_private(rank, AFD_PRIVATE_SCALES, act.stage);
    a->scales_row_stride = plan->scales_row_stride;
    a->scales_group_stride = plan->scales_group_stride;
    a->scale_item_bytes = plan->scale_item_bytes;
}

static void fill_reply(struct afd_sim_rank *rank, struct afd_sim_act act)
{
    struct afd_sim *sim = rank->sim;
    struct afd_reply_args *a = &rank->args->direct.reply;
    a->shape = &rank->plan.shape;
    a->attention_layout = &rank->plan.attention_layout;
    a->source_window = sim->source_window;
    a->state = afd_sim_private(rank, AFD_PRIVATE_STATE, act.stage);
    a->source = afd_sim_private(rank, AFD_PRIVATE_SOURCES, act.stage);
    a->routes = afd_sim_private(rank, AFD_PRIVATE_ROUTES, act.stage);
    a->token_rows = afd_sim_private(rank, AFD_PRIVATE_TOKEN_ROWS, act.stage);
    if (sim->options.config.weighted_reply)
        a->weights = afd_sim_private(rank, AFD_PRIVATE_WEIGHTS, act.stage);
    a->rows = (const uint8_t *)sim->truth->exchange[act.exchange].answer[rank->index];
    a->rows_stride = (uint64_t)a->shape->hidden * 2;
    a->terms = afd_sim_private(rank, AFD_PRIVATE_TERMS, 0);
    a->term_weights = afd_sim_private(rank, AFD_PRIVATE_TERM_WEIGHTS, 0);
    a->credit_sent = afd_sim_private(rank, AFD_PRIVATE_CREDIT_SENT, act.stage);
    a->stage = act.stage;
    a->ffn = rank->index;
}

static void direct_fill(struct afd_sim_rank *rank, struct afd_sim_act act)
{
    memset(rank->args, 0, sizeof(*rank->args));
    switch (act.phase) {
    case AFD_PHASE_DISPATCH:
        fill_dispatch(rank, act);
        break;
    case AFD_PHASE_RECEIVE:
        fill_receive(rank, act);
        break;
    case AFD_PHASE_REPLY:
        fill_reply(rank, act);
        break;
    default:
        fill_collect(rank, act);
        break;
    }
}

static void direct_dispatch(struct afd_lane lane, struct afd_sim_rank *rank)
{
    afd_step_attention_dispatch(lane, &rank->args->direct.dispatch);
}

static void direct_receive(struct afd_lane lane, struct afd_sim_rank *rank)
{
    afd_step_ffn_receive(lane, &rank->args->direct.receive);
}

static void direct_reply(struct afd_lane lane, struct afd_sim_rank *rank)
{
    afd_step_ffn_reply(lane, &rank->args->direct.reply);
}

static void direct_collect(struct afd_lane lane, struct afd_sim_rank *rank)
{
    afd_step_attention_collect(lane, &rank->args->direct.collect);
}

/* --------------------------------------------------------------------------------------- poison */

static void poison_bytes(struct afd_sim_rank *rank, struct afd_region region, uint64_t stage_offset)
{
    memset(rank->window + stage_offset + region.offset, 0xee, region.count * region.stride);
}

/* LL words: the data of a consumed word is junk, its tag stays. */
static void poison_words(struct afd_sim_rank *rank, struct afd_region region, uint64_t stage_offset,
                         uint64_t bytes)
{
    for (uint64_t i = 0; i < region.count; i++)
        for (uint64_t at = 0; at < bytes; at += AFD_LL_BYTES)
            memset(rank->window + stage_offset + region.offset + i * region.stride + at, 0xee,
                   AFD_LL_PAYLOAD);
}

static void direct_poison(struct afd_sim_rank *rank, uint32_t stage)
{
    const struct afd_shape *shape = &rank->plan.shape;
    int ffn = rank->role == AFD_ROLE_FFN;
    const struct afd_layout *layout = ffn ? &rank->plan.ffn_layout : &rank->plan.attention_layout;
    const struct afd_stage_layout *s = &layout->stage;
    uint64_t offset = layout->stage_stride * stage;
    if (ffn) {
        poison_words(rank, s->headers, offset, AFD_HEADER_WORDS * AFD_LL_BYTES);
        poison_words(rank, s->words, offset, s->words.stride);
        poison_bytes(rank, s->routes, offset);
        poison_bytes(rank, s->weights, offset);
        poison_bytes(rank, s->inbox, offset);
        return;
    }
    poison_words(rank, s->reply_headers, offset, AFD_LL_BYTES);
    poison_words(rank, s->reply_words, offset,
                 (uint64_t)afd_reply_slot_words(shape) * AFD_LL_BYTES);
    poison_bytes(rank, s->reply_inbox, offset);
}

static const struct afd_sim_protocol protocols[] = {
    {AFD_PROTOCOL_DIRECT,
     direct_fill,
     direct_poison,
     {NULL, direct_dispatch, direct_receive, direct_reply, direct_collect}},
};

const struct afd_sim_protocol *afd_sim_protocol_of(uint32_t protocol)
{
    for (size_t i = 0; i < sizeof(protocols) / sizeof(protocols[0]); i++)
        if (protocols[i].protocol == protocol)
            return &protocols[i];
    return NULL;
}
