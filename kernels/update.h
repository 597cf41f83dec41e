/* update -- what the ops verdict, squares and update take: gradients checked, summed and applied. A part of
 * device.h, which includes it behind Dtype and the rest of what it needs. */
#ifndef UPDATE_H
#define UPDATE_H

/* Result of the op `verdict`, in device memory. */
typedef struct {
    double loss, tokens;       /* mean loss; tokens that count, of all ranks */
    double gscale;             /* a gradient times gscale is the gradient of the mean loss */
    double norm;               /* of the gradient of the mean loss; NAN if `bad`, infinite on overflow */
    double multiplier;         /* gscale times clip coefficient: what updates multiply gradients by */
    int64_t bad;               /* number of terms of the norm that were not finite */
    int64_t go;                /* bool: the update may happen */
    int64_t stopped;           /* bool: this step or one before was not finite: go stays 0 */
    int64_t behind;            /* bool: the step before was held, and the host did not know it yet */
} Verdict;

/* The largest loss and norm with which a step is updated; INFINITY: any. A finite step above them is held:
 * it updates nothing, and the next step goes on. */
typedef struct {
    double loss, norm;
    int64_t seen;              /* bool: the host knows the verdict on the step before */
} Limits;

/* The numbers of an array's blocks of MOMENT_BLOCK elements in the whole tensor. They decide on the bits with
 * which moments are rounded. Block b has the number first + (at + b) / run * step + (at + b) % run. */
typedef struct {
    uint64_t key;              /* of the random bits: rng_key(seed, name) */
    int64_t first;
    int32_t at, run, step;     /* run: blocks of a row that this rank has, or more than all its blocks */
} BlockNumbers;
BOTH_SIDES int64_t block_number(const BlockNumbers *n, int64_t b)
{
    uint32_t i = (uint32_t)(n->at + b), row = i / (uint32_t)n->run;
    return n->first + (int64_t)row * n->step + (i - row * (uint32_t)n->run);
}

/* n consecutive elements that an optimizer updates. Arrays: device memory, [n], real but for g, m and v. */
typedef struct {
    int64_t n;
    void *w;                   /* in/out: master weights; NULL: they are in `out` and `rest` */
    int16_t *rest;             /* in/out: remainders of F32 masters whose weights are `out` (half.h): out_type
                                * is BF16 then, and out is read and written; NULL: masters are in w */
    const void *g;             /* in: gradient, real or BF16; the op multiplies it by verdict->multiplier */
    void *m, *v;               /* in/out: first and second moments; NULL where the optimizer has none */
    uint8_t *m_scale, *v_scale;    /* in/out: [n / MOMENT_BLOCK, rounded up] their scales; NULL: none */
    BlockNumbers blocks;       /* of moments that are not real */
    void *dir;                 /* out of lamb_direction, in of lamb_apply: LAMB's direction; may be g */
    void *out;                 /* out: storage copy of w; NULL when the model reads w itself */
    const double *trust;       /* in: one ratio that multiplies lr (LAMB, LARS); NULL: 1 */
    double wd;                 /* weight decay */
} Updated;

/* One optimizer update of many tensors, in as few launches as possible; no two share an element. */
typedef struct {
    const Updated *list;       /* [count] */
    int64_t count;
    Dtype out_type;            /* type of every Updated.out */
    int bf16_g;                /* bool: every Updated.g is BF16, as out_type; else real. Not with LAMB */
    MomentType m_type, v_type; /* MOMENT_FP32: real. With another one every array starts a block */
    int64_t turn;              /* number of the update, verdict->behind included: moments are rounded by it */
    int mapped;                /* bool: w or rest, m and v with their scales lie in mapped memory */
    const Verdict *verdict;    /* device memory; with go 0 the op writes nothing */
    double lr, beta1, beta2, eps;
    double bias1, bias2;       /* 1 - beta^t */
    double before1, before2;   /* with t - 1: what is used where verdict->behind */
    double momentum;
    int nesterov;              /* bool */
} Update;

/* n elements of device memory whose squares are added to *sum, device memory too. With `rest`, [n], they are
 * F32 masters: x are their BF16 weights and rest the remainders (half.h). */
typedef struct { Exact *sum; const void *x; int64_t n; const int16_t *rest; } Squares;
#endif
