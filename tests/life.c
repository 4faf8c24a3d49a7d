/* SPDX-License-Identifier: Apache-2.0 */
/* life.c - one rank's life. */

#include "life.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "buffer.h"

#define STALE 0x1111u

/* Keeps the first thing that was wrong. */
__attribute__((format(printf, 2, 3))) static void wrong(struct life *life, const char *format, ...)
{
    va_list args;
    if (life->outcome.wrong[0] != '\0')
        return;
    va_start(args, format);
    vsnprintf(life->outcome.wrong, sizeof(life->outcome.wrong), format, args);
    va_end(args);
}

/* Keeps what a call said. Returns its rc. */
static int after(struct life *life, uint32_t phase, uint64_t begin_us, int rc)
{
    struct life_outcome *o = &life->outcome;
    if (rc == 0)
        return 0;
    o->rc = rc;
    o->phase = phase;
    o->waited_us = afd_clock_us() - begin_us;
    snprintf(o->sentence, sizeof(o->sentence), "%s", afd_last_error());
    if (afd_buffer_fault(life->job->buffer[life->rank], &o->fault) != 0)
        wrong(life, "%s failed with %d, but the buffer has no fault", afd_phase_name(phase), rc);
    return rc;
}

static int hook(struct life *life, uint32_t phase, uint32_t n)
{
    return life->hook != NULL && life->hook(life, phase, n) != 0;
}

/* ------------------------------------------------------------------------------------ Attention */

/* After a failure a row is right, or it is NaN. */
static void check_lost_row(struct life *life, uint32_t t, const uint16_t *row, const uint16_t *want)
{
    uint32_t hidden = life->job->ref.hidden;
    uint32_t nans = 0;
    if (memcmp(row, want, hidden * sizeof(*row)) == 0)
        return;
    for (uint32_t h = 0; h < hidden; h++)
        nans += row[h] == 0x7fc0;
    if (nans != hidden)
        wrong(life, "row %u of a lost exchange looks valid: it begins with %04x", t, row[0]);
}

static int collect(struct life *life, const struct job_truth *truth)
{
    struct job *job = life->job;
    uint32_t count = truth->tokens[life->index];
    uint32_t hidden = job->ref.hidden;
    uint16_t *rows = job_need(malloc((uint64_t)count * hidden * sizeof(*rows) + 1));
    const uint16_t *want = truth->collected[life->index];
    struct afd_output output;
    uint64_t begin_us = afd_clock_us();
    int rc;
    for (uint64_t i = 0; i < (uint64_t)count * hidden; i++)
        rows[i] = STALE;
    afd_output_init(&output);
    output.rows = rows;
    rc = after(life, AFD_PHASE_COLLECT, begin_us,
               afd_collect(job->buffer[life->rank], life->stage, &output, NULL));
    if (rc == 0)
        job_check_collected(job, life->index, truth, &output);
    for (uint32_t t = 0; rc != 0 && t < count; t++)
        check_lost_row(life, t, rows + (uint64_t)t * hidden, want + (uint64_t)t * hidden);
    free(rows);
    return rc;
}

/* 1 if the life goes on. */
static int attention_exchange(struct life *life, uint32_t n)
{
    struct job_truth *truth;
    uint64_t begin_us;
    int rc;
    if (hook(life, AFD_PHASE_DISPATCH, n))
        return 0;
    truth = job_truth_get(life->job, n, life->tokens);
    begin_us = afd_clock_us();
    rc = after(life, AFD_PHASE_DISPATCH, begin_us,
               job_dispatch(life->job, life->index, life->stage, &truth->input[life->index]));
    if (rc == 0 && hook(life, AFD_PHASE_COLLECT, n))
        rc = 1;
    if (rc == 0)
        rc = collect(life, truth);
    job_truth_put(life->job, truth);
    return rc == 0;
}

/* ------------------------------------------------------------------------------------------ FFN */

static void check_counts(struct life *life)
{
    const struct afd_buffer *buffer = life->job->buffer[life->rank];
    const uint32_t *counts = afd_buffer_private(buffer, AFD_PRIVATE_COUNTS, life->stage);
    const uint32_t *offsets = afd_buffer_private(buffer, AFD_PRIVATE_OFFSETS, life->stage);
    for (uint32_t e = 0; e < buffer->plan.local_experts; e++)
        if (counts[e] != 0 || offsets[e + 1] != 0)
            wrong(life, "a lost batch counts %u rows of expert %u", counts[e], e);
}

static int ffn_exchange(struct life *life, uint32_t n)
{
    uint64_t begin_us;
    if (hook(life, AFD_PHASE_RECEIVE, n))
        return 0;
    begin_us = afd_clock_us();
    if (after(life, AFD_PHASE_RECEIVE, begin_us,
              job_receive(life->job, life->index, life->stage, n, life->tokens)) != 0) {
        check_counts(life);
        return 0;
    }
    if (hook(life, AFD_PHASE_REPLY, n))
        return 0;
    begin_us = afd_clock_us();
    return after(life, AFD_PHASE_REPLY, begin_us, job_reply(life->job, life->index, life->stage)) ==
           0;
}

/* ----------------------------------------------------------------------------------------- life */

void life_run(struct life *life)
{
    int is_ffn = life->job->roles[life->rank] == AFD_ROLE_FFN;
    int goes_on = 1;
    memset(&life->outcome, 0, sizeof(life->outcome));
    life->index = 0;
    for (uint32_t r = 0; r < life->rank; r++)
        life->index += life->job->roles[r] == life->job->roles[life->rank];
    for (uint32_t n = 1; goes_on && n <= life->exchanges; n++) {
        goes_on = is_ffn ? ffn_exchange(life, n) : attention_exchange(life, n);
        life->outcome.exchanges += (uint32_t)goes_on;
    }
    if (life->job->mismatches != 0)
        wrong(life, "%s", life->job->first_mismatch);
}

static void *live(void *life)
{
    life_run(life);
    return NULL;
}

void life_start(struct life *life)
{
    if (pthread_create(&life->thread, NULL, live, life) != 0)
        abort();
}

void life_join(struct life *life)
{
    pthread_join(life->thread, NULL);
}

/* ----------------------------------------------------------------------------------------- crew */

struct afd_buffer_config crew_config(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 8;
    c.hidden = 80;
    c.experts = 4;
    c.topk = 3;
    c.words_tokens = 8;
    c.stages = 2;
    return c;
}

void crew_open(struct crew *crew, const char *roles, const struct afd_buffer_config *config,
               uint64_t deadline_us)
{
    memset(crew, 0, sizeof(*crew));
    job_init(&crew->job, roles, config);
    crew->job.group_config.deadline_us = deadline_us;
    crew->job.options.routing = JOB_ROUTING_FULL;
    crew->job.options.with_weights = JOB_WEIGHTS_ALL;
    for (uint32_t s = 0; s < JOB_RANKS_MAX; s++)
        crew->tokens[s] = 5;
    if (job_open(&crew->job) != 0)
        for (uint32_t r = 0; r < crew->job.world; r++)
            if (crew->job.create_rc[r] != 0)
                fail_msg("rank %u: %s", r, crew->job.create_error[r]);
}

void crew_start(struct crew *crew, uint32_t exchanges, life_hook on_call)
{
    for (uint32_t r = 0; r < crew->job.world; r++) {
        struct life *life = &crew->life[r];
        life->job = &crew->job;
        life->rank = r;
        life->exchanges = exchanges;
        life->tokens = crew->tokens;
        life->hook = on_call;
    }
    for (uint32_t r = 0; r < crew->job.world; r++)
        life_start(&crew->life[r]);
}

void crew_join(struct crew *crew)
{
    for (uint32_t r = 0; r < crew->job.world; r++)
        life_join(&crew->life[r]);
}

void crew_close_rank(struct crew *crew, uint32_t rank)
{
    if (afd_buffer_close(crew->job.buffer[rank]) != 0)
        abort();
    crew->job.buffer[rank] = NULL;
}

void crew_check_blame(struct crew *crew, uint32_t culprit, int code, uint64_t limit_us)
{
    char name[32];
    snprintf(name, sizeof(name), "rank %u ", culprit);
    for (uint32_t r = 0; r < crew->job.world; r++) {
        const struct life_outcome *o = &crew->life[r].outcome;
        if (o->wrong[0] != '\0')
            fail_msg("rank %u, culprit %u: %s", r, culprit, o->wrong);
        if (r == culprit)
            continue;
        if (o->rc != code || o->fault.code != code || o->fault.rank != culprit ||
            strncmp(o->sentence, name, strlen(name)) != 0)
            fail_msg("culprit %u: rank %u got %s and blames rank %u: %s", culprit, r,
                     afd_error_name(o->rc), o->fault.rank, o->sentence);
        if (o->waited_us > limit_us)
            fail_msg("culprit %u: rank %u waited %u ms", culprit, r, (unsigned)o->waited_us / 1000);
    }
}

void crew_check_done(struct crew *crew, uint32_t rank, uint32_t exchanges)
{
    const struct life_outcome *o = &crew->life[rank].outcome;
    if (o->rc != 0 || o->wrong[0] != '\0' || o->exchanges != exchanges)
        fail_msg("rank %u made %u exchanges of %u: %s%s", rank, o->exchanges, exchanges,
                 o->sentence, o->wrong);
}
