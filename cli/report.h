/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what `run` prints: a table, or one JSON object. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "launch.h"

void cli_report(const struct cli_job *job, const struct cli_results *results);
/* Of all ranks that reported here. */
uint64_t cli_mismatches(const struct cli_job *job, const struct cli_results *results);
/* "words" or "rows": what an enum afd_variant means on CPUs. */
const char *cli_variant_name(uint32_t variant);

#endif
