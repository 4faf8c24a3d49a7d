/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the command `afd`: a table of verbs. */

#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "sim.h"

static const struct {
    const char *name;
    const char *what;
    int (*main)(int argc, const char **argv);
} verbs[] = {
    {"run", "run a job on this machine, or one rank of it, and check every value", cli_run_main},
    {"bench", "measure arms against each other", cli_bench_main},
    {"sim", "prove the protocol: seeded schedules of a whole job in one thread", cli_sim_main},
    {"memory", "what a configuration needs, per rank and region", cli_memory_main},
    {"info", "this build, and what this machine offers", cli_info_main},
};
#define VERB_COUNT (sizeof(verbs) / sizeof(verbs[0]))

static void print_help(FILE *to)
{
    fprintf(to, "Usage: afd VERB [OPTION...]\n\n");
    for (size_t i = 0; i < VERB_COUNT; i++)
        fprintf(to, "  %-8s %s\n", verbs[i].name, verbs[i].what);
    fprintf(to, "\n`afd VERB --help` lists the options of a verb, `afd --version` the version.\n");
}

int main(int argc, const char **argv)
{
    const char *verb = argc > 1 ? argv[1] : NULL;
    if (verb == NULL) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-?") == 0 || strcmp(verb, "help") == 0) {
        print_help(stdout);
        return CLI_OK;
    }
    if (strcmp(verb, "--version") == 0) {
        printf("afd %s %s\n", afd_version(), afd_digest());
        return CLI_OK;
    }
    for (size_t i = 0; i < VERB_COUNT; i++)
        if (strcmp(verb, verbs[i].name) == 0)
            return verbs[i].main(argc - 1, argv + 1);
    print_help(stderr);
    return cli_error(CLI_USAGE, "\"%s\" is no verb", verb);
}
