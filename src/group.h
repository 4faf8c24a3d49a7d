/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - ranks that found each other: roles, liveness, and the buffers an abort must reach. */
#ifndef AFD_GROUP_H
#define AFD_GROUP_H

#include "afd/afd.h"
#include "bootstrap/bootstrap.h"

#define AFD_GROUP_BUFFERS_MAX 64u
#define AFD_GROUP_WORLD_MAX 1024u

/* What is known of a rank's process. */
struct afd_member {
    int32_t pid;
    int32_t pidfd; /* -1: this process, or not visible from here */
};

struct afd_group {
    struct afd_group_config config; /* roles and domains point into this group's own copies */
    struct afd_bootstrap *bootstrap;
    uint8_t *roles;
    uint32_t *domains;
    struct afd_member *member;
    uint32_t aborted;  /* atomic */
    uint32_t aborting; /* atomic: aborts that walk the buffers now */
    struct afd_buffer *buffers[AFD_GROUP_BUFFERS_MAX]; /* atomic pointers */
    uint32_t buffer_count;
};

/* Makes the buffer reachable by aborts. AFD_ESTATE if the group has too many. */
int afd_group_add_buffer(struct afd_group *group, struct afd_buffer *buffer);
/* After it returns no abort touches the buffer. */
void afd_group_remove_buffer(struct afd_group *group, struct afd_buffer *buffer);
int afd_group_is_aborted(const struct afd_group *group);
/* Rank whose process has ended, or UINT32_MAX. A system call per visible process. */
uint32_t afd_group_dead_rank(const struct afd_group *group);

#endif
