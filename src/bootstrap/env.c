/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.c - rank, world and rendezvous from what a launcher left in the environment; then TCP.
 *
 * The first row of `launchers` whose rank variable is set decides. An empty variable counts as not
 * set. AFD_RENDEZVOUS always wins over a launcher's own address: under torchrun, MASTER_PORT is
 * often taken by torch's own store.
 */
#include "bootstrap/bootstrap.h"
#include "error.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct launcher {
    const char *name;
    const char *rank;
    const char *world;
    const char *host; /* NULL: this launcher gives no address, AFD_RENDEZVOUS must */
    const char *port;
};

static const struct launcher launchers[] = {
    {"afd", "AFD_RANK", "AFD_WORLD", NULL, NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, NULL},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", NULL, NULL},
};

static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;

    return value && value[0] ? value : NULL;
}

/* NULL: no launcher has set a rank. */
static const struct launcher *find_launcher(void)
{
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        if (variable(launchers[i].rank))
            return &launchers[i];
    }
    return NULL;
}

static int read_number(const struct launcher *launcher, const char *name, uint32_t most,
                       uint32_t *value_out)
{
    const char *text = variable(name);
    char *end;
    unsigned long value;

    if (!text)
        return afd_error_set(AFD_EBOOTSTRAP, "%s is %s but %s is not set (%s job)", launcher->rank,
                             variable(launcher->rank), name, launcher->name);
    errno = 0;
    value = strtoul(text, &end, 10);
    /* strtoul takes signs and leading blanks: only digits are a number here. */
    if (text[strspn(text, "0123456789")] != '\0' || errno || *end || value > most)
        return afd_error_set(AFD_EBOOTSTRAP, "%s is \"%.64s\", must be a number 0 .. %u", name,
                             text, most);
    *value_out = (uint32_t)value;
    return 0;
}

static int read_ranks(const struct launcher *launcher, struct afd_group_config *config)
{
    int error = read_number(launcher, launcher->rank, AFD_BOOTSTRAP_WORLD_MAX - 1, &config->rank);

    if (!error)
        error = read_number(launcher, launcher->world, AFD_BOOTSTRAP_WORLD_MAX, &config->world);
    if (!error && config->rank >= config->world)
        error = afd_error_set(AFD_EBOOTSTRAP, "%s is %u, must be below %s, which is %u",
                              launcher->rank, config->rank, launcher->world, config->world);
    return error;
}

/* `buffer` holds an address made of two variables for as long as the caller needs it. */
static int read_rendezvous(const struct launcher *launcher, struct afd_group_config *config,
                           char *buffer, size_t buffer_bytes)
{
    const char *host = variable(launcher->host);
    const char *port = variable(launcher->port);
    bool bare_v6 = host && strchr(host, ':') && host[0] != '[';

    if (variable("AFD_RENDEZVOUS")) {
        config->rendezvous = variable("AFD_RENDEZVOUS");
        return 0;
    }
    if (config->rendezvous || (config->rank == 0 && config->listen_fd >= 0))
        return 0;
    if (!launcher->host)
        return afd_error_set(AFD_EBOOTSTRAP,
                             "rank %u (%s job): AFD_RENDEZVOUS is not set; it must be the "
                             "\"host:port\" where rank 0 listens",
                             config->rank, launcher->name);
    if (!host || !port)
        return afd_error_set(AFD_EBOOTSTRAP,
                             "rank %u (%s job): %s is not set; set %s and %s, or AFD_RENDEZVOUS",
                             config->rank, launcher->name, host ? launcher->port : launcher->host,
                             launcher->host, launcher->port);
    if ((size_t)snprintf(buffer, buffer_bytes, bare_v6 ? "[%s]:%s" : "%s:%s", host, port) >=
        buffer_bytes)
        return afd_error_set(AFD_EBOOTSTRAP, "rank %u: %s and %s are too long together (%zu bytes)",
                             config->rank, launcher->host, launcher->port, strlen(host));
    config->rendezvous = buffer;
    return 0;
}

int afd_bootstrap_env_open(const struct afd_group_config *config, struct afd_bootstrap **out)
{
    struct afd_group_config resolved = *config;
    const struct launcher *launcher = find_launcher();
    char buffer[300];
    int error;

    if (launcher)
        error = read_ranks(launcher, &resolved);
    else
        error = afd_error_set(
            AFD_EBOOTSTRAP,
            "no rank in the environment: looked for AFD_RANK with AFD_WORLD and AFD_RENDEZVOUS, "
            "RANK with WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun), OMPI_COMM_WORLD_RANK "
            "with OMPI_COMM_WORLD_SIZE (Open MPI), SLURM_PROCID with SLURM_NTASKS (Slurm)");
    if (!error)
        error = read_rendezvous(launcher, &resolved, buffer, sizeof(buffer));
    if (error) {
        /* It would have been taken over; the caller cannot know how far this came. */
        if (config->listen_fd >= 0)
            close(config->listen_fd);
        return error;
    }
    resolved.bootstrap = AFD_BOOTSTRAP_TCP;
    return afd_bootstrap_tcp_open(&resolved, out);
}
