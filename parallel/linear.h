/* linear -- one rank's part of a linear layer, multiplied as its matrices are stored or in FP8 (Micikevicius
 * et al. 2022, arXiv:2209.05433): activations and weights in E4M3, output gradients in E5M2, or all in E4M3,
 * sums in F32.
 * Each of the three has one scale on each rank; or activations and gradients have one for each 128 numbers
 * that are summed, and weights one for each 128 x 128; or all have one for each 32 numbers that are summed,
 * so that a weight and its transpose are cast apart. FP8 copies lie in scratch during the call; a
 * weight's copies may be kept while the weight does not change. A product multiplies rows; a weight
 * gradient, which sums over rows, multiplies transposes: where there is room for the transpose, one cast
 * makes both. All functions are local, as are all shapes. Shared arguments:
 *   d        in         the device that computes
 *   scratch  in/out     arena for FP8 copies
 *   p        in         how the layer is multiplied */
#ifndef LINEAR_H
#define LINEAR_H
#include "device.h"

typedef struct {
    void *plain;               /* FP8 copy of the weight */
    void *turned;              /* FP8 copy of the transposed weight; NULL: nobody asks for it */
    int there;                 /* bool: the copies are made */
} Fp8Weight;

/* The transposed FP8 copy of a matrix, which the cast of its rows makes and the weight gradient reads. */
typedef struct {
    void *p;                   /* [cols, rows padded by fp8_padded] bytes, and scales of blocks */
    Mat inverse; /* F32 [1, 1], of its scale, which other casts may change before it is read; with
                                  blocks where they begin */
    int room, there;           /* bool: there is memory for it; it is made */
} Fp8Turned;
/* The scaling of weights where that of inputs and output gradients is s. */
static inline Fp8Scaling linear_weights(Fp8Scaling s) { return s == FP8_VECTORS ? FP8_SQUARES : s; }
/* Takes the memory of one from an arena, for a matrix [rows, cols]. */
Fp8Turned linear_turned(Arena *from, int64_t rows, int64_t cols, Fp8Scaling scaling);

/* Marks it as made, with scale s. With a delayed scale, which holds until the step ends, the inverse is that
 * of s; with its own a copy. */
void linear_turned_made(Device *d, Fp8Turned *t, Fp8Scale *s, Fp8Scaling scaling);

/* A matrix that is not stored: an activation makes it where it is cast to FP8. */
typedef struct {
    Mat h, da;                 /* act_fwd's a from h; with da: act_bwd's dh */
    ActKind kind;
} Unstored;

/* Sees each matrix that is cast for a product, after the cast: for measurements. Local.
 *   y, yt    in  FP8 rows and transposed rows, on the device; NULL: not made
 *   x, made  in  the matrix: stored in x, or made from `made`, if that is not NULL
 *   s        in  its scale; with blocks it says only which operand it is
 *   scaling  in  where its scale comes from */
typedef struct {
    void (*see)(void *ctx, Device *d, const void *y, const void *yt, Mat x, const Unstored *made,
                const Fp8Scale *s, Fp8Format format, Fp8Scaling scaling);
    void *ctx;
} CastWatch;

typedef struct {
    Fp8Scale *x, *w, *dy;      /* on the device; without fp8: unused */
    int fp8;                   /* bool: multiply in FP8 */
    int e4m3;                  /* bool: dy in E4M3, too; else in E5M2 */
    Fp8Scaling scaling;        /* of x and dy; of weights: linear_weights */
    Fp8Weight *kept;           /* copies that outlive the call; NULL: each call makes its own */
    Fp8Turned *xt, *dyt;       /* of x, of dy: with room, made by the product that multiplies all rows of it;
                                  NULL: the weight gradient makes its own */
    const Unstored *xa, *dya;  /* with fp8: what makes x, dy, which then are shapes alone; NULL: nothing */
    const CastWatch *watch;    /* NULL: nothing watches */
    const Mat8 *x8;            /* all rows of x in FP8, made before, x is a shape alone; NULL: they are not */
} Precision;

/* A gradient that products add to. there: bool: it has a value; where not, the first product overwrites
 * it and sets there; NULL: it has one. */
typedef struct { Mat m; char *there; } Sum;

/* The right-hand factor of a product of rows, which may come block by block: y = x w^T + b (forward), or
 * y = x w. The FP8 copy of w is made once; one that is not kept lies in the scratch of linear_factor until
 * that is reset. */
typedef struct { Mat w, b; int forward; Precision p; Mat8 w8; } Factor;
Factor linear_factor(Device *d, Arena *scratch, Mat w, Mat b, int forward, Precision p);

/* Rows to be multiplied: x, and with FP8 a copy of it in scratch, cast as a whole. */
typedef struct { Mat x; Mat8 x8; } Rows;
Rows linear_rows(Device *d, Arena *scratch, Mat x, const Factor *f);
/* Rows [first, first + n) of x; with FP8_VECTORS their scales are copied to scratch, with FP8_MX `first` is a
 * multiple of FP8_BLOCK. */
Rows linear_rows_part(Device *d, Arena *scratch, Rows x, int64_t first, int64_t n);

/* y = x times f. */
void linear_multiply(Device *d, Mat y, Rows x, const Factor *f);
/* The product with the activation, forward or backward as f says.
 *   out      out        forward: act(y); else y times act'(h), and out may be h, or y where kind is not gated
 *   y        out        x times f; backward: scratch
 *   h        in         backward: input of the activation; forward: unused */
void linear_multiply_act(Device *d, Mat out, Mat y, Mat h, Rows x, const Factor *f, ActKind kind);

/* y [T, out] = x [T, in] w [out, in]^T + b [1, out] */
void linear_fwd(Device *d, Arena *scratch, Mat y, Mat x, Mat w, Mat b, Precision p);
/* h = linear_fwd's y, a [T, out] = act(h), half its columns where kind is gated */
void linear_act_fwd(Device *d, Arena *scratch, Mat a, Mat h, Mat x, Mat w, Mat b, ActKind kind, Precision p);
/* dx [T, in] = dy [T, out] w [out, in] */
void linear_bwd_x(Device *d, Arena *scratch, Mat dx, Mat dy, Mat w, Precision p);
/* dw [out, in] += dy [T, out]^T x [T, in], db [1, out] += column sums of dy; db absent: dw alone. Where p.xt
 * is there, x is its shape alone; with p.dya db is absent */
void linear_bwd_w(Device *d, Arena *scratch, Sum dw, Mat db, Mat dy, Mat x, Precision p);
/* Makes p.xt, which has room: the FP8 copy of x without a product. */
void linear_turn(Device *d, Mat x, Precision p);
/* Takes as much of scratch as any product with w of up to `rows` rows takes, and gives it back: for rows of
 * experts, of which a counting run has others than a step. */
void linear_reserve(Arena *scratch, int64_t rows, Mat w, Precision p);
#endif
