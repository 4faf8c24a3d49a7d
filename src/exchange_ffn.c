/* SPDX-License-Identifier: Apache-2.0 */
/* exchange_ffn.c - receive and reply. */

#include <string.h>

#include "error.h"
#include "exchange.h"

/* -------------------------------------------------------------------------------------- receive */

void afd_batch_init(struct afd_batch *batch)
{
    memset(batch, 0, sizeof(*batch));
    batch->size = sizeof(*batch);
}

static int check_batch(const struct afd_buffer *buffer, const struct afd_batch *batch)
{
    if (batch == NULL || batch->size != sizeof(*batch))
        return afd_error_set(AFD_EINVAL,
                             "batch is NULL or has size %u instead of %zu; call "
                             "afd_batch_init() first",
                             batch == NULL ? 0 : batch->size, sizeof(*batch));
    if (batch->rows_capacity != 0 && buffer->config.receive == AFD_RECEIVE_INDEXED)
        return afd_error_set(AFD_EINVAL,
                             "memory for %llu rows is given, but an indexed receive copies none",
                             (unsigned long long)batch->rows_capacity);
    if (batch->rows_capacity != 0 && batch->rows == NULL)
        return afd_error_set(AFD_EINVAL, "rows is NULL, but rows_capacity is %llu",
                             (unsigned long long)batch->rows_capacity);
    if (batch->rows_capacity != 0)
        return afd_call_check_stride("rows_stride", batch->rows_stride,
                                     buffer->plan.shape.payload_bytes);
    return 0;
}

static void fill_scratch(const struct afd_buffer *buffer, uint32_t stage,
                         struct afd_receive_args *args)
{
    uint32_t *bins = afd_buffer_private(buffer, AFD_PRIVATE_HISTOGRAM, 0);
    uint64_t each = (uint64_t)AFD_BLOCKS_MAX * buffer->plan.local_experts;
    args->meta = afd_buffer_private(buffer, AFD_PRIVATE_META, 0);
    args->histogram = bins;
    args->total = bins + each;
    args->begin = bins + 2 * each;
    args->cursor = bins + 3 * each;
    args->routes = afd_buffer_private(buffer, AFD_PRIVATE_ROUTES, stage);
    args->credit_base = afd_buffer_private(buffer, AFD_PRIVATE_CREDIT_BASE, stage);
    args->token_rows = afd_buffer_private(buffer, AFD_PRIVATE_TOKEN_ROWS, stage);
    args->source_out = afd_buffer_private(buffer, AFD_PRIVATE_SOURCES, stage);
}

/* Where the batch goes: the library's memory, or the caller's rows. */
static void fill_batch_memory(const struct afd_buffer *buffer, uint32_t stage,
                              const struct afd_batch *batch, struct afd_receive_args *args)
{
    const struct afd_plan *plan = &buffer->plan;
    args->counts = afd_buffer_private(buffer, AFD_PRIVATE_COUNTS, stage);
    args->offsets = afd_buffer_private(buffer, AFD_PRIVATE_OFFSETS, stage);
    args->slots = afd_buffer_private(buffer, AFD_PRIVATE_SLOTS, stage);
    args->weights = afd_buffer_private(buffer, AFD_PRIVATE_WEIGHTS, stage);
    args->expert_totals = afd_buffer_private(buffer, AFD_PRIVATE_TOTALS, 0);
    args->token_count = afd_buffer_private(buffer, AFD_PRIVATE_TOKEN_COUNT, stage);
    args->rows_capacity = plan->batch_rows;
    if (args->indexed)
        return;
    args->rows = afd_buffer_private(buffer, AFD_PRIVATE_ROWS, stage);
    args->rows_stride = plan->shape.payload_bytes;
    if (batch->rows_capacity != 0) {
        args->rows = batch->rows;
        args->rows_stride =
            batch->rows_stride != 0 ? batch->rows_stride : plan->shape.payload_bytes;
        args->rows_capacity = afd_min_u64(batch->rows_capacity, plan->batch_rows);
    }
    if (plan->shape.scale_bytes == 0)
        return;
    args->scales = afd_buffer_private(buffer, AFD_PRIVATE_SCALES, stage);
    args->scales_row_stride = plan->scales_row_stride;
    args->scales_group_stride = plan->scales_group_stride;
    args->scale_item_bytes = plan->scale_item_bytes;
}

static void fill_receive(const struct afd_buffer *buffer, uint32_t stage,
                         const struct afd_batch *batch, struct afd_receive_args *args)
{
    memset(args, 0, sizeof(*args));
    args->shape = &buffer->plan.shape;
    args->layout = &buffer->plan.ffn_layout;
    args->window = buffer->ffn_window[buffer->plan.index];
    args->source_rank = buffer->source_rank;
    args->state = afd_buffer_state(buffer, stage);
    args->stage = stage;
    args->rank = buffer->group->config.rank;
    args->local_experts = buffer->plan.local_experts;
    args->alignment = buffer->config.alignment;
    args->indexed = buffer->config.receive == AFD_RECEIVE_INDEXED;
    args->zero_padding = buffer->config.zero_padding;
    args->weighted = buffer->config.weighted_reply;
    fill_scratch(buffer, stage, args);
    fill_batch_memory(buffer, stage, batch, args);
}

static uint32_t any_weights(const struct afd_receive_args *args)
{
    uint32_t flags = 0;
    for (uint32_t s = 0; s < args->shape->sources; s++)
        flags |= args->source_out[s].flags;
    return (flags & AFD_HEADER_WEIGHTS) != 0;
}

static void fill_batch(const struct afd_buffer *buffer, const struct afd_receive_args *args,
                       struct afd_batch *batch)
{
    batch->rows = args->rows;
    batch->rows_stride = args->rows_stride;
    batch->counts = args->counts;
    batch->offsets = args->offsets;
    batch->scales = args->scales;
    batch->scales_row_stride = args->scales_row_stride;
    batch->scales_group_stride = args->scales_group_stride;
    batch->weights = any_weights(args) ? args->weights : NULL;
    batch->slots = args->slots;
    batch->row_count = args->offsets[args->local_experts];
    batch->token_count = *args->token_count;
    batch->expert_totals = args->expert_totals;
    batch->inbox = NULL;
    batch->inbox_stride = 0;
    batch->inbox_scales_offset = 0;
    if (args->indexed) {
        batch->inbox =
            afd_region_at(args->window, args->layout, args->layout->stage.inbox, args->stage, 0);
        batch->inbox_stride = args->layout->stage.inbox.stride;
        batch->inbox_scales_offset = afd_row_scales_offset(&buffer->plan.shape);
    }
}

static int receive(struct afd_buffer *buffer, uint32_t stage, struct afd_batch *batch,
                   const void *stream)
{
    struct afd_receive_args args;
    int rc = afd_call_check_stream(stream);
    rc = rc ? rc : check_batch(buffer, batch);
    if (rc != 0)
        return rc;
    fill_receive(buffer, stage, batch, &args);
    rc = afd_exchange_of(buffer)->receive(buffer, stage, &args);
    if (rc != 0)
        return rc;
    fill_batch(buffer, &args, batch);
    buffer->stage[stage].open = 1;
    buffer->stage[stage].row_count = batch->row_count;
    return 0;
}

int afd_receive(struct afd_buffer *buffer, uint32_t stage, struct afd_batch *batch, void *stream)
{
    int rc = afd_call_enter(buffer, stage, AFD_PHASE_RECEIVE, 0);
    return rc != 0 ? rc : afd_call_leave(buffer, receive(buffer, stage, batch, stream));
}

/* ---------------------------------------------------------------------------------------- reply */

/* Replies are written after the certificate, so their terms must not lie where peers
 * write. */
static int check_rows(const struct afd_buffer *buffer, uint32_t stage, const void *rows,
                      uint64_t stride)
{
    const struct afd_window *own = &buffer->window[buffer->group->config.rank];
    uint64_t count = buffer->stage[stage].row_count;
    uintptr_t begin = (uintptr_t)rows;
    uintptr_t end = begin + count * stride;
    int rc = afd_call_check_array("rows", rows, 2, count);
    rc = rc ? rc
            : afd_call_check_stride("rows_stride", stride, afd_reply_bytes(&buffer->plan.shape));
    if (rc == 0 && (stride & 1) != 0)
        rc = afd_error_set(AFD_EINVAL, "rows_stride is %llu bytes, which is odd",
                           (unsigned long long)stride);
    if (rc == 0 && begin < (uintptr_t)own->base + own->bytes && end > (uintptr_t)own->base)
        rc = afd_error_set(AFD_EINVAL,
                           "rows at %p lie inside the inbox of this rank, which sources "
                           "may overwrite once they hear the reply; use memory of your "
                           "own",
                           rows);
    return rc;
}

static int reply(struct afd_buffer *buffer, uint32_t stage, const void *rows, uint64_t stride,
                 const void *stream)
{
    struct afd_reply_args args;
    int rc = afd_call_check_stream(stream);
    stride = stride != 0 ? stride : afd_reply_bytes(&buffer->plan.shape);
    rc = rc ? rc : check_rows(buffer, stage, rows, stride);
    if (rc != 0)
        return rc;
    memset(&args, 0, sizeof(args));
    args.shape = &buffer->plan.shape;
    args.attention_layout = &buffer->plan.attention_layout;
    args.source_window = buffer->source_window;
    args.state = afd_buffer_state(buffer, stage);
    args.source = afd_buffer_private(buffer, AFD_PRIVATE_SOURCES, stage);
    args.routes = afd_buffer_private(buffer, AFD_PRIVATE_ROUTES, stage);
    args.token_rows = afd_buffer_private(buffer, AFD_PRIVATE_TOKEN_ROWS, stage);
    if (buffer->config.weighted_reply)
        args.weights = afd_buffer_private(buffer, AFD_PRIVATE_WEIGHTS, stage);
    args.rows = rows;
    args.rows_stride = stride;
    args.terms = afd_buffer_private(buffer, AFD_PRIVATE_TERMS, 0);
    args.term_weights = afd_buffer_private(buffer, AFD_PRIVATE_TERM_WEIGHTS, 0);
    args.credit_sent = afd_buffer_private(buffer, AFD_PRIVATE_CREDIT_SENT, stage);
    args.stage = stage;
    args.ffn = buffer->plan.index;
    rc = afd_exchange_of(buffer)->reply(buffer, stage, &args);
    if (rc == 0)
        buffer->stage[stage].open = 0;
    return rc;
}

int afd_reply(struct afd_buffer *buffer, uint32_t stage, const void *rows, uint64_t rows_stride,
              void *stream)
{
    int rc = afd_call_enter(buffer, stage, AFD_PHASE_REPLY, 1);
    return rc != 0 ? rc : afd_call_leave(buffer, reply(buffer, stage, rows, rows_stride, stream));
}
