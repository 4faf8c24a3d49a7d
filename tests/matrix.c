/* SPDX-License-Identifier: Apache-2.0 */
/* matrix.c - the options of a job as factors of a pairwise table, and a job made of one of its
 * rows. */

#include "matrix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- factors */

enum {
    LAYOUT,
    HIDDEN,
    EXPERTS,
    TOPK,
    PAYLOAD,
    CAPACITY,
    TOKENS,
    STAGES,
    RECEIVE,
    ALIGNMENT,
    WEIGHTS,
    COLLECT,
    IDS,
    PLACEMENT,
    VARIANT,
    REPLY_VARIANT,
    WORDS_TOKENS,
    BLOCKS,
    FIRST_EPOCH,
    THREADS,
    STRIDES,
    COUNT,
    BATCH,
    ROUTING,
    FACTORS
};

enum { TOKENS_FEW, TOKENS_ZERO, TOKENS_ONE, TOKENS_FULL, TOKENS_MIXED, TOKENS_EDGE };
enum { WEIGHTS_NONE, WEIGHTS_ALL, WEIGHTS_ODD, WEIGHTS_REPLY };
enum { COLLECT_COPY, COLLECT_BIAS_1, COLLECT_BIAS_2, COLLECT_VIEW };
enum { PLACEMENT_EVEN, PLACEMENT_RANDOM, PLACEMENT_LAST, PLACEMENT_HOLE };
enum { VARIANT_PER_RANK = 3, VARIANT_CHANGING = 4 }; /* after those of enum afd_variant */
enum { BLOCKS_ONE, BLOCKS_PER_RANK, BLOCKS_CHANGING };
enum { STRIDES_PACKED, STRIDES_GAPS, STRIDES_MISALIGNED };

/* The first level of each goes with every level of the others (pairwise.h). */
static const struct factor {
    const char *name;
    const char *level[PAIRWISE_LEVELS_MAX];
} factors[FACTORS] = {
    {"layout", {"AF", "AAFF", "AAAF", "AFFF", "FAFA", "AAAAAFFF", "FFFFFAA", "AFAAFAFA"}},
    {"hidden", {"128", "1", "7", "127", "129", "300", "2048", "2880"}},
    {"experts", {"13", "1", "2", "5", "64", "257", "1025"}},
    {"topk", {"2", "1", "4", "5", "8", "32"}},
    {"payload",
     {"bf16", "fp8", "fp8 by column", "ue8m0", "ue8m0 by column", "bytes 1", "bytes 37 + 5",
      "bytes 96", "bytes 1030 + 12", "bytes 3 + 700"}},
    {"capacity", {"300", "1", "7", "40", "129"}},
    {"tokens", {"few", "zero", "one", "full", "mixed", "edge"}},
    {"stages", {"1", "2", "3", "4", "5", "6", "7", "8"}},
    {"receive", {"expanded", "indexed"}},
    {"alignment", {"1", "8", "8 zeroed", "128", "128 zeroed"}},
    {"weights", {"none", "all", "odd", "reply"}},
    {"collect", {"copy", "1 bias", "2 bias", "view"}},
    {"ids", {"int64", "int32"}},
    {"placement", {"even", "random", "last", "hole"}},
    {"variant", {"auto", "words", "rows", "per rank", "changing"}},
    {"reply_variant", {"auto", "words", "rows", "per rank", "changing"}},
    {"words_tokens", {"1", "0", "16", "256"}},
    {"blocks", {"1", "per rank", "changing", "17"}},
    {"first_epoch", {"1", "4294967293", "8589934588", "4611686018427387904"}},
    {"threads", {"no", "yes"}},
    {"strides", {"packed", "gaps", "misaligned"}},
    {"count", {"host", "device"}},
    {"batch", {"library's", "caller's"}},
    {"routing", {"uniform", "full", "hot", "none", "no third"}},
};

static uint32_t level_count(uint32_t factor)
{
    uint32_t count = 0;
    while (count < PAIRWISE_LEVELS_MAX && factors[factor].level[count] != NULL)
        count++;
    return count;
}

static const char *level_text(const struct pairwise_row *row, uint32_t factor)
{
    return factors[factor].level[row->level[factor]];
}

static uint64_t number(const struct pairwise_row *row, uint32_t factor)
{
    return strtoull(level_text(row, factor), NULL, 10);
}

static uint32_t count_letter(const char *roles, char letter)
{
    uint32_t count = 0;
    for (; *roles != '\0'; roles++)
        count += *roles == letter;
    return count;
}

void matrix_describe(const struct pairwise_row *row, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t f = 0; f < FACTORS && used < size; f++)
        used += (size_t)snprintf(text + used, size - used, "%s%s: %s", f == 0 ? "" : ", ",
                                 factors[f].name, level_text(row, f));
}

/* --------------------------------------------------------------------------------------- tokens */

#define WAVES 6u

/* T of source s in exchange n. */
static uint32_t tokens_of(const struct pairwise_row *row, uint64_t n, uint32_t s)
{
    uint32_t capacity = (uint32_t)number(row, CAPACITY);
    uint32_t words = (uint32_t)number(row, WORDS_TOKENS);
    const uint32_t mixed[] = {0, 1, capacity / 2, 3, capacity, 2};
    const uint32_t edge[] = {words, words + 1, words == 0 ? 0 : words - 1};
    uint32_t tokens = (uint32_t)((n * 3 + s * 5) % 6);
    switch (row->level[TOKENS]) {
    case TOKENS_ZERO:
        return 0;
    case TOKENS_ONE:
        return 1;
    case TOKENS_FULL:
        tokens = (n + s) % 3 == 0 ? capacity : tokens;
        break;
    case TOKENS_MIXED: /* every fifth exchange is empty on all ranks */
        tokens = n % 5 == 4 ? 0 : mixed[(n + s) % 6];
        break;
    case TOKENS_EDGE:
        tokens = edge[(n + s) % 3];
        break;
    default:
        break;
    }
    return tokens < capacity ? tokens : capacity;
}

/* ---------------------------------------------------------------------------------------- rules */

static uint32_t sources_of(const struct pairwise_row *row)
{
    return count_letter(level_text(row, LAYOUT), 'A');
}

/* Terms that the experts and the reference add up in the whole row, padding included. */
static uint64_t cost(const struct pairwise_row *row)
{
    uint64_t experts = number(row, EXPERTS);
    uint64_t topk = number(row, TOPK);
    uint64_t lanes = topk < experts ? topk : experts;
    uint64_t rows = 0;
    for (uint64_t n = 1; n <= WAVES * number(row, STAGES); n++) {
        uint64_t pairs = 0;
        for (uint32_t s = 0; s < sources_of(row); s++)
            pairs += tokens_of(row, n, s) * lanes;
        rows += pairs + (pairs < experts ? pairs : experts) * (number(row, ALIGNMENT) - 1) / 8;
    }
    return rows * (number(row, HIDDEN) + 100);
}

#define COST_MAX 8000000u

static int is_legal(const struct pairwise_row *row)
{
    uint8_t reply_variant = row->level[REPLY_VARIANT];
    if (row->level[COLLECT] == COLLECT_VIEW && count_letter(level_text(row, LAYOUT), 'F') != 1)
        return 0;
    if (row->level[COLLECT] == COLLECT_VIEW && reply_variant != AFD_VARIANT_AUTO &&
        reply_variant != AFD_VARIANT_ROWS)
        return 0;
    if (row->level[BATCH] != 0 && row->level[RECEIVE] != 0) /* indexed: there is no batch memory */
        return 0;
    if (number(row, WORDS_TOKENS) > number(row, CAPACITY))
        return 0;
    return cost(row) <= COST_MAX;
}

int matrix_make(uint64_t seed, struct matrix *matrix)
{
    struct pairwise p;
    memset(matrix, 0, sizeof(*matrix));
    memset(&p, 0, sizeof(p));
    p.factors = matrix->factors = FACTORS;
    p.legal = is_legal;
    p.seed = seed;
    for (uint32_t f = 0; f < FACTORS; f++)
        p.levels[f] = level_count(f);
    return pairwise_make(&p, matrix->row, MATRIX_ROWS_MAX, &matrix->counts);
}

/* ---------------------------------------------------------------------------------------- a job */

static void set_payload(const struct pairwise_row *row, struct afd_buffer_config *c)
{
    const char *text = level_text(row, PAYLOAD);
    c->scale_layout = strstr(text, "by column") != NULL;
    if (strncmp(text, "fp8", 3) == 0)
        c->payload = AFD_PAYLOAD_FP8;
    else if (strncmp(text, "ue8m0", 5) == 0)
        c->payload = AFD_PAYLOAD_FP8_UE8M0;
    else if (sscanf(text, "bytes %u + %u", &c->payload_bytes, &c->scale_bytes) >= 1)
        c->payload = AFD_PAYLOAD_BYTES;
}

static void set_config(const struct pairwise_row *row, struct afd_buffer_config *c)
{
    afd_buffer_config_init(c);
    c->capacity = (uint32_t)number(row, CAPACITY);
    c->hidden = (uint32_t)number(row, HIDDEN);
    c->experts = (uint32_t)number(row, EXPERTS);
    c->topk = (uint32_t)number(row, TOPK);
    set_payload(row, c);
    c->stages = (uint32_t)number(row, STAGES);
    c->words_tokens = (uint32_t)number(row, WORDS_TOKENS);
    c->receive = row->level[RECEIVE] == 0 ? AFD_RECEIVE_EXPANDED : AFD_RECEIVE_INDEXED;
    c->alignment = (uint32_t)number(row, ALIGNMENT);
    c->zero_padding = strstr(level_text(row, ALIGNMENT), "zeroed") != NULL;
    c->weighted_reply = row->level[WEIGHTS] == WEIGHTS_REPLY;
    c->first_epoch = number(row, FIRST_EPOCH);
}

static void set_options(const struct pairwise_row *row, struct job_options *o)
{
    static const uint32_t weights[] = {JOB_WEIGHTS_NONE, JOB_WEIGHTS_ALL, JOB_WEIGHTS_ODD,
                                       JOB_WEIGHTS_ALL};
    static const uint32_t routing[] = {JOB_ROUTING_UNIFORM, JOB_ROUTING_FULL, JOB_ROUTING_HOT,
                                       JOB_ROUTING_NONE, JOB_ROUTING_UNIFORM};
    o->narrow_ids = row->level[IDS];
    o->with_weights = weights[row->level[WEIGHTS]];
    o->view = row->level[COLLECT] == COLLECT_VIEW;
    o->bias_count = o->view ? 0 : row->level[COLLECT];
    o->no_routes_in = strcmp(level_text(row, ROUTING), "no third") == 0 ? 3 : 0;
    o->routing = routing[row->level[ROUTING]];
    o->threads = row->level[THREADS];
    o->device_count = row->level[COUNT];
    o->gap = row->level[STRIDES] == STRIDES_PACKED ? 0 : 6;
    o->shift = row->level[STRIDES] == STRIDES_MISALIGNED ? 3 : 0;
    o->own_batch = row->level[BATCH];
}

/* FFN rank of the next expert; "last" and "hole" leave ranks without any expert. */
static uint32_t placed(uint8_t kind, uint32_t ffn_ranks, uint64_t *state)
{
    switch (kind) {
    case PLACEMENT_RANDOM:
        return (uint32_t)(job_random(state) % ffn_ranks);
    case PLACEMENT_LAST:
        return ffn_ranks - 1;
    default: /* hole: rank 0 has none, the others have unequal shares, mixed */
        return ffn_ranks == 1 ? 0 : 1 + (uint32_t)(job_random(state) % 7 % (ffn_ranks - 1));
    }
}

static uint32_t *make_placement(const struct pairwise_row *row, uint32_t experts,
                                uint32_t ffn_ranks, uint64_t seed)
{
    uint32_t *placement = job_need(malloc(experts * sizeof(*placement)));
    uint64_t state = seed;
    for (uint32_t e = 0; e < experts; e++)
        placement[e] = placed(row->level[PLACEMENT], ffn_ranks, &state);
    return placement;
}

/* A lone block often: its credits are another kind of write. */
static uint32_t random_blocks(uint64_t wave, uint32_t rank)
{
    static const uint32_t blocks[] = {1, 16, 1, 5, 2, 1, 17, 11};
    return blocks[job_mix(wave * 64 + rank + 1) % 8];
}

static uint32_t blocks_of(const struct pairwise_row *row, uint32_t rank)
{
    if (row->level[BLOCKS] == BLOCKS_PER_RANK)
        return 1 + (5 * rank + 2) % 17;
    if (row->level[BLOCKS] == BLOCKS_CHANGING) /* starts with the backend's choice */
        return 0;
    return (uint32_t)number(row, BLOCKS);
}

static uint32_t variant_of(uint8_t level, uint64_t wave, uint32_t rank)
{
    if (level == VARIANT_PER_RANK)
        return rank % 3;
    return level == VARIANT_CHANGING ? (uint32_t)((wave + rank) % 3) : level;
}

void matrix_case_begin(const struct pairwise_row *row, uint64_t seed, struct matrix_case *c)
{
    struct afd_buffer_config config;
    c->row = row;
    c->waves = WAVES;
    c->placement = NULL;
    set_config(row, &config);
    job_init(&c->job, level_text(row, LAYOUT), &config);
    set_options(row, &c->job.options);
    c->job.seed = seed;
    if (row->level[PLACEMENT] != PLACEMENT_EVEN)
        c->placement = make_placement(row, config.experts, c->job.ffn_ranks, seed);
    for (uint32_t r = 0; r < c->job.world; r++) {
        c->job.config[r].placement = c->placement;
        c->job.config[r].blocks = blocks_of(row, r);
        c->job.config[r].variant = variant_of(row->level[VARIANT], 0, r);
        c->job.config[r].reply_variant = variant_of(row->level[REPLY_VARIANT], 0, r + 1);
    }
}

static int change(struct matrix_case *c, uint64_t wave)
{
    int rc = 0;
    for (uint32_t r = 0; rc == 0 && r < c->job.world; r++) {
        if (c->row->level[BLOCKS] == BLOCKS_CHANGING)
            rc = afd_buffer_set_blocks(c->job.buffer[r], random_blocks(wave, r));
        if (rc == 0)
            rc = afd_buffer_set_variant(c->job.buffer[r],
                                        variant_of(c->row->level[VARIANT], wave, r),
                                        variant_of(c->row->level[REPLY_VARIANT], wave, r + 1));
    }
    return rc;
}

int matrix_case_wave(struct matrix_case *c, uint32_t wave)
{
    uint32_t tokens[AFD_STAGES_MAX][JOB_RANKS_MAX];
    struct job_flight flight[AFD_STAGES_MAX];
    uint32_t stages = c->job.config[0].stages;
    int rc = wave == 0 ? 0 : change(c, wave);
    for (uint32_t i = 0; i < stages; i++) {
        flight[i].stage = (i + wave) % stages;
        flight[i].exchange = 1 + (uint64_t)wave * stages + i;
        flight[i].tokens = tokens[i];
        for (uint32_t s = 0; s < c->job.sources; s++)
            tokens[i][s] = tokens_of(c->row, flight[i].exchange, s);
    }
    return rc != 0 ? rc : job_fly(&c->job, flight, stages);
}

void matrix_case_end(struct matrix_case *c)
{
    job_close(&c->job);
    free(c->placement);
    c->placement = NULL;
}
