/* model -- a GPT-style decoder as functions over views of memory: fwd, bwd_x (gradient of the input), bwd_w (gradient of
 * the weights).
 *
 * Letters (all local to the rank): B samples of a microbatch, S positions, T = B*S, H width, A query heads, K key/value
 * heads, D head size, F feed-forward width, V vocabulary. Storage type unless said otherwise.
 *
 * A microbatch lives in a Slot from its forward to its backward. What a layer leaves there is a LayerActs; what recompute
 * leaves out is made again in the scratch arena, by the same code, so the bits are the same. */
#ifndef MODEL_H
#define MODEL_H
#include "loader.h"
#include "params.h"
#include "pipeline.h"

typedef struct {
    Mat x;                 /* [T,H] the layer's input */
    Mat ln1, stat1;        /* [T,H], real [T,2] */
    Mat qk, qstat, kstat;  /* [T,(A+K)D] before QK norm, real [T,2A], [T,2K]; only with qk_layernorm */
    Mat qkv;               /* [T,(A+2K)D] after QK norm and rotation */
    Mat o, lse;            /* [T,AD], real [T,A] */
    Mat x1;                /* [T,H] after attention */
    Mat ln2, stat2;        /* [T,H], real [T,2] */
    Mat h, a;              /* [T,F] or [T,2F]; [T,F]. The backward writes the gradient of h over h */
} LayerActs;

/* Output gradients of a layer's linear layers: from its bwd_x to its bwd_w. */
typedef struct { Mat fc2, proj, qkv; } LayerGrads;   /* [T,H], [T,H], [T,(A+2K)D]; that of fc1 is LayerActs.h */

/* Keys and values of the positions generated so far, for one sequence. */
typedef struct { Mat *k, *v; int64_t length; } KvCache;   /* per layer [max, KD] */

typedef struct {
    Arena mem;
    Batch batch;           /* this microbatch's own copy */
    KvCache *cache;        /* generation only */
    Mat *in;               /* input of each group of layers, then the output of the last: [T,H] */
    LayerActs *layer;      /* by layer; those of recomputed groups are remade in scratch */
} Slot;

typedef struct { int first, count, recompute; } LayerGroup;

typedef struct Model {
    const Config *cfg;
    const Grid *grid;
    Device *dev;
    Comm *tp;
    Params *params;
    int64_t H, A, K, D, F, V, Vvalid;      /* local; Vvalid: this rank's columns of the vocabulary that are no padding */
    int64_t vocab0;                        /* first token of this rank's slice */
    Dtype type, real;
    int ngroups, nslots;
    LayerGroup *group;
    Slot *slot;
    LayerActs *redo;                       /* of the group being recomputed */
    Arena scratch;
    Mat rope;                              /* real [P, rot] = (cos | sin); rows 0 when there is none */
    int keep_ln, keep_attn, keep_mlp;      /* what selective recompute does not leave out */
    const Batch *(*next_batch)(void *ctx, int mb);   /* microbatch mb of this step; NULL while only counting */
    void *batch_ctx;
    double loss_scale;                     /* multiplies every gradient: loss scale / tokens of a full global batch */
    double loss_sum, mask_sum;             /* over the microbatches since model_begin */
    int evaluating;                        /* no dropout, no gradients */
    void (*watch)(struct Model *m, int part, const char *where, Mat x);   /* sees a forward's tensors; NULL as a rule */
} Model;

/* Fills the sizes, groups and tables; slots: microbatches in flight. Memory comes from `run` (which may be counting).
 * slot_bytes, scratch_bytes: from a counting run of the same schedule, 0 to count. */
void model_open(Model *m, const Config *cfg, const Grid *grid, Device *dev, Params *params, int slots, Arena *run,
                size_t slot_bytes, size_t scratch_bytes);
void model_close(Model *m);

/* The executor's functions: m->next_batch feeds forward. */
void model_forward(void *model, int chunk, int mb);
void model_backward(void *model, int chunk, int mb);

/* Clears the gradients and the sums: the start of a step. */
void model_begin(Model *m);

/* Loss of one microbatch without gradients: adds to loss_sum and mask_sum. logits (real [T, V], absent: none) takes the
 * whole logits. Uses slot 0. */
void model_evaluate(Model *m, const Batch *b, Mat logits);

/* Logits (real [1, V]) of the position after `n` more tokens of one sequence, whose earlier ones are in the cache. */
void model_extend(Model *m, KvCache *cache, const int32_t *tokens, int64_t n, Mat logits);

/* Site names of dropout masks: the key is rng_key(seed, site) mixed with the layer's number. */
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_PROJ, SITE_MLP };
Dropout model_dropout(const Model *m, const Slot *s, int site, int layer);

/* Embedding: x [T,H] from the tokens. */
void embedding_fwd(Model *m, Slot *s, Mat x);
void embedding_bwd(Model *m, Slot *s, Mat dx);

/* First half of a layer: x1 = x + dropout(proj(attention(norm(x)))). `keep` takes what the backward needs. */
void attention_fwd(Model *m, Slot *s, int part, LayerActs *a, Arena *keep);
/* Makes again what selective recompute left out of a. */
void attention_restore(Model *m, Slot *s, int part, LayerActs *a);
/* dx [T,H] from dx1; with `weights`, the weight gradients beside the sum of the input gradient. */
void attention_bwd(Model *m, Slot *s, int part, LayerActs *a, LayerGrads *g, Mat dx, Mat dx1, int weights);
void attention_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g);

/* Second half: y = x1 + dropout(fc2(act(fc1(norm(x1))))). */
void mlp_fwd(Model *m, Slot *s, int part, LayerActs *a, Arena *keep, Mat y);
void mlp_restore(Model *m, int part, LayerActs *a);
void mlp_bwd(Model *m, Slot *s, int part, LayerActs *a, LayerGrads *g, Mat dx1, Mat dy, int weights);
void mlp_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g);

/* Final norm, logits and loss, a slice of rows at a time, so that the logits of a slice are made once and never all held.
 * dx [T,H] absent: loss only, else the gradient and those of the head's weights. logits: see model_evaluate. */
void head_run(Model *m, Slot *s, Mat x, Mat dx, Mat logits);
/* Logits (real [rows of x, V]) alone: final norm and output layer. */
void head_logits(Model *m, Mat x, Mat logits);

static inline NormKind model_norm(const Model *m) { return (NormKind)m->cfg->normalization; }
static inline void model_watch(Model *m, int part, const char *where, Mat x)
{
    if (m->watch)
        m->watch(m, part, where, x);
}
#endif
