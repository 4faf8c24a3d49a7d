/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callbacks.c - a bootstrap made of the caller's own allgather.
 */
#include "bootstrap/bootstrap.h"
#include "error.h"

#include <stdbool.h>
#include <stdlib.h>

struct callbacks {
    struct afd_bootstrap base;
    struct afd_bootstrap_callbacks calls;
    bool failed;
};

static int callbacks_allgather(struct afd_bootstrap *bootstrap, const void *in, void *out,
                               size_t bytes)
{
    struct callbacks *self = (struct callbacks *)bootstrap;
    int result;

    if (self->failed)
        return afd_error_set(AFD_EBOOTSTRAP,
                             "rank %u: the allgather callback failed before, this group is over",
                             bootstrap->rank);
    result = self->calls.allgather(self->calls.context, in, out, bytes);
    if (result != 0) {
        self->failed = true;
        return afd_error_set(AFD_EBOOTSTRAP,
                             "rank %u: the caller's allgather callback returned %d, not 0, for %zu "
                             "bytes of each of %u ranks",
                             bootstrap->rank, result, bytes, bootstrap->world);
    }
    return 0;
}

static void callbacks_close(struct afd_bootstrap *bootstrap)
{
    free(bootstrap);
}

static const struct afd_bootstrap_ops callbacks_ops = {
    .allgather = callbacks_allgather,
    .close = callbacks_close,
};

int afd_bootstrap_callbacks_open(const struct afd_group_config *config, struct afd_bootstrap **out)
{
    struct callbacks *self;
    int error = afd_bootstrap_check(config);

    if (error)
        return error;
    if (!config->callbacks.allgather)
        return afd_error_set(
            AFD_EINVAL, "rank %u: callbacks.allgather is NULL, the callbacks bootstrap needs it",
            config->rank);
    self = calloc(1, sizeof(*self));
    if (!self)
        return afd_error_set(AFD_ENOMEM, "rank %u: no memory for a bootstrap (%zu bytes)",
                             config->rank, sizeof(*self));
    self->base.ops = &callbacks_ops;
    self->base.rank = config->rank;
    self->base.world = config->world;
    self->base.timeout_us = config->bootstrap_timeout_us;
    self->calls = config->callbacks;
    *out = &self->base;
    return 0;
}
