/* SPDX-License-Identifier: Apache-2.0 */
/* test_exchange.c - whole exchanges in one domain, every byte compared with the reference. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "job.h"

static struct afd_buffer_config small(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 40;
    c.hidden = 48;
    c.experts = 13;
    c.topk = 4;
    c.words_tokens = 16;
    return c;
}

static void run(struct job *job, const uint32_t *sizes, uint32_t size_count, uint32_t exchanges)
{
    uint32_t tokens[JOB_RANKS_MAX];
    int rc = job_open(job);
    for (uint32_t r = 0; r < job->world; r++)
        if (job->create_rc[r] != 0)
            fail_msg("rank %u: %s", r, job->create_error[r]);
    assert_int_equal(rc, 0);
    for (uint32_t n = 1; n <= exchanges; n++) {
        for (uint32_t s = 0; s < job->sources; s++)
            tokens[s] = sizes[(n + s) % size_count];
        rc = job_exchange(job, (n - 1) % job->config[0].stages, n, tokens);
        if (rc != 0)
            fail_msg("exchange %u: %s", n, afd_last_error());
        if (job->mismatches != 0)
            fail_msg("exchange %u: %s", n, job->first_mismatch);
    }
    job_close(job);
}

static const uint32_t sizes[] = {0, 1, 5, 40, 16, 3, 17, 0, 8};
#define SIZES sizes, sizeof(sizes) / sizeof(sizes[0])

static void rows_in_one_thread_match_the_reference(void **state)
{
    struct afd_buffer_config c = small();
    struct job job;
    (void)state;
    job_init(&job, "AAFF", &c);
    run(&job, SIZES, 40);
}

static void words_in_one_thread_match_the_reference(void **state)
{
    struct afd_buffer_config c = small();
    struct job job;
    (void)state;
    c.variant = c.reply_variant = AFD_VARIANT_WORDS;
    c.first_epoch = 0xffffffffu - 20; /* the tag wraps on the way */
    job_init(&job, "FAFA", &c);
    job.options.with_weights = 1;
    run(&job, SIZES, 60);
}

static void ranks_as_threads_with_several_blocks_match(void **state)
{
    struct afd_buffer_config c = small();
    struct job job;
    (void)state;
    job_init(&job, "FFAAA", &c);
    job.options.threads = 1;
    for (uint32_t r = 0; r < job.world; r++) {
        job.config[r].blocks = 1 + r * 3;
        job.config[r].variant = r % 2 ? AFD_VARIANT_WORDS : AFD_VARIANT_ROWS;
        job.config[r].reply_variant = r % 3 ? AFD_VARIANT_WORDS : AFD_VARIANT_ROWS;
    }
    run(&job, SIZES, 60);
}

static void more_ffn_ranks_than_routes_share_reply_regions(void **state)
{
    struct afd_buffer_config c = small();
    struct job job;
    (void)state;
    c.topk = 2;
    job_init(&job, "FFFFFAA", &c);
    job.options.bias_count = 1;
    run(&job, SIZES, 30);
}

static void indexed_receive_and_view_copy_nothing_and_match(void **state)
{
    struct afd_buffer_config c = small();
    struct job job;
    (void)state;
    c.receive = AFD_RECEIVE_INDEXED;
    c.payload = AFD_PAYLOAD_FP8;
    c.hidden = 300;
    c.stages = 3;
    c.alignment = 8;
    c.weighted_reply = 1;
    job_init(&job, "FAAA", &c);
    job.options.view = 1;
    job.options.with_weights = 1;
    job.options.narrow_ids = 1;
    job.options.no_routes_in = 3;
    run(&job, SIZES, 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_in_one_thread_match_the_reference),
        cmocka_unit_test(words_in_one_thread_match_the_reference),
        cmocka_unit_test(ranks_as_threads_with_several_blocks_match),
        cmocka_unit_test(more_ffn_ranks_than_routes_share_reply_regions),
        cmocka_unit_test(indexed_receive_and_view_copy_nothing_and_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
