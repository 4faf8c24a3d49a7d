/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the primitives of the steps, and stores on their way.
 *
 * A store waits in its block's buffer until it arrives. Plain stores and LL words arrive in any
 * order; a release or an add arrives after everything its clock covers. Two stores to one place by
 * one rank arrive in their order. Nothing else is ordered: less than a CPU gives, as much as a GPU.
 */
#include "exec/sim/state.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "exec/sim/hooks.h"
#include "exec/vector.h"

_Thread_local struct afd_sim *afd_sim_now;
_Thread_local uint32_t afd_sim_mutant;
_Thread_local uint32_t afd_sim_tag_period = 0xffffffffu;

#define PROBES 16u /* stores looked at for one that may arrive */

/* -------------------------------------------------------------------------------------- arrival */

static int overlaps(const struct afd_sim_store *a, const struct afd_sim_store *b)
{
    return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

/* An older store of the same rank to the same place is still on its way. */
static int behind_another(const struct afd_sim *sim, const struct afd_sim_block *b, uint32_t i)
{
    const struct afd_sim_store *s = &b->store[i];
    uint64_t first = s->at / AFD_SIM_CELL;
    uint64_t last = (s->at + s->bytes - 1) / AFD_SIM_CELL;
    int alone = 1;
    for (uint64_t c = first; c <= last; c++)
        alone = alone && sim->cell[c].pending == 1;
    if (alone)
        return 0;
    for (uint32_t j = b->head; j < i; j++)
        if (!b->store[j].done && overlaps(s, &b->store[j]))
            return 1;
    for (uint32_t o = 0; o < sim->blocks_each; o++) {
        const struct afd_sim_block *other = &sim->block[b->rank * sim->blocks_each + o];
        for (uint32_t j = other->head; other != b && j < other->tail; j++)
            if (!other->store[j].done && other->store[j].step < s->step &&
                overlaps(s, &other->store[j]))
                return 1;
    }
    return 0;
}

static uint32_t oldest(const struct afd_sim_block *b)
{
    return b->head < b->tail ? b->store[b->head].seq : UINT32_MAX;
}

int afd_sim_may_arrive(const struct afd_sim *sim, const struct afd_sim_block *b, uint32_t i)
{
    const struct afd_sim_store *s = &b->store[i];
    if (s->done)
        return 0;
    if (s->kind == AFD_SIM_RELEASE || s->kind == AFD_SIM_ADD) {
        const uint32_t *clock = sim->clock + (uint64_t)s->clock * sim->block_count;
        if (i == b->head && sim->options.strong)
            return 1;
        for (uint32_t o = 0; o < sim->block_count; o++) {
            uint32_t first = oldest(&sim->block[o]);
            if (first <= clock[o] && (o != b->id || first < s->seq))
                return 0;
        }
    }
    return !behind_another(sim, b, i);
}

static void wake(struct afd_sim *sim, uint64_t first, uint64_t last)
{
    for (uint32_t o = 0; o < sim->block_count; o++) {
        struct afd_sim_block *b = &sim->block[o];
        uint64_t cell = (b->look - 1) / AFD_SIM_CELL;
        if (b->state == AFD_SIM_ASLEEP && b->look != 0 && cell + 3 >= first && cell <= last)
            afd_sim_ready(sim, b);
    }
}

static void word_arrives(struct afd_sim *sim, struct afd_sim_store *s, uint8_t *to)
{
    struct afd_sim_word *word = afd_sim_word_of(sim, to);
    uint64_t value;
    memcpy(&value, s->data, sizeof(value));
    if (s->kind == AFD_SIM_ADD) {
        uint64_t before;
        memcpy(&before, to, sizeof(before));
        value += before;
        afd_sim_clock_join(sim, afd_sim_clock(sim, word->clock), afd_sim_clock(sim, s->clock));
    } else {
        memcpy(afd_sim_clock(sim, word->clock), afd_sim_clock(sim, s->clock),
               sim->block_count * sizeof(uint32_t));
    }
    memcpy(to, &value, sizeof(value));
    afd_sim_clock_give(sim, s->clock);
}

void afd_sim_arrive(struct afd_sim *sim, struct afd_sim_block *b, uint32_t i)
{
    struct afd_sim_store *s = &b->store[i];
    uint64_t first = s->at / AFD_SIM_CELL;
    uint64_t last = (s->at + s->bytes - 1) / AFD_SIM_CELL;
    int awaited = 0;
    if (s->kind == AFD_SIM_PLAIN || s->kind == AFD_SIM_LL)
        memcpy(sim->arena + s->at, s->data, s->bytes);
    else
        word_arrives(sim, s, sim->arena + s->at);
    for (uint64_t c = first; c <= last; c++) {
        struct afd_sim_cell *cell = &sim->cell[c];
        cell->v_seq = s->seq;
        cell->v_block = (uint16_t)b->id;
        cell->v_step = s->step;
        cell->pending--;
        awaited |= cell->awaited;
        cell->awaited = 0;
    }
    s->done = 1;
    sim->digest = (sim->digest ^ (s->at + s->seq)) * 0x9e3779b97f4a7c15ull;
    if (sim->trace != NULL)
        afd_sim_trace_arrival(sim, b, s);
    while (b->head < b->tail && b->store[b->head].done)
        b->head++;
    if (b->head == b->tail) {
        b->head = b->tail = 0;
        afd_sim_full(sim, b, 0);
    }
    if (awaited)
        wake(sim, first, last);
}

/* Stores that the hunt holds back while anything else can move. */
static int is_lazy(const struct afd_sim *sim, const struct afd_sim_block *b,
                   const struct afd_sim_store *s)
{
    if (sim->mode.hunt == AFD_HUNT_WORDS)
        return s->kind == AFD_SIM_PLAIN;
    if (sim->mode.hunt == AFD_HUNT_LATE)
        return b->rank == sim->mode.victim_rank ||
               afd_sim_owner(sim, s->at) == sim->mode.victim_rank;
    return 0;
}

int afd_sim_drain(struct afd_sim *sim, struct afd_sim_block *b, uint32_t pick, int lazy)
{
    uint32_t length = b->tail - b->head;
    uint32_t probes = lazy ? length : PROBES;
    if (sim->options.strong)
        pick = 0;
    for (uint32_t probe = 0; probe < length && probe < probes; probe++) {
        uint32_t i = b->head + (pick + probe) % length;
        if ((!lazy && is_lazy(sim, b, &b->store[i])) || !afd_sim_may_arrive(sim, b, i)) {
            if (sim->options.strong)
                return 0;
            continue;
        }
        afd_sim_arrive(sim, b, i);
        return 1;
    }
    return 0;
}

void afd_sim_flush_own(struct afd_sim *sim, struct afd_sim_block *b)
{
    for (uint32_t i = b->head; i < b->tail;) {
        uint32_t tail = b->tail;
        if (!b->store[i].done && afd_sim_owner(sim, b->store[i].at) == b->rank)
            afd_sim_arrive(sim, b, i);
        if (b->tail != tail) /* it was the last one */
            return;
        i++;
    }
}

void afd_sim_drop(struct afd_sim *sim, struct afd_sim_block *b)
{
    for (uint32_t i = b->head; i < b->tail; i++) {
        struct afd_sim_store *s = &b->store[i];
        if (s->done)
            continue;
        for (uint64_t c = s->at / AFD_SIM_CELL; c <= (s->at + s->bytes - 1) / AFD_SIM_CELL; c++)
            sim->cell[c].pending--;
        if (s->kind == AFD_SIM_RELEASE || s->kind == AFD_SIM_ADD)
            afd_sim_clock_give(sim, s->clock);
    }
    b->head = b->tail = 0;
    afd_sim_full(sim, b, 0);
}

/* -------------------------------------------------------------------------------------- issuing */

static int in_window(struct afd_sim *sim, uint64_t at, uint64_t bytes)
{
    uint64_t control = afd_control_bytes(sim->world);
    uint32_t owner;
    uint64_t inside;
    if (at == UINT64_MAX)
        return 0;
    owner = afd_sim_owner(sim, at);
    inside = (uint64_t)(sim->arena + at - sim->rank[owner].window);
    if (inside >= control && at + bytes <= sim->arena_bytes &&
        afd_sim_owner(sim, at + bytes - 1) == owner)
        return 1;
    afd_sim_found(sim, AFD_ORACLE_ADDRESS, "%s touches %llu bytes at %s",
                  afd_sim_where(sim, sim->current->id), (unsigned long long)bytes,
                  afd_sim_place_name(sim, at));
    return 0;
}

static struct afd_sim_store *push(struct afd_sim *sim, uint64_t at, const void *data,
                                  uint64_t bytes, uint32_t kind)
{
    struct afd_sim_block *b = sim->current;
    struct afd_sim_store *s;
    if (b->tail == b->room) {
        b->room *= 2;
        b->store = realloc(b->store, b->room * sizeof(*b->store));
        AFD_ASSERT(b->store != NULL);
    }
    if (b->head == b->tail)
        afd_sim_full(sim, b, 1);
    s = &b->store[b->tail++];
    afd_sim_race_store(sim, b, at, bytes, kind);
    s->at = at;
    s->seq = b->seq;
    s->bytes = (uint16_t)bytes;
    s->step = (uint16_t)sim->rank[b->rank].steps;
    s->kind = (uint8_t)kind;
    s->done = 0;
    memcpy(s->data, data, bytes);
    for (uint64_t c = at / AFD_SIM_CELL; c <= (at + bytes - 1) / AFD_SIM_CELL; c++)
        sim->cell[c].pending++;
    return s;
}

/* Appends to the store before it, if it goes on where that one ends: one store to the hardware. */
static int append(struct afd_sim *sim, uint64_t at, const void *data, uint64_t bytes)
{
    struct afd_sim_block *b = sim->current;
    struct afd_sim_store *s = &b->store[b->tail - 1];
    uint64_t next = at / AFD_SIM_CELL;
    if (b->head == b->tail || s->done || s->kind != AFD_SIM_PLAIN || s->seq != b->seq ||
        s->at + s->bytes != at || s->bytes + bytes > 16)
        return 0;
    if (next != (at - 1) / AFD_SIM_CELL) {
        b->seq--; /* part of the same access */
        afd_sim_race_store(sim, b, at, bytes, AFD_SIM_PLAIN);
        sim->cell[next].pending++;
    }
    memcpy(s->data + s->bytes, data, bytes);
    s->bytes = (uint16_t)(s->bytes + bytes);
    return 1;
}

/* Bytes of one rank's row in pieces that arrive one by one. */
static void store_pieces(struct afd_sim *sim, uint64_t at, const uint8_t *from, uint64_t bytes)
{
    if (bytes == 0 || !in_window(sim, at, bytes))
        return;
    while (bytes > 0) {
        uint64_t piece = 16 - at % 16;
        if (bytes > 4 * AFD_SIM_STORE_BYTES)
            piece += AFD_SIM_STORE_BYTES - 16;
        piece = piece < bytes ? piece : bytes;
        push(sim, at, from, piece, AFD_SIM_PLAIN);
        at += piece;
        from += piece;
        bytes -= piece;
    }
}

void afd_sim_store(void *place, const void *from, uint64_t bytes)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t at = afd_sim_offset(sim, place);
    if (at == UINT64_MAX) {
        memcpy(place, from, bytes);
        return;
    }
    if (sim->stopping || append(sim, at, from, bytes) || afd_sim_point(sim, 0))
        return;
    if (sim->trace != NULL)
        afd_sim_trace_access(sim, sim->current, "store", at, bytes, 0);
    store_pieces(sim, at, from, bytes);
}

void afd_sim_load(void *to, const void *place, uint64_t bytes)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t at = afd_sim_offset(sim, place);
    if (at != UINT64_MAX && !sim->stopping) {
        if ((at & 15) == 0 && afd_sim_point(sim, 1))
            return;
        if (!in_window(sim, at, bytes)) {
            memset(to, 0, bytes);
            return;
        }
        afd_sim_race_load(sim, sim->current, at, bytes);
        if (sim->trace != NULL)
            afd_sim_trace_access(sim, sim->current, "load", at, bytes, 0);
    }
    memcpy(to, place, bytes);
}

void afd_sim_copy(uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    struct afd_sim *sim = afd_sim_now;
    uint8_t piece[256];
    if (afd_sim_offset(sim, src) == UINT64_MAX) {
        afd_sim_store(dst, src, bytes);
        return;
    }
    while (bytes > 0) {
        uint64_t part = bytes < sizeof(piece) ? bytes : sizeof(piece);
        afd_sim_load(piece, src, part);
        afd_sim_store(dst, piece, part);
        dst += part;
        src += part;
        bytes -= part;
    }
}

void afd_sim_rows_sum(uint16_t *row_out, const uint16_t *const *terms, const float *weights,
                      uint32_t count, uint32_t n)
{
    enum { CHUNK = 64 };
    uint16_t copy[AFD_TOPK_MAX + 2][CHUNK];
    const uint16_t *from[AFD_TOPK_MAX + 2];
    uint16_t sum[CHUNK];
    AFD_ASSERT(count <= AFD_TOPK_MAX + 2);
    for (uint32_t begin = 0; begin < n; begin += CHUNK) {
        uint32_t length = n - begin < CHUNK ? n - begin : CHUNK;
        for (uint32_t i = 0; i < count; i++) {
            afd_sim_load(copy[i], terms[i] + begin, length * sizeof(uint16_t));
            from[i] = copy[i];
        }
        afd_vector_sum(sum, from, weights, count, length);
        afd_sim_store(row_out + begin, sum, length * sizeof(uint16_t));
    }
}

/* ------------------------------------------------------------------------------------- LL words */

void afd_sim_ll_store(uint64_t *place, uint64_t low, uint64_t high)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t both[2] = {low, high};
    uint64_t at = afd_sim_offset(sim, place);
    if (sim->stopping || afd_sim_point(sim, 0) || at == UINT64_MAX || !in_window(sim, at, 16))
        return;
    if (sim->trace != NULL)
        afd_sim_trace_access(sim, sim->current, "word", at, 16, high >> 32);
    if (AFD_MUTANT(word_torn)) {
        push(sim, at, &low, 8, AFD_SIM_LL);
        push(sim, at + 8, &high, 8, AFD_SIM_LL);
        return;
    }
    push(sim, at, both, 16, AFD_SIM_LL);
}

void afd_sim_look_commit(struct afd_sim *sim, struct afd_sim_block *b)
{
    if (b->look_hit == 0)
        return;
    b->look_hit = 0;
    afd_sim_race_ll(sim, b, b->look - 1);
}

void afd_sim_ll_load(const uint64_t *place, uint64_t *low_out, uint64_t *high_out)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t at = afd_sim_offset(sim, place);
    *low_out = *high_out = 0;
    if (sim->stopping || afd_sim_point(sim, 1) || at == UINT64_MAX || !in_window(sim, at, 16))
        return;
    *low_out = place[0];
    *high_out = place[1];
    sim->current->look = at + 1;
    sim->current->look_hit = 1;
    if (sim->trace != NULL)
        afd_sim_trace_access(sim, sim->current, "look", at, 16, *high_out >> 32);
}

/* ---------------------------------------------------------------------------------------- words */

uint64_t afd_sim_word_acquire(const uint64_t *place)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t at = afd_sim_offset(sim, place);
    struct afd_sim_word *word;
    if (sim->stopping || afd_sim_point(sim, 1) || (at != UINT64_MAX && !in_window(sim, at, 8)))
        return 0;
    word = afd_sim_word_of(sim, place);
    if (!AFD_MUTANT(acquire_relaxed) || at == UINT64_MAX)
        afd_sim_clock_join(sim, sim->current->now, afd_sim_clock(sim, word->clock));
    sim->current->look = at == UINT64_MAX ? 0 : at + 1;
    sim->current->look_hit = 0;
    if (sim->trace != NULL && at != UINT64_MAX)
        afd_sim_trace_access(sim, sim->current, "acquire", at, 8, *place);
    return *place;
}

/* One writer, and values that only grow. */
static void check_word(struct afd_sim *sim, struct afd_sim_word *word, uint64_t value, int is_add)
{
    struct afd_sim_block *b = sim->current;
    uint64_t at = afd_sim_offset(sim, word->place);
    if (word->writer != 0 && word->writer != b->rank + 1)
        afd_sim_found(sim, AFD_ORACLE_WORD, "%s writes %s, a word of rank %u",
                      afd_sim_where(sim, b->id), afd_sim_place_name(sim, at), word->writer - 1);
    if (!is_add && value < word->value)
        afd_sim_found(sim, AFD_ORACLE_WORD, "%s sets %s from %llu back to %llu",
                      afd_sim_where(sim, b->id), afd_sim_place_name(sim, at),
                      (unsigned long long)word->value, (unsigned long long)value);
    word->writer = b->rank + 1;
    word->value = is_add ? word->value + value : value;
}

static uint32_t released(struct afd_sim *sim, struct afd_sim_block *b, int relaxed)
{
    uint32_t clock = afd_sim_clock_take(sim, b->now);
    if (relaxed)
        memset(afd_sim_clock(sim, clock), 0, sim->block_count * sizeof(uint32_t));
    return clock;
}

void afd_sim_word_release(uint64_t *place, uint64_t value)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t at = afd_sim_offset(sim, place);
    struct afd_sim_store *s;
    if (sim->stopping || afd_sim_point(sim, 0) || at == UINT64_MAX || !in_window(sim, at, 8))
        return;
    if (sim->trace != NULL)
        afd_sim_trace_access(sim, sim->current, "release", at, 8, value);
    check_word(sim, afd_sim_word_of(sim, place), value, 0);
    s = push(sim, at, &value, 8, AFD_SIM_RELEASE);
    s->clock = released(sim, sim->current, AFD_MUTANT(release_relaxed));
}

/* An add to private memory is done at once: a rank's blocks share a cache. */
static uint64_t add_own(struct afd_sim *sim, uint64_t *place, uint64_t add)
{
    struct afd_sim_block *b = sim->current;
    struct afd_sim_word *word = afd_sim_word_of(sim, place);
    uint64_t before = *place;
    afd_sim_flush_own(sim, b);
    b->seq++;
    b->now[b->id] = b->seq;
    afd_sim_clock_join(sim, b->now, afd_sim_clock(sim, word->clock));
    afd_sim_clock_join(sim, afd_sim_clock(sim, word->clock), b->now);
    *place = before + add;
    for (uint32_t i = 0; i < sim->blocks_each; i++) { /* those that wait at a gate */
        struct afd_sim_block *other = &sim->block[b->rank * sim->blocks_each + i];
        if (other->state == AFD_SIM_ASLEEP && other->look == 0)
            afd_sim_ready(sim, other);
    }
    return before;
}

uint64_t afd_sim_word_add(uint64_t *place, uint64_t add)
{
    struct afd_sim *sim = afd_sim_now;
    uint64_t at = afd_sim_offset(sim, place);
    struct afd_sim_store *s;
    if (at == UINT64_MAX && sim->stopping) { /* the last block still has to be one */
        *place += add;
        return *place - add;
    }
    if (afd_sim_point(sim, at == UINT64_MAX))
        return 0;
    if (at == UINT64_MAX)
        return add_own(sim, place, add);
    if (sim->stopping || !in_window(sim, at, 8))
        return 0;
    if (sim->trace != NULL)
        afd_sim_trace_access(sim, sim->current, "add", at, 8, add);
    check_word(sim, afd_sim_word_of(sim, place), add, 1);
    s = push(sim, at, &add, 8, AFD_SIM_ADD);
    s->clock = released(sim, sim->current, AFD_MUTANT(add_relaxed));
    return *place;
}
