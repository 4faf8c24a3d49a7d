/* SPDX-License-Identifier: Apache-2.0 */
/* group.h - ranks that found each other: roles, liveness, and the buffers an abort must reach. */
#ifndef AFD_GROUP_H
#define AFD_GROUP_H

#include "afd/afd.h"
#include "bootstrap/bootstrap.h"

#define AFD_GROUP_BUFFERS_MAX 64u
#define AFD_GROUP_WORLD_MAX 1024u
#define AFD_DEADLINE_MIN_US 1000u
#define AFD_DEADLINE_MAX_US 3600000000ull

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

/* Makes the buffer reachable by aborts; buffer_count must be below AFD_GROUP_BUFFERS_MAX. */
void afd_group_add_buffer(struct afd_group *group, struct afd_buffer *buffer);
/* After it returns no abort touches the buffer. */
void afd_group_remove_buffer(struct afd_group *group, struct afd_buffer *buffer);
int afd_group_is_aborted(const struct afd_group *group);
/* 1 if the process of `rank` is visible from here and has ended. A system call. */
int afd_group_has_ended(const struct afd_group *group, uint32_t rank);

#endif
