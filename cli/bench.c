/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - the verb `bench`: arms measured against each other in one run.
 *
 * A repeat launches every arm once, in fresh processes, in an order that turns by one each time. A
 * cell is an arm at a T: us is the median over repeats of the arm's p50; ratio is the geometric
 * mean over repeats of (arm's p50 / first arm's p50 of the same repeat); ci is the 2.5 .. 97.5
 * percentile of that mean over 2,000 resamplings of the repeats. doc/bench.md says how to read
 * them.
 */

#include <jansson.h>
#include <math.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launch.h"

#define ARMS_MAX 8u
#define REPEATS_MAX 32u
#define RESAMPLINGS 2000u

struct arm {
    char name[32];
    struct cli_job *job; /* NULL: the MPI program */
};

struct bench {
    struct cli_options options;
    struct arm arm[ARMS_MAX];
    uint32_t arm_count;
    uint32_t repeats;
    double us[ARMS_MAX][CLI_SIZES_MAX][REPEATS_MAX];
    uint64_t wrong;
};

/* -------------------------------------------------------------------------------------- arms */

/* What an arm's name changes in the options. */
static int apply(const char *name, struct cli_options *o)
{
    static char words[] = "variant=words";
    static char reply_words[] = "reply-variant=words";
    static char indexed[] = "indexed";
    static char united[] = "union";
    if (strcmp(name, "direct") == 0)
        return CLI_OK;
    if (strcmp(name, "indexed") == 0 || strcmp(name, "indexed-view") == 0) {
        o->receive = indexed;
        o->view = strcmp(name, "indexed-view") == 0;
        return CLI_OK;
    }
    if (strcmp(name, "view") == 0) {
        o->view = 1;
        return CLI_OK;
    }
    if (strcmp(name, "words") == 0 && o->switch_count + 2 <= CLI_SWITCHES_MAX) {
        o->switches[o->switch_count++] = words;
        o->switches[o->switch_count++] = reply_words;
        return CLI_OK;
    }
    if (strcmp(name, "union") == 0) {
        o->protocol = united;
        return CLI_OK;
    }
    return cli_error(CLI_USAGE,
                     "arm \"%s\" is none of direct, indexed, view, indexed-view, words, "
                     "union and mpi",
                     name);
}

static int add_arm(struct bench *b, const char *name)
{
    struct cli_options options = b->options;
    struct arm *arm;
    int rc;
    if (b->arm_count == ARMS_MAX)
        return cli_error(CLI_USAGE, "more than %u arms", ARMS_MAX);
    arm = &b->arm[b->arm_count];
    snprintf(arm->name, sizeof(arm->name), "%s", name);
    if (strcmp(name, "mpi") == 0) {
        b->arm_count++;
        return CLI_OK;
    }
    arm->job = calloc(1, sizeof(*arm->job));
    rc = arm->job == NULL ? CLI_FAILED : apply(name, &options);
    if (rc == CLI_OK)
        rc = cli_job_make(&options, arm->job);
    if (rc != CLI_OK) {
        free(arm->job);
        arm->job = NULL;
        return rc;
    }
    b->arm_count++;
    return CLI_OK;
}

static int parse_arms(struct bench *b, const char *list)
{
    char copy[256];
    char *save = NULL;
    int rc = CLI_OK;
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *name = strtok_r(copy, ",", &save); rc == CLI_OK && name != NULL;
         name = strtok_r(NULL, ",", &save))
        rc = add_arm(b, name);
    if (rc == CLI_OK && (b->arm_count == 0 || b->arm[0].job == NULL))
        rc = cli_error(CLI_USAGE,
                       "--arms %s must begin with an arm of this library: the others are "
                       "compared with it",
                       list);
    return rc;
}

/* --------------------------------------------------------------------------------- measuring */

static double p50_of(const struct cli_job *job, const struct cli_results *results, uint32_t size)
{
    double *worst = calloc(job->timed + 1, sizeof(*worst));
    uint64_t n = 0;
    double p50;
    if (worst == NULL)
        return 0;
    for (uint32_t i = 0; i < job->visit_count; i++) {
        const struct cli_visit *v = &job->visit[i];
        for (uint32_t j = 0; v->size == size && j < v->timed; j++, n++)
            for (uint32_t r = 0; r < job->layout.world; r++) {
                double us = results->times_us[r * job->timed + v->first_time + j];
                worst[n] = us > worst[n] ? us : worst[n];
            }
    }
    p50 = cli_quantile(worst, n, 0.5);
    free(worst);
    return p50;
}

static int measure_job(struct bench *b, uint32_t arm, uint32_t repeat)
{
    const struct cli_job *job = b->arm[arm].job;
    struct cli_results results;
    int rc = cli_results_alloc(job, &results);
    if (rc == CLI_OK)
        rc = cli_launch(job, &results);
    for (uint32_t r = 0; rc == CLI_OK && r < job->layout.world; r++) {
        b->wrong += results.record[r].mismatches;
        if (!results.record[r].ended || results.record[r].exit_code == CLI_FAILED)
            rc = cli_error(CLI_FAILED, "arm %s, rank %u: %s", b->arm[arm].name, r,
                           results.record[r].error);
    }
    for (uint32_t i = 0; rc == CLI_OK && i < job->size_count; i++)
        b->us[arm][i][repeat] = p50_of(job, &results, i);
    cli_results_free(&results);
    return rc;
}

/* The MPI program lies beside this one, in bench/. */
static int mpi_command(const struct bench *b, char *command, size_t bytes)
{
    const struct cli_job *job = b->arm[0].job;
    char self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;
    size_t used;
    self[length < 0 ? 0 : length] = '\0';
    slash = strrchr(self, '/');
    if (slash == NULL)
        return cli_error(CLI_FAILED, "this program's own path is unknown");
    *slash = '\0';
    used = (size_t)snprintf(command, bytes,
                            "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun "
                            "--oversubscribe -n %u '%s/bench/mpi_exchange' %u %u %u %u %d",
                            job->layout.world, self, job->layout.ffn_ranks, job->config.hidden,
                            job->config.experts, job->config.topk, b->options.exchanges);
    for (uint32_t i = 0; i < job->size_count && used < bytes; i++)
        used += (size_t)snprintf(command + used, bytes - used, " %u", job->sizes[i]);
    return CLI_OK;
}

static int measure_mpi(struct bench *b, uint32_t arm, uint32_t repeat)
{
    char command[2048];
    json_t *root;
    FILE *pipe;
    int status;
    int rc = mpi_command(b, command, sizeof(command));
    if (rc != CLI_OK)
        return rc;
    pipe = popen(command, "r");
    root = pipe != NULL ? json_loadf(pipe, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    status = pipe != NULL ? pclose(pipe) : -1;
    if (root == NULL || status != 0)
        rc = cli_error(CLI_FAILED, "the mpi arm ended with status %d: %s", status, command);
    for (uint32_t i = 0; rc == CLI_OK && i < b->arm[0].job->size_count; i++)
        b->us[arm][i][repeat] = json_real_value(json_object_get(json_array_get(root, i), "p50_us"));
    json_decref(root);
    return rc;
}

static int measure(struct bench *b)
{
    int rc = CLI_OK;
    for (uint32_t r = 0; rc == CLI_OK && r < b->repeats; r++) {
        for (uint32_t i = 0; rc == CLI_OK && i < b->arm_count; i++) {
            uint32_t arm = (i + r) % b->arm_count;
            cli_progress("launches", (uint64_t)r * b->arm_count + i,
                         (uint64_t)b->repeats * b->arm_count);
            rc = b->arm[arm].job != NULL ? measure_job(b, arm, r) : measure_mpi(b, arm, r);
        }
    }
    cli_progress_end();
    return rc;
}

/* ----------------------------------------------------------------------------------- numbers */

struct cell {
    double us;
    double ratio;
    double low;
    double high;
};

static double mean_ratio(const double *logs, uint32_t n, uint64_t *seed)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        *seed = cli_mix(*seed);
        sum += logs[*seed % n];
    }
    return exp(sum / n);
}

static void compute(const struct bench *b, uint32_t arm, uint32_t size, struct cell *cell_out)
{
    double us[REPEATS_MAX];
    double logs[REPEATS_MAX];
    double *means = calloc(RESAMPLINGS, sizeof(*means));
    uint64_t seed = 1;
    double sum = 0;
    for (uint32_t r = 0; r < b->repeats; r++) {
        us[r] = b->us[arm][size][r];
        logs[r] = log(b->us[arm][size][r] / b->us[0][size][r]);
        sum += logs[r];
    }
    cell_out->us = cli_quantile(us, b->repeats, 0.5);
    cell_out->ratio = exp(sum / b->repeats);
    for (uint32_t i = 0; means != NULL && i < RESAMPLINGS; i++)
        means[i] = mean_ratio(logs, b->repeats, &seed);
    cell_out->low = means != NULL ? cli_quantile(means, RESAMPLINGS, 0.025) : 0;
    cell_out->high = means != NULL ? cli_quantile(means, RESAMPLINGS, 0.975) : 0;
    free(means);
}

static void print_json(const struct bench *b)
{
    const struct cli_job *job = b->arm[0].job;
    json_t *arms = json_array();
    json_t *cells = json_array();
    json_t *root;
    for (uint32_t a = 0; a < b->arm_count; a++) {
        json_array_append_new(arms, json_string(b->arm[a].name));
        for (uint32_t i = 0; i < job->size_count; i++) {
            struct cell c;
            compute(b, a, i, &c);
            json_array_append_new(cells,
                                  json_pack("{s:s, s:i, s:f, s:f, s:[f, f]}", "arm", b->arm[a].name,
                                            "tokens", (int)job->sizes[i], "us", c.us, "ratio",
                                            c.ratio, "ci", c.low, c.high));
        }
    }
    root = json_pack("{s:o, s:o, s:{s:s, s:i, s:i, s:i, s:i, s:i}, s:s, s:I}", "arms", arms,
                     "cells", cells, "settings", "layout", job->layout.name, "hidden",
                     (int)job->config.hidden, "experts", (int)job->config.experts, "topk",
                     (int)job->config.topk, "exchanges", b->options.exchanges, "repeats",
                     (int)b->repeats, "digest", afd_digest(), "mismatches", (json_int_t)b->wrong);
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
}

static void print_table(const struct bench *b)
{
    const struct cli_job *job = b->arm[0].job;
    printf("%s, hidden %u, %u experts, top-k %u; %u repeats of %d exchanges; ratios to %s\n\n",
           job->layout.name, job->config.hidden, job->config.experts, job->config.topk, b->repeats,
           b->options.exchanges, b->arm[0].name);
    printf("%-14s %8s %12s %8s   %s\n", "arm", "tokens", "us", "ratio", "95 % interval");
    for (uint32_t i = 0; i < job->size_count; i++) {
        for (uint32_t a = 0; a < b->arm_count; a++) {
            struct cell c;
            compute(b, a, i, &c);
            printf("%-14s %8u %12.2f %8.3f   %.3f .. %.3f\n", b->arm[a].name, job->sizes[i], c.us,
                   c.ratio, c.low, c.high);
        }
    }
    printf("\n%llu mismatches\n", (unsigned long long)b->wrong);
}

/* -------------------------------------------------------------------------------------- verb */

int cli_bench_main(int argc, const char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    int rc = b == NULL ? CLI_FAILED : cli_options_parse("bench", argc, argv, &b->options);
    if (rc == CLI_OK) {
        int repeats = b->options.repeats;
        b->repeats = (uint32_t)repeats;
        b->options.mostly_timed = 1;
        if (repeats < 1 || repeats > (int)REPEATS_MAX)
            rc = cli_error(CLI_USAGE, "--repeats is %d; it must be 1 .. %u", repeats, REPEATS_MAX);
        rc = rc ? rc : parse_arms(b, b->options.arms != NULL ? b->options.arms : "direct,indexed");
        rc = rc ? rc : measure(b);
        if (rc == CLI_OK && b->options.json)
            print_json(b);
        else if (rc == CLI_OK)
            print_table(b);
        if (rc == CLI_OK && b->wrong != 0)
            rc = CLI_CHECK;
        for (uint32_t a = 0; a < b->arm_count; a++) {
            if (b->arm[a].job != NULL)
                cli_job_free(b->arm[a].job);
            free(b->arm[a].job);
        }
        cli_options_free(&b->options);
    }
    free(b);
    return rc;
}
