/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - the verb `run`: all ranks of a job, or one rank of a job started elsewhere. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "report.h"

static void explain(const struct cli_job *job)
{
    fprintf(stderr, "protocol direct: all ranks are in one domain\n");
    fprintf(stderr, "variant %s, replies %s: %s\n",
            job->config.variant == AFD_VARIANT_WORDS ? "words" : "rows",
            job->config.reply_variant == AFD_VARIANT_WORDS ? "words" : "rows",
            job->config.variant == AFD_VARIANT_AUTO
                ? "on CPUs rows with credits are faster than self-validating words at every size"
                : "as asked");
    fprintf(stderr, "ranks are %s: %s\n", job->threads ? "threads" : "processes",
            job->options.ranks != NULL ? "as asked" : "processes up to 8 ranks");
}

/* The last line on stderr names the rank that died and what it was doing. */
static void say_failures(const struct cli_job *job, const struct cli_results *results)
{
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (results->record[r].error[0] != '\0')
            fprintf(stderr, "afd: rank %u: %s\n", r, results->record[r].error);
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (results->signal[r] != 0)
            fprintf(stderr, "afd: rank %u died of signal %d (%s) in %s, exchange %llu\n", r,
                    results->signal[r], strsignal(results->signal[r]),
                    afd_phase_name(results->record[r].phase),
                    (unsigned long long)results->record[r].exchange);
}

static int worst_code(const struct cli_job *job, const struct cli_results *results)
{
    int worst = CLI_OK;
    for (uint32_t r = 0; r < job->layout.world; r++) {
        int code = results->record[r].ended ? results->record[r].exit_code : CLI_FAILED;
        worst = code > worst ? code : worst;
    }
    return worst;
}

static int run_all(const struct cli_job *job)
{
    struct cli_results results;
    int rc = cli_results_alloc(job, &results);
    if (rc == CLI_OK)
        rc = cli_launch(job, &results);
    if (rc == CLI_OK) {
        rc = worst_code(job, &results);
        if (rc != CLI_FAILED)
            cli_report(job, &results);
        say_failures(job, &results);
    }
    cli_results_free(&results);
    return rc;
}

/* ------------------------------------------------------------------------------ one rank of a job */

static int wants_environment(void)
{
    static const char *const names[] = {"AFD_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (getenv(names[i]) != NULL)
            return 1;
    return 0;
}

static int run_one(const struct cli_job *job, const struct cli_meeting *meeting, uint32_t rank)
{
    struct cli_results results;
    int rc = cli_results_alloc(job, &results);
    if (rc != CLI_OK)
        return rc;
    rc = cli_rank_run(job, rank, meeting, &results.record[rank],
                      results.times_us + rank * job->timed);
    if (rc == CLI_FAILED)
        fprintf(stderr, "afd: %s\n", results.record[rank].error);
    else
        cli_report(job, &results);
    cli_results_free(&results);
    return rc;
}

static int run_elsewhere(const struct cli_job *job)
{
    const struct cli_options *o = &job->options;
    struct cli_meeting meeting = {AFD_BOOTSTRAP_TCP, NULL, o->rendezvous, -1};
    if (o->rank == -1) {
        meeting.bootstrap = AFD_BOOTSTRAP_ENV;
        return run_one(job, &meeting, 0);
    }
    if (o->world == -1 || o->rendezvous == NULL)
        return cli_error(CLI_USAGE, "--rank %d needs --world and --rendezvous", o->rank);
    if ((uint32_t)o->world != job->layout.world)
        return cli_error(CLI_USAGE, "--world is %d, but layout %s has %u ranks", o->world,
                         job->layout.name, job->layout.world);
    if (o->rank < 0 || o->rank >= o->world)
        return cli_error(CLI_USAGE, "--rank is %d, but the world has %d ranks", o->rank, o->world);
    return run_one(job, &meeting, (uint32_t)o->rank);
}

int cli_run_main(int argc, const char **argv)
{
    struct cli_options options;
    struct cli_job *job = malloc(sizeof(*job));
    int rc = job == NULL ? CLI_FAILED : cli_options_parse("run", argc, argv, &options);
    if (rc == CLI_OK) {
        /* two ranks need no layout to be told: one source, one FFN rank */
        if (options.rank != -1 && options.world == 2 && options.layout == NULL &&
            options.roles == NULL)
            options.layout = strdup("1A1F");
        rc = cli_job_make(&options, job);
        if (rc == CLI_OK) {
            if (options.explain)
                explain(job);
            rc = options.rank != -1 || wants_environment() ? run_elsewhere(job) : run_all(job);
            cli_job_free(job);
        }
        cli_options_free(&options);
    }
    free(job);
    return rc;
}
