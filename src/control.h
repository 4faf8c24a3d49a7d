/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the first bytes of every window: who it is, whether it lives, what it waits for, and
 * one fault record per peer. Not part of the data path: touched at create and close, and by waits
 * that have lasted long.
 *
 * Word      written by        read by          may be rewritten
 * life      the owner         its peers        once, at close
 * waiting   the owner         its peers        at any time; 0: not waiting
 * fault[p]  rank p            the owner        never (first fault stays)
 */
#ifndef AFD_CONTROL_H
#define AFD_CONTROL_H

#include "afd/afd.h"
#include "shared/layout.h"

#define AFD_CONTROL_MAGIC 0x4d4d4f43444641ull /* "AFDCOMM" */

#define AFD_LIFE_OPEN 1u
#define AFD_LIFE_CLOSED 2u

#define AFD_FAULT_EMPTY 0u
#define AFD_FAULT_CLAIMED 1u
#define AFD_FAULT_READY 2u

struct afd_control_fault {
    AFD_ALIGNAS(64) uint64_t state; /* AFD_FAULT_* */
    struct afd_fault fault;
};

struct afd_control {
    AFD_ALIGNAS(64) uint64_t magic;
    uint64_t nonce; /* of this window; a peer that opened the wrong file sees it here */
    uint64_t window_bytes;
    uint32_t rank;
    uint32_t world;
    AFD_ALIGNAS(64) uint64_t life;
    AFD_ALIGNAS(64) uint64_t waiting;
};
AFD_STATIC_ASSERT(sizeof(struct afd_control) == 192, "control is three cache lines");
AFD_STATIC_ASSERT(sizeof(struct afd_control_fault) == 64, "a fault record is a cache line");

static inline uint64_t afd_control_bytes(uint32_t world)
{
    return afd_round_up(sizeof(struct afd_control) + world * sizeof(struct afd_control_fault),
                        AFD_PAGE);
}

static inline struct afd_control_fault *afd_control_fault_of(struct afd_control *control,
                                                             uint32_t writer)
{
    return (struct afd_control_fault *)(void *)(control + 1) + writer;
}

/* What a rank waits for, in one word. */
static inline uint64_t afd_waiting_pack(uint32_t phase, uint32_t stage, uint32_t peer,
                                        uint64_t epoch)
{
    return (uint64_t)phase << 60 | (uint64_t)stage << 56 | (uint64_t)(peer + 1) << 32 |
           (epoch & 0xffffffffu);
}

static inline uint32_t afd_waiting_phase(uint64_t waiting)
{
    return (uint32_t)(waiting >> 60);
}

/* The peer it waits for; UINT32_MAX if it waits for none. */
static inline uint32_t afd_waiting_peer(uint64_t waiting)
{
    return ((uint32_t)(waiting >> 32) & 0xffffffu) - 1u;
}

#endif
