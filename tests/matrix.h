/* SPDX-License-Identifier: Apache-2.0 */
/*
 * matrix.h - the options of a job as factors of a pairwise table, and a job made of one of its
 * rows.
 */
#ifndef TESTS_MATRIX_H
#define TESTS_MATRIX_H

#include "job.h"
#include "pairwise.h"

#define MATRIX_ROWS_MAX 250u

struct matrix {
    struct pairwise_row row[MATRIX_ROWS_MAX];
    struct pairwise_counts counts;
    uint32_t factors;
};

/* Another seed makes another table. 0, or -1 if it does not fit. */
int matrix_make(uint64_t seed, struct matrix *matrix_out);
/* The row's settings as one line of text. */
void matrix_describe(const struct pairwise_row *row, char *text, size_t size);

/* A row, ready to run. */
struct matrix_case {
    struct job job;
    uint32_t *placement; /* freed by matrix_case_end() */
    const struct pairwise_row *row;
    uint32_t waves; /* each has one exchange in flight on every stage */
};
void matrix_case_begin(const struct pairwise_row *row, uint64_t seed, struct matrix_case *case_out);
/* Changes what the row says is changed between exchanges, then runs a wave. 0, or the code. */
int matrix_case_wave(struct matrix_case *matrix_case, uint32_t wave);
void matrix_case_end(struct matrix_case *matrix_case);

#endif
