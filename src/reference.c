/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - the bit-exact model of an exchange (reference.h).
 *
 * Includes nothing of src/shared/: placement, order and roundings are written a second time, by
 * other means. FP32 products and sums are made in double and then rounded to float. The product of
 * two FP32 is exact in double (48 of 53 bits, and the exponents fit). For a sum, 53 bits are at
 * least 2 x 24 + 2, so rounding to double and then to float gives what rounding to float at once
 * gives (Figueroa 1995). So no compiler flag can fuse or widen an operation here.
 */
#include "reference.h"

#include "error.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- numbers */

static float f32_product(float a, float b)
{
    return (float)((double)a * (double)b);
}

static float f32_sum(float a, float b)
{
    return (float)((double)a + (double)b);
}

/* Seven stored bits of mantissa; exponent field 0 is subnormal, 255 infinity or NaN. */
static float bf16_value(uint16_t bits)
{
    int exponent = bits / 128 % 256;
    int mantissa = bits % 128;
    double magnitude;

    if (exponent == 255)
        magnitude = mantissa == 0 ? (double)INFINITY : (double)NAN;
    else if (exponent == 0)
        magnitude = ldexp(mantissa, -133);
    else
        magnitude = ldexp(128 + mantissa, exponent - 134);
    return (float)(bits < 0x8000 ? magnitude : -magnitude);
}

/* Integer nearest to a value of 0 .. 256, the even one of two. */
static uint32_t nearest_even(double value)
{
    uint32_t below = (uint32_t)value;
    double rest = value - below;

    if (rest > 0.5 || (rest == 0.5 && below % 2 == 1))
        return below + 1;
    return below;
}

/*
 * The nearest BF16: counts the magnitude in units of the last place, 2^(exponent - 8) for a
 * magnitude in [1/2, 1) x 2^exponent and never less than 2^-133. Under unit 2^-133 the count is the
 * code; each larger unit adds 128, and a count of 256 is the first code of the next unit, after the
 * largest finite value 0x7F80, infinity.
 */
static uint16_t bf16_nearest(float value)
{
    uint32_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    int exponent;
    int unit;

    if (isnan(value))
        return 0x7fc0;
    if (value == 0)
        return (uint16_t)sign;
    if (isinf(value))
        return (uint16_t)(sign + 0x7f80);
    (void)frexp(magnitude, &exponent);
    unit = exponent - 8 < -133 ? -133 : exponent - 8;
    return (uint16_t)(sign + (uint32_t)(unit + 133) * 128 + nearest_even(ldexp(magnitude, -unit)));
}

/* --------------------------------------------------------------------------------------- routes */

void afd_reference_placement(uint32_t experts, uint32_t ffn_ranks, uint32_t *placement_out)
{
    uint32_t e = 0;

    for (uint32_t f = 0; f < ffn_ranks; f++) {
        uint32_t share = experts / ffn_ranks + (f < experts % ffn_ranks ? 1 : 0);

        for (uint32_t i = 0; i < share; i++)
            placement_out[e++] = f;
    }
}

static const int64_t *token_ids(const struct afd_reference *ref,
                                const struct afd_reference_source *source, uint32_t t)
{
    return source->ids + (size_t)t * ref->topk;
}

/* First lane before `end` in which token t of the source has this id; `end` if there is none. */
static uint32_t lane_find(const struct afd_reference *ref,
                          const struct afd_reference_source *source, uint32_t t, int64_t id,
                          uint32_t end)
{
    const int64_t *ids = token_ids(ref, source, t);
    uint32_t lane = 0;

    while (lane < end && ids[lane] != id)
        lane++;
    return lane;
}

static int token_check(const struct afd_reference *ref, const struct afd_reference_source *source,
                       uint32_t s, uint32_t t)
{
    const int64_t *ids = token_ids(ref, source, t);

    for (uint32_t lane = 0; lane < ref->topk; lane++) {
        uint32_t first = lane_find(ref, source, t, ids[lane], lane);

        if (ids[lane] < -1 || ids[lane] >= (int64_t)ref->experts)
            return afd_error_set(AFD_EROUTE,
                                 "source %" PRIu32 ", token %" PRIu32 ", lane %" PRIu32
                                 ": expert id %" PRId64 " is not in -1 .. %" PRId64,
                                 s, t, lane, ids[lane], (int64_t)ref->experts - 1);
        if (ids[lane] != -1 && first < lane)
            return afd_error_set(AFD_EROUTE,
                                 "source %" PRIu32 ", token %" PRIu32 ", lane %" PRIu32
                                 ": expert id %" PRId64 " is already in lane %" PRIu32,
                                 s, t, lane, ids[lane], first);
    }
    return 0;
}

static int sources_check(const struct afd_reference *ref,
                         const struct afd_reference_source *sources)
{
    for (uint32_t s = 0; s < ref->sources; s++) {
        if (sources[s].count > ref->capacity)
            return afd_error_set(AFD_ECAPACITY,
                                 "source %" PRIu32 " has %" PRIu32
                                 " tokens, the capacity is %" PRIu32,
                                 s, sources[s].count, ref->capacity);
        for (uint32_t t = 0; t < sources[s].count; t++) {
            int rc = token_check(ref, &sources[s], s, t);

            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------- batch */

/* calloc() that has an address for 0 bytes too. */
static void *zeroed(uint64_t count, uint64_t bytes)
{
    void *memory = count == 0 || bytes == 0 ? calloc(1, 1) : calloc(count, bytes);

    if (memory == NULL)
        (void)afd_error_set(AFD_ENOMEM, "no memory for %" PRIu64 " x %" PRIu64 " bytes", count,
                            bytes);
    return memory;
}

static int experts_list(const struct afd_reference *ref, uint32_t f,
                        struct afd_reference_batch *batch)
{
    uint32_t count = 0;

    for (uint32_t e = 0; e < ref->experts; e++)
        count += ref->placement[e] == f;
    batch->local_experts = count;
    batch->expert_ids = zeroed(count, sizeof(*batch->expert_ids));
    batch->counts = zeroed(count, sizeof(*batch->counts));
    batch->offsets = zeroed((uint64_t)count + 1, sizeof(*batch->offsets));
    if (batch->expert_ids == NULL || batch->counts == NULL || batch->offsets == NULL)
        return AFD_ENOMEM;

    count = 0;
    for (uint32_t e = 0; e < ref->experts; e++)
        if (ref->placement[e] == f)
            batch->expert_ids[count++] = e;
    return 0;
}

/* counts, offsets and row_count: a group takes its rows, rounded up to whole alignments. */
static void groups_place(const struct afd_reference *ref,
                         const struct afd_reference_source *sources,
                         struct afd_reference_batch *batch)
{
    for (uint32_t l = 0; l < batch->local_experts; l++) {
        for (uint32_t s = 0; s < ref->sources; s++)
            for (uint32_t t = 0; t < sources[s].count; t++)
                batch->counts[l] +=
                    lane_find(ref, &sources[s], t, batch->expert_ids[l], ref->topk) < ref->topk;
        while (batch->row_count < (uint64_t)batch->offsets[l] + batch->counts[l])
            batch->row_count += ref->alignment;
        AFD_ASSERT(batch->row_count <= UINT32_MAX);
        batch->offsets[l + 1] = (uint32_t)batch->row_count;
    }
}

static int rows_allocate(const struct afd_reference *ref, struct afd_reference_batch *batch)
{
    batch->slots = zeroed(batch->row_count, sizeof(*batch->slots));
    batch->weights = zeroed(batch->row_count, sizeof(*batch->weights));
    batch->rows = zeroed(batch->row_count, ref->payload_bytes);
    if (batch->slots == NULL || batch->weights == NULL || batch->rows == NULL)
        return AFD_ENOMEM;
    if (ref->scale_bytes > 0) {
        batch->scales = zeroed(batch->row_count, ref->scale_bytes);
        if (batch->scales == NULL)
            return AFD_ENOMEM;
    }
    for (uint64_t r = 0; r < batch->row_count; r++)
        batch->slots[r] = AFD_SLOT_NONE;
    return 0;
}

static void row_fill(const struct afd_reference *ref, const struct afd_reference_source *source,
                     uint32_t t, uint32_t lane, uint64_t r, struct afd_reference_batch *batch)
{
    memcpy(batch->rows + r * ref->payload_bytes, source->x + (size_t)t * ref->payload_bytes,
           ref->payload_bytes);
    if (batch->scales != NULL && source->scales != NULL)
        memcpy(batch->scales + r * ref->scale_bytes, source->scales + (size_t)t * ref->scale_bytes,
               ref->scale_bytes);
    if (source->weights != NULL)
        batch->weights[r] = source->weights[(size_t)t * ref->topk + lane];
}

/* The canonical order is the order of these loops: expert, source, token. */
static void rows_fill(const struct afd_reference *ref, const struct afd_reference_source *sources,
                      struct afd_reference_batch *batch)
{
    for (uint32_t l = 0; l < batch->local_experts; l++) {
        uint64_t r = batch->offsets[l];

        for (uint32_t s = 0; s < ref->sources; s++) {
            for (uint32_t t = 0; t < sources[s].count; t++) {
                uint32_t lane = lane_find(ref, &sources[s], t, batch->expert_ids[l], ref->topk);

                if (lane == ref->topk)
                    continue;
                batch->slots[r] = s * ref->capacity + t;
                row_fill(ref, &sources[s], t, lane, r, batch);
                r++;
            }
        }
    }
}

/* 1 if any route of token t leads to FFN rank f. */
static uint32_t token_hits(const struct afd_reference *ref,
                           const struct afd_reference_source *source, uint32_t t, uint32_t f)
{
    const int64_t *ids = token_ids(ref, source, t);

    for (uint32_t lane = 0; lane < ref->topk; lane++)
        if (ids[lane] != -1 && ref->placement[ids[lane]] == f)
            return 1;
    return 0;
}

int afd_reference_batch(const struct afd_reference *ref, const struct afd_reference_source *sources,
                        uint32_t f, struct afd_reference_batch *batch_out)
{
    struct afd_reference_batch batch;
    int rc = sources_check(ref, sources);

    if (rc != 0)
        return rc;
    AFD_ASSERT(ref->alignment >= 1);
    memset(&batch, 0, sizeof(batch));
    rc = experts_list(ref, f, &batch);
    if (rc != 0)
        goto err_free;
    groups_place(ref, sources, &batch);
    rc = rows_allocate(ref, &batch);
    if (rc != 0)
        goto err_free;
    rows_fill(ref, sources, &batch);
    for (uint32_t s = 0; s < ref->sources; s++)
        for (uint32_t t = 0; t < sources[s].count; t++)
            batch.token_count += token_hits(ref, &sources[s], t, f);
    *batch_out = batch;
    return 0;

err_free:
    afd_reference_batch_free(&batch);
    return rc;
}

void afd_reference_batch_free(struct afd_reference_batch *batch)
{
    free(batch->expert_ids);
    free(batch->counts);
    free(batch->offsets);
    free(batch->slots);
    free(batch->weights);
    free(batch->rows);
    free(batch->scales);
    memset(batch, 0, sizeof(*batch));
}

/* ----------------------------------------------------------------------------------------- sums */

uint32_t afd_reference_reply(const struct afd_reference *ref,
                             const struct afd_reference_batch *batch, const uint16_t *expert_rows,
                             int weighted, uint32_t source, uint32_t token, uint16_t *row_out)
{
    uint32_t slot = source * ref->capacity + token;
    uint64_t rows[AFD_TOPK_MAX]; /* of this token, ascending: by expert */
    uint32_t count = 0;

    for (uint64_t r = 0; r < batch->row_count; r++) {
        if (batch->slots[r] != slot)
            continue;
        AFD_ASSERT(count < AFD_TOPK_MAX);
        rows[count++] = r;
    }
    for (uint32_t h = 0; h < ref->hidden && count > 0; h++) {
        float sum = 0;

        for (uint32_t i = 0; i < count; i++) {
            float term = bf16_value(expert_rows[rows[i] * ref->hidden + h]);

            if (weighted)
                term = f32_product(batch->weights[rows[i]], term);
            sum = i == 0 ? term : f32_sum(sum, term);
        }
        row_out[h] = bf16_nearest(sum);
    }
    return count;
}

void afd_reference_sum(const uint16_t *const *terms, uint32_t term_count, uint32_t hidden,
                       uint16_t *row_out)
{
    for (uint32_t h = 0; h < hidden; h++) {
        float sum = 0;

        for (uint32_t i = 0; i < term_count; i++) {
            float term = bf16_value(terms[i][h]);

            sum = i == 0 ? term : f32_sum(sum, term);
        }
        row_out[h] = bf16_nearest(sum);
    }
}
