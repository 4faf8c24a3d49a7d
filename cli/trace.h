/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - real routing traces, format RTR1, little-endian:
 *
 *     char magic[4] "RTR1"; u32 tokens, topk, experts, layer, sequences; u32 length[sequences];
 *     u8 expert[tokens * topk]; f32 weight[tokens * topk]
 */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct cli_trace {
    uint32_t tokens;
    uint32_t topk;
    uint32_t experts;
    uint32_t layer;
    uint32_t sequences;
    uint8_t *expert; /* [tokens][topk] */
    float *weight;   /* [tokens][topk] */
};

/* Parses a whole file. Every size is checked against `length` before it is used. Returns 0, or -1
 * with a sentence in `error`. */
int cli_trace_parse(const uint8_t *bytes, size_t length, struct cli_trace *trace_out, char *error,
                    size_t error_bytes);
/* The same from a file; prints its sentence. CLI_OK or CLI_USAGE. */
int cli_trace_load(const char *path, struct cli_trace *trace_out);
void cli_trace_free(struct cli_trace *trace);

#endif
