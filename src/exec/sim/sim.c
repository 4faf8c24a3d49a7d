/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c - a simulation: its memory, and one schedule after another in it. */

#include "exec/sim/sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "error.h"
#include "exec/sim/hooks.h"
#include "exec/sim/state.h"

/* ---------------------------------------------------------------------------------------- names */

const char *afd_hunt_name(uint32_t hunt)
{
    static const char *const names[] = {
#define HUNT_NAME(name, text, what) text,
        AFD_HUNT_LIST(HUNT_NAME)};
    return hunt < AFD_HUNT_COUNT ? names[hunt] : "unknown";
}

const char *afd_oracle_name(uint32_t oracle)
{
    static const char *const names[] = {
#define ORACLE_NAME(name, text) text,
        AFD_ORACLE_LIST(ORACLE_NAME)};
    return oracle < AFD_ORACLE_COUNT ? names[oracle] : "unknown";
}

const char *afd_sim_fault_name(uint32_t fault)
{
    static const char *const names[] = {
#define FAULT_NAME(name, text, what) text,
        AFD_SIM_FAULT_LIST(FAULT_NAME)};
    return fault < AFD_SIM_FAULT_COUNT ? names[fault] : "unknown";
}

static const char *phase_name(uint32_t phase)
{
    if (phase == AFD_SIM_ACT_EXPERTS)
        return "experts";
    return phase == AFD_SIM_ACT_LOOK ? "view" : afd_phase_name(phase);
}

const char *afd_sim_where(const struct afd_sim *sim, uint32_t block)
{
    static _Thread_local char text[160];
    const struct afd_sim_block *b = &sim->block[block];
    const struct afd_sim_rank *rank = &sim->rank[b->rank];
    struct afd_sim_act act = {0, 0, 0};
    if (rank->act_next != 0)
        act = rank->act[rank->act_next - 1];
    snprintf(text, sizeof(text), "rank %u (%s %u), %s, stage %u, exchange %u, block %u of %u",
             b->rank, rank->role == AFD_ROLE_FFN ? "FFN" : "source", rank->index,
             phase_name(act.phase), act.stage, act.exchange + 1u, b->index, rank->blocks);
    return text;
}

const char *afd_sim_place_name(const struct afd_sim *sim, uint64_t at)
{
    static _Thread_local char text[96];
    uint32_t owner = at < sim->arena_bytes ? afd_sim_owner(sim, at) : 0;
    const struct afd_sim_rank *rank = &sim->rank[owner];
    uint64_t inside = at - (uint64_t)(rank->window - sim->arena);
    afd_sim_region_name(rank, inside, owner, text, sizeof(text));
    return text;
}

/* -------------------------------------------------------------------------------------- options */

void afd_sim_options_init(struct afd_sim_options *options)
{
    memset(options, 0, sizeof(*options));
    options->sources = 2;
    options->ffn_ranks = 2;
    options->exchanges = 4;
    options->preemptions = 2;
    afd_buffer_config_init(&options->config);
    options->config.capacity = 8;
    options->config.hidden = 16;
    options->config.experts = 8;
    options->config.topk = 4;
    options->config.words_tokens = 8;
    options->config.variant = AFD_VARIANT_AUTO;
    options->config.reply_variant = AFD_VARIANT_AUTO;
}

static int check_options(const struct afd_sim_options *o)
{
    if (o->sources + o->ffn_ranks > AFD_SIM_WORLD_MAX)
        return afd_error_set(AFD_EINVAL, "%u ranks; a simulation has at most %u",
                             o->sources + o->ffn_ranks, AFD_SIM_WORLD_MAX);
    if (o->blocks > AFD_SIM_BLOCKS_MAX)
        return afd_error_set(AFD_EINVAL, "%u blocks; a simulation has at most %u for a step",
                             o->blocks, AFD_SIM_BLOCKS_MAX);
    if (o->exchanges == 0 || o->exchanges > 4096)
        return afd_error_set(AFD_EINVAL, "%u exchanges; they must be 1 .. 4096", o->exchanges);
    if (o->mutant >= AFD_MUTANT_COUNT)
        return afd_error_set(AFD_EINVAL, "mutant %u of %u", o->mutant, AFD_MUTANT_COUNT - 1);
    if (o->view && o->ffn_ranks != 1)
        return afd_error_set(AFD_EINVAL, "views need exactly 1 FFN rank, but there are %u",
                             o->ffn_ranks);
    if (o->tag_period != 0 && o->tag_period <= o->config.words_tokens)
        return afd_error_set(AFD_EINVAL,
                             "tags that repeat after %u epochs need fewer words_tokens than %u",
                             o->tag_period, o->config.words_tokens);
    if (o->config.weighted_reply && !o->weights)
        return afd_error_set(AFD_EINVAL, "weighted replies need weights");
    return 0;
}

/* --------------------------------------------------------------------------------------- create */

static uint64_t window_bytes(const struct afd_plan *plan)
{
    return plan->role == AFD_ROLE_FFN ? plan->ffn_layout.window_bytes
                                      : plan->attention_layout.window_bytes;
}

static void *zeroed(uint64_t count, uint64_t bytes)
{
    return calloc(count + 1, bytes);
}

static int create_rank(struct afd_sim *sim, const struct afd_group_config *group, uint32_t r)
{
    struct afd_sim_rank *rank = &sim->rank[r];
    const struct afd_buffer_config *c = &sim->options.config;
    uint64_t acts = 4ull * sim->options.exchanges + 4;
    int rc = afd_plan_make(group, c, r, &rank->plan);
    if (rc != 0)
        return rc;
    if (afd_sim_protocol_of(rank->plan.protocol) == NULL)
        return afd_error_set(AFD_EUNSUPPORTED, "protocol %u cannot be simulated yet",
                             rank->plan.protocol);
    afd_sim_mutant = sim->options.mutant;
    afd_sim_layouts(&rank->plan, afd_control_bytes(sim->world));
    rank->sim = sim;
    rank->rank = r;
    rank->role = rank->plan.role;
    rank->index = rank->plan.index;
    rank->exec.pause = afd_sim_pause;
    rank->exec.trouble = &rank->trouble;
    rank->exec.owner = rank;
    rank->history_room = (uint32_t)acts + 1;
    rank->act = zeroed(acts, sizeof(*rank->act));
    rank->args = zeroed(1, afd_sim_args_bytes());
    rank->witness = zeroed(sim->world, sizeof(uint32_t));
    rank->heard = zeroed(sim->world, sizeof(uint32_t));
    rank->history = zeroed((uint64_t)rank->history_room * sim->world, sizeof(uint32_t));
    rank->out = zeroed((uint64_t)c->stages * c->capacity * c->hidden, sizeof(uint16_t));
    rank->private_memory = mmap(NULL, rank->plan.private_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (rank->private_memory == MAP_FAILED)
        rank->private_memory = NULL;
    if (rank->act == NULL || rank->args == NULL || rank->witness == NULL || rank->heard == NULL ||
        rank->history == NULL || rank->out == NULL || rank->private_memory == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for rank %u of a simulation", r);
    sim->arena_bytes += window_bytes(&rank->plan);
    return 0;
}

static int create_arena(struct afd_sim *sim)
{
    uint64_t at = 0;
    uint32_t sources = 0;
    uint32_t ffn_ranks = 0;
    sim->arena = mmap(NULL, sim->arena_bytes + AFD_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sim->arena == MAP_FAILED)
        sim->arena = NULL;
    sim->page_rank = zeroed(sim->arena_bytes / AFD_PAGE, sizeof(uint16_t));
    sim->cell = zeroed(sim->arena_bytes / AFD_SIM_CELL + 8, sizeof(*sim->cell));
    if (sim->arena == NULL || sim->page_rank == NULL || sim->cell == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for windows of %llu bytes",
                             (unsigned long long)sim->arena_bytes);
    for (uint32_t r = 0; r < sim->world; r++) {
        struct afd_sim_rank *rank = &sim->rank[r];
        rank->window = sim->arena + at;
        for (uint64_t page = 0; page < window_bytes(&rank->plan); page += AFD_PAGE)
            sim->page_rank[(at + page) / AFD_PAGE] = (uint16_t)r;
        at += window_bytes(&rank->plan);
        if (rank->role == AFD_ROLE_FFN) {
            sim->ffn_rank[ffn_ranks] = r;
            sim->ffn_window[ffn_ranks++] = rank->window;
        } else {
            sim->source_rank[sources] = r;
            sim->source_window[sources++] = rank->window;
        }
    }
    return 0;
}

static int create_blocks(struct afd_sim *sim)
{
    for (uint32_t i = 0; i < sim->block_count; i++) {
        struct afd_sim_block *b = &sim->block[i];
        b->id = i;
        b->rank = i / sim->blocks_each;
        b->index = i % sim->blocks_each;
        b->room = 64;
        b->now = zeroed(sim->block_count, sizeof(uint32_t));
        b->store = zeroed(b->room, sizeof(*b->store));
        sim->full_at[i] = UINT32_MAX;
        if (b->now == NULL || b->store == NULL)
            return afd_error_set(AFD_ENOMEM, "no memory for block %u of a simulation", i);
    }
    return 0;
}

static int create_tables(struct afd_sim *sim)
{
    const struct afd_buffer_config *c = &sim->options.config;
    uint32_t held[AFD_SIM_WORLD_MAX] = {0};
    sim->rank = zeroed(sim->world, sizeof(*sim->rank));
    sim->block = zeroed(sim->block_count, sizeof(*sim->block));
    sim->ffn_window = zeroed(sim->world, sizeof(*sim->ffn_window));
    sim->source_window = zeroed(sim->world, sizeof(*sim->source_window));
    sim->ffn_rank = zeroed(sim->world, sizeof(uint32_t));
    sim->source_rank = zeroed(sim->world, sizeof(uint32_t));
    sim->expert_ffn = zeroed(c->experts + 128ull, sizeof(uint16_t)); /* bad ids too */
    sim->expert_local = zeroed(c->experts + 128ull, sizeof(uint16_t));
    sim->ready = zeroed(sim->block_count, sizeof(uint32_t));
    sim->ready_at = zeroed(sim->block_count, sizeof(uint32_t));
    sim->full = zeroed(sim->block_count, sizeof(uint32_t));
    sim->full_at = zeroed(sim->block_count, sizeof(uint32_t));
    sim->word_room = 256;
    sim->word = zeroed(sim->word_room, sizeof(*sim->word));
    sim->clock_room = 256;
    sim->clock = zeroed((uint64_t)sim->clock_room * sim->block_count, sizeof(uint32_t));
    sim->clock_free = zeroed(sim->clock_room, sizeof(uint32_t));
    if (sim->rank == NULL || sim->block == NULL || sim->ffn_window == NULL ||
        sim->source_window == NULL || sim->ffn_rank == NULL || sim->source_rank == NULL ||
        sim->expert_ffn == NULL || sim->expert_local == NULL || sim->ready == NULL ||
        sim->ready_at == NULL || sim->full == NULL || sim->full_at == NULL || sim->word == NULL ||
        sim->clock == NULL || sim->clock_free == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for a simulation of %u ranks", sim->world);
    for (uint32_t e = 0; e < c->experts; e++) {
        uint32_t owner = afd_plan_expert_ffn(c, sim->options.ffn_ranks, e);
        sim->expert_ffn[e] = (uint16_t)owner;
        sim->expert_local[e] = (uint16_t)held[owner]++;
    }
    return 0;
}

static void block_main(void *context, uint32_t index)
{
    struct afd_sim *sim = context;
    struct afd_sim_block *b = &sim->block[index];
    struct afd_sim_rank *rank = &sim->rank[b->rank];
    struct afd_lane lane = {b->index, rank->blocks, 0, 1, &rank->exec};
    if (sim->trace != NULL)
        afd_sim_trace_step(sim, b, 1);
    rank->step(lane, rank);
}

static int create(struct afd_sim *sim)
{
    uint8_t roles[AFD_SIM_WORLD_MAX];
    struct afd_group_config group;
    int rc = check_options(&sim->options);
    rc = rc ? rc : create_tables(sim);
    afd_group_config_init(&group);
    group.world = sim->world;
    group.roles = roles;
    for (uint32_t r = 0; r < sim->world; r++)
        roles[r] = r < sim->options.ffn_ranks ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION;
    for (uint32_t r = 0; rc == 0 && r < sim->world; r++)
        rc = create_rank(sim, &group, r);
    rc = rc ? rc : create_arena(sim);
    rc = rc ? rc : create_blocks(sim);
    rc = rc ? rc : afd_sim_truth_create(&sim->options, &sim->truth);
    rc = rc ? rc : afd_fibers_create(sim->block_count, &sim->fibers);
    rc = rc ? rc : afd_fibers_prepare(sim->fibers, sim->block_count);
    if (rc == 0)
        afd_fibers_bind(sim->fibers, block_main, sim);
    return rc;
}

int afd_sim_create(const struct afd_sim_options *options, struct afd_sim **sim_out)
{
    struct afd_sim *sim = calloc(1, sizeof(*sim));
    int rc;
    if (sim == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for a simulation");
    sim->options = *options;
    sim->world = options->sources + options->ffn_ranks;
    sim->blocks_each = options->blocks != 0 ? options->blocks : sim->world > 32 ? 1 : 4;
    sim->block_count = sim->world * sim->blocks_each;
    rc = create(sim);
    if (rc != 0)
        afd_sim_destroy(sim);
    else
        *sim_out = sim;
    return rc;
}

static void destroy_rank(struct afd_sim_rank *rank)
{
    if (rank->private_memory != NULL)
        munmap(rank->private_memory, rank->plan.private_bytes);
    free(rank->act);
    free(rank->args);
    free(rank->witness);
    free(rank->heard);
    free(rank->history);
    free(rank->out);
}

void afd_sim_destroy(struct afd_sim *sim)
{
    if (sim == NULL)
        return;
    for (uint32_t r = 0; sim->rank != NULL && r < sim->world; r++)
        destroy_rank(&sim->rank[r]);
    for (uint32_t i = 0; sim->block != NULL && i < sim->block_count; i++) {
        free(sim->block[i].now);
        free(sim->block[i].store);
    }
    if (sim->arena != NULL)
        munmap(sim->arena, sim->arena_bytes + AFD_PAGE);
    afd_fibers_destroy(sim->fibers);
    afd_sim_truth_destroy(sim->truth);
    free(sim->rank);
    free(sim->block);
    free(sim->page_rank);
    free(sim->cell);
    free(sim->ffn_window);
    free(sim->source_window);
    free(sim->ffn_rank);
    free(sim->source_rank);
    free(sim->expert_ffn);
    free(sim->expert_local);
    free(sim->ready);
    free(sim->ready_at);
    free(sim->full);
    free(sim->full_at);
    free(sim->word);
    free(sim->clock);
    free(sim->clock_free);
    free(sim);
}
