/* SPDX-License-Identifier: Apache-2.0 */
/* agree.c - what all ranks must agree on before data moves. */

#include "agree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "group.h"
#include "plan.h"
#include "shared/word.h"

/* A rank's state of mind at a step. */
struct status {
    int32_t code;
    char text[AFD_AGREE_TEXT];
};

static int gather(const struct afd_group *group, const void *in, void *out, size_t bytes)
{
    return group->bootstrap->ops->allgather(group->bootstrap, in, out, bytes);
}

static void status_fill(struct status *status, int local_rc)
{
    memset(status, 0, sizeof(*status));
    status->code = local_rc;
    if (local_rc != 0)
        snprintf(status->text, sizeof(status->text), "%s", afd_last_error());
}

/* The first rank that failed decides; `stride` bytes from one rank's status to the next. */
static int status_check(const struct afd_group *group, const uint8_t *rows, size_t stride)
{
    for (uint32_t r = 0; r < group->config.world; r++) {
        struct status status;
        memcpy(&status, rows + stride * r, sizeof(status));
        if (status.code == 0)
            continue;
        status.text[sizeof(status.text) - 1] = '\0';
        if (r == group->config.rank)
            return afd_error_set(status.code, "%s", status.text);
        return afd_error_set(status.code, "rank %u failed: %s", r, status.text);
    }
    return 0;
}

/* --------------------------------------------------------------------------------------- values */

/* "4096 on ranks 1, 2": the ranks with this value, into text. */
static void list_ranks(char *text, size_t size, const uint64_t *values, uint32_t world,
                       uint64_t value)
{
    size_t used = 0;
    const char *separator = "";
    for (uint32_t r = 0; r < world && used + 16 < size; r++) {
        if (values[r] != value)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%u", separator, r);
        separator = ", ";
    }
}

/* All values equal, or AFD_EMISMATCH with the field, both values and who has them. */
static int compare(const char *field, const uint64_t *values, uint32_t world)
{
    char first[96] = "";
    char other[96] = "";
    uint32_t r = 1;
    while (r < world && values[r] == values[0])
        r++;
    if (r == world)
        return 0;
    list_ranks(first, sizeof(first), values, world, values[0]);
    list_ranks(other, sizeof(other), values, world, values[r]);
    return afd_error_set(AFD_EMISMATCH, "%s differs: %llu on rank %s, %llu on rank %s", field,
                         (unsigned long long)values[0], first, (unsigned long long)values[r],
                         other);
}

/* ---------------------------------------------------------------------------------------- hello */

static void hello_fill(const struct afd_group *group, struct afd_hello *hello)
{
    memset(hello, 0, sizeof(*hello));
    hello->wire_version = AFD_WIRE_VERSION;
    hello->world = group->config.world;
    hello->pid = (int32_t)getpid();
    hello->backend = group->config.backend;
    hello->pid_namespace = afd_pid_namespace();
    snprintf(hello->digest, sizeof(hello->digest), "%s", afd_digest());
    snprintf(hello->version, sizeof(hello->version), "%s", afd_version());
}

int afd_agree_hello(const struct afd_group *group, struct afd_hello *hello_out)
{
    struct afd_hello own;
    int rc;
    hello_fill(group, &own);
    rc = gather(group, &own, hello_out, sizeof(own));
    for (uint32_t r = 0; rc == 0 && r < group->config.world; r++) {
        const struct afd_hello *zero = &hello_out[0];
        struct afd_hello *h = &hello_out[r];
        h->digest[sizeof(h->digest) - 1] = '\0';
        h->version[sizeof(h->version) - 1] = '\0';
        if (h->wire_version != zero->wire_version)
            rc = afd_error_set(AFD_EMISMATCH,
                               "wire version differs: %u on rank 0 (libafd %s), %u on rank %u "
                               "(libafd %s)",
                               zero->wire_version, zero->version, h->wire_version, r, h->version);
        else if (strcmp(h->digest, zero->digest) != 0)
            rc = afd_error_set(AFD_EMISMATCH,
                               "build digest differs: %s on rank 0 (libafd %s), %s on rank %u "
                               "(libafd %s)",
                               zero->digest, zero->version, h->digest, r, h->version);
        else if (h->world != zero->world)
            rc = afd_error_set(AFD_EMISMATCH, "world differs: %u on rank 0, %u on rank %u",
                               zero->world, h->world, r);
    }
    return rc;
}

int afd_agree_roles(const struct afd_group *group)
{
    uint32_t world = group->config.world;
    uint32_t *own = calloc(world, 2 * sizeof(*own));
    uint32_t *all = calloc((size_t)world * world, 2 * sizeof(*all));
    int rc = 0;
    if (own == NULL || all == NULL) {
        rc = afd_error_set(AFD_ENOMEM, "no memory to compare the roles of %u ranks", world);
        goto out;
    }
    for (uint32_t r = 0; r < world; r++) {
        own[r] = group->roles[r];
        own[world + r] = group->domains[r];
    }
    rc = gather(group, own, all, (size_t)world * 2 * sizeof(*own));
    for (uint32_t r = 1; rc == 0 && r < world; r++) {
        const uint32_t *other = all + (size_t)r * 2 * world;
        for (uint32_t i = 0; rc == 0 && i < 2 * world; i++)
            if (other[i] != all[i])
                rc = afd_error_set(AFD_EMISMATCH,
                                   "%s of rank %u differs: %u says rank 0, %u says "
                                   "rank %u",
                                   i < world ? "role" : "domain", i % world, all[i], other[i], r);
    }
out:
    free(all);
    free(own);
    return rc;
}

/* --------------------------------------------------------------------------------------- buffer */

/* The WIRE fields of a buffer, in the order of the values below. */
static const char *const wire_names[] = {
    "capacity",    "hidden",           "experts",     "topk",
    "payload",     "payload_bytes",    "scale_bytes", "reply",
    "receive",     "protocol",         "stages",      "words_tokens",
    "first_epoch", "placement (hash)",
};
#define WIRE_COUNT (sizeof(wire_names) / sizeof(wire_names[0]))

struct wire_row {
    struct status status;
    uint64_t value[WIRE_COUNT];
};

/* FNV-1a over the owners, so that an explicit table equal to the default placement agrees with
 * it. */
static uint64_t placement_hash(const struct afd_group *group, const struct afd_buffer_config *c)
{
    uint64_t hash = 14695981039346656037ull;
    uint32_t ffn_ranks = 0;
    for (uint32_t r = 0; r < group->config.world; r++)
        ffn_ranks += group->roles[r] == AFD_ROLE_FFN;
    for (uint32_t e = 0; e < c->experts; e++) {
        hash ^= afd_plan_expert_ffn(c, ffn_ranks, e);
        hash *= 1099511628211ull;
    }
    return hash;
}

static void wire_fill(const struct afd_group *group, const struct afd_buffer_config *c,
                      struct wire_row *row)
{
    const uint64_t values[WIRE_COUNT] = {
        c->capacity,    c->hidden,
        c->experts,     c->topk,
        c->payload,     c->payload_bytes,
        c->scale_bytes, c->reply,
        c->receive,     c->protocol == AFD_PROTOCOL_AUTO ? AFD_PROTOCOL_DIRECT : c->protocol,
        c->stages,      c->words_tokens,
        c->first_epoch, placement_hash(group, c),
    };
    memcpy(row->value, values, sizeof(values));
}

int afd_agree_buffer(const struct afd_group *group, const struct afd_buffer_config *config,
                     int local_rc)
{
    uint32_t world = group->config.world;
    struct wire_row own;
    struct wire_row *all = calloc(world, sizeof(*all));
    uint64_t *column = calloc(world, sizeof(*column));
    int rc = 0;
    if (local_rc == 0 && (all == NULL || column == NULL))
        local_rc = afd_error_set(AFD_ENOMEM, "no memory to compare %u configurations", world);
    memset(&own, 0, sizeof(own));
    status_fill(&own.status, local_rc);
    if (local_rc == 0)
        wire_fill(group, config, &own);
    if (all == NULL || column == NULL) {
        rc = local_rc;
        goto out; /* the others time out in the bootstrap: nothing can be said without memory */
    }
    rc = gather(group, &own, all, sizeof(own));
    if (rc == 0)
        rc = status_check(group, (const uint8_t *)all, sizeof(*all));
    for (size_t i = 0; rc == 0 && i < WIRE_COUNT; i++) {
        for (uint32_t r = 0; r < world; r++)
            column[r] = all[r].value[i];
        rc = compare(wire_names[i], column, world);
    }
out:
    free(column);
    free(all);
    return rc;
}

int afd_agree_step(const struct afd_group *group, int local_rc)
{
    uint32_t world = group->config.world;
    struct status own;
    struct status *all = calloc(world, sizeof(*all));
    int rc;
    if (all == NULL)
        return afd_error_set(AFD_ENOMEM, "no memory for the status of %u ranks", world);
    status_fill(&own, local_rc);
    rc = gather(group, &own, all, sizeof(own));
    if (rc == 0)
        rc = status_check(group, (const uint8_t *)all, sizeof(*all));
    free(all);
    return rc;
}

int afd_agree_windows(const struct afd_group *group, const struct afd_window_ticket *own,
                      struct afd_window_ticket *tickets_out, int local_rc)
{
    int rc = afd_agree_step(group, local_rc);
    return rc != 0 ? rc : gather(group, own, tickets_out, sizeof(*own));
}
