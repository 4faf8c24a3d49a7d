/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_processes.c - ranks as processes: every layout and order of roles is right in every bit,
 * windows have no name and outlive nobody, and a process may be in two groups.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fabric/shm.h"
#include "life.h"
#include "processes.h"

#define TIMEOUT_MS 60000u

/* What a rank says at its end; the array is the shared memory. */
struct report {
    struct life_outcome outcome;
    uint32_t descriptors; /* more than before */
    uint32_t windows;     /* mappings left */
    uint32_t exchanges;   /* atomic; so far */
    uint64_t inode[PROCESSES_MAX];
};

static struct processes p;

static struct {
    const char *roles;
    uint32_t exchanges;
    uint32_t tokens[JOB_RANKS_MAX];
    uint32_t late_ms; /* rank r starts r * 7 % world times this late */
    uint32_t mixed;   /* every rank has blocks and variants of its own */
} plan;

static void begin(const char *roles, uint32_t exchanges)
{
    memset(&plan, 0, sizeof(plan));
    plan.roles = roles;
    plan.exchanges = exchanges;
    for (uint32_t s = 0; s < JOB_RANKS_MAX; s++)
        plan.tokens[s] = s * 5 % 9; /* 0, 5, 1, 6, 2, 7, 3, 8 */
}

static void make_job(struct job *job)
{
    struct afd_buffer_config c;
    afd_buffer_config_init(&c);
    c.capacity = 8;
    c.hidden = 72;
    c.experts = 13;
    c.topk = 5;
    c.words_tokens = 8;
    c.payload = AFD_PAYLOAD_FP8;
    job_init(job, plan.roles, &c);
    job->options.with_weights = JOB_WEIGHTS_ALL;
    job->group_config.bootstrap_timeout_us = 20000000;
    for (uint32_t r = 0; plan.mixed && r < job->world; r++) {
        job->config[r].blocks = 1 + r % 3;
        job->config[r].variant = AFD_VARIANT_WORDS + r % 2;
        job->config[r].reply_variant = AFD_VARIANT_WORDS + r / 2 % 2;
        job->config[r].weighted_reply = r % 2;
    }
}

static int count_exchange(struct life *life, uint32_t phase, uint32_t n)
{
    struct report *reports = p.shared;
    if (phase == AFD_PHASE_DISPATCH || phase == AFD_PHASE_RECEIVE)
        __atomic_store_n(&reports[life->rank].exchanges, n - 1, __ATOMIC_RELAXED);
    return 0;
}

/* Inodes of the windows that are mapped here. */
static void list_inodes(uint64_t *inode)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint32_t count = 0;
    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL)
        if (strstr(line, "/memfd:afd-window") != NULL && count < PROCESSES_MAX)
            (void)sscanf(line, "%*s %*s %*s %*s %lu", &inode[count++]);
    if (maps != NULL)
        fclose(maps);
}

static int live(struct processes_self *self)
{
    static struct job job;
    static struct life life;
    struct report *report = &((struct report *)self->shared)[self->rank];
    uint32_t descriptors = processes_descriptors() - (self->listen_fd >= 0);
    p.shared = self->shared;
    processes_sleep_us(plan.late_ms * 1000ull * (self->rank * 7 % self->world));
    make_job(&job);
    life.job = &job;
    life.rank = self->rank;
    life.exchanges = plan.exchanges;
    life.tokens = plan.tokens;
    life.hook = count_exchange;
    if (processes_open(self, &job) != 0) {
        snprintf(report->outcome.wrong, sizeof(report->outcome.wrong), "%.250s", afd_last_error());
        return 2;
    }
    list_inodes(report->inode);
    life_run(&life);
    job_close(&job);
    report->outcome = life.outcome;
    report->descriptors = processes_descriptors() - descriptors;
    report->windows = processes_windows();
    return 0;
}

static void check_rank(uint32_t r)
{
    const struct report *report = &((const struct report *)p.shared)[r];
    if (!processes_returned(&p, r, 0))
        fail_msg("%s: rank %u ended with status 0x%x: %s", plan.roles, r, (unsigned)p.status[r],
                 report->outcome.wrong);
    if (report->outcome.wrong[0] != '\0')
        fail_msg("%s: rank %u: %s", plan.roles, r, report->outcome.wrong);
    assert_int_equal(report->descriptors, 0);
    assert_int_equal(report->windows, 0);
}

static void run(void)
{
    uint32_t world = (uint32_t)strlen(plan.roles);
    processes_start(&p, world, world * sizeof(struct report), live);
    assert_int_equal(processes_wait(&p, TIMEOUT_MS), 0);
    for (uint32_t r = 0; r < world; r++) {
        const struct report *report = &((const struct report *)p.shared)[r];
        check_rank(r);
        if (report->outcome.rc != 0)
            fail_msg("%s: rank %u: %s", plan.roles, r, report->outcome.sentence);
        assert_int_equal(report->outcome.exchanges, plan.exchanges);
    }
    processes_end(&p);
}

/* ----------------------------------------------------------------------------------------- jobs */

static void every_layout_and_order_of_roles_is_right_in_every_bit(void **state)
{
    static const char *const layouts[] = {"AF",       "FA",       "AFFF",     "FAAA",
                                          "AAFF",     "FAFA",     "AAAAAFFF", "FAAFAAFA",
                                          "AFFAFAAA", "AAAAFFFF", "FAFAFAFA"};
    (void)state;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        begin(layouts[i], 20);
        plan.mixed = i % 2;
        run();
    }
}

static void ranks_may_start_late(void **state)
{
    (void)state;
    begin("AFFAF", 5);
    plan.late_ms = 60; /* rank 3, then 1, 4, 2 are late: 0 s to 0.24 s */
    run();
    begin("FAAFA", 5);
    plan.late_ms = 60;
    plan.mixed = 1;
    run();
}

/* ---------------------------------------------------------------------------------- two groups */

static struct {
    int listen_fd;
    char rendezvous[PROCESSES_RENDEZVOUS];
} second;

/* What this rank is as an FFN rank of one group and as a source of the other, in an order in which
 * nobody waits for ever. */
static int exchange_both(struct job *source, uint32_t s, struct job *ffn, uint32_t f, uint64_t n)
{
    struct job_truth *truth = job_truth_get(source, n, plan.tokens);
    int rc = job_dispatch(source, s, 0, &truth->input[s]);
    job_truth_put(source, truth);
    rc = rc != 0 ? rc : job_ffn(ffn, f, 0, n, plan.tokens);
    return rc != 0 ? rc : job_collect(source, s, 0, n, plan.tokens);
}

/* Ranks 0 and 1 are sources of the first group and FFN ranks of the second, in which rank r of the
 * first is rank 3 - r. */
static int live_in_two_groups(struct processes_self *self)
{
    static struct job job[2];
    struct processes_self other = *self;
    uint32_t which = self->rank < 2 ? 0 : 1; /* in which group this rank is a source */
    uint32_t f = which == 0 ? 1 - self->rank : self->rank - 2;
    uint32_t s = which == 0 ? self->rank : 3 - self->rank;
    int rc;
    other.rank = 3 - self->rank;
    other.listen_fd = other.rank == 0 ? second.listen_fd : -1;
    memcpy(other.rendezvous, second.rendezvous, sizeof(other.rendezvous));
    if (other.rank != 0)
        close(second.listen_fd);
    make_job(&job[0]);
    make_job(&job[1]);
    job[1].seed = 2;
    if (processes_open(self, &job[0]) != 0 || processes_open(&other, &job[1]) != 0)
        return 2;
    for (uint64_t n = 1; n <= plan.exchanges; n++) {
        rc = exchange_both(&job[which], s, &job[1 - which], f, n);
        if (rc != 0 || job[0].mismatches + job[1].mismatches != 0)
            return 3;
        if (n == plan.exchanges / 2 && self->rank == 3 &&
            afd_buffer_set_blocks(job[0].buffer[3], 4))
            return 4;
    }
    job_close(&job[0]);
    job_close(&job[1]);
    return processes_windows() == 0 ? 0 : 5;
}

static void a_process_may_be_a_source_of_one_group_and_an_ffn_rank_of_another(void **state)
{
    (void)state;
    begin("AAFF", 40);
    second.listen_fd = processes_listen(second.rendezvous);
    processes_start(&p, 4, 1, live_in_two_groups);
    close(second.listen_fd);
    assert_int_equal(processes_wait(&p, TIMEOUT_MS), 0);
    for (uint32_t r = 0; r < 4; r++)
        if (!processes_returned(&p, r, 0))
            fail_msg("rank %u ended with status 0x%x", r, (unsigned)p.status[r]);
    processes_end(&p);
}

/* -------------------------------------------------------------------------------------- windows */

static void a_window_is_a_sealed_file_without_a_name_of_mode_0600(void **state)
{
    struct afd_window_ticket ticket;
    struct afd_window window;
    struct afd_window again;
    struct stat info;
    (void)state;
    umask(0);
    assert_int_equal(afd_window_create(12345, &window, &ticket), 0);
    assert_int_equal(fstat(ticket.fd, &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_nlink, 0);
    assert_int_equal(info.st_size, 12345);
    assert_int_equal(fcntl(ticket.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_not_equal(ftruncate(ticket.fd, 1), 0); /* a peer would die of SIGBUS */
    assert_int_not_equal(ftruncate(ticket.fd, 99999), 0);
    assert_int_equal(afd_window_open(&ticket, 3, &again), 0);
    assert_ptr_equal(again.base, window.base);
    afd_window_publish_end(&ticket);
    assert_int_equal(fcntl(ticket.fd, F_GETFD), -1);
    afd_window_close(&window);
    assert_int_equal(processes_windows(), 1);
    ((volatile uint8_t *)again.base)[12344] = 1; /* one user is left */
    afd_window_close(&again);
    assert_int_equal(processes_windows(), 0);
}

static void a_window_that_is_not_the_announced_one_is_refused(void **state)
{
    struct afd_window_ticket ticket;
    struct afd_window window;
    struct afd_window other;
    (void)state;
    assert_int_equal(afd_window_create(4096, &window, &ticket), 0);
    ticket.nonce++; /* as if it came from another process */
    ticket.bytes = 8192;
    assert_int_equal(afd_window_open(&ticket, 7, &other), AFD_EPEER);
    assert_non_null(strstr(afd_last_error(), "rank 7"));
    assert_non_null(strstr(afd_last_error(), "8192"));
    ticket.bytes = 4096;
    ticket.fd = 1000000;
    assert_int_equal(afd_window_open(&ticket, 7, &other), AFD_EPEER);
    ticket.pid_namespace++;
    assert_int_equal(afd_window_open(&ticket, 7, &other), AFD_EUNSUPPORTED);
    ticket.nonce--;
    afd_window_close(&window);
    assert_int_equal(processes_windows(), 0);
}

/* ---------------------------------------------------------------------------------------- kills */

static uint32_t count_shared_memory_names(void)
{
    DIR *dir = opendir("/dev/shm");
    uint32_t count = 0;
    if (dir == NULL)
        return 0;
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        count += strstr(entry->d_name, "afd") != NULL;
    closedir(dir);
    return count;
}

/* 1 if a line of this file has the inode as a word of its own and a window's name. */
static int file_has_inode(const char *path, uint64_t inode)
{
    FILE *file = fopen(path, "r");
    char line[512];
    char word[32];
    int found = 0;
    snprintf(word, sizeof(word), " %lu ", inode);
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        found |= strstr(line, "/memfd:afd-window") != NULL && strstr(line, word) != NULL;
    if (file != NULL)
        fclose(file);
    return found;
}

/* How many of this machine's processes have the window mapped. */
static uint32_t users_of_window(uint64_t inode)
{
    DIR *dir = opendir("/proc");
    uint32_t users = 0;
    char path[300];
    assert_non_null(dir);
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        snprintf(path, sizeof(path), "/proc/%s/maps", entry->d_name);
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9')
            users += (uint32_t)file_has_inode(path, inode);
    }
    closedir(dir);
    return users;
}

/* Until every rank that is alive has made some exchanges. */
static void wait_for_work(uint32_t world)
{
    struct report *reports = p.shared;
    for (uint32_t r = 0; r < world; r++)
        for (uint32_t ms = 0; __atomic_load_n(&reports[r].exchanges, __ATOMIC_RELAXED) < 3; ms++) {
            assert_in_range(ms, 0, TIMEOUT_MS);
            processes_sleep_us(1000);
        }
}

static void nothing_is_left_of_ranks_that_are_all_killed(void **state)
{
    uint32_t names = count_shared_memory_names();
    uint32_t descriptors = processes_descriptors();
    const struct report *reports;
    (void)state;
    begin("AFFA", 1000000);
    processes_start(&p, 4, 4 * sizeof(struct report), live);
    wait_for_work(4);
    reports = p.shared;
    assert_int_equal(count_shared_memory_names(), names);
    for (uint32_t w = 0; w < 4; w++) {
        assert_int_not_equal(reports[0].inode[w], 0);
        assert_int_equal(users_of_window(reports[0].inode[w]), 4); /* all ranks, and nobody else */
    }
    for (uint32_t r = 0; r < 4; r++)
        processes_kill(&p, r);
    assert_int_equal(processes_wait(&p, TIMEOUT_MS), 0);
    for (uint32_t r = 0; r < 4; r++)
        assert_true(WIFSIGNALED(p.status[r]));
    for (uint32_t w = 0; w < 4; w++)
        assert_int_equal(users_of_window(reports[0].inode[w]), 0);
    processes_end(&p);
    assert_int_equal(count_shared_memory_names(), names);
    assert_int_equal(processes_descriptors(), descriptors);
}

static void survivors_of_a_kill_keep_no_descriptor_and_no_window(void **state)
{
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++) {
        begin("FAAF", 1000000);
        plan.mixed = 1;
        processes_start(&p, 4, 4 * sizeof(struct report), live);
        wait_for_work(4);
        processes_kill(&p, victim);
        assert_int_equal(processes_wait(&p, TIMEOUT_MS), 0);
        for (uint32_t r = 0; r < 4; r++) {
            const struct report *report = &((const struct report *)p.shared)[r];
            if (r == victim)
                continue;
            check_rank(r);
            assert_int_equal(report->outcome.rc, AFD_EPEER);
            assert_int_equal(report->outcome.fault.rank, victim);
        }
        processes_end(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_and_order_of_roles_is_right_in_every_bit),
        cmocka_unit_test(ranks_may_start_late),
        cmocka_unit_test(a_process_may_be_a_source_of_one_group_and_an_ffn_rank_of_another),
        cmocka_unit_test(a_window_is_a_sealed_file_without_a_name_of_mode_0600),
        cmocka_unit_test(a_window_that_is_not_the_announced_one_is_refused),
        cmocka_unit_test(nothing_is_left_of_ranks_that_are_all_killed),
        cmocka_unit_test(survivors_of_a_kill_keep_no_descriptor_and_no_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
