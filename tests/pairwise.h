/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pairwise.h - a table of rows in which every pair of levels of any two factors occurs.
 *
 * Greedy and deterministic. Rules that forbid combinations are one function of a row. A pair is
 * legal if the row with this pair and level 0 everywhere else is: so level 0 of a factor must be
 * the one that goes with most. Every row of the table is legal, and every legal pair is in it.
 */
#ifndef TESTS_PAIRWISE_H
#define TESTS_PAIRWISE_H

#include <stdint.h>

#define PAIRWISE_FACTORS_MAX 24u
#define PAIRWISE_LEVELS_MAX 12u

struct pairwise_row {
    uint8_t level[PAIRWISE_FACTORS_MAX];
};

struct pairwise {
    uint32_t factors;                      /* 2 .. 24 */
    uint32_t levels[PAIRWISE_FACTORS_MAX]; /* 1 .. 12 of each factor */
    /* 1 if the row is legal; NULL: every row is. The row of zeros must be. */
    int (*legal)(const struct pairwise_row *row);
    uint64_t seed;
};

struct pairwise_counts {
    uint32_t rows;
    uint32_t pairs;   /* all pairs of levels of two factors */
    uint32_t illegal; /* of them, forbidden by rule */
};

/* Fills rows_out; returns 0, or -1 if there is room for too few rows. */
int pairwise_make(const struct pairwise *p, struct pairwise_row *rows_out, uint32_t rows_max,
                  struct pairwise_counts *counts_out);

#endif
