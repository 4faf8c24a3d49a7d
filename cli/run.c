/* SPDX-License-Identifier: Apache-2.0 */
/* run.c - the verb `run`: all ranks of a job, or one rank of a job started elsewhere. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "launch.h"
#include "report.h"
#include "stop.h"

static void explain(const struct cli_job *job)
{
    const struct afd_buffer_config *c = &job->config;
    fprintf(stderr, "protocol %s: all %u ranks are in one domain\n", cli_protocol_name(c->protocol),
            job->layout.world);
    fprintf(stderr, "backend inline: this build has no other\n");
    fprintf(stderr, "rows travel as %s: %s\n", cli_variant_name(c->variant),
            c->protocol == AFD_PROTOCOL_UNION ? "protocol union has no other variant"
            : c->variant == AFD_VARIANT_AUTO
                ? "on CPUs rows with credits are faster than self-validating words at every size"
                : "as asked");
    if (c->variant == AFD_VARIANT_WORDS)
        fprintf(stderr, "words up to T = %u, rows above: %s\n", c->words_tokens,
                "the memory for words is words-tokens rows");
    fprintf(stderr, "replies travel as %s: %s\n", cli_variant_name(c->reply_variant),
            c->reply_variant == AFD_VARIANT_WORDS ? "as asked"
            : c->variant == AFD_VARIANT_WORDS     ? "rows are the default"
                                                  : "for the same reason");
    if (job->options.rank == CLI_NOT_GIVEN && !job->from_environment)
        fprintf(stderr, "ranks are %s: %s\n", job->threads ? "threads" : "processes",
                job->options.ranks != NULL ? "as asked" : "processes up to 8 ranks, threads above");
}

static void say_death(const struct cli_job *job, const struct cli_results *results, uint32_t rank)
{
    const struct cli_record *record = &results->record[rank];
    char how[96];
    if (results->killed[rank])
        snprintf(how, sizeof(how), "did not end by itself and was killed");
    else if (results->signal[rank] != 0)
        snprintf(how, sizeof(how), "died of signal %d (%s)", results->signal[rank],
                 strsignal(results->signal[rank]));
    else
        snprintf(how, sizeof(how), "ended without a result");
    if (!record->joined)
        fprintf(stderr, "afd: rank %u %s while joining the group\n", rank, how);
    else
        fprintf(stderr, "afd: rank %u %s in %s, stage %u, exchange %llu of the job's %llu\n", rank,
                how, afd_phase_name(record->phase), record->stage,
                (unsigned long long)record->exchange + 1, (unsigned long long)job->exchanges);
}

/* The last line on stderr names the rank that died and what it was doing. */
static void say_failures(const struct cli_job *job, const struct cli_results *results)
{
    for (uint32_t r = 0; r < job->layout.world; r++)
        if (results->record[r].error[0] != '\0')
            fprintf(stderr, "afd: rank %u: %s\n", r, results->record[r].error);
    if (cli_stop_signal() != 0)
        fprintf(stderr, "afd: stopped by signal %d (%s)\n", cli_stop_signal(),
                strsignal(cli_stop_signal()));
    for (uint32_t r = 0; r < job->layout.world && cli_stop_signal() == 0; r++)
        if (results->signal[r] != 0 || results->killed[r] || !results->record[r].ended)
            say_death(job, results, r);
}

static int worst_code(const struct cli_job *job, const struct cli_results *results)
{
    int worst = CLI_OK;
    for (uint32_t r = 0; r < job->layout.world; r++) {
        int code = results->record[r].ended && results->signal[r] == 0
                       ? results->record[r].exit_code
                       : CLI_FAILED;
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
        if (rc == CLI_CHECK)
            cli_error(rc, "%llu mismatches: the job did not do what it was asked",
                      (unsigned long long)cli_mismatches(job, &results));
        say_failures(job, &results);
    }
    cli_results_free(&results);
    return rc;
}

/* ---------------------------------------------------------------------------- one rank of a job */

/* The number of ranks that a launcher says there are, as text; NULL if no launcher started this
 * process, or one that started a single process (a shell inside a Slurm job, for instance). */
static const char *launched_world(void)
{
    static const char *const names[][2] = {{"AFD_RANK", "AFD_WORLD"},
                                           {"RANK", "WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"SLURM_PROCID", "SLURM_NTASKS"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *rank = getenv(names[i][0]);
        const char *world = getenv(names[i][1]);
        if (rank == NULL || rank[0] == '\0')
            continue;
        return world != NULL && strcmp(world, "1") == 0 ? NULL : world != NULL ? world : "";
    }
    return NULL;
}

static int run_one(const struct cli_job *job, struct cli_meeting *meeting, uint32_t rank)
{
    struct cli_results results;
    struct cli_record *record = calloc(1, sizeof(*record));
    double *times_us = calloc(job->timed + 1, sizeof(*times_us));
    int rc = cli_results_alloc(job, &results);
    if (rc == CLI_OK && (record == NULL || times_us == NULL))
        rc = cli_error(CLI_FAILED, "no memory for the results of rank %u", rank);
    if (rc == CLI_OK && record != NULL) {
        meeting->records = results.record;
        meeting->times_us = results.times_us;
        cli_stop_install();
        rc = cli_rank_run(job, rank, meeting, record, times_us);
        results.elsewhere = 1;
        results.own_rank = record->rank;
        if (rc == CLI_FAILED)
            fprintf(stderr, "afd: rank %u: %s\n", record->rank, record->error);
        else if (!job->from_environment || record->rank == 0)
            cli_report(job, &results);
        if (rc == CLI_CHECK)
            cli_error(rc, "rank %u found %llu mismatches", record->rank,
                      (unsigned long long)record->mismatches);
    }
    cli_results_free(&results);
    free(times_us);
    free(record);
    return rc;
}

static int run_elsewhere(const struct cli_job *job)
{
    const struct cli_options *o = &job->options;
    struct cli_meeting meeting;
    uint64_t world;
    memset(&meeting, 0, sizeof(meeting));
    meeting.bootstrap = AFD_BOOTSTRAP_TCP;
    meeting.rendezvous = o->rendezvous;
    meeting.listen_fd = -1;
    if (job->from_environment) {
        const char *text = launched_world();
        meeting.bootstrap = AFD_BOOTSTRAP_ENV;
        if (text != NULL && cli_number_parse(text, UINT32_MAX, &world) == 0 &&
            world != job->layout.world)
            return cli_error(CLI_USAGE,
                             "the launcher's environment has %s ranks, but layout %s has %u; "
                             "--ranks processes ignores the environment",
                             text, job->layout.name, job->layout.world);
        return run_one(job, &meeting, 0);
    }
    if (o->world == CLI_NOT_GIVEN || o->rendezvous == NULL)
        return cli_error(CLI_USAGE, "--rank %d needs --world and --rendezvous", o->rank);
    if (o->world < 0 || (uint32_t)o->world != job->layout.world)
        return cli_error(CLI_USAGE, "--world is %d, but layout %s has %u ranks", o->world,
                         job->layout.name, job->layout.world);
    if (o->rank < 0 || o->rank >= o->world)
        return cli_error(CLI_USAGE, "--rank is %d; it must be 0 .. %d", o->rank, o->world - 1);
    return run_one(job, &meeting, (uint32_t)o->rank);
}

static int run(struct cli_job *job)
{
    const struct cli_options *o = &job->options;
    if (o->rank == CLI_NOT_GIVEN)
        job->from_environment = o->ranks == NULL && launched_world() != NULL;
    if (o->rank == CLI_NOT_GIVEN && o->world != CLI_NOT_GIVEN)
        return cli_error(
            CLI_USAGE, "--world %d belongs to a job started elsewhere: give --rank, too", o->world);
    if (o->rank == CLI_NOT_GIVEN && o->rendezvous != NULL && !job->from_environment)
        return cli_error(CLI_USAGE,
                         "--rendezvous %s belongs to a job started elsewhere: give --rank and "
                         "--world, too",
                         o->rendezvous);
    if (o->rank != CLI_NOT_GIVEN && o->ranks != NULL)
        return cli_error(CLI_USAGE, "--ranks %s starts all ranks, but --rank %d is one of them",
                         o->ranks, o->rank);
    if (o->explain)
        explain(job);
    return o->rank != CLI_NOT_GIVEN || job->from_environment ? run_elsewhere(job) : run_all(job);
}

int cli_run_main(int argc, const char **argv)
{
    struct cli_options options;
    struct cli_job *job = malloc(sizeof(*job));
    int rc = job == NULL ? CLI_FAILED : cli_options_parse("run", argc, argv, &options);
    if (rc == CLI_OK) {
        /* two ranks need no layout to be told: one source, one FFN rank */
        if (options.rank != CLI_NOT_GIVEN && options.world == 2 && options.layout == NULL &&
            options.roles == NULL)
            options.layout = strdup("1A1F");
        rc = cli_job_make(&options, job);
        if (rc == CLI_OK) {
            rc = run(job);
            cli_job_free(job);
        }
        cli_options_free(&options);
    }
    free(job);
    return rc;
}
