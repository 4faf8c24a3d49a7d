/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - the verb `memory`: what a configuration needs, per rank and region, without running
 * it. */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "job.h"

static int query(const struct cli_job *job, uint32_t rank, struct afd_memory *memory)
{
    struct afd_group_config group;
    afd_group_config_init(&group);
    group.world = job->layout.world;
    group.roles = job->layout.roles;
    if (afd_buffer_memory(&group, &job->config, rank, memory) == 0)
        return CLI_OK;
    return cli_error(CLI_USAGE, "%s", afd_last_error());
}

static const char *role_name(const struct cli_job *job, uint32_t rank)
{
    return job->layout.roles[rank] == AFD_ROLE_FFN ? "ffn" : "attention";
}

static json_t *rank_json(const struct cli_job *job, uint32_t rank, const struct afd_memory *m)
{
    json_t *regions = json_array();
    for (uint32_t i = 0; i < m->region_count; i++)
        json_array_append_new(regions, json_pack("{s:s, s:I, s:b}", "name", m->region[i].name,
                                                 "bytes", (json_int_t)m->region[i].bytes,
                                                 "registered", (int)m->region[i].registered));
    return json_pack("{s:i, s:s, s:I, s:I, s:o}", "rank", (int)rank, "role", role_name(job, rank),
                     "registered_bytes", (json_int_t)m->registered_bytes, "private_bytes",
                     (json_int_t)m->private_bytes, "regions", regions);
}

static void rank_table(const struct cli_job *job, uint32_t rank, const struct afd_memory *m)
{
    printf("rank %u (%s): %llu registered bytes, %llu private\n", rank, role_name(job, rank),
           (unsigned long long)m->registered_bytes, (unsigned long long)m->private_bytes);
    for (uint32_t i = 0; i < m->region_count; i++)
        printf("    %-16s %16llu  %s\n", m->region[i].name, (unsigned long long)m->region[i].bytes,
               m->region[i].registered ? "registered" : "private");
}

static int print(const struct cli_job *job)
{
    uint64_t largest = 0;
    json_t *ranks = json_array();
    json_t *root;
    for (uint32_t r = 0; r < job->layout.world; r++) {
        struct afd_memory memory;
        int rc = query(job, r, &memory);
        if (rc != CLI_OK) {
            json_decref(ranks);
            return rc;
        }
        largest = memory.registered_bytes > largest ? memory.registered_bytes : largest;
        if (job->options.json)
            json_array_append_new(ranks, rank_json(job, r, &memory));
        else
            rank_table(job, r, &memory);
    }
    if (!job->options.json)
        printf("largest rank: %llu registered bytes\n", (unsigned long long)largest);
    root = json_pack("{s:s, s:s, s:I, s:o}", "layout", job->layout.name, "protocol",
                     cli_protocol_name(job->config.protocol), "largest_registered_bytes",
                     (json_int_t)largest, "ranks", ranks);
    if (job->options.json) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    }
    json_decref(root);
    return CLI_OK;
}

int cli_memory_main(int argc, const char **argv)
{
    struct cli_options options;
    struct cli_job *job = malloc(sizeof(*job));
    int rc = job == NULL ? CLI_FAILED : cli_options_parse("memory", argc, argv, &options);
    if (rc == CLI_OK) {
        rc = cli_job_make(&options, job);
        if (rc == CLI_OK) {
            rc = print(job);
            cli_job_free(job);
        }
        cli_options_free(&options);
    }
    free(job);
    return rc;
}
