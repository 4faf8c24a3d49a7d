/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop.h - SIGINT and SIGTERM end the ranks of this process by aborting their groups.
 *
 * A signal while no group is watched (a rank that still joins, or is done) ends the process at
 * once.
 */
#ifndef CLI_STOP_H
#define CLI_STOP_H

#include "afd/afd.h"

/* From now on SIGINT and SIGTERM are handled. Ranks that are threads must block them. */
void cli_stop_install(void);
/* From now on a signal aborts this group of `rank`, below CLI_WORLD_MAX. */
void cli_stop_watch(uint32_t rank, struct afd_group *group);
/* After it returns no signal touches the group of `rank`. */
void cli_stop_forget(uint32_t rank);
/* Remembers a signal that was taken otherwise. */
void cli_stop_note(int signal_number);
/* The first signal so far, or 0. */
int cli_stop_signal(void);

#endif
