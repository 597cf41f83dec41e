/* cpu -- the state of the CPU device, which Device.impl points to. */
#ifndef CPU_H
#define CPU_H
#include "device.h"
#include "gemm.h"

/* Functions whose constant arguments choose the code of a call. */
#define INLINE static inline __attribute__((always_inline))

typedef struct {
    Arena arena;                   /* memory of all buffers below */
    void *rows;                    /* [threads][ROW_SLOTS][ROW_MAX] real: rows of the ops (isa.h) */
    void *sums;                    /* [threads][2][SUM_MAX] real: gradients of a head's keys and values */
    const GemmKernel *gemm;        /* products in reals; packing converts BF16 and F16 */
    const GemmKernel *gemm_bf16;   /* products of BF16 by BF16 instructions; without these, gemm */
    GemmBuffers buffers;
    double mark[DEVICE_MARKS];     /* now() at mark t: mark[t % DEVICE_MARKS] */
    int64_t marks;                 /* marks so far */
} Cpu;

#define ROW_SLOTS 4
#define ROW_MAX 65536          /* reals of a row buffer */
#define SUM_MAX 524288         /* reals of a sum buffer: 4096 keys of 128 */

static inline Cpu *cpu_of(const Device *d) { return d->impl; }

/* The ops `verdict` and, for one ratio, `trust` (device.h); verdict.c.
 *   norms       in  [2]  squared norms: of the weight, and of its step (LAMB) or gradient (LARS)
 *   lars        in       bool: LARS, else LAMB
 *   multiplier  in       what LARS's gradient norm is multiplied by */
void verdict_of(Verdict *v, const double *sums, const Exact *squares, double nominal, double loss_scale,
                double clip_grad, int stop, Limits limits);
double trust_of(const Exact norms[2], int lars, double coefficient, double wd, double multiplier);

/* Kernels of x86-64 builds, for CPUs that have the instructions. */
extern const GemmKernel amx_kernel, bf16dot_kernel;
void gemm_finish_avx512_f32(const Finish *f, void *tile, int width, int rows, int cols);
/* Attention whose products take BF16 by vdpbf16ps, or by AMX (isa/attention_tile.h); device.h. */
#define DECLARE_ATTENTION(by)                                                                                \
    void cpu_attention_fwd_##by(Device *d, Mat o, Mat lse, Mat q, Mat k, Mat v, const Attention *s);        \
    void cpu_attention_bwd_##by(Device *d, Mat dq, Mat dk, Mat dv, Mat dout, Mat o, Mat lse, Mat delta,     \
                                Mat q, Mat k, Mat v, const Attention *s);
DECLARE_ATTENTION(pairs)
DECLARE_ATTENTION(tiles)
/* Asks the system for permission to use AMX tiles and tries one product. Returns whether it is
 * correct. */
int amx_works(void);
#endif
