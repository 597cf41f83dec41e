/* reduce -- element-wise sums, maxima and minima of several arrays, in the order of the arguments. */
#ifndef REDUCE_H
#define REDUCE_H
#include "comm.h"

/* The type of partial results: F32 for BF16 and F16, so that a sum is rounded once, at its end. */
static inline Dtype reduce_partial(Dtype type) { return type == BF16 || type == F16 ? F32 : type; }

/* dst[i] = ((src[0][i] op src[1][i]) op src[2][i]) ... for i < n. In maxima and minima NaN wins over any
 * number. The bits do not depend on the instruction set.
 *   dst       out  [n]      may be one of the sources, and overlaps no other
 *   dst_type  in            src_type, or one of the two is reduce_partial of the other
 *   src       in   [m][n]   m >= 1 */
void reduce_arrays(void *dst, Dtype dst_type, const void *const *src, Dtype src_type, int m, int64_t n,
                   ReduceOp op);
#endif
