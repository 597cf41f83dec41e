/* cpu -- what the CPU device keeps, behind Device.impl. */
#ifndef CPU_H
#define CPU_H
#include "device.h"
#include "gemm.h"

typedef struct {
    Arena arena;               /* all of the below */
    void *rows;                /* [threads][ROW_SLOTS][ROW_MAX] real: the ops' row buffers, see isa.h */
    void *sums;                /* [threads][2][SUM_MAX] real: gradients of one head's keys and values */
    const GemmKernel *gemm;    /* products in reals; BF16 and F16 are converted as they are packed */
    const GemmKernel *gemm_bf16;   /* products of BF16 by the CPU's own instructions, or the same as gemm */
    GemmBuffers buffers;
} Cpu;

#define ROW_SLOTS 4
#define ROW_MAX 65536          /* reals */
#define SUM_MAX 524288         /* reals: 4096 keys of 128 */

static inline Cpu *cpu_of(const Device *d) { return d->impl; }

/* The ops `verdict` and `trust`, the latter for one ratio (verdict.c). */
void verdict_of(Verdict *v, const double *sums, const Exact *squares, double nominal, double loss_scale,
                double clip_grad, int stop);
double trust_of(const Exact norms[2], int lars, double coefficient, double wd, double multiplier);

/* Kernels that are there when this build and this CPU have the instructions. */
extern const GemmKernel amx_kernel, bf16dot_kernel;
void gemm_finish_avx512_f32(const Finish *f, void *tile, int width, int rows, int cols);
int amx_works(void);           /* asks permission and tries one tile product, which may trap */
#endif
