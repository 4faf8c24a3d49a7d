/* SPDX-License-Identifier: Apache-2.0 */
/* misc.c - messages, progress and quantiles of the command. */

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

int cli_error(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("afd: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

/* ------------------------------------------------------------------------------------- progress */

#define BAR 30u
#define SHOW_AFTER_MS 2000u
#define SHOW_EVERY_MS 100u

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static uint64_t begun_ms;
static uint64_t shown_ms;

void cli_progress(const char *what, uint64_t done, uint64_t all)
{
    uint64_t now = now_ms();
    uint64_t filled = all == 0 ? 0 : done * BAR / all;
    if (begun_ms == 0)
        begun_ms = now;
    if (!isatty(STDERR_FILENO) || now - begun_ms < SHOW_AFTER_MS || now - shown_ms < SHOW_EVERY_MS)
        return;
    shown_ms = now;
    fprintf(stderr, "\r%s [", what);
    for (uint64_t i = 0; i < BAR; i++)
        fputc(i < filled ? '#' : '.', stderr);
    fprintf(stderr, "] %llu of %llu", (unsigned long long)done, (unsigned long long)all);
    fflush(stderr);
}

void cli_progress_end(void)
{
    if (shown_ms != 0)
        fputs("\r\033[K", stderr);
    begun_ms = shown_ms = 0;
}

/* ------------------------------------------------------------------------------------ quantiles */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double cli_quantile(double *values, uint64_t n, double q)
{
    uint64_t rank = (uint64_t)ceil(q * (double)n);
    if (n == 0)
        return 0;
    qsort(values, n, sizeof(*values), compare);
    return values[rank == 0 ? 0 : rank - 1];
}
