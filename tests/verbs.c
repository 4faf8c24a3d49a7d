/* SPDX-License-Identifier: Apache-2.0 */
/* verbs.c - a small job for tests that call the verbs wrongly. */

#include "verbs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct afd_buffer_config verbs_config(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = VERBS_CAPACITY;
    c.hidden = VERBS_HIDDEN;
    c.experts = VERBS_EXPERTS;
    c.topk = VERBS_TOPK;
    c.payload = AFD_PAYLOAD_FP8;
    c.stages = VERBS_STAGES;
    c.words_tokens = 4;
    return c;
}

static void check_mismatches(const struct verbs *v)
{
    if (v->job.mismatches != 0)
        fail_msg("exchange %u: %s", (unsigned)v->exchange, v->job.first_mismatch);
}

void verbs_begin(struct verbs *v, const char *roles, const struct afd_buffer_config *c)
{
    job_init(&v->job, roles, c);
    v->job.options.with_weights = JOB_WEIGHTS_ALL;
    v->exchange = 0;
    for (uint32_t s = 0; s < JOB_RANKS_MAX; s++)
        v->tokens[s] = s % 2 == 0 ? 5 : VERBS_CAPACITY;
    if (job_open(&v->job) != 0)
        for (uint32_t r = 0; r < v->job.world; r++)
            if (v->job.create_rc[r] != 0)
                fail_msg("rank %u: %s", r, v->job.create_error[r]);
}

void verbs_work(struct verbs *v)
{
    for (uint32_t stage = 0; stage < v->job.config[0].stages; stage++) {
        v->exchange++;
        if (job_exchange(&v->job, stage, v->exchange, v->tokens) != 0)
            fail_msg("exchange %u: %s", (unsigned)v->exchange, afd_last_error());
        check_mismatches(v);
    }
}

void verbs_end(struct verbs *v)
{
    verbs_work(v);
    job_close(&v->job);
}

void verbs_dispatch(struct verbs *v)
{
    struct job_truth *truth = job_truth_get(&v->job, ++v->exchange, v->tokens);
    for (uint32_t s = 0; s < v->job.sources; s++)
        assert_int_equal(job_dispatch(&v->job, s, 0, &truth->input[s]), 0);
    job_truth_put(&v->job, truth);
}

void verbs_finish(struct verbs *v, uint32_t received)
{
    for (uint32_t f = received; f < v->job.ffn_ranks; f++)
        assert_int_equal(job_receive(&v->job, f, 0, v->exchange, v->tokens), 0);
    for (uint32_t f = 0; f < v->job.ffn_ranks; f++)
        assert_int_equal(job_reply(&v->job, f, 0), 0);
    for (uint32_t s = 0; s < v->job.sources; s++)
        assert_int_equal(job_collect(&v->job, s, 0, v->exchange, v->tokens), 0);
    check_mismatches(v);
}
