/* cuda_pairs -- matrices on the CPU and on the GPU, for tests that compare what the two make of them */
#ifndef CUDA_PAIRS_H
#define CUDA_PAIRS_H
#include "cuda.h"
#include "ops.h"

static Device cpu, gpu;
static const Mat none;

static inline uint64_t draw(uint64_t *s, uint64_t n)
{
    return philox(0x6d61746d, (*s)++, 0).v[0] % n;
}
/* A matrix on CPU and GPU. It starts `skew` elements into its memory, and `pad` elements lie between its
 * rows; elements around the matrix hold 7. */
typedef struct { Mat host, dev; void *base, *dev_base; size_t bytes; } Pair;

static inline Pair pair_open(int64_t rows, int64_t cols, int64_t pad, int64_t skew, Dtype t, uint64_t stream,
                             double scale)
{
    int64_t ld = cols + pad, n = skew + rows * ld + 8;
    Pair p = {.bytes = (size_t)n * dtype_size(t)};
    p.base = xcalloc(1, p.bytes);
    p.dev_base = gpu.take(&gpu, p.bytes);
    for (int64_t i = 0; i < n; i++)
        put(p.base, i, t, 7);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            put(p.base, skew + r * ld + c, t, scale * normal(stream, r * cols + c));
    size_t at = (size_t)skew * dtype_size(t);
    p.host = (Mat){(char *)p.base + at, rows, cols, ld, t};
    p.dev = (Mat){(char *)p.dev_base + at, rows, cols, ld, t};
    gpu.put(&gpu, p.dev_base, p.base, p.bytes);
    return p;
}
static inline void pair_close(Pair *p)
{
    gpu.give(&gpu, p->dev_base, p->bytes);
    free(p->base);
}

/* Largest difference between GPU and CPU, divided by 1 + |the CPU's value|; infinite when an element
 * beside the matrix has changed. */
static inline double difference(const Pair *p)
{
    void *got = xcalloc(1, p->bytes);
    Dtype t = p->host.type;
    int64_t skew = ((char *)p->host.p - (char *)p->base) / (int64_t)dtype_size(t);
    int64_t n = (int64_t)(p->bytes / dtype_size(t));
    double worst = 0;
    gpu.get(&gpu, got, p->dev_base, p->bytes);
    for (int64_t i = 0; i < n; i++) {
        double x = get(p->base, i, t), y = get(got, i, t), e = fabs(x - y) / (1 + fabs(x));
        int64_t at = i - skew,
                inside = at >= 0 && at < p->host.rows * p->host.ld && at % p->host.ld < p->host.cols;
        if (!(e <= worst))
            worst = inside && !isnan(e) ? e : INFINITY;
        if (!inside && x != y)
            worst = INFINITY;
    }
    free(got);
    return worst;
}

/* Element i of the CPU's matrix, row by row. */
static inline double cell(const Pair *p, int64_t i)
{
    return get(p->host.p, i / p->host.cols * p->host.ld + i % p->host.cols, p->host.type);
}
/* Largest magnitude of the CPU's matrix. */
static inline double largest_of(const Pair *p)
{
    double most = 0;
    for (int64_t i = 0; i < p->host.rows * p->host.cols; i++)
        most = fmax(most, fabs(cell(p, i)));
    return most;
}

/* Limit of difference: error of sums of k products of numbers around 1, added in another order, plus the
 * rounding of the output type. */
static inline double tolerance(Dtype out, int64_t k)
{
    double round = out == F32 ? 0 : out == BF16 ? 0x1p-7 : 0x1p-10;
    return round + 1e-6 * sqrt((double)k + 16);
}
#endif
