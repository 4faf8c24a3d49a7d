/* SPDX-License-Identifier: Apache-2.0 */
/* pairwise.c - a table of rows in which every pair of levels of any two factors occurs. */

#include "pairwise.h"

#include <stdlib.h>
#include <string.h>

#define TRIES 12u /* rows made for a pair; the one that covers most is taken */

struct table {
    const struct pairwise *p;
    uint64_t random;
    /* 1: this pair needs no row any more; first factor < second factor */
    uint8_t done[PAIRWISE_FACTORS_MAX][PAIRWISE_LEVELS_MAX][PAIRWISE_FACTORS_MAX]
                [PAIRWISE_LEVELS_MAX];
};

/* A row while it is made: what is not set yet is at level 0. */
struct draft {
    struct pairwise_row row;
    uint8_t set[PAIRWISE_FACTORS_MAX];
};

static uint32_t random_below(struct table *table, uint32_t end)
{
    table->random = table->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((table->random >> 33) % end);
}

static int is_legal(const struct table *table, const struct pairwise_row *row)
{
    return table->p->legal == NULL || table->p->legal(row);
}

static uint8_t *done_of(struct table *table, uint32_t a, uint32_t level_a, uint32_t b,
                        uint32_t level_b)
{
    return a < b ? &table->done[a][level_a][b][level_b] : &table->done[b][level_b][a][level_a];
}

/* New pairs of factor `a` at `level` with what the draft has set. */
static uint32_t gain(struct table *table, const struct draft *draft, uint32_t a, uint32_t level)
{
    uint32_t count = 0;
    for (uint32_t b = 0; b < table->p->factors; b++)
        if (b != a && draft->set[b])
            count += !*done_of(table, a, level, b, draft->row.level[b]);
    return count;
}

/* The legal level of factor `a` that covers most; level 0 keeps a legal draft legal. Returns the
 * number of new pairs. */
static uint32_t set_best(struct table *table, struct draft *draft, uint32_t a)
{
    uint32_t levels = table->p->levels[a];
    uint32_t first = random_below(table, levels);
    uint8_t best = 0;
    uint32_t best_gain = gain(table, draft, a, 0);
    for (uint32_t i = 0; i < levels; i++) {
        uint8_t level = (uint8_t)((first + i) % levels);
        uint32_t level_gain = gain(table, draft, a, level);
        draft->row.level[a] = level;
        if (level_gain <= best_gain || !is_legal(table, &draft->row))
            continue;
        best = level;
        best_gain = level_gain;
    }
    draft->row.level[a] = best;
    draft->set[a] = 1;
    return best_gain;
}

/* Completes the draft, factors in random order; returns the number of new pairs. */
static uint32_t complete(struct table *table, struct draft *draft)
{
    uint32_t factors = table->p->factors;
    uint32_t order[PAIRWISE_FACTORS_MAX] = {0};
    uint32_t total = 0;
    for (uint32_t i = 0; i < factors; i++) {
        uint32_t j = random_below(table, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (uint32_t i = 0; i < factors; i++)
        if (!draft->set[order[i]])
            total += set_best(table, draft, order[i]);
    return total;
}

static void mark(struct table *table, const struct pairwise_row *row)
{
    for (uint32_t a = 0; a < table->p->factors; a++)
        for (uint32_t b = a + 1; b < table->p->factors; b++)
            *done_of(table, a, row->level[a], b, row->level[b]) = 1;
}

static struct pairwise_row best_row(struct table *table, const struct draft *seed)
{
    struct draft best = *seed;
    uint32_t best_gain = complete(table, &best);
    for (uint32_t i = 1; i < TRIES; i++) {
        struct draft draft = *seed;
        uint32_t draft_gain = complete(table, &draft);
        if (draft_gain <= best_gain)
            continue;
        best = draft;
        best_gain = draft_gain;
    }
    return best.row;
}

/* One pair: nothing, a row of the table, or counted as illegal. -1: no room. */
static int cover(struct table *table, const struct draft *seed, struct pairwise_row *rows,
                 uint32_t rows_max, struct pairwise_counts *counts)
{
    struct pairwise_row row;
    if (!is_legal(table, &seed->row)) {
        counts->illegal++;
        return 0;
    }
    if (counts->rows == rows_max)
        return -1;
    row = best_row(table, seed);
    mark(table, &row);
    rows[counts->rows++] = row;
    return 0;
}

/* All pairs of levels of factors a and b. */
static int cover_factors(struct table *table, uint32_t a, uint32_t b, struct pairwise_row *rows,
                         uint32_t rows_max, struct pairwise_counts *counts)
{
    for (uint32_t i = 0; i < table->p->levels[a]; i++) {
        for (uint32_t j = 0; j < table->p->levels[b]; j++) {
            struct draft seed;
            memset(&seed, 0, sizeof(seed));
            seed.row.level[a] = (uint8_t)i;
            seed.row.level[b] = (uint8_t)j;
            seed.set[a] = seed.set[b] = 1;
            counts->pairs++;
            if (!*done_of(table, a, i, b, j) && cover(table, &seed, rows, rows_max, counts) != 0)
                return -1;
        }
    }
    return 0;
}

int pairwise_make(const struct pairwise *p, struct pairwise_row *rows_out, uint32_t rows_max,
                  struct pairwise_counts *counts_out)
{
    struct table *table = calloc(1, sizeof(*table));
    struct pairwise_counts counts = {0, 0, 0};
    int rc = table == NULL ? -1 : 0;
    if (table != NULL) {
        table->p = p;
        table->random = p->seed;
    }
    for (uint32_t a = 0; rc == 0 && a < p->factors; a++)
        for (uint32_t b = a + 1; rc == 0 && b < p->factors; b++)
            rc = cover_factors(table, a, b, rows_out, rows_max, &counts);
    free(table);
    if (rc == 0)
        *counts_out = counts;
    return rc;
}
