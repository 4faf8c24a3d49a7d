/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.c - what went wrong where, and who is to blame.
 *
 * A wait that lasts asks, in this order: did a peer publish a fault, was the group aborted, has a
 * process ended, has the awaited peer closed its buffer, has the deadline passed. The first fault
 * of a job is written into every peer's window, so that all ranks report the same cause. On expiry
 * the chain of who waits for whom is followed to the rank that waits for nobody.
 */

#include <string.h>

#include "buffer.h"
#include "error.h"

/* -------------------------------------------------------------------------------------- records */

/* Writes `fault` into this rank's slot of peer `to`; the first fault stays. */
static void publish_to(const struct afd_buffer *buffer, uint32_t to, const struct afd_fault *fault)
{
    struct afd_control_fault *slot =
        afd_control_fault_of(afd_buffer_control(buffer, to), buffer->group->config.rank);
    uint64_t empty = AFD_FAULT_EMPTY;
    if (!__atomic_compare_exchange_n(&slot->state, &empty, AFD_FAULT_CLAIMED, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return;
    slot->fault = *fault;
    __atomic_store_n(&slot->state, AFD_FAULT_READY, __ATOMIC_RELEASE); /* pairs with adopt() */
}

static void publish(const struct afd_buffer *buffer, const struct afd_fault *fault)
{
    for (uint32_t r = 0; r < buffer->group->config.world; r++)
        if (r != buffer->group->config.rank && buffer->window[r].base != NULL)
            publish_to(buffer, r, fault);
}

void afd_buffer_publish_abort(struct afd_buffer *buffer)
{
    struct afd_fault fault;
    memset(&fault, 0, sizeof(fault));
    fault.code = AFD_EABORTED;
    fault.rank = fault.reporter = buffer->group->config.rank;
    fault.peer = UINT32_MAX;
    publish(buffer, &fault);
}

/* Takes over a fault that a peer published to this rank. 1 if there was one. */
static int adopt(struct afd_buffer *buffer, struct afd_verdict *verdict_out)
{
    struct afd_control *own = afd_buffer_control(buffer, buffer->group->config.rank);
    for (uint32_t r = 0; r < buffer->group->config.world; r++) {
        struct afd_control_fault *slot = afd_control_fault_of(own, r);
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != AFD_FAULT_READY)
            continue; /* pairs with publish_to() */
        buffer->fault = slot->fault;
        buffer->adopted = 1;
        verdict_out->code = buffer->fault.code;
        verdict_out->rank = buffer->fault.rank;
        return 1;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------- blame */

static uint64_t waiting_of(const struct afd_buffer *buffer, uint32_t rank)
{
    /* pairs with afd_call_run() */
    return __atomic_load_n(&afd_buffer_control(buffer, rank)->waiting, __ATOMIC_ACQUIRE);
}

/* Stage, exchange and half of it: what ranks of both roles that are in one barrier have in
 * common. */
static uint64_t place_of(uint64_t waiting)
{
    uint32_t back = afd_waiting_phase(waiting) >= AFD_PHASE_REPLY;
    return (waiting & (0x0full << 56 | 0xffffffffu)) | (uint64_t)back << 60;
}

/* Whom a rank waits for that waits for all: the first that waits for nobody, else the first that
 * waits somewhere else than rank `at`; `at` if all wait at one place. */
static uint32_t absent(const struct afd_buffer *buffer, uint32_t at)
{
    uint32_t world = buffer->group->config.world;
    uint64_t here = place_of(waiting_of(buffer, at));
    uint32_t elsewhere = at;
    for (uint32_t r = 0; r < world; r++) {
        uint64_t waiting = waiting_of(buffer, r);
        if (waiting == 0)
            return r;
        if (place_of(waiting) != here && elsewhere == at)
            elsewhere = r;
    }
    return elsewhere;
}

/* In a ring of ranks that wait for each other: the one that the oldest exchange waits for, which
 * the others have behind them. Of several, whom rank `at` waits for, else the first. */
static uint32_t laggard(const struct afd_buffer *buffer, uint32_t at)
{
    uint32_t world = buffer->group->config.world;
    uint64_t oldest = waiting_of(buffer, at);
    uint32_t blamed = afd_waiting_peer(oldest);
    for (uint32_t hops = 0; hops < world; hops++) {
        uint64_t waiting = waiting_of(buffer, at);
        uint32_t next = afd_waiting_peer(waiting);
        if (waiting == 0 || next >= world)
            return at; /* it got on just now */
        /* the low bits of epochs, which wrap */
        if ((int32_t)((uint32_t)waiting - (uint32_t)oldest) < 0) {
            oldest = waiting;
            blamed = next;
        }
        at = next;
    }
    return blamed;
}

/* From the awaited peer along "waits for" to a rank that waits for nobody, or around a ring. */
static uint32_t culprit(const struct afd_buffer *buffer, uint32_t peer)
{
    uint32_t world = buffer->group->config.world;
    uint32_t me = buffer->group->config.rank;
    uint32_t at = peer;
    if (peer == AFD_WAIT_ALL_RANKS)
        return absent(buffer, me);
    for (uint32_t hops = 0; hops < world && at != me; hops++) {
        uint64_t waiting = waiting_of(buffer, at);
        uint32_t next = afd_waiting_peer(waiting);
        if (waiting != 0 && next == AFD_WAIT_ALL_RANKS)
            return absent(buffer, at);
        if (waiting == 0 || next >= world)
            return at;
        at = next;
    }
    return laggard(buffer, at);
}

static int peer_closed(const struct afd_buffer *buffer, uint32_t peer)
{
    return peer < buffer->group->config.world &&
           __atomic_load_n(&afd_buffer_control(buffer, peer)->life, __ATOMIC_ACQUIRE) ==
               AFD_LIFE_CLOSED;
}

/* An awaited rank that will not come any more; UINT32_MAX if there is none. */
static uint32_t who_closed(const struct afd_buffer *buffer, uint32_t peer)
{
    for (uint32_t r = 0; r < buffer->group->config.world; r++)
        if ((r == peer || peer == AFD_WAIT_ALL_RANKS) && peer_closed(buffer, r))
            return r;
    return UINT32_MAX;
}

struct afd_verdict afd_buffer_watch(void *context, const struct afd_wait *wait, uint64_t waited_us)
{
    struct afd_buffer *buffer = context;
    uint32_t me = buffer->group->config.rank;
    uint32_t world = buffer->group->config.world;
    struct afd_verdict verdict = {0, wait->peer};
    uint64_t epoch = afd_buffer_state(buffer, buffer->running_stage)->epoch + 1;
    if (wait->peer < world || wait->peer == AFD_WAIT_ALL_RANKS)
        __atomic_store_n(
            &afd_buffer_control(buffer, me)->waiting,
            afd_waiting_pack(buffer->running_phase, buffer->running_stage, wait->peer, epoch),
            __ATOMIC_RELEASE);
    if (adopt(buffer, &verdict))
        return verdict;
    if (afd_group_is_aborted(buffer->group)) {
        verdict.code = AFD_EABORTED;
        verdict.rank = me;
        return verdict;
    }
    for (uint32_t r = 0; r < world; r++) {
        if (!afd_group_has_ended(buffer->group, r) || peer_closed(buffer, r))
            continue;
        verdict.code = AFD_EPEER;
        verdict.rank = r;
        return verdict;
    }
    verdict.rank = who_closed(buffer, wait->peer);
    if (verdict.rank < world) {
        verdict.code = AFD_EPEER;
        return verdict;
    }
    verdict.rank = wait->peer;
    if (waited_us < buffer->deadline_us)
        return verdict;
    verdict.code = AFD_EPEER;
    if (wait->peer < world || wait->peer == AFD_WAIT_ALL_RANKS)
        verdict.rank = culprit(buffer, wait->peer);
    /* one of them may wait no more because it has failed: it told why before */
    (void)adopt(buffer, &verdict);
    return verdict;
}

/* ------------------------------------------------------------------------------------ sentences */

const char *afd_phase_name(uint32_t phase)
{
    static const char *const names[] = {"none", "dispatch", "receive", "reply", "collect"};
    return phase < sizeof(names) / sizeof(names[0]) ? names[phase] : "unknown";
}

static const char *word_name(uint32_t kind)
{
    static const char *const names[] = {
        "nothing", "header",      "route table", "rows",  "row words", "reply header",
        "replies", "reply words", "own blocks",  "state", "barrier",   "counts",
    };
    return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown word";
}

/* Rounds of a stage: entry, exit, entry, exit, ... */
static int say_barrier(const struct afd_buffer *buffer, const struct afd_fault *f, const char *what)
{
    uint32_t world = buffer->group->config.world;
    return afd_error_set(
        f->code,
        "rank %u %s: rank %u waited at the %s of %s for all %u ranks, %llu of them "
        "came, stage %u, exchange %llu (deadline %llu ms)",
        f->rank, what, f->reporter, f->expected / world % 2 != 0 ? "entry" : "exit",
        afd_phase_name(f->phase), world, (unsigned long long)(world - (f->expected - f->seen)),
        f->stage, (unsigned long long)f->epoch, (unsigned long long)(buffer->deadline_us / 1000));
}

static int say_peer(const struct afd_buffer *buffer, const struct afd_fault *f)
{
    const char *what = "did not come in time";
    if (f->rank < buffer->group->config.world) {
        if (peer_closed(buffer, f->rank))
            what = "closed its buffer";
        else if (afd_group_has_ended(buffer->group, f->rank))
            what = "died";
    }
    if (f->word == AFD_WORD_BARRIER)
        return say_barrier(buffer, f, what);
    return afd_error_set(f->code,
                         "rank %u %s: rank %u waited for the %s of rank %u in %s, stage %u, "
                         "exchange %llu (deadline %llu ms)",
                         f->rank, what, f->reporter, word_name(f->word), f->peer,
                         afd_phase_name(f->phase), f->stage, (unsigned long long)f->epoch,
                         (unsigned long long)(buffer->deadline_us / 1000));
}

static int say_invalid(const struct afd_fault *f)
{
    if (f->word == AFD_WORD_HEADER)
        return afd_error_set(f->code,
                             "rank %u sent no weights in stage %u, exchange %llu, but FFN rank %u "
                             "has weighted_reply set",
                             f->rank, f->stage, (unsigned long long)f->epoch, f->reporter);
    return afd_error_set(f->code, "%s on rank %u in %s, stage %u, exchange %llu",
                         afd_error_text(f->code), f->rank, afd_phase_name(f->phase), f->stage,
                         (unsigned long long)f->epoch);
}

static int say(const struct afd_buffer *buffer, const struct afd_fault *f)
{
    unsigned long long epoch = f->epoch;
    unsigned long long expected = f->expected;
    unsigned long long seen = f->seen;
    switch (f->code) {
    case AFD_EPEER:
        return say_peer(buffer, f);
    case AFD_EABORTED:
        return afd_error_set(f->code, "rank %u aborted the group", f->rank);
    case AFD_ECAPACITY:
        return afd_error_set(f->code,
                             "rank %u: %llu rows in stage %u, exchange %llu, but there is room for "
                             "%llu",
                             f->rank, seen, f->stage, epoch, expected);
    case AFD_EROUTE:
        return afd_error_set(f->code,
                             "rank %u: token %llu, lane %llu has id %lld, stage %u, "
                             "exchange %llu",
                             f->rank, expected >> 8, expected & 0xffu, (long long)f->seen, f->stage,
                             epoch);
    case AFD_EPROTO:
        return afd_error_set(f->code,
                             "rank %u sent a %s that cannot be: %llu where rank %u expected %llu, "
                             "%s, stage %u, exchange %llu",
                             f->rank, word_name(f->word), seen, f->reporter, expected,
                             afd_phase_name(f->phase), f->stage, epoch);
    case AFD_ESTATE:
        return afd_error_set(f->code, "stage %u of rank %u is in state %llu, %s needs %llu",
                             f->stage, f->reporter, seen, afd_phase_name(f->phase), expected);
    default:
        return say_invalid(f);
    }
}

/* ----------------------------------------------------------------------------------------- fail */

static void fill_from_trouble(struct afd_buffer *buffer)
{
    const struct afd_trouble *t = &buffer->inl.trouble;
    struct afd_fault *f = &buffer->fault;
    memset(f, 0, sizeof(*f));
    f->code = t->code;
    f->rank = t->rank;
    f->reporter = buffer->group->config.rank;
    f->phase = buffer->running_phase;
    f->stage = buffer->running_stage;
    f->block = t->block;
    f->word = t->kind;
    f->peer = t->peer == AFD_WAIT_ALL_RANKS ? t->rank : t->peer;
    f->epoch = afd_buffer_state(buffer, buffer->running_stage)->epoch + 1;
    f->expected = t->expected;
    f->seen = t->seen;
}

/* The buffer fails. What its next receives would have brought reads as nothing; a batch that the
 * caller has in hand stays. */
static void give_up(struct afd_buffer *buffer)
{
    const struct afd_plan *plan = &buffer->plan;
    buffer->failed = 1;
    for (uint32_t s = 0; plan->role == AFD_ROLE_FFN && s < plan->shape.stages; s++) {
        uint32_t *counts = afd_buffer_private(buffer, AFD_PRIVATE_COUNTS, s);
        uint32_t *offsets = afd_buffer_private(buffer, AFD_PRIVATE_OFFSETS, s);
        if (buffer->stage[s].open)
            continue;
        memset(counts, 0, plan->local_experts * sizeof(*counts));
        memset(offsets, 0, (plan->local_experts + 1ull) * sizeof(*offsets));
    }
}

int afd_buffer_fail(struct afd_buffer *buffer)
{
    if (!buffer->adopted)
        fill_from_trouble(buffer);
    give_up(buffer);
    publish(buffer, &buffer->fault);
    return say(buffer, &buffer->fault);
}

void afd_buffer_fail_aborted(struct afd_buffer *buffer)
{
    memset(&buffer->fault, 0, sizeof(buffer->fault));
    buffer->fault.code = AFD_EABORTED;
    buffer->fault.rank = buffer->fault.reporter = buffer->group->config.rank;
    buffer->fault.peer = UINT32_MAX;
    give_up(buffer);
}

int afd_buffer_failed_again(const struct afd_buffer *buffer)
{
    return say(buffer, &buffer->fault);
}

int afd_buffer_fault(const struct afd_buffer *buffer, struct afd_fault *fault_out)
{
    if (buffer == NULL || fault_out == NULL)
        return afd_error_set(AFD_EINVAL, "buffer or fault_out is NULL");
    if (!buffer->failed)
        return afd_error_set(AFD_ESTATE, "the buffer of rank %u has no fault",
                             buffer->group->config.rank);
    *fault_out = buffer->fault;
    return 0;
}
