/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bootstrap_tcp.c - ranks over TCP: good jobs, honest mistakes, late and dead ranks.
 */
#include "bootstrap_jobs.h"

#include <signal.h>
#include <sys/wait.h>

/* ------------------------------------------------------------------------------------ good jobs */

static void tcp_gathers_every_size_at_2_3_5_and_8_ranks(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 5, 7, 8};
    struct rank_run runs[RANKS_MAX];
    struct job job;

    (void)state;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        job_init(&job, runs, worlds[i]);
        for (uint32_t rank = 0; rank < worlds[i]; rank++)
            runs[rank].rounds = 6 * SIZE_COUNT;
        ranks_run(runs, worlds[i]);
        assert_all_right(runs, worlds[i]);
    }
}

static void tcp_takes_the_largest_size_and_refuses_one_byte_more(void **state)
{
    struct rank_run runs[2];
    struct job job;

    (void)state;
    for (size_t more = 0; more < 2; more++) {
        job_init(&job, runs, 2);
        for (uint32_t i = 0; i < 2; i++) {
            runs[i].rounds = 1;
            runs[i].extra_bytes = AFD_WIRE_DATA_BYTES_MAX - sizes[0] + more;
        }
        ranks_run(runs, 2);
        if (more == 0)
            assert_all_right(runs, 2);
        else
            for (uint32_t i = 0; i < 2; i++)
                assert_says(&runs[i], AFD_EBOOTSTRAP, "1048577", "at most 1048576", NULL);
    }
}

static void tcp_ranks_may_start_in_any_order(void **state)
{
    struct rank_run runs[3];
    struct job job;

    (void)state;
    for (uint32_t last = 0; last < 3; last++) {
        job_init(&job, runs, 3);
        runs[last].delay_ms = 400;
        runs[(last + 1) % 3].delay_ms = 200;
        if (last == 0) {
            /* Nobody listens while the others already try. */
            close(job.listen_fd);
            runs[0].config.listen_fd = -1;
        }
        ranks_run(runs, 3);
        assert_all_right(runs, 3);
    }
}

static void tcp_runs_twice_back_to_back_on_one_port(void **state)
{
    struct rank_run runs[3];
    struct job job;
    int fd = listen_at(AF_INET, 0);

    (void)state;
    job.port = port_of(fd);
    close(fd);
    snprintf(job.rendezvous, sizeof(job.rendezvous), "localhost:%u", (unsigned)job.port);
    for (uint32_t repeat = 0; repeat < 3; repeat++) {
        ranks_init(runs, 3, AFD_BOOTSTRAP_TCP);
        for (uint32_t i = 0; i < 3; i++) {
            runs[i].config.rendezvous = job.rendezvous;
            runs[i].config.key = "fixed";
        }
        /* Rank 0 closes first in one run, last in another: its port lingers or theirs do. */
        runs[0].linger_ms = repeat * 50;
        ranks_run(runs, 3);
        assert_all_right(runs, 3);
    }
}

static void tcp_speaks_ipv6(void **state)
{
    struct rank_run runs[2];
    char rendezvous[32];
    int fd = listen_at(AF_INET6, 0);

    (void)state;
    if (fd < 0)
        skip();
    snprintf(rendezvous, sizeof(rendezvous), "[::1]:%u", (unsigned)port_of(fd));
    close(fd);
    ranks_init(runs, 2, AFD_BOOTSTRAP_TCP);
    for (uint32_t i = 0; i < 2; i++)
        runs[i].config.rendezvous = rendezvous;
    ranks_run(runs, 2);
    assert_all_right(runs, 2);
}

/* ------------------------------------------------------------------------------------- mistakes */

static void tcp_rank_says_where_nobody_listens(void **state)
{
    struct rank_run runs[2];
    struct job job;

    (void)state;
    job_init(&job, runs, 2);
    close(job.listen_fd);
    runs[1].config.bootstrap_timeout_us = 300000;
    ranks_run(runs + 1, 1);
    assert_says(&runs[1], AFD_EPEER, "rank 1", job.rendezvous,
                "within 0.3 s: nobody listens there");
}

static void tcp_rank_0_says_what_it_cannot_listen_at(void **state)
{
    struct rank_run runs[2];
    struct job job;

    (void)state;
    job_init(&job, runs, 2);
    runs[0].config.listen_fd = -1;
    ranks_run(runs, 1);
    assert_says(&runs[0], AFD_EBOOTSTRAP, "cannot listen at", job.rendezvous, "in use");
    close(job.listen_fd);

    runs[0].config.listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    ranks_run(runs, 1);
    assert_says(&runs[0], AFD_EINVAL, "is not a listening socket", NULL, NULL);
    assert_int_equal(close(runs[0].config.listen_fd), -1);
}

static void tcp_wrong_world_fails_every_rank_with_both_values(void **state)
{
    uint64_t soon_us = afd_deadline_after(SOON_US);
    struct rank_run runs[3];
    struct job job;

    (void)state;
    job_init(&job, runs, 3);
    runs[1].delay_ms = 200;
    runs[1].config.world = 4;
    ranks_run(runs, 3);
    assert_true(afd_deadline_now_us() < soon_us);
    for (uint32_t i = 0; i < 3; i++)
        assert_says(&runs[i], AFD_EMISMATCH, "has world 4", "has world 3", job.rendezvous);
}

static void tcp_rank_that_comes_twice_fails_every_rank(void **state)
{
    struct rank_run runs[3];
    struct job job;

    (void)state;
    job_init(&job, runs, 3);
    runs[2].config.rank = 1;
    ranks_run(runs, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_says(&runs[i], AFD_EBOOTSTRAP, "rank 1", "came twice", job.rendezvous);
}

static void tcp_different_bytes_fail_every_rank_with_both_values(void **state)
{
    struct rank_run runs[3];
    struct job job;

    (void)state;
    for (uint32_t wrong = 0; wrong < 3; wrong += 2) {
        job_init(&job, runs, 3);
        runs[wrong].extra_bytes = 500000;
        ranks_run(runs, 3);
        for (uint32_t i = 0; i < 3; i++) {
            assert_says(&runs[i], AFD_EBOOTSTRAP, "504097", " 4097", "rank 0");
            assert_int_equal(runs[i].done, SIZE_COUNT - 1);
        }
    }
}

/* --------------------------------------------------------------------------------------- deaths */

/* Rank `rank` of 3 is a process that is killed when it has done `rounds` allgathers, or while it
 * waits for a rank that is late. */
static void death_is_named(uint32_t rank, uint32_t rounds)
{
    uint64_t soon_us = afd_deadline_after(SOON_US);
    struct rank_run runs[3];
    struct job job;
    int status;
    pid_t child;
    char name[16];

    job_init(&job, runs, 3);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct afd_bootstrap *bootstrap;

        if (rank != 0)
            close(job.listen_fd);
        if (afd_bootstrap_open(&runs[rank].config, &bootstrap) != 0)
            _exit(1);
        for (uint32_t round = 0; round < rounds; round++)
            (void)gather_once(bootstrap, round, sizes[round]);
        (void)kill(getpid(), SIGKILL);
    }
    if (rank == 0)
        close(job.listen_fd);
    for (uint32_t i = 0; i < 3; i++) {
        if (i != rank)
            ranks_start(runs + i, 1);
    }
    for (uint32_t i = 0; i < 3; i++) {
        if (i != rank)
            ranks_join(runs + i, 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_true(afd_deadline_now_us() < soon_us);
    snprintf(name, sizeof(name), "rank %u at ", rank);
    for (uint32_t i = 0; i < 3; i++) {
        if (i != rank) {
            assert_says(&runs[i], AFD_EPEER, name, "died or left", NULL);
            assert_true(runs[i].done >= rounds - 1 && runs[i].done <= rounds);
        }
    }
}

static void tcp_dead_rank_is_named_on_every_rank(void **state)
{
    (void)state;
    death_is_named(1, 3);
    death_is_named(2, 1);
}

static void tcp_dead_rank_0_is_named_on_every_rank(void **state)
{
    (void)state;
    death_is_named(0, 3);
}

static void tcp_late_rank_is_named_on_every_rank(void **state)
{
    struct rank_run runs[4];
    struct job job;

    (void)state;
    job_init(&job, runs, 4);
    for (uint32_t i = 0; i < 4; i++)
        runs[i].config.bootstrap_timeout_us = 700000;
    runs[2].rounds = 2; /* then it is silent, with its connection open */
    runs[2].linger_ms = 1800;
    ranks_run(runs, 4);
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 2)
            assert_says(&runs[i], AFD_EPEER, "allgather 3: rank 2 of 4 did not come within 0.7 s",
                        NULL, NULL);
        assert_int_equal(runs[i].done, 2);
    }
}

static void tcp_silent_rank_0_is_named(void **state)
{
    struct rank_run runs[2];
    struct job job;

    (void)state;
    job_init(&job, runs, 2);
    runs[1].config.bootstrap_timeout_us = 200000;
    runs[0].rounds = 2;
    runs[0].linger_ms = 2000;
    ranks_run(runs, 2);
    assert_says(&runs[1], AFD_EPEER, "rank 0 at", "did not answer allgather 3", NULL);
}

static void tcp_failed_group_stays_failed(void **state)
{
    struct afd_bootstrap *bootstrap;
    struct rank_run runs[2];
    struct job job;
    char first[512];

    (void)state;
    job_init(&job, runs, 2);
    runs[1].rounds = 0;
    ranks_start(runs + 1, 1);
    assert_int_equal(afd_bootstrap_open(&runs[0].config, &bootstrap), 0);
    ranks_join(runs + 1, 1);
    assert_int_equal(gather_once(bootstrap, 0, 8), AFD_EPEER);
    snprintf(first, sizeof(first), "%s", afd_last_error());
    assert_int_equal(gather_once(bootstrap, 1, 8), AFD_EPEER);
    assert_string_equal(afd_last_error(), first);
    bootstrap->ops->close(bootstrap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_gathers_every_size_at_2_3_5_and_8_ranks),
        cmocka_unit_test(tcp_takes_the_largest_size_and_refuses_one_byte_more),
        cmocka_unit_test(tcp_ranks_may_start_in_any_order),
        cmocka_unit_test(tcp_runs_twice_back_to_back_on_one_port),
        cmocka_unit_test(tcp_speaks_ipv6),
        cmocka_unit_test(tcp_rank_says_where_nobody_listens),
        cmocka_unit_test(tcp_rank_0_says_what_it_cannot_listen_at),
        cmocka_unit_test(tcp_wrong_world_fails_every_rank_with_both_values),
        cmocka_unit_test(tcp_rank_that_comes_twice_fails_every_rank),
        cmocka_unit_test(tcp_different_bytes_fail_every_rank_with_both_values),
        cmocka_unit_test(tcp_dead_rank_is_named_on_every_rank),
        cmocka_unit_test(tcp_dead_rank_0_is_named_on_every_rank),
        cmocka_unit_test(tcp_late_rank_is_named_on_every_rank),
        cmocka_unit_test(tcp_silent_rank_0_is_named),
        cmocka_unit_test(tcp_failed_group_stays_failed),
    };

    unsetenv("AFD_KEY");
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
