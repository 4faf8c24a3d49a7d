/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - ranks, and the four verbs called with the job's options. */

#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------- ranks */

void job_init(struct job *job, const char *roles, const struct afd_buffer_config *config)
{
    memset(job, 0, sizeof(*job));
    job->world = (uint32_t)strlen(roles);
    if (job->world > JOB_RANKS_MAX)
        abort();
    for (uint32_t r = 0; r < job->world; r++) {
        job->roles[r] = roles[r] == 'F' ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION;
        if (roles[r] == 'F')
            job->ffn_rank[job->ffn_ranks++] = r;
        else
            job->source_rank[job->sources++] = r;
        job->config[r] = *config;
    }
    afd_group_config_init(&job->group_config);
    job->group_config.bootstrap = AFD_BOOTSTRAP_HUB;
    job->group_config.world = job->world;
    job->group_config.roles = job->roles;
    job->group_config.deadline_us = 20000000;
    job->seed = 1;
    if (pthread_mutex_init(&job->truth_lock, NULL) != 0)
        abort();
}

struct opener {
    struct job *job;
    uint32_t rank;
};

static void *open_rank(void *arg)
{
    struct opener *o = arg;
    struct job *job = o->job;
    struct afd_group_config config = job->group_config;
    int rc = 0;
    config.rank = o->rank;
    config.hub = job->hub;
    if (job->group[o->rank] == NULL)
        rc = afd_group_create(&config, &job->group[o->rank]);
    if (rc == 0)
        rc = afd_buffer_create(job->group[o->rank], &job->config[o->rank], &job->buffer[o->rank]);
    job->create_rc[o->rank] = rc;
    snprintf(job->create_error[o->rank], sizeof(job->create_error[0]), "%s",
             rc != 0 ? afd_last_error() : "");
    return NULL;
}

static void fill_reference(struct job *job)
{
    struct afd_buffer_info info;
    const struct afd_buffer_config *c = &job->config[job->ffn_rank[0]];
    if (afd_buffer_info(job->buffer[job->ffn_rank[0]], &info) != 0)
        abort();
    job->placement = job_need(malloc(c->experts * sizeof(*job->placement)));
    if (c->placement != NULL)
        memcpy(job->placement, c->placement, c->experts * sizeof(*job->placement));
    else
        afd_reference_placement(c->experts, job->ffn_ranks, job->placement);
    job->ref.sources = job->sources;
    job->ref.ffn_ranks = job->ffn_ranks;
    job->ref.capacity = c->capacity;
    job->ref.hidden = c->hidden;
    job->ref.experts = c->experts;
    job->ref.topk = c->topk;
    job->ref.payload_bytes = info.payload_bytes;
    job->ref.scale_bytes = info.scale_bytes;
    job->ref.placement = job->placement;
    for (uint32_t f = 0; f < job->ffn_ranks; f++)
        job->totals[f] = job_need(calloc(c->experts, sizeof(*job->totals[f])));
    job_check_info(job);
}

int job_open(struct job *job)
{
    pthread_t thread[JOB_RANKS_MAX];
    struct opener opener[JOB_RANKS_MAX];
    int rc = job->hub == NULL ? afd_hub_create(job->world, &job->hub) : 0;
    if (rc != 0)
        return rc;
    for (uint32_t r = 0; r < job->world; r++) {
        opener[r].job = job;
        opener[r].rank = r;
        if (pthread_create(&thread[r], NULL, open_rank, &opener[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < job->world; r++) {
        pthread_join(thread[r], NULL);
        rc = rc != 0 ? rc : job->create_rc[r];
    }
    if (rc == 0)
        fill_reference(job);
    return rc;
}

static void forget_received(struct job *job, uint32_t f, uint32_t stage)
{
    struct job_received *received = &job->received[f][stage];
    if (received->truth != NULL)
        job_truth_put(job, received->truth);
    free(received->rows);
    memset(received, 0, sizeof(*received));
}

void job_close(struct job *job)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (afd_buffer_close(job->buffer[r]) != 0 || afd_group_destroy(job->group[r]) != 0)
            abort();
        job->buffer[r] = NULL;
        job->group[r] = NULL;
    }
    afd_hub_destroy(job->hub);
    for (uint32_t f = 0; f < job->ffn_ranks; f++) {
        for (uint32_t stage = 0; stage < AFD_STAGES_MAX; stage++)
            forget_received(job, f, stage);
        free(job->totals[f]);
        job->totals[f] = NULL;
    }
    job->hub = NULL;
    job_truths_free(job);
    free(job->placement);
    job->placement = NULL;
}

/* ------------------------------------------------------------------------------------- dispatch */

/* What `count` says of T tokens: T, or a larger bound. */
static uint32_t bound_of(const struct job *job, uint32_t tokens)
{
    uint32_t bound = tokens + (job->options.device_count ? 3 : 0);
    return bound < job->ref.capacity ? bound : job->ref.capacity;
}

static uint32_t even_shift(const struct job *job)
{
    return job->options.shift & ~1u;
}

int job_dispatch(struct job *job, uint32_t s, uint32_t stage, const struct job_input *in)
{
    uint64_t topk = job->ref.topk;
    uint64_t gap = job->options.gap != 0 ? job->options.gap + 1 : 0;
    int narrow = job->options.narrow_ids != 0;
    uint32_t count = in->count;
    struct job_rows x;
    struct job_rows scales;
    struct job_rows ids;
    struct job_rows weights;
    struct afd_tokens tokens;
    int rc;
    job_rows_make(in->x, count, job->ref.payload_bytes, gap, job->options.shift, &x);
    job_rows_make(in->scales, count, job->ref.scale_bytes, gap, job->options.shift, &scales);
    job_rows_make(narrow ? (const uint8_t *)in->ids32 : (const uint8_t *)in->ids, count,
                  topk * (narrow ? 4 : 8), 0, 0, &ids);
    job_rows_make((const uint8_t *)in->weights, count, topk * 4, 0, 0, &weights);
    memset(&tokens, 0, sizeof(tokens));
    tokens.count = bound_of(job, count);
    tokens.device_count = job->options.device_count ? &count : NULL;
    tokens.x = x.rows;
    tokens.x_stride = gap != 0 ? x.stride : 0;
    tokens.scales = job->ref.scale_bytes != 0 ? scales.rows : NULL;
    tokens.scales_stride = gap != 0 ? scales.stride : 0;
    tokens.ids = ids.rows;
    tokens.id_type = narrow ? AFD_IDS_INT32 : AFD_IDS_INT64;
    tokens.weights = job_sends_weights(job, s) ? (const float *)(const void *)weights.rows : NULL;
    rc = afd_dispatch(job->buffer[job->source_rank[s]], stage, &tokens, NULL);
    job_rows_free(&x); /* dispatch has let go of them */
    job_rows_free(&scales);
    job_rows_free(&ids);
    job_rows_free(&weights);
    return rc;
}

/* ------------------------------------------------------------------------------------------ FFN */

int job_receive(struct job *job, uint32_t f, uint32_t stage, uint64_t exchange,
                const uint32_t *tokens)
{
    struct job_truth *truth = job_truth_get(job, exchange, tokens);
    struct job_rows rows = {0};
    struct afd_batch batch;
    int rc;
    afd_batch_init(&batch);
    if (job->options.own_batch) {
        uint64_t count = truth->batch[f].row_count;
        job_rows_make(NULL, count != 0 ? count : 1, job->ref.payload_bytes, job->options.gap,
                      job->options.shift, &rows);
        batch.rows = rows.rows;
        batch.rows_stride = job->options.gap != 0 ? rows.stride : 0;
        batch.rows_capacity = rows.count;
    }
    rc = afd_receive(job->buffer[job->ffn_rank[f]], stage, &batch, NULL);
    if (rc != 0) {
        free(rows.memory);
        job_truth_put(job, truth);
        return rc;
    }
    job_check_batch(job, f, &batch, &truth->batch[f]);
    if (rows.memory != NULL &&
        (batch.rows != rows.rows || job_rows_touched(&rows) != rows.count + 1))
        job_mismatch(job, "receive wrote beside the rows of the caller's batch memory");
    forget_received(job, f, stage);
    job->received[f][stage].truth = truth;
    job->received[f][stage].rows = rows.memory;
    return 0;
}

int job_reply(struct job *job, uint32_t f, uint32_t stage)
{
    const struct job_truth *truth = job->received[f][stage].truth;
    struct job_rows rows;
    int rc;
    job_rows_make((const uint8_t *)truth->answer[f], truth->batch[f].row_count,
                  job->ref.hidden * 2ull, job->options.gap, even_shift(job), &rows);
    rc = afd_reply(job->buffer[job->ffn_rank[f]], stage, rows.rows,
                   job->options.gap != 0 ? rows.stride : 0, NULL);
    job_rows_free(&rows); /* it must be done with */
    if (rc == 0)
        forget_received(job, f, stage);
    return rc;
}

int job_ffn(struct job *job, uint32_t f, uint32_t stage, uint64_t exchange, const uint32_t *tokens)
{
    int rc = job_receive(job, f, stage, exchange, tokens);
    return rc != 0 ? rc : job_reply(job, f, stage);
}

/* -------------------------------------------------------------------------------------- collect */

int job_collect(struct job *job, uint32_t s, uint32_t stage, uint64_t exchange,
                const uint32_t *tokens)
{
    struct job_truth *truth = job_truth_get(job, exchange, tokens);
    struct job_rows rows;
    struct afd_output output;
    int rc;
    job_rows_make(NULL, bound_of(job, tokens[s]), job->ref.hidden * 2ull, job->options.gap,
                  even_shift(job), &rows);
    afd_output_init(&output);
    output.view = job->options.view;
    output.rows = job->options.view ? NULL : rows.rows;
    output.rows_stride = !job->options.view && job->options.gap != 0 ? rows.stride : 0;
    for (uint32_t b = 0; b < job->options.bias_count; b++)
        output.bias[b] = truth->input[s].bias;
    rc = afd_collect(job->buffer[job->source_rank[s]], stage, &output, NULL);
    if (rc == 0) {
        job_check_collected(job, s, truth, &output);
        if (job_rows_touched(&rows) != rows.count + 1)
            job_mismatch(job, "collect wrote beside the rows of source %u", s);
        for (uint64_t t = tokens[s]; t < rows.count; t++)
            if (!job_rows_untouched(&rows, t))
                job_mismatch(job, "collect wrote row %llu of source %u, which has %u tokens",
                             (unsigned long long)t, s, tokens[s]);
    }
    job_rows_free(&rows);
    job_truth_put(job, truth);
    return rc;
}

/* ------------------------------------------------------------------------------ whole exchanges */

static int source_dispatch(struct job *job, uint32_t s, const struct job_flight *flight)
{
    struct job_truth *truth = job_truth_get(job, flight->exchange, flight->tokens);
    int rc = job_dispatch(job, s, flight->stage, &truth->input[s]);
    job_truth_put(job, truth);
    return rc;
}

static int source_dispatches(struct job *job, uint32_t s, const struct job_flight *flights,
                             uint32_t count)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = source_dispatch(job, s, &flights[i]);
    return rc;
}

static int source_collects(struct job *job, uint32_t s, const struct job_flight *flights,
                           uint32_t count)
{
    int rc = 0;
    for (uint32_t i = count; rc == 0 && i-- > 0;)
        rc = job_collect(job, s, flights[i].stage, flights[i].exchange, flights[i].tokens);
    return rc;
}

static int ffn_answers(struct job *job, uint32_t f, const struct job_flight *flights,
                       uint32_t count)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = job_receive(job, f, flights[i].stage, flights[i].exchange, flights[i].tokens);
    for (uint32_t i = count; rc == 0 && i-- > 0;)
        rc = job_reply(job, f, flights[i].stage);
    return rc;
}

struct runner {
    struct job *job;
    uint32_t rank;
    uint32_t index;
    const struct job_flight *flights;
    uint32_t count;
    int rc;
    char error[512];
};

static void *run_rank(void *arg)
{
    struct runner *r = arg;
    if (r->job->roles[r->rank] == AFD_ROLE_FFN)
        r->rc = ffn_answers(r->job, r->index, r->flights, r->count);
    else
        r->rc = source_dispatches(r->job, r->index, r->flights, r->count);
    if (r->rc == 0 && r->job->roles[r->rank] == AFD_ROLE_ATTENTION)
        r->rc = source_collects(r->job, r->index, r->flights, r->count);
    snprintf(r->error, sizeof(r->error), "%s", r->rc != 0 ? afd_last_error() : "");
    return NULL;
}

static int fly_by_threads(struct job *job, const struct job_flight *flights, uint32_t count)
{
    pthread_t thread[JOB_RANKS_MAX];
    struct runner runner[JOB_RANKS_MAX];
    uint32_t sources = 0;
    uint32_t ffn_ranks = 0;
    int rc = 0;
    for (uint32_t i = 0; i < count; i++) /* made here, so that the ranks run side by side */
        job_truth_put(job, job_truth_get(job, flights[i].exchange, flights[i].tokens));
    for (uint32_t r = 0; r < job->world; r++) {
        uint32_t index = job->roles[r] == AFD_ROLE_FFN ? ffn_ranks++ : sources++;
        struct runner one = {job, r, index, flights, count, 0, ""};
        runner[r] = one;
        if (pthread_create(&thread[r], NULL, run_rank, &runner[r]) != 0)
            abort();
    }
    for (uint32_t r = 0; r < job->world; r++) {
        pthread_join(thread[r], NULL);
        if (rc == 0 && runner[r].rc != 0)
            job_mismatch(job, "rank %u: %s", r, runner[r].error);
        rc = rc != 0 ? rc : runner[r].rc;
    }
    return rc;
}

int job_fly(struct job *job, const struct job_flight *flights, uint32_t count)
{
    int rc = 0;
    if (job->options.threads)
        return fly_by_threads(job, flights, count);
    for (uint32_t s = 0; rc == 0 && s < job->sources; s++)
        rc = source_dispatches(job, s, flights, count);
    for (uint32_t f = 0; rc == 0 && f < job->ffn_ranks; f++)
        rc = ffn_answers(job, f, flights, count);
    for (uint32_t s = 0; rc == 0 && s < job->sources; s++)
        rc = source_collects(job, s, flights, count);
    return rc;
}

int job_exchange(struct job *job, uint32_t stage, uint64_t exchange, const uint32_t *tokens)
{
    struct job_flight flight = {stage, exchange, tokens};
    return job_fly(job, &flight, 1);
}
