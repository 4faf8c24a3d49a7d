/* SPDX-License-Identifier: Apache-2.0 */
/* sentence.c - a call failed as it should: its code, and what its sentence must name. */

#include "sentence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "afd/afd.h"

void sentence_check(int rc, int code, const char *const *words)
{
    if (rc != code)
        fail_msg("%s instead of %s: %s", afd_error_name(rc), afd_error_name(code),
                 afd_last_error());
    for (; *words != NULL; words++)
        if (strstr(afd_last_error(), *words) == NULL)
            fail_msg("no \"%s\" in: %s", *words, afd_last_error());
}
