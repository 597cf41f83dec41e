/* params -- the parameter table. One row defines a tensor's allocation, slices, initial value, gradient,
 * optimizer group, checkpoint entry, Hugging Face import and export, and tests.
 *
 * A model is cut into parts: the embedding, each decoder layer, the head. Every tensor has a global
 * shape (the checkpoint's: no padding) and a local one (this rank's slice, the vocabulary padded). A
 * weight of a linear layer is [out, in]. Rows may come in segments (q | k | v, gate | up): tensor
 * parallelism cuts each segment on its own, and Hugging Face may store each as its own tensor. Vectors
 * have cols = 0 in the table and one dimension on disk.
 *
 * A rank holds the parts of its virtual stages, chunk by chunk. In memory a part is one to three buckets
 * (data.h): D, whose gradients are complete after the input half of a backward, W, complete after the
 * weight half, and that of the experts, complete after the input half. The token embedding is its own
 * bucket. Tied embeddings on two ranks: the last stage has a copy of the token embedding in its head part.
 *
 * A rank holds experts ep_rank * E/ep and on of a layer, each cut over the expert grid's tensor group
 * (EXPERT_TP) as an mlp is cut over the dense grid's. Every etp rank has the whole gradient of an expert's
 * linear_fc2.bias. Gradients of experts are added over EXPERT_DATA.
 *
 * With more tensor ranks than key/value heads, tp / heads neighbouring ranks (grid.kv) hold one head of
 * k and v. */
#ifndef PARAMS_H
#define PARAMS_H
#include "config.h"
#include "data.h"
#include "linear.h"
#include "placement.h"

typedef enum { PART_EMBEDDING, PART_LAYER, PART_HEAD } PartKind;
typedef enum { CUT_NONE, CUT_ROWS, CUT_COLS } Cut; /* over tensor ranks; CUT_ROWS cuts each segment */
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_SCALED } Init; /* SCALED: std / sqrt(2 L) */

/* X(id, name, part, condition, segments, cols, cut, init, decay, gpt2 names, llama names) condition and
 * the dimensions are expressions of `c`, the resolved config, the condition of `layer`, too: a global
 * number, -1 outside the layers. The rows EFC1 to EFC2B exist once for each expert, whose number ends the
 * name: "mlp.experts.linear_fc1.weight5". Names inside a layer follow the prefix "decoder.layers.N.",
 * Hugging Face names the prefix "transformer.h.N." or "model.layers.N."; a leading '/' means no prefix.
 * Commas separate one name a segment; '#' is the expert's number. A trailing '^' marks a transposed
 * (Conv1D) tensor. */
#define PARAMS(X)                                                                                            \
    X(WTE, "embedding.word_embeddings.weight", PART_EMBEDDING, 1, SEG(V), H, CUT_ROWS, INIT_NORMAL, 1,       \
      "transformer.wte.weight", "model.embed_tokens.weight")                                                 \
    X(WPE, "embedding.position_embeddings.weight", PART_EMBEDDING,                                           \
      c->position_embedding_type == POSITION_EMBEDDING_TYPE_LEARNED_ABSOLUTE, SEG(P), H, CUT_NONE,           \
      INIT_NORMAL, 1, "transformer.wpe.weight", "")                                                          \
    X(LN1, "input_layernorm.weight", PART_LAYER, 1, SEG(H), 0, CUT_NONE, INIT_ONE, 0, "ln_1.weight",         \
      "input_layernorm.weight")                                                                              \
    X(LN1B, "input_layernorm.bias", PART_LAYER, LAYERNORM, SEG(H), 0, CUT_NONE, INIT_ZERO, 0, "ln_1.bias",   \
      "")                                                                                                    \
    X(QKV, "self_attention.linear_qkv.weight", PART_LAYER, 1, SEG(Q, KV, KV), H, CUT_ROWS, INIT_NORMAL, 1,   \
      "attn.c_attn.weight^", "self_attn.q_proj.weight,self_attn.k_proj.weight,self_attn.v_proj.weight")      \
    X(QKVB, "self_attention.linear_qkv.bias", PART_LAYER, c->add_bias_linear || c->add_qkv_bias,             \
      SEG(Q, KV, KV), 0, CUT_ROWS, INIT_ZERO, 0, "attn.c_attn.bias",                                         \
      "self_attn.q_proj.bias,self_attn.k_proj.bias,self_attn.v_proj.bias")                                   \
    X(QNORM, "self_attention.q_layernorm.weight", PART_LAYER, c->qk_layernorm, SEG(D), 0, CUT_NONE,          \
      INIT_ONE, 0, "", "self_attn.q_norm.weight")                                                            \
    X(QNORMB, "self_attention.q_layernorm.bias", PART_LAYER, c->qk_layernorm &&LAYERNORM, SEG(D), 0,         \
      CUT_NONE, INIT_ZERO, 0, "", "")                                                                        \
    X(KNORM, "self_attention.k_layernorm.weight", PART_LAYER, c->qk_layernorm, SEG(D), 0, CUT_NONE,          \
      INIT_ONE, 0, "", "self_attn.k_norm.weight")                                                            \
    X(KNORMB, "self_attention.k_layernorm.bias", PART_LAYER, c->qk_layernorm &&LAYERNORM, SEG(D), 0,         \
      CUT_NONE, INIT_ZERO, 0, "", "")                                                                        \
    X(PROJ, "self_attention.linear_proj.weight", PART_LAYER, 1, SEG(H), Q, CUT_COLS, INIT_SCALED, 1,         \
      "attn.c_proj.weight^", "self_attn.o_proj.weight")                                                      \
    X(PROJB, "self_attention.linear_proj.bias", PART_LAYER, c->add_bias_linear, SEG(H), 0, CUT_NONE,         \
      INIT_ZERO, 0, "attn.c_proj.bias", "")                                                                  \
    X(LN2, "pre_mlp_layernorm.weight", PART_LAYER, 1, SEG(H), 0, CUT_NONE, INIT_ONE, 0, "ln_2.weight",       \
      "post_attention_layernorm.weight")                                                                     \
    X(LN2B, "pre_mlp_layernorm.bias", PART_LAYER, LAYERNORM, SEG(H), 0, CUT_NONE, INIT_ZERO, 0, "ln_2.bias", \
      "")                                                                                                    \
    X(FC1, "mlp.linear_fc1.weight", PART_LAYER, !MOE, SEG(F, GATED ? F : 0), H, CUT_ROWS, INIT_NORMAL, 1,    \
      "mlp.c_fc.weight^", "mlp.gate_proj.weight,mlp.up_proj.weight")                                         \
    X(FC1B, "mlp.linear_fc1.bias", PART_LAYER, !MOE &&c->add_bias_linear, SEG(F, GATED ? F : 0), 0,          \
      CUT_ROWS, INIT_ZERO, 0, "mlp.c_fc.bias", "")                                                           \
    X(FC2, "mlp.linear_fc2.weight", PART_LAYER, !MOE, SEG(H), F, CUT_COLS, INIT_SCALED, 1,                   \
      "mlp.c_proj.weight^", "mlp.down_proj.weight")                                                          \
    X(FC2B, "mlp.linear_fc2.bias", PART_LAYER, !MOE &&c->add_bias_linear, SEG(H), 0, CUT_NONE, INIT_ZERO, 0, \
      "mlp.c_proj.bias", "")                                                                                 \
    X(ROUTER, "mlp.router.weight", PART_LAYER, MOE, SEG(E), H, CUT_NONE, INIT_NORMAL, 1, "",                 \
      "mlp.gate.weight")                                                                                     \
    X(EFC1, "mlp.experts.linear_fc1.weight", PART_LAYER, MOE, SEG(EF, GATED ? EF : 0), H, CUT_ROWS,          \
      INIT_NORMAL, 1, "", "mlp.experts.#.gate_proj.weight,mlp.experts.#.up_proj.weight")                     \
    X(EFC1B, "mlp.experts.linear_fc1.bias", PART_LAYER, MOE &&c->add_bias_linear, SEG(EF, GATED ? EF : 0),   \
      0, CUT_ROWS, INIT_ZERO, 0, "", "")                                                                     \
    X(EFC2, "mlp.experts.linear_fc2.weight", PART_LAYER, MOE, SEG(H), EF, CUT_COLS, INIT_SCALED, 1, "",      \
      "mlp.experts.#.down_proj.weight")                                                                      \
    X(EFC2B, "mlp.experts.linear_fc2.bias", PART_LAYER, MOE &&c->add_bias_linear, SEG(H), 0, CUT_NONE,       \
      INIT_ZERO, 0, "", "")                                                                                  \
    X(SFC1, "mlp.shared_experts.linear_fc1.weight", PART_LAYER, MOE &&SHARED, SEG(SF, GATED ? SF : 0), H,    \
      CUT_ROWS, INIT_NORMAL, 1, "", "mlp.shared_expert.gate_proj.weight,mlp.shared_expert.up_proj.weight")   \
    X(SFC2, "mlp.shared_experts.linear_fc2.weight", PART_LAYER, MOE &&SHARED, SEG(H), SF, CUT_COLS,          \
      INIT_SCALED, 1, "", "mlp.shared_expert.down_proj.weight")                                              \
    X(SGATE, "mlp.shared_experts.gate_weight", PART_LAYER, MOE &&SHARED &&c->moe_shared_expert_gate, SEG(1), \
      H, CUT_NONE, INIT_NORMAL, 1, "", "mlp.shared_expert_gate.weight")                                      \
    X(LNF, "decoder.final_layernorm.weight", PART_HEAD, 1, SEG(H), 0, CUT_NONE, INIT_ONE, 0,                 \
      "transformer.ln_f.weight", "model.norm.weight")                                                        \
    X(LNFB, "decoder.final_layernorm.bias", PART_HEAD, LAYERNORM, SEG(H), 0, CUT_NONE, INIT_ZERO, 0,         \
      "transformer.ln_f.bias", "")                                                                           \
    X(HEAD, "output_layer.weight", PART_HEAD, c->untie_embeddings_and_output_weights, SEG(V), H, CUT_ROWS,   \
      INIT_NORMAL, 1, "lm_head.weight", "lm_head.weight")

typedef enum {
#define X(id, ...) P_##id,
    PARAMS(X)
#undef X
    PARAM_KINDS
} ParamId;

#define MAX_SEGMENTS 3

typedef struct {
    const char *name;
    PartKind part;
    int (*exists)(const Config *c, int layer);
    void (*shape)(const Config *c, int64_t segment[MAX_SEGMENTS], int64_t *cols);   /* global, unpadded */
    Cut cut;
    Init init;
    int decay;                       /* bool: takes weight decay */
    const char *gpt2, *llama;        /* Hugging Face names, see PARAMS; "" = that family has none */
} ParamDef;

extern const ParamDef param_defs[PARAM_KINDS];

typedef struct {
    const ParamDef *def;
    ParamId id;
    int layer;                       /* global number of its layer; -1 outside the layers */
    int expert;                      /* global number of its expert; -1: of no expert */
    int64_t number;                  /* place in the model's order, with gaps; same on every rank */
    int copy;                        /* bool: another rank owns the tensor; not counted, not saved */
    int bucket;                      /* index in Params.data */
    int product;                     /* index in Params.data.product; -1: none */
    char name[96];                   /* the checkpoint's: "decoder.layers.3.mlp.linear_fc1.weight" */
    int ndim;                        /* 1 or 2 */
    int64_t segment[MAX_SEGMENTS];   /* global rows of each segment, unused ones 0 */
    int64_t rows, cols;              /* global shape, unpadded; a vector is rows x 1 */
    int64_t local_rows, local_cols;  /* this rank's slice, vocabulary padded; a vector is local_rows x 1 */
    int64_t offset;                  /* in the rank's flat space, a multiple of SUMSQ_BLOCK */
    int64_t n;                       /* local elements, padding included */
    int64_t counted;                 /* leading elements that this rank counts and saves; 0 for a copy */
} Param;

typedef struct {
    PartKind kind;
    int layer;                       /* PART_LAYER: global number */
    int chunk;
    int first, count;                /* [first, first + count) of Params.param */
    int bucket, buckets;             /* [bucket, bucket + buckets) of Params.data */
    int param[PARAM_KINDS];          /* index in Params.param by ParamId; -1: absent; of the first expert,
                                      * which the others follow */
} Part;

/* Parts [first, first + count). */
typedef struct { int first, count; } PartRange;

/* A box of the global tensor within this rank's slice. Element (row0 + r, col0 + c) of the tensor, r <
 * rows and c < cols, is flat element at + r*ld + c. */
typedef struct { int64_t row0, col0, rows, cols, at, ld; } Box;
#define MAX_BOXES (3 * MAX_SEGMENTS)

typedef struct {
    const Config *cfg;
    Grid *grid;
    Dtype type, real;                /* type of stored weights; of masters and moments */
    int experts;                     /* of a layer on this rank; 0 without experts */
    int nparts, nparam, nchunks;
    Part *part;                      /* [nparts] chunk by chunk, in model order inside a chunk */
    PartRange *chunk;                /* [nchunks] */
    Param *param;                    /* [nparam] by part, then in table order */
    Data data;                       /* buckets and arrays */
} Params;

/* Makes the table for this rank of the grid; allocates no tensor memory. Each part is a unit until
 * params_units sets others. Not collective. */
void params_open(Params *p, const Config *cfg, Grid *grid, const Placement *pl);
void params_close(Params *p);

/* Sets the units in which weights and gradients are sent. Call before params_layout.
 *   unit  in  [n]  ranges that cover all parts in order */
void params_units(Params *p, const PartRange *unit, int n);

/* As data_offload. Call before params_layout. */
void params_offload(Params *p, double share, Arena *mapped);

/* Lays the arrays out in `run`, which may only count.
 *   gradients  in  bool: 0 lays out the weights alone
 *   moments    in  0 to 2 */
void params_layout(Params *p, Device *dev, Arena *run, int gradients, int moments);

/* Sets initial values, the same bits in every layout: a function of (seed, name, index in the global
 * tensor). Needs a layout with gradients. Collective over the shard group. */
void params_init(Params *p, Device *d);

/* Casts this rank's masters to weights (fp16; bf16 weights are halves of masters) and gathers the other
 * ranks' shards. Collective over the shard group. */
void params_refresh(Params *p, Device *d);

/* Views of a weight and of its gradient on this rank. A vector is [1, n]. Mat.p is NULL when the model
 * has no such tensor, or while counting. Weights of a unit need data_ready first, gradients data_enter,
 * else BUG. */
Mat params_weight(const Params *p, int part, ParamId id);
Mat params_grad(const Params *p, int part, ParamId id);
/* The gradient of a tensor whose gradient comes from products. Where such a gradient has no value yet
 * params_grad clears it. */
Sum params_sum(const Params *p, int part, ParamId id);
/* The same of this rank's expert i, 0 <= i < p->experts. */
Mat params_expert_weight(const Params *p, int part, ParamId id, int i);
Mat params_expert_grad(const Params *p, int part, ParamId id, int i);
Sum params_expert_sum(const Params *p, int part, ParamId id, int i);

/* The part and id of the output layer's weight: the head's own, the head's copy of the token embedding,
 * or the embedding part's. *part is -1 when this rank has no head. */
void params_head(const Params *p, int *part, ParamId *id);

/* Elements [*from, *to) of tensor t, counted from its start; may be empty. param_own: this rank's shard.
 * param_updated: what this rank updates. param_held: what this rank holds of array f. */
void param_own(const Params *p, const Param *t, int64_t *from, int64_t *to);
void param_updated(const Params *p, const Param *t, int64_t *from, int64_t *to);
void param_held(const Params *p, const Param *t, const Flat *f, int64_t *from, int64_t *to);
/* The element of tensor t from which on the ranks of grid.kv hold the same; t->n: they share none. */
int64_t param_shared_kv(const Params *p, const Param *t);
/* Address of element `from` of tensor t in array f, which must hold it; NULL while counting. */
void *param_at(const Params *p, const Param *t, const Flat *f, int64_t from);

/* The numbers of the blocks of elements [from, *to) of a tensor's local slice. `from` starts a block; *to is
 * set back to where another segment begins. */
BlockNumbers param_blocks(const Params *p, const Param *t, int64_t from, int64_t *to);

/* Cuts elements [from, to) of a tensor's local slice [0, n) into boxes, without the padding. Returns how
 * many. */
int param_boxes(const Params *p, const Param *t, int64_t from, int64_t to, Box box[MAX_BOXES]);

/* The checkpoint's name of the tensor with this number. */
void param_name(const Config *cfg, int64_t number, char *name, int size);

/* Number of parameters of the whole model, each once, without padding. */
int64_t params_count(const Config *cfg);
/* The same of the parameters that a token visits: moe_router_topk experts of a layer. */
int64_t params_active(const Config *cfg);
#endif
