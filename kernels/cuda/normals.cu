/* normals -- random initial values by the arithmetic of kernels/normals.h. The Makefile compiles this file
 * without fused multiply-adds: the numbers have the bits of the CPU. */
#include "common.cuh"
#include "normals.h"

enum { THREADS = 256 };

/* A thread draws a pair of numbers, 2 (first / 2 + i) and the next, of which a row's first and last pair may
 * lie outside the row by one number. */
struct Normals {
    void *y;
    int16_t *rest;                 /* as y; NULL: none */
    int64_t ld, rows, cols, pairs; /* pairs: of a row, at most */
    int64_t first, step;
    uint64_t key;
    double mean, std;
};

template <class T> static __global__ void __launch_bounds__(THREADS) k_normals(const Normals n)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = i / n.pairs;
    if (r >= n.rows)
        return;
    int64_t first = n.first + r * n.step, pair = first / 2 + (i - r * n.pairs), c = 2 * pair - first;
    uint32_t w[4] = {(uint32_t)pair, (uint32_t)((uint64_t)pair >> 32), 0, 0};
    double x[2];
    device_philox(w, n.key);
    normals_pair(w[0], w[1], w[2], w[3], x);
    T *y = (T *)n.y + r * n.ld;
    for (int k = 0; k < 2; k++) {
        float value = (float)normals_value(x[k], n.mean, n.std);
        if (c + k < 0 || c + k >= n.cols)
            continue;
        if (n.rest) {
            ((uint16_t *)n.y)[r * n.ld + c + k] = master_weight(value);
            n.rest[r * n.ld + c + k] = master_rest(value);
        } else {
            from_float(&y[c + k], value);
        }
    }
}

void cuda_normals(Device *d, Mat y, Mat rest, double mean, double std, uint64_t key, int64_t first,
                  int64_t step)
{
    BUG_ON(rest.p && (y.type != BF16 || rest.type != I16 || rest.rows != y.rows || rest.cols != y.cols
                      || rest.ld != y.ld));
    BUG_ON(first < 0 || step < 0 || (y.type != F32 && y.type != BF16 && y.type != F16));
    if (!y.rows || !y.cols)
        return;
    if (y.ld == y.cols && step == y.cols)      /* one long row has no pairs that two rows share */
        y.cols = y.ld = y.rows * y.cols, y.rows = 1;
    Normals n = {y.p, (int16_t *)rest.p, y.ld, y.rows, y.cols, y.cols / 2 + 1, first, step, key, mean, std};
    unsigned blocks = blocks_of(ceil_div(n.rows * n.pairs, THREADS));
    with_type(y.type, [&](auto t_) {
        LAUNCH(k_normals<decltype(t_)>, blocks, THREADS, 0, cuda_of(d)->compute, n);
    });
}
