/* tensor -- layers split over the tensor group (Shoeybi et al. 2019, arXiv:1909.08053, sec 3). With sequence
 * parallelism what lies between these layers is split by rows (Korthikanti et al. 2022, arXiv:2205.05198,
 * sec 4.2.2).
 *
 * Column linear: rank r owns rows [r out/tp, (r+1) out/tp) of w [out, in] and makes those columns of y. Its
 * input gradient is summed over tp.
 * Row linear: rank r owns columns [r in/tp, (r+1) in/tp) of w [out, in]. Its output is summed over tp; rank 0
 * adds the bias before the sum, so that it is added once.
 *
 * The row region is the input of a column linear and the output of a row linear. Without sequence parallelism
 * every rank has all T rows of it, and an all-reduce leads into it. With sequence parallelism rank r has rows
 * [r T/tp, (r+1) T/tp); a reduce-scatter leads into the region, an all-gather out of it. The bits are the
 * same.
 *
 * All shapes are local. R is the number of rows of the row region on this rank: T, or T/tp with sequence
 * parallelism. Functions are collective over tp unless marked local. Shared arguments:
 *   d        in         the device that computes
 *   g        in         the tensor group
 *   scratch  in/out     arena for what lives during the call, and for what a comment says lies in scratch
 *   p        in         how the layer is multiplied, and its scales (linear.h) */
#ifndef TENSOR_H
#define TENSOR_H
#include "comm.h"
#include "linear.h"

typedef struct {
    Comm *tp;
    Comm *rows;                /* shares out the rows: tp with sequence parallelism, else a group of one */
    Comm *sum;                 /* adds up all rows: a group of one with sequence parallelism, else tp */
    int overlap;               /* bool: gathers and scatters run block by block beside the multiplication */
    Token *sent, *come;        /* [rows->size] messages of the overlap */
} TensorGroup;

/* Rows being gathered: `all` may be read after tensor_gathered. */
typedef struct { Mat all; Token token; } TensorRows;
/* A sum under way: until tensor_wait. */
typedef struct { Token rows, sum; } TensorSum;

/* Starts to gather the rows of all ranks. They lie in scratch; where R = T they are x itself.
 *   x        in   [R, n] */
TensorRows tensor_gather(const TensorGroup *g, Arena *scratch, Mat x);
/* The same into memory of the caller.
 *   all      out  [T, n]      tensor_room of x */
TensorRows tensor_gather_into(const TensorGroup *g, Mat all, Mat x);
/* Waits; returns the rows of all ranks [T, n]. */
Mat tensor_gathered(const TensorGroup *g, TensorRows r);
/* Whether the overlap is wanted and there are rows of other ranks to wait for. Local. */
int tensor_overlaps(const TensorGroup *g, int wanted);
/* Room for [T, n] from scratch, where y is [R, n]; y itself where R = T. Local. */
Mat tensor_room(const TensorGroup *g, Arena *scratch, Mat y);
/* Starts a sum over tp.
 *   y        out  [R, n]      this rank's rows of the sum, after tensor_wait
 *   room     in   [T, n]      tensor_room of y, filled with this rank's share; stays until tensor_wait */
TensorSum tensor_sum(const TensorGroup *g, Mat y, Mat room);
void tensor_wait(const TensorGroup *g, TensorSum s);

/* A column linear's forward: y = x w^T + b for the rows of all ranks. With g->overlap a rank multiplies its
 * own rows first, then those of each other rank as they come; without delayed scaling, the FP8 rows of each
 * rank then have a scale of their own.
 *   all      out  [T, in]     tensor_room of x: the rows of all ranks, on return
 *   y        out  [T, out/tp]
 *   x        in   [R, in]
 *   w        in   [out/tp, in]
 *   b        in   [1, out/tp] or absent */
void tensor_gather_linear(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w,
                          Mat b, Precision p);
/* A row linear's input gradient: y = x w for the rows of all ranks.
 *   all      out  [T, out]    tensor_room of x: the rows of all ranks, on return
 *   y        out  [T, in/tp]
 *   x        in   [R, out]    gradient of the layer's output
 *   w        in   [out, in/tp] */
void tensor_gather_matmul(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w,
                          Precision p);
/* A column linear and its activation: h is y of tensor_gather_linear, a = act(h).
 *   a        out  [T, out/tp] half the columns where the kind is gated */
void tensor_gather_linear_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat a, Mat h, Mat x,
                              Mat w, Mat b, ActKind kind, Precision p);
/* A row linear's input gradient, and that of the activation before it: dh = (dy w) act'(h).
 *   all      out  [T, out]    tensor_room of dy: the rows of all ranks, on return
 *   dh       out  as h        may be h, or da where the kind is not gated
 *   da       out  [T, in/tp]  scratch
 *   dy       in   [R, out]
 *   w        in   [out, in/tp]
 *   h        in   [T, in/tp]  input of the activation; twice the columns where the kind is gated */
void tensor_gather_matmul_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat dh, Mat da,
                              Mat dy, Mat w, Mat h, ActKind kind, Precision p);

/* A row linear's forward: y = this rank's rows of (sum over tp of x w^T) + b. With g->overlap a block of rows
 * leaves for its owner while the next is multiplied; the owner adds in rank order, so the bits stay.
 *   y        out  [R, out]
 *   x        in   [T, in/tp]
 *   w        in   [out, in/tp]
 *   b        in   [1, out]    or absent; read by rank 0 alone */
void row_linear_fwd(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p);
/* A column linear's input gradient: starts dx = this rank's rows of (sum over tp of dy w). Run the weight
 * gradient, then tensor_wait. With g->overlap the sum is there on return.
 *   dx       out  [R, in]     after tensor_wait
 *   dy       in   [T, out/tp]
 *   w        in   [out/tp, in] */
TensorSum column_linear_bwd_x(Device *d, const TensorGroup *g, Arena *scratch, Mat dx, Mat dy, Mat w,
                              Precision p);
/* Cross-entropy where the columns of the logits are split over tp. On the CPU the bits do not depend on tp.
 *   loss     out  [T, 1]      of the microbatch, the same on every rank; this call writes the rows in `rows`
 *   dlogits  out  [N, V/tp]   or absent: loss only; may start at the memory of logits
 *   logits   in   [N, V/tp]   columns [v0, v0 + V/tp) of the vocabulary
 *   label    in   [T]         token ids of the microbatch
 *   mask     in   [T]         factors of the rows' losses; NULL: ones
 *   rows     in               which row of the microbatch row i of the logits is
 *   valid    in               columns of logits that are tokens; the others are padding
 *   scale    in               factor of dlogits */
void tensor_xent(Device *d, const TensorGroup *g, Arena *scratch, Mat loss, Mat dlogits, Mat logits,
                 const int32_t *label, const float *mask, RowMap rows, int64_t v0, int64_t valid,
                 double scale);
/* Weight gradient of both kinds of linear: dw += dy^T x, db += column sums of dyb. Local.
 *   dw       in/out           shape of w
 *   dy       in   [T, ..]     columns as w has rows
 *   x        in   [T, ..]     columns as w has columns
 *   db       in/out           shape of b; or absent
 *   dyb      in   [T or R, ..]  dy; for a row linear this rank's rows of it, or absent. With sequence
 *                             parallelism such a db is summed over tp with the gradients of the norms */
void tensor_bwd_w(Device *d, Arena *scratch, Sum dw, Mat dy, Mat x, Mat db, Mat dyb, Precision p);
#endif
