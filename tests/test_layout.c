/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout.c - [R-16] nothing in a window overlaps, and everything is as large as it must be.
 *
 * Sizes are computed a second time here, in 128 bits and from what each region holds.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "control.h"
#include "job.h"
#include "shared/layout.h"

__extension__ typedef unsigned __int128 u128;

#define REGIONS 10u

struct piece {
    const char *name;
    struct afd_region region;
    u128 count;      /* wanted elements */
    u128 bytes;      /* at least, of each */
    uint64_t stride; /* exactly, or 0: bytes rounded up to a multiple of `unit` */
    uint64_t unit;
};

static u128 up(u128 value, u128 unit)
{
    return (value + unit - 1) / unit * unit;
}

static u128 ll_bytes(u128 bytes)
{
    return (bytes + 11) / 12 * 16;
}

/* Every region of a window of this role, with what it must hold. */
static void pieces_of(const struct afd_shape *shape, const struct afd_stage_layout *s, int ffn,
                      struct piece *out)
{
    u128 n = ffn ? shape->sources : 0;
    u128 f = ffn ? 0 : shape->ffn_ranks;
    u128 r = f < shape->topk ? f : shape->topk;
    u128 slots = shape->capacity;
    u128 words = shape->words_tokens;
    u128 k = shape->topk;
    u128 row = up(shape->payload_bytes, 16) + up(shape->scale_bytes, 16);
    u128 slot = ll_bytes((k + 1) * 2) + ll_bytes(k * 4) + ll_bytes(shape->payload_bytes) +
                ll_bytes(shape->scale_bytes);
    u128 reply = (u128)shape->hidden * 2;
    const struct piece pieces[REGIONS] = {
        {"headers", s->headers, n, 4 * 16 + 8, 128, 0},
        {"credits", s->credits, n, 8, 64, 0},
        {"routes", s->routes, n, slots * (k + 1) * 2, 0, 64},
        {"weights", s->weights, n, slots * k * 4, 0, 64},
        {"inbox", s->inbox, n * slots, row, 0, 16},
        {"words", s->words, n * words, slot, 0, 16},
        {"reply headers", s->reply_headers, f, 16, 64, 0},
        {"reply credits", s->reply_credits, f, 8, 64, 0},
        {"reply inbox", s->reply_inbox, r * slots, reply, 0, 32},
        {"reply words", s->reply_words, r * words, ll_bytes(reply), 0, 16},
    };
    memcpy(out, pieces, sizeof(pieces));
}

static void check_piece(const struct piece *p)
{
    u128 stride = p->stride != 0 ? p->stride : up(p->bytes, p->unit);
    if (p->region.count != p->count)
        fail_msg("%s: %llu elements", p->name, (unsigned long long)p->region.count);
    if (p->count != 0 && (p->region.stride != stride || p->region.stride < p->bytes))
        fail_msg("%s: stride %llu", p->name, (unsigned long long)p->region.stride);
    if (p->count != 0 && p->region.offset % 256 != 0)
        fail_msg("%s: offset %llu", p->name, (unsigned long long)p->region.offset);
}

static u128 end_of(struct afd_region region)
{
    return (u128)region.offset + (u128)region.count * region.stride;
}

/* All regions of a window: right, disjoint, inside; the window no larger than they need. */
static void check_window(const struct afd_shape *shape, const struct afd_layout *layout,
                         uint64_t control_bytes, int ffn)
{
    struct piece piece[REGIONS];
    u128 end = control_bytes;
    pieces_of(shape, &layout->stage, ffn, piece);
    for (uint32_t i = 0; i < REGIONS; i++) {
        check_piece(&piece[i]);
        if (piece[i].count == 0)
            continue;
        if (piece[i].region.offset < control_bytes)
            fail_msg("%s lies in the control block", piece[i].name);
        for (uint32_t j = 0; j < i; j++)
            if (piece[j].count != 0 && end_of(piece[i].region) > piece[j].region.offset &&
                end_of(piece[j].region) > piece[i].region.offset)
                fail_msg("%s overlaps %s", piece[i].name, piece[j].name);
        end = end_of(piece[i].region) > end ? end_of(piece[i].region) : end;
    }
    assert_int_equal(layout->control_bytes, control_bytes);
    assert_true(layout->stage_stride == up(end - control_bytes, 4096));
    assert_true(layout->window_bytes ==
                (u128)control_bytes + (u128)layout->stage_stride * shape->stages);
}

static void check_shape(const struct afd_shape *shape)
{
    uint64_t control_bytes = afd_control_bytes(shape->world);
    struct afd_layout ffn = afd_layout_ffn(shape, control_bytes);
    struct afd_layout attention = afd_layout_attention(shape, control_bytes);
    check_window(shape, &ffn, control_bytes, 1);
    check_window(shape, &attention, control_bytes, 0);
    assert_int_equal(afd_row_scales_offset(shape), up(shape->payload_bytes, 16));
}

/* Calls `check` for all shapes of small numbers. */
static uint32_t for_small_shapes(void (*check)(const struct afd_shape *shape))
{
    static const uint32_t payloads[] = {1, 11, 12, 13, 16, 17};
    static const uint32_t scales[] = {0, 1, 12, 17};
    uint32_t count = 0;
    for (uint32_t i = 0; i < 3 * 3 * 3 * 4 * 6 * 4 * 3 * 3; i++) {
        uint32_t rest = i;
        struct afd_shape shape;
        memset(&shape, 0, sizeof(shape));
        shape.sources = 1 + rest % 3;
        rest /= 3;
        shape.ffn_ranks = 1 + rest % 3;
        rest /= 3;
        shape.topk = 1 + rest % 3;
        rest /= 3;
        shape.capacity = 1 + rest % 4;
        rest /= 4;
        shape.payload_bytes = payloads[rest % 6];
        rest /= 6;
        shape.scale_bytes = scales[rest % 4];
        rest /= 4;
        shape.words_tokens = rest % 3 <= shape.capacity ? rest % 3 : 0;
        rest /= 3;
        shape.stages = 1 + rest % 3;
        shape.hidden = 1 + i % 23;
        shape.world = shape.sources + shape.ffn_ranks;
        shape.experts = 5;
        check(&shape);
        count++;
    }
    return count;
}

static void windows_of_all_small_shapes_are_disjoint_and_exact(void **state)
{
    (void)state;
    assert_int_equal(for_small_shapes(check_shape), 23328);
}

static uint32_t below(uint64_t *state, uint32_t end)
{
    return (uint32_t)(job_random(state) % end);
}

static void windows_of_large_shapes_are_disjoint_and_exact(void **state)
{
    uint64_t random = 7;
    uint32_t beyond_32_bits = 0;
    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        struct afd_shape shape;
        memset(&shape, 0, sizeof(shape));
        shape.sources = 1 + below(&random, 1023);
        shape.ffn_ranks = 1 + below(&random, 1024 - shape.sources);
        shape.world = shape.sources + shape.ffn_ranks;
        shape.capacity = 1 + below(&random, i % 2 ? 65536 : 300);
        shape.topk = 1 + below(&random, 32);
        shape.hidden = 1 + below(&random, i % 3 ? 1u << 24 : 8192);
        shape.payload_bytes = 1 + below(&random, i % 5 ? 1u << 26 : 9000);
        shape.scale_bytes = below(&random, i % 7 ? 1u << 26 : 70);
        shape.words_tokens = below(&random, 1 + (shape.capacity < 256 ? shape.capacity : 256));
        shape.stages = 1 + below(&random, 8);
        shape.experts = 1;
        check_shape(&shape);
        beyond_32_bits += afd_layout_ffn(&shape, 4096).stage.inbox.stride > 0xffffffffull ||
                          afd_layout_ffn(&shape, 4096).window_bytes > 0xffffffffull;
    }
    assert_true(beyond_32_bits > 1000);
}

static void sizes_beyond_32_bits_are_computed_right(void **state)
{
    struct afd_shape shape = {1023, 1, 1024, 65536, 8, 16384, 8, 0, 32768, 0, 256, 0};
    struct afd_layout layout = afd_layout_ffn(&shape, 4096);
    uint8_t *base = (uint8_t *)(uintptr_t)0x100000;
    uint64_t last = 1023ull * 65536 - 1;
    (void)state;
    assert_int_equal(layout.stage.inbox.count * layout.stage.inbox.stride, 2196875771904ull);
    assert_true(layout.window_bytes > 8 * 2196875771904ull);
    assert_ptr_equal(afd_region_at(base, &layout, layout.stage.inbox, 7, last),
                     base + 7 * layout.stage_stride + layout.stage.inbox.offset + last * 32768);
}

static void addresses_follow_from_the_same_numbers_as_sizes(void **state)
{
    struct afd_shape shape = {3, 2, 5, 9, 4, 50, 3, 5, 100, 7, 8, 0};
    struct afd_layout layout = afd_layout_ffn(&shape, 4096);
    uint8_t *base = (uint8_t *)(uintptr_t)0x100000;
    uint64_t at = 4096 + 2 * layout.stage_stride - 4096 + layout.stage.words.offset +
                  layout.stage.words.stride * 14;
    (void)state;
    assert_ptr_equal(afd_region_at(base, &layout, layout.stage.words, 2, 14), base + at);
    assert_ptr_equal(afd_region_word(base, &layout, layout.stage.words, 2, 14), base + at);
    assert_true(at + layout.stage.words.stride <= layout.window_bytes);
}

static void check_plan(const struct afd_shape *shape)
{
    struct afd_slot_plan plan = afd_slot_plan(shape);
    assert_int_equal(plan.route_words, ((shape->topk + 1) * 2 + 11) / 12);
    assert_int_equal(plan.weight_words, (shape->topk * 4 + 11) / 12);
    assert_int_equal(plan.payload_words, (shape->payload_bytes + 11) / 12);
    assert_int_equal(plan.scale_words, (shape->scale_bytes + 11) / 12);
    assert_int_equal(plan.words,
                     plan.route_words + plan.weight_words + plan.payload_words + plan.scale_words);
    assert_int_equal(afd_reply_slot_words(shape), (shape->hidden * 2 + 11) / 12);
}

static void a_slot_has_words_for_all_its_bytes_and_no_more(void **state)
{
    (void)state;
    assert_int_equal(for_small_shapes(check_plan), 23328);
    for (uint32_t k = 1; k <= 32; k++) {
        struct afd_shape shape = {1, 1, 2, 1, k, k * 7, 1, 1, 1u << 26, k * 3, 1, 0};
        check_plan(&shape);
    }
}

static void header_and_control_structs_are_what_the_wire_says(void **state)
{
    (void)state;
    assert_int_equal(sizeof(struct afd_ll), 16);
    assert_int_equal(offsetof(struct afd_ll, tag), 12);
    assert_true(AFD_HEADER_WORDS * AFD_LL_BYTES <= AFD_HEADER_ROUTES_OFFSET);
    assert_true(AFD_HEADER_ROUTES_OFFSET + 8 <= AFD_HEADER_STRIDE);
    assert_int_equal(AFD_HEADER_ROUTES_OFFSET % 64, 0);
    assert_true((AFD_HEADER_WORDS - 1) * AFD_HEADER_MASK_BITS >= AFD_WORDS_TOKENS_MAX);
    assert_true(AFD_WORD_STRIDE >= 64 && AFD_REGION_ALIGN % AFD_WORD_STRIDE == 0);
    assert_int_equal(sizeof(struct afd_control), 192);
    assert_int_equal(offsetof(struct afd_control, life), 64);
    assert_int_equal(offsetof(struct afd_control, waiting), 128);
    assert_int_equal(sizeof(struct afd_control_fault), 64);
    assert_true(sizeof(struct afd_fault) <= 56);
}

static void control_holds_a_fault_record_of_every_rank(void **state)
{
    static uint8_t memory[192 + 1024 * 64 + 4096];
    struct afd_control *control = (struct afd_control *)(void *)memory;
    (void)state;
    for (uint32_t world = 2; world <= 1024; world++) {
        uint64_t bytes = afd_control_bytes(world);
        uint8_t *last = (uint8_t *)afd_control_fault_of(control, world - 1);
        assert_int_equal(bytes % 4096, 0);
        assert_ptr_equal(last, memory + 192 + (world - 1) * 64);
        assert_true((uint64_t)(last + 64 - memory) <= bytes);
        assert_true(bytes < 192 + world * 64 + 4096);
    }
}

static void the_waiting_word_keeps_phase_and_peer_apart(void **state)
{
    (void)state;
    for (uint32_t peer = 0; peer < 1024; peer++) {
        for (uint32_t phase = 1; phase <= 4; phase++) {
            uint64_t waiting = afd_waiting_pack(phase, peer % 8, peer, 0xffffffffffull);
            assert_true(waiting != 0);
            assert_int_equal(afd_waiting_phase(waiting), phase);
            assert_int_equal(afd_waiting_peer(waiting), peer);
        }
    }
    assert_int_equal(afd_waiting_peer(0), UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_all_small_shapes_are_disjoint_and_exact),
        cmocka_unit_test(windows_of_large_shapes_are_disjoint_and_exact),
        cmocka_unit_test(sizes_beyond_32_bits_are_computed_right),
        cmocka_unit_test(addresses_follow_from_the_same_numbers_as_sizes),
        cmocka_unit_test(a_slot_has_words_for_all_its_bytes_and_no_more),
        cmocka_unit_test(header_and_control_structs_are_what_the_wire_says),
        cmocka_unit_test(control_holds_a_fault_record_of_every_rank),
        cmocka_unit_test(the_waiting_word_keeps_phase_and_peer_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
