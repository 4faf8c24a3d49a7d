/* SPDX-License-Identifier: Apache-2.0 */
/* info.c - the verb `info`: this build, and what this machine offers. */

#include <jansson.h>
#include <popt.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "exec/vector.h"

#ifdef AFD_HAVE_OFI
#define HAVE_LIBFABRIC 1
#else
#define HAVE_LIBFABRIC 0
#endif

static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Bytes of a line like "MemAvailable:  123 kB" (or a bare count, times `unit`) of /proc/meminfo; 0
 * if there is none. */
static uint64_t meminfo(const char *name, uint64_t unit)
{
    FILE *file = fopen("/proc/meminfo", "r");
    size_t length = strlen(name);
    unsigned long long value = 0;
    char line[128];
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == ':' &&
            sscanf(line + length + 1, "%llu", &value) == 1)
            break;
    fclose(file);
    return value * unit;
}

/* The vector code that this machine could run, in the order of preference. */
static json_t *vector_sets(void)
{
    static const char *const names[] = {"avx512", "avx2", "generic"};
    char chosen[16];
    json_t *sets = json_array();
    snprintf(chosen, sizeof(chosen), "%s", afd_vector_name());
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (afd_vector_choose(names[i]) == 0)
            json_array_append_new(sets, json_string(names[i]));
    if (afd_vector_choose(chosen) != 0) /* it was chosen before */
        json_array_clear(sets);
    return sets;
}

static json_t *collect(void)
{
    const uint64_t kib = 1024;
    json_t *info =
        json_pack("{s:s, s:s, s:[s], s:[s, s], s:[s], s:b, s:b}", "version", afd_version(),
                  "digest", afd_digest(), "backends", "inline", "protocols", "direct", "union",
                  "fabrics", "shm", "libfabric", HAVE_LIBFABRIC, "cuda", 0);
    json_t *machine = json_pack("{s:i, s:s, s:o, s:I, s:I, s:I, s:I, s:I}", "cores", cores(),
                                "vector", afd_vector_name(), "vector_sets", vector_sets(),
                                "memory_bytes", (json_int_t)meminfo("MemTotal", kib),
                                "memory_available_bytes", (json_int_t)meminfo("MemAvailable", kib),
                                "page_bytes", (json_int_t)sysconf(_SC_PAGESIZE), "huge_page_bytes",
                                (json_int_t)meminfo("Hugepagesize", kib), "huge_pages_free",
                                (json_int_t)meminfo("HugePages_Free", 1));
    json_object_update(info, machine);
    json_decref(machine);
    return info;
}

static const char *text_of(const json_t *info, const char *key)
{
    return json_string_value(json_object_get(info, key));
}

static double gib_of(const json_t *info, const char *key)
{
    return (double)json_integer_value(json_object_get(info, key)) / 1073741824.0;
}

static long long integer_of(const json_t *info, const char *key)
{
    return (long long)json_integer_value(json_object_get(info, key));
}

static void print_table(const json_t *info)
{
    printf("afd %s, digest %s\n\n", text_of(info, "version"), text_of(info, "digest"));
    printf("this build\n  backends     inline\n  protocols    direct, union\n  fabrics      shm\n");
    printf("  libfabric    %s\n  CUDA         not in this build\n\n",
           HAVE_LIBFABRIC ? "compiled in" : "not in this build");
    printf("this machine\n  cores        %lld\n", integer_of(info, "cores"));
    printf("  vector code  %s, of", text_of(info, "vector"));
    for (size_t i = 0; i < json_array_size(json_object_get(info, "vector_sets")); i++)
        printf(" %s", json_string_value(json_array_get(json_object_get(info, "vector_sets"), i)));
    printf("\n  memory       %.1f GiB, %.1f available\n", gib_of(info, "memory_bytes"),
           gib_of(info, "memory_available_bytes"));
    printf("  pages        %lld bytes; huge pages %lld KiB, %lld free\n",
           integer_of(info, "page_bytes"), integer_of(info, "huge_page_bytes") / 1024,
           integer_of(info, "huge_pages_free"));
}

static int print(int json)
{
    json_t *info = collect();
    if (json) {
        json_dumpf(info, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        print_table(info);
    }
    json_decref(info);
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
        rc = cli_error(CLI_USAGE, "%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                       poptStrerror(rc));
    else if (poptPeekArg(context) != NULL)
        rc = cli_error(CLI_USAGE, "info takes no argument \"%s\"", poptPeekArg(context));
    else
        rc = print(json);
    poptFreeContext(context);
    return rc;
}
