/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bootstrap.c - opens the kind of bootstrap that a configuration names.
 */
#include "bootstrap/bootstrap.h"
#include "error.h"

int afd_bootstrap_check(const struct afd_group_config *config)
{
    if (config->world < 1 || config->world > AFD_BOOTSTRAP_WORLD_MAX)
        return afd_error_set(AFD_EINVAL, "rank %u: world is %u, must be 1 .. %u", config->rank,
                             config->world, AFD_BOOTSTRAP_WORLD_MAX);
    if (config->rank >= config->world)
        return afd_error_set(AFD_EINVAL, "rank is %u, must be below world, which is %u",
                             config->rank, config->world);
    if (config->bootstrap_timeout_us == 0)
        return afd_error_set(AFD_EINVAL, "rank %u: bootstrap_timeout_us is 0, must be at least 1",
                             config->rank);
    return 0;
}

int afd_bootstrap_open(const struct afd_group_config *config, struct afd_bootstrap **bootstrap_out)
{
    switch (config->bootstrap) {
    case AFD_BOOTSTRAP_TCP:
        return afd_bootstrap_tcp_open(config, bootstrap_out);
    case AFD_BOOTSTRAP_CALLBACKS:
        return afd_bootstrap_callbacks_open(config, bootstrap_out);
    case AFD_BOOTSTRAP_HUB:
        return afd_bootstrap_hub_open(config, bootstrap_out);
    case AFD_BOOTSTRAP_ENV:
        return afd_bootstrap_env_open(config, bootstrap_out);
    default:
        return afd_error_set(AFD_EINVAL,
                             "bootstrap is %u, must be one of enum afd_bootstrap_kind (1 .. 4)",
                             config->bootstrap);
    }
}
