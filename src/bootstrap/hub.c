/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub.c - a meeting point for ranks that are threads of one process.
 *
 *     hub --current--> meeting (group 3, still filling)
 *                      meeting (group 2, alive while a rank has it open)
 *
 * A meeting is one group's ranks. A rank opens the current meeting; once every rank has come to it,
 * or once this rank has already left it, the next open starts a new one. So a fast rank can begin
 * the next group while a slow one still closes the last.
 */
#include "bootstrap/bootstrap.h"
#include "bootstrap/deadline.h"
#include "bootstrap/rank_list.h"
#include "error.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum seat_state {
    SEAT_FREE = 0,
    SEAT_TAKEN,
    SEAT_LEFT,
};

struct seat {
    enum seat_state state;
    bool arrived; /* waits in the current allgather; in, out and bytes are then its arguments */
    const void *in;
    void *out;
    size_t bytes;
};

struct meeting {
    uint32_t members; /* seats taken now */
    uint32_t free_seats;
    uint32_t arrived_count;
    uint64_t round;
    int code; /* of the first failure, 0 while there is none */
    char failure[512];
    struct seat seats[]; /* [world] */
};

struct afd_hub {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t world;
    uint32_t references; /* the creator's and one per open bootstrap */
    struct meeting *current;
};

struct hub_rank {
    struct afd_bootstrap base;
    struct afd_hub *hub;
    struct meeting *meeting;
};

int afd_hub_create(uint32_t world, struct afd_hub **hub_out)
{
    struct afd_hub *hub;
    pthread_condattr_t attributes;

    if (world < 1 || world > AFD_BOOTSTRAP_WORLD_MAX)
        return afd_error_set(AFD_EINVAL, "hub for a world of %u ranks, must be 1 .. %u", world,
                             AFD_BOOTSTRAP_WORLD_MAX);
    hub = calloc(1, sizeof(*hub));
    if (!hub)
        goto err_none;
    hub->world = world;
    hub->references = 1;
    if (pthread_mutex_init(&hub->mutex, NULL))
        goto err_hub;
    if (pthread_condattr_init(&attributes))
        goto err_mutex;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    if (pthread_cond_init(&hub->changed, &attributes))
        goto err_attributes;
    pthread_condattr_destroy(&attributes);
    *hub_out = hub;
    return 0;

err_attributes:
    pthread_condattr_destroy(&attributes);
err_mutex:
    pthread_mutex_destroy(&hub->mutex);
err_hub:
    free(hub);
err_none:
    return afd_error_set(AFD_ENOMEM, "no memory for a hub of %u ranks", world);
}

/* Drops one reference; called with the mutex held, returns with it released. */
static void hub_release(struct afd_hub *hub)
{
    bool last = --hub->references == 0;

    pthread_mutex_unlock(&hub->mutex);
    if (!last)
        return;
    free(hub->current);
    pthread_cond_destroy(&hub->changed);
    pthread_mutex_destroy(&hub->mutex);
    free(hub);
}

void afd_hub_destroy(struct afd_hub *hub)
{
    if (!hub)
        return;
    pthread_mutex_lock(&hub->mutex);
    hub_release(hub);
}

/* The first failure of a meeting is what every rank of it reports. */
__attribute__((format(printf, 4, 5))) static int
meeting_fail(struct afd_hub *hub, struct meeting *meeting, int code, const char *format, ...)
{
    va_list arguments;

    if (!meeting->code) {
        meeting->code = code;
        va_start(arguments, format);
        vsnprintf(meeting->failure, sizeof(meeting->failure), format, arguments);
        va_end(arguments);
        pthread_cond_broadcast(&hub->changed);
    }
    return afd_error_set(meeting->code, "%s", meeting->failure);
}

/* The meeting that `rank` opens next; NULL without memory. */
static struct meeting *hub_meeting(struct afd_hub *hub, uint32_t rank)
{
    struct meeting *old = hub->current;
    struct meeting *next;

    if (old && old->free_seats > 0 && (rank >= hub->world || old->seats[rank].state != SEAT_LEFT))
        return old;
    next = calloc(1, sizeof(*next) + hub->world * sizeof(next->seats[0]));
    if (!next)
        return NULL;
    next->free_seats = hub->world;
    if (old && old->members == 0)
        free(old);
    hub->current = next;
    return next;
}

static void meeting_leave(struct afd_hub *hub, struct meeting *meeting, uint32_t rank)
{
    meeting->seats[rank].state = SEAT_LEFT;
    meeting->members--;
    if (meeting->members == 0 && meeting != hub->current)
        free(meeting);
}

/* Takes this rank's seat. A rank that cannot have one fails the meeting: nobody else will come for
 * it, and the others would only wait. */
static int meeting_join(struct afd_hub *hub, struct meeting *meeting,
                        const struct afd_group_config *config)
{
    struct seat *seat = config->rank < hub->world ? &meeting->seats[config->rank] : NULL;
    int error;

    if (seat && seat->state == SEAT_TAKEN)
        return meeting_fail(hub, meeting, AFD_EBOOTSTRAP,
                            "rank %u came twice to the hub of %u ranks, and %u ranks are missing",
                            config->rank, hub->world, meeting->free_seats);
    if (seat) {
        meeting->free_seats--;
        seat->state = SEAT_TAKEN;
        meeting->members++;
    }
    if (config->world == hub->world)
        return 0;
    error = meeting_fail(hub, meeting, AFD_EMISMATCH,
                         "rank %u has world %u, the hub was made for world %u", config->rank,
                         config->world, hub->world);
    if (seat)
        meeting_leave(hub, meeting, config->rank);
    return error;
}

static bool seat_is_missing(const void *context, uint32_t rank)
{
    const struct meeting *meeting = context;

    return !meeting->seats[rank].arrived;
}

static int meeting_fail_late(struct hub_rank *self)
{
    char missing[AFD_RANK_LIST_BYTES];

    afd_rank_list_write(seat_is_missing, self->meeting, self->hub->world, missing);
    return meeting_fail(self->hub, self->meeting, AFD_EPEER,
                        "rank %u waited %.1f s at the hub: %s of %u did not come", self->base.rank,
                        afd_deadline_seconds(self->base.timeout_us), missing, self->hub->world);
}

/* Done by the last rank to arrive, for all: the others wait inside the mutex's condition, so their
 * arguments are valid. */
static void meeting_deliver(struct afd_hub *hub, struct meeting *meeting, size_t bytes)
{
    for (uint32_t to = 0; to < hub->world; to++) {
        struct seat *seat = &meeting->seats[to];

        for (uint32_t from = 0; from < hub->world && bytes > 0; from++)
            memcpy((uint8_t *)seat->out + from * bytes, meeting->seats[from].in, bytes);
        seat->arrived = false;
    }
    meeting->arrived_count = 0;
    meeting->round++;
    pthread_cond_broadcast(&hub->changed);
}

static int meeting_arrive(struct hub_rank *self, const void *in, void *out, size_t bytes)
{
    struct meeting *meeting = self->meeting;
    struct seat *mine = &meeting->seats[self->base.rank];

    for (uint32_t rank = 0; rank < self->hub->world; rank++) {
        struct seat *other = &meeting->seats[rank];

        if (other->state == SEAT_LEFT)
            return meeting_fail(self->hub, meeting, AFD_EPEER,
                                "rank %u left the group while others still wait for it", rank);
        if (other->arrived && other->bytes != bytes)
            return meeting_fail(
                self->hub, meeting, AFD_EBOOTSTRAP,
                "rank %u passes %zu bytes to an allgather to which rank %u passes %zu",
                self->base.rank, bytes, rank, other->bytes);
    }
    mine->in = in;
    mine->out = out;
    mine->bytes = bytes;
    mine->arrived = true;
    meeting->arrived_count++;
    return 0;
}

static int meeting_wait(struct hub_rank *self)
{
    struct meeting *meeting = self->meeting;
    uint64_t round = meeting->round;
    uint64_t deadline_us = afd_deadline_after(self->base.timeout_us);
    struct timespec until = {.tv_sec = (time_t)(deadline_us / 1000000u),
                             .tv_nsec = (long)(deadline_us % 1000000u) * 1000};
    bool late = false;

    while (meeting->round == round && !meeting->code && !late)
        late = pthread_cond_timedwait(&self->hub->changed, &self->hub->mutex, &until) != 0;
    if (meeting->round != round)
        return 0;
    if (!meeting->code)
        return meeting_fail_late(self);
    return afd_error_set(meeting->code, "%s", meeting->failure);
}

static int hub_allgather(struct afd_bootstrap *bootstrap, const void *in, void *out, size_t bytes)
{
    struct hub_rank *self = (struct hub_rank *)bootstrap;
    struct meeting *meeting = self->meeting;
    int error;

    pthread_mutex_lock(&self->hub->mutex);
    if (meeting->code)
        error = afd_error_set(meeting->code, "%s", meeting->failure);
    else
        error = meeting_arrive(self, in, out, bytes);
    if (!error && meeting->arrived_count == self->hub->world)
        meeting_deliver(self->hub, meeting, bytes);
    else if (!error)
        error = meeting_wait(self);
    pthread_mutex_unlock(&self->hub->mutex);
    return error;
}

static void hub_close(struct afd_bootstrap *bootstrap)
{
    struct hub_rank *self = (struct hub_rank *)bootstrap;
    struct meeting *meeting = self->meeting;

    pthread_mutex_lock(&self->hub->mutex);
    /* Whoever waits now waits for this rank too. Its own last error is not touched by its leaving:
     * the sentence goes to the meeting only if somebody is there to read it. */
    if (meeting->arrived_count > 0 && !meeting->code) {
        meeting->code = AFD_EPEER;
        snprintf(meeting->failure, sizeof(meeting->failure),
                 "rank %u left the group while others still wait for it", self->base.rank);
        pthread_cond_broadcast(&self->hub->changed);
    }
    meeting_leave(self->hub, meeting, self->base.rank);
    hub_release(self->hub);
    free(self);
}

static const struct afd_bootstrap_ops hub_ops = {
    .allgather = hub_allgather,
    .close = hub_close,
};

static int hub_join(struct afd_hub *hub, const struct afd_group_config *config,
                    struct hub_rank *self)
{
    struct meeting *meeting;
    int error;

    pthread_mutex_lock(&hub->mutex);
    meeting = hub_meeting(hub, config->rank);
    if (meeting)
        error = meeting_join(hub, meeting, config);
    else
        error = afd_error_set(AFD_ENOMEM, "rank %u: no memory for a group of %u ranks on the hub",
                              config->rank, hub->world);
    if (!error) {
        hub->references++;
        self->hub = hub;
        self->meeting = meeting;
    }
    pthread_mutex_unlock(&hub->mutex);
    return error;
}

int afd_bootstrap_hub_open(const struct afd_group_config *config, struct afd_bootstrap **out)
{
    struct hub_rank *self;
    int error = afd_bootstrap_check(config);

    if (error)
        return error;
    if (!config->hub)
        return afd_error_set(AFD_EINVAL, "rank %u: hub is NULL, the hub bootstrap needs one",
                             config->rank);
    self = calloc(1, sizeof(*self));
    if (!self)
        return afd_error_set(AFD_ENOMEM, "rank %u: no memory for a bootstrap (%zu bytes)",
                             config->rank, sizeof(*self));
    error = hub_join(config->hub, config, self);
    if (error) {
        free(self);
        return error;
    }
    self->base.ops = &hub_ops;
    self->base.rank = config->rank;
    self->base.world = config->world;
    self->base.timeout_us = config->bootstrap_timeout_us;
    *out = &self->base;
    return 0;
}
