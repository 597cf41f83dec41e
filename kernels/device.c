/* device -- what all devices share: names of types, arenas of device and host memory, copies */
#include "device.h"
#include "half.h"
#include <stdio.h>
#include <string.h>

const char *dtype_name(Dtype t)
{
    static const char *const names[] = {"F64", "F32", "BF16", "F16", "I32", "I64", "I16"};
    BUG_ON((unsigned)t >= DTYPES);
    return names[t];
}

size_t host_left(void)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[256];
    unsigned long long kib;
    size_t left = SIZE_MAX / 2;        /* for systems without MemAvailable */
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            left = (size_t)kib * 1024;
    if (f)
        fclose(f);
    return left;
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

/* Masters that are taken apart or joined at a time. */
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
