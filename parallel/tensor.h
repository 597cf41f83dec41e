/* tensor -- layers split over the tensor group (Shoeybi et al. 2019, arXiv:1909.08053, sec 3).
 *
 * Column linear: rank r owns out/tp rows of w [out/tp, in] and makes those columns of y; its input gradient is summed
 * over the group. Row linear: rank r owns in/tp columns of w [out, in/tp]; its output is summed over the group, and the
 * bias is added once, by rank 0 of the group before the sum. Group of one: the sums return at once.
 * All shapes are local; x of a column linear and y of a row linear are whole on every rank. Collective over tp. */
#ifndef TENSOR_H
#define TENSOR_H
#include "comm.h"

/* y [T, out/tp] = x [T, in] w^T + b */
void column_linear_fwd(Device *d, Mat y, Mat x, Mat w, Mat b);
/* dx [T, in] = sum over tp of dy w; returns the token of the sum: run the weight gradient, then wait. */
Token column_linear_bwd_x(Device *d, Comm *tp, Mat dx, Mat dy, Mat w);
/* y [T, out] = sum over tp of x [T, in/tp] w^T, plus b */
void row_linear_fwd(Device *d, Comm *tp, Mat y, Mat x, Mat w, Mat b);
/* dx [T, in/tp] = dy [T, out] w; no message */
void row_linear_bwd_x(Device *d, Mat dx, Mat dy, Mat w);
/* dw += dy^T x, db += column sums of dy; db may be absent. Both kinds. Local. */
void linear_bwd_w(Device *d, Mat dw, Mat db, Mat dy, Mat x);
#endif
