/* tensor -- layers split over the tensor group (Shoeybi et al. 2019, arXiv:1909.08053, sec 3), and with
 * sequence parallelism everything between them split by rows of tokens (Korthikanti et al. 2022,
 * arXiv:2205.05198, sec 4.2.2).
 *
 * Column linear: rank r owns out/tp rows of w [out/tp, in] and makes those columns of y; its input gradient
 * is summed over the group. Row linear: rank r owns in/tp columns of w [out, in/tp]; its output is summed
 * over the group, and the bias is added once, by rank 0 of the group before the sum. The input of a column
 * linear and the output of a row linear lie in the row region: all T rows on every rank, or, with sequence
 * parallelism, rows [r T/tp, (r+1) T/tp) on rank r; then an all-gather leads in and a reduce-scatter leads
 * out, where otherwise an all-reduce leads out. The bits are the same. All shapes are local. Collective over
 * tp, except what says local. */
#ifndef TENSOR_H
#define TENSOR_H
#include "comm.h"
#include "linear.h"

typedef struct {
    Comm *tp;
    Comm *rows;                /* shares out the rows: tp with sequence parallelism, else a group of one */
    Comm *sum;                 /* adds up all rows: a group of one with sequence parallelism, else tp */
    int overlap; /* gathers and scatters go block by block beside the multiplication (tp_comm_overlap) */
    Token *sent, *come;        /* [rows->size] */
} TensorGroup;

/* Rows being gathered, and sums on their way. */
typedef struct { Mat all; Token token; } TensorRows;
typedef struct { Token rows, sum; } TensorSum;

/* Starts to gather all T rows of x [T/rows, n]; they lie in scratch, or are x itself where every rank has
 * them. */
TensorRows tensor_gather(const TensorGroup *g, Arena *scratch, Mat x);
/* The same into `all`, which tensor_room has given. */
TensorRows tensor_gather_into(const TensorGroup *g, Mat all, Mat x);
Mat tensor_gathered(const TensorGroup *g, TensorRows r);
/* Whether there is anything to overlap. Local. */
int tensor_overlaps(const TensorGroup *g, int wanted);
/* Where a rank writes its share [T, n] of a sum whose result is y [T/rows, n]: scratch, or y itself. Local.
 */
Mat tensor_room(const TensorGroup *g, Arena *scratch, Mat y);
/* Starts y = this rank's rows of the sum over tp of `room`, which stays until tensor_wait. */
TensorSum tensor_sum(const TensorGroup *g, Mat y, Mat room);
void tensor_wait(const TensorGroup *g, TensorSum s);

/* y [T, out] = x w^T + b of the rows of all ranks, x [T/rows, in] being this rank's: a column linear's
 * forward, with w [out/tp, in]. all: tensor_room of x, where the rows of all ranks lie afterwards. With
 * overlap a rank multiplies its own rows first, then each other rank's as they come; in FP8 the rows of each
 * rank have a scale of their own, where it is not one of the steps before. */
void tensor_gather_linear(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w,
                          Mat b, Precision p);
/* The same with w not transposed, y [T, in/tp] = x w: a row linear's input gradient. */
void tensor_gather_matmul(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat y, Mat x, Mat w,
                          Precision p);
/* tensor_gather_linear into h, and a = act(h). */
void tensor_gather_linear_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat a, Mat h, Mat x,
                              Mat w, Mat b, ActKind kind, Precision p);
/* dh = tensor_gather_matmul of dy times act'(h); da is scratch, dh may be h, or da where the kind is not
 * gated. */
void tensor_gather_matmul_act(Device *d, const TensorGroup *g, Arena *scratch, Mat all, Mat dh, Mat da,
                              Mat dy, Mat w, Mat h, ActKind kind, Precision p);

/* y [T/rows, out] = this rank's rows of the sum over tp of x w^T, plus b: a row linear's forward, x [T,
 * in/tp]. With overlap a block of rows leaves for its owner while the next is multiplied; the owner adds in
 * rank order, so that the bits stay. */
void row_linear_fwd(Device *d, const TensorGroup *g, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p);
/* Starts dx [T/rows, in] = sum over tp of dy [T, out/tp] w: run the weight gradient, then wait (with overlap
 * the sum is there already). */
TensorSum column_linear_bwd_x(Device *d, const TensorGroup *g, Arena *scratch, Mat dx, Mat dy, Mat w,
                              Precision p);
/* Cross-entropy of rows whose logits [N, V/tp] lie over the group, this rank's from token v0 on: loss and
 * dlogits as those of the op xent_grad, the bits of the CPU's the same whatever the size of the group. */
void tensor_xent(Device *d, const TensorGroup *g, Arena *scratch, Mat loss, Mat dlogits, Mat logits,
                 const int32_t *label, const float *mask, RowMap rows, int64_t v0, int64_t valid,
                 double scale);
/* dw += dy^T x over all T rows; db += column sums of dyb, which may be absent. Both kinds; a row linear's
 * bias gets the rows that this rank has, and with sequence parallelism its gradient is summed over tp with
 * those of the norms. Local. */
void tensor_bwd_w(Device *d, Arena *scratch, Mat dw, Mat dy, Mat x, Mat db, Mat dyb, Precision p);
#endif
