/* moments -- moments of 16 and 8 bits to reals and back, a block at a time (moments.h) */
#include "isa.h"

/* A block as F32, with zeros behind its n elements. */
static void take_block(float *x, const REAL *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)src[i];
    for (int64_t i = n; i < MOMENT_BLOCK; i++)
        x[i] = 0;
}

/* Bits of the largest magnitude that is finite. */
static uint32_t largest(const float *x)
{
    uint32_t amax = 0;
    for (int i = 0; i < MOMENT_BLOCK; i++) {
        uint32_t u = moment_bits(x[i]) & 0x7fffffff;
        u = u < 0x7f800000 ? u : 0;
        amax = u > amax ? u : amax;
    }
    return amax;
}

/* The format is a constant where this is inlined. */
INLINE void encode(MomentFormat f, uint32_t *code, uint8_t *scale, const float *x, const uint32_t *words,
                   int half)
{
    float inverse = 1;
    if (f.scaled) {
        *scale = moment_scale(f, largest(x));
        inverse = moment_inverse(*scale);
    }
    for (int i = 0; i < MOMENT_BLOCK; i++)
        code[i] = moment_encode(f, x[i], inverse, moment_chance(f, words[i] >> half & 0xffff));
}

INLINE void decode(MomentFormat f, float *x, const uint32_t *code, const uint8_t *scale)
{
    float factor = f.scaled ? moment_factor(*scale) : 1;
    for (int i = 0; i < MOMENT_BLOCK; i++)
        x[i] = moment_decode(f, code[i]) * factor;
}

/* Calls CALL with each format as a constant. */
#define WITH_FORMAT(CALL)                                                                                    \
    switch (2 * (int)type + !!second) {                                                                      \
    case 2 * MOMENT_BF16:                                                                                    \
        CALL(moment_format(MOMENT_BF16, 0));                                                                 \
        break;                                                                                               \
    case 2 * MOMENT_BF16 + 1:                                                                                \
        CALL(moment_format(MOMENT_BF16, 1));                                                                 \
        break;                                                                                               \
    case 2 * MOMENT_FP16:                                                                                    \
        CALL(moment_format(MOMENT_FP16, 0));                                                                 \
        break;                                                                                               \
    case 2 * MOMENT_FP16 + 1:                                                                                \
        CALL(moment_format(MOMENT_FP16, 1));                                                                 \
        break;                                                                                               \
    case 2 * MOMENT_FP8:                                                                                     \
        CALL(moment_format(MOMENT_FP8, 0));                                                                  \
        break;                                                                                               \
    case 2 * MOMENT_FP8 + 1:                                                                                 \
        CALL(moment_format(MOMENT_FP8, 1));                                                                  \
        break;                                                                                               \
    default:                                                                                                 \
        BUG_ON("a type without a format");                                                                   \
    }

/* Numbers of one or two bytes as words, with zeros behind n of them, and back. */
static void widen(uint32_t *code, const char *src, int64_t n, int bytes)
{
    for (int64_t i = n; i < MOMENT_BLOCK; i++)
        code[i] = 0;
    for (int64_t i = 0; i < n && bytes == 1; i++)
        code[i] = ((const uint8_t *)src)[i];
    for (int64_t i = 0; i < n && bytes == 2; i++)
        code[i] = ((const uint16_t *)src)[i];
}
static void narrow(char *dst, const uint32_t *code, int64_t n, int bytes)
{
    for (int64_t i = 0; i < n && bytes == 1; i++)
        ((uint8_t *)dst)[i] = (uint8_t)code[i];
    for (int64_t i = 0; i < n && bytes == 2; i++)
        ((uint16_t *)dst)[i] = (uint16_t)code[i];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void FN(load_moments)(REAL *dst, const void *src, const uint8_t *scale, int64_t n, MomentType type,
                      int second)
{
    uint32_t code[MOMENT_BLOCK];
    float x[MOMENT_BLOCK];
    int bytes = moment_size(type);
    for (int64_t i = 0; i < n; i += MOMENT_BLOCK) {
        int64_t part = least(n - i, MOMENT_BLOCK);
        widen(code, (const char *)src + i * bytes, part, bytes);
#define CALL(format) decode(format, x, code, scale + i / MOMENT_BLOCK)
        WITH_FORMAT(CALL)
#undef CALL
        for (int64_t k = 0; k < part; k++)
            dst[i + k] = x[k];
    }
}

void FN(store_moments)(void *dst, uint8_t *scale, const REAL *src, int64_t n, MomentType type, int second,
                       const BlockNumbers *blocks, int64_t block, int64_t turn)
{
    uint32_t code[MOMENT_BLOCK], words[MOMENT_BLOCK];
    float x[MOMENT_BLOCK];
    int bytes = moment_size(type), half = second ? 16 : 0;
    for (int64_t i = 0; i < n; i += MOMENT_BLOCK) {
        int64_t part = least(n - i, MOMENT_BLOCK),
                number = block_number(blocks, block + i / MOMENT_BLOCK) * (MOMENT_BLOCK / 4);
        FN(draw_words)(words, MOMENT_BLOCK, blocks->key, number & 0xffffffff, number >> 32, turn);
        take_block(x, src + i, part);
#define CALL(format) encode(format, code, scale + i / MOMENT_BLOCK, x, words, half)
        WITH_FORMAT(CALL)
#undef CALL
        narrow((char *)dst + i * bytes, code, part, bytes);
    }
}
