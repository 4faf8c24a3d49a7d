/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - a rank's program: its exchanges as acts, one step each, and the checks of their
 * results. */

#include "exec/sim/state.h"

#include <stdlib.h>
#include <string.h>

#include "exec/sim/hooks.h"
#include "steps/stage.h"

#define BF16_NAN 0x7fc0u

/* -------------------------------------------------------------------------------------- program */

static void add_act(struct afd_sim_rank *rank, uint32_t phase, uint32_t stage, uint32_t exchange)
{
    struct afd_sim_act *act = &rank->act[rank->act_count++];
    act->phase = (uint8_t)phase;
    act->stage = (uint8_t)stage;
    act->exchange = (uint16_t)exchange;
}

/* One exchange on every stage: `open` for each, then `close`, maybe in the opposite order. */
static void add_wave(struct afd_sim *sim, struct afd_sim_rank *rank, uint32_t first)
{
    uint32_t stages = sim->options.config.stages;
    uint32_t count = sim->options.exchanges - first;
    int ffn = rank->role == AFD_ROLE_FFN;
    int indexed = sim->options.config.receive == AFD_RECEIVE_INDEXED;
    int overlap = !ffn || afd_sim_below(sim, 2);
    int reverse = (int)afd_sim_below(sim, 2);
    count = count < stages ? count : stages;
    for (uint32_t i = 0; i < count; i++) {
        add_act(rank, ffn ? AFD_PHASE_RECEIVE : AFD_PHASE_DISPATCH, i, first + i);
        if (ffn && indexed)
            add_act(rank, AFD_SIM_ACT_EXPERTS, i, first + i);
        if (!overlap)
            add_act(rank, AFD_PHASE_REPLY, i, first + i);
    }
    for (uint32_t j = 0; overlap && j < count; j++) {
        uint32_t i = reverse ? count - 1 - j : j;
        add_act(rank, ffn ? AFD_PHASE_REPLY : AFD_PHASE_COLLECT, i, first + i);
        if (!ffn && sim->options.view)
            add_act(rank, AFD_SIM_ACT_LOOK, i, first + i);
    }
}

/* What a caller must not do: read a batch after its reply, or a view after the next
 * dispatch. */
static void break_program(struct afd_sim_rank *rank)
{
    for (uint32_t i = 0; i + 1 < rank->act_count; i++) {
        struct afd_sim_act act = rank->act[i];
        if (!(AFD_MUTANT(reads_after_reply) && act.phase == AFD_SIM_ACT_EXPERTS) &&
            !(AFD_MUTANT(view_freed_early) && act.phase == AFD_SIM_ACT_LOOK))
            continue;
        rank->act[i] = rank->act[i + 1];
        rank->act[i + 1] = act;
        i++;
    }
}

void afd_sim_rank_reset(struct afd_sim *sim, struct afd_sim_rank *rank)
{
    memset(rank->window, 0,
           rank->role == AFD_ROLE_FFN ? rank->plan.ffn_layout.window_bytes
                                      : rank->plan.attention_layout.window_bytes);
    memset(rank->private_memory, 0, rank->plan.private_bytes);
    memset(&rank->trouble, 0, sizeof(rank->trouble));
    memset(rank->witness, 0, sim->world * sizeof(uint32_t));
    memset(rank->heard, 0, sim->world * sizeof(uint32_t));
    memset(rank->history, 0, sim->world * sizeof(uint32_t));
    rank->act_count = rank->act_next = 0;
    rank->running = rank->steps = 0;
    rank->dead = rank->stalled = rank->ended = 0;
    rank->code = rank->verdict = 0;
    for (uint32_t stage = 0; stage < sim->options.config.stages; stage++) {
        struct afd_stage_state *state = afd_sim_private(rank, AFD_PRIVATE_STATE, stage);
        state->epoch = sim->options.config.first_epoch - 1;
    }
    for (uint32_t x = 0; x < sim->options.exchanges; x += sim->options.config.stages)
        add_wave(sim, rank, x);
    break_program(rank);
    for (uint32_t i = 0; i < sim->blocks_each; i++) {
        struct afd_sim_block *b = afd_sim_block_of(sim, rank, i);
        memset(b->now, 0, sim->block_count * sizeof(uint32_t));
        b->state = AFD_SIM_IDLE;
        b->seq = b->step_seq = b->head = b->tail = 0;
        b->look = b->look_hit = b->warned = 0;
    }
}

/* -------------------------------------------------------------------------------- caller's acts */

/* The caller's experts read an indexed batch where it lies. */
static void act_experts(struct afd_lane lane, struct afd_sim_rank *rank)
{
    struct afd_sim *sim = rank->sim;
    struct afd_sim_act act = rank->act[rank->act_next - 1];
    const struct afd_reference_batch *want = &sim->truth->exchange[act.exchange].batch[rank->index];
    const uint32_t *slots = afd_sim_private(rank, AFD_PRIVATE_SLOTS, act.stage);
    uint32_t bytes = rank->plan.shape.payload_bytes;
    uint8_t row[4096];
    (void)lane;
    for (uint64_t r = 0; r < want->row_count && bytes <= sizeof(row) && !sim->stopping; r++) {
        if (slots[r] == AFD_SLOT_NONE)
            continue;
        afd_sim_load(row,
                     afd_region_at(rank->window, &rank->plan.ffn_layout,
                                   rank->plan.ffn_layout.stage.inbox, act.stage, slots[r]),
                     bytes);
        if (memcmp(row, want->rows + r * bytes, bytes) != 0 && !rank->dead)
            afd_sim_found(sim, AFD_ORACLE_BATCH,
                          "%s: row %llu of the indexed batch is not its token",
                          afd_sim_where(sim, sim->current->id), (unsigned long long)r);
    }
}

/* The caller reads a view. */
static void act_look(struct afd_lane lane, struct afd_sim_rank *rank)
{
    struct afd_sim *sim = rank->sim;
    struct afd_sim_act act = rank->act[rank->act_next - 1];
    const struct afd_sim_input *in = &sim->truth->exchange[act.exchange].input[rank->index];
    uint32_t hidden = rank->plan.shape.hidden;
    uint16_t row[2048];
    (void)lane;
    for (uint32_t t = 0; t < in->tokens && hidden <= 2048 && !sim->stopping; t++) {
        afd_sim_load(row, rank->view[act.stage] + rank->view_stride * t, hidden * 2ull);
        if (memcmp(row, in->collected + (uint64_t)t * hidden, hidden * 2ull) != 0 && !rank->dead)
            afd_sim_found(sim, AFD_ORACLE_COLLECTED, "%s: row %u of the view is wrong",
                          afd_sim_where(sim, sim->current->id), t);
    }
}

/* --------------------------------------------------------------------------------------- checks */

static void check_batch(struct afd_sim *sim, struct afd_sim_rank *rank, struct afd_sim_act act)
{
    const struct afd_reference_batch *want = &sim->truth->exchange[act.exchange].batch[rank->index];
    const struct afd_plan *plan = &rank->plan;
    uint64_t rows = want->row_count;
    uint64_t locals = want->local_experts;
    const char *what = NULL;
    uint64_t token_count = *(uint64_t *)afd_sim_private(rank, AFD_PRIVATE_TOKEN_COUNT, act.stage);
    const uint8_t *got = afd_sim_private(rank, AFD_PRIVATE_ROWS, act.stage);
    if (memcmp(afd_sim_private(rank, AFD_PRIVATE_COUNTS, act.stage), want->counts,
               locals * sizeof(uint32_t)) != 0)
        what = "counts";
    else if (memcmp(afd_sim_private(rank, AFD_PRIVATE_OFFSETS, act.stage), want->offsets,
                    (locals + 1) * sizeof(uint32_t)) != 0)
        what = "offsets";
    else if (memcmp(afd_sim_private(rank, AFD_PRIVATE_SLOTS, act.stage), want->slots,
                    rows * sizeof(uint32_t)) != 0)
        what = "slots";
    else if (memcmp(afd_sim_private(rank, AFD_PRIVATE_WEIGHTS, act.stage), want->weights,
                    rows * sizeof(float)) != 0)
        what = "weights";
    else if (token_count != want->token_count)
        what = "token count";
    else if (sim->options.config.receive == AFD_RECEIVE_EXPANDED)
        for (uint64_t r = 0; r < rows && what == NULL; r++)
            if (want->slots[r] != AFD_SLOT_NONE &&
                (memcmp(got + r * plan->shape.payload_bytes,
                        want->rows + r * plan->shape.payload_bytes,
                        plan->shape.payload_bytes) != 0))
                what = "rows";
    if (what != NULL)
        afd_sim_found(sim, AFD_ORACLE_BATCH, "%s: the batch's %s differ from the reference",
                      afd_sim_where(sim, afd_sim_block_of(sim, rank, 0)->id), what);
}

static void check_scales(struct afd_sim *sim, struct afd_sim_rank *rank, struct afd_sim_act act)
{
    const struct afd_reference_batch *want = &sim->truth->exchange[act.exchange].batch[rank->index];
    const struct afd_plan *plan = &rank->plan;
    uint32_t bytes = plan->shape.scale_bytes;
    const uint8_t *got = afd_sim_private(rank, AFD_PRIVATE_SCALES, act.stage);
    if (bytes == 0 || sim->options.config.receive != AFD_RECEIVE_EXPANDED)
        return;
    for (uint64_t r = 0; r < want->row_count; r++)
        for (uint32_t i = 0; want->slots[r] != AFD_SLOT_NONE && i < bytes; i++) {
            uint32_t item = i / plan->scale_item_bytes;
            uint64_t at = plan->scales_row_stride * r + i % plan->scale_item_bytes;
            if (plan->scale_item_bytes != bytes)
                at += plan->scales_group_stride * item;
            if (got[at] != want->scales[r * bytes + i])
                afd_sim_found(sim, AFD_ORACLE_BATCH, "%s: the scales of row %llu differ",
                              afd_sim_where(sim, afd_sim_block_of(sim, rank, 0)->id),
                              (unsigned long long)r);
        }
}

static int is_nan_row(const uint16_t *row, uint32_t hidden)
{
    for (uint32_t h = 0; h < hidden; h++)
        if (row[h] != BF16_NAN)
            return 0;
    return 1;
}

/* Every row is right; after a fault it may also be NaN, never anything else. */
static void check_collected(struct afd_sim *sim, struct afd_sim_rank *rank, struct afd_sim_act act,
                            int failed)
{
    const struct afd_sim_input *in = &sim->truth->exchange[act.exchange].input[rank->index];
    uint32_t hidden = rank->plan.shape.hidden;
    const uint16_t *out = rank->out + (uint64_t)act.stage * rank->plan.shape.capacity * hidden;
    for (uint32_t t = 0; t < in->tokens; t++) {
        const uint16_t *row = out + (uint64_t)t * hidden;
        if (memcmp(row, in->collected + (uint64_t)t * hidden, hidden * 2ull) != 0 &&
            !(failed && is_nan_row(row, hidden)))
            afd_sim_found(sim, AFD_ORACLE_COLLECTED, "%s: collected row %u is wrong",
                          afd_sim_where(sim, afd_sim_block_of(sim, rank, 0)->id), t);
    }
}

/* Counts that read 0, so that nothing stale looks valid. */
static void check_failed_batch(struct afd_sim *sim, struct afd_sim_rank *rank,
                               struct afd_sim_act act)
{
    const uint32_t *counts = afd_sim_private(rank, AFD_PRIVATE_COUNTS, act.stage);
    for (uint32_t e = 0; e < rank->plan.local_experts; e++)
        if (counts[e] != 0)
            afd_sim_found(sim, AFD_ORACLE_BATCH, "%s: a failed receive counts %u rows",
                          afd_sim_where(sim, afd_sim_block_of(sim, rank, 0)->id), counts[e]);
}

/* --------------------------------------------------------------------------------------- faults */

void afd_sim_rank_fail(struct afd_sim *sim, struct afd_sim_rank *rank, int32_t code, uint32_t blame)
{
    rank->ended = 1;
    rank->code = code;
    for (uint32_t r = 0; r < sim->world; r++) { /* its host tells every peer */
        struct afd_sim_rank *peer = &sim->rank[r];
        if (peer->ended || peer->verdict != 0)
            continue;
        peer->verdict = code;
        peer->verdict_rank = blame;
        for (uint32_t i = 0; i < sim->blocks_each && sim->options.fault != AFD_SIM_FAULT_ROUTE; i++)
            if (afd_sim_block_of(sim, peer, i)->state == AFD_SIM_ASLEEP)
                afd_sim_ready(sim, afd_sim_block_of(sim, peer, i));
    }
}

static int code_is_right(const struct afd_sim *sim, const struct afd_sim_rank *rank)
{
    switch (sim->options.fault) {
    case AFD_SIM_FAULT_DIE:
    case AFD_SIM_FAULT_STALL:
        return rank->code == AFD_EPEER || rank->code == 0;
    case AFD_SIM_FAULT_ABORT:
        return rank->code == AFD_EABORTED || rank->code == 0;
    case AFD_SIM_FAULT_ROUTE:
        return rank->code == AFD_EROUTE || rank->code == 0;
    default:
        return rank->code == 0;
    }
}

void afd_sim_ranks_check(struct afd_sim *sim)
{
    for (uint32_t r = 0; r < sim->world && !sim->stopping; r++) {
        const struct afd_sim_rank *rank = &sim->rank[r];
        if (rank->dead)
            continue;
        if (!code_is_right(sim, rank))
            afd_sim_found(sim, AFD_ORACLE_CODE,
                          "rank %u ended with %s (word %u of rank %d: expected %llu, saw %llu)", r,
                          afd_error_name(rank->code), rank->trouble.kind, (int)rank->trouble.peer,
                          (unsigned long long)rank->trouble.expected,
                          (unsigned long long)rank->trouble.seen);
        else if (rank->code == 0 && rank->act_next < rank->act_count)
            afd_sim_found(sim, AFD_ORACLE_CODE,
                          "rank %u stopped after %u of %u acts, without error", r, rank->act_next,
                          rank->act_count);
    }
}

/* ---------------------------------------------------------------------------------------- steps */

static uint32_t draw_blocks(struct afd_sim *sim)
{
    return sim->options.blocks != 0 ? sim->options.blocks
                                    : 1 + afd_sim_below(sim, sim->blocks_each);
}

/* How a source's rows travel, and how it wants them back: bit 0 and bit 1 are 1 for words. */
static uint32_t draw_variant(struct afd_sim *sim, uint32_t tokens)
{
    const struct afd_buffer_config *c = &sim->options.config;
    uint32_t random = afd_sim_below(sim, 4);
    uint32_t there = c->variant == AFD_VARIANT_AUTO ? random & 1u : c->variant == AFD_VARIANT_WORDS;
    uint32_t back =
        c->reply_variant == AFD_VARIANT_AUTO ? random >> 1 : c->reply_variant == AFD_VARIANT_WORDS;
    if (tokens > c->words_tokens)
        return 0;
    if (c->receive == AFD_RECEIVE_INDEXED)
        there = 0;
    if (sim->options.view)
        back = 0;
    return there | back << 1;
}

static void enter(struct afd_sim *sim, struct afd_sim_rank *rank, struct afd_sim_act act)
{
    const struct afd_sim_protocol *protocol = afd_sim_protocol_of(rank->plan.protocol);
    uint32_t hidden = rank->plan.shape.hidden;
    uint64_t values = (uint64_t)rank->plan.shape.capacity * hidden;
    rank->blocks = draw_blocks(sim);
    if (act.phase == AFD_SIM_ACT_EXPERTS || act.phase == AFD_SIM_ACT_LOOK) {
        rank->blocks = 1;
        rank->step = act.phase == AFD_SIM_ACT_LOOK ? act_look : act_experts;
        return;
    }
    if (act.phase == AFD_PHASE_DISPATCH)
        rank->variant[act.stage] =
            draw_variant(sim, sim->truth->exchange[act.exchange].input[rank->index].tokens);
    if (act.phase == AFD_PHASE_COLLECT)
        memset(rank->out + act.stage * values, 0xee, values * sizeof(uint16_t));
    if ((act.phase == AFD_PHASE_DISPATCH || act.phase == AFD_PHASE_REPLY) &&
        protocol->poison != NULL)
        protocol->poison(rank, act.stage);
    protocol->fill(rank, act);
    rank->step = protocol->step[act.phase];
}

void afd_sim_rank_go(struct afd_sim *sim, struct afd_sim_rank *rank)
{
    if (rank->ended || sim->stopping)
        return;
    if (rank->act_next == rank->act_count) {
        rank->ended = 1;
        return;
    }
    if (rank->verdict == AFD_EABORTED && sim->options.fault == AFD_SIM_FAULT_ABORT) {
        afd_sim_rank_fail(sim, rank, AFD_EABORTED, rank->verdict_rank);
        return;
    }
    enter(sim, rank, rank->act[rank->act_next++]);
    rank->running = rank->blocks;
    for (uint32_t i = 0; i < rank->blocks; i++) {
        struct afd_sim_block *b = afd_sim_block_of(sim, rank, i);
        b->look = 0;
        afd_fibers_arm(sim->fibers, b->id);
        afd_sim_ready(sim, b);
    }
}

static void check_act(struct afd_sim *sim, struct afd_sim_rank *rank, struct afd_sim_act act)
{
    int failed = rank->trouble.taken != 0;
    if (act.phase == AFD_PHASE_RECEIVE && failed)
        check_failed_batch(sim, rank, act);
    if (act.phase == AFD_PHASE_RECEIVE && !failed) {
        check_batch(sim, rank, act);
        check_scales(sim, rank, act);
    }
    if (act.phase == AFD_PHASE_COLLECT && !sim->options.view)
        check_collected(sim, rank, act, failed);
}

void afd_sim_rank_done(struct afd_sim *sim, struct afd_sim_rank *rank)
{
    struct afd_sim_act act = rank->act[rank->act_next - 1];
    if (rank->dead || sim->stopping)
        return;
    for (uint32_t i = 0; i < sim->blocks_each; i++)
        afd_sim_flush_own(sim, afd_sim_block_of(sim, rank, i));
    check_act(sim, rank, act);
    afd_sim_step_joins(sim, rank);
    if (rank->trouble.taken)
        afd_sim_rank_fail(sim, rank, rank->trouble.code, rank->trouble.rank);
    afd_sim_rank_go(sim, rank);
}
