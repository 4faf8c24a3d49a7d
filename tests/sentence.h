/* SPDX-License-Identifier: Apache-2.0 */
/* sentence.h - a call failed as it should: its code, and what its sentence must name. */
#ifndef TESTS_SENTENCE_H
#define TESTS_SENTENCE_H

/* Fails the test unless rc is `code` and afd_last_error() has each of the words, NULL at the
 * end. */
void sentence_check(int rc, int code, const char *const *words);

#define CHECK_SENTENCE(rc, code, ...)                                                              \
    sentence_check(rc, code, (const char *const[]){__VA_ARGS__, NULL})

#endif
