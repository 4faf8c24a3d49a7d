/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_exchange.c - the same exchange written with MPI_Alltoallv, as a user without libafd would:
 * the arm `mpi` of `make bench`. Rank 0 .. F-1 hold experts, the others are sources.
 *
 *     mpirun -n 2 mpi_exchange FFN_RANKS HIDDEN EXPERTS TOPK EXCHANGES T [T ...]
 *
 * Per exchange: row counts by MPI_Alltoall, rows (with their ids) by MPI_Alltoallv, expansion by
 * expert, identity experts, a sum per token, and the sums back by MPI_Alltoallv. Prints one JSON
 * array of {"tokens", "p50_us"}: the median over exchanges of the slowest source's round trip.
 * Checks the last exchange of every size; exit code 1 if a value is wrong.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    int rank, world, ffn_ranks, hidden, experts, topk;
    int tokens;    /* T of a source */
    uint16_t *x;   /* [T][hidden] */
    int32_t *ids;  /* [T][topk] */
    uint8_t *send; /* packed rows */
    uint8_t *receive;
    int *send_count, *send_at, *receive_count, *receive_at; /* bytes, per rank */
    uint16_t *batch;                                        /* expanded rows */
    uint16_t *out;                                          /* [T][hidden] */
    float *sum;
};

static void *need(size_t bytes)
{
    void *p = calloc(1, bytes + 64);
    if (p == NULL)
        MPI_Abort(MPI_COMM_WORLD, 3);
    return p;
}

static float value_of(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

static uint16_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static int owner(const struct job *j, int expert)
{
    return expert / ((j->experts + j->ffn_ranks - 1) / j->ffn_ranks);
}

static size_t row_bytes(const struct job *j)
{
    return (size_t)j->hidden * 2 + ((size_t)j->topk + 1) * 4;
}

/* A row as it travels: the token's number, its ids, its elements. */
static size_t pack_rows(struct job *j)
{
    size_t used = 0;
    for (int r = 0; r < j->world; r++) {
        size_t begin = used;
        for (int t = 0; r < j->ffn_ranks && t < j->tokens; t++) {
            const int32_t *ids = j->ids + (size_t)t * (size_t)j->topk;
            int hit = 0;
            for (int k = 0; k < j->topk; k++)
                hit |= owner(j, ids[k]) == r;
            if (!hit)
                continue;
            memcpy(j->send + used, &t, 4);
            memcpy(j->send + used + 4, ids, (size_t)j->topk * 4);
            memcpy(j->send + used + 4 + (size_t)j->topk * 4, j->x + (size_t)t * (size_t)j->hidden,
                   (size_t)j->hidden * 2);
            used += row_bytes(j);
        }
        j->send_at[r] = (int)begin;
        j->send_count[r] = (int)(used - begin);
    }
    return used;
}

static void exchange_rows(struct job *j)
{
    int at = 0;
    MPI_Alltoall(j->send_count, 1, MPI_INT, j->receive_count, 1, MPI_INT, MPI_COMM_WORLD);
    for (int r = 0; r < j->world; r++) {
        j->receive_at[r] = at;
        at += j->receive_count[r];
    }
    MPI_Alltoallv(j->send, j->send_count, j->send_at, MPI_BYTE, j->receive, j->receive_count,
                  j->receive_at, MPI_BYTE, MPI_COMM_WORLD);
}

/* Expansion by expert, identity experts, and one sum per received row, in place of the answer. */
static void serve(struct job *j)
{
    size_t hidden = (size_t)j->hidden;
    int rows = (j->receive_at[j->world - 1] + j->receive_count[j->world - 1]) / (int)row_bytes(j);
    int *next = need((size_t)j->experts * sizeof(*next));
    int *place = need((size_t)rows * (size_t)j->topk * sizeof(*place));
    int begin = 0;
    for (int i = 0; i < rows; i++) {
        const int32_t *row = (const int32_t *)(const void *)(j->receive + (size_t)i * row_bytes(j));
        for (int k = 0; k < j->topk; k++)
            next[row[1 + k]] += owner(j, row[1 + k]) == j->rank;
    }
    for (int e = 0; e < j->experts; e++) {
        int count = next[e];
        next[e] = begin;
        begin += count;
    }
    for (int i = 0; i < rows; i++) {
        const int32_t *row = (const int32_t *)(const void *)(j->receive + (size_t)i * row_bytes(j));
        for (int k = 0; k < j->topk; k++) {
            int mine = owner(j, row[1 + k]) == j->rank;
            place[i * j->topk + k] = mine ? next[row[1 + k]]++ : -1;
            if (mine)
                memcpy(j->batch + (size_t)place[i * j->topk + k] * hidden, row + 1 + j->topk,
                       hidden * 2);
        }
    }
    for (int i = 0; i < rows; i++) {
        uint8_t *row = j->send + (size_t)i * row_bytes(j);
        uint16_t *answer = (uint16_t *)(void *)(row + 4 + (size_t)j->topk * 4);
        memcpy(row, j->receive + (size_t)i * row_bytes(j), 4);
        memset(j->sum, 0, hidden * sizeof(*j->sum));
        for (int k = 0; k < j->topk; k++) {
            const uint16_t *term = j->batch + (size_t)place[i * j->topk + k] * hidden;
            for (size_t h = 0; place[i * j->topk + k] >= 0 && h < hidden; h++)
                j->sum[h] += value_of(term[h]);
        }
        for (size_t h = 0; h < hidden; h++)
            answer[h] = bits_of(j->sum[h]);
    }
    free(place);
    free(next);
}

static void collect(struct job *j)
{
    size_t hidden = (size_t)j->hidden;
    int bytes = j->receive_at[j->world - 1] + j->receive_count[j->world - 1];
    float *sum = need((size_t)j->tokens * hidden * sizeof(*sum));
    for (int i = 0; i < bytes / (int)row_bytes(j); i++) {
        const uint8_t *row = j->receive + (size_t)i * row_bytes(j);
        const uint16_t *part = (const uint16_t *)(const void *)(row + 4 + (size_t)j->topk * 4);
        int32_t t;
        memcpy(&t, row, 4);
        for (size_t h = 0; h < hidden; h++)
            sum[(size_t)t * hidden + h] += value_of(part[h]);
    }
    for (size_t i = 0; i < (size_t)j->tokens * hidden; i++)
        j->out[i] = bits_of(sum[i]);
    free(sum);
}

static double round_trip(struct job *j)
{
    double begin;
    int is_source = j->rank >= j->ffn_ranks;
    memset(j->send_count, 0, (size_t)j->world * sizeof(int));
    memset(j->send_at, 0, (size_t)j->world * sizeof(int));
    begin = MPI_Wtime();
    if (is_source)
        (void)pack_rows(j);
    exchange_rows(j);
    if (!is_source)
        serve(j);
    memcpy(j->send_count, j->receive_count, (size_t)j->world * sizeof(int));
    memcpy(j->send_at, j->receive_at, (size_t)j->world * sizeof(int));
    if (is_source)
        memset(j->send_count, 0, (size_t)j->world * sizeof(int));
    exchange_rows(j);
    if (is_source)
        collect(j);
    return is_source ? (MPI_Wtime() - begin) * 1e6 : 0;
}

static void fill(struct job *j)
{
    for (int t = 0; t < j->tokens; t++) {
        for (int k = 0; k < j->topk; k++)
            j->ids[t * j->topk + k] = (t * 37 + k * (j->experts / j->topk) + t / 3) % j->experts;
        for (int h = 0; h < j->hidden; h++)
            j->x[(size_t)t * (size_t)j->hidden + (size_t)h] =
                bits_of((float)((t * 31 + h * 7 + j->rank) % 15 - 7));
    }
}

static int check(const struct job *j)
{
    int wrong = 0;
    for (size_t i = 0; i < (size_t)j->tokens * (size_t)j->hidden; i++)
        wrong +=
            j->rank >= j->ffn_ranks && value_of(j->out[i]) != value_of(j->x[i]) * (float)j->topk;
    return wrong;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void allocate(struct job *j, int most)
{
    size_t rows = (size_t)most * (size_t)j->world;
    size_t ints = (size_t)j->world * sizeof(int);
    j->x = need((size_t)most * (size_t)j->hidden * 2);
    j->ids = need((size_t)most * (size_t)j->topk * 4);
    j->out = need((size_t)most * (size_t)j->hidden * 2);
    j->send = need(rows * row_bytes(j));
    j->receive = need(rows * row_bytes(j));
    j->batch = need(rows * (size_t)j->topk * (size_t)j->hidden * 2);
    j->sum = need((size_t)j->hidden * sizeof(float));
    j->send_count = need(ints);
    j->send_at = need(ints);
    j->receive_count = need(ints);
    j->receive_at = need(ints);
}

/* One size; returns this rank's number of wrong values. */
static int run_size(struct job *j, int exchanges, int first)
{
    double *us = need((size_t)exchanges * sizeof(*us));
    double *worst = need((size_t)exchanges * sizeof(*worst));
    fill(j);
    for (int i = -3; i < exchanges; i++) {
        double time = round_trip(j);
        if (i >= 0)
            us[i] = time;
    }
    MPI_Reduce(us, worst, exchanges, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    qsort(worst, (size_t)exchanges, sizeof(*worst), compare);
    if (j->rank == 0)
        printf("%s{\"tokens\": %d, \"p50_us\": %.3f}", first ? "" : ", ", j->tokens,
               worst[exchanges / 2]);
    free(worst);
    free(us);
    return check(j);
}

int main(int argc, char **argv)
{
    struct job j;
    int wrong = 0;
    int all = 0;
    int most = 0;
    memset(&j, 0, sizeof(j));
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &j.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &j.world);
    if (argc < 7) {
        fprintf(stderr, "usage: mpi_exchange FFN_RANKS HIDDEN EXPERTS TOPK EXCHANGES T [T ...]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    j.ffn_ranks = atoi(argv[1]);
    j.hidden = atoi(argv[2]);
    j.experts = atoi(argv[3]);
    j.topk = atoi(argv[4]);
    for (int i = 6; i < argc; i++)
        most = atoi(argv[i]) > most ? atoi(argv[i]) : most;
    allocate(&j, most);
    if (j.rank == 0)
        printf("[");
    for (int i = 6; i < argc; i++) {
        int exchanges = atoi(argv[5]) * 8 / (8 + atoi(argv[i]));
        j.tokens = atoi(argv[i]);
        wrong += run_size(&j, exchanges < 20 ? 20 : exchanges, i == 6);
    }
    if (j.rank == 0)
        printf("]\n");
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    return all != 0;
}
