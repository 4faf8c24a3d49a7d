/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - what ranks started elsewhere tell each other besides tokens. */

#include "agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "group.h"

#define GATHER_BYTES_MAX ((size_t)64 << 10) /* of one rank at once; tcp carries 1 MiB */

uint64_t cli_job_digest(const struct cli_job *job)
{
    uint32_t numbers[] = {(uint32_t)job->routing, (uint32_t)job->options.seed,
                          (uint32_t)job->options.weights, (uint32_t)job->options.bias,
                          job->visit_count};
    size_t pairs = (size_t)job->trace.tokens * job->trace.topk;
    uint64_t digest = XXH64(numbers, sizeof(numbers), 0);
    for (uint32_t i = 0; i < job->visit_count; i++) {
        const struct cli_visit *v = &job->visit[i];
        uint32_t visit[] = {v->tokens, v->distinct, v->timed};
        digest = XXH64(visit, sizeof(visit), digest);
    }
    if (pairs != 0) {
        digest = XXH64(job->trace.expert, pairs, digest);
        digest = XXH64(job->trace.weight, pairs * sizeof(*job->trace.weight), digest);
    }
    return digest;
}

static int gather(struct cli_rank *rank, const void *in, void *out, size_t bytes, const char *what)
{
    struct afd_bootstrap *bootstrap = rank->group->bootstrap;
    return bootstrap->ops->allgather(bootstrap, in, out, bytes) == 0 ? CLI_OK
                                                                     : cli_rank_failed(rank, what);
}

int cli_agree_options(struct cli_rank *rank)
{
    uint32_t world = rank->job->layout.world;
    uint64_t own = cli_job_digest(rank->job);
    uint64_t *all = calloc(world, sizeof(*all));
    int rc =
        all == NULL ? CLI_FAILED : gather(rank, &own, all, sizeof(own), "comparing the options");
    for (uint32_t r = 1; rc == CLI_OK && r < world; r++) {
        if (all[r] == all[0])
            continue;
        snprintf(
            rank->record->error, sizeof(rank->record->error),
            "rank %u was started with other --tokens, --exchanges, --trace, --routing, --seed, "
            "--weights or --bias than rank 0 (digests %016llx and %016llx)",
            r, (unsigned long long)all[r], (unsigned long long)all[0]);
        rc = CLI_FAILED;
    }
    free(all);
    return rc;
}

/* Times of all ranks, a piece at a time because a gather is bounded. */
static int gather_times(struct cli_rank *rank, double *times_us)
{
    uint32_t world = rank->job->layout.world;
    uint64_t timed = rank->job->timed;
    uint64_t most = GATHER_BYTES_MAX / sizeof(double);
    double *piece = malloc(world * GATHER_BYTES_MAX);
    int rc = piece != NULL ? CLI_OK : CLI_FAILED;
    for (uint64_t at = 0; rc == CLI_OK && at < timed; at += most) {
        size_t n = (size_t)(timed - at < most ? timed - at : most);
        rc = gather(rank, rank->times_us + at, piece, n * sizeof(double), "gathering the times");
        for (uint32_t r = 0; rc == CLI_OK && r < world; r++)
            memcpy(times_us + r * timed + at, piece + r * n, n * sizeof(double));
    }
    free(piece);
    return rc;
}

int cli_gather_results(struct cli_rank *rank, struct cli_record *records, double *times_us)
{
    int rc = gather(rank, rank->record, records, sizeof(*records), "gathering the results");
    return rc == CLI_OK ? gather_times(rank, times_us) : rc;
}
