/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - one rank's part of `afd run`. */

#include "rank.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SETS_MAX 4u
#define SET_BYTES_MAX ((uint64_t)64 << 20) /* prepared answers of all sets together */

void cli_rank_at(struct cli_rank *rank, uint32_t phase, uint32_t stage, uint64_t exchange)
{
    const char *kill_at = getenv("AFD_TEST_KILL");
    unsigned r;
    unsigned p;
    unsigned long long n;
    rank->record->phase = phase;
    rank->record->stage = stage;
    rank->record->exchange = exchange;
    if (kill_at != NULL && sscanf(kill_at, "%u:%llu:%u", &r, &n, &p) == 3 && r == rank->rank &&
        n == exchange && p == phase)
        raise(SIGKILL);
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
    sets = sets < 1 ? 1 : sets > SETS_MAX ? SETS_MAX : sets;
    return (uint32_t)(sets > visit->timed ? visit->timed : sets);
}

uint64_t cli_timed_label(const struct cli_job *job, const struct cli_visit *visit, uint32_t i)
{
    return visit->first_exchange + visit->distinct + i % cli_timed_sets(job, visit);
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
    if (afd_group_create(&config, &rank->group) != 0)
        return cli_rank_failed(rank, "joining the group");
    rank->rank = afd_group_rank(rank->group);
    rank->index = rank->job->layout.index[rank->rank];
    if (afd_buffer_create(rank->group, &rank->job->config, &rank->buffer) != 0)
        return cli_rank_failed(rank, "creating the buffer");
    return CLI_OK;
}

int cli_rank_run(const struct cli_job *job, uint32_t number, const struct cli_meeting *meeting,
                 struct cli_record *record, double *times_us)
{
    struct cli_rank rank = {job, number, 0, NULL, NULL, record, times_us};
    int rc = join(&rank, meeting);
    if (rc == CLI_OK)
        rc = job->layout.roles[rank.rank] == AFD_ROLE_FFN ? cli_ffn_run(&rank)
                                                          : cli_attention_run(&rank);
    if (afd_buffer_close(rank.buffer) != 0 || afd_group_destroy(rank.group) != 0)
        rc = cli_rank_failed(&rank, "closing");
    if (rc == CLI_OK && record->mismatches != 0)
        rc = CLI_CHECK;
    record->exit_code = rc;
    __atomic_store_n(&record->ended, 1, __ATOMIC_RELEASE);
    return rc;
}
