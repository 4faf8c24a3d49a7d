/* SPDX-License-Identifier: Apache-2.0 */
/* job.c - from options to a job, with one clear sentence for what cannot be. */

#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "switches.h"

#define BENCH_EXCHANGES_MIN 20u
#define PROCESSES_MAX 8u /* more ranks become threads unless asked otherwise */
#define PLACEMENT_BYTES_MAX ((size_t)1 << 28)

struct name {
    const char *text;
    uint32_t value;
};

/* Value of `text` in a list of names; the first one if text is NULL. */
static int pick(const char *option, const char *text, const struct name *names, size_t count,
                uint32_t *value_out)
{
    char list[256] = "";
    for (size_t i = 0; i < count; i++) {
        if (text == NULL || strcmp(text, names[i].text) == 0) {
            *value_out = names[i].value;
            return CLI_OK;
        }
        strncat(list, i == 0 ? "" : ", ", sizeof(list) - strlen(list) - 1);
        strncat(list, names[i].text, sizeof(list) - strlen(list) - 1);
    }
    return cli_error(CLI_USAGE, "--%s %s is none of: %s", option, text, list);
}
#define PICK(option, text, names, out)                                                             \
    pick(option, text, names, sizeof(names) / sizeof((names)[0]), out)

/* --------------------------------------------------------------------------------- what is here */

static int check_available(const struct cli_options *o, const struct cli_layout *layout)
{
    static const struct name backends[] = {{"auto", 1}, {"inline", 1}, {"cuda", 2}};
    static const struct name fabrics[] = {{"shm", 1}, {"ofi", 2}, {"emulated", 3}};
    uint32_t backend = 0;
    uint32_t fabric = 0;
    int rc = PICK("backend", o->backend, backends, &backend);
    rc = rc ? rc : PICK("fabric", o->fabric, fabrics, &fabric);
    if (rc != CLI_OK)
        return rc;
    if (backend == 2)
        return cli_error(CLI_FAILED, "--backend cuda is not in this build; use inline");
    if (layout->per_domain != 0 && layout->per_domain < layout->world)
        return cli_error(CLI_USAGE,
                         "layout %s has several domains, but this build works in one domain only",
                         layout->name);
    if (fabric != 1)
        return cli_error(CLI_USAGE, "--fabric %s is not in this build; one domain uses shm",
                         o->fabric);
    if (o->provider != NULL || o->channels != CLI_NOT_GIVEN || o->fp8_min_tokens != CLI_NOT_GIVEN)
        return cli_error(CLI_USAGE,
                         "--provider, --channels and --fp8-min-tokens belong to jobs of several "
                         "domains, which this build does not run");
    return CLI_OK;
}

static int choose_protocol(const struct cli_options *o, uint32_t *protocol_out)
{
    static const struct name known[] = {{"auto", AFD_PROTOCOL_AUTO},
                                        {"direct", AFD_PROTOCOL_DIRECT},
                                        {"union", AFD_PROTOCOL_UNION}};
    static const char *const later[] = {"union-hybrid", "hybrid", "mixed", "rdma-direct", "relay"};
    for (size_t i = 0; o->protocol != NULL && i < sizeof(later) / sizeof(later[0]); i++)
        if (strcmp(o->protocol, later[i]) == 0)
            return cli_error(CLI_USAGE, "protocol %s is not in this build; it has direct and union",
                             o->protocol);
    return PICK("protocol", o->protocol, known, protocol_out);
}

const char *cli_protocol_name(uint32_t protocol)
{
    return protocol == AFD_PROTOCOL_UNION ? "union" : "direct"; /* auto in one domain, too */
}

/* ------------------------------------------------------------------------------------- config */

static int parse_payload(const char *text, struct afd_buffer_config *c)
{
    static const struct name kinds[] = {{"bf16", AFD_PAYLOAD_BF16},
                                        {"fp8", AFD_PAYLOAD_FP8},
                                        {"fp8-ue8m0", AFD_PAYLOAD_FP8_UE8M0},
                                        {"bytes:N", AFD_PAYLOAD_BYTES}};
    uint64_t bytes;
    if (text == NULL || strncmp(text, "bytes:", 6) != 0)
        return PICK("payload", text, kinds, &c->payload);
    if (cli_number_parse(text + 6, UINT32_MAX, &bytes) != 0)
        return cli_error(CLI_USAGE, "--payload %s is not like bytes:512 with a number up to %u",
                         text, UINT32_MAX);
    c->payload = AFD_PAYLOAD_BYTES;
    c->payload_bytes = (uint32_t)bytes;
    return CLI_OK;
}

static int set_switch(struct afd_buffer_config *c, const char *text)
{
    static const struct name variants[] = {
        {"auto", AFD_VARIANT_AUTO}, {"words", AFD_VARIANT_WORDS}, {"rows", AFD_VARIANT_ROWS}};
    static const struct name scales[] = {{"row", AFD_SCALES_ROW_MAJOR},
                                         {"col", AFD_SCALES_COL_MAJOR}};
    static const struct name bits[] = {{"0", 0}, {"1", 1}};
    const char *equals = strchr(text, '=');
    size_t length = equals == NULL ? 0 : (size_t)(equals - text);
    uint64_t value;
    if (equals == NULL)
        return cli_error(CLI_USAGE, "--switch %s is not like NAME=VALUE", text);
#define IS(name) (length == strlen(name) && strncmp(text, name, length) == 0)
    if (IS("variant"))
        return PICK("switch variant", equals + 1, variants, &c->variant);
    if (IS("reply-variant"))
        return PICK("switch reply-variant", equals + 1, variants, &c->reply_variant);
    if (IS("zero-padding"))
        return PICK("switch zero-padding", equals + 1, bits, &c->zero_padding);
    if (IS("scales"))
        return PICK("switch scales", equals + 1, scales, &c->scale_layout);
    if (IS("words-tokens")) {
        if (cli_number_parse(equals + 1, AFD_WORDS_TOKENS_MAX, &value) != 0)
            return cli_error(CLI_USAGE, "--switch %s: it must be a number 0 .. %u", text,
                             AFD_WORDS_TOKENS_MAX);
        c->words_tokens = (uint32_t)value;
        return CLI_OK;
    }
    if (IS("first-epoch")) {
        if (cli_number_parse(equals + 1, 1ull << 62, &value) != 0 || value == 0)
            return cli_error(CLI_USAGE, "--switch %s: it must be a number 1 .. %llu", text,
                             1ull << 62);
        c->first_epoch = value;
        return CLI_OK;
    }
#undef IS
    return cli_error(CLI_USAGE,
                     "--switch %s is unknown; there are variant, reply-variant, "
                     "words-tokens, zero-padding, scales and first-epoch",
                     text);
}

static int fill_config(const struct cli_options *o, struct cli_job *job)
{
    static const struct name replies[] = {{"bf16", AFD_REPLY_BF16}, {"fp8", AFD_REPLY_FP8}};
    static const struct name receives[] = {{"expanded", AFD_RECEIVE_EXPANDED},
                                           {"indexed", AFD_RECEIVE_INDEXED}};
    struct afd_buffer_config *c = &job->config;
    int rc;
    afd_buffer_config_init(c);
    rc = choose_protocol(o, &c->protocol);
    rc = rc ? rc : parse_payload(o->payload, c);
    rc = rc ? rc : PICK("reply", o->reply, replies, &c->reply);
    rc = rc ? rc : PICK("receive", o->receive, receives, &c->receive);
    for (uint32_t i = 0; rc == CLI_OK && i < o->switch_count; i++)
        rc = set_switch(c, o->switches[i]);
    c->hidden = (uint32_t)o->hidden;
    c->experts = o->experts != CLI_NOT_GIVEN ? (uint32_t)o->experts : 128;
    c->topk = o->topk != CLI_NOT_GIVEN ? (uint32_t)o->topk : 8;
    c->stages = (uint32_t)o->stages;
    c->blocks = (uint32_t)o->blocks;
    c->alignment = (uint32_t)o->align;
    c->weighted_reply = (uint32_t)o->weights;
    /* the library will do the same: what is checked and reported must be what it does */
    if (rc == CLI_OK && afd_switches_apply(c) != 0)
        rc = cli_error(CLI_USAGE, "%s", afd_last_error());
    if (c->protocol == AFD_PROTOCOL_UNION) /* it has rows only */
        c->variant = c->reply_variant = AFD_VARIANT_ROWS;
    if ((c->variant == AFD_VARIANT_WORDS || c->reply_variant == AFD_VARIANT_WORDS) &&
        c->words_tokens == 0)
        c->words_tokens = AFD_WORDS_TOKENS_MAX; /* cut to the capacity when that is known */
    return rc;
}

/* ---------------------------------------------------------------------------------------- trace */

static int load_trace(const struct cli_options *o, struct cli_job *job)
{
    int rc;
    if (o->trace == NULL)
        return CLI_OK;
    if (o->routing != NULL)
        return cli_error(CLI_USAGE, "--trace and --routing %s are two sources of routes",
                         o->routing);
    rc = cli_trace_load(o->trace, &job->trace);
    if (rc != CLI_OK)
        return rc;
    if (o->experts != CLI_NOT_GIVEN && (uint32_t)o->experts != job->trace.experts)
        return cli_error(CLI_USAGE, "--experts %d, but the trace has %u", o->experts,
                         job->trace.experts);
    if (o->topk != CLI_NOT_GIVEN && (uint32_t)o->topk != job->trace.topk)
        return cli_error(CLI_USAGE, "--topk %d, but the trace has %u", o->topk, job->trace.topk);
    job->config.experts = job->trace.experts;
    job->config.topk = job->trace.topk;
    return CLI_OK;
}

static int load_placement(const struct cli_options *o, struct cli_job *job)
{
    struct afd_buffer_config *c = &job->config;
    char error[256] = "";
    uint8_t *bytes;
    size_t length;
    int rc;
    job->placement = malloc((size_t)c->experts * sizeof(*job->placement));
    if (job->placement == NULL)
        return cli_error(CLI_FAILED, "no memory for %u experts", c->experts);
    afd_reference_placement(c->experts, job->layout.ffn_ranks, job->placement);
    if (o->placement == NULL)
        return CLI_OK;
    rc = cli_file_read(o->placement, PLACEMENT_BYTES_MAX, &bytes, &length);
    if (rc != CLI_OK)
        return rc;
    rc = cli_placement_parse((const char *)bytes, length, c->experts, job->layout.ffn_ranks,
                             job->placement, error, sizeof(error));
    free(bytes);
    c->placement = job->placement;
    return rc == 0 ? CLI_OK : cli_error(CLI_USAGE, "%s: %s", o->placement, error);
}

/* ---------------------------------------------------------------------------------------- sizes */

/* How often `tokens` stands in the walk. */
static uint32_t visits_of(const uint32_t *walk, uint32_t count, uint32_t tokens)
{
    uint32_t visits = 0;
    for (uint32_t i = 0; i < count; i++)
        visits += walk[i] == tokens;
    return visits;
}

/* The walk, with each size's exchanges shared among its visits. */
static int plan_visits(const struct cli_options *o, struct cli_job *job, uint32_t *largest_out)
{
    uint32_t walk[CLI_SIZES_MAX];
    uint32_t seen[CLI_SIZES_MAX] = {0};
    uint32_t count;
    int rc = cli_tokens_parse(o->tokens != NULL ? o->tokens : "1,8,32,128", walk, &count);
    *largest_out = 0;
    for (uint32_t i = 0; rc == CLI_OK && i < count; i++) {
        struct cli_visit *v = &job->visit[job->visit_count];
        uint32_t visits = visits_of(walk, count, walk[i]);
        uint32_t size = 0;
        uint32_t share;
        while (size < job->size_count && job->sizes[size] != walk[i])
            size++;
        if (size == job->size_count)
            job->sizes[job->size_count++] = walk[i];
        share = (uint32_t)o->exchanges / visits +
                (seen[size] < (uint32_t)o->exchanges % visits ? 1u : 0u);
        *largest_out = walk[i] > *largest_out ? walk[i] : *largest_out;
        if (o->mostly_timed) {
            share = share * 8 / (8 + walk[i]);
            share = share < BENCH_EXCHANGES_MIN ? BENCH_EXCHANGES_MIN : share;
        }
        if (share == 0)
            continue; /* more visits than exchanges */
        v->tokens = walk[i];
        v->size = size;
        v->timed = o->mostly_timed ? share - 1 : (share + seen[size] % 2) / 2;
        seen[size]++;
        v->distinct = share - v->timed;
        v->first_exchange = job->exchanges;
        v->first_time = job->timed;
        job->exchanges += share;
        job->timed += v->timed;
        job->visit_count++;
    }
    return rc;
}

static int check_numbers(const struct cli_options *o)
{
    const struct {
        const char *name;
        int value;
        int low;
        int high;
    } ranges[] = {
        {"hidden", o->hidden, 1, 1 << 24},
        {"exchanges", o->exchanges, 1, 1 << 28},
        {"stages", o->stages, 1, (int)AFD_STAGES_MAX},
        {"blocks", o->blocks, 0, (int)AFD_BLOCKS_MAX},
        {"align", o->align, 1, 65536},
        {"seed", o->seed, 0, 0x7fffffff},
        {"experts", o->experts == CLI_NOT_GIVEN ? 1 : o->experts, 1, 1 << 24},
        {"topk", o->topk == CLI_NOT_GIVEN ? 1 : o->topk, 1, (int)AFD_TOPK_MAX},
        {"capacity", o->capacity == CLI_NOT_GIVEN ? 1 : o->capacity, 1, (int)AFD_CAPACITY_MAX},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return cli_error(CLI_USAGE, "--%s is %d; it must be %d .. %d", ranges[i].name,
                             ranges[i].value, ranges[i].low, ranges[i].high);
    return CLI_OK;
}

static int set_capacity(const struct cli_options *o, struct cli_job *job, uint32_t largest)
{
    struct afd_buffer_config *c = &job->config;
    c->capacity = o->capacity != CLI_NOT_GIVEN ? (uint32_t)o->capacity : largest;
    if (c->capacity == 0)
        c->capacity = 1;
    if (largest > c->capacity)
        return cli_error(CLI_USAGE, "--tokens go up to %u, but --capacity is %u", largest,
                         c->capacity);
    if (c->words_tokens > c->capacity)
        c->words_tokens = c->capacity;
    if (o->view && job->layout.ffn_ranks != 1)
        return cli_error(CLI_USAGE, "--view needs exactly 1 FFN rank, but layout %s has %u",
                         job->layout.name, job->layout.ffn_ranks);
    if (o->view && o->bias)
        return cli_error(CLI_USAGE, "--view and --bias exclude each other: a view adds nothing");
    return CLI_OK;
}

/* ----------------------------------------------------------------------------------------- make */

static int choose_ranks(const struct cli_options *o, struct cli_job *job)
{
    static const struct name how[] = {{"processes", 0}, {"threads", 1}};
    static const struct name routings[] = {{"uniform", CLI_ROUTING_UNIFORM},
                                           {"skewed", CLI_ROUTING_SKEWED},
                                           {"lognormal", CLI_ROUTING_LOGNORMAL},
                                           {"one-expert", CLI_ROUTING_ONE_EXPERT},
                                           {"none", CLI_ROUTING_NONE}};
    static const struct name ids[] = {{"int64", 0}, {"int32", 1}};
    uint32_t routing;
    int rc = PICK("ranks", o->ranks, how, &job->threads);
    if (o->ranks == NULL)
        job->threads = job->layout.world > PROCESSES_MAX;
    rc = rc ? rc : PICK("routing", o->routing, routings, &routing);
    rc = rc ? rc : PICK("ids", o->ids, ids, &job->narrow_ids);
    if (rc == CLI_OK)
        job->routing = (enum cli_routing)routing;
    job->deadline_us = 10000000;
    if (rc == CLI_OK && o->deadline != NULL)
        rc = cli_duration_parse(o->deadline, &job->deadline_us);
    if (job->config.deadline_us != 0) /* AFD_DEADLINE_MS */
        job->deadline_us = job->config.deadline_us;
    return rc;
}

/* Asks the library itself, for rank 0 of this layout: its sentence is the best one. */
static int check_with_library(const struct cli_job *job)
{
    struct afd_group_config group;
    struct afd_memory memory;
    afd_group_config_init(&group);
    group.world = job->layout.world;
    group.roles = job->layout.roles;
    if (afd_buffer_memory(&group, &job->config, 0, &memory) == 0)
        return CLI_OK;
    return cli_error(CLI_USAGE, "%s", afd_last_error());
}

static void fill_reference(struct cli_job *job)
{
    const struct afd_buffer_config *c = &job->config;
    uint32_t groups = (c->hidden + 127) / 128;
    struct afd_reference *ref = &job->ref;
    ref->sources = job->layout.sources;
    ref->ffn_ranks = job->layout.ffn_ranks;
    ref->capacity = c->capacity;
    ref->hidden = c->hidden;
    ref->experts = c->experts;
    ref->topk = c->topk;
    ref->alignment = c->alignment;
    ref->scale_layout = c->scale_layout;
    ref->placement = job->placement;
    ref->payload_bytes = c->payload == AFD_PAYLOAD_BF16    ? c->hidden * 2
                         : c->payload == AFD_PAYLOAD_BYTES ? c->payload_bytes
                                                           : c->hidden;
    ref->scale_bytes = c->payload == AFD_PAYLOAD_FP8         ? groups * 4
                       : c->payload == AFD_PAYLOAD_FP8_UE8M0 ? groups
                                                             : 0;
}

int cli_job_make(const struct cli_options *options, struct cli_job *job)
{
    uint32_t largest;
    int rc;
    memset(job, 0, sizeof(*job));
    job->options = *options;
    rc = options->roles != NULL
             ? cli_layout_from_roles(options->roles, &job->layout)
             : cli_layout_parse(options->layout != NULL ? options->layout : "2A2F", &job->layout);
    if (rc == CLI_OK && options->roles != NULL && options->layout != NULL)
        rc = cli_error(CLI_USAGE, "--roles and --layout are two layouts");
    rc = rc ? rc : check_available(options, &job->layout);
    rc = rc ? rc : check_numbers(options);
    rc = rc ? rc : fill_config(options, job);
    rc = rc ? rc : load_trace(options, job);
    rc = rc ? rc : load_placement(options, job);
    rc = rc ? rc : plan_visits(options, job, &largest);
    rc = rc ? rc : set_capacity(options, job, largest);
    rc = rc ? rc : choose_ranks(options, job);
    rc = rc ? rc : check_with_library(job);
    if (rc != CLI_OK) {
        cli_job_free(job);
        return rc;
    }
    fill_reference(job);
    return CLI_OK;
}

void cli_job_free(struct cli_job *job)
{
    cli_trace_free(&job->trace);
    free(job->placement);
    job->placement = NULL;
}
