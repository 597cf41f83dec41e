/* linear -- one rank's part of a linear layer, multiplied as its matrices are stored or in FP8 (Micikevicius et al.
 * 2022, arXiv:2209.05433): activations and weights in E4M3, gradients of outputs in E5M2, sums in F32. Each of the three
 * has one scale on each rank. Copies in FP8 lie in scratch, during the call. Local. */
#ifndef LINEAR_H
#define LINEAR_H
#include "device.h"

typedef struct {
    Fp8Scale *x, *w, *dy;      /* on the device; of a layer that is multiplied as it is stored: unused */
    int fp8, delayed;          /* scales from the steps before, or each matrix's own */
} Precision;

/* y [T,out] = x [T,in] w [out,in]^T + b */
void linear_fwd(Device *d, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p);
/* The same into h, and a = act(h). */
void linear_act_fwd(Device *d, Arena *scratch, Mat a, Mat h, Mat x, Mat w, Mat b, ActKind kind, Precision p);
/* dx [T,in] = dy [T,out] w */
void linear_bwd_x(Device *d, Arena *scratch, Mat dx, Mat dy, Mat w, Precision p);
/* dh = that times act'(h); da [T,in] is scratch, dh may be h, or da where the kind is not gated. */
void linear_act_bwd_x(Device *d, Arena *scratch, Mat dh, Mat da, Mat dy, Mat w, Mat h, ActKind kind, Precision p);
/* dw += dy^T x, db += column sums of dy; db absent: dw alone */
void linear_bwd_w(Device *d, Arena *scratch, Mat dw, Mat db, Mat dy, Mat x, Precision p);
#endif
