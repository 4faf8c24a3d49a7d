/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - what the files of the command share: options, the job they describe, small helpers.
 *
 * Exit codes: 0 the job did what it was asked and every check held, 1 a check failed, 2 bad usage,
 * 3 a rank or the machine failed. Messages go to stderr; with --json stdout has one object.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stddef.h>
#include <stdint.h>

#include "afd/afd.h"

#define CLI_OK 0
#define CLI_CHECK 1
#define CLI_USAGE 2
#define CLI_FAILED 3

#define CLI_WORLD_MAX 1024u
#define CLI_SWITCHES_MAX 32u
#define CLI_SIZES_MAX 64u
#define CLI_NOT_GIVEN (-2147483647 - 1) /* a number that was not on the command line */

/* "afd: " and the sentence, to stderr; returns `code`. */
int cli_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -------------------------------------------------------------------------------------- options */

/* As given on the command line; NULL and CLI_NOT_GIVEN mean not given. */
struct cli_options {
    char *layout;
    char *roles;
    char *protocol;
    char *backend;
    char *ranks;
    char *fabric;
    char *provider;
    char *payload;
    char *reply;
    char *receive;
    char *tokens;
    char *deadline;
    char *trace;
    char *routing;
    char *ids;
    char *placement;
    char *rendezvous;
    char *key;
    char *arms; /* bench */
    char *switches[CLI_SWITCHES_MAX];
    uint32_t switch_count;
    int hidden;
    int experts;
    int topk;
    int exchanges;
    int stages;
    int blocks;
    int capacity;
    int channels;
    int align;
    int rank;
    int world;
    int fp8_min_tokens;
    int seed;
    int repeats; /* bench */
    int weights;
    int bias;
    int view;
    int json;
    int explain;
    int mostly_timed; /* set by `bench`: fewer exchanges at large T, one with distinct experts */
};

/* Parses argv of a verb, whose argv[0] it changes. CLI_OK, or CLI_USAGE after its message and
 * with nothing to be freed; --help ends the process. */
int cli_options_parse(const char *verb, int argc, const char **argv, struct cli_options *options);
void cli_options_free(struct cli_options *options);

/* --------------------------------------------------------------------------------------- pieces */

/* A layout: who is what. FFN ranks first, then Attention ranks, unless roles are given in order. */
struct cli_layout {
    char name[64];
    uint32_t world;
    uint32_t sources;
    uint32_t ffn_ranks;
    uint32_t per_domain; /* 0: one domain */
    uint8_t roles[CLI_WORLD_MAX];
    uint32_t domains[CLI_WORLD_MAX];
    uint32_t index[CLI_WORLD_MAX]; /* s or f of each rank */
};
int cli_layout_parse(const char *text, struct cli_layout *layout_out);
int cli_layout_from_roles(const char *text, struct cli_layout *layout_out);

/* "1,8,32" or "1..64" (the powers of two between, up and down) into at most CLI_SIZES_MAX sizes. */
int cli_tokens_parse(const char *text, uint32_t *sizes_out, uint32_t *count_out);
/* The whole text as a decimal number 0 .. most, digits only. 0, or -1 and nothing written. */
int cli_number_parse(const char *text, uint64_t most, uint64_t *value_out);
/* "3s", "500ms", "250us", "2m" into microseconds, 1 ms .. 1 h as the library demands. */
int cli_duration_parse(const char *text, uint64_t *us_out);
/* Whitespace-separated FFN indices, '#' starts a comment; exactly `experts` of them, all below
 * `ffn_ranks`. On failure `error` has the sentence. */
int cli_placement_parse(const char *text, size_t length, uint32_t experts, uint32_t ffn_ranks,
                        uint32_t *placement_out, char *error, size_t error_bytes);
/* A whole file, at most `most` bytes; free(*bytes_out). */
int cli_file_read(const char *path, size_t most, uint8_t **bytes_out, size_t *length_out);

/* Shows `done` of `all` on a terminal, at most ten times a second; nothing elsewhere. */
void cli_progress(const char *what, uint64_t done, uint64_t all);
void cli_progress_end(void);

/* q-quantile (0 .. 1) of n values, which are sorted in place: the smallest value that at least q n
 * values do not exceed. 0 for n = 0. */
double cli_quantile(double *values, uint64_t n, double q);

int cli_run_main(int argc, const char **argv);
int cli_info_main(int argc, const char **argv);
int cli_memory_main(int argc, const char **argv);
int cli_bench_main(int argc, const char **argv);

#endif
