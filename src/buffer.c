/* SPDX-License-Identifier: Apache-2.0 */
/* buffer.c - create, close and look at a buffer. */

#include "buffer.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "agree.h"
#include "error.h"
#include "switches.h"

AFD_STATIC_ASSERT(AFD_CODE_PEER == AFD_EPEER && AFD_CODE_ABORTED == AFD_EABORTED &&
                      AFD_CODE_STATE == AFD_ESTATE && AFD_CODE_CAPACITY == AFD_ECAPACITY &&
                      AFD_CODE_ROUTE == AFD_EROUTE && AFD_CODE_INVALID == AFD_EINVAL &&
                      AFD_CODE_PROTO == AFD_EPROTO,
                  "the shared subset repeats these codes");
AFD_STATIC_ASSERT(AFD_KEY_NONE == AFD_SLOT_NONE, "padding slots and empty keys are one value");

/* Looks before a wait yields: many where every local rank can have a core, few where they share. */
#define SPIN_ROUNDS_OWN_CORE 20000u
#define SPIN_ROUNDS_SHARED 20u

void afd_buffer_config_init(struct afd_buffer_config *config)
{
    memset(config, 0, sizeof(*config));
    config->size = sizeof(*config);
    config->topk = 8;
    config->payload = AFD_PAYLOAD_BF16;
    config->reply = AFD_REPLY_BF16;
    config->receive = AFD_RECEIVE_EXPANDED;
    config->protocol = AFD_PROTOCOL_AUTO;
    config->stages = 1;
    config->alignment = 1;
    config->first_epoch = 1;
}

/* --------------------------------------------------------------------------------------- memory */

static void add_region(struct afd_memory *memory, const char *name, uint64_t bytes,
                       uint32_t registered)
{
    struct afd_memory_region *region;
    if (bytes == 0)
        return;
    AFD_ASSERT(memory->region_count < AFD_MEMORY_REGIONS_MAX);
    region = &memory->region[memory->region_count++];
    region->name = name;
    region->bytes = bytes;
    region->registered = registered;
}

static void add_window_regions(struct afd_memory *memory, const struct afd_plan *plan)
{
    const struct afd_layout *layout =
        plan->role == AFD_ROLE_FFN ? &plan->ffn_layout : &plan->attention_layout;
    const struct afd_stage_layout *s = &layout->stage;
    const struct {
        const char *name;
        struct afd_region region;
    } regions[] = {
        {"headers", s->headers},
        {"credits", s->credits},
        {"routes", s->routes},
        {"weights", s->weights},
        {"inbox", s->inbox},
        {"words inbox", s->words},
        {"reply headers", s->reply_headers},
        {"reply credits", s->reply_credits},
        {"reply inbox", s->reply_inbox},
        {"reply words", s->reply_words},
    };
    uint64_t placed = layout->control_bytes;
    add_region(memory, "control", layout->control_bytes, 1);
    for (size_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        uint64_t bytes = regions[i].region.count * regions[i].region.stride * plan->shape.stages;
        add_region(memory, regions[i].name, bytes, 1);
        placed += bytes;
    }
    add_region(memory, "alignment", layout->window_bytes - placed, 1);
    memory->registered_bytes = layout->window_bytes;
}

/* Replies lie over the inbox: the larger of the two is what both need. */
static void add_union_regions(struct afd_memory *memory, const struct afd_plan *plan)
{
    const struct afd_union_layout *layout = &plan->union_layout;
    uint64_t stages = plan->shape.stages;
    uint64_t barrier = layout->barrier.count * layout->barrier.stride * stages;
    uint64_t counts = layout->counts.count * layout->counts.stride * stages;
    uint64_t inbox = layout->inbox.count * layout->inbox.stride * stages;
    uint64_t reply = layout->reply.count * layout->reply.stride * stages;
    inbox = inbox > reply ? inbox : reply;
    add_region(memory, "control", layout->control_bytes, 1);
    add_region(memory, "barrier", barrier, 1);
    add_region(memory, "counts", counts, 1);
    add_region(memory, "inbox", inbox, 1);
    add_region(memory, "alignment",
               layout->window_bytes - layout->control_bytes - barrier - counts - inbox, 1);
    memory->registered_bytes = layout->window_bytes;
}

static void add_private_regions(struct afd_memory *memory, const struct afd_plan *plan)
{
    uint64_t stages = plan->shape.stages;
    uint64_t batch = 0;
    for (int kind = AFD_PRIVATE_SLOTS; kind <= AFD_PRIVATE_SCALES; kind++)
        batch += plan->private_bytes_of[kind] * stages;
    add_region(memory, "batch", batch, 0);
    add_region(memory, "bookkeeping", plan->private_bytes - batch, 0);
    memory->private_bytes = plan->private_bytes;
}

int afd_buffer_memory(const struct afd_group_config *group, const struct afd_buffer_config *config,
                      uint32_t rank, struct afd_memory *memory_out)
{
    struct afd_plan plan;
    int rc;
    if (memory_out == NULL)
        return afd_error_set(AFD_EINVAL, "memory_out is NULL");
    rc = afd_plan_make(group, config, rank, &plan);
    if (rc != 0)
        return rc;
    memset(memory_out, 0, sizeof(*memory_out));
    if (plan.protocol == AFD_PROTOCOL_UNION)
        add_union_regions(memory_out, &plan);
    else
        add_window_regions(memory_out, &plan);
    add_private_regions(memory_out, &plan);
    return 0;
}

/* --------------------------------------------------------------------------------------- create */

static int copy_placement(struct afd_buffer *buffer)
{
    uint32_t experts = buffer->config.experts;
    buffer->placement = malloc((size_t)experts * sizeof(*buffer->placement));
    if (buffer->placement == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for the placement of %u experts", experts);
    for (uint32_t e = 0; e < experts; e++)
        buffer->placement[e] =
            afd_plan_expert_ffn(&buffer->config, buffer->plan.shape.ffn_ranks, e);
    buffer->config.placement = buffer->placement;
    return 0;
}

static int allocate_private(struct afd_buffer *buffer)
{
    void *memory = mmap(NULL, buffer->plan.private_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return afd_error_set(AFD_ENOMEM, "%llu bytes of private memory: %s",
                             (unsigned long long)buffer->plan.private_bytes, strerror(errno));
    buffer->private_memory = memory;
    return 0;
}

static void fill_tables(struct afd_buffer *buffer)
{
    const struct afd_plan *plan = &buffer->plan;
    uint32_t held[AFD_GROUP_WORLD_MAX] = {0};
    uint16_t *ffn = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_FFN, 0);
    uint16_t *local = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_LOCAL, 0);
    uint32_t *ids = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_IDS, 0);
    for (uint32_t e = 0; e < plan->shape.experts; e++) {
        uint32_t owner = buffer->placement[e];
        if (plan->role == AFD_ROLE_ATTENTION) {
            ffn[e] = (uint16_t)owner;
            local[e] = (uint16_t)held[owner];
        } else if (owner == plan->index) {
            ids[held[owner]] = e;
        }
        held[owner]++;
    }
    for (uint32_t stage = 0; stage < plan->shape.stages; stage++)
        afd_buffer_state(buffer, stage)->epoch = buffer->config.first_epoch - 1;
}

/* Spinning pays only where the awaited rank can run meanwhile. */
static uint32_t spin_rounds(const struct afd_group *group)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
    return group->config.world <= (uint32_t)cores ? SPIN_ROUNDS_OWN_CORE : SPIN_ROUNDS_SHARED;
}

static int allocate(struct afd_buffer *buffer)
{
    uint32_t world = buffer->group->config.world;
    int rc;
    buffer->window = calloc(world, sizeof(*buffer->window));
    buffer->ffn_window = calloc(world, sizeof(*buffer->ffn_window));
    buffer->source_window = calloc(world, sizeof(*buffer->source_window));
    buffer->rank_window = calloc(world, sizeof(*buffer->rank_window));
    buffer->ffn_rank = calloc(world, sizeof(*buffer->ffn_rank));
    buffer->source_rank = calloc(world, sizeof(*buffer->source_rank));
    if (buffer->window == NULL || buffer->ffn_window == NULL || buffer->source_window == NULL ||
        buffer->rank_window == NULL || buffer->ffn_rank == NULL || buffer->source_rank == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for the tables of %u ranks", world);
    rc = copy_placement(buffer);
    if (rc == 0)
        rc = allocate_private(buffer);
    if (rc != 0)
        return rc;
    fill_tables(buffer);
    return afd_inline_init(&buffer->inl, buffer->config.blocks != 0 ? buffer->config.blocks : 1,
                           spin_rounds(buffer->group), afd_buffer_watch, buffer);
}

static void sort_windows(struct afd_buffer *buffer)
{
    const struct afd_group *group = buffer->group;
    uint32_t sources = 0;
    uint32_t ffn_ranks = 0;
    for (uint32_t r = 0; r < group->config.world; r++) {
        buffer->rank_window[r] = buffer->window[r].base;
        if (group->roles[r] == AFD_ROLE_FFN) {
            buffer->ffn_rank[ffn_ranks] = r;
            buffer->ffn_window[ffn_ranks++] = buffer->window[r].base;
        } else {
            buffer->source_rank[sources] = r;
            buffer->source_window[sources++] = buffer->window[r].base;
        }
    }
}

static void init_control(struct afd_buffer *buffer)
{
    uint32_t rank = buffer->group->config.rank;
    struct afd_control *control = afd_buffer_control(buffer, rank);
    control->magic = AFD_CONTROL_MAGIC;
    control->nonce = buffer->window[rank].nonce;
    control->window_bytes = buffer->window[rank].bytes;
    control->rank = rank;
    control->world = buffer->group->config.world;
    __atomic_store_n(&control->life, AFD_LIFE_OPEN, __ATOMIC_RELEASE);
}

static int open_peers(struct afd_buffer *buffer, const struct afd_window_ticket *tickets)
{
    uint32_t me = buffer->group->config.rank;
    for (uint32_t r = 0; r < buffer->group->config.world; r++) {
        const struct afd_control *control;
        int rc = r == me ? 0 : afd_window_open(&tickets[r], r, &buffer->window[r]);
        if (rc != 0)
            return rc;
        control = afd_buffer_control(buffer, r);
        if (control->magic != AFD_CONTROL_MAGIC || control->nonce != tickets[r].nonce ||
            control->rank != r)
            return afd_error_set(AFD_EPEER, "what was opened as the window of rank %u is not it",
                                 r);
    }
    return 0;
}

/* Windows: create, exchange, map, and forget the descriptors. Collective. */
static int connect_windows(struct afd_buffer *buffer)
{
    const struct afd_group *group = buffer->group;
    const struct afd_plan *plan = &buffer->plan;
    uint32_t me = group->config.rank;
    uint64_t bytes = afd_plan_window_bytes(plan);
    struct afd_window_ticket own = {0, 0, 0, -1, 0};
    struct afd_window_ticket *tickets = calloc(group->config.world, sizeof(*tickets));
    int rc = tickets == NULL ? afd_error_set(AFD_ENOMEM, "no memory for window tickets")
                             : afd_window_create(bytes, &buffer->window[me], &own);
    if (rc == 0)
        init_control(buffer);
    rc = afd_agree_windows(group, &own, tickets, rc);
    if (rc == 0 && tickets != NULL)
        rc = afd_agree_step(group, open_peers(buffer, tickets));
    if (own.fd >= 0)
        afd_window_publish_end(&own);
    free(tickets);
    if (rc == 0)
        sort_windows(buffer);
    return rc;
}

/* Also after a create that failed here: peers that came further must not take the end of this
 * process for a death. */
static void release(struct afd_buffer *buffer)
{
    uint32_t me = buffer->group->config.rank;
    if (buffer->window != NULL && buffer->window[me].base != NULL)
        /* pairs with peer_closed() in fault.c: everything this rank sent is visible before */
        __atomic_store_n(&afd_buffer_control(buffer, me)->life, AFD_LIFE_CLOSED, __ATOMIC_RELEASE);
    for (uint32_t r = 0; buffer->window != NULL && r < buffer->group->config.world; r++)
        afd_window_close(&buffer->window[r]);
    afd_inline_fini(&buffer->inl);
    if (buffer->private_memory != NULL)
        munmap(buffer->private_memory, buffer->plan.private_bytes);
    free(buffer->placement);
    free(buffer->source_rank);
    free(buffer->ffn_rank);
    free(buffer->rank_window);
    free(buffer->source_window);
    free(buffer->ffn_window);
    free(buffer->window);
    free(buffer);
}

/* What this rank can check and take without the others. */
static int prepare(struct afd_buffer *buffer, const struct afd_buffer_config *config)
{
    const struct afd_group *group = buffer->group;
    int rc = 0;
    if (config != NULL && config->size == sizeof(*config)) {
        buffer->config = *config;
        rc = afd_switches_apply(&buffer->config);
        config = &buffer->config;
    }
    if (rc == 0)
        rc = afd_plan_make(&group->config, config, group->config.rank, &buffer->plan);
    if (rc == 0 && group->buffer_count >= AFD_GROUP_BUFFERS_MAX)
        rc = afd_error_set(AFD_ESTATE,
                           "rank %u has %u open buffers in one group, the most there can be",
                           group->config.rank, AFD_GROUP_BUFFERS_MAX);
    if (rc == 0 && afd_group_is_aborted(group))
        rc = afd_error_set(AFD_EABORTED, "the group of rank %u was aborted", group->config.rank);
    if (rc != 0)
        return rc;
    buffer->deadline_us =
        buffer->config.deadline_us != 0 ? buffer->config.deadline_us : group->config.deadline_us;
    return allocate(buffer);
}

int afd_buffer_create(struct afd_group *group, const struct afd_buffer_config *config,
                      struct afd_buffer **buffer_out)
{
    struct afd_buffer *buffer;
    int rc;
    if (group == NULL || buffer_out == NULL)
        return afd_error_set(AFD_EINVAL, "group or buffer_out is NULL");
    buffer = calloc(1, sizeof(*buffer));
    if (buffer == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for a buffer");
    buffer->group = group;
    rc = prepare(buffer, config);
    rc = afd_agree_buffer(group, &buffer->config, rc);
    if (rc == 0)
        rc = connect_windows(buffer);
    if (rc != 0) {
        release(buffer);
        return rc;
    }
    afd_group_add_buffer(group, buffer);
    *buffer_out = buffer;
    return 0;
}

int afd_buffer_close(struct afd_buffer *buffer)
{
    if (buffer == NULL)
        return 0;
    if (__atomic_exchange_n(&buffer->busy, 1, __ATOMIC_ACQUIRE) != 0)
        return afd_error_set(AFD_ESTATE, "another thread is inside a call on this buffer");
    afd_group_remove_buffer(buffer->group, buffer);
    release(buffer);
    return 0;
}

/* ----------------------------------------------------------------------------------- properties */

static int between_exchanges(const struct afd_buffer *buffer)
{
    if (__atomic_load_n(&buffer->busy, __ATOMIC_ACQUIRE) != 0)
        return afd_error_set(AFD_ESTATE, "another thread is inside a call on this buffer");
    for (uint32_t stage = 0; stage < buffer->plan.shape.stages; stage++)
        if (buffer->stage[stage].open)
            return afd_error_set(AFD_ESTATE, "stage %u of rank %u has an open exchange", stage,
                                 buffer->group->config.rank);
    return 0;
}

int afd_buffer_set_blocks(struct afd_buffer *buffer, uint32_t blocks)
{
    int rc;
    if (buffer == NULL)
        return afd_error_set(AFD_EINVAL, "the buffer is NULL");
    if (blocks < 1 || blocks > AFD_BLOCKS_MAX)
        return afd_error_set(AFD_EINVAL, "blocks is %u; it must be 1 .. %u", blocks,
                             AFD_BLOCKS_MAX);
    rc = between_exchanges(buffer);
    return rc != 0 ? rc : afd_inline_set_blocks(&buffer->inl, blocks);
}

int afd_buffer_set_variant(struct afd_buffer *buffer, uint32_t variant, uint32_t reply_variant)
{
    int rc;
    if (buffer == NULL)
        return afd_error_set(AFD_EINVAL, "the buffer is NULL");
    if (variant > AFD_VARIANT_ROWS || reply_variant > AFD_VARIANT_ROWS)
        return afd_error_set(AFD_EINVAL, "variants are %u and %u; each must be 0 .. %u", variant,
                             reply_variant, AFD_VARIANT_ROWS);
    rc = between_exchanges(buffer);
    if (rc != 0)
        return rc;
    buffer->config.variant = variant;
    buffer->config.reply_variant = reply_variant;
    return 0;
}

int afd_buffer_info(const struct afd_buffer *buffer, struct afd_buffer_info *info_out)
{
    const struct afd_plan *plan;
    if (buffer == NULL || info_out == NULL)
        return afd_error_set(AFD_EINVAL, "buffer or info_out is NULL");
    plan = &buffer->plan;
    info_out->role = plan->role;
    info_out->index = plan->index;
    info_out->sources = plan->shape.sources;
    info_out->ffn_ranks = plan->shape.ffn_ranks;
    info_out->local_experts = plan->local_experts;
    info_out->protocol = plan->protocol;
    info_out->payload_bytes = plan->shape.payload_bytes;
    info_out->scale_bytes = plan->shape.scale_bytes;
    info_out->reply_stride = afd_reply_stride(&plan->shape);
    info_out->expert_ids =
        plan->role == AFD_ROLE_FFN ? afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_IDS, 0) : NULL;
    return 0;
}
