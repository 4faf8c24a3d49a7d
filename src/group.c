/* SPDX-License-Identifier: Apache-2.0 */
/* group.c - create: ranks meet, agree, and get hold of each other's processes. */

#include "group.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agree.h"
#include "buffer.h"
#include "error.h"
#include "fabric/shm.h"
#include "plan.h"
#include "shared/word.h"

void afd_group_config_init(struct afd_group_config *config)
{
    memset(config, 0, sizeof(*config));
    config->size = sizeof(*config);
    config->bootstrap = AFD_BOOTSTRAP_TCP;
    config->backend = AFD_BACKEND_INLINE;
    config->listen_fd = -1;
    config->bootstrap_timeout_us = 30000000;
    config->deadline_us = 10000000;
}

/* ------------------------------------------------------------------------------------- liveness */

static int open_pidfd(int32_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0);
#else
    (void)pid;
    errno = ENOSYS;
    return -1;
#endif
}

/* A peer that died before this point is caught by the bootstrap, so its pid is still its own. */
static void watch_members(struct afd_group *group, const struct afd_hello *hello)
{
    uint64_t own_namespace = afd_pid_namespace();
    for (uint32_t r = 0; r < group->config.world; r++) {
        group->member[r].pid = hello[r].pid;
        group->member[r].pidfd = -1;
        if (hello[r].pid != (int32_t)getpid() && hello[r].pid_namespace == own_namespace)
            group->member[r].pidfd = open_pidfd(hello[r].pid);
    }
}

int afd_group_has_ended(const struct afd_group *group, uint32_t rank)
{
    struct pollfd process = {group->member[rank].pidfd, POLLIN, 0};
    return process.fd >= 0 && poll(&process, 1, 0) == 1;
}

/* --------------------------------------------------------------------------------------- create */

static int copy_config(struct afd_group *group, const struct afd_group_config *config)
{
    uint32_t world = config->world;
    group->config = *config;
    group->roles = malloc(world);
    group->domains = calloc(world, sizeof(*group->domains));
    group->member = calloc(world, sizeof(*group->member));
    if (group->roles == NULL || group->domains == NULL || group->member == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for a group of %u ranks", world);
    memcpy(group->roles, config->roles, world);
    if (config->domains != NULL)
        memcpy(group->domains, config->domains, world * sizeof(*group->domains));
    for (uint32_t r = 0; r < world; r++)
        group->member[r].pidfd = -1;
    group->config.roles = group->roles;
    group->config.domains = group->domains;
    group->config.rendezvous = NULL;
    group->config.key = NULL;
    return 0;
}

static int check_config(const struct afd_group_config *config)
{
    int rc = afd_plan_check_group(config);
    if (rc != 0)
        return rc;
    if (config->backend == AFD_BACKEND_CUDA)
        return afd_error_set(AFD_EUNSUPPORTED,
                             "backend cuda is not part of libafd; this build has backend inline");
    if (config->backend != AFD_BACKEND_INLINE)
        return afd_error_set(AFD_EINVAL, "backend is %u; backends are 1 (inline) and 2 (cuda)",
                             config->backend);
    if (config->deadline_us < AFD_DEADLINE_MIN_US || config->deadline_us > AFD_DEADLINE_MAX_US)
        return afd_error_set(AFD_EINVAL, "deadline is %llu us; it must be %u .. %llu us",
                             (unsigned long long)config->deadline_us, AFD_DEADLINE_MIN_US,
                             AFD_DEADLINE_MAX_US);
    return 0;
}

static int meet(struct afd_group *group)
{
    uint32_t world = group->config.world;
    struct afd_hello *hello = calloc(world, sizeof(*hello));
    int rc = 0;
    if (hello == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for the greetings of %u ranks", world);
    rc = afd_agree_hello(group, hello);
    if (rc == 0)
        rc = afd_agree_roles(group);
    if (rc == 0)
        watch_members(group, hello);
    free(hello);
    return rc;
}

static void release(struct afd_group *group)
{
    if (group->bootstrap != NULL)
        group->bootstrap->ops->close(group->bootstrap);
    for (uint32_t r = 0; group->member != NULL && r < group->config.world; r++)
        if (group->member[r].pidfd >= 0)
            close(group->member[r].pidfd);
    free(group->member);
    free(group->domains);
    free(group->roles);
    free(group);
}

int afd_group_create(const struct afd_group_config *config, struct afd_group **group_out)
{
    struct afd_group_config own;
    struct afd_bootstrap *bootstrap = NULL;
    struct afd_group *group;
    int rc;
    if (config == NULL || group_out == NULL)
        return afd_error_set(AFD_EINVAL, "config or group_out is NULL");
    own = *config;
    if (own.size == sizeof(own) && own.bootstrap == AFD_BOOTSTRAP_ENV) {
        rc = afd_bootstrap_open(config, &bootstrap); /* it knows rank and world */
        if (rc != 0)
            return rc;
        own.rank = bootstrap->rank;
        own.world = bootstrap->world;
    }
    rc = check_config(&own);
    if (rc != 0 && bootstrap == NULL && own.size == sizeof(own) && own.listen_fd >= 0)
        close(own.listen_fd); /* this library's from the call on, whatever comes of it */
    if (rc == 0 && bootstrap == NULL)
        rc = afd_bootstrap_open(&own, &bootstrap);
    group = rc == 0 ? calloc(1, sizeof(*group)) : NULL;
    if (rc == 0 && group == NULL)
        rc = afd_error_set(AFD_ENOMEM, "no memory for a group");
    if (group == NULL) {
        if (bootstrap != NULL)
            bootstrap->ops->close(bootstrap);
        return rc;
    }
    group->bootstrap = bootstrap;
    rc = copy_config(group, &own);
    if (rc == 0)
        rc = meet(group);
    if (rc != 0) {
        release(group);
        return rc;
    }
    *group_out = group;
    return 0;
}

int afd_group_destroy(struct afd_group *group)
{
    if (group == NULL)
        return 0;
    if (group->buffer_count != 0)
        return afd_error_set(AFD_ESTATE, "the group of rank %u still has %u open buffers",
                             group->config.rank, group->buffer_count);
    release(group);
    return 0;
}

uint32_t afd_group_rank(const struct afd_group *group)
{
    return group->config.rank;
}

uint32_t afd_group_world(const struct afd_group *group)
{
    return group->config.world;
}

uint32_t afd_group_role(const struct afd_group *group, uint32_t rank)
{
    return rank < group->config.world ? group->roles[rank] : 0;
}

/* ---------------------------------------------------------------------------------------- abort */

void afd_group_add_buffer(struct afd_group *group, struct afd_buffer *buffer)
{
    uint32_t slot = 0;
    while (slot < AFD_GROUP_BUFFERS_MAX && group->buffers[slot] != NULL)
        slot++;
    AFD_ASSERT(slot < AFD_GROUP_BUFFERS_MAX);
    __atomic_store_n(&group->buffers[slot], buffer, __ATOMIC_SEQ_CST);
    group->buffer_count++;
    /* pairs with afd_group_abort(): one that came too early to see the buffer is seen here */
    if (__atomic_load_n(&group->aborted, __ATOMIC_SEQ_CST) != 0)
        afd_buffer_publish_abort(buffer);
}

void afd_group_remove_buffer(struct afd_group *group, struct afd_buffer *buffer)
{
    for (uint32_t i = 0; i < AFD_GROUP_BUFFERS_MAX; i++) {
        if (group->buffers[i] != buffer)
            continue;
        __atomic_store_n(&group->buffers[i], NULL, __ATOMIC_SEQ_CST);
        group->buffer_count--;
    }
    /* pairs with the count in afd_group_abort(): one that saw the buffer is still counted */
    while (__atomic_load_n(&group->aborting, __ATOMIC_SEQ_CST) != 0)
        sched_yield();
}

int afd_group_is_aborted(const struct afd_group *group)
{
    return __atomic_load_n(&group->aborted, __ATOMIC_ACQUIRE) != 0;
}

void afd_group_abort(struct afd_group *group)
{
    __atomic_fetch_add(&group->aborting, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&group->aborted, 1, __ATOMIC_SEQ_CST);
    for (uint32_t i = 0; i < AFD_GROUP_BUFFERS_MAX; i++) {
        struct afd_buffer *buffer = __atomic_load_n(&group->buffers[i], __ATOMIC_SEQ_CST);
        if (buffer != NULL)
            afd_buffer_publish_abort(buffer);
    }
    __atomic_fetch_sub(&group->aborting, 1, __ATOMIC_SEQ_CST);
}
