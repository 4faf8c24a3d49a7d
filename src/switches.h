/* SPDX-License-Identifier: Apache-2.0 */
/* switches.h - AFD_* environment variables that change a buffer's configuration at create. */
#ifndef AFD_SWITCHES_H
#define AFD_SWITCHES_H

#include "afd/afd.h"

/* Applies the variables that are set to *config. AFD_EINVAL with the variable's name, its value and
 * what it may be; *config is then unchanged. */
int afd_switches_apply(struct afd_buffer_config *config);

#endif
