/* convert -- storage types into each other, on the host, one rounding to nearest even. For files, where a
 * tensor is read once; Device.copy is the op for the hot path and rounds F64 to BF16 in the same single step
 * here, so that no value depends on the way it took. */
#ifndef CONVERT_H
#define CONVERT_H
#include "device.h"

/* dst[i] = src[i] for n elements of F64, F32, BF16 or F16; the same type copies bits. Other pairs are a
 * BUG. */
void convert(void *dst, Dtype to, const void *src, Dtype from, int64_t n);

/* How many of n elements, anywhere in memory, are NaN or infinite; of types that have neither, none. */
int64_t convert_count_not_finite(const void *src, Dtype type, int64_t n);
#endif
