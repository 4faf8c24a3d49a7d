/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bootstrap_strangers.c - whoever can reach the port: strangers, wrong keys, false ranks, and
 * peers that break the protocol.
 */
#include "bootstrap_jobs.h"

/* ------------------------------------------------------------------------------------ strangers */

static void tcp_strangers_neither_stop_nor_delay_the_ranks(void **state)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    uint64_t soon_us = afd_deadline_after(SOON_US);
    uint8_t huge[AFD_WIRE_HELLO_BYTES];
    struct rank_run runs[3];
    struct job job;
    int fds[5];

    (void)state;
    job_init(&job, runs, 3);
    for (size_t i = 0; i < 5; i++)
        fds[i] = stranger_connect(&job);
    /* fds[0] says nothing. */
    stranger_send(fds[1], http, sizeof(http));
    stranger_send(fds[2], "AFD-CO", 6); /* and stops in the middle */
    memset(huge, 0xff, sizeof(huge));
    stranger_send(fds[3], huge, sizeof(huge));
    memcpy(huge, afd_wire_magic, AFD_WIRE_MAGIC_BYTES);
    stranger_send(fds[4], huge, sizeof(huge)); /* version, world and rank 4294967295 */
    ranks_run(runs, 3);
    assert_all_right(runs, 3);
    assert_true(afd_deadline_now_us() < soon_us);
    for (size_t i = 0; i < 5; i++)
        close(fds[i]);
}

static void tcp_more_strangers_than_places_do_not_keep_ranks_out(void **state)
{
    struct rank_run runs[2];
    struct job job;
    int fds[90];

    (void)state;
    job_init(&job, runs, 2);
    ranks_start(runs, 1);
    for (size_t i = 0; i < 90; i++)
        fds[i] = stranger_connect(&job);
    ranks_start(runs + 1, 1);
    ranks_join(runs, 2);
    assert_all_right(runs, 2);
    for (size_t i = 0; i < 90; i++)
        close(fds[i]);
}

static void tcp_rank_with_a_wrong_key_and_rank_0_both_say_why(void **state)
{
    uint64_t soon_us = afd_deadline_after(SOON_US);
    struct rank_run runs[3];
    struct job job;

    (void)state;
    job_init(&job, runs, 3);
    runs[0].config.key = "a";
    runs[1].config.key = "b";
    runs[2].config.key = "a";
    ranks_run(runs, 3);
    assert_true(afd_deadline_now_us() < soon_us);
    assert_says(&runs[0], AFD_EBOOTSTRAP, "rank 1 at 127.0.0.1:", "same job key (AFD_KEY or --key)",
                job.rendezvous);
    assert_says(&runs[1], AFD_EBOOTSTRAP, "rank 1: rank 0 at", "same job key (AFD_KEY or --key)",
                job.rendezvous);
    assert_string_equal(runs[2].error, runs[0].error);
}

static void tcp_stranger_with_a_wrong_key_does_not_keep_the_rank_out(void **state)
{
    struct rank_run runs[3];
    struct job job;
    int fd;

    (void)state;
    job_init(&job, runs, 3);
    for (uint32_t i = 0; i < 3; i++)
        runs[i].config.key = "secret";
    /* Later than rank 0 would have given up on rank 1. */
    runs[2].delay_ms = 1300;
    ranks_start(runs, 1);
    fd = stranger_connect(&job);
    assert_int_equal(raw_join(fd, "guess", 3, 1), AFD_WIRE_WRONG_KEY);
    close(fd);
    ranks_start(runs + 1, 2);
    ranks_join(runs, 3);
    assert_all_right(runs, 3);
}

static void tcp_key_of_the_environment_counts(void **state)
{
    struct rank_run runs[2];
    struct job job;

    (void)state;
    setenv("AFD_KEY", "from the environment", 1);
    job_init(&job, runs, 2);
    runs[1].config.key = "from the environment";
    ranks_run(runs, 2);
    assert_all_right(runs, 2);

    job_init(&job, runs, 2);
    runs[1].config.key = "";
    ranks_run(runs, 2);
    unsetenv("AFD_KEY");
    assert_says(&runs[0], AFD_EBOOTSTRAP, "job key", NULL, NULL);
    assert_says(&runs[1], AFD_EBOOTSTRAP, "job key", NULL, NULL);
}

static void tcp_false_rank_0_is_found_out(void **state)
{
    uint8_t nothing[AFD_WIRE_VERDICT_BYTES + AFD_WIRE_PROOF_BYTES] = {0};
    uint8_t hello[AFD_WIRE_HELLO_BYTES + AFD_WIRE_PROOF_BYTES];
    struct rank_run runs[2];
    struct job job;
    int fd;

    (void)state;
    job_init(&job, runs, 2);
    ranks_start(runs + 1, 1);
    fd = accept(job.listen_fd, NULL, NULL);
    assert_int_equal(recv(fd, hello, AFD_WIRE_HELLO_BYTES, MSG_WAITALL), AFD_WIRE_HELLO_BYTES);
    afd_wire_put_u32(hello + 16, 0); /* its own hello back, as rank 0 */
    stranger_send(fd, hello, AFD_WIRE_HELLO_BYTES);
    assert_int_equal(recv(fd, hello, AFD_WIRE_PROOF_BYTES, MSG_WAITALL), AFD_WIRE_PROOF_BYTES);
    memcpy(nothing + AFD_WIRE_VERDICT_BYTES, hello, AFD_WIRE_PROOF_BYTES);
    stranger_send(fd, nothing, sizeof(nothing)); /* ACCEPTED, with its own proof back */
    ranks_join(runs + 1, 1);
    assert_says(&runs[1], AFD_EBOOTSTRAP, "does not have the same job key", job.rendezvous, NULL);
    close(fd);

    runs[1].code = 0;
    ranks_start(runs + 1, 1);
    fd = accept(job.listen_fd, NULL, NULL);
    stranger_send(fd, "HTTP/1.1 400 Bad Request. Connection: close. Content-Length: 0", 60);
    ranks_join(runs + 1, 1);
    assert_says(&runs[1], AFD_EBOOTSTRAP, "not a rank 0 of this library", job.rendezvous, NULL);
    close(fd);
    close(job.listen_fd);
}

static void tcp_missing_ranks_are_named_on_every_rank_with_who_was_refused(void **state)
{
    struct rank_run runs[5];
    struct job job;
    int fds[2];

    (void)state;
    job_init(&job, runs, 5);
    for (uint32_t i = 0; i < 2; i++)
        runs[i].config.bootstrap_timeout_us = 600000;
    for (size_t i = 0; i < 2; i++)
        fds[i] = stranger_connect(&job);
    stranger_send(fds[0], "garbage", 7);
    ranks_start(runs, 2);
    (void)raw_join(fds[1], "wrong", 5, 17); /* claims no rank that could be missing */
    ranks_join(runs, 2);
    assert_says(&runs[0], AFD_EPEER, "waited 0.6 s: ranks 2-4 of 5 did not come",
                "refused 2 connections", "not an AFD hello from 127.0.0.1");
    assert_says(&runs[0], AFD_EPEER, "wrong job key from 127.0.0.1:", "says it is rank 17",
                job.rendezvous);
    assert_string_equal(runs[1].error, runs[0].error);
    close(fds[0]);
    close(fds[1]);
}

/* Rank 1 is played by the test, which breaks the protocol after READY. */
static void bad_record_is_refused(uint32_t magic, uint32_t sequence, uint32_t rank, uint32_t bytes,
                                  const char *part, const char *part2)
{
    struct rank_run runs[3];
    struct job job;
    uint8_t ready[AFD_WIRE_RECORD_BYTES];
    int fd;

    job_init(&job, runs, 3);
    ranks_start(runs, 1);
    ranks_start(runs + 2, 1);
    fd = stranger_connect(&job);
    assert_int_equal(raw_join(fd, "", 3, 1), AFD_WIRE_ACCEPTED);
    assert_int_equal(recv(fd, ready, sizeof(ready), MSG_WAITALL), sizeof(ready));
    raw_record(fd, magic, sequence, rank, bytes);
    ranks_join(runs, 1);
    ranks_join(runs + 2, 1);
    assert_says(&runs[0], AFD_EPROTO, "rank 1 at 127.0.0.1", part, part2);
    assert_string_equal(runs[2].error, runs[0].error);
    close(fd);
}

static void tcp_impossible_records_are_refused_before_their_bytes_are_read(void **state)
{
    (void)state;
    bad_record_is_refused(AFD_WIRE_DATA, 1, 1, 0xffffffffu, "4294967295", "1048576");
    bad_record_is_refused(AFD_WIRE_DATA, 1, 1, AFD_WIRE_DATA_BYTES_MAX + 1, "1048577", "1048576");
    bad_record_is_refused(AFD_WIRE_DATA, 2, 1, 8, "number 2", "expects number 1");
    bad_record_is_refused(AFD_WIRE_DATA, 1, 2, 8, "as rank 2", NULL);
    bad_record_is_refused(AFD_WIRE_ALL, 1, 1, 8, "record 0x41444641", NULL);
    bad_record_is_refused(AFD_WIRE_ERROR, 1, 1, 100000, "error of 100000 bytes", "515");
    bad_record_is_refused(AFD_WIRE_ERROR, 1, 1, 3, "error of 3 bytes", "515");
}

static void tcp_text_of_a_peer_cannot_steer_a_terminal(void **state)
{
    static const char text[] = "\xf4\xff\xff\xff\033[2Jred\n";
    struct rank_run runs[2];
    struct job job;
    int fd;

    (void)state;
    job_init(&job, runs, 2);
    ranks_start(runs, 1);
    fd = stranger_connect(&job);
    assert_int_equal(raw_join(fd, "", 2, 1), AFD_WIRE_ACCEPTED);
    raw_record(fd, AFD_WIRE_ERROR, 0, 1, sizeof(text) - 1);
    stranger_send(fd, text, sizeof(text) - 1);
    ranks_join(runs, 1);
    assert_int_equal(runs[0].code, AFD_EBOOTSTRAP);
    assert_string_equal(runs[0].error, "?[2Jred?");
    close(fd);
}

static void tcp_proof_cannot_be_replayed(void **state)
{
    struct afd_wire_transcript first;
    struct afd_wire_transcript second;
    uint8_t key[AFD_WIRE_KEY_BYTES];
    uint8_t proof[AFD_WIRE_PROOF_BYTES];
    uint8_t *bytes = (uint8_t *)&second;

    (void)state;
    afd_wire_key_derive("k", key);
    randombytes_buf(&first, sizeof(first));
    afd_wire_proof_make(key, AFD_WIRE_CLIENT, &first, proof);
    assert_true(afd_wire_proof_check(key, AFD_WIRE_CLIENT, &first, proof));
    assert_false(afd_wire_proof_check(key, AFD_WIRE_SERVER, &first, proof));
    for (size_t i = 0; i < sizeof(second); i++) {
        second = first;
        bytes[i] ^= 1;
        assert_false(afd_wire_proof_check(key, AFD_WIRE_CLIENT, &second, proof));
    }
    afd_wire_key_derive("K", key);
    assert_false(afd_wire_proof_check(key, AFD_WIRE_CLIENT, &first, proof));
}

static void tcp_other_handshake_version_is_told_and_refused(void **state)
{
    struct afd_wire_transcript transcript;
    struct rank_run runs[2];
    struct job job;
    uint8_t byte;
    int fd;

    (void)state;
    job_init(&job, runs, 2);
    runs[0].config.bootstrap_timeout_us = 500000;
    ranks_start(runs, 1);
    fd = stranger_connect(&job);
    raw_hello(fd, 77, 2, 1, &transcript);
    assert_int_equal(afd_wire_get_u32(transcript.server_hello + 8), AFD_WIRE_VERSION);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    ranks_join(runs, 1);
    assert_says(&runs[0], AFD_EPEER, "rank 1 of 2 did not come", "handshake version 77", NULL);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tcp_strangers_neither_stop_nor_delay_the_ranks),
        cmocka_unit_test(tcp_more_strangers_than_places_do_not_keep_ranks_out),
        cmocka_unit_test(tcp_rank_with_a_wrong_key_and_rank_0_both_say_why),
        cmocka_unit_test(tcp_stranger_with_a_wrong_key_does_not_keep_the_rank_out),
        cmocka_unit_test(tcp_key_of_the_environment_counts),
        cmocka_unit_test(tcp_false_rank_0_is_found_out),
        cmocka_unit_test(tcp_missing_ranks_are_named_on_every_rank_with_who_was_refused),
        cmocka_unit_test(tcp_impossible_records_are_refused_before_their_bytes_are_read),
        cmocka_unit_test(tcp_text_of_a_peer_cannot_steer_a_terminal),
        cmocka_unit_test(tcp_proof_cannot_be_replayed),
        cmocka_unit_test(tcp_other_handshake_version_is_told_and_refused),
    };

    unsetenv("AFD_KEY");
    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
