/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - the last error of a thread, the texts of the codes, and the identity of the build.
 */
#include "error.h"

#include "afd_digest.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ERROR_TEXT_BYTES 512u

static _Thread_local char last_error[ERROR_TEXT_BYTES];

int afd_error_set(int code, const char *format, ...)
{
    int saved_errno = errno;
    /* An argument may be afd_last_error() itself, so the sentence is made beside it. */
    char text[ERROR_TEXT_BYTES];
    va_list arguments;

    va_start(arguments, format);
    if (vsnprintf(text, sizeof(text), format, arguments) < 0)
        text[0] = '\0';
    va_end(arguments);
    memcpy(last_error, text, sizeof(text));
    errno = saved_errno;
    return code;
}

const char *afd_last_error(void)
{
    return last_error;
}

const char *afd_error_text(int code)
{
    switch (code) {
    case 0:
        return "success";
#define ERROR_TEXT(name, value, text)                                                              \
    case name:                                                                                     \
        return text;
        AFD_ERROR_LIST(ERROR_TEXT)
#undef ERROR_TEXT
    default:
        return "unknown error code";
    }
}

const char *afd_error_name(int code)
{
    switch (code) {
    case 0:
        return "AFD_OK";
#define ERROR_NAME(name, value, text)                                                              \
    case name:                                                                                     \
        return #name;
        AFD_ERROR_LIST(ERROR_NAME)
#undef ERROR_NAME
    default:
        return "AFD_E_UNKNOWN";
    }
}

#define QUOTE_(x) #x
#define QUOTE(x) QUOTE_(x)

const char *afd_version(void)
{
    return QUOTE(AFD_VERSION_MAJOR) "." QUOTE(AFD_VERSION_MINOR) "." QUOTE(AFD_VERSION_PATCH);
}

const char *afd_digest(void)
{
    return AFD_DIGEST;
}

void afd_assert_failed(const char *text, const char *file, int line)
{
    fprintf(stderr, "afd: broken invariant: %s (%s:%d)\n", text, file, line);
    abort();
}
