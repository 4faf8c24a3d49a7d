/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - numbers of a run. Formulas (doc and man page afd-run(1) repeat them):
 *   p50_us, p99_us  quantiles over a size's timed exchanges of the slowest Attention rank's round trip
 *   rows            (token, FFN rank) rows that travelled to FFN ranks, all exchanges of the size
 *   bytes           rows x (payload + scales + reply row)
 *   imbalance       rows of the batches of the busiest FFN rank / their mean over FFN ranks
 */

#include "report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct size_numbers {
    uint64_t exchanges;
    double p50_us;
    double p99_us;
    uint64_t rows;
    uint64_t bytes;
    double imbalance;
};

/* Slowest Attention rank of each timed exchange of this size; returns how many. */
static uint64_t slowest(const struct cli_job *job, const struct cli_results *results, uint32_t size,
                        double *worst_out)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < job->visit_count; i++) {
        const struct cli_visit *v = &job->visit[i];
        for (uint32_t j = 0; v->size == size && j < v->timed; j++) {
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
    uint64_t n = worst != NULL ? slowest(job, results, size, worst) : 0;
    uint64_t busiest = 0;
    uint64_t all = 0;
    out->exchanges = out->rows = 0;
    for (uint32_t i = 0; i < job->visit_count; i++)
        if (job->visit[i].size == size)
            out->exchanges += job->visit[i].distinct + job->visit[i].timed;
    for (uint32_t r = 0; r < job->layout.world; r++) {
        uint64_t expanded = results->record[r].expanded[size];
        out->rows += results->record[r].rows[size];
        all += expanded;
        busiest = expanded > busiest ? expanded : busiest;
    }
    out->p50_us = cli_quantile(worst, n, 0.5);
    out->p99_us = cli_quantile(worst, n, 0.99);
    out->bytes = out->rows *
                 (job->ref.payload_bytes + (uint64_t)job->ref.scale_bytes + job->config.hidden * 2);
    out->imbalance = all == 0 ? 1 : (double)busiest * job->layout.ffn_ranks / (double)all;
    free(worst);
}

static uint64_t mismatches_of(const struct cli_job *job, const struct cli_results *results)
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
    return names[job->config.payload];
}

static void print_json(const struct cli_job *job, const struct cli_results *results)
{
    json_t *sizes = json_array();
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:i, s:i, s:s, s:s, s:i, s:i}", "layout",
        job->layout.name, "protocol", cli_protocol_name(job->config.protocol), "backend", "inline",
        "digest", afd_digest(), "ranks", job->threads ? "threads" : "processes", "exchanges",
        (json_int_t)checked_by_all(job, results), "mismatches",
        (json_int_t)mismatches_of(job, results), "hidden", (int)job->config.hidden, "experts",
        (int)job->config.experts, "topk", (int)job->config.topk, "payload", payload_name(job),
        "receive", job->config.receive == AFD_RECEIVE_INDEXED ? "indexed" : "expanded", "stages",
        (int)job->config.stages, "seed", job->options.seed);
    for (uint32_t i = 0; i < job->size_count; i++) {
        struct size_numbers n;
        count_size(job, results, i, &n);
        json_array_append_new(
            sizes, json_pack("{s:i, s:I, s:f, s:f, s:I, s:I, s:f}", "tokens", (int)job->sizes[i],
                             "exchanges", (json_int_t)n.exchanges, "p50_us", n.p50_us, "p99_us",
                             n.p99_us, "rows", (json_int_t)n.rows, "bytes", (json_int_t)n.bytes,
                             "imbalance", n.imbalance));
    }
    json_object_set_new(root, "trace",
                        job->options.trace != NULL ? json_string(job->options.trace) : json_null());
    json_object_set_new(root, "sizes", sizes);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(root);
}

static void print_table(const struct cli_job *job, const struct cli_results *results)
{
    printf("%s, protocol %s, %s, hidden %u, %u experts, top-k %u, %s, %s, %u stage%s\n",
           job->layout.name, cli_protocol_name(job->config.protocol),
           job->threads ? "threads" : "processes", job->config.hidden, job->config.experts,
           job->config.topk, payload_name(job),
           job->config.receive == AFD_RECEIVE_INDEXED ? "indexed" : "expanded", job->config.stages,
           job->config.stages == 1 ? "" : "s");
    if (job->options.trace != NULL)
        printf("routing of %s\n", job->options.trace);
    printf("\n%8s %10s %12s %12s %12s %12s %10s\n", "tokens", "exchanges", "p50 us", "p99 us",
           "rows", "MB moved", "imbalance");
    for (uint32_t i = 0; i < job->size_count; i++) {
        struct size_numbers n;
        count_size(job, results, i, &n);
        printf("%8u %10llu %12.1f %12.1f %12llu %12.1f %10.2f\n", job->sizes[i],
               (unsigned long long)n.exchanges, n.p50_us, n.p99_us, (unsigned long long)n.rows,
               (double)n.bytes / 1e6, n.imbalance);
    }
    printf("\n%llu exchanges checked, %llu mismatches\n",
           (unsigned long long)checked_by_all(job, results),
           (unsigned long long)mismatches_of(job, results));
}

void cli_report(const struct cli_job *job, const struct cli_results *results)
{
    if (job->options.json)
        print_json(job, results);
    else
        print_table(job, results);
    fflush(stdout);
}
