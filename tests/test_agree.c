/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_agree.c - what ranks must agree on, and what is each rank's own business.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agree.h"
#include "job.h"

static struct afd_buffer_config base(void)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 12;
    c.hidden = 260;
    c.experts = 7;
    c.topk = 3;
    c.payload = AFD_PAYLOAD_FP8;
    c.words_tokens = 6;
    return c;
}

static void check_exchanges(struct job *job, uint32_t count)
{
    static const uint32_t sizes[] = {3, 0, 12, 1, 7, 6};
    for (uint64_t n = 1; n <= count; n++) {
        uint32_t tokens[JOB_RANKS_MAX];
        for (uint32_t s = 0; s < job->sources; s++)
            tokens[s] = sizes[(n + s) % 6];
        if (job_exchange(job, (uint32_t)n % job->config[0].stages, n, tokens) != 0)
            fail_msg("exchange %u: %s %s", (unsigned)n, job->first_mismatch, afd_last_error());
        if (job->mismatches != 0)
            fail_msg("exchange %u: %s", (unsigned)n, job->first_mismatch);
    }
}

static void open_job(struct job *job)
{
    if (job_open(job) != 0)
        for (uint32_t r = 0; r < job->world; r++)
            if (job->create_rc[r] != 0)
                fail_msg("rank %u: %s", r, job->create_error[r]);
}

/* Every rank failed with `code`, and the sentence of each has the word. */
static void check_all_failed(const struct job *job, int code, const char *word)
{
    for (uint32_t r = 0; r < job->world; r++) {
        if (job->create_rc[r] != code)
            fail_msg("rank %u: %s instead of %s: %s", r, afd_error_name(job->create_rc[r]),
                     afd_error_name(code), job->create_error[r]);
        assert_null(job->buffer[r]);
        if (strstr(job->create_error[r], word) == NULL)
            fail_msg("rank %u: no \"%s\" in: %s", r, word, job->create_error[r]);
    }
}

/* ----------------------------------------------------------------------------------------- WIRE */

/* A WIRE field with two legal values. */
struct field {
    const char *name;
    size_t offset;
    size_t bytes;
    uint64_t value;
    uint64_t other;
};
#define FIELD(field, value, other)                                                                 \
    {                                                                                              \
#field, offsetof(struct afd_buffer_config, field),                                         \
            sizeof(((struct afd_buffer_config *)0)->field), value, other                           \
    }

static const struct field wire_fields[] = {
    FIELD(capacity, 12, 13),
    FIELD(hidden, 260, 261),
    FIELD(experts, 7, 8),
    FIELD(topk, 3, 4),
    FIELD(payload, AFD_PAYLOAD_FP8, AFD_PAYLOAD_FP8_UE8M0),
    FIELD(payload_bytes, 16, 17),
    FIELD(scale_bytes, 4, 5),
    FIELD(receive, AFD_RECEIVE_EXPANDED, AFD_RECEIVE_INDEXED),
    FIELD(protocol, AFD_PROTOCOL_DIRECT, AFD_PROTOCOL_UNION),
    FIELD(stages, 1, 2),
    FIELD(words_tokens, 6, 5),
    FIELD(first_epoch, 1, (1ull << 32) + 1),
};

static void set_field(void *config, const struct field *field, uint64_t value)
{
    uint32_t narrow = (uint32_t)value;
    const void *from = field->bytes == 8 ? (const void *)&value : (const void *)&narrow;
    memcpy((uint8_t *)config + field->offset, from, field->bytes);
}

/* "12 on rank 0, 2": the ranks that are not `odd`, or `odd` alone. */
static void value_text(char *text, size_t size, uint64_t value, uint32_t odd, int is_odd)
{
    static const char *const others[] = {"1, 2", "0, 2", "0, 1"};
    if (is_odd)
        snprintf(text, size, "%llu on rank %u", (unsigned long long)value, odd);
    else
        snprintf(text, size, "%llu on rank %s", (unsigned long long)value, others[odd]);
}

static void check_wire_field(const struct field *field, uint32_t odd)
{
    struct afd_buffer_config c = base();
    struct job job;
    char text[64];
    if (strstr(field->name, "_bytes") != NULL) {
        c.payload = AFD_PAYLOAD_BYTES;
        c.payload_bytes = 16;
        c.scale_bytes = 4;
    }
    job_init(&job, "FAA", &c);
    for (uint32_t r = 0; r < job.world; r++)
        set_field(&job.config[r], field, r == odd ? field->other : field->value);
    assert_int_not_equal(job_open(&job), 0);
    snprintf(text, sizeof(text), "%s differs", field->name);
    check_all_failed(&job, AFD_EMISMATCH, text);
    value_text(text, sizeof(text), field->other, odd, 1);
    check_all_failed(&job, AFD_EMISMATCH, text);
    value_text(text, sizeof(text), field->value, odd, 0);
    check_all_failed(&job, AFD_EMISMATCH, text);
    set_field(&job.config[odd], field, field->value); /* no harm is done */
    open_job(&job);
    check_exchanges(&job, 3);
    job_close(&job);
}

static void a_wire_field_that_differs_fails_every_rank_with_both_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wire_fields) / sizeof(wire_fields[0]); i++)
        for (uint32_t odd = 0; odd < 3; odd++)
            check_wire_field(&wire_fields[i], odd);
}

static void a_placement_that_differs_fails_every_rank(void **state)
{
    static const uint32_t one[7] = {0, 0, 0, 0, 1, 1, 1};
    static const uint32_t other[7] = {0, 0, 0, 1, 0, 1, 1};
    struct afd_buffer_config c = base();
    (void)state;
    c.placement = one;
    for (uint32_t odd = 0; odd < 3; odd++) {
        static const char *const others[] = {"on rank 1, 2", "on rank 0, 2", "on rank 0, 1"};
        struct job job;
        char text[32];
        job_init(&job, "FAF", &c);
        job.config[odd].placement = other;
        assert_int_not_equal(job_open(&job), 0);
        snprintf(text, sizeof(text), "on rank %u", odd);
        check_all_failed(&job, AFD_EMISMATCH, "placement");
        check_all_failed(&job, AFD_EMISMATCH, text);
        check_all_failed(&job, AFD_EMISMATCH, others[odd]);
        job_close(&job);
    }
}

static void an_explicit_placement_equal_to_the_even_one_agrees_with_none(void **state)
{
    static const uint32_t even[7] = {0, 0, 0, 0, 1, 1, 1};
    (void)state;
    for (uint32_t explicit_ranks = 1; explicit_ranks < 15; explicit_ranks++) {
        struct afd_buffer_config c = base();
        struct job job;
        job_init(&job, "FAFA", &c);
        for (uint32_t r = 0; r < 4; r++)
            if (explicit_ranks >> r & 1)
                job.config[r].placement = even;
        open_job(&job);
        check_exchanges(&job, 3);
        job_close(&job);
    }
}

static void the_protocol_auto_is_direct(void **state)
{
    struct afd_buffer_config c = base();
    struct job job;
    (void)state;
    job_init(&job, "FAA", &c);
    job.config[0].protocol = AFD_PROTOCOL_DIRECT;
    job.config[1].protocol = AFD_PROTOCOL_AUTO;
    job.config[2].protocol = AFD_PROTOCOL_DIRECT;
    open_job(&job);
    check_exchanges(&job, 2);
    job_close(&job);
}

/* ---------------------------------------------------------------------------- one rank is wrong */

static void check_illegal(const struct field *field, int code, const char *sentence)
{
    for (uint32_t odd = 0; odd < 3; odd++) {
        struct afd_buffer_config c = base();
        struct job job;
        char text[32];
        job_init(&job, "FAA", &c);
        set_field(&job.config[odd], field, field->other);
        assert_int_not_equal(job_open(&job), 0);
        check_all_failed(&job, code, sentence);
        snprintf(text, sizeof(text), "rank %u failed", odd);
        for (uint32_t r = 0; r < 3; r++) /* the others learn whose sentence it is */
            assert_true((strstr(job.create_error[r], text) != NULL) == (r != odd));
        set_field(&job.config[odd], field, field->value);
        open_job(&job);
        check_exchanges(&job, 2);
        job_close(&job);
    }
}

static void an_illegal_config_of_one_rank_fails_all_with_its_sentence(void **state)
{
    static const struct field capacity = FIELD(capacity, 12, 0);
    static const struct field topk = FIELD(topk, 3, 33);
    static const struct field reply = FIELD(reply, AFD_REPLY_BF16, AFD_REPLY_FP8);
    static const struct field size = FIELD(size, sizeof(struct afd_buffer_config), 3);
    static const struct field blocks = FIELD(blocks, 0, 257);
    (void)state;
    check_illegal(&capacity, AFD_EINVAL, "capacity is 0; it must be 1 .. 65536");
    check_illegal(&topk, AFD_EINVAL, "topk is 33; it must be 1 .. 32");
    check_illegal(&reply, AFD_EUNSUPPORTED, "FP8");
    check_illegal(&size, AFD_EINVAL, "size 3");
    check_illegal(&blocks, AFD_EINVAL, "blocks is 257; it must be 0 .. 256");
}

/* ---------------------------------------------------------------------------------------- LOCAL */

static const struct local {
    struct field field;
    uint64_t value[4]; /* by rank */
} locals[] = {
    {FIELD(alignment, 0, 0), {1, 8, 3, 128}},
    {FIELD(scale_layout, 0, 0), {0, 1, 1, 0}},
    {FIELD(zero_padding, 0, 0), {0, 1, 1, 0}},
    {FIELD(weighted_reply, 0, 0), {1, 1, 0, 0}},
    {FIELD(blocks, 0, 0), {1, 4, 17, 256}},
    {FIELD(variant, 0, 0), {AFD_VARIANT_WORDS, AFD_VARIANT_ROWS, AFD_VARIANT_ROWS, 0}},
    {FIELD(reply_variant, 0, 0), {AFD_VARIANT_ROWS, AFD_VARIANT_WORDS, 0, AFD_VARIANT_WORDS}},
    {FIELD(batch_rows, 0, 0), {0, 1, 5000, 600}},
    {FIELD(deadline_us, 0, 0), {0, 20000000, 3600000000, 30000000}},
};
#define LOCALS (sizeof(locals) / sizeof(locals[0]))

/* Gives the ranks of "AFFA" the values of these fields, turned by `turn` ranks; runs both ways. */
static void check_locals(const struct local *first, size_t count, uint32_t turn)
{
    for (uint32_t threads = 0; threads < 2; threads++) {
        struct afd_buffer_config c = base();
        struct job job;
        job_init(&job, "AFFA", &c);
        job.options.threads = threads;
        job.options.with_weights = JOB_WEIGHTS_ALL;
        for (size_t i = 0; i < count; i++)
            for (uint32_t r = 0; r < 4; r++)
                set_field(&job.config[r], &first[i].field, first[i].value[(r + turn) % 4]);
        for (uint32_t r = 0; r < 4; r++) /* one row is too few, but only FFN ranks care */
            if (job.config[r].batch_rows == 1 && job.roles[r] == AFD_ROLE_FFN)
                job.config[r].batch_rows = 3000;
        open_job(&job);
        check_exchanges(&job, 6);
        job_close(&job);
    }
}

static void every_local_field_may_differ_on_every_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < LOCALS; i++)
        for (uint32_t turn = 0; turn < 4; turn++)
            check_locals(&locals[i], 1, turn);
}

static void all_local_fields_may_differ_at_once(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 4; turn++)
        check_locals(locals, LOCALS, turn);
}

/* --------------------------------------------------------------------------------------- groups */

/* Ranks that meet by a caller's allgather, which can change what one of them says. */
struct meeting {
    pthread_barrier_t barrier;
    uint8_t all[3 * 4096];
    void (*tamper)(struct afd_hello *hello); /* of rank 2 */
};

struct member {
    struct meeting *meeting;
    struct afd_group_config config;
    int rc;
    char error[512];
};

static int allgather(void *context, const void *in, void *out, size_t bytes)
{
    struct member *m = context;
    uint8_t *own = m->meeting->all + m->config.rank * bytes;
    if (3 * bytes > sizeof(m->meeting->all))
        return -1;
    memcpy(own, in, bytes);
    if (m->meeting->tamper != NULL && m->config.rank == 2 && bytes == sizeof(struct afd_hello))
        m->meeting->tamper((struct afd_hello *)(void *)own);
    pthread_barrier_wait(&m->meeting->barrier);
    memcpy(out, m->meeting->all, 3 * bytes);
    pthread_barrier_wait(&m->meeting->barrier);
    return 0;
}

static void *create_group(void *arg)
{
    struct member *m = arg;
    struct afd_group *group = NULL;
    m->rc = afd_group_create(&m->config, &group);
    snprintf(m->error, sizeof(m->error), "%s", m->rc != 0 ? afd_last_error() : "");
    if (m->rc == 0)
        m->rc = afd_group_destroy(group);
    return NULL;
}

static void members_init(struct meeting *meeting, struct member *member)
{
    static const uint8_t roles[3] = {AFD_ROLE_FFN, AFD_ROLE_ATTENTION, AFD_ROLE_ATTENTION};
    memset(meeting, 0, sizeof(*meeting));
    assert_int_equal(pthread_barrier_init(&meeting->barrier, NULL, 3), 0);
    for (uint32_t r = 0; r < 3; r++) {
        memset(&member[r], 0, sizeof(member[r]));
        afd_group_config_init(&member[r].config);
        member[r].meeting = meeting;
        member[r].config.rank = r;
        member[r].config.world = 3;
        member[r].config.roles = roles;
        member[r].config.bootstrap = AFD_BOOTSTRAP_CALLBACKS;
        member[r].config.callbacks.allgather = allgather;
        member[r].config.callbacks.context = &member[r];
    }
}

/* Creates all three groups; each must end with `code` and the words in its sentence. */
static void members_meet(struct meeting *meeting, struct member *member, int code,
                         const char *const *words)
{
    pthread_t thread[3];
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, create_group, &member[r]), 0);
    for (uint32_t r = 0; r < 3; r++)
        pthread_join(thread[r], NULL);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(member[r].rc, code);
        for (const char *const *word = words; *word != NULL; word++)
            if (strstr(member[r].error, *word) == NULL)
                fail_msg("rank %u: no \"%s\" in: %s", r, *word, member[r].error);
    }
    pthread_barrier_destroy(&meeting->barrier);
}

static void roles_and_domains_that_differ_fail_every_rank(void **state)
{
    static const uint8_t other_roles[3] = {AFD_ROLE_FFN, AFD_ROLE_FFN, AFD_ROLE_ATTENTION};
    static const uint32_t domains[3] = {0, 0, 5};
    static const char *const role_words[] = {"role of rank 1", "1 says rank 0", "2 says rank 2",
                                             NULL};
    static const char *const domain_words[] = {"domain of rank 2", "0 says rank 0", "5 says rank 1",
                                               NULL};
    static const char *const nothing[] = {NULL};
    struct meeting meeting;
    struct member member[3];
    (void)state;
    members_init(&meeting, member);
    members_meet(&meeting, member, 0, nothing);
    members_init(&meeting, member);
    member[2].config.roles = other_roles;
    members_meet(&meeting, member, AFD_EMISMATCH, role_words);
    members_init(&meeting, member);
    member[1].config.domains = domains;
    members_meet(&meeting, member, AFD_EMISMATCH, domain_words);
}

static void tamper_version(struct afd_hello *hello)
{
    hello->wire_version = 900;
}

static void tamper_digest(struct afd_hello *hello)
{
    memcpy(hello->digest, "feedfacefeedface", 16);
}

static void tamper_text(struct afd_hello *hello)
{
    memset(hello->digest, 'x', sizeof(hello->digest)); /* no end */
    memset(hello->version, 'y', sizeof(hello->version));
}

static void another_wire_version_or_digest_fails_every_rank(void **state)
{
    static const char *const version_words[] = {"wire version differs", "1 on rank 0",
                                                "900 on rank 2", NULL};
    const char *const digest_words[] = {"digest differs", afd_digest(),
                                        "feedfacefeedface on rank 2", NULL};
    static const char *const text_words[] = {"digest differs", "xxx", "yyy", "on rank 2", NULL};
    struct meeting meeting;
    struct member member[3];
    (void)state;
    members_init(&meeting, member);
    meeting.tamper = tamper_version;
    members_meet(&meeting, member, AFD_EMISMATCH, version_words);
    members_init(&meeting, member);
    meeting.tamper = tamper_digest;
    members_meet(&meeting, member, AFD_EMISMATCH, digest_words);
    members_init(&meeting, member);
    meeting.tamper = tamper_text;
    members_meet(&meeting, member, AFD_EMISMATCH, text_words);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wire_field_that_differs_fails_every_rank_with_both_values),
        cmocka_unit_test(a_placement_that_differs_fails_every_rank),
        cmocka_unit_test(an_explicit_placement_equal_to_the_even_one_agrees_with_none),
        cmocka_unit_test(the_protocol_auto_is_direct),
        cmocka_unit_test(an_illegal_config_of_one_rank_fails_all_with_its_sentence),
        cmocka_unit_test(every_local_field_may_differ_on_every_rank),
        cmocka_unit_test(all_local_fields_may_differ_at_once),
        cmocka_unit_test(roles_and_domains_that_differ_fail_every_rank),
        cmocka_unit_test(another_wire_version_or_digest_fails_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
