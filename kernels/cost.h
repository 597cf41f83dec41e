/* cost -- what each op costs by the shapes of its arguments: FLOPs, and bytes read and written. One row per
 * row of OPS(X). The planner turns costs into time; zb-auto's costs of stages, the meter and MFU read FLOPs.
 */
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
    Dtype type;   /* of the matrices that are multiplied, where flops > 0 */
    double flops; /* of matrix products and attention; other arithmetic is free beside its bytes */
    double rate;  /* products run at this many times the FLOP/s of `type`: 2 for FP8 (type BF16), else 1 */
    double bytes; /* read and written in the device's memory */
    double bus;   /* bytes over the bus to memory of mapped_take, in each direction */
} Cost;

/* add(ctx, c) is called for each op with its cost, or for each part of an op that is composed of others. */
typedef struct {
    void (*add)(void *ctx, const Cost *c);
    void *ctx;
    int unfused; /* attention stores its scores; dropout its mask; add_norm_fwd and xent are two ops each */
    int apart;   /* a list of arrays costs one call for each array, and no array is in mapped memory */
} CostSink;

/* A device that does no arithmetic: its ops tell *sink what they cost. It keeps the address of sink. */
void cost_open(Device *d, Dtype real, const CostSink *sink);

/* The ctx of the sink behind a device of cost_open. */
static inline void *cost_ctx(const Device *d) { return ((const CostSink *)d->impl)->ctx; }

/* FLOPs of a matrix product [m,k] [k,n]. */
static inline double cost_product(double m, double n, double k) { return 2 * m * n * k; }
/* FLOPs of attention's forward (two products) for `pairs` pairs of a query and a key, all heads together. */
static inline double cost_attention(double pairs, double dim) { return 2 * cost_product(pairs, 1, dim); }
#endif
