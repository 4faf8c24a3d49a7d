/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - reads routing traces; trusts no size in them. */

#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define HEADER_BYTES 24u
#define TRACE_BYTES_MAX ((size_t)1 << 31)

static uint32_t u32_at(const uint8_t *bytes, size_t at)
{
    return (uint32_t)bytes[at] | (uint32_t)bytes[at + 1] << 8 | (uint32_t)bytes[at + 2] << 16 |
           (uint32_t)bytes[at + 3] << 24;
}

/* Header fields; -1 with the sentence if they cannot be. */
static int parse_header(const uint8_t *bytes, size_t length, struct cli_trace *trace, char *error,
                        size_t error_bytes)
{
    uint64_t want;
    if (length < HEADER_BYTES || memcmp(bytes, "RTR1", 4) != 0) {
        snprintf(error, error_bytes,
                 "not an RTR1 trace: it has %zu bytes (a header has %u), and its first 4 %s",
                 length, HEADER_BYTES,
                 length >= 4 && memcmp(bytes, "RTR1", 4) == 0 ? "are right" : "are not \"RTR1\"");
        return -1;
    }
    trace->tokens = u32_at(bytes, 4);
    trace->topk = u32_at(bytes, 8);
    trace->experts = u32_at(bytes, 12);
    trace->layer = u32_at(bytes, 16);
    trace->sequences = u32_at(bytes, 20);
    if (trace->tokens == 0 || trace->topk == 0 || trace->topk > AFD_TOPK_MAX ||
        trace->experts == 0 || trace->experts > 256) {
        snprintf(
            error, error_bytes,
            "trace has %u tokens, top-k %u, %u experts; there must be at least 1 token, top-k 1 "
            ".. %u and 1 .. 256 experts",
            trace->tokens, trace->topk, trace->experts, AFD_TOPK_MAX);
        return -1;
    }
    want = HEADER_BYTES + 4ull * trace->sequences + 5ull * trace->tokens * trace->topk;
    if (want != length) {
        snprintf(error, error_bytes,
                 "trace says %u tokens of %u routes in %u sequences, which are %llu bytes, but it "
                 "has %zu",
                 trace->tokens, trace->topk, trace->sequences, (unsigned long long)want, length);
        return -1;
    }
    return 0;
}

static int check_lengths(const uint8_t *bytes, const struct cli_trace *trace, char *error,
                         size_t error_bytes)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < trace->sequences; i++)
        sum += u32_at(bytes, HEADER_BYTES + 4 * (size_t)i);
    if (trace->sequences == 0 || sum == trace->tokens)
        return 0;
    snprintf(error, error_bytes, "the trace's sequences have %llu tokens together, but it says %u",
             (unsigned long long)sum, trace->tokens);
    return -1;
}

static int check_routes(const struct cli_trace *trace, char *error, size_t error_bytes)
{
    for (uint32_t t = 0; t < trace->tokens; t++) {
        const uint8_t *row = trace->expert + (size_t)t * trace->topk;
        for (uint32_t i = 0; i < trace->topk; i++) {
            if (row[i] >= trace->experts) {
                snprintf(error, error_bytes, "trace token %u, lane %u has expert %u of %u", t, i,
                         row[i], trace->experts);
                return -1;
            }
            for (uint32_t j = 0; j < i; j++) {
                if (row[j] != row[i])
                    continue;
                snprintf(error, error_bytes, "trace token %u has expert %u in lanes %u and %u", t,
                         row[i], j, i);
                return -1;
            }
        }
    }
    return 0;
}

int cli_trace_parse(const uint8_t *bytes, size_t length, struct cli_trace *trace_out, char *error,
                    size_t error_bytes)
{
    struct cli_trace trace;
    size_t pairs;
    size_t at;
    memset(&trace, 0, sizeof(trace));
    if (parse_header(bytes, length, &trace, error, error_bytes) != 0 ||
        check_lengths(bytes, &trace, error, error_bytes) != 0)
        return -1;
    pairs = (size_t)trace.tokens * trace.topk;
    at = HEADER_BYTES + 4 * (size_t)trace.sequences;
    trace.expert = malloc(pairs);
    trace.weight = malloc(pairs * sizeof(*trace.weight));
    if (trace.expert == NULL || trace.weight == NULL) {
        snprintf(error, error_bytes, "no memory for %zu routes", pairs);
        cli_trace_free(&trace);
        return -1;
    }
    memcpy(trace.expert, bytes + at, pairs);
    for (size_t i = 0; i < pairs; i++) {
        uint32_t bits = u32_at(bytes, at + pairs + 4 * i);
        memcpy(&trace.weight[i], &bits, sizeof(bits));
    }
    if (check_routes(&trace, error, error_bytes) != 0) {
        cli_trace_free(&trace);
        return -1;
    }
    *trace_out = trace;
    return 0;
}

int cli_trace_load(const char *path, struct cli_trace *trace_out)
{
    char error[256] = "";
    uint8_t *bytes;
    size_t length;
    int rc = cli_file_read(path, TRACE_BYTES_MAX, &bytes, &length);
    if (rc != CLI_OK)
        return rc;
    rc = cli_trace_parse(bytes, length, trace_out, error, sizeof(error));
    free(bytes);
    return rc == 0 ? CLI_OK : cli_error(CLI_USAGE, "%s: %s", path, error);
}

void cli_trace_free(struct cli_trace *trace)
{
    free(trace->expert);
    free(trace->weight);
    memset(trace, 0, sizeof(*trace));
}
