/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_error.c - the last error is one whole sentence of the thread that failed.
 */
#include "afd/afd.h"
#include "error.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void *read_in_new_thread(void *first_byte)
{
    *(char *)first_byte = afd_last_error()[0];
    (void)afd_error_set(AFD_ENOMEM, "of the other thread");
    return NULL;
}

static void error_set_returns_its_code_and_stores_its_sentence(void **state)
{
    (void)state;
    assert_int_equal(afd_error_set(AFD_ECAPACITY, "rank %d has %d rows, capacity is %d", 3, 9, 8),
                     AFD_ECAPACITY);
    assert_string_equal(afd_last_error(), "rank 3 has 9 rows, capacity is 8");
}

static void last_error_belongs_to_its_thread(void **state)
{
    pthread_t thread;
    char first_byte = 'x';

    (void)state;
    (void)afd_error_set(AFD_EINVAL, "of this thread");
    assert_int_equal(pthread_create(&thread, NULL, read_in_new_thread, &first_byte), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(first_byte, '\0');
    assert_string_equal(afd_last_error(), "of this thread");
}

static void long_sentence_is_cut_at_511_bytes(void **state)
{
    char text[2000];

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    (void)afd_error_set(AFD_EINVAL, "%s", text);
    assert_int_equal(strlen(afd_last_error()), 511);
}

static void last_error_may_be_quoted_by_the_next_one(void **state)
{
    (void)state;
    (void)afd_error_set(AFD_EINVAL, "inner");
    (void)afd_error_set(AFD_EINVAL, "outer: %s", afd_last_error());
    assert_string_equal(afd_last_error(), "outer: inner");
}

static void error_set_keeps_errno(void **state)
{
    (void)state;
    errno = ENOENT;
    (void)afd_error_set(AFD_ESYSTEM, "%s %f", "text", 1.5);
    assert_int_equal(errno, ENOENT);
}

static void every_code_has_a_name_and_a_text_of_its_own(void **state)
{
    static const int codes[] = {
#define CODE(name, value, text) name,
        AFD_ERROR_LIST(CODE)
#undef CODE
    };
    const size_t count = sizeof(codes) / sizeof(codes[0]);

    (void)state;
    for (size_t i = 0; i < count; i++) {
        assert_true(codes[i] < 0);
        assert_memory_equal(afd_error_name(codes[i]), "AFD_E", 5);
        for (size_t j = 0; j < i; j++) {
            assert_int_not_equal(codes[i], codes[j]);
            assert_string_not_equal(afd_error_name(codes[i]), afd_error_name(codes[j]));
            assert_string_not_equal(afd_error_text(codes[i]), afd_error_text(codes[j]));
        }
    }
    assert_string_equal(afd_error_name(AFD_ECAPACITY), "AFD_ECAPACITY");
    assert_string_equal(afd_error_text(AFD_ECAPACITY), "capacity exceeded");
}

static void other_numbers_have_a_text_too(void **state)
{
    (void)state;
    assert_string_equal(afd_error_text(0), "success");
    assert_string_equal(afd_error_text(-9999), "unknown error code");
    assert_string_equal(afd_error_text(7), "unknown error code");
    assert_non_null(afd_error_name(0));
    assert_non_null(afd_error_name(-9999));
}

static void build_says_its_version_and_digest(void **state)
{
    const char *digest = afd_digest();

    (void)state;
    assert_string_equal(afd_version(), "0.1.0");
    assert_int_equal(strlen(digest), 16);
    assert_int_equal(strspn(digest, "0123456789abcdef"), 16);
}

static void failed_assertion_says_where_and_aborts(void **state)
{
    int ends[2];
    char text[256] = "";
    int status = 0;
    pid_t child;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        AFD_ASSERT(1 + 1 == 3);
        _exit(0);
    }
    close(ends[1]);
    assert_true(read(ends[0], text, sizeof(text) - 1) > 0);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "1 + 1 == 3"));
    assert_non_null(strstr(text, "test_error.c"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_set_returns_its_code_and_stores_its_sentence),
        cmocka_unit_test(last_error_belongs_to_its_thread),
        cmocka_unit_test(long_sentence_is_cut_at_511_bytes),
        cmocka_unit_test(last_error_may_be_quoted_by_the_next_one),
        cmocka_unit_test(error_set_keeps_errno),
        cmocka_unit_test(every_code_has_a_name_and_a_text_of_its_own),
        cmocka_unit_test(other_numbers_have_a_text_too),
        cmocka_unit_test(build_says_its_version_and_digest),
        cmocka_unit_test(failed_assertion_says_where_and_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
