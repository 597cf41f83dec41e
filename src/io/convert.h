/* convert -- converts between storage types on the host, rounding once, to nearest even.
 *
 * It is for files, where a tensor is read once. The op for the hot path is Device.copy. Both round F64
 * to BF16 in one step, so that a value has the same bits on either way. */
#ifndef CONVERT_H
#define CONVERT_H
#include "device.h"

/* dst[i] = src[i] for n elements of F64, F32, BF16 or F16. Equal types copy the bits; any other pair of
 * types is a BUG. */
void convert(void *dst, Dtype to, const void *src, Dtype from, int64_t n);

/* Returns how many of n elements are NaN or infinite; 0 for a type that has neither. src may be
 * unaligned. */
int64_t convert_count_not_finite(const void *src, Dtype type, int64_t n);
#endif
