/* device -- what all devices share: names of types, arenas of device and host memory, copies */
#include "device.h"
#include "half.h"
#include <string.h>

const char *dtype_name(Dtype t)
{
    static const char *const names[] = {"F64", "F32", "BF16", "F16", "I32", "I64", "I16", "U8"};
    BUG_ON((unsigned)t >= DTYPES);
    return names[t];
}

void device_arena(Device *d, Arena *a, const char *name, size_t size)
{
    *a = (Arena){.name = name, .size = size, .base = d->take(d, size)};
}

void device_arena_close(Device *d, Arena *a)
{
    d->give(d, a->base, a->size);
    *a = (Arena){0};
}

void mapped_arena(Device *d, Arena *a, const char *name, size_t size)
{
    *a = (Arena){.name = name, .size = size, .base = d->mapped_take(d, size)};
}

void mapped_arena_close(Device *d, Arena *a)
{
    d->mapped_give(d, a->base, a->size);
    *a = (Arena){0};
}

void host_arena(Device *d, Arena *a, const char *name, size_t size)
{
    *a = (Arena){.name = name, .size = size, .base = d->host_take(d, size)};
}

void host_arena_close(Device *d, Arena *a)
{
    d->host_give(d, a->base, a->size);
    *a = (Arena){0};
}

static void host_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes)
        memcpy(dst, src, bytes);
}

void device_put(Device *d, void *dst, const void *src, size_t bytes)
{
    d ? d->put(d, dst, src, bytes) : host_copy(dst, src, bytes);
}

void device_get(Device *d, void *dst, const void *src, size_t bytes)
{
    d ? d->get(d, dst, src, bytes) : host_copy(dst, src, bytes);
}

int64_t device_snapshot(Device *d, void *dst, const void *src, size_t bytes)
{
    if (d)
        return d->snapshot(d, dst, src, bytes);
    host_copy(dst, src, bytes);
    return 0;
}

/* Masters that are taken apart or joined at a time; moments that are encoded or decoded. */
enum { MASTERS = 1 << 15 };

void device_put_masters(Device *d, uint16_t *weight, int16_t *rest, const float *src, int64_t n)
{
    uint16_t upper[MASTERS];
    int16_t lower[MASTERS];
    for (int64_t at = 0, part; at < n; at += part) {
        part = n - at < MASTERS ? n - at : MASTERS;
        for (int64_t i = 0; i < part; i++) {
            upper[i] = master_weight(src[at + i]);
            lower[i] = master_rest(src[at + i]);
        }
        device_put(d, weight + at, upper, (size_t)part * sizeof *upper);
        device_put(d, rest + at, lower, (size_t)part * sizeof *lower);
    }
}

void device_get_masters(Device *d, float *dst, const uint16_t *weight, const int16_t *rest, int64_t n)
{
    uint16_t upper[MASTERS];
    int16_t lower[MASTERS];
    for (int64_t at = 0, part; at < n; at += part) {
        part = n - at < MASTERS ? n - at : MASTERS;
        device_get(d, upper, weight + at, (size_t)part * sizeof *upper);
        device_get(d, lower, rest + at, (size_t)part * sizeof *lower);
        for (int64_t i = 0; i < part; i++)
            dst[at + i] = master_join(upper[i], lower[i]);
    }
}

Dtype moment_dtype(MomentType type, Dtype real)
{
    const Dtype types[] = {
        [MOMENT_FP32] = real, [MOMENT_BF16] = BF16, [MOMENT_FP16] = F16, [MOMENT_FP8] = U8};
    return types[type];
}

/* Number i of an array; bytes: of a number, 1 or 2. */
static uint32_t code_at(const void *p, int64_t i, int bytes)
{
    return bytes == 1 ? ((const uint8_t *)p)[i] : ((const uint16_t *)p)[i];
}

static void encode_block(MomentFormat f, int bytes, void *codes, uint8_t *scale, const float *src, int64_t n)
{
    uint32_t amax = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = moment_bits(src[i]) & 0x7fffffff;
        amax = u < 0x7f800000 && u > amax ? u : amax;
    }
    *scale = moment_scale(f, amax);
    for (int64_t i = 0; i < n; i++) {
        uint32_t code = moment_encode(f, src[i], moment_inverse(*scale), UINT32_MAX);
        if (bytes == 1)
            ((uint8_t *)codes)[i] = (uint8_t)code;
        else
            ((uint16_t *)codes)[i] = (uint16_t)code;
    }
}

void device_put_moments(Device *d, void *p, uint8_t *scale, MomentType type, int second, int64_t at,
                        const float *src, int64_t n)
{
    MomentFormat f = moment_format(type, second);
    uint8_t scales[MASTERS / MOMENT_BLOCK];
    uint16_t codes[MASTERS];
    int bytes = moment_size(type);
    BUG_ON(!moment_scaled(type) || at % MOMENT_BLOCK);
    for (int64_t i = 0, part; i < n; i += part) {
        part = n - i < MASTERS ? n - i : MASTERS;
        for (int64_t k = 0; k < part; k += MOMENT_BLOCK)
            encode_block(f, bytes, (char *)codes + k * bytes, scales + k / MOMENT_BLOCK, src + i + k,
                         part - k < MOMENT_BLOCK ? part - k : MOMENT_BLOCK);
        device_put(d, (char *)p + (at + i) * bytes, codes, (size_t)(part * bytes));
        device_put(d, scale + (at + i) / MOMENT_BLOCK, scales,
                   (size_t)(part + MOMENT_BLOCK - 1) / MOMENT_BLOCK);
    }
}

void device_get_moments(Device *d, float *dst, const void *p, const uint8_t *scale, MomentType type,
                        int second, int64_t at, int64_t n)
{
    MomentFormat f = moment_format(type, second);
    uint8_t scales[MASTERS / MOMENT_BLOCK + 1];
    uint16_t codes[MASTERS];
    int bytes = moment_size(type);
    BUG_ON(!moment_scaled(type));
    for (int64_t i = 0, part; i < n; i += part) {
        int64_t from = at + i, block = from / MOMENT_BLOCK;
        part = n - i < MASTERS - MOMENT_BLOCK ? n - i : MASTERS - MOMENT_BLOCK;
        device_get(d, codes, (const char *)p + from * bytes, (size_t)(part * bytes));
        device_get(d, scales, scale + block, (size_t)((from + part - 1) / MOMENT_BLOCK - block + 1));
        for (int64_t k = 0; k < part; k++)
            dst[i + k] = moment_decode(f, code_at(codes, k, bytes)) *
                         moment_factor(scales[(from + k) / MOMENT_BLOCK - block]);
    }
}
