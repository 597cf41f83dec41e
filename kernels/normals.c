/* normals -- standard normal numbers by counter, a block at a time. The loops are plain C that the compiler
 * turns into vectors, once for each instruction set; nothing is contracted to fused multiply-adds, so the
 * numbers have the same bits on all of them. */
#include "base.h"
#include "normals.h"

#define BLOCK 64                 /* pairs of normals made at a time */
#if defined __x86_64__ && !defined __clang__ && __GNUC__ >= 12 && !defined __SANITIZE_THREAD__
#define EACH_ISA __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_ISA
#endif

/* Box-Muller: counters i .. i + n of stream (key, sub), n at most BLOCK, give normals 2i .. 2i + 2n. */
EACH_ISA
static void block(uint64_t key, uint64_t sub, uint64_t i, int n, double *out)
{
    uint32_t word[4][BLOCK];
    for (int k = 0; k < n; k++) {
        Philox r = philox(key, i + (uint64_t)k, sub);
        for (int w = 0; w < 4; w++)
            word[w][k] = r.v[w];
    }
    for (int k = 0; k < n; k++)
        normals_pair(word[0][k], word[1][k], word[2][k], word[3][k], out + 2 * k);
}

static void normals(uint64_t key, uint64_t sub, uint64_t index, int64_t n, double *out)
{
    double pairs[2 * BLOCK];
    while (n > 0) {
        int64_t skip = (int64_t)(index & 1), some = n < 2 * BLOCK - skip ? n : 2 * BLOCK - skip;
        block(key, sub, index / 2, (int)(skip + some + 1) / 2, pairs);
        memcpy(out, pairs + skip, (size_t)some * sizeof *out);
        out += some, index += (uint64_t)some, n -= some;
    }
}

double rng_normal(uint64_t key, uint64_t sub, uint64_t index)
{
    double x;
    normals(key, sub, index, 1, &x);
    return x;
}

void rng_normals(uint64_t key, uint64_t sub, uint64_t index, int64_t n, double mean, double std, double *out)
{
    normals(key, sub, index, n, out);
    for (int64_t i = 0; i < n; i++)
        out[i] = normals_value(out[i], mean, std);
}
