/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bootstrap.c - the hub, the caller's callbacks, the environment, and what all kinds check.
 */
#include "bootstrap_ranks.h"

#include "bootstrap/rank_list.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void hub_ranks_init(struct rank_run *runs, uint32_t count, struct afd_hub *hub)
{
    ranks_init(runs, count, AFD_BOOTSTRAP_HUB);
    for (uint32_t i = 0; i < count; i++)
        runs[i].config.hub = hub;
}

static void hub_gathers_every_size_at_2_3_5_and_8_ranks(void **state)
{
    static const uint32_t worlds[] = {1, 2, 3, 5, 8};
    struct rank_run runs[RANKS_MAX];

    (void)state;
    for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
        struct afd_hub *hub;

        assert_int_equal(afd_hub_create(worlds[i], &hub), 0);
        hub_ranks_init(runs, worlds[i], hub);
        for (uint32_t rank = 0; rank < worlds[i]; rank++)
            runs[rank].rounds = 20 * SIZE_COUNT;
        ranks_run(runs, worlds[i]);
        assert_all_right(runs, worlds[i]);
        afd_hub_destroy(hub);
    }
}

#define GROUPS 50u

static void *groups_main(void *argument)
{
    struct rank_run *run = argument;

    for (uint32_t group = 0; group < GROUPS && !run->code; group++) {
        run->done = 0;
        rank_main(run);
    }
    return NULL;
}

static void hub_carries_groups_one_after_another(void **state)
{
    struct rank_run runs[3];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(3, &hub), 0);
    hub_ranks_init(runs, 3, hub);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&runs[i].thread, NULL, groups_main, &runs[i]), 0);
    ranks_join(runs, 3);
    assert_all_right(runs, 3);
    afd_hub_destroy(hub);
}

static void hub_names_the_ranks_that_do_not_come(void **state)
{
    struct rank_run runs[5];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(5, &hub), 0);
    hub_ranks_init(runs, 5, hub);
    runs[0].config.bootstrap_timeout_us = 200000;
    ranks_run(runs, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_says(&runs[i], AFD_EPEER, "rank 0 waited 0.2 s", "ranks 2-4 of 5 did not come",
                    NULL);
    afd_hub_destroy(hub);
}

static void hub_fails_waiting_ranks_at_once_when_one_leaves(void **state)
{
    uint64_t soon_us = afd_deadline_after(SOON_US);
    struct rank_run runs[3];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(3, &hub), 0);
    hub_ranks_init(runs, 3, hub);
    runs[2].rounds = 4;
    ranks_run(runs, 3);
    assert_true(afd_deadline_now_us() < soon_us);
    for (uint32_t i = 0; i < 2; i++) {
        assert_says(&runs[i], AFD_EPEER, "rank 2 left", NULL, NULL);
        assert_int_equal(runs[i].done, 4);
    }
    assert_int_equal(runs[2].code, 0);
    afd_hub_destroy(hub);
}

static void hub_refuses_a_rank_that_comes_twice(void **state)
{
    struct rank_run runs[3];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(3, &hub), 0);
    hub_ranks_init(runs, 3, hub);
    runs[2].config.rank = 1;
    ranks_run(runs, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_says(&runs[i], AFD_EBOOTSTRAP, "rank 1 came twice", "hub of 3 ranks", NULL);
    afd_hub_destroy(hub);
}

static void hub_refuses_another_world_with_both_values(void **state)
{
    struct rank_run runs[2];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(2, &hub), 0);
    hub_ranks_init(runs, 2, hub);
    runs[1].config.world = 3;
    ranks_run(runs, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_says(&runs[i], AFD_EMISMATCH, "rank 1 has world 3", "made for world 2", NULL);

    /* The same hub serves a group that is right. */
    hub_ranks_init(runs, 2, hub);
    ranks_run(runs, 2);
    assert_all_right(runs, 2);
    afd_hub_destroy(hub);
}

static void hub_refuses_different_bytes_with_both_values(void **state)
{
    struct rank_run runs[2];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(2, &hub), 0);
    hub_ranks_init(runs, 2, hub);
    runs[1].extra_bytes = 3;
    ranks_run(runs, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_says(&runs[i], AFD_EBOOTSTRAP, "4097", "4100", "rank 1");
        assert_int_equal(runs[i].done, SIZE_COUNT - 1);
    }
    afd_hub_destroy(hub);
}

static void hub_outlives_its_creator_while_a_rank_has_it_open(void **state)
{
    struct afd_bootstrap *bootstrap;
    struct rank_run run;
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(1, &hub), 0);
    hub_ranks_init(&run, 1, hub);
    assert_int_equal(afd_bootstrap_open(&run.config, &bootstrap), 0);
    afd_hub_destroy(hub);
    assert_int_equal(gather_once(bootstrap, 0, 100), 0);
    bootstrap->ops->close(bootstrap);
    afd_hub_destroy(NULL);
}

static void hub_forgets_a_rank_that_left_before_the_others_came(void **state)
{
    struct afd_bootstrap *bootstrap;
    struct rank_run runs[2];
    struct afd_hub *hub;

    (void)state;
    assert_int_equal(afd_hub_create(2, &hub), 0);
    hub_ranks_init(runs, 2, hub);
    assert_int_equal(afd_bootstrap_open(&runs[0].config, &bootstrap), 0);
    bootstrap->ops->close(bootstrap);
    /* Rank 1 comes only after rank 0 has come again. */
    runs[1].delay_ms = 100;
    ranks_run(runs, 2);
    assert_all_right(runs, 2);
    afd_hub_destroy(hub);
}

static int double_or_fail(void *context, const void *in, void *out, size_t bytes)
{
    int *calls_left = context;

    if ((*calls_left)-- == 0)
        return -42;
    memcpy(out, in, bytes);
    memcpy((uint8_t *)out + bytes, in, bytes);
    return 0;
}

static void callbacks_pass_bytes_on_and_report_what_the_caller_returned(void **state)
{
    struct afd_bootstrap *bootstrap;
    struct rank_run run;
    int calls_left = 1;
    uint32_t in = 77;
    uint32_t out[2] = {0, 0};

    (void)state;
    ranks_init(&run, 1, AFD_BOOTSTRAP_CALLBACKS);
    run.config.world = 2;
    run.config.callbacks.allgather = double_or_fail;
    run.config.callbacks.context = &calls_left;
    assert_int_equal(afd_bootstrap_open(&run.config, &bootstrap), 0);
    assert_int_equal(bootstrap->ops->allgather(bootstrap, &in, out, sizeof(in)), 0);
    assert_int_equal(out[0], 77);
    assert_int_equal(out[1], 77);
    rank_note(&run, bootstrap->ops->allgather(bootstrap, &in, out, sizeof(in)));
    assert_says(&run, AFD_EBOOTSTRAP, "rank 0", "returned -42", "4 bytes");
    calls_left = 5;
    rank_note(&run, bootstrap->ops->allgather(bootstrap, &in, out, sizeof(in)));
    assert_says(&run, AFD_EBOOTSTRAP, "failed before", NULL, NULL);
    bootstrap->ops->close(bootstrap);
}

static void open_refuses_what_no_kind_can_serve(void **state)
{
    struct afd_bootstrap *bootstrap;
    struct afd_hub *hub;
    struct rank_run run;

#define REFUSES(kind, change, part)                                                                \
    do {                                                                                           \
        ranks_init(&run, 1, kind);                                                                 \
        run.config.world = 2;                                                                      \
        run.config.change;                                                                         \
        rank_note(&run, afd_bootstrap_open(&run.config, &bootstrap));                              \
        assert_says(&run, AFD_EINVAL, part, NULL, NULL);                                           \
    } while (0)
    (void)state;
    for (uint32_t kind = AFD_BOOTSTRAP_TCP; kind <= AFD_BOOTSTRAP_HUB; kind++) {
        REFUSES(kind, world = 0, "world is 0");
        REFUSES(kind, world = 1025, "world is 1025, must be 1 .. 1024");
        REFUSES(kind, rank = 2, "rank is 2, must be below world, which is 2");
        REFUSES(kind, bootstrap_timeout_us = 0, "bootstrap_timeout_us is 0");
    }
    REFUSES(9, rank = 0, "bootstrap is 9");
    REFUSES(AFD_BOOTSTRAP_HUB, rank = 0, "hub is NULL");
    REFUSES(AFD_BOOTSTRAP_CALLBACKS, rank = 0, "callbacks.allgather is NULL");
    REFUSES(AFD_BOOTSTRAP_TCP, rank = 1, "rendezvous is NULL");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "nohost", "\"nohost\" has no port");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = ":7777", "has no host");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "::1:7777", "more than one colon");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "[::1]7777", "has no port");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "host:0", "1 .. 65535");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "host:65536", "1 .. 65535");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "host:77x", "1 .. 65535");
    REFUSES(AFD_BOOTSTRAP_TCP, rendezvous = "host:", "1 .. 65535");
#undef REFUSES
    assert_int_equal(afd_hub_create(0, &hub), AFD_EINVAL);
    assert_int_equal(afd_hub_create(1025, &hub), AFD_EINVAL);
}

/* ---------------------------------------------------------------------------------- environment */

static const char *const variables[] = {
    "AFD_RANK",
    "AFD_WORLD",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "AFD_KEY",
    "AFD_RENDEZVOUS",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
};

static void environment_clear(void)
{
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        unsetenv(variables[i]);
}

/* "NAME=value NAME=value", with %p for the port. */
static void environment_set(const char *words, uint16_t port)
{
    char copy[512];
    char *rest;

    environment_clear();
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        char text[64];
        char *mark = strstr(value, "%p");

        *value++ = '\0';
        if (mark) {
            *mark = '\0';
            snprintf(text, sizeof(text), "%s%u", value, (unsigned)port);
            value = text;
        }
        setenv(word, value, 1);
    }
}

static int listen_anywhere(uint16_t *port_out)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *port_out = ntohs(at.sin_port);
    return fd;
}

/* Two processes, each with its own environment. */
static void environment_joins(const char *rank_0, const char *rank_1)
{
    struct rank_run run;
    uint16_t port;
    int status = -1;
    int fd = listen_anywhere(&port);
    pid_t child = fork();

    assert_true(child >= 0);
    ranks_init(&run, 1, AFD_BOOTSTRAP_ENV);
    /* Both are ignored. */
    run.config.rank = 99;
    run.config.world = 12345;
    environment_set(child ? rank_0 : rank_1, port);
    if (child)
        run.config.listen_fd = fd;
    else
        close(fd);
    rank_main(&run);
    if (!child)
        _exit(run.code == 0 && run.rank == 1 && run.world == 2 && run.done == SIZE_COUNT ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_all_right(&run, 1);
    assert_int_equal(run.rank, 0);
    assert_int_equal(run.world, 2);
    assert_int_equal(status, 0);
    environment_clear();
}

static void environment_of_every_launcher_joins(void **state)
{
    (void)state;
    environment_joins("AFD_RANK=0 AFD_WORLD=2",
                      "AFD_RANK=1 AFD_WORLD=2 AFD_RENDEZVOUS=127.0.0.1:%p");
    environment_joins("RANK=0 WORLD_SIZE=2", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
                                             "MASTER_PORT=%p");
    environment_joins("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2",
                      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 AFD_RENDEZVOUS=localhost:%p");
    environment_joins("SLURM_PROCID=0 SLURM_NTASKS=2",
                      "SLURM_PROCID=1 SLURM_NTASKS=2 AFD_RENDEZVOUS=127.0.0.1:%p");
}

static void environment_of_ours_wins_and_empty_counts_as_unset(void **state)
{
    (void)state;
    environment_joins("AFD_RANK=0 AFD_WORLD=2 RANK=7 WORLD_SIZE=9 AFD_KEY=k",
                      "AFD_RANK= RANK=1 WORLD_SIZE=2 SLURM_PROCID=5 SLURM_NTASKS=6 MASTER_ADDR=x "
                      "MASTER_PORT=1 AFD_RENDEZVOUS=127.0.0.1:%p AFD_KEY=k");
}

static void environment_refuses(const char *words, const char *part, const char *part2)
{
    struct afd_bootstrap *bootstrap;
    struct rank_run run;

    ranks_init(&run, 1, AFD_BOOTSTRAP_ENV);
    environment_set(words, 0);
    rank_note(&run, afd_bootstrap_open(&run.config, &bootstrap));
    environment_clear();
    assert_says(&run, AFD_EBOOTSTRAP, part, part2, NULL);
}

static void environment_names_the_bad_variable_and_its_value(void **state)
{
    (void)state;
    environment_refuses("AFD_RANK=abc AFD_WORLD=2", "AFD_RANK is \"abc\"", NULL);
    environment_refuses("AFD_RANK=-1 AFD_WORLD=2", "AFD_RANK is \"-1\"", NULL);
    environment_refuses("AFD_RANK=+1 AFD_WORLD=2", "AFD_RANK is \"+1\"", NULL);
    environment_refuses("RANK=0 WORLD_SIZE=2x", "WORLD_SIZE is \"2x\"", NULL);
    environment_refuses("RANK=0 WORLD_SIZE=99999999999999999999", "WORLD_SIZE is \"9999", NULL);
    environment_refuses("RANK=0 WORLD_SIZE=1025", "WORLD_SIZE is \"1025\"", "1024");
    environment_refuses("SLURM_PROCID=4 SLURM_NTASKS=4", "SLURM_PROCID is 4",
                        "below SLURM_NTASKS, which is 4");
    environment_refuses("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set", "Open MPI");
    environment_refuses("SLURM_PROCID=1 SLURM_NTASKS=4", "AFD_RENDEZVOUS is not set", "Slurm");
    environment_refuses("RANK=1 WORLD_SIZE=4 MASTER_ADDR=a", "MASTER_PORT is not set", NULL);
    environment_refuses("RANK=1 WORLD_SIZE=4 MASTER_PORT=1", "MASTER_ADDR is not set", NULL);
    environment_refuses("", "AFD_RANK with AFD_WORLD", "OMPI_COMM_WORLD_RANK");
    environment_refuses("", "SLURM_PROCID", "MASTER_ADDR");
}

static bool is_odd(const void *context, uint32_t rank)
{
    (void)context;
    return rank % 2 == 1;
}

static bool is_in_mask(const void *context, uint32_t rank)
{
    return (*(const uint32_t *)context >> rank & 1) != 0;
}

static void rank_list_writes_ranges_and_never_overflows(void **state)
{
    static const struct {
        uint32_t mask;
        const char *text;
    } cases[] = {
        {0, "no rank"}, {1, "rank 0"}, {0xf6, "ranks 1-2, 4-7"}, {0x80000001, "ranks 0, 31"}};
    char text[AFD_RANK_LIST_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        afd_rank_list_write(is_in_mask, &cases[i].mask, 32, text);
        assert_string_equal(text, cases[i].text);
    }
    memset(text, 'x', sizeof(text));
    afd_rank_list_write(is_odd, NULL, AFD_BOOTSTRAP_WORLD_MAX, text);
    assert_non_null(memchr(text, '\0', sizeof(text)));
    assert_memory_equal(text, "ranks 1, 3, 5, ", 15);
    assert_non_null(strstr(text, " more"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hub_gathers_every_size_at_2_3_5_and_8_ranks),
        cmocka_unit_test(hub_carries_groups_one_after_another),
        cmocka_unit_test(hub_names_the_ranks_that_do_not_come),
        cmocka_unit_test(hub_fails_waiting_ranks_at_once_when_one_leaves),
        cmocka_unit_test(hub_refuses_a_rank_that_comes_twice),
        cmocka_unit_test(hub_refuses_another_world_with_both_values),
        cmocka_unit_test(hub_refuses_different_bytes_with_both_values),
        cmocka_unit_test(hub_outlives_its_creator_while_a_rank_has_it_open),
        cmocka_unit_test(hub_forgets_a_rank_that_left_before_the_others_came),
        cmocka_unit_test(callbacks_pass_bytes_on_and_report_what_the_caller_returned),
        cmocka_unit_test(open_refuses_what_no_kind_can_serve),
        cmocka_unit_test(environment_of_every_launcher_joins),
        cmocka_unit_test(environment_of_ours_wins_and_empty_counts_as_unset),
        cmocka_unit_test(environment_names_the_bad_variable_and_its_value),
        cmocka_unit_test(rank_list_writes_ranges_and_never_overflows),
    };

    environment_clear();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
