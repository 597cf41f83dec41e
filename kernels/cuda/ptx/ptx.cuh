/* ptx -- PTX instructions without a function in CUDA C++: matrix products of a warp (mma.sync), loads of
 * their operands (ldmatrix), asynchronous copies to shared memory (cp.async), 2^x. All need sm_80. No
 * other file has PTX.
 *
 * Fragments of a warp, lane = 4 g + t (PTX ISA, "Matrix Fragments for mma.m16n8k16"). A register holds
 * two elements, the one of lower index in its lower half:
 *   A [16 rows][16 k]   a[0] (g, 2t..) a[1] (g + 8, 2t..) a[2] (g, 2t + 8..) a[3] (g + 8, 2t + 8..)
 *   B [16 k][8 columns] b0 (2t.., g)   b1 (2t + 8.., g)
 *   C [16 rows][8]      c[0], c[1] (g, 2t..) c[2], c[3] (g + 8, 2t..)   in F32 */
#ifndef PTX_CUH
#define PTX_CUH
#include <stdint.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef uint32_t SharedAt;     /* an address in shared memory, in bytes */

__device__ __forceinline__ SharedAt shared_at(const void *p)
{
    return (SharedAt)__cvta_generic_to_shared(p);
}

/* Load four 8 x 8 matrices of 2-byte elements.
 *   r   out  [4]  r[m]: of matrix m row g, columns 2t and 2t + 1; _trans: rows 2t and 2t + 1 of column g
 *   at  in        lane i: address of row i % 8 of matrix i / 8, 16 bytes at a multiple of 16 */
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedAt at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAt at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* c += a b: elements of type T, sums in F32. */
template <typename T>
__device__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                            uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Copy 16 or 4 bytes to shared memory; without `there` they write zeros and read nothing. Both addresses
 * are multiples of the size. The copy is complete for this thread after cp_async_wait, and for other
 * threads after a barrier behind that. */
__device__ __forceinline__ void cp_async16(SharedAt to, const void *from, bool there)
{
    int n = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(n) : "memory");
}
__device__ __forceinline__ void cp_async4(SharedAt to, const void *from, bool there)
{
    int n = there ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(n) : "memory");
}
/* Makes a group of the copies since the last commit; it may be empty. */
__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}
/* Waits until all groups of this thread but the N newest are complete. */
template <int N>
__device__ __forceinline__ void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* Waits until THREADS threads of the block, whole warps, have called it with this ID, 1 .. 15; what each
 * has written to shared memory before, all see after. */
template <int ID, int THREADS>
__device__ __forceinline__ void barrier_some()
{
    asm volatile("bar.sync %0, %1;" : : "n"(ID), "n"(THREADS) : "memory");
}

/* 2^x within two units in the last place; 0 for -inf; results below 2^-126 are 0. */
__device__ __forceinline__ float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Read blockIdx.x and threadIdx.x again, so that values computed from them need no registers during a
 * loop. */
__device__ __forceinline__ uint32_t block_again()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(r));
    return r;
}
__device__ __forceinline__ uint32_t thread_again()
{
    uint32_t r;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(r));
    return r;
}
/* Returns x. What is computed from the result is not kept from one call to the next. */
__device__ __forceinline__ int again(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}
#endif
