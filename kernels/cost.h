/* cost -- what each op costs by the shapes of its arguments: FLOPs, and bytes read and written. It has
 * one row per row of OPS(X). The planner turns costs into seconds; zb-auto's costs of stages, the meter
 * and MFU use the FLOPs. */
#ifndef COST_H
#define COST_H
#include "device.h"

typedef enum {
#define X(name, params, names) OPKIND_##name,
    OPS(X)
#undef X
        OPKINDS
} OpKind;
extern const char *const op_name[OPKINDS];

typedef struct {
    OpKind op;
    Dtype type;     /* type of the factors, where flops > 0 */
    double flops;   /* of matrix products and attention; other arithmetic takes no time beside its bytes */
    double rate;    /* a product runs at `rate` times the FLOP/s of `type`: 2 for FP8 (type BF16), else 1 */
    double bytes;   /* read and written in device memory */
    double rows, cols, terms;      /* of a product: of its output, and of each sum; 0: not known */
    int cast;       /* bool: the op makes numbers of another type, and nothing else */
    double bus;     /* bytes over the bus to and from mapped memory, in each direction */
} Cost;

/* Where costs go. An op that is composed of others has a cost for each part. */
typedef struct {
    void (*add)(void *ctx, const Cost *c);     /* called with each cost */
    void *ctx;      /* first argument of add */
    int unfused;    /* bool: attention stores scores, dropout its mask; add_norm_fwd, xent are two ops each */
    int separate;   /* bool: add_norm_fwd is two ops, the loss passes over F32 logits */
    int fp8_as_f32; /* bool: FP8 is multiplied as F32 */
    int apart;      /* bool: each array of a list is one call, and no array is in mapped memory */
} CostSink;

/* Opens a device that does no arithmetic: its ops report their costs to *sink, which must live as
 * long. */
void cost_open(Device *d, Dtype real, const CostSink *sink);

/* Returns the ctx of the sink of a device of cost_open. */
static inline void *cost_ctx(const Device *d) { return ((const CostSink *)d->impl)->ctx; }

/* FLOPs of the product of [m, k] and [k, n]. */
static inline double cost_product(double m, double n, double k) { return 2 * m * n * k; }
/* FLOPs of attention's forward, two products.
 *   pairs  in  pairs of a query and a key, of all heads together
 *   dim    in  head size */
static inline double cost_attention(double pairs, double dim) { return 2 * cost_product(pairs, 1, dim); }
#endif
