/* hash -- hashes of bytes: a block of threads takes BLOCK words of one array, then further ones where the
 * grid is smaller than their number. Sums of integers have the same bits in any order. */
#include "common.cuh"
#include "listed.cuh"

enum { THREADS = 256, BLOCK = 32 * THREADS };

struct Bytes {
    int64_t first; /* number of its first block */
    int64_t bytes;
    const unsigned char *x;
    uint64_t *sum;
};
struct Hashes {
    int64_t blocks;
    int count;
    Bytes array[LISTED];
};

/* Word k of an array; its last word may be short, and the array may start anywhere. */
__device__ __forceinline__ uint64_t word_of(const Bytes &a, int64_t k)
{
    const unsigned char *at = a.x + 8 * k;
    int64_t n = a.bytes - 8 * k < 8 ? a.bytes - 8 * k : 8;
    uint64_t w = 0;
    if (n == 8 && (uintptr_t)at % 8 == 0)
        return *(const uint64_t *)at;
    for (int64_t i = 0; i < n; i++)
        w |= (uint64_t)at[i] << (8 * i);
    return w;
}

__global__ void __launch_bounds__(THREADS) k_hash(const __grid_constant__ Hashes u)
{
    for (int64_t b = blockIdx.x; b < u.blocks; b += gridDim.x) {
        const Bytes a = u.array[listed(u.array, u.count, b)];
        int64_t start = (b - a.first) * BLOCK, words = (a.bytes + 7) / 8,
                end = start + BLOCK < words ? start + BLOCK : words;
        uint64_t sum = 0;
        for (int64_t k = start + threadIdx.x; k < end; k += THREADS) {
            uint64_t w = word_of(a, k);
            sum += HASH_WORD(k, w);
        }
        for (int o = WARP / 2; o; o /= 2)
            sum += __shfl_xor_sync(EVERY_LANE, sum, o);
        if (threadIdx.x % WARP == 0)
            atomicAdd((unsigned long long *)a.sum, (unsigned long long)sum);
    }
}

void cuda_hash(Device *d, const Hashed *list, int64_t count)
{
    Cuda *c = cuda_of(d);
    Hashes u;
    memset(&u, 0, sizeof u);
    for (int64_t i = 0; i < count; i += u.count) {
        u.blocks = 0;
        for (u.count = 0; u.count < LISTED && i + u.count < count; u.count++) {
            const Hashed *h = &list[i + u.count];
            Bytes a = {u.blocks, h->bytes, (const unsigned char *)h->x, h->sum};
            BUG_ON(h->bytes < 1);
            u.array[u.count] = a;
            u.blocks += ceil_div(ceil_div(h->bytes, 8), BLOCK);
        }
        LAUNCH(k_hash, blocks_of(u.blocks < c->sms * 8 ? u.blocks : c->sms * 8), THREADS, 0, c->compute, u);
    }
}
