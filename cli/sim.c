/* SPDX-License-Identifier: Apache-2.0 */
/* sim.c - the verb `sim`: schedules of a whole job in one thread, and what their oracles found. */

#include "sim.h"

#include <jansson.h>
#include <popt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "exec/sim/sim.h"

#define NOT_GIVEN (-1)
#define MUTANT_SCHEDULES 2000
#define EXHAUSTIVE_MOST 20000000ull
#define SAID_MOST 5u /* findings that are printed */

struct sim_cli {
    char *layout_text;
    char *protocol;
    char *routing;
    char *hunt;
    char *fault;
    char *receive;
    char *mutant_text;
    char *explain;
    int tokens;
    int hidden;
    int experts;
    int topk;
    int exchanges;
    int stages;
    int blocks;
    int words;
    int seeds;
    int seeds_given;
    int seed;
    int tag_period;
    int preemptions;
    int view;
    int weights;
    int strong;
    int exhaustive;
    int mutants;
    int json;
    /* made of the above */
    struct cli_layout layout;
    struct afd_sim_options options;
    /* results */
    uint64_t schedules;
    uint64_t findings;
    uint32_t complete; /* exhaustive: every schedule within the bound has run */
    struct afd_sim_report first;
    double seconds;
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* -------------------------------------------------------------------------------------- options */

#define TEXT(name, field, help, arg)                                                               \
    {                                                                                              \
        name, '\0', POPT_ARG_STRING, &c->field, 0, help, arg                                       \
    }
#define NUMBER(name, field, help, arg)                                                             \
    {                                                                                              \
        name, '\0', POPT_ARG_INT, &c->field, 0, help, arg                                          \
    }
#define FLAG(name, field, help)                                                                    \
    {                                                                                              \
        name, '\0', POPT_ARG_NONE, &c->field, 0, help, NULL                                        \
    }

static void set_defaults(struct sim_cli *c)
{
    memset(c, 0, sizeof(*c));
    c->tokens = c->hidden = c->experts = c->topk = c->exchanges = c->stages = NOT_GIVEN;
    c->blocks = c->words = c->seeds = c->seed = c->tag_period = c->preemptions = NOT_GIVEN;
}

static int parse(struct sim_cli *c, int argc, const char **argv)
{
    struct poptOption table[] = {
        TEXT("layout", layout_text, "Attention and FFN ranks (default 2A2F)", "2A2F"),
        TEXT("protocol", protocol, "direct (default)", "NAME"),
        NUMBER("tokens", tokens, "most tokens of a source; each exchange draws 0 to T (default 8)",
               "T"),
        NUMBER("hidden", hidden, "elements of a token (default 16)", "H"),
        NUMBER("experts", experts, "experts over all FFN ranks (default 128)", "E"),
        NUMBER("topk", topk, "routes of a token, 1 to 32 (default 8)", "K"),
        NUMBER("exchanges", exchanges, "exchanges of a schedule (default 4; exhaustive 2)", "N"),
        NUMBER("stages", stages, "exchanges in flight, 1 to 8 (default 1)", "N"),
        NUMBER("blocks", blocks, "blocks of a step, 1 to 8 (default: drawn, 1 to 4)", "N"),
        NUMBER("words", words, "largest T that may travel as words (default: T)", "W"),
        TEXT("receive", receive, "expanded or indexed (default expanded)", "LAYOUT"),
        TEXT("routing", routing, "uniform, skewed, sparse, one-expert or none (default uniform)",
             "KIND"),
        FLAG("view", view, "collect views (1 FFN rank)"),
        FLAG("weights", weights, "send weights; the FFN ranks multiply by them"),
        NUMBER("seeds", seeds, "schedules (default 200)", "N"),
        NUMBER("seed", seed, "the first one; without --seeds the only one", "S"),
        TEXT("hunt", hunt, "mix, uniform, starve, freeze, late, words or pct (default mix)",
             "MODE"),
        TEXT("fault", fault, "none, die, stall, abort or route (default none)", "KIND"),
        NUMBER("tag-period", tag_period, "epochs after which tags of words repeat (default 2^32-1)",
               "N"),
        FLAG("strong", strong, "stores of a block arrive in their order"),
        TEXT("mutant", mutant_text, "break the protocol: a name that --mutants lists", "NAME"),
        FLAG("mutants", mutants, "hunt every mutant; fails if one survives"),
        FLAG("exhaustive", exhaustive, "every schedule within the bound, for tiny jobs"),
        NUMBER("preemptions", preemptions, "that bound (default 2)", "N"),
        TEXT("explain", explain, "timeline of the finding as a Chrome trace; text on stderr",
             "FILE"),
        FLAG("json", json, "print one JSON object on stdout"),
        POPT_AUTOHELP POPT_TABLEEND};
    poptContext context = poptGetContext("afd", argc, argv, table, 0);
    int rc;
    poptSetOtherOptionHelp(context, "sim [OPTION...]");
    rc = poptGetNextOpt(context);
    if (rc < -1)
        rc = cli_error(CLI_USAGE, "%s: %s", poptBadOption(context, POPT_BADOPTION_NOALIAS),
                       poptStrerror(rc));
    else if (poptPeekArg(context) != NULL)
        rc = cli_error(CLI_USAGE, "sim takes no argument \"%s\"", poptPeekArg(context));
    else
        rc = CLI_OK;
    poptFreeContext(context);
    return rc;
}

/* A name of a table, by number. */
static int pick(const char *what, const char *text, const char *(*name)(uint32_t), uint32_t count,
                uint32_t *value)
{
    for (uint32_t i = 0; text != NULL && i < count; i++) {
        if (strcmp(text, name(i)) != 0)
            continue;
        *value = i;
        return CLI_OK;
    }
    return text == NULL ? CLI_OK : cli_error(CLI_USAGE, "--%s %s is not known", what, text);
}

static const char *routing_name(uint32_t i)
{
    static const char *const names[] = {"uniform", "skewed", "sparse", "one-expert", "none"};
    return names[i];
}

static const char *mutant_name(uint32_t i)
{
    return afd_mutant_info(i)->name;
}

static int set(const char *what, int given, uint32_t low, uint32_t *value)
{
    if (given == NOT_GIVEN)
        return CLI_OK;
    if (given < 0 || (uint32_t)given < low)
        return cli_error(CLI_USAGE, "--%s %d; it must be at least %u", what, given, low);
    *value = (uint32_t)given;
    return CLI_OK;
}

static int set_layout(struct sim_cli *c)
{
    struct afd_sim_options *o = &c->options;
    char text[64];
    int given = c->layout_text != NULL;
    if (given && o->mutant != AFD_MUTANT_none && o->view) {
        fprintf(stderr, "afd: %s is about views, which need 1 FFN rank; --layout has no effect\n",
                mutant_name(o->mutant));
        given = 0;
    }
    snprintf(text, sizeof(text), "%uA%uF", o->sources, o->ffn_ranks);
    if (cli_layout_parse(given ? c->layout_text : text, &c->layout) != CLI_OK)
        return CLI_USAGE;
    if (c->layout.per_domain != 0)
        return cli_error(CLI_USAGE, "sim works in one domain in this build");
    o->sources = c->layout.sources;
    o->ffn_ranks = c->layout.ffn_ranks;
    return CLI_OK;
}

static int set_protocol(struct sim_cli *c)
{
    const char *p = c->protocol;
    if (p == NULL || strcmp(p, "auto") == 0 || strcmp(p, "direct") == 0)
        c->options.config.protocol = AFD_PROTOCOL_DIRECT;
    else if (strcmp(p, "union") == 0)
        c->options.config.protocol = AFD_PROTOCOL_UNION;
    else
        return cli_error(CLI_USAGE, "protocol %s cannot be simulated in this build", p);
    if (c->receive == NULL || strcmp(c->receive, "expanded") == 0)
        return CLI_OK;
    if (strcmp(c->receive, "indexed") != 0)
        return cli_error(CLI_USAGE, "--receive %s is not known", c->receive);
    c->options.config.receive = AFD_RECEIVE_INDEXED;
    return CLI_OK;
}

/* A tiny job, so that every schedule can run. */
static void set_tiny(struct sim_cli *c)
{
    struct afd_sim_options *o = &c->options;
    o->exchanges = 2;
    o->blocks = 1;
    o->fixed_tokens = 1;
    o->config.capacity = 1;
    o->config.words_tokens = 1;
    o->config.hidden = 4;
    o->config.experts = 2;
    o->config.topk = 1;
}

static int set_numbers(struct sim_cli *c)
{
    struct afd_sim_options *o = &c->options;
    int rc = CLI_OK;
    if (c->tokens > 0 && c->words == NOT_GIVEN && o->config.words_tokens != 0)
        o->config.words_tokens = c->tokens < 256 ? (uint32_t)c->tokens : 256;
    rc = rc ? rc : set("tokens", c->tokens, 1, &o->config.capacity);
    rc = rc ? rc : set("hidden", c->hidden, 1, &o->config.hidden);
    rc = rc ? rc : set("experts", c->experts, 1, &o->config.experts);
    rc = rc ? rc : set("topk", c->topk, 1, &o->config.topk);
    rc = rc ? rc : set("exchanges", c->exchanges, 1, &o->exchanges);
    rc = rc ? rc : set("stages", c->stages, 1, &o->config.stages);
    rc = rc ? rc : set("blocks", c->blocks, 1, &o->blocks);
    rc = rc ? rc : set("words", c->words, 0, &o->config.words_tokens);
    rc = rc ? rc : set("tag-period", c->tag_period, 2, &o->tag_period);
    rc = rc ? rc : set("preemptions", c->preemptions, 0, &o->preemptions);
    return rc;
}

static int make_options(struct sim_cli *c)
{
    struct afd_sim_options *o = &c->options;
    uint32_t mutant = AFD_MUTANT_none;
    int rc = pick("mutant", c->mutant_text, mutant_name, AFD_MUTANT_COUNT, &mutant);
    if (rc != CLI_OK)
        return rc;
    afd_sim_options_init(o);
    o->config.experts = 128;
    o->config.topk = 8;
    if (mutant != AFD_MUTANT_none)
        afd_mutant_options(mutant, o);
    if (c->exhaustive)
        set_tiny(c);
    o->view |= (uint32_t)c->view;
    o->weights |= (uint32_t)c->weights;
    o->config.weighted_reply |= (uint32_t)c->weights;
    o->strong = (uint32_t)c->strong;
    rc = set_layout(c);
    rc = rc ? rc : set_protocol(c);
    rc = rc ? rc : set_numbers(c);
    rc = rc ? rc : pick("routing", c->routing, routing_name, 5, &o->routing);
    rc = rc ? rc : pick("hunt", c->hunt, afd_hunt_name, AFD_HUNT_COUNT, &o->hunt);
    rc = rc ? rc : pick("fault", c->fault, afd_sim_fault_name, AFD_SIM_FAULT_COUNT, &o->fault);
    c->seeds_given = c->seeds != NOT_GIVEN;
    if (!c->seeds_given)
        c->seeds = c->seed != NOT_GIVEN ? 1 : !c->exhaustive ? 200 : c->layout.world > 2 ? 1 : 4;
    if (c->seed == NOT_GIVEN)
        c->seed = 1;
    if (rc == CLI_OK && (c->seeds < 1 || c->seed < 0))
        rc = cli_error(CLI_USAGE, "--seeds is at least 1, and --seed at least 0");
    return rc;
}

/* ------------------------------------------------------------------------------------ schedules */

/* The options of this run again, but for those that say which schedules. */
static void print_replay(int argc, const char **argv, uint64_t seed, FILE *to)
{
    static const char *const left_out[] = {"--seed", "--seeds", "--explain"};
    fprintf(to, "    afd sim");
    for (int i = 1; i < argc; i++) {
        size_t skip = 0;
        for (size_t k = 0; k < 3; k++) {
            size_t length = strlen(left_out[k]);
            if (strncmp(argv[i], left_out[k], length) == 0)
                skip = argv[i][length] == '=' ? 1 : argv[i][length] == '\0' ? 2 : skip;
        }
        if (strcmp(argv[i], "--json") == 0)
            skip = 1;
        if (skip == 2)
            i++;
        if (skip == 0)
            fprintf(to, " %s", argv[i]);
    }
    fprintf(to, " --seed %llu --explain trace.json\n", (unsigned long long)seed);
}

static int explain(struct sim_cli *c, struct afd_sim *sim, uint64_t seed)
{
    FILE *chrome = fopen(c->explain, "w");
    struct afd_sim_report report;
    int rc;
    if (chrome == NULL)
        return cli_error(CLI_FAILED, "%s cannot be written", c->explain);
    rc = afd_sim_explain(sim, seed, stderr, chrome, &report);
    if (fclose(chrome) != 0 || rc != 0)
        return cli_error(CLI_FAILED, "the timeline could not be written to %s", c->explain);
    fprintf(stderr, "afd: %s has the whole timeline; open it in Perfetto\n", c->explain);
    return CLI_OK;
}

static int run_seeds(struct sim_cli *c, int argc, const char **argv)
{
    struct afd_sim *sim = NULL;
    double begin = now_s();
    int rc = afd_sim_create(&c->options, &sim);
    if (rc != 0)
        return cli_error(CLI_USAGE, "%s", afd_last_error());
    for (int i = 0; i < c->seeds; i++) {
        struct afd_sim_report report;
        uint64_t schedules = 1;
        uint64_t seed = (uint64_t)c->seed + (uint64_t)i;
        if (c->exhaustive)
            rc = afd_sim_explore(sim, seed, EXHAUSTIVE_MOST, &report, &schedules, &c->complete);
        else
            rc = afd_sim_run(sim, seed, &report);
        if (rc != 0)
            break;
        c->schedules += schedules;
        cli_progress("schedules", (uint64_t)i + 1, (uint64_t)c->seeds);
        if (report.oracle == AFD_ORACLE_NONE)
            continue;
        if (c->findings++ == 0)
            c->first = report;
        if (c->findings > SAID_MOST)
            continue;
        cli_progress_end();
        fprintf(stderr, "afd: seed %llu (hunt %s) found %s: %s\n", (unsigned long long)seed,
                afd_hunt_name(report.hunt), afd_oracle_name(report.oracle), report.text);
        if (!c->exhaustive)
            print_replay(argc, argv, seed, stderr);
        if (c->options.mutant != AFD_MUTANT_none)
            break; /* dead */
    }
    cli_progress_end();
    c->seconds = now_s() - begin;
    if (rc != 0)
        rc = cli_error(CLI_FAILED, "%s", afd_last_error());
    else if (c->explain != NULL)
        rc = explain(c, sim, c->findings != 0 ? c->first.seed : (uint64_t)c->seed);
    afd_sim_destroy(sim);
    return rc != CLI_OK ? rc : c->findings != 0 ? CLI_CHECK : CLI_OK;
}

static void print_seeds(const struct sim_cli *c)
{
    double per_s = c->seconds > 0 ? (double)c->schedules / c->seconds : 0;
    const char *protocol = c->options.config.protocol == AFD_PROTOCOL_UNION ? "union" : "direct";
    if (!c->json) {
        printf("%s, %s: %llu schedules, %llu findings, %.0f schedules/s%s\n", protocol,
               c->layout.name, (unsigned long long)c->schedules, (unsigned long long)c->findings,
               per_s, c->exhaustive ? c->complete ? ", complete" : ", not complete" : "");
        return;
    }
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:s, s:s}", "protocol", protocol, "layout",
                  c->layout.name, "schedules", (json_int_t)c->schedules, "findings",
                  (json_int_t)c->findings, "schedules_per_s", per_s, "hunt",
                  afd_hunt_name(c->options.hunt), "fault", afd_sim_fault_name(c->options.fault));
    if (c->exhaustive) {
        json_object_set_new(root, "complete", json_boolean(c->complete));
        json_object_set_new(root, "preemptions", json_integer(c->options.preemptions));
    }
    if (c->findings != 0)
        json_object_set_new(root, "first",
                            json_pack("{s:I, s:s, s:s, s:s}", "seed", (json_int_t)c->first.seed,
                                      "hunt", afd_hunt_name(c->first.hunt), "oracle",
                                      afd_oracle_name(c->first.oracle), "text", c->first.text));
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

/* -------------------------------------------------------------------------------------- mutants */

static void print_kill(const struct sim_cli *c, uint32_t m, const struct afd_mutant_kill *kill)
{
    int dead = kill->report.oracle != AFD_ORACLE_NONE;
    if (!c->json)
        printf("%-34s %s  %-9s %6llu  %s\n", afd_mutant_info(m)->name, afd_mutant_info(m)->rule,
               dead ? afd_oracle_name(kill->report.oracle) : "SURVIVED",
               (unsigned long long)kill->schedules, afd_mutant_info(m)->what);
}

static int hunt_mutants(struct sim_cli *c)
{
    json_t *killed = json_array();
    json_t *survived = json_array();
    uint64_t most = c->seeds_given ? (uint64_t)c->seeds : MUTANT_SCHEDULES;
    int survivors;
    json_t *root;
    for (uint32_t m = 1; m < AFD_MUTANT_COUNT; m++) {
        struct afd_mutant_kill kill;
        const char *name = afd_mutant_info(m)->name;
        if (afd_mutant_hunt(m, most, &kill) != 0) {
            json_decref(killed);
            json_decref(survived);
            return cli_error(CLI_FAILED, "%s: %s", name, afd_last_error());
        }
        cli_progress("mutants", m, AFD_MUTANT_COUNT - 1);
        print_kill(c, m, &kill);
        if (kill.report.oracle == AFD_ORACLE_NONE)
            json_array_append_new(survived, json_string(name));
        else
            json_array_append_new(killed, json_pack("{s:s, s:s, s:s, s:I, s:I}", "name", name,
                                                    "rule", afd_mutant_info(m)->rule, "oracle",
                                                    afd_oracle_name(kill.report.oracle),
                                                    "schedules", (json_int_t)kill.schedules, "seed",
                                                    (json_int_t)kill.report.seed));
    }
    cli_progress_end();
    survivors = (int)json_array_size(survived);
    root = json_pack("{s:s, s:i, s:o, s:o}", "protocol", "direct", "mutants",
                     (int)AFD_MUTANT_COUNT - 1, "survived", survived, "killed", killed);
    if (c->json) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    } else {
        printf("%d mutants, %d survived\n", (int)AFD_MUTANT_COUNT - 1, survivors);
    }
    json_decref(root);
    return survivors != 0 ? CLI_CHECK : CLI_OK;
}

/* ----------------------------------------------------------------------------------------- verb */

static void free_texts(struct sim_cli *c)
{
    free(c->layout_text);
    free(c->protocol);
    free(c->routing);
    free(c->hunt);
    free(c->fault);
    free(c->receive);
    free(c->mutant_text);
    free(c->explain);
}

int cli_sim_main(int argc, const char **argv)
{
    struct sim_cli *c = malloc(sizeof(*c));
    int rc;
    if (c == NULL)
        return cli_error(CLI_FAILED, "no memory");
    set_defaults(c);
    rc = parse(c, argc, argv);
    if (rc == CLI_OK)
        rc = make_options(c);
    if (rc == CLI_OK && c->mutants) {
        rc = hunt_mutants(c);
    } else if (rc == CLI_OK) {
        rc = run_seeds(c, argc, argv);
        if (rc != CLI_USAGE && rc != CLI_FAILED)
            print_seeds(c);
    }
    free_texts(c);
    free(c);
    return rc;
}
