/* SPDX-License-Identifier: Apache-2.0 */
/* sim.h - the verb `sim`: schedules of a whole job in one thread, and what their oracles found. */
#ifndef CLI_SIM_H
#define CLI_SIM_H

int cli_sim_main(int argc, const char **argv);

#endif
