/* SPDX-License-Identifier: Apache-2.0 */
/* test_create.c - creating and closing a group with a buffer leaves nothing behind. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "afd/afd.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ROUNDS 60
#define SANITIZED 1
#else
#define ROUNDS 1000
#define SANITIZED 0
#endif

enum { RANKS = 4 };
static const uint8_t roles[RANKS] = {AFD_ROLE_FFN, AFD_ROLE_FFN, AFD_ROLE_ATTENTION,
                                     AFD_ROLE_ATTENTION};

static unsigned count_entries(const char *folder)
{
    DIR *dir = opendir(folder);
    unsigned count = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

static unsigned count_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    unsigned lines = 0;
    assert_non_null(file);
    for (int c = fgetc(file); c != EOF; c = fgetc(file))
        lines += c == '\n';
    fclose(file);
    return lines;
}

struct opener {
    struct afd_hub *hub;
    uint32_t rank;
    int rc;
};

static void *create_and_close(void *arg)
{
    struct opener *o = arg;
    struct afd_group_config g;
    struct afd_buffer_config c;
    struct afd_group *group = NULL;
    struct afd_buffer *buffer = NULL;
    afd_group_config_init(&g);
    g.rank = o->rank;
    g.world = RANKS;
    g.roles = roles;
    g.bootstrap = AFD_BOOTSTRAP_HUB;
    g.hub = o->hub;
    afd_buffer_config_init(&c);
    c.capacity = 128;
    c.hidden = 2048;
    c.experts = 128;
    o->rc = afd_group_create(&g, &group);
    if (o->rc == 0)
        o->rc = afd_buffer_create(group, &c, &buffer);
    o->rc |= afd_buffer_close(buffer);
    o->rc |= afd_group_destroy(group);
    return NULL;
}

static double round_ms(void)
{
    struct opener opener[RANKS];
    pthread_t thread[RANKS];
    struct timespec begin;
    struct timespec end;
    struct afd_hub *hub;
    assert_int_equal(afd_hub_create(RANKS, &hub), 0);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct opener one = {hub, r, -1};
        opener[r] = one;
        assert_int_equal(pthread_create(&thread[r], NULL, create_and_close, &opener[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(opener[r].rc, 0);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    afd_hub_destroy(hub);
    return (double)(end.tv_sec - begin.tv_sec) * 1e3 + (double)(end.tv_nsec - begin.tv_nsec) * 1e-6;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static void a_thousand_groups_leave_no_memory_descriptor_or_mapping(void **state)
{
    static double ms[ROUNDS];
    unsigned descriptors;
    unsigned mappings;
    size_t in_use;
    (void)state;
    for (int i = 0; i < 20; i++)
        (void)round_ms();
    descriptors = count_entries("/proc/self/fd");
    mappings = count_lines("/proc/self/maps");
    in_use = mallinfo2().uordblks;
    for (int i = 0; i < ROUNDS; i++)
        ms[i] = round_ms();
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    if (!SANITIZED) {
        assert_in_range(count_lines("/proc/self/maps"), 0, mappings + 8);
        assert_in_range(mallinfo2().uordblks, 0, in_use + 65536);
    }
    qsort(ms, ROUNDS, sizeof(ms[0]), compare);
    printf(
        "report: create + close of 2A2F with one buffer: median %.2f ms, slowest %.2f ms of %d\n",
        ms[ROUNDS / 2], ms[ROUNDS - 1], ROUNDS);
}

static void windows_have_no_name(void **state)
{
    unsigned before = count_entries("/dev/shm");
    (void)state;
    (void)round_ms();
    assert_int_equal(count_entries("/dev/shm"), before);
}

static void closing_nothing_is_legal(void **state)
{
    (void)state;
    assert_int_equal(afd_buffer_close(NULL), 0);
    assert_int_equal(afd_group_destroy(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_groups_leave_no_memory_descriptor_or_mapping),
        cmocka_unit_test(windows_have_no_name),
        cmocka_unit_test(closing_nothing_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
