/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - one rank's part of `afd run`. */

#include "rank.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agree.h"
#include "stop.h"

#define SET_BYTES_MAX ((uint64_t)64 << 20) /* prepared answers of all sets together */

void cli_rank_at(struct cli_rank *rank, uint32_t phase, uint32_t stage, uint64_t exchange)
{
    rank->record->phase = phase;
    rank->record->stage = stage;
    __atomic_store_n(&rank->record->exchange, exchange, __ATOMIC_RELAXED);
    if (rank->kill_armed && exchange == rank->kill_exchange && phase == rank->kill_phase)
        raise(SIGKILL);
}

int cli_rank_lies(const struct cli_rank *rank, uint64_t exchange)
{
    return rank->kill_armed && exchange == rank->kill_exchange && rank->kill_phase == CLI_TEST_LIE;
}

int cli_rank_failed(struct cli_rank *rank, const char *what)
{
    snprintf(rank->record->error, sizeof(rank->record->error), "%s: %s", what, afd_last_error());
    if (rank->buffer != NULL && afd_buffer_fault(rank->buffer, &rank->record->fault) == 0)
        rank->record->faulted = 1;
    return CLI_FAILED;
}

uint32_t cli_timed_sets(const struct cli_job *job, const struct cli_visit *visit)
{
    uint64_t bytes =
        (uint64_t)job->layout.sources * visit->tokens * job->config.topk * job->config.hidden * 2 +
        1;
    uint64_t sets = SET_BYTES_MAX / bytes;
    sets = sets < 1 ? 1 : sets > CLI_SETS_MAX ? CLI_SETS_MAX : sets;
    return (uint32_t)(sets > visit->timed ? visit->timed : sets);
}

uint32_t cli_timed_set(const struct cli_job *job, const struct cli_visit *visit, uint32_t i)
{
    uint32_t stages = job->config.stages;
    uint32_t sets = cli_timed_sets(job, visit);
    return sets == 0 ? 0 : (i / stages + i % stages) % sets;
}

uint64_t cli_timed_label(const struct cli_visit *visit, uint32_t set)
{
    return visit->first_exchange + visit->distinct + set;
}

static void arm(struct cli_rank *rank)
{
    const char *text = getenv("AFD_TEST_KILL");
    unsigned number;
    unsigned phase;
    unsigned long long exchange;
    if (text == NULL || sscanf(text, "%u:%llu:%u", &number, &exchange, &phase) != 3)
        return;
    rank->kill_armed = number == rank->rank;
    rank->kill_exchange = exchange;
    rank->kill_phase = phase;
}

static int join(struct cli_rank *rank, const struct cli_meeting *meeting)
{
    struct afd_group_config config;
    afd_group_config_init(&config);
    config.rank = rank->rank;
    config.world = rank->job->layout.world;
    config.roles = rank->job->layout.roles;
    config.bootstrap = meeting->bootstrap;
    config.hub = meeting->hub;
    config.rendezvous = meeting->rendezvous;
    config.key = rank->job->options.key;
    config.listen_fd = meeting->listen_fd;
    config.deadline_us = rank->job->deadline_us;
    if (meeting->timeout_us != 0)
        config.bootstrap_timeout_us = meeting->timeout_us;
    if (afd_group_create(&config, &rank->group) != 0)
        return cli_rank_failed(rank, "joining the group");
    rank->rank = rank->record->rank = afd_group_rank(rank->group);
    rank->index = rank->job->layout.index[rank->rank];
    cli_stop_watch(rank->rank, rank->group);
    if (afd_buffer_create(rank->group, &rank->job->config, &rank->buffer) != 0)
        return cli_rank_failed(rank, "creating the buffer");
    rank->record->joined = 1;
    return meeting->records != NULL ? cli_agree_options(rank) : CLI_OK;
}

int cli_rank_run(const struct cli_job *job, uint32_t number, const struct cli_meeting *meeting,
                 struct cli_record *record, double *times_us)
{
    struct cli_rank rank;
    int rc;
    memset(&rank, 0, sizeof(rank));
    rank.job = job;
    rank.rank = record->rank = number;
    rank.record = record;
    rank.times_us = times_us;
    arm(&rank);
    cli_rank_at(&rank, AFD_PHASE_NONE, 0, 0);
    rc = join(&rank, meeting);
    if (rc == CLI_OK)
        rc = job->layout.roles[rank.rank] == AFD_ROLE_FFN ? cli_ffn_run(&rank)
                                                          : cli_attention_run(&rank);
    if (rc == CLI_OK) /* the parent looks at it now and then */
        __atomic_store_n(&record->exchange, job->exchanges, __ATOMIC_RELAXED);
    if (rc == CLI_OK && (record->mismatches != 0 || record->checked != job->exchanges))
        rc = CLI_CHECK;
    record->exit_code = rc;
    if (rc != CLI_FAILED && meeting->records != NULL &&
        cli_gather_results(&rank, meeting->records, meeting->times_us) != CLI_OK)
        rc = CLI_FAILED;
    cli_stop_forget(rank.rank);
    if (afd_buffer_close(rank.buffer) != 0 || afd_group_destroy(rank.group) != 0)
        rc = cli_rank_failed(&rank, "closing");
    record->exit_code = rc;
    __atomic_store_n(&record->ended, 1, __ATOMIC_RELEASE);
    return rc;
}
