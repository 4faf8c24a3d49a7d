/* SPDX-License-Identifier: Apache-2.0 */
/*
 * word.h - what the words between two ranks say. doc/protocol.md has a row for each of them.
 */
#ifndef AFD_SHARED_WORD_H
#define AFD_SHARED_WORD_H

#include "afd/afd.h"
#include "shared/order.h"

/* Part of the agreement between ranks: a change of any layout or meaning below is a new version. */
#define AFD_WIRE_VERSION 1u

/* The tag of an epoch in an LL word: never 0 (fresh memory), and repeats after 2^32 - 1
 * exchanges, long after afd_scrub_slot() has wiped every older one. */
AFD_FN uint32_t afd_tag(uint64_t epoch)
{
    if (AFD_MUTANT(tag_not_advanced))
        epoch &= ~(uint64_t)1;
    return (uint32_t)(epoch % AFD_TAG_PERIOD) + 1u;
}

/* The slot whose old tags the receiver wipes in this exchange: each one in turn. */
AFD_FN uint32_t afd_scrub_slot(uint64_t epoch, uint32_t words_tokens)
{
    return words_tokens == 0 ? 0 : (uint32_t)(epoch % words_tokens);
}

/* ------------------------------------------------------------------------------ dispatch header */

/* Four LL words, all written in every exchange: [0] counts and flags, [1..3] the presence mask
 * of up to 288 slots (words variant; zero in the rows variant). */
#define AFD_HEADER_WORDS 4u
#define AFD_HEADER_MASK_BITS 96u /* of each mask word */

#define AFD_HEADER_ROWS 1u        /* rows with credits; else self-validating words */
#define AFD_HEADER_WEIGHTS 2u     /* the source sends weights */
#define AFD_HEADER_REPLY_WORDS 4u /* the source wants its reply as words */
#define AFD_HEADER_IN_ORDER 8u    /* credits come row by row, in order of token */
#define AFD_HEADER_PARTS_SHIFT 8u
#define AFD_HEADER_FAULT_SHIFT 16u

struct afd_header {
    uint32_t tokens; /* T */
    uint32_t units;  /* credits to come: rows x parts; rows variant */
    uint32_t flags;  /* AFD_HEADER_*; parts - 1 in bits 8..15, -(fault code) in bits 16..23 */
};

AFD_FN uint32_t afd_header_parts(struct afd_header header)
{
    return (header.flags >> AFD_HEADER_PARTS_SHIFT & 0xffu) + 1u;
}

AFD_FN int32_t afd_header_fault(struct afd_header header)
{
    return -(int32_t)(header.flags >> AFD_HEADER_FAULT_SHIFT & 0xffu);
}

AFD_FN struct afd_ll afd_header_word(struct afd_header header, uint32_t tag)
{
    struct afd_ll word;
    word.data[0] = header.tokens;
    word.data[1] = header.units;
    word.data[2] = header.flags;
    word.tag = tag;
    return word;
}

AFD_FN struct afd_header afd_header_of(struct afd_ll word)
{
    struct afd_header header;
    header.tokens = word.data[0];
    header.units = word.data[1];
    header.flags = word.data[2];
    return header;
}

/* --------------------------------------------------------------------------------- reply header */

#define AFD_REPLY_ROWS 1u     /* flags: reply rows with credits; else words */
#define AFD_REPLY_IN_ORDER 2u /* flags: credits come row by row, in order of token */

struct afd_reply_header {
    uint32_t rows;  /* tokens of this source that this FFN rank answers: the source knows it too */
    uint32_t units; /* credits to come; rows variant */
    uint32_t flags;
};

AFD_FN struct afd_ll afd_reply_header_word(struct afd_reply_header header, uint32_t tag)
{
    struct afd_ll word;
    word.data[0] = header.rows;
    word.data[1] = header.units;
    word.data[2] = header.flags;
    word.tag = tag;
    return word;
}

AFD_FN struct afd_reply_header afd_reply_header_of(struct afd_ll word)
{
    struct afd_reply_header header;
    header.rows = word.data[0];
    header.units = word.data[1];
    header.flags = word.data[2];
    return header;
}

AFD_FN struct afd_wait afd_wait_for(uint32_t kind, uint32_t peer, uint64_t expected)
{
    struct afd_wait wait;
    wait.kind = kind;
    wait.peer = peer;
    wait.expected = expected;
    return wait;
}

/* ------------------------------------------------------------------------------- parts of a row */

#define AFD_PART_MIN_BYTES 512u
#define AFD_PARTS_MAX 255u

/* Into how many parts a row is split when there are more blocks than rows: a credit counts
 * parts, so the two sides need not agree on blocks. */
AFD_FN uint32_t afd_row_parts(uint32_t rows, uint32_t blocks, uint64_t row_bytes)
{
    uint32_t most = (uint32_t)afd_min_u64(row_bytes / AFD_PART_MIN_BYTES, AFD_PARTS_MAX);
    uint32_t parts = rows == 0 ? 1u : blocks / rows;
    parts = afd_min_u32(parts, most);
    return parts == 0 ? 1u : parts;
}

/* First byte of part `part`; part == parts gives the end. 16-byte aligned inside. */
AFD_FN uint64_t afd_part_begin(uint64_t bytes, uint32_t parts, uint32_t part)
{
    uint64_t each = afd_round_up(afd_div_up(bytes, parts), 16);
    return afd_min_u64(each * part, bytes);
}

#endif
