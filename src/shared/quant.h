/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quant.h - BF16, FP8 E4M3 and UE8M0: the only conversions of steps and movers.
 *
 *     FP32  s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm   IEEE 754 binary32
 *     BF16  s eeeeeeee mmmmmmm                   its upper 16 bits
 *     E4M3  s eeee mmm                           OCP 8-bit floating point (OFP8) 1.0, "E4M3":
 *                                                bias 7, no infinity, 0x7F and 0xFF are NaN
 *     UE8M0   eeeeeeee                           OCP microscaling (MX) 1.0: 2^(b - 127), 255 is NaN
 *
 * All integer, so that host and device agree on every bit whatever the rounding mode; the only
 * floating-point operations are products with a power of two. src/reference.c has conversions of
 * its own by another technique.
 */
#ifndef AFD_SHARED_QUANT_H
#define AFD_SHARED_QUANT_H

#include "shared/hd.h"

#include <string.h>

#define AFD_SCALE_GROUP 128u /* elements that share one scale (DESIGN.md 8) */

AFD_FN uint32_t afd_f32_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

AFD_FN float afd_f32_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Exact; a NaN keeps its payload. */
AFD_FN float afd_bf16_to_f32(uint16_t value)
{
    return afd_f32_from_bits((uint32_t)value << 16);
}

/*
 * Round to nearest, ties to even (IEEE 754 4.3.1): adds half a unit less one, and one more when the
 * kept part is odd. A carry out of the mantissa steps to the next exponent, and from the largest
 * finite value to infinity, which is what IEEE 754 asks for. Every NaN gives 0x7FC0 (DESIGN.md 8).
 */
AFD_FN uint16_t afd_f32_to_bf16(float value)
{
    uint32_t bits = afd_f32_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    /* signed on purpose: SSE and AVX2 compare signed integers only */
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);

    return (uint16_t)(magnitude > 0x7f800000 ? 0x7fc0u : rounded);
}

/*
 * OFP8 1.0, E4M3: exponent field 0 is m x 2^-9, else (8 + m) x 2^(e - 10). A normal value moves its
 * seven bits to FP32's place and changes the bias from 7 to 127. Both NaNs give 0x7FC00000.
 */
AFD_FN float afd_e4m3_to_f32(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t subnormal = afd_f32_bits((float)(int32_t)magnitude * 0.001953125f); /* 2^-9 */
    uint32_t finite = sign | (magnitude < 8u ? subnormal : normal);

    return afd_f32_from_bits(magnitude == 0x7fu ? 0x7fc00000u : finite);
}

/*
 * Round to nearest, ties to even, saturating: beyond 448 = 0x7E, also infinity, stays 0x7E (OFP8
 * 1.0, "saturation mode"). Every NaN gives 0x7F. From 2^-6 on, the mantissa loses 20 bits; below,
 * the result counts units of 2^-9: 1.m x 2^(E - 127) is a 24-bit integer shifted right by 141 - E,
 * and from 25 places on nothing is left of it. Rounding up to 8 units gives the code of 2^-6.
 */
AFD_FN uint8_t afd_f32_to_e4m3(float value)
{
    uint32_t bits = afd_f32_bits(value);
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t exponent = magnitude >> 23;
    uint32_t rebiased = magnitude - (120u << 23); /* wraps below 2^-6, where it is not used */
    uint32_t normal = (rebiased + 0x7ffffu + ((rebiased >> 20) & 1u)) >> 20;
    uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = exponent < 116u ? 25u : (141u - exponent) & 31u;
    uint32_t half = (1u << shift) >> 1; /* 0 only where `subnormal` is not used */
    uint32_t subnormal = (significand + half - 1u + ((significand >> shift) & 1u)) >> shift;
    uint32_t finite = magnitude < 0x3c800000u ? subnormal : normal;
    uint32_t saturated = magnitude >= 0x43e00000u ? 0x7eu : finite; /* 448.0f */

    return (uint8_t)(magnitude > 0x7f800000u ? 0x7fu : saturated | (bits >> 24 & 0x80u));
}

/* OCP MX 1.0, E8M0: 2^(b - 127). Byte 0 is 2^-127, a subnormal of FP32; 255 is NaN. */
AFD_FN float afd_ue8m0_to_f32(uint8_t byte)
{
    uint32_t power = byte == 0 ? 0x00400000u : (uint32_t)byte << 23;

    return afd_f32_from_bits(byte == 255 ? 0x7fc00000u : power);
}

/*
 * The scale rule of FP8 (reference/deepep-v2-protocol.md 8.19): the smallest e >= -117 with
 * amax <= 448 x 2^e. With amax = m x 2^X, 1 <= m < 2, and 448 = 1.75 x 2^8, that is X - 8 where
 * m <= 1.75 and X - 7 above. The bound keeps every decoded value a normal FP32 (2^-9 x 2^-117 =
 * 2^-126). amax = 0 gives -117, infinity 120. amax is not negative and not NaN.
 */
AFD_FN int32_t afd_fp8_scale_exponent(float amax)
{
    uint32_t bits = afd_f32_bits(amax);
    int32_t x = (int32_t)(bits >> 23 & 0xffu) - 127;
    int32_t e = (bits & 0x7fffffu) <= 0x600000u ? x - 8 : x - 7;

    return e < -117 ? -117 : e;
}

/* That exponent as a UE8M0 byte: 10 .. 247. */
AFD_FN uint8_t afd_fp8_scale_byte(float amax)
{
    return (uint8_t)(127 + afd_fp8_scale_exponent(amax));
}

/* Scales of a row of `hidden` elements; the last group may be ragged. */
AFD_FN uint32_t afd_scale_groups(uint32_t hidden)
{
    return hidden / AFD_SCALE_GROUP + (hidden % AFD_SCALE_GROUP != 0u ? 1u : 0u);
}

/* Largest magnitude of n BF16 values, ignoring NaN; 0 if there is none. BF16 magnitudes order like
 * their bits. */
AFD_FN float afd_bf16_amax(const uint16_t *x, uint32_t n)
{
    uint32_t largest = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t magnitude = x[i] & 0x7fffu;
        uint32_t candidate = magnitude > 0x7f80u ? 0u : magnitude;

        largest = candidate > largest ? candidate : largest;
    }
    return afd_bf16_to_f32((uint16_t)largest);
}

/*
 * One group of n <= 128 BF16 values as E4M3: q = E4M3(x x 2^-e), e by the scale rule; returns the
 * scale byte 127 + e. The product is exact, or so small that its code is 0 in any case. NaN gives
 * 0x7F; an infinity makes e = 120 and 448, which decodes to infinity again.
 */
AFD_FN uint8_t afd_fp8_quantize_group(const uint16_t *x, uint32_t n, uint8_t *q_out)
{
    uint8_t scale_byte = afd_fp8_scale_byte(afd_bf16_amax(x, n));
    float inverse = afd_f32_from_bits((254u - scale_byte) << 23); /* 2^-e: e is in -117 .. 120 */

    for (uint32_t i = 0; i < n; i++)
        q_out[i] = afd_f32_to_e4m3(afd_bf16_to_f32(x[i]) * inverse);
    return scale_byte;
}

/* The FP32 value of an E4M3 code under a scale byte: exact for the bytes of the scale rule, but for
 * what overflows to infinity at byte 247 (from 256 x 2^120 on). */
AFD_FN float afd_fp8_dequantize(uint8_t q, uint8_t scale_byte)
{
    return afd_e4m3_to_f32(q) * afd_ue8m0_to_f32(scale_byte);
}

/* The way back of afd_fp8_quantize_group(). */
AFD_FN void afd_fp8_dequantize_group(const uint8_t *q, uint32_t n, uint8_t scale_byte, float *x_out)
{
    for (uint32_t i = 0; i < n; i++)
        x_out[i] = afd_fp8_dequantize(q[i], scale_byte);
}

#endif
