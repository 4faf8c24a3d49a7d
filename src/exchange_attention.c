/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_attention.c - dispatch and collect. */

#include <string.h>

#include "error.h"
#include "exchange.h"

/* ------------------------------------------------------------------------------------- dispatch */

static int check_routes(const struct afd_buffer *buffer, const struct afd_dispatch_args *args,
                        uint32_t tokens)
{
    uint32_t topk = buffer->plan.shape.topk;
    for (uint32_t t = 0; t < tokens; t++) {
        uint32_t lane = afd_route_bad_lane(&args->placement, args->ids, t);
        int64_t id;
        if (lane == topk)
            continue;
        id = afd_id_load(args->ids, (uint64_t)t * topk + lane);
        if (afd_id_legal(id, buffer->plan.shape.experts))
            return afd_error_set(AFD_EROUTE,
                                 "rank %u: token %u, lane %u repeats expert id %lld of this token",
                                 buffer->group->config.rank, t, lane, (long long)id);
        return afd_error_set(AFD_EROUTE,
                             "rank %u: token %u, lane %u has expert id %lld; ids are -1 (no route) "
                             "or 0 .. %u",
                             buffer->group->config.rank, t, lane, (long long)id,
                             buffer->plan.shape.experts - 1);
    }
    return 0;
}

static int check_tokens(const struct afd_buffer *buffer, const struct afd_tokens *tokens)
{
    const struct afd_shape *shape = &buffer->plan.shape;
    uint32_t count;
    int rc = 0;
    if (tokens == NULL)
        return afd_error_set(AFD_EINVAL, "tokens is NULL");
    count = tokens->count;
    if (count > shape->capacity)
        return afd_error_set(AFD_ECAPACITY, "rank %u dispatches %u tokens, but the capacity is %u",
                             buffer->group->config.rank, count, shape->capacity);
    rc = afd_call_check_array("device_count", tokens->device_count, 4, 0);
    if (rc != 0)
        return rc;
    if (tokens->device_count != NULL && *tokens->device_count > count)
        return afd_error_set(AFD_ECAPACITY,
                             "rank %u: device_count is %u, but its bound (count) is %u",
                             buffer->group->config.rank, *tokens->device_count, count);
    if (tokens->id_type != AFD_IDS_INT64 && tokens->id_type != AFD_IDS_INT32)
        return afd_error_set(AFD_EINVAL, "id_type is %u; it must be 0 (int64) or 1 (int32)",
                             tokens->id_type);
    rc = afd_call_check_array("x", tokens->x, 1, count);
    rc = rc ? rc
            : afd_call_check_array("ids", tokens->ids, tokens->id_type == AFD_IDS_INT64 ? 8 : 4,
                                   count);
    rc = rc ? rc : afd_call_check_array("weights", tokens->weights, 4, 0);
    rc = rc ? rc : afd_call_check_stride("x_stride", tokens->x_stride, shape->payload_bytes);
    rc =
        rc ? rc : afd_call_check_stride("scales_stride", tokens->scales_stride, shape->scale_bytes);
    if (rc == 0 && shape->scale_bytes != 0)
        rc = afd_call_check_array("scales", tokens->scales, 1, count);
    if (rc == 0 && shape->scale_bytes == 0 && tokens->scales != NULL)
        rc = afd_error_set(AFD_EINVAL, "scales are given, but this payload has none");
    return rc;
}

/* Words for T tokens, if they fit and this rank wants them. */
static int wants_words(const struct afd_buffer *buffer, uint32_t variant, uint32_t tokens)
{
    uint32_t most = buffer->plan.shape.words_tokens;
    return variant == AFD_VARIANT_WORDS && most != 0 && tokens <= most;
}

static void fill_dispatch(struct afd_buffer *buffer, uint32_t stage,
                          const struct afd_tokens *tokens, struct afd_dispatch_args *args)
{
    const struct afd_shape *shape = &buffer->plan.shape;
    memset(args, 0, sizeof(*args));
    args->shape = shape;
    args->ffn_layout = &buffer->plan.ffn_layout;
    args->ffn_window = buffer->ffn_window;
    args->placement.ffn = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_FFN, 0);
    args->placement.local = afd_buffer_private(buffer, AFD_PRIVATE_EXPERT_LOCAL, 0);
    args->placement.experts = shape->experts;
    args->placement.topk = shape->topk;
    args->state = afd_buffer_state(buffer, stage);
    args->hits = afd_buffer_private(buffer, AFD_PRIVATE_HITS, stage);
    args->reply_rows = afd_buffer_private(buffer, AFD_PRIVATE_REPLY_ROWS, stage);
    args->sent = afd_buffer_private(buffer, AFD_PRIVATE_SENT, 0);
    args->credit_sent = afd_buffer_private(buffer, AFD_PRIVATE_CREDIT_SENT, stage);
    args->count_out = afd_buffer_private(buffer, AFD_PRIVATE_COUNT, stage);
    args->device_count = tokens->device_count;
    args->x = tokens->x;
    args->x_stride = tokens->x_stride != 0 ? tokens->x_stride : shape->payload_bytes;
    args->scales = tokens->scales;
    args->scales_stride = tokens->scales_stride != 0 ? tokens->scales_stride : shape->scale_bytes;
    args->ids.ids = tokens->ids;
    args->ids.wide = tokens->id_type == AFD_IDS_INT64;
    args->weights = tokens->weights;
    args->tokens = tokens->count;
    args->stage = stage;
    args->source = buffer->plan.index;
    args->rank = buffer->group->config.rank;
    args->rows = !(wants_words(buffer, buffer->config.variant, tokens->count) &&
                   buffer->config.receive == AFD_RECEIVE_EXPANDED);
    args->reply_words = (uint32_t)wants_words(buffer, buffer->config.reply_variant, tokens->count);
}

static int dispatch(struct afd_buffer *buffer, uint32_t stage, const struct afd_tokens *tokens,
                    const void *stream)
{
    struct afd_dispatch_args args;
    int rc = afd_call_check_stream(stream);
    rc = rc ? rc : check_tokens(buffer, tokens);
    if (rc != 0)
        return rc;
    fill_dispatch(buffer, stage, tokens, &args);
    rc = check_routes(buffer, &args,
                      tokens->device_count != NULL ? *tokens->device_count : tokens->count);
    if (rc != 0)
        return rc;
    rc = afd_exchange_of(buffer)->dispatch(buffer, stage, &args);
    if (rc != 0)
        return rc;
    buffer->stage[stage].open = 1;
    buffer->stage[stage].tokens = tokens->count;
    buffer->stage[stage].reply_words = args.reply_words;
    return 0;
}

int afd_dispatch(struct afd_buffer *buffer, uint32_t stage, const struct afd_tokens *tokens,
                 void *stream)
{
    int rc = afd_call_enter(buffer, stage, AFD_PHASE_DISPATCH, 0);
    return rc != 0 ? rc : afd_call_leave(buffer, dispatch(buffer, stage, tokens, stream));
}

/* -------------------------------------------------------------------------------------- collect */

void afd_output_init(struct afd_output *output)
{
    memset(output, 0, sizeof(*output));
    output->size = sizeof(*output);
}

static int check_view(const struct afd_buffer *buffer, uint32_t stage,
                      const struct afd_output *output)
{
    if (buffer->plan.protocol == AFD_PROTOCOL_UNION)
        return afd_error_set(
            AFD_EUNSUPPORTED,
            "view is 1, but protocol union writes its replies over the rows of the "
            "next dispatch; collect a copy");
    if (buffer->plan.shape.ffn_ranks != 1)
        return afd_error_set(AFD_EINVAL, "a view needs exactly 1 FFN rank, but there are %u",
                             buffer->plan.shape.ffn_ranks);
    if (output->bias[0] != NULL || output->bias[1] != NULL)
        return afd_error_set(AFD_EINVAL, "a view cannot add bias rows; collect a copy");
    if (buffer->stage[stage].reply_words)
        return afd_error_set(AFD_ESTATE,
                             "a view needs reply rows, but the dispatch of stage %u asked "
                             "for reply words",
                             stage);
    return 0;
}

static int check_output(const struct afd_buffer *buffer, uint32_t stage,
                        const struct afd_output *output)
{
    uint32_t tokens = buffer->stage[stage].tokens;
    int rc = 0;
    if (output == NULL || output->size != sizeof(*output))
        return afd_error_set(AFD_EINVAL,
                             "output is NULL or has size %u instead of %zu; call "
                             "afd_output_init() first",
                             output == NULL ? 0 : output->size, sizeof(*output));
    if (output->view > 1)
        return afd_error_set(AFD_EINVAL, "view is %u; it must be 0 or 1", output->view);
    if (output->view)
        return check_view(buffer, stage, output);
    rc = afd_call_check_array("rows", output->rows, 2, tokens);
    rc = rc ? rc
            : afd_call_check_stride("rows_stride", output->rows_stride,
                                    afd_reply_bytes(&buffer->plan.shape));
    rc = rc ? rc : afd_call_check_array("bias[0]", output->bias[0], 2, 0);
    rc = rc ? rc : afd_call_check_array("bias[1]", output->bias[1], 2, 0);
    if (rc == 0 && (output->rows_stride & 1) != 0)
        rc = afd_error_set(AFD_EINVAL, "rows_stride is %llu bytes, which is odd",
                           (unsigned long long)output->rows_stride);
    return rc;
}

static void fill_collect(struct afd_buffer *buffer, uint32_t stage, const struct afd_output *output,
                         struct afd_collect_args *args)
{
    const struct afd_shape *shape = &buffer->plan.shape;
    memset(args, 0, sizeof(*args));
    args->shape = shape;
    args->layout = &buffer->plan.attention_layout;
    args->window = buffer->source_window[buffer->plan.index];
    args->ffn_rank = buffer->ffn_rank;
    args->state = afd_buffer_state(buffer, stage);
    args->hits = afd_buffer_private(buffer, AFD_PRIVATE_HITS, stage);
    args->reply_rows = afd_buffer_private(buffer, AFD_PRIVATE_REPLY_ROWS, stage);
    args->count = afd_buffer_private(buffer, AFD_PRIVATE_COUNT, stage);
    args->credit_base = afd_buffer_private(buffer, AFD_PRIVATE_CREDIT_BASE, stage);
    args->terms = afd_buffer_private(buffer, AFD_PRIVATE_TERMS, 0);
    args->peers = afd_buffer_private(buffer, AFD_PRIVATE_REPLY_PEERS, 0);
    args->bias[0] = output->bias[0];
    args->bias[1] = output->bias[1];
    args->rows = output->view ? NULL : output->rows;
    args->rows_stride = output->rows_stride != 0 ? output->rows_stride : afd_reply_bytes(shape);
    args->stage = stage;
    args->reply_words = buffer->stage[stage].reply_words;
    args->view = output->view;
}

static int collect(struct afd_buffer *buffer, uint32_t stage, struct afd_output *output,
                   const void *stream)
{
    struct afd_collect_args args;
    int rc = afd_call_check_stream(stream);
    rc = rc ? rc : check_output(buffer, stage, output);
    if (rc != 0)
        return rc;
    fill_collect(buffer, stage, output, &args);
    rc = afd_exchange_of(buffer)->collect(buffer, stage, &args);
    if (rc != 0)
        return rc;
    buffer->stage[stage].open = 0;
    output->count = *args.count;
    if (output->view) {
        output->rows =
            afd_region_at(args.window, args.layout, args.layout->stage.reply_inbox, stage, 0);
        output->rows_stride = args.layout->stage.reply_inbox.stride;
    }
    return 0;
}

/* After a fault nothing stale looks valid: rows of an exchange that is open but lost are NaN. */
static void poison_output(const struct afd_buffer *buffer, uint32_t stage,
                          const struct afd_output *output)
{
    const struct afd_shape *shape = &buffer->plan.shape;
    struct afd_lane lane = {0, 1, 0, 1, NULL};
    uint64_t stride;
    if (!buffer->failed || stage >= shape->stages || !buffer->stage[stage].open ||
        buffer->plan.role != AFD_ROLE_ATTENTION || output == NULL || output->view ||
        output->rows == NULL)
        return;
    stride = output->rows_stride != 0 ? output->rows_stride : afd_reply_bytes(shape);
    for (uint32_t t = 0; t < buffer->stage[stage].tokens; t++)
        afd_row_fill(lane, (uint8_t *)output->rows + stride * t, AFD_BF16_NAN, shape->hidden);
}

int afd_collect(struct afd_buffer *buffer, uint32_t stage, struct afd_output *output, void *stream)
{
    int rc = afd_call_enter(buffer, stage, AFD_PHASE_COLLECT, 1);
    if (rc == 0)
        return afd_call_leave(buffer, collect(buffer, stage, output, stream));
    if (buffer != NULL && rc != AFD_EINVAL)
        poison_output(buffer, stage, output);
    return rc;
}
