/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - what `run` prints: a table, or one JSON object. */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "launch.h"

void cli_report(const struct cli_job *job, const struct cli_results *results);

#endif
