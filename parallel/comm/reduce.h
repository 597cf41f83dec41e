/* reduce -- element-wise sums, maxima and minima of several arrays, in the order in which they are given. */
#ifndef REDUCE_H
#define REDUCE_H
#include "comm.h"

/* What partial results of `type` are kept in: F32 for BF16 and F16, which are rounded once, at the end. */
static inline Dtype reduce_partial(Dtype type) { return type == BF16 || type == F16 ? F32 : type; }

/* dst[i] = ((src[0][i] op src[1][i]) op src[2][i]) ..., i < n, m >= 1 sources. Sources and dst are of one
 * type, or one of the two is reduce_partial() of the other. dst may be one of the sources and overlaps no
 * other. NaN wins over any number in maxima and minima. The bits do not depend on the instruction set. */
void reduce_arrays(void *dst, Dtype dst_type, const void *const *src, Dtype src_type, int m, int64_t n,
                   ReduceOp op);
#endif
