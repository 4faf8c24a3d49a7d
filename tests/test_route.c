/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_route.c - which ids are legal, who is hit, what each is told; what words say; parts of rows.
 * Exhaustive where small, against brute force elsewhere.
 */
#include "shared/route.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "job.h"
#include "shared/rows.h"

/* ------------------------------------------------------------------------------------------ ids */

static void ids_are_judged_at_their_full_width(void **state)
{
    static const int64_t bad[] = {-2,
                                  10,
                                  11,
                                  INT_MIN,
                                  INT_MAX,
                                  (1ll << 32) + 3,
                                  -(1ll << 32) + 3,
                                  (1ll << 32) - 1,
                                  INT64_MIN,
                                  INT64_MIN + 3,
                                  INT64_MAX};
    (void)state;
    for (int64_t id = -1; id < 10; id++)
        assert_true(afd_id_legal(id, 10));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(afd_id_legal(bad[i], 10));
    assert_true(afd_id_legal(0xfffffffell, 0xffffffffu));
    assert_false(afd_id_legal(0xffffffffll, 0xffffffffu));
    assert_false(afd_id_legal(0, 0));
}

static void narrow_and_wide_ids_load_as_the_same_numbers(void **state)
{
    static const int32_t narrow[] = {0, -1, 5, INT_MIN, INT_MAX, -2};
    static const int64_t wide[] = {0, -1, 5, INT_MIN, INT_MAX, -2, INT64_MIN, INT64_MAX};
    struct afd_ids ids32 = {narrow, 0};
    struct afd_ids ids64 = {wide, 1};
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(afd_id_load(ids32, i) == narrow[i]);
        assert_true(afd_id_load(ids64, i) == narrow[i]);
    }
    assert_true(afd_id_load(ids64, 6) == INT64_MIN);
    assert_true(afd_id_load(ids64, 7) == INT64_MAX);
}

/* First lane that is illegal, or whose expert an earlier lane has. */
static uint32_t bad_lane(const int64_t *ids, uint32_t topk, int64_t experts)
{
    for (uint32_t lane = 0; lane < topk; lane++) {
        int twice = 0;
        for (uint32_t other = 0; other < lane; other++)
            twice |= ids[other] == ids[lane] && ids[lane] != -1;
        if (ids[lane] < -1 || ids[lane] >= experts || twice)
            return lane;
    }
    return topk;
}

static void the_first_bad_lane_is_found_in_every_small_token(void **state)
{
    static const int64_t value[] = {-2, -1, 0, 1, 2, 3, (1ll << 32) + 1};
    static const uint16_t zero[3] = {0, 0, 0};
    (void)state;
    for (uint32_t topk = 1; topk <= 4; topk++) {
        struct afd_placement placement = {zero, zero, 3, topk};
        for (uint32_t i = 0; i < 7 * 7 * 7 * 7; i++) {
            int64_t token[8];
            struct afd_ids ids = {token, 1};
            uint32_t rest = i;
            for (uint32_t lane = 0; lane < topk; lane++, rest /= 7) {
                token[lane] = -7; /* token 0 is all bad; token 1 is looked at */
                token[topk + lane] = value[rest % 7];
            }
            assert_int_equal(afd_route_bad_lane(&placement, ids, 1),
                             bad_lane(token + topk, topk, 3));
        }
    }
}

/* ------------------------------------------------------------------------------------ placement */

static void even_placement_is_contiguous_and_differs_by_at_most_one(void **state)
{
    (void)state;
    for (uint32_t experts = 1; experts <= 40; experts++) {
        for (uint32_t ranks = 1; ranks <= 12; ranks++) {
            uint32_t held[12] = {0};
            uint32_t before = 0;
            for (uint32_t e = 0; e < experts; e++) {
                uint32_t f = afd_placement_even(e, experts, ranks);
                assert_true(f < ranks);
                assert_true(f == before || f == before + 1);
                held[f]++;
                before = f;
            }
            for (uint32_t f = 0; f < ranks; f++)
                assert_int_equal(held[f], experts / ranks + (f < experts % ranks));
        }
    }
}

static void even_placement_agrees_with_the_model(void **state)
{
    static const uint32_t experts[] = {1, 5, 256, 257, 1023, 1025, 4096, 65537};
    static uint32_t want[65537];
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t ranks = 1; ranks <= 1023; ranks += ranks < 20 ? 1 : 59) {
            afd_reference_placement(experts[i], ranks, want);
            for (uint32_t e = 0; e < experts[i]; e++)
                assert_int_equal(afd_placement_even(e, experts[i], ranks), want[e]);
        }
    }
}

/* ----------------------------------------------------------------------------------------- hits */

#define RANKS_MAX 200u
#define EXPERTS_MAX 400u

/* A random placement, and random tokens of it. */
struct world {
    uint32_t ranks;
    uint16_t ffn[EXPERTS_MAX];
    uint16_t local[EXPERTS_MAX];
    struct afd_placement placement;
    int64_t id[4 * AFD_TOPK_MAX]; /* 4 tokens */
    int32_t narrow[4 * AFD_TOPK_MAX];
};

static void world_make(struct world *w, uint64_t *random)
{
    uint32_t held[RANKS_MAX] = {0};
    memset(w, 0, sizeof(*w));
    w->ranks = 1 + (uint32_t)(job_random(random) % RANKS_MAX);
    w->placement.ffn = w->ffn;
    w->placement.local = w->local;
    w->placement.experts = 1 + (uint32_t)(job_random(random) % EXPERTS_MAX);
    w->placement.topk = 1 + (uint32_t)(job_random(random) % AFD_TOPK_MAX);
    for (uint32_t e = 0; e < w->placement.experts; e++) {
        w->ffn[e] = (uint16_t)(job_random(random) % w->ranks);
        w->local[e] = (uint16_t)held[w->ffn[e]]++;
    }
    for (uint32_t i = 0; i < 4 * w->placement.topk; i++) {
        w->id[i] = (int64_t)(job_random(random) % (w->placement.experts + 1ull)) - 1;
        w->narrow[i] = (int32_t)w->id[i];
    }
}

/* What FFN rank f is to token t, by looking at every lane. Returns 1 if it is hit. */
static int32_t check_rank(const struct world *w, struct afd_ids ids, uint32_t t, uint32_t f)
{
    int32_t hit = 0;
    for (uint32_t lane = 0; lane < w->placement.topk; lane++) {
        int64_t id = w->id[t * w->placement.topk + lane];
        uint32_t owner = id < 0 ? AFD_FFN_NONE : w->ffn[id];
        hit |= owner == f;
        assert_int_equal(afd_route_ffn(&w->placement, ids, t, lane), owner);
        assert_int_equal(afd_route_local(&w->placement, ids, t, lane, f),
                         owner == f ? w->local[id] : AFD_ROUTE_NONE);
    }
    assert_int_equal(afd_route_hits(&w->placement, ids, t, f), hit);
    return hit;
}

static void check_token(const struct world *w, struct afd_ids ids, uint32_t t)
{
    uint64_t bits = 0;
    uint32_t before = 0;
    for (uint32_t f = 0; f < w->ranks; f++) {
        struct afd_shape shape;
        int32_t hit = check_rank(w, ids, t, f);
        memset(&shape, 0, sizeof(shape));
        shape.ffn_ranks = w->ranks;
        shape.topk = w->placement.topk;
        assert_int_equal(afd_route_hits_before(&w->placement, ids, t, f), before);
        if (hit) /* never beyond the regions there are */
            assert_true(afd_reply_region(&shape, f, before) < afd_reply_regions(&shape));
        if (f % 64 == 0)
            bits = afd_route_hit_word(&w->placement, ids, t, f / 64);
        assert_int_equal(bits >> (f % 64) & 1, hit);
        before += (uint32_t)hit;
    }
    if (w->ranks % 64 != 0) /* no bit beyond the last rank */
        assert_int_equal(bits >> (w->ranks % 64), 0);
}

static void hits_and_what_each_rank_is_told_match_brute_force(void **state)
{
    uint64_t random = 3;
    (void)state;
    for (uint32_t i = 0; i < 300; i++) {
        struct world w;
        world_make(&w, &random);
        for (uint32_t t = 0; t < 4; t++) {
            struct afd_ids wide = {w.id, 1};
            struct afd_ids narrow = {w.narrow, 0};
            check_token(&w, wide, t);
            check_token(&w, narrow, t);
        }
    }
}

static void hit_words_are_as_many_as_64_ranks_each_need(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= 1023; ranks++)
        assert_int_equal(afd_hit_words(ranks), (ranks - 1) / 64 + 1);
}

static void reply_regions_are_ranks_or_places_among_a_tokens_ranks(void **state)
{
    struct afd_shape shape;
    (void)state;
    memset(&shape, 0, sizeof(shape));
    for (shape.ffn_ranks = 1; shape.ffn_ranks <= 40; shape.ffn_ranks++) {
        for (shape.topk = 1; shape.topk <= 32; shape.topk++) {
            int few = shape.ffn_ranks <= shape.topk;
            assert_int_equal(afd_reply_regions(&shape), few ? shape.ffn_ranks : shape.topk);
            for (uint32_t f = 0; f < shape.ffn_ranks; f++)
                assert_int_equal(afd_reply_region(&shape, f, 3), few ? f : 3);
        }
    }
}

/* ---------------------------------------------------------------------------------------- words */

static void headers_come_back_as_they_went(void **state)
{
    uint64_t random = 5;
    (void)state;
    for (uint32_t i = 0; i < 2000; i++) {
        struct afd_header h = {(uint32_t)job_random(&random), (uint32_t)job_random(&random),
                               (uint32_t)job_random(&random)};
        struct afd_reply_header r = {h.units, h.flags, h.tokens};
        struct afd_ll word = afd_header_word(h, i);
        struct afd_ll reply = afd_reply_header_word(r, i + 7);
        struct afd_header h_back = afd_header_of(word);
        struct afd_reply_header r_back = afd_reply_header_of(reply);
        assert_int_equal(word.tag, i);
        assert_int_equal(reply.tag, i + 7);
        assert_memory_equal(&h, &h_back, sizeof(h));
        assert_memory_equal(&r, &r_back, sizeof(r));
    }
}

static void header_flags_parts_and_faults_do_not_touch_each_other(void **state)
{
    const uint32_t flags = AFD_HEADER_ROWS | AFD_HEADER_WEIGHTS | AFD_HEADER_REPLY_WORDS;
    (void)state;
    assert_int_equal(flags, 7);
    for (uint32_t parts = 1; parts <= AFD_PARTS_MAX; parts++) {
        for (uint32_t fault = 0; fault <= 255; fault++) {
            struct afd_header h = {0, 0, flags};
            h.flags |= (parts - 1) << AFD_HEADER_PARTS_SHIFT | fault << AFD_HEADER_FAULT_SHIFT;
            assert_int_equal(afd_header_parts(h), parts);
            assert_int_equal(afd_header_fault(h), -(int32_t)fault);
            assert_int_equal(h.flags & 0xff, flags);
        }
    }
}

static void a_wait_says_what_it_is_for(void **state)
{
    struct afd_wait wait = afd_wait_for(AFD_WORD_CREDIT, 9, 1ull << 40);
    (void)state;
    assert_int_equal(wait.kind, AFD_WORD_CREDIT);
    assert_int_equal(wait.peer, 9);
    assert_true(wait.expected == 1ull << 40);
}

/* Epochs just below and above everything that could wrap. */
static const uint64_t wraps[] = {1,
                                 (1ull << 16) - 300,
                                 (1ull << 31) - 300,
                                 (1ull << 32) - 300,
                                 2 * ((1ull << 32) - 1) - 300,
                                 (1ull << 33) - 300,
                                 (1ull << 40) - 300,
                                 (1ull << 62) - 300};
#define WRAPS (sizeof(wraps) / sizeof(wraps[0]))

/* A tag is told from that of fresh memory and from those of the last 256 exchanges. */
static void tags_are_never_0_and_differ_within_256_exchanges(void **state)
{
    uint32_t tag[600];
    (void)state;
    for (size_t w = 0; w < WRAPS; w++) {
        for (uint32_t i = 0; i < 600; i++) {
            tag[i] = afd_tag(wraps[w] + i);
            assert_true(tag[i] != 0);
            for (uint32_t before = i > 256 ? i - 256 : 0; before < i; before++)
                assert_true(tag[before] != tag[i]);
        }
    }
    assert_int_equal(afd_tag(0xfffffffe), 0xffffffff);
    assert_int_equal(afd_tag(0xffffffff), 1);
    assert_int_equal(afd_tag(0x1fffffffe), 1);
}

/* In any W exchanges in a row each slot has its turn. */
static void scrub_visits_every_slot_in_each_round(void **state)
{
    (void)state;
    for (size_t w = 0; w < WRAPS; w++) {
        for (uint32_t slots = 1; slots <= AFD_WORDS_TOKENS_MAX; slots++) {
            uint8_t visited[AFD_WORDS_TOKENS_MAX] = {0};
            for (uint32_t i = 0; i < slots; i++) {
                uint32_t slot = afd_scrub_slot(wraps[w] + 290 + i, slots);
                assert_true(slot < slots);
                visited[slot]++;
            }
            for (uint32_t slot = 0; slot < slots; slot++)
                assert_int_equal(visited[slot], 1);
        }
    }
    assert_int_equal(afd_scrub_slot(77, 0), 0);
}

/* ---------------------------------------------------------------------------------------- parts */

static void check_parts(uint64_t bytes, uint32_t parts)
{
    uint64_t end = 0;
    for (uint32_t part = 0; part < parts; part++) {
        assert_true(afd_part_begin(bytes, parts, part) == end);
        end = afd_part_begin(bytes, parts, part + 1);
        assert_true(end >= afd_part_begin(bytes, parts, part));
        assert_true(end % 16 == 0 || end == bytes);
    }
    assert_true(end == bytes);
}

static void parts_cover_a_row_exactly_once(void **state)
{
    static const uint64_t large[] = {130559, 130560, 130561, 1u << 20, (1u << 26) - 1, 1ull << 33};
    (void)state;
    for (uint64_t bytes = 1; bytes <= 1200; bytes++)
        for (uint32_t parts = 1; parts <= 40; parts++)
            check_parts(bytes, parts);
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t parts = 1; parts <= AFD_PARTS_MAX; parts++)
            check_parts(large[i], parts);
}

static void rows_are_split_only_when_blocks_are_left_over(void **state)
{
    (void)state;
    for (uint32_t rows = 0; rows <= 40; rows++) {
        for (uint32_t blocks = 1; blocks <= AFD_BLOCKS_MAX; blocks++) {
            for (uint64_t bytes = 1; bytes <= 400000; bytes += bytes < 2000 ? 101 : 9973) {
                uint32_t parts = afd_row_parts(rows, blocks, bytes);
                assert_in_range(parts, 1, AFD_PARTS_MAX);
                if (parts > 1)
                    assert_true(rows * parts <= blocks && bytes / parts >= AFD_PART_MIN_BYTES);
            }
        }
    }
}

static void rows_are_split_as_far_as_blocks_and_bytes_allow(void **state)
{
    (void)state;
    assert_int_equal(afd_row_parts(0, 256, 1 << 20), 1);
    assert_int_equal(afd_row_parts(1, 1, 1 << 20), 1);
    assert_int_equal(afd_row_parts(1, 4, 511), 1);
    assert_int_equal(afd_row_parts(1, 4, 1023), 1);
    assert_int_equal(afd_row_parts(1, 4, 1024), 2);
    assert_int_equal(afd_row_parts(1, 4, 1 << 20), 4);
    assert_int_equal(afd_row_parts(2, 5, 1 << 20), 2);
    assert_int_equal(afd_row_parts(3, 5, 1 << 20), 1);
    assert_int_equal(afd_row_parts(1, 256, 1 << 20), AFD_PARTS_MAX);
    assert_int_equal(afd_row_parts(1, 256, 1ull << 40), AFD_PARTS_MAX);
}

/* ------------------------------------------------------------------------------------- LL words */

static void bytes_packed_into_words_come_back_and_nothing_beside_them(void **state)
{
    uint8_t from[96];
    uint8_t to[96];
    (void)state;
    for (uint32_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)job_mix(i + 1);
    for (uint32_t bytes = 1; bytes <= 70; bytes++) {
        for (uint32_t shift = 0; shift < 64; shift++) {
            uint32_t from_shift = shift % 8;
            uint32_t to_shift = shift / 8;
            memset(to, 0xee, sizeof(to));
            for (uint32_t i = 0; i < (bytes + 11) / 12; i++) {
                struct afd_ll word = afd_ll_pack(from + from_shift, i, bytes, 9);
                assert_int_equal(word.tag, 9);
                afd_ll_unpack(word, to + to_shift, i, bytes);
            }
            assert_memory_equal(to + to_shift, from + from_shift, bytes);
            for (uint32_t i = 0; i < sizeof(to); i++)
                assert_true((i >= to_shift && i < to_shift + bytes) || to[i] == 0xee);
        }
    }
}

static void the_rest_of_the_last_word_is_zero(void **state)
{
    static const uint8_t from[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    struct afd_ll word = afd_ll_pack(from, 1, 13, 5);
    (void)state;
    assert_int_equal(word.data[0], 13);
    assert_int_equal(word.data[1], 0);
    assert_int_equal(word.data[2], 0);
}

static void elements_of_a_word_are_the_row_in_memory_order(void **state)
{
    static const uint16_t row[6] = {0x1111, 0x2222, 0x3333, 0x4444, 0x5555, 0xffff};
    struct afd_ll packed = afd_ll_pack((const uint8_t *)row, 0, 12, 1);
    struct afd_ll set = {{~0u, ~0u, ~0u}, 1};
    (void)state;
    for (uint32_t i = 0; i < AFD_LL_ELEMENTS; i++) {
        assert_int_equal(afd_ll_element(packed, i), row[i]);
        afd_ll_set_element(&set, i, row[i]);
    }
    assert_memory_equal(&set, &packed, sizeof(set));
}

static void a_stored_word_loads_and_a_wiped_one_has_no_tag(void **state)
{
    uint64_t place[4] = {7, 8, 9, 10};
    struct afd_ll word = {{1, 0xfffffffe, 3}, 0xdeadbeef};
    struct afd_ll back;
    (void)state;
    afd_ll_store(place + 1, word);
    back = afd_ll_load(place + 1);
    assert_memory_equal(&back, &word, sizeof(word));
    assert_int_equal(place[0], 7);
    assert_int_equal(place[3], 10);
    afd_ll_wipe(place + 1);
    back = afd_ll_load(place + 1);
    assert_int_equal(back.tag, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_judged_at_their_full_width),
        cmocka_unit_test(narrow_and_wide_ids_load_as_the_same_numbers),
        cmocka_unit_test(the_first_bad_lane_is_found_in_every_small_token),
        cmocka_unit_test(even_placement_is_contiguous_and_differs_by_at_most_one),
        cmocka_unit_test(even_placement_agrees_with_the_model),
        cmocka_unit_test(hits_and_what_each_rank_is_told_match_brute_force),
        cmocka_unit_test(hit_words_are_as_many_as_64_ranks_each_need),
        cmocka_unit_test(reply_regions_are_ranks_or_places_among_a_tokens_ranks),
        cmocka_unit_test(headers_come_back_as_they_went),
        cmocka_unit_test(header_flags_parts_and_faults_do_not_touch_each_other),
        cmocka_unit_test(a_wait_says_what_it_is_for),
        cmocka_unit_test(tags_are_never_0_and_differ_within_256_exchanges),
        cmocka_unit_test(scrub_visits_every_slot_in_each_round),
        cmocka_unit_test(parts_cover_a_row_exactly_once),
        cmocka_unit_test(rows_are_split_only_when_blocks_are_left_over),
        cmocka_unit_test(rows_are_split_as_far_as_blocks_and_bytes_allow),
        cmocka_unit_test(bytes_packed_into_words_come_back_and_nothing_beside_them),
        cmocka_unit_test(the_rest_of_the_last_word_is_zero),
        cmocka_unit_test(elements_of_a_word_are_the_row_in_memory_order),
        cmocka_unit_test(a_stored_word_loads_and_a_wiped_one_has_no_tag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
