/* SPDX-License-Identifier: Apache-2.0 */
/* info.c - the verb `info`: this build, and what this machine offers. */

#include <jansson.h>
#include <popt.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "cli.h"
#include "exec/vector.h"

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

static double memory_gib(void)
{
    return (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1073741824.0;
}

static int print(int json)
{
    json_t *root;
    if (!json) {
        printf("afd %s, digest %s\n", afd_version(), afd_digest());
        printf("backends    inline\nprotocols   direct\nfabrics     shm\n");
        printf("cores       %d\nvector code %s\nmemory      %.1f GiB\n", cores(), afd_vector_name(),
               memory_gib());
        return CLI_OK;
    }
    root =
        json_pack("{s:s, s:s, s:[s], s:[s], s:[s], s:i, s:s, s:f}", "version", afd_version(),
                  "digest", afd_digest(), "backends", "inline", "protocols", "direct", "fabrics",
                  "shm", "cores", cores(), "vector", afd_vector_name(), "memory_gib", memory_gib());
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(7));
    putchar('\n');
    json_decref(root);
    return CLI_OK;
}

int cli_info_main(int argc, const char **argv)
{
    int json = 0;
    struct poptOption table[] = {
        {"json", '\0', POPT_ARG_NONE, &json, 0, "print one JSON object on stdout", NULL},
        POPT_AUTOHELP POPT_TABLEEND};
    poptContext context = poptGetContext("afd", argc, argv, table, 0);
    int rc;
    poptSetOtherOptionHelp(context, "info [OPTION...]");
    rc = poptGetNextOpt(context);
    if (rc < -1)
        rc = cli_error(CLI_USAGE, "%s: %s", poptBadOption(context, 0), poptStrerror(rc));
    else if (poptPeekArg(context) != NULL)
        rc = cli_error(CLI_USAGE, "info takes no argument \"%s\"", poptPeekArg(context));
    else
        rc = print(json);
    poptFreeContext(context);
    return rc;
}
