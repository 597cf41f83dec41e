/* linear -- one rank's part of a linear layer, multiplied as its matrices are stored or in FP8 (Micikevicius
 * et al. 2022, arXiv:2209.05433): activations and weights in E4M3, gradients of outputs in E5M2, sums in F32.
 * Each of the three has one scale on each rank. Copies in FP8 lie in scratch, during the call; those of a
 * weight may be kept while it does not change. Local. */
#ifndef LINEAR_H
#define LINEAR_H
#include "device.h"

/* A weight in FP8, as it is and transposed, made when it is first asked for; turned NULL: nobody will. */
typedef struct { void *plain, *turned; int there; } Fp8Weight;

typedef struct {
    Fp8Scale *x, *w, *dy;      /* on the device; of a layer that is multiplied as it is stored: unused */
    int fp8, delayed;          /* scales from the steps before, or each matrix's own */
    Fp8Weight *kept;           /* NULL: each call makes a copy for itself */
} Precision;

/* What rows are multiplied by, block after block of them: y = x w^T + b (forward), or y = x w. In FP8 the
 * weight's copy is made once; where it is not kept, it lies in the scratch of linear_factor until that is
 * reset. */
typedef struct { Mat w, b; int forward; Precision p; Mat8 w8; } Factor;
Factor linear_factor(Device *d, Arena *scratch, Mat w, Mat b, int forward, Precision p);

/* Rows to be multiplied by f: x, in FP8 a copy of it with one scale, in scratch. part: rows [first, first +
 * n) of it. */
typedef struct { Mat x; Mat8 x8; } Rows;
Rows linear_rows(Device *d, Arena *scratch, Mat x, const Factor *f);
Rows linear_rows_part(Rows x, int64_t first, int64_t n);

void linear_multiply(Device *d, Mat y, Rows x, const Factor *f);
/* With the activation. Forward: y, and out = act(y); h is unused. Else out = y times act'(h), y being
 * scratch; out may be h, or y where the kind is not gated. */
void linear_multiply_act(Device *d, Mat out, Mat y, Mat h, Rows x, const Factor *f, ActKind kind);

/* y [T,out] = x [T,in] w [out,in]^T + b */
void linear_fwd(Device *d, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p);
/* dx [T,in] = dy [T,out] w */
void linear_bwd_x(Device *d, Arena *scratch, Mat dx, Mat dy, Mat w, Precision p);
/* dw += dy^T x, db += column sums of dy; db absent: dw alone */
void linear_bwd_w(Device *d, Arena *scratch, Mat dw, Mat db, Mat dy, Mat x, Precision p);
#endif
