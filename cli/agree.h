/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agree.h - ranks of a job started elsewhere: were all given the same options, and what did all
 * find?
 *
 * Both are collective over the group's bootstrap, before and after the exchanges.
 */
#ifndef CLI_AGREE_H
#define CLI_AGREE_H

#include "rank.h"

/* A number made of every option that decides what ranks send or how often, and that the library
 * does not compare itself. */
uint64_t cli_job_digest(const struct cli_job *job);
/* CLI_OK, or CLI_FAILED on every rank, with a sentence in the record that names a rank that
 * differs. */
int cli_agree_options(struct cli_rank *rank);
/* Puts every rank's record and times into records[world] and times_us[world][timed]. */
int cli_gather_results(struct cli_rank *rank, struct cli_record *records, double *times_us);

#endif
