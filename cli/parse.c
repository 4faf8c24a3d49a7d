/* SPDX-License-Identifier: Apache-2.0 */
/* parse.c - the small languages of the command line: layouts, token lists, durations, placements.
 */

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define DEADLINE_MIN_US 1000u
#define DEADLINE_MAX_US 3600000000ull

/* A decimal number at *text, which moves behind it. 0 if there is none or it is too large. */
static int number(const char **text, uint64_t most, uint64_t *value_out)
{
    char *end;
    unsigned long long value;
    if (!isdigit((unsigned char)**text))
        return 0;
    errno = 0;
    value = strtoull(*text, &end, 10);
    if (errno != 0 || value > most)
        return 0;
    *text = end;
    *value_out = value;
    return 1;
}

int cli_number_parse(const char *text, uint64_t most, uint64_t *value_out)
{
    uint64_t value;
    if (!number(&text, most, &value) || *text != '\0')
        return -1;
    *value_out = value;
    return 0;
}

/* --------------------------------------------------------------------------------------- layout */

static void number_ranks(struct cli_layout *layout)
{
    layout->sources = layout->ffn_ranks = 0;
    for (uint32_t r = 0; r < layout->world; r++) {
        layout->index[r] =
            layout->roles[r] == AFD_ROLE_FFN ? layout->ffn_ranks++ : layout->sources++;
        layout->domains[r] = layout->per_domain != 0 ? r / layout->per_domain : 0;
    }
}

int cli_layout_parse(const char *text, struct cli_layout *layout_out)
{
    const char *at = text;
    uint64_t sources = 0;
    uint64_t ffn_ranks = 0;
    uint64_t per_domain = 0;
    struct cli_layout *l = layout_out;
    if (!number(&at, UINT32_MAX, &sources) || *at++ != 'A' ||
        !number(&at, UINT32_MAX, &ffn_ranks) || *at++ != 'F')
        goto bad;
    if (*at == '@') {
        at++;
        if (!number(&at, UINT32_MAX, &per_domain) || per_domain == 0)
            goto bad;
    }
    if (*at != '\0' || strlen(text) >= sizeof(l->name))
        goto bad;
    if (sources == 0 || ffn_ranks == 0 || sources + ffn_ranks > CLI_WORLD_MAX)
        return cli_error(
            CLI_USAGE,
            "layout %s has %llu Attention and %llu FFN ranks; there must be at least 1 "
            "of each and at most %u together",
            text, (unsigned long long)sources, (unsigned long long)ffn_ranks, CLI_WORLD_MAX);
    memset(l, 0, sizeof(*l));
    snprintf(l->name, sizeof(l->name), "%s", text);
    l->world = (uint32_t)(sources + ffn_ranks);
    l->per_domain = (uint32_t)per_domain;
    for (uint32_t r = 0; r < l->world; r++)
        l->roles[r] = r < ffn_ranks ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION;
    number_ranks(l);
    return CLI_OK;
bad:
    return cli_error(CLI_USAGE, "layout \"%s\" is not like 2A2F or 22A2F@2", text);
}

int cli_layout_from_roles(const char *text, struct cli_layout *layout_out)
{
    struct cli_layout *l = layout_out;
    const char *at = text;
    memset(l, 0, sizeof(*l));
    while (l->world < CLI_WORLD_MAX && (*at == 'A' || *at == 'F')) {
        l->roles[l->world++] = *at++ == 'F' ? AFD_ROLE_FFN : AFD_ROLE_ATTENTION;
        if (*at == ',')
            at++;
        else
            break;
    }
    if (*at != '\0' || (at > text && at[-1] == ','))
        return cli_error(CLI_USAGE, "roles \"%s\" are not like A,F,F", text);
    number_ranks(l);
    if (l->sources == 0 || l->ffn_ranks == 0)
        return cli_error(CLI_USAGE,
                         "roles %s have %u Attention and %u FFN ranks; there must be at "
                         "least 1 of each",
                         text, l->sources, l->ffn_ranks);
    snprintf(l->name, sizeof(l->name), "%uA%uF", l->sources, l->ffn_ranks);
    return CLI_OK;
}

/* --------------------------------------------------------------------------------------- tokens */

static int add_size(uint64_t value, uint32_t *sizes, uint32_t *count)
{
    if (*count == CLI_SIZES_MAX)
        return cli_error(CLI_USAGE, "more than %u token counts", CLI_SIZES_MAX);
    sizes[(*count)++] = (uint32_t)value;
    return CLI_OK;
}

/* low .. high: low, the powers of two between, high, and the same way back. */
static int add_walk(uint64_t low, uint64_t high, uint32_t *sizes, uint32_t *count)
{
    uint32_t first = *count;
    uint32_t up;
    int rc = add_size(low, sizes, count);
    for (uint64_t size = 1; rc == CLI_OK && size < high; size *= 2)
        if (size > low)
            rc = add_size(size, sizes, count);
    if (rc == CLI_OK && high > low)
        rc = add_size(high, sizes, count);
    up = *count;
    for (uint32_t i = up; rc == CLI_OK && i > first + 1; i--)
        rc = add_size(sizes[i - 2], sizes, count);
    return rc;
}

int cli_tokens_parse(const char *text, uint32_t *sizes_out, uint32_t *count_out)
{
    const char *at = text;
    uint64_t low;
    uint64_t high;
    int rc = CLI_OK;
    *count_out = 0;
    do {
        if (!number(&at, AFD_CAPACITY_MAX, &low))
            goto bad;
        if (strncmp(at, "..", 2) == 0) {
            at += 2;
            if (!number(&at, AFD_CAPACITY_MAX, &high) || high < low)
                goto bad;
            rc = add_walk(low, high, sizes_out, count_out);
        } else {
            rc = add_size(low, sizes_out, count_out);
        }
    } while (rc == CLI_OK && *at == ',' && at++ != NULL);
    if (rc != CLI_OK || *at == '\0')
        return rc;
bad:
    return cli_error(CLI_USAGE,
                     "tokens \"%s\" are not like 8 or 1,8,32 or 1..64 with numbers up to %u", text,
                     AFD_CAPACITY_MAX);
}

/* ------------------------------------------------------------------------------------ durations */

int cli_duration_parse(const char *text, uint64_t *us_out)
{
    static const struct {
        const char *unit;
        uint64_t us;
    } units[] = {{"us", 1}, {"ms", 1000}, {"s", 1000000}, {"m", 60000000}, {"", 1000000}};
    const char *at = text;
    uint64_t value;
    if (number(&at, 1000000000, &value)) {
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
            if (strcmp(at, units[i].unit) != 0)
                continue;
            value *= units[i].us;
            if (value < DEADLINE_MIN_US || value > DEADLINE_MAX_US)
                return cli_error(CLI_USAGE, "duration %s is %llu us; it must be %u .. %llu us",
                                 text, (unsigned long long)value, DEADLINE_MIN_US, DEADLINE_MAX_US);
            *us_out = value;
            return CLI_OK;
        }
    }
    return cli_error(CLI_USAGE, "duration \"%s\" is not like 3s, 500ms, 250us or 2m", text);
}

/* ------------------------------------------------------------------------------------ placement */

int cli_placement_parse(const char *text, size_t length, uint32_t experts, uint32_t ffn_ranks,
                        uint32_t *placement_out, char *error, size_t error_bytes)
{
    uint32_t count = 0;
    size_t at = 0;
    while (at < length) {
        uint64_t value = 0;
        size_t digits = 0;
        if (isspace((unsigned char)text[at])) {
            at++;
            continue;
        }
        if (text[at] == '#') {
            while (at < length && text[at] != '\n')
                at++;
            continue;
        }
        for (; at < length && isdigit((unsigned char)text[at]) && digits < 10; digits++)
            value = value * 10 + (uint64_t)(text[at++] - '0');
        if (digits == 0 || value >= ffn_ranks ||
            (at < length && text[at] != '#' && !isspace((unsigned char)text[at]))) {
            snprintf(error, error_bytes,
                     "entry %u of the placement is not a number below the %u FFN ranks", count,
                     ffn_ranks);
            return -1;
        }
        if (count == experts) {
            snprintf(error, error_bytes, "the placement has more entries than the %u experts",
                     experts);
            return -1;
        }
        placement_out[count++] = (uint32_t)value;
    }
    if (count == experts)
        return 0;
    snprintf(error, error_bytes, "the placement has %u entries, but there are %u experts", count,
             experts);
    return -1;
}

int cli_file_read(const char *path, size_t most, uint8_t **bytes_out, size_t *length_out)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL;
    long length = -1;
    if (file == NULL)
        return cli_error(CLI_USAGE, "%s: %s", path, strerror(errno));
    if (fseek(file, 0, SEEK_END) == 0)
        length = ftell(file);
    if (length < 0 || (size_t)length > most || fseek(file, 0, SEEK_SET) != 0) {
        fclose(file);
        return cli_error(CLI_USAGE, "%s: its size is %ld bytes; at most %zu can be read", path,
                         length, most);
    }
    bytes = malloc((size_t)length + 1);
    if (bytes == NULL || fread(bytes, 1, (size_t)length, file) != (size_t)length) {
        fclose(file);
        free(bytes);
        return cli_error(CLI_FAILED, "%s: could not be read", path);
    }
    fclose(file);
    *bytes_out = bytes;
    *length_out = (size_t)length;
    return CLI_OK;
}
