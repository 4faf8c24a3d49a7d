/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - one popt table for the options that verbs share, and the few that only one has. */

#include <limits.h>
#include <popt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define SHARED_MAX 60
#define OWN_MAX 4 /* options of one verb */

/* What poptGetNextOpt() returns: a switch, or a number and where in the options it belongs. */
enum { SWITCH = 1, NUMBER_AT = 2 };

static void set_defaults(struct cli_options *o)
{
    memset(o, 0, sizeof(*o));
    o->hidden = 2048;
    o->experts = CLI_NOT_GIVEN;
    o->topk = CLI_NOT_GIVEN;
    o->exchanges = 200;
    o->stages = 1;
    o->blocks = 0;
    o->capacity = CLI_NOT_GIVEN;
    o->channels = CLI_NOT_GIVEN;
    o->align = 1;
    o->rank = CLI_NOT_GIVEN;
    o->world = CLI_NOT_GIVEN;
    o->fp8_min_tokens = CLI_NOT_GIVEN;
    o->seed = 1;
    o->repeats = 3;
}

#define TEXT(name, field, help, arg)                                                               \
    {                                                                                              \
        name, '\0', POPT_ARG_STRING, &o->field, 0, help, arg                                       \
    }
#define NUMBER(name, field, help, arg)                                                             \
    {                                                                                              \
        name, '\0', POPT_ARG_STRING, NULL, NUMBER_AT + (int)offsetof(struct cli_options, field),   \
            help, arg                                                                              \
    }
#define FLAG(name, field, help)                                                                    \
    {                                                                                              \
        name, '\0', POPT_ARG_NONE, &o->field, 0, help, NULL                                        \
    }

/* What only `bench` has; returns how many. */
static size_t fill_bench(struct cli_options *o, struct poptOption *table_out)
{
    const struct poptOption bench[] = {
        TEXT("arms", arms,
             "what is compared, with the first one: direct, union, indexed, view, indexed-view, "
             "words, mpi (default direct,indexed)",
             "ARM,..."),
        NUMBER("repeats", repeats, "launches of every arm, 1 to 32 (default 3)", "N")};
    _Static_assert(sizeof(bench) <= OWN_MAX * sizeof(struct poptOption), "too many for the table");
    memcpy(table_out, bench, sizeof(bench));
    return sizeof(bench) / sizeof(bench[0]);
}

/* The table of `verb`, which writes the options `o`. */
static void fill_table(const char *verb, struct cli_options *o, struct poptOption *table_out)
{
    const struct poptOption shared[] = {
        TEXT("layout", layout, "Attention and FFN ranks, @ ranks per domain (default 2A2F)",
             "2A2F|22A2F@2"),
        TEXT("roles", roles, "role of every rank in order, instead of --layout", "A,F,..."),
        TEXT("protocol", protocol,
             "auto, direct or union, the symmetric baseline (default auto: direct)", "NAME"),
        TEXT("backend", backend, "auto, inline or cuda (default auto)", "NAME"),
        TEXT("ranks", ranks, "processes or threads (default processes up to 8 ranks)", "HOW"),
        TEXT("fabric", fabric, "shm, ofi or emulated (default shm in one domain)", "NAME"),
        TEXT("provider", provider, "libfabric provider", "NAME"),
        NUMBER("hidden", hidden, "elements of a token; its reply has 2 bytes each (default 2048)",
               "H"),
        NUMBER("experts", experts, "experts over all FFN ranks (default 128, or the trace's)", "E"),
        NUMBER("topk", topk, "routes of a token, 1 to 32 (default 8, or the trace's)", "K"),
        TEXT("payload", payload,
             "bf16, fp8, fp8-ue8m0 or bytes:N for rows of N bytes (default bf16)", "KIND"),
        TEXT("reply", reply, "bf16 or fp8 (default bf16)", "KIND"),
        TEXT("receive", receive, "expanded or indexed (default expanded)", "LAYOUT"),
        TEXT("tokens", tokens,
             "tokens per source: a list, or a range walked up and down (default 1,8,32,128)",
             "1,8|1..64"),
        NUMBER("exchanges", exchanges, "exchanges for each size (default 200)", "N"),
        NUMBER("stages", stages, "exchanges in flight, 1 to 8 (default 1)", "N"),
        NUMBER("blocks", blocks, "blocks of a step, 1 to 256 (default: the backend's)", "N"),
        TEXT("deadline", deadline, "longest wait in an exchange, 1ms to 60m (default 10s)",
             "3s|500ms"),
        TEXT("trace", trace, "routing from an RTR1 trace", "FILE"),
        TEXT("routing", routing, "uniform (default), skewed, lognormal, one-expert, none", "KIND"),
        NUMBER("seed", seed, "of generated rows and routes (default 1)", "N"),
        FLAG("json", json, "print one JSON object on stdout"),
        NUMBER("capacity", capacity, "most tokens per source (default: the largest T)", "T"),
        NUMBER("channels", channels, "channels across domains", "N"),
        TEXT("ids", ids, "int32 or int64 (default int64)", "TYPE"),
        FLAG("weights", weights, "send weights; the FFN ranks multiply by them (default: off)"),
        FLAG("bias", bias, "add a bias row to every collected row (default: off)"),
        FLAG("view", view, "collect a view instead of a copy; needs 1 FFN rank (default: off)"),
        NUMBER("align", align, "expert groups start at multiples of this many rows (default 1)",
               "ROWS"),
        TEXT("placement", placement, "text file with the FFN index of every expert (default: even)",
             "FILE"),
        NUMBER("rank", rank, "be this rank of a job started elsewhere (default: start all ranks)",
               "R"),
        NUMBER("world", world, "ranks of that job", "N"),
        TEXT("rendezvous", rendezvous, "where its rank 0 listens", "HOST:PORT"),
        TEXT("key", key, "job key (default: AFD_KEY)", "KEY"),
        NUMBER("fp8-min-tokens", fp8_min_tokens, "smallest T with FP8 replies", "T"),
        {"switch", '\0', POPT_ARG_STRING, NULL, SWITCH,
         "variant, reply-variant, words-tokens, zero-padding, scales or first-epoch; repeatable",
         "NAME=VALUE"},
        FLAG("explain", explain, "say on stderr what was chosen and why")};
    const struct poptOption end[] = {POPT_AUTOHELP POPT_TABLEEND};
    size_t count = sizeof(shared) / sizeof(shared[0]);
    _Static_assert(sizeof(shared) + sizeof(end) <= SHARED_MAX * sizeof(struct poptOption),
                   "too many for the table");
    memcpy(table_out, shared, sizeof(shared));
    if (strcmp(verb, "bench") == 0)
        count += fill_bench(o, table_out + count);
    memcpy(table_out + count, end, sizeof(end));
}
/* Keeps the value of the option that popt returned as `rc`; the options own `text` or it is
 * freed. */
static int keep(const struct poptOption *table, int rc, char *text, struct cli_options *o)
{
    uint64_t value;
    const struct poptOption *option = table;
    if (rc == SWITCH && o->switch_count < CLI_SWITCHES_MAX) {
        o->switches[o->switch_count++] = text;
        return CLI_OK;
    }
    while (option->val != rc)
        option++;
    if (rc == SWITCH) {
        rc = cli_error(CLI_USAGE, "more than %u switches", CLI_SWITCHES_MAX);
    } else if (cli_number_parse(text, INT_MAX, &value) != 0) {
        rc = cli_error(CLI_USAGE, "--%s %s is not a whole number from 0 to %d", option->longName,
                       text, INT_MAX);
    } else {
        int number = (int)value;
        memcpy((uint8_t *)o + (rc - NUMBER_AT), &number, sizeof(number));
        rc = CLI_OK;
    }
    free(text);
    return rc;
}

int cli_options_parse(const char *verb, int argc, const char **argv, struct cli_options *o)
{
    struct poptOption table[SHARED_MAX + OWN_MAX];
    poptContext context;
    char usage[64];
    int got;
    int rc = CLI_OK;
    set_defaults(o);
    fill_table(verb, o, table);
    argv[0] = "afd";
    context = poptGetContext("afd", argc, argv, table, 0);
    snprintf(usage, sizeof(usage), "%s [OPTION...]", verb);
    poptSetOtherOptionHelp(context, usage);
    while (rc == CLI_OK && (got = poptGetNextOpt(context)) > 0)
        rc = keep(table, got, poptGetOptArg(context), o);
    if (rc == CLI_OK && got < -1)
        rc = cli_error(CLI_USAGE, "%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                       poptStrerror(got));
    else if (rc == CLI_OK && poptPeekArg(context) != NULL)
        rc = cli_error(CLI_USAGE, "%s takes no argument \"%s\"", verb, poptPeekArg(context));
    poptFreeContext(context);
    if (rc != CLI_OK)
        cli_options_free(o);
    return rc;
}

void cli_options_free(struct cli_options *o)
{
    char *texts[] = {o->layout,    o->roles,      o->protocol, o->backend, o->ranks,
                     o->fabric,    o->provider,   o->payload,  o->reply,   o->receive,
                     o->tokens,    o->deadline,   o->trace,    o->routing, o->ids,
                     o->placement, o->rendezvous, o->key,      o->arms};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        free(texts[i]);
    for (uint32_t i = 0; i < o->switch_count; i++)
        free(o->switches[i]);
}
