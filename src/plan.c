/* SPDX-License-Identifier: Apache-2.0 */
/* plan.c - from a configuration to numbers. */

#include "plan.h"

#include <string.h>

#include "control.h"
#include "error.h"
#include "group.h"
#include "shared/quant.h"
#include "shared/route.h"
#include "steps/attention_collect.h"
#include "steps/ffn_routes.h"
#include "steps/union_expand.h"

#define FIRST_EPOCH_MAX ((uint64_t)1 << 62)
#define ALIGNMENT_MAX 65536u
#define ROWS_MAX 0xfffffffeull /* rows are numbered in 32 bits, and AFD_SLOT_NONE is taken */
#define HIDDEN_MAX (1u << 24)
#define PAYLOAD_BYTES_MAX (1u << 26)
#define WORLD_MAX AFD_GROUP_WORLD_MAX
#define EXPERTS_MAX (1u << 24)

/* ------------------------------------------------------------------------------------- the
 * group */

static int check_roles(const struct afd_group_config *group)
{
    uint32_t sources = 0;
    uint32_t ffn_ranks = 0;
    if (group->roles == NULL)
        return afd_error_set(AFD_EINVAL, "roles is NULL; it must name the role of all %u ranks",
                             group->world);
    for (uint32_t r = 0; r < group->world; r++) {
        if (group->roles[r] == AFD_ROLE_ATTENTION)
            sources++;
        else if (group->roles[r] == AFD_ROLE_FFN)
            ffn_ranks++;
        else
            return afd_error_set(AFD_EINVAL,
                                 "role of rank %u is %u; roles are 1 (attention) and 2 (ffn)", r,
                                 group->roles[r]);
    }
    if (sources == 0 || ffn_ranks == 0)
        return afd_error_set(AFD_EINVAL,
                             "%u Attention and %u FFN ranks; a group needs at least 1 of each",
                             sources, ffn_ranks);
    return 0;
}

int afd_plan_check_group(const struct afd_group_config *group)
{
    if (group == NULL)
        return afd_error_set(AFD_EINVAL, "the group configuration is NULL");
    if (group->size != sizeof(*group))
        return afd_error_set(AFD_EINVAL,
                             "group config has size %u, this library's is %zu; "
                             "call afd_group_config_init() first",
                             group->size, sizeof(*group));
    if (group->world < 2 || group->world > WORLD_MAX)
        return afd_error_set(AFD_EINVAL, "world is %u; it must be 2 .. %u", group->world,
                             WORLD_MAX);
    if (group->rank >= group->world)
        return afd_error_set(AFD_EINVAL, "rank is %u, but the world has %u ranks", group->rank,
                             group->world);
    return check_roles(group);
}

/* ------------------------------------------------------------------------------------- the
 * buffer */

static int check_range(const char *name, uint64_t value, uint64_t low, uint64_t high)
{
    if (value >= low && value <= high)
        return 0;
    return afd_error_set(AFD_EINVAL, "%s is %llu; it must be %llu .. %llu", name,
                         (unsigned long long)value, (unsigned long long)low,
                         (unsigned long long)high);
}

static int check_numbers(const struct afd_buffer_config *c)
{
    int rc = 0;
    if (c->size != sizeof(*c))
        return afd_error_set(AFD_EINVAL,
                             "buffer config has size %u, this library's is %zu; "
                             "call afd_buffer_config_init() first",
                             c->size, sizeof(*c));
    rc = rc ? rc : check_range("capacity", c->capacity, 1, AFD_CAPACITY_MAX);
    rc = rc ? rc : check_range("hidden", c->hidden, 1, HIDDEN_MAX);
    rc = rc ? rc : check_range("experts", c->experts, 1, EXPERTS_MAX);
    rc = rc ? rc : check_range("topk", c->topk, 1, AFD_TOPK_MAX);
    rc = rc ? rc : check_range("payload", c->payload, AFD_PAYLOAD_BF16, AFD_PAYLOAD_BYTES);
    rc = rc ? rc : check_range("reply", c->reply, AFD_REPLY_BF16, AFD_REPLY_FP8);
    rc = rc ? rc : check_range("receive", c->receive, AFD_RECEIVE_EXPANDED, AFD_RECEIVE_INDEXED);
    rc = rc ? rc : check_range("protocol", c->protocol, AFD_PROTOCOL_AUTO, AFD_PROTOCOL_UNION);
    rc = rc ? rc : check_range("stages", c->stages, 1, AFD_STAGES_MAX);
    rc = rc ? rc : check_range("words_tokens", c->words_tokens, 0, AFD_WORDS_TOKENS_MAX);
    rc = rc ? rc : check_range("alignment", c->alignment, 1, ALIGNMENT_MAX);
    rc = rc ? rc : check_range("scale_layout", c->scale_layout, 0, AFD_SCALES_COL_MAJOR);
    rc = rc ? rc : check_range("zero_padding", c->zero_padding, 0, 1);
    rc = rc ? rc : check_range("weighted_reply", c->weighted_reply, 0, 1);
    rc = rc ? rc : check_range("blocks", c->blocks, 0, AFD_BLOCKS_MAX);
    rc = rc ? rc : check_range("variant", c->variant, 0, AFD_VARIANT_ROWS);
    rc = rc ? rc : check_range("reply_variant", c->reply_variant, 0, AFD_VARIANT_ROWS);
    rc = rc ? rc : check_range("first_epoch", c->first_epoch, 1, FIRST_EPOCH_MAX);
    if (rc == 0 && c->deadline_us != 0)
        rc = check_range("deadline_us", c->deadline_us, AFD_DEADLINE_MIN_US, AFD_DEADLINE_MAX_US);
    if (rc == 0 && c->words_tokens > c->capacity)
        rc = afd_error_set(AFD_EINVAL, "words_tokens is %u, more than the capacity of %u",
                           c->words_tokens, c->capacity);
    return rc;
}

static const char *protocol_name(uint32_t protocol)
{
    return protocol == AFD_PROTOCOL_UNION ? "union" : "direct";
}

static int check_domains(const struct afd_group_config *group, const struct afd_buffer_config *c)
{
    for (uint32_t r = 1; group->domains != NULL && r < group->world; r++)
        if (group->domains[r] != group->domains[0])
            return afd_error_set(AFD_EUNSUPPORTED,
                                 "protocol %s works in one domain, but rank 0 is in domain %u "
                                 "and rank %u in domain %u",
                                 protocol_name(c->protocol), group->domains[0], r,
                                 group->domains[r]);
    return 0;
}

static int check_combinations(const struct afd_buffer_config *c)
{
    if (c->payload == AFD_PAYLOAD_BYTES) {
        int rc = check_range("payload_bytes", c->payload_bytes, 1, PAYLOAD_BYTES_MAX);
        rc = rc ? rc : check_range("scale_bytes", c->scale_bytes, 0, PAYLOAD_BYTES_MAX);
        if (rc != 0)
            return rc;
    } else if (c->payload_bytes != 0 || c->scale_bytes != 0) {
        return afd_error_set(AFD_EINVAL,
                             "payload_bytes is %u and scale_bytes %u, but both follow from hidden "
                             "unless payload is AFD_PAYLOAD_BYTES",
                             c->payload_bytes, c->scale_bytes);
    }
    if (c->scale_layout == AFD_SCALES_COL_MAJOR && c->payload != AFD_PAYLOAD_FP8 &&
        c->payload != AFD_PAYLOAD_FP8_UE8M0)
        return afd_error_set(AFD_EINVAL,
                             "scale_layout is column-major, but payload %u has no scales whose "
                             "size the library knows; only FP8 payloads do",
                             c->payload);
    if (c->reply == AFD_REPLY_FP8)
        return afd_error_set(AFD_EUNSUPPORTED,
                             "reply is FP8, but protocol %s sends BF16 replies only; FP8 "
                             "replies belong to the hybrid protocols",
                             protocol_name(c->protocol));
    if (c->protocol == AFD_PROTOCOL_UNION && c->receive == AFD_RECEIVE_INDEXED)
        return afd_error_set(
            AFD_EUNSUPPORTED,
            "receive is indexed, but protocol union writes replies over its inbox; "
            "use an expanded receive");
    return 0;
}

uint32_t afd_plan_expert_ffn(const struct afd_buffer_config *config, uint32_t ffn_ranks, uint32_t e)
{
    if (config->placement != NULL)
        return config->placement[e];
    return afd_placement_even(e, config->experts, ffn_ranks);
}

/* Experts of FFN rank f, and the most of any; also checks the table. */
static int count_experts(const struct afd_buffer_config *c, uint32_t ffn_ranks, uint32_t f,
                         uint32_t *count_out, uint32_t *most_out)
{
    uint32_t held[WORLD_MAX] = {0};
    *most_out = 0;
    for (uint32_t e = 0; e < c->experts; e++) {
        uint32_t owner = afd_plan_expert_ffn(c, ffn_ranks, e);
        if (owner >= ffn_ranks)
            return afd_error_set(AFD_EINVAL,
                                 "placement puts expert %u on FFN rank %u, but there are %u", e,
                                 owner, ffn_ranks);
        if (++held[owner] > AFD_LOCAL_EXPERTS_MAX)
            return afd_error_set(AFD_EINVAL, "FFN rank %u would hold more than %u experts", owner,
                                 AFD_LOCAL_EXPERTS_MAX);
        if (held[owner] > *most_out)
            *most_out = held[owner];
    }
    *count_out = held[f];
    return 0;
}

static void fill_shape(const struct afd_group_config *group, const struct afd_buffer_config *c,
                       uint32_t rank, struct afd_plan *plan)
{
    struct afd_shape *shape = &plan->shape;
    for (uint32_t r = 0; r < group->world; r++) {
        uint32_t *count = group->roles[r] == AFD_ROLE_FFN ? &shape->ffn_ranks : &shape->sources;
        if (r == rank)
            plan->index = *count;
        *count += 1;
    }
    plan->role = group->roles[rank];
    plan->protocol = c->protocol == AFD_PROTOCOL_AUTO ? (uint32_t)AFD_PROTOCOL_DIRECT : c->protocol;
    shape->world = group->world;
    shape->capacity = c->capacity;
    shape->topk = c->topk;
    shape->hidden = c->hidden;
    shape->stages = c->stages;
    shape->words_tokens = plan->protocol == AFD_PROTOCOL_UNION ? 0 : c->words_tokens;
    shape->experts = c->experts;
    shape->payload_bytes = c->payload == AFD_PAYLOAD_BF16    ? c->hidden * 2
                           : c->payload == AFD_PAYLOAD_BYTES ? c->payload_bytes
                                                             : c->hidden;
    shape->scale_bytes = c->payload == AFD_PAYLOAD_FP8         ? afd_scale_groups(c->hidden) * 4
                         : c->payload == AFD_PAYLOAD_FP8_UE8M0 ? afd_scale_groups(c->hidden)
                         : c->payload == AFD_PAYLOAD_BYTES     ? c->scale_bytes
                                                               : 0;
}

/* ------------------------------------------------------------------------------- private memory */

static void place(struct afd_plan *plan, uint64_t *cursor, enum afd_private kind, uint64_t count,
                  uint64_t bytes_each)
{
    *cursor = afd_round_up(*cursor, AFD_REGION_ALIGN);
    plan->private_offset[kind] = *cursor;
    plan->private_bytes_of[kind] = count * bytes_each;
    *cursor += count * bytes_each;
}

static void place_attention(struct afd_plan *plan, uint64_t *cursor)
{
    const struct afd_shape *s = &plan->shape;
    place(plan, cursor, AFD_PRIVATE_CREDIT_BASE, s->ffn_ranks, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_CREDIT_SENT, s->ffn_ranks, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_HITS, (uint64_t)s->capacity * afd_hit_words(s->ffn_ranks),
          sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_REPLY_ROWS, s->ffn_ranks, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_COUNT, 1, sizeof(uint32_t));
}

static void place_ffn(struct afd_plan *plan, uint64_t *cursor, int expanded)
{
    const struct afd_shape *s = &plan->shape;
    uint64_t tokens = (uint64_t)s->sources * s->capacity;
    place(plan, cursor, AFD_PRIVATE_CREDIT_BASE, s->sources, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_CREDIT_SENT, s->sources, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_ROUTES, tokens * afd_route_row_items(s), sizeof(uint16_t));
    place(plan, cursor, AFD_PRIVATE_TOKEN_ROWS, tokens * s->topk, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_SOURCES, s->sources, sizeof(struct afd_source_meta));
    place(plan, cursor, AFD_PRIVATE_COUNTS, plan->local_experts, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_OFFSETS, plan->local_experts + 1ull, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_TOKEN_COUNT, 1, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_SLOTS, plan->batch_rows, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_WEIGHTS, plan->batch_rows, sizeof(float));
    place(plan, cursor, AFD_PRIVATE_ROWS, expanded ? plan->batch_rows : 0, s->payload_bytes);
    place(plan, cursor, AFD_PRIVATE_SCALES, expanded ? afd_round_up(plan->batch_rows, 16) : 0,
          s->scale_bytes);
}

/* What union keeps per stage. */
static void place_union(struct afd_plan *plan, uint64_t *cursor)
{
    const struct afd_shape *s = &plan->shape;
    uint64_t slots = (uint64_t)s->capacity * s->topk;
    uint64_t rows = (uint64_t)s->sources * s->capacity;
    place(plan, cursor, AFD_PRIVATE_ROUNDS, 1, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_ARRIVED, s->world, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_EXPERT_ROWS, plan->union_layout.rank_experts, sizeof(uint32_t));
    if (plan->role == AFD_ROLE_ATTENTION)
        place(plan, cursor, AFD_PRIVATE_MASTER, slots, sizeof(uint16_t));
    else
        place(plan, cursor, AFD_PRIVATE_ROW_TOKENS, rows, sizeof(uint32_t));
}

/* What union needs once. */
static void place_union_shared(struct afd_plan *plan, uint64_t *cursor)
{
    const struct afd_shape *s = &plan->shape;
    uint64_t words = afd_union_count_words(plan->union_layout.rank_experts);
    uint64_t items = (uint64_t)AFD_BLOCKS_MAX * afd_union_meta_items(s);
    place(plan, cursor, AFD_PRIVATE_COUNT_BINS, s->world * words, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_NEXT_SLOT, s->world, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_ROW_SLOTS, (uint64_t)AFD_BLOCKS_MAX * s->topk,
          sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_ROW_META, items, sizeof(uint32_t));
    if (plan->role == AFD_ROLE_ATTENTION)
        return;
    place(plan, cursor, AFD_PRIVATE_SLOT_OF, (uint64_t)s->sources * s->capacity, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_PRESENT,
          (uint64_t)s->sources * afd_union_present_words(s->capacity), sizeof(uint64_t));
}

static void place_shared(struct afd_plan *plan, uint64_t *cursor)
{
    const struct afd_shape *s = &plan->shape;
    uint64_t bins = (uint64_t)AFD_BLOCKS_MAX * plan->local_experts;
    place(plan, cursor, AFD_PRIVATE_TERMS, (uint64_t)AFD_BLOCKS_MAX * (s->topk + AFD_BIAS_MAX),
          sizeof(const uint16_t *));
    if (plan->role == AFD_ROLE_ATTENTION) {
        uint64_t each = (uint64_t)AFD_BLOCKS_MAX * s->ffn_ranks;
        place(plan, cursor, AFD_PRIVATE_REPLY_PEERS, each, sizeof(struct afd_collect_peer));
        place(plan, cursor, AFD_PRIVATE_SENT, each, sizeof(uint32_t));
        place(plan, cursor, AFD_PRIVATE_EXPERT_FFN, s->experts, sizeof(uint16_t));
        place(plan, cursor, AFD_PRIVATE_EXPERT_LOCAL, s->experts, sizeof(uint16_t));
        return;
    }
    place(plan, cursor, AFD_PRIVATE_TERM_WEIGHTS, (uint64_t)AFD_BLOCKS_MAX * s->topk,
          sizeof(float));
    place(plan, cursor, AFD_PRIVATE_META, (uint64_t)AFD_BLOCKS_MAX * s->sources,
          sizeof(struct afd_source_meta));
    place(plan, cursor, AFD_PRIVATE_HISTOGRAM, 4 * bins, sizeof(uint32_t));
    place(plan, cursor, AFD_PRIVATE_TOTALS, plan->local_experts, sizeof(uint64_t));
    place(plan, cursor, AFD_PRIVATE_EXPERT_IDS, plan->local_experts, sizeof(uint32_t));
}

static void place_private(struct afd_plan *plan, int expanded)
{
    uint64_t cursor = 0;
    uint64_t stage;
    place(plan, &cursor, AFD_PRIVATE_STATE, 1, sizeof(struct afd_stage_state));
    if (plan->role == AFD_ROLE_ATTENTION)
        place_attention(plan, &cursor);
    else
        place_ffn(plan, &cursor, expanded);
    if (plan->protocol == AFD_PROTOCOL_UNION)
        place_union(plan, &cursor);
    stage = afd_round_up(cursor, AFD_REGION_ALIGN);
    plan->private_stage_stride = stage;
    cursor = stage * plan->shape.stages;
    place_shared(plan, &cursor);
    if (plan->protocol == AFD_PROTOCOL_UNION)
        place_union_shared(plan, &cursor);
    plan->private_bytes = afd_round_up(cursor, AFD_PAGE);
}

/* ---------------------------------------------------------------------------------------- batch */

/* The most rows one exchange can bring to this rank, padding included. */
static uint64_t most_rows(const struct afd_plan *plan, uint32_t alignment)
{
    const struct afd_shape *s = &plan->shape;
    uint64_t pairs = (uint64_t)s->sources * s->capacity * afd_min_u32(s->topk, plan->local_experts);
    uint64_t padded = afd_min_u64(pairs, plan->local_experts) * (alignment - 1ull);
    return pairs + padded;
}

static int plan_batch(const struct afd_buffer_config *c, struct afd_plan *plan)
{
    uint64_t most = most_rows(plan, c->alignment);
    plan->batch_rows = c->batch_rows != 0 ? afd_min_u64(c->batch_rows, most) : most;
    if (most > ROWS_MAX)
        return afd_error_set(AFD_EINVAL,
                             "an exchange could bring %llu rows to FFN rank %u, but at most %llu "
                             "can be numbered; use a smaller capacity or alignment",
                             (unsigned long long)most, plan->index, (unsigned long long)ROWS_MAX);
    plan->scale_item_bytes = plan->shape.scale_bytes;
    plan->scales_row_stride = plan->shape.scale_bytes;
    plan->scales_group_stride = c->payload == AFD_PAYLOAD_FP8 ? 4 : 1;
    if (c->scale_layout == AFD_SCALES_COL_MAJOR) {
        plan->scale_item_bytes = c->payload == AFD_PAYLOAD_FP8 ? 4 : 1;
        plan->scales_row_stride = plan->scale_item_bytes;
        /* a multiple of 16 bytes between groups, so that a bulk copy can load a column */
        plan->scales_group_stride = afd_round_up(plan->batch_rows * plan->scale_item_bytes, 16);
    }
    return 0;
}

int afd_plan_make(const struct afd_group_config *group, const struct afd_buffer_config *config,
                  uint32_t rank, struct afd_plan *plan_out)
{
    struct afd_plan plan;
    uint64_t control;
    uint32_t rank_experts;
    int rc = afd_plan_check_group(group);
    if (rc == 0 && config == NULL)
        rc = afd_error_set(AFD_EINVAL, "the buffer configuration is NULL");
    if (rc == 0 && rank >= group->world)
        rc =
            afd_error_set(AFD_EINVAL, "rank is %u, but the world has %u ranks", rank, group->world);
    rc = rc ? rc : check_domains(group, config);
    rc = rc ? rc : check_numbers(config);
    rc = rc ? rc : check_combinations(config);
    if (rc != 0)
        return rc;
    memset(&plan, 0, sizeof(plan));
    fill_shape(group, config, rank, &plan);
    rc = count_experts(config, plan.shape.ffn_ranks, plan.role == AFD_ROLE_FFN ? plan.index : 0,
                       &plan.local_experts, &rank_experts);
    if (rc == 0 && plan.role == AFD_ROLE_FFN)
        rc = plan_batch(config, &plan);
    if (rc != 0)
        return rc;
    if (plan.role != AFD_ROLE_FFN)
        plan.local_experts = 0;
    control = afd_control_bytes(group->world);
    plan.ffn_layout = afd_layout_ffn(&plan.shape, control);
    plan.attention_layout = afd_layout_attention(&plan.shape, control);
    plan.union_layout = afd_union_layout_make(&plan.shape, rank_experts, control);
    place_private(&plan, config->receive == AFD_RECEIVE_EXPANDED);
    *plan_out = plan;
    return 0;
}

uint64_t afd_plan_window_bytes(const struct afd_plan *plan)
{
    if (plan->protocol == AFD_PROTOCOL_UNION)
        return plan->union_layout.window_bytes;
    return plan->role == AFD_ROLE_FFN ? plan->ffn_layout.window_bytes
                                      : plan->attention_layout.window_bytes;
}
