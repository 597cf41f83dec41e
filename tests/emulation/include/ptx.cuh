/* ptx -- the instructions of kernels/cuda/ptx/ptx.cuh on the host; the 32 threads of a warp exchange their
 * fragments. A cp.async copies as late as a wait allows; its destination holds 0xff until then. */
#ifndef PTX_CUH
#define PTX_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <emulation.h>
#include <map>
#include <vector>

typedef uint32_t SharedAt;     /* bytes from the start of shared memory */
extern char shared[];

static inline SharedAt shared_at(const void *p)
{
    return (SharedAt)(static_cast<const char *>(p) - shared);
}

static inline char *emulation_shared(SharedAt at, unsigned size, const char *what)
{
    if (at % size || at >= EMULATION_SHARED)
        emulation_fail("kernel address %u of shared memory in %s", at, what);
    return shared + at;
}

/* ---- ldmatrix ---- */

static inline void emulation_ldmatrix(uint32_t (&r)[4], SharedAt at, int trans)
{
    const SharedAt *row = emulation_lanes(at, trans ? "ldmatrix.trans" : "ldmatrix");
    int lane = emulation_thread() & 31, g = lane / 4, t = lane % 4;
    for (int m = 0; m < 4; m++) {
        uint16_t low, high;
        if (trans) {
            memcpy(&low, emulation_shared(row[8 * m + 2 * t], 16, "ldmatrix") + 2 * g, 2);
            memcpy(&high, emulation_shared(row[8 * m + 2 * t + 1], 16, "ldmatrix") + 2 * g, 2);
        } else {
            memcpy(&low, emulation_shared(row[8 * m + g], 16, "ldmatrix") + 4 * t, 2);
            memcpy(&high, emulation_shared(row[8 * m + g], 16, "ldmatrix") + 4 * t + 2, 2);
        }
        r[m] = (uint32_t)high << 16 | low;
    }
}
static inline void ldmatrix_x4(uint32_t (&r)[4], SharedAt at) { emulation_ldmatrix(r, at, 0); }
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAt at) { emulation_ldmatrix(r, at, 1); }

/* ---- mma ---- */

template <typename T> static inline float emulation_element(uint16_t bits);
template <> inline float emulation_element<__nv_bfloat16>(uint16_t bits)
{
    uint32_t u = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
template <> inline float emulation_element<__half>(uint16_t bits)
{
    static float table[1 << 16];
    static int made;
    for (; made < 1 << 16; made++) {
        __half_raw raw;
        raw.x = (unsigned short)made;
        table[made] = __half2float(__half(raw));
    }
    return table[bits];
}

struct EmulationFragments { uint32_t a[4], b[2]; };

template <typename T>
static inline void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    EmulationFragments mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const EmulationFragments *all = emulation_lanes(mine, "mma");
    int lane = emulation_thread() & 31, g = lane / 4, t = lane % 4;
    float x[2][16], y[2][16];
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++)
            for (int e = 0; e < 2; e++) {
                int k = 2 * i + 8 * half + e, shift = 16 * e;
                for (int r = 0; r < 2; r++) {
                    x[r][k] = emulation_element<T>((uint16_t)(all[4 * g + i].a[r + 2 * half] >> shift));
                    y[r][k] = emulation_element<T>((uint16_t)(all[4 * (2 * t + r) + i].b[half] >> shift));
                }
            }
    for (int r = 0; r < 2; r++)
        for (int n = 0; n < 2; n++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += x[r][k] * y[n][k];
            c[2 * r + n] += sum;
        }
}

/* ---- cp.async ---- */

struct EmulationCopy { SharedAt to; const void *from; unsigned size; int there; };
/* Copies of one thread in the order of their issue, and the number of copies in each committed group. */
struct EmulationCopies {
    uint64_t block;
    std::vector<EmulationCopy> copies;
    std::vector<size_t> groups;
    size_t open;
};
inline EmulationCopies emulation_copies[1024];

static inline EmulationCopies *emulation_copies_mine(void)
{
    EmulationCopies *q = &emulation_copies[emulation_thread()];
    if (q->block != emulation_block()) {
        q->block = emulation_block();
        q->copies.clear();
        q->groups.clear();
        q->open = 0;
    }
    return q;
}
static inline void emulation_copy(SharedAt to, const void *from, bool there, unsigned size)
{
    EmulationCopies *q = emulation_copies_mine();
    if ((uintptr_t)from % size)
        emulation_fail("cp.async of %u bytes from %p", size, from);
    memset(emulation_shared(to, size, "cp.async"), 0xff, size);
    emulation_touch(shared + to, size, 1, 0);
    if (there)
        emulation_touch(from, size, 0, 0);
    q->copies.push_back({to, from, size, there});
    q->open++;
}
static inline void cp_async16(SharedAt to, const void *from, bool there)
{
    emulation_copy(to, from, there, 16);
}
static inline void cp_async4(SharedAt to, const void *from, bool there)
{
    emulation_copy(to, from, there, 4);
}
static inline void cp_async_commit()
{
    EmulationCopies *q = emulation_copies_mine();
    q->groups.push_back(q->open);
    q->open = 0;
}
template <int N> static inline void cp_async_wait()
{
    EmulationCopies *q = emulation_copies_mine();
    size_t done = 0, groups = q->groups.size() > N ? q->groups.size() - N : 0;
    for (size_t i = 0; i < groups; i++)
        done += q->groups[i];
    for (size_t i = 0; i < done; i++) {
        const EmulationCopy *c = &q->copies[i];
        emulation_touch(shared + c->to, c->size, 1, 0);
        if (c->there)
            memcpy(shared + c->to, c->from, c->size);
        else
            memset(shared + c->to, 0, c->size);
    }
    q->copies.erase(q->copies.begin(), q->copies.begin() + (ptrdiff_t)done);
    q->groups.erase(q->groups.begin(), q->groups.begin() + (ptrdiff_t)groups);
}

template <int ID, int THREADS>
static inline void barrier_some(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    static std::map<int, int> states;
    if (emulation_site(&states[line], "barrier", file, line))
        emulation_barrier_some(ID, THREADS, file, line);
}

static inline float exp2_approx(float x)
{
    float y = exp2f(x);
    return y < 0x1p-126f ? 0 : y;
}

static inline uint32_t block_again() { return blockIdx.x; }
static inline uint32_t thread_again() { return threadIdx.x; }
static inline int again(int x) { return x; }
#endif
