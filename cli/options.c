/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - one popt table for the options that verbs share. */

#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { SWITCH = 1 };

static void set_defaults(struct cli_options *o)
{
    memset(o, 0, sizeof(*o));
    o->hidden = 2048;
    o->experts = -1;
    o->topk = -1;
    o->exchanges = 200;
    o->stages = 1;
    o->blocks = 0;
    o->capacity = -1;
    o->channels = -1;
    o->align = 1;
    o->rank = -1;
    o->world = -1;
    o->fp8_min_tokens = -1;
    o->seed = 1;
}

#define TEXT(name, field, help, arg)                                                               \
    {                                                                                              \
        name, '\0', POPT_ARG_STRING, &o->field, 0, help, arg                                       \
    }
#define NUMBER(name, field, help, arg)                                                             \
    {                                                                                              \
        name, '\0', POPT_ARG_INT, &o->field, 0, help, arg                                          \
    }
#define FLAG(name, field, help)                                                                    \
    {                                                                                              \
        name, '\0', POPT_ARG_NONE, &o->field, 0, help, NULL                                        \
    }

static int parse(const char *verb, int argc, const char **argv, struct cli_options *o)
{
    char *one_switch = NULL;
    struct poptOption table[] = {
        TEXT("layout", layout, "Attention and FFN ranks, @ ranks per domain (default 2A2F)",
             "2A2F|22A2F@2"),
        TEXT("roles", roles, "role of every rank in order, instead of --layout", "A,F,..."),
        TEXT("protocol", protocol, "auto, direct or union (default auto)", "NAME"),
        TEXT("backend", backend, "auto, inline or cuda (default auto)", "NAME"),
        TEXT("ranks", ranks, "processes or threads (default processes up to 8 ranks)", "HOW"),
        TEXT("fabric", fabric, "shm, ofi or emulated (default shm in one domain)", "NAME"),
        TEXT("provider", provider, "libfabric provider", "NAME"),
        NUMBER("hidden", hidden, "elements of a token (default 2048)", "H"),
        NUMBER("experts", experts, "experts over all FFN ranks (default 128, or the trace's)", "E"),
        NUMBER("topk", topk, "routes of a token, 1 to 32 (default 8, or the trace's)", "K"),
        TEXT("payload", payload, "bf16, fp8, fp8-ue8m0 or bytes:N (default bf16)", "KIND"),
        TEXT("reply", reply, "bf16 or fp8 (default bf16)", "KIND"),
        TEXT("receive", receive, "expanded or indexed (default expanded)", "LAYOUT"),
        TEXT("tokens", tokens,
             "tokens per source: a list, or a range walked up and down by powers "
             "of two (default 1,8,32,128)",
             "1,8|1..64"),
        NUMBER("exchanges", exchanges, "exchanges for each size (default 200)", "N"),
        NUMBER("stages", stages, "exchanges in flight, 1 to 8 (default 1)", "N"),
        NUMBER("blocks", blocks, "blocks of a step, 1 to 256 (default: the backend's)", "N"),
        TEXT("deadline", deadline, "longest wait in an exchange (default 10s)", "3s|500ms"),
        TEXT("trace", trace, "routing from an RTR1 trace", "FILE"),
        TEXT("routing", routing, "uniform, skewed, lognormal, one-expert or none (default uniform)",
             "KIND"),
        NUMBER("seed", seed, "of generated rows and routes (default 1)", "N"),
        FLAG("json", json, "print one JSON object on stdout"),
        NUMBER("capacity", capacity, "most tokens per source (default: the largest T)", "T"),
        NUMBER("channels", channels, "channels across domains", "N"),
        TEXT("ids", ids, "int32 or int64 (default int64)", "TYPE"),
        FLAG("weights", weights, "send weights; the FFN ranks multiply by them"),
        FLAG("bias", bias, "add a bias row to every collected row"),
        FLAG("view", view, "collect a view instead of a copy (1 FFN rank)"),
        NUMBER("align", align, "rows that expert groups are aligned to (default 1)", "ROWS"),
        TEXT("placement", placement, "FFN index of every expert, in a file", "FILE"),
        NUMBER("rank", rank, "be this rank of a job started elsewhere", "R"),
        NUMBER("world", world, "ranks of that job", "N"),
        TEXT("rendezvous", rendezvous, "where its rank 0 listens", "HOST:PORT"),
        TEXT("key", key, "job key (default: AFD_KEY)", "KEY"),
        NUMBER("fp8-min-tokens", fp8_min_tokens, "smallest T with FP8 replies", "T"),
        {"switch", '\0', POPT_ARG_STRING, &one_switch, SWITCH, "set a switch; repeatable",
         "NAME=VALUE"},
        FLAG("explain", explain, "say on stderr what was chosen and why"),
        POPT_AUTOHELP POPT_TABLEEND};
    poptContext context = poptGetContext("afd", argc, argv, table, 0);
    char usage[64];
    int rc;
    snprintf(usage, sizeof(usage), "%s [OPTION...]", verb);
    poptSetOtherOptionHelp(context, usage);
    while ((rc = poptGetNextOpt(context)) == SWITCH) {
        if (o->switch_count == CLI_SWITCHES_MAX) {
            free(one_switch);
            poptFreeContext(context);
            return cli_error(CLI_USAGE, "more than %u switches", CLI_SWITCHES_MAX);
        }
        o->switches[o->switch_count++] = one_switch;
        one_switch = NULL;
    }
    if (rc < -1)
        rc = cli_error(CLI_USAGE, "%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                       poptStrerror(rc));
    else if (poptPeekArg(context) != NULL)
        rc = cli_error(CLI_USAGE, "%s takes no argument \"%s\"", verb, poptPeekArg(context));
    else
        rc = CLI_OK;
    poptFreeContext(context);
    return rc;
}

int cli_options_parse(const char *verb, int argc, const char **argv, struct cli_options *options)
{
    set_defaults(options);
    return parse(verb, argc, argv, options);
}

void cli_options_free(struct cli_options *o)
{
    char *texts[] = {o->layout,   o->roles,   o->protocol, o->backend,   o->ranks,      o->fabric,
                     o->provider, o->payload, o->reply,    o->receive,   o->tokens,     o->deadline,
                     o->trace,    o->routing, o->ids,      o->placement, o->rendezvous, o->key};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        free(texts[i]);
    for (uint32_t i = 0; i < o->switch_count; i++)
        free(o->switches[i]);
}
