/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - numbers of a run. The man page afd-run(1) and doc/bench.md have their formulas:
 *
 * - p50_us, p99_us: quantiles of the exchange times of a size. An exchange time is the slowest
 *   Attention rank's round trip of a timed exchange; each visit's first one is left out.
 * - rows: (token, FFN rank) rows that travelled to FFN ranks, in all exchanges of the size.
 * - bytes: rows x (payload + scales + reply row).
 * - imbalance: rows of the batches of the busiest FFN rank / their mean over FFN ranks.
 */

#include "report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct size_numbers {
    uint64_t exchanges;
    uint64_t times; /* round trips that p50_us and p99_us are of */
    double p50_us;
    double p99_us;
    uint64_t rows;
    uint64_t bytes;
    double imbalance;
};

/* Slowest Attention rank of each timed exchange of this size; returns how many. The first one of a
 * visit only brings the ranks into step, unless it is the only one. */
static uint64_t slowest(const struct cli_job *job, const struct cli_results *results, uint32_t size,
                        double *worst_out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < job->visit_count; i++) {
        const struct cli_visit *v = &job->visit[i];
        for (uint32_t j = v->timed > 1; v->size == size && j < v->timed; j++) {
            double worst = 0;
            for (uint32_t r = 0; r < job->layout.world; r++) {
                double us = results->times_us[r * job->timed + v->first_time + j];
                worst = us > worst ? us : worst;
            }
            worst_out[n++] = worst;
        }
    }
    return n;
}

static void count_size(const struct cli_job *job, const struct cli_results *results, uint32_t size,
                       struct size_numbers *out)
{
    double *worst = malloc((job->timed + 1) * sizeof(*worst));
    uint64_t busiest = 0;
    uint64_t all = 0;
    memset(out, 0, sizeof(*out));
    out->times = worst != NULL ? slowest(job, results, size, worst) : 0;
    for (uint32_t i = 0; i < job->visit_count; i++)
        if (job->visit[i].size == size)
            out->exchanges += job->visit[i].distinct + job->visit[i].timed;
    for (uint32_t r = 0; r < job->layout.world; r++) {
        uint64_t expanded = results->record[r].expanded[size];
        out->rows += results->record[r].rows[size];
        all += expanded;
        busiest = expanded > busiest ? expanded : busiest;
    }
    out->p50_us = cli_quantile(worst, out->times, 0.5);
    out->p99_us = cli_quantile(worst, out->times, 0.99);
    out->bytes = out->rows * (job->ref.payload_bytes + (uint64_t)job->ref.scale_bytes +
                              (uint64_t)job->config.hidden * 2);
    out->imbalance = all == 0 ? 1 : (double)busiest * job->layout.ffn_ranks / (double)all;
    free(worst);
}

uint64_t cli_mismatches(const struct cli_job *job, const struct cli_results *results)
{
    uint64_t sum = 0;
    for (uint32_t r = 0; r < job->layout.world; r++)
        sum += results->record[r].mismatches;
    return sum;
}

/* Exchanges that every rank that reported here has checked. */
static uint64_t checked_by_all(const struct cli_job *job, const struct cli_results *results)
{
    uint64_t least = job->exchanges;
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (results->record[r].ended && results->record[r].checked < least)
            least = results->record[r].checked;
    return least;
}

static const char *payload_name(const struct cli_job *job)
{
    static const char *const names[] = {"?", "bf16", "fp8", "fp8-ue8m0", "bytes"};
    return job->config.payload == AFD_PAYLOAD_BYTES ? job->options.payload
                                                    : names[job->config.payload];
}

const char *cli_variant_name(uint32_t variant)
{
    return variant == AFD_VARIANT_WORDS ? "words" : "rows";
}

static const char *receive_name(const struct cli_job *job)
{
    return job->config.receive == AFD_RECEIVE_INDEXED ? "indexed" : "expanded";
}

static const char *role_name(const struct cli_job *job, uint32_t rank)
{
    return job->layout.roles[rank] == AFD_ROLE_FFN ? "ffn" : "attention";
}

/* A time, or null where nothing was timed. */
static json_t *time_json(const struct size_numbers *n, double us)
{
    return n->times != 0 ? json_real(us) : json_null();
}

static json_t *sizes_json(const struct cli_job *job, const struct cli_results *results)
{
    json_t *sizes = json_array();
    for (uint32_t i = 0; i < job->size_count; i++) {
        struct size_numbers n;
        count_size(job, results, i, &n);
        json_array_append_new(sizes,
                              json_pack("{s:i, s:I, s:o, s:o, s:I, s:I, s:f}", "tokens",
                                        (int)job->sizes[i], "exchanges", (json_int_t)n.exchanges,
                                        "p50_us", time_json(&n, n.p50_us), "p99_us",
                                        time_json(&n, n.p99_us), "rows", (json_int_t)n.rows,
                                        "bytes", (json_int_t)n.bytes, "imbalance", n.imbalance));
    }
    return sizes;
}

static void print_json(const struct cli_job *job, const struct cli_results *results)
{
    const struct afd_buffer_config *c = &job->config;
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:o}", "layout", job->layout.name, "protocol",
                  cli_protocol_name(c->protocol), "backend", "inline", "digest", afd_digest(),
                  "exchanges", (json_int_t)checked_by_all(job, results), "mismatches",
                  (json_int_t)cli_mismatches(job, results), "sizes", sizes_json(job, results));
    json_t *more = json_pack(
        "{s:s, s:i, s:i, s:i, s:i, s:s, s:s, s:i, s:i, s:s, s:s, s:b, s:b, s:b}", "ranks",
        results->elsewhere ? "elsewhere"
        : job->threads     ? "threads"
                           : "processes",
        "hidden", (int)c->hidden, "experts", (int)c->experts, "topk", (int)c->topk, "capacity",
        (int)c->capacity, "payload", payload_name(job), "receive", receive_name(job), "stages",
        (int)c->stages, "seed", job->options.seed, "variant", cli_variant_name(c->variant),
        "reply_variant", cli_variant_name(c->reply_variant), "weights", job->options.weights,
        "bias", job->options.bias, "view", job->options.view);
    json_object_update(root, more);
    json_decref(more);
    json_object_set_new(root, "trace",
                        job->options.trace != NULL ? json_string(job->options.trace) : json_null());
    json_object_set_new(
        root, "routing",
        job->options.trace != NULL
            ? json_null()
            : json_string(job->options.routing != NULL ? job->options.routing : "uniform"));
    if (results->elsewhere) {
        json_object_set_new(root, "rank", json_integer(results->own_rank));
        json_object_set_new(root, "role", json_string(role_name(job, results->own_rank)));
    }
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(root);
}

static void print_size(const struct cli_job *job, const struct cli_results *results, uint32_t size)
{
    struct size_numbers n;
    char p50[32] = "-";
    char p99[32] = "-";
    count_size(job, results, size, &n);
    if (n.times != 0) {
        snprintf(p50, sizeof(p50), "%.1f", n.p50_us);
        snprintf(p99, sizeof(p99), "%.1f", n.p99_us);
    }
    printf("%8u %10llu %12s %12s %12llu %12.1f %10.2f\n", job->sizes[size],
           (unsigned long long)n.exchanges, p50, p99, (unsigned long long)n.rows,
           (double)n.bytes / 1e6, n.imbalance);
}

static void print_table(const struct cli_job *job, const struct cli_results *results)
{
    printf("%s, protocol %s, %s, hidden %u, %u experts, top-k %u, %s, %s, %u stage%s\n",
           job->layout.name, cli_protocol_name(job->config.protocol),
           results->elsewhere ? "ranks started elsewhere"
           : job->threads     ? "threads"
                              : "processes",
           job->config.hidden, job->config.experts, job->config.topk, payload_name(job),
           receive_name(job), job->config.stages, job->config.stages == 1 ? "" : "s");
    if (results->elsewhere)
        printf("this is rank %u (%s)\n", results->own_rank, role_name(job, results->own_rank));
    if (job->options.trace != NULL)
        printf("routing of %s\n", job->options.trace);
    printf("\n%8s %10s %12s %12s %12s %12s %10s\n", "tokens", "exchanges", "p50 us", "p99 us",
           "rows", "MB moved", "imbalance");
    for (uint32_t i = 0; i < job->size_count; i++)
        print_size(job, results, i);
    printf("\n%llu exchanges checked, %llu mismatches\n",
           (unsigned long long)checked_by_all(job, results),
           (unsigned long long)cli_mismatches(job, results));
}

void cli_report(const struct cli_job *job, const struct cli_results *results)
{
    if (job->options.json)
        print_json(job, results);
    else
        print_table(job, results);
    fflush(stdout);
}
