/* SPDX-License-Identifier: Apache-2.0 */
/*
 * race.c - clocks, and the checks of every access to a window against them.
 *
 * Reported are: a read of bytes whose writer's release the reader has not acquired; a store over
 * bytes that a reader may still need; two stores to the same bytes without order; and bytes used as
 * a word and as plain bytes at once. Declared free: a receiver's wipe over a peer's LL word,
 * and two FFN ranks using one row of a reply region, once it has been read.
 */
#include "exec/sim/state.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

/* --------------------------------------------------------------------------------------- clocks */

uint32_t afd_sim_clock_take(struct afd_sim *sim, const uint32_t *from)
{
    uint32_t index;
    if (sim->clock_free_count != 0) {
        index = sim->clock_free[--sim->clock_free_count];
    } else {
        if (sim->clock_used == sim->clock_room) {
            sim->clock_room *= 2;
            sim->clock = realloc(sim->clock, (uint64_t)sim->clock_room * sim->block_count *
                                                 sizeof(*sim->clock));
            sim->clock_free = realloc(sim->clock_free, sim->clock_room * sizeof(uint32_t));
            AFD_ASSERT(sim->clock != NULL && sim->clock_free != NULL);
        }
        index = sim->clock_used++;
    }
    if (from != NULL)
        memcpy(afd_sim_clock(sim, index), from, sim->block_count * sizeof(uint32_t));
    else
        memset(afd_sim_clock(sim, index), 0, sim->block_count * sizeof(uint32_t));
    return index;
}

void afd_sim_clock_give(struct afd_sim *sim, uint32_t index)
{
    sim->clock_free[sim->clock_free_count++] = index;
}

void afd_sim_clock_join(struct afd_sim *sim, uint32_t *into, const uint32_t *from)
{
    for (uint32_t i = 0; i < sim->block_count; i++)
        into[i] = into[i] > from[i] ? into[i] : from[i];
}

static uint32_t word_slot(const struct afd_sim *sim, const void *place)
{
    uint64_t hash = (uint64_t)(uintptr_t)place / 8 * 0x9e3779b97f4a7c15ull;
    uint32_t slot = (uint32_t)(hash >> 32) & (sim->word_room - 1);
    while (sim->word[slot].place != NULL && sim->word[slot].place != place)
        slot = (slot + 1) & (sim->word_room - 1);
    return slot;
}

static void grow_words(struct afd_sim *sim)
{
    struct afd_sim_word *old = sim->word;
    uint32_t room = sim->word_room;
    sim->word_room *= 2;
    sim->word = calloc(sim->word_room, sizeof(*sim->word));
    AFD_ASSERT(sim->word != NULL);
    for (uint32_t i = 0; i < room; i++)
        if (old[i].place != NULL)
            sim->word[word_slot(sim, old[i].place)] = old[i];
    free(old);
}

struct afd_sim_word *afd_sim_word_of(struct afd_sim *sim, const void *place)
{
    struct afd_sim_word *word = &sim->word[word_slot(sim, place)];
    if (word->place != NULL)
        return word;
    if (2 * ++sim->word_count > sim->word_room) {
        grow_words(sim);
        word = &sim->word[word_slot(sim, place)];
    }
    word->place = place;
    word->value = 0;
    word->writer = 0;
    word->clock = afd_sim_clock_take(sim, NULL);
    return word;
}

void afd_sim_step_joins(struct afd_sim *sim, struct afd_sim_rank *rank)
{
    struct afd_sim_block *first = afd_sim_block_of(sim, rank, 0);
    for (uint32_t i = 0; i < sim->blocks_each; i++) {
        struct afd_sim_block *b = first + i;
        b->seq++;
        b->now[b->id] = b->seq;
        if (i != 0)
            afd_sim_clock_join(sim, first->now, b->now);
    }
    for (uint32_t i = 0; i < sim->blocks_each; i++) {
        struct afd_sim_block *b = first + i;
        if (i != 0)
            memcpy(b->now, first->now, sim->block_count * sizeof(uint32_t));
        b->step_seq = b->seq;
    }
    rank->steps++;
    rank->heard[rank->rank] = rank->steps;
    for (uint32_t r = 0; r < sim->world; r++)
        if (rank->heard[r] > rank->witness[r])
            rank->witness[r] = rank->heard[r];
    AFD_ASSERT(rank->steps < rank->history_room);
    memcpy(rank->history + (uint64_t)rank->steps * sim->world, rank->witness,
           sim->world * sizeof(uint32_t));
}

/* --------------------------------------------------------------------------------------- checks */

/* Access `seq` of block `by` is ordered before what block b does now. */
static int before(const struct afd_sim *sim, const struct afd_sim_block *b, uint32_t by,
                  uint32_t seq)
{
    const struct afd_sim_block *other = &sim->block[by];
    if (other == b)
        return 1;
    if (other->rank == b->rank && seq <= other->step_seq)
        return 1;
    return b->now[by] >= seq;
}

/* The reads of a cell since its last store are complete before what block b does now. */
static int reads_before(const struct afd_sim *sim, const struct afd_sim_block *b,
                        const struct afd_sim_cell *cell)
{
    uint32_t reader = sim->block[cell->r_block].rank;
    if (reader != b->rank && sim->rank[b->rank].witness[reader] >= cell->r_step)
        return 1;
    return before(sim, b, cell->r_block, cell->r_seq) &&
           (cell->o_seq == 0 || before(sim, b, cell->o_block, cell->o_seq));
}

static void race(struct afd_sim *sim, const struct afd_sim_block *b, const char *does, uint64_t at,
                 const char *what, uint32_t by)
{
    char other[160];
    strncpy(other, afd_sim_where(sim, by), sizeof(other) - 1);
    other[sizeof(other) - 1] = '\0';
    afd_sim_found(sim, AFD_ORACLE_RACE, "%s %s %s, %s the block that is now %s",
                  afd_sim_where(sim, b->id), does, afd_sim_place_name(sim, at), what, other);
}

static int is_word(uint32_t kind)
{
    return kind == AFD_SIM_RELEASE || kind == AFD_SIM_ADD;
}

static void check_store(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at,
                        const struct afd_sim_cell *cell, uint32_t kind)
{
    uint32_t writer = sim->block[cell->w_block].rank;
    int wipe =
        kind == AFD_SIM_LL && cell->w_kind == AFD_SIM_LL && afd_sim_owner(sim, at) == b->rank;
    if (cell->w_kind != kind && is_word(cell->w_kind) + is_word(kind) != 2)
        afd_sim_found(sim, AFD_ORACLE_WORD,
                      "%s stores plain bytes over a word, or a word over plain "
                      "bytes, at %s",
                      afd_sim_where(sim, b->id), afd_sim_place_name(sim, at));
    if (cell->r_seq != 0 && !reads_before(sim, b, cell))
        race(sim, b, "overwrites", at, "which may still be read by", cell->r_block);
    else if (cell->r_seq == 0 && !wipe && writer != b->rank &&
             !before(sim, b, cell->w_block, cell->w_seq))
        race(sim, b, "overwrites", at, "which nobody has read, written by", cell->w_block);
    else if (writer == b->rank && !before(sim, b, cell->w_block, cell->w_seq))
        race(sim, b, "overwrites", at, "written without order by", cell->w_block);
}

static void note_read(const struct afd_sim *sim, const struct afd_sim_block *b,
                      struct afd_sim_cell *cell)
{
    if (cell->r_seq != 0 && cell->r_block != b->id) {
        cell->o_seq = cell->r_seq;
        cell->o_block = cell->r_block;
    }
    cell->r_seq = b->seq + 1; /* covered by what this block issues next */
    cell->r_block = (uint16_t)b->id;
    cell->r_step = (uint16_t)(sim->rank[b->rank].steps + 1);
}

void afd_sim_race_store(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at, uint64_t bytes,
                        uint32_t kind)
{
    b->seq++;
    b->now[b->id] = b->seq;
    for (uint64_t c = at / AFD_SIM_CELL; c <= (at + bytes - 1) / AFD_SIM_CELL; c++) {
        struct afd_sim_cell *cell = &sim->cell[c];
        if (cell->w_seq != 0 && !(is_word(kind) && is_word(cell->w_kind)))
            check_store(sim, b, c * AFD_SIM_CELL, cell, kind);
        cell->w_seq = b->seq;
        cell->w_block = (uint16_t)b->id;
        cell->w_kind = (uint8_t)kind;
        cell->r_seq = cell->o_seq = 0;
        if (afd_sim_owner(sim, at) == b->rank) /* a wipe: peers may write once it is certified */
            note_read(sim, b, cell);
    }
}

void afd_sim_race_load(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at, uint64_t bytes)
{
    for (uint64_t c = at / AFD_SIM_CELL; c <= (at + bytes - 1) / AFD_SIM_CELL; c++) {
        struct afd_sim_cell *cell = &sim->cell[c];
        if (cell->w_seq != 0 && cell->w_kind != AFD_SIM_PLAIN)
            afd_sim_found(sim, AFD_ORACLE_WORD, "%s reads a word as plain bytes at %s",
                          afd_sim_where(sim, b->id), afd_sim_place_name(sim, c * AFD_SIM_CELL));
        if (cell->w_seq != 0 && !before(sim, b, cell->w_block, cell->w_seq))
            race(sim, b, "reads", c * AFD_SIM_CELL, "which no acquire covers, written by",
                 cell->w_block);
        note_read(sim, b, cell);
    }
}

/* What a rank has heard: everything that the writer's rank knew when its step began. */
static void hear(struct afd_sim *sim, struct afd_sim_rank *rank, uint32_t writer, uint32_t step)
{
    const uint32_t *known = sim->rank[writer].history + (uint64_t)step * sim->world;
    if (writer == rank->rank || rank->heard[writer] >= step)
        return;
    for (uint32_t r = 0; r < sim->world; r++)
        if (known[r] > rank->heard[r])
            rank->heard[r] = known[r];
}

void afd_sim_race_ll(struct afd_sim *sim, struct afd_sim_block *b, uint64_t at)
{
    for (uint64_t c = at / AFD_SIM_CELL; c < at / AFD_SIM_CELL + 4; c++) {
        struct afd_sim_cell *cell = &sim->cell[c];
        if (cell->w_seq != 0 && cell->w_kind != AFD_SIM_LL)
            afd_sim_found(sim, AFD_ORACLE_WORD, "%s reads plain bytes as an LL word at %s",
                          afd_sim_where(sim, b->id), afd_sim_place_name(sim, at));
        if (cell->v_seq != cell->w_seq || cell->v_block != cell->w_block)
            race(sim, b, "consumes", at, "while it is being overwritten by", cell->w_block);
        note_read(sim, b, cell);
    }
    if (sim->cell[at / AFD_SIM_CELL].v_seq != 0) {
        const struct afd_sim_cell *cell = &sim->cell[at / AFD_SIM_CELL];
        hear(sim, &sim->rank[b->rank], sim->block[cell->v_block].rank, cell->v_step);
    }
}
