/* SPDX-License-Identifier: Apache-2.0 */
/*
 * switches.c - environment variables for measuring an arm without touching its program. They are
 * read once, in afd_buffer_create(), and win over the configuration; doc/protocol.md 6 has the same
 * table.
 */

#include "switches.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "group.h"

#define NAMES_MAX 4u

struct switch_entry {
    const char *variable;
    size_t field;                 /* offset of the uint32_t in struct afd_buffer_config */
    const char *names[NAMES_MAX]; /* value `first` is names[0], and so on; NULL: a number */
    uint32_t first;
    uint32_t last;
};

#define FIELD(name) offsetof(struct afd_buffer_config, name)

static const struct switch_entry switches[] = {
    {"AFD_BLOCKS", FIELD(blocks), {NULL}, 1, AFD_BLOCKS_MAX},
    {"AFD_VARIANT", FIELD(variant), {"auto", "words", "rows"}, AFD_VARIANT_AUTO, AFD_VARIANT_ROWS},
    {"AFD_REPLY_VARIANT",
     FIELD(reply_variant),
     {"auto", "words", "rows"},
     AFD_VARIANT_AUTO,
     AFD_VARIANT_ROWS},
    {"AFD_WORDS_TOKENS", FIELD(words_tokens), {NULL}, 0, AFD_WORDS_TOKENS_MAX},
    {"AFD_RECEIVE",
     FIELD(receive),
     {"expanded", "indexed"},
     AFD_RECEIVE_EXPANDED,
     AFD_RECEIVE_INDEXED},
    {"AFD_ZERO_PADDING", FIELD(zero_padding), {NULL}, 0, 1},
};

static int value_of(const struct switch_entry *s, const char *text, uint32_t *value_out)
{
    char *end;
    unsigned long value;
    for (uint32_t i = 0; s->names[0] != NULL && i <= s->last - s->first; i++) {
        if (strcmp(text, s->names[i]) != 0)
            continue;
        *value_out = s->first + i;
        return 0;
    }
    if (s->names[0] != NULL)
        return afd_error_set(AFD_EINVAL, "%s is \"%s\"; it must be %s, %s%s%s", s->variable, text,
                             s->names[0], s->names[1], s->names[2] != NULL ? " or " : "",
                             s->names[2] != NULL ? s->names[2] : "");
    errno = 0;
    value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < s->first ||
        value > s->last)
        return afd_error_set(AFD_EINVAL, "%s is \"%s\"; it must be a number, %u .. %u", s->variable,
                             text, s->first, s->last);
    *value_out = (uint32_t)value;
    return 0;
}

/* AFD_DEADLINE_MS stands apart: its field has 64 bits and another unit. */
static int apply_deadline(struct afd_buffer_config *config)
{
    static const struct switch_entry deadline = {
        "AFD_DEADLINE_MS", 0, {NULL}, 1, (uint32_t)(AFD_DEADLINE_MAX_US / 1000)};
    const char *text = getenv(deadline.variable);
    uint32_t ms;
    int rc = text == NULL || text[0] == '\0' ? 0 : value_of(&deadline, text, &ms);
    if (rc == 0 && text != NULL && text[0] != '\0')
        config->deadline_us = ms * 1000ull;
    return rc;
}

int afd_switches_apply(struct afd_buffer_config *config)
{
    struct afd_buffer_config changed = *config;
    int rc = apply_deadline(&changed);
    for (size_t i = 0; rc == 0 && i < sizeof(switches) / sizeof(switches[0]); i++) {
        const char *text = getenv(switches[i].variable);
        uint32_t value;
        if (text == NULL || text[0] == '\0')
            continue;
        rc = value_of(&switches[i], text, &value);
        if (rc == 0)
            memcpy((uint8_t *)&changed + switches[i].field, &value, sizeof(value));
    }
    if (rc == 0)
        *config = changed;
    return rc;
}
