/* SPDX-License-Identifier: Apache-2.0 */
/* launch.h - starts all ranks of a job on this machine and waits for them. */
#ifndef CLI_LAUNCH_H
#define CLI_LAUNCH_H

#include "rank.h"

struct cli_results {
    struct cli_record *record; /* [world] */
    double *times_us;          /* [world][timed] */
    int *signal;               /* [world] signal that ended the process, or 0 */
    int *killed;               /* [world] 1: it did not end by itself after another rank failed */
    uint32_t elsewhere;        /* 1: the ranks were not started here, and this is own_rank */
    uint32_t own_rank;
    size_t bytes; /* of the shared mapping behind record and times */
};

int cli_results_alloc(const struct cli_job *job, struct cli_results *results_out);
void cli_results_free(struct cli_results *results);
/* Runs every rank as a direct child process, or as a thread. CLI_OK if they could be started,
 * whatever then happened to them. */
int cli_launch(const struct cli_job *job, struct cli_results *results);

#endif
