/* params -- the parameter table. From one row follow allocation, this rank's slice, the initial value, the
 * gradient, the optimizer group, the checkpoint entry, Hugging Face import and export, and the tests.
 *
 * A model is cut into parts: the embedding, each decoder layer, the head. Every tensor has a global shape
 * (the checkpoint's: no padding) and a local one (this rank's slice, the vocabulary padded). A weight of a
 * linear layer is [out, in]. Rows may come in segments (q | k | v, gate | up), each of which tensor
 * parallelism cuts on its own and which Hugging Face may keep as tensors of their own. Vectors have cols = 0
 * in the table and one dimension on disk.
 *
 * A rank holds the parts of its virtual stages, chunk by chunk. In memory a part is one to two buckets
 * (data.h): D, whose gradients the input half of a backward completes, and W, completed by the weight half;
 * the token embedding is a bucket of its own. Tied embeddings on two ranks: the last stage has a copy of the
 * token embedding in its head part.
 *
 * With more tensor ranks than key/value heads, tp / heads neighbouring ranks (grid.kv) hold one head of k and
 * v. */
#ifndef PARAMS_H
#define PARAMS_H
#include "config.h"
#include "data.h"
#include "placement.h"

typedef enum { PART_EMBEDDING, PART_LAYER, PART_HEAD } PartKind;
typedef enum { CUT_NONE, CUT_ROWS, CUT_COLS } Cut; /* over the tensor group; rows: each segment on its own */
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_SCALED } Init; /* SCALED: init_method_std / sqrt(2 L) */

/* X(id, name, part, condition, segments, cols, cut, init, decay, gpt2 names, llama names)
 * condition and the dimensions are expressions of `c`, the resolved config. Names inside a layer follow the
 * prefix "decoder.layers.N."; Hugging Face names likewise "transformer.h.N." and "model.layers.N." (a leading
 * '/' means no layer prefix); commas separate one name a segment; a trailing '^' marks a transposed (Conv1D)
 * tensor. */
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
    X(FC1, "mlp.linear_fc1.weight", PART_LAYER, 1, SEG(F, GATED ? F : 0), H, CUT_ROWS, INIT_NORMAL, 1,       \
      "mlp.c_fc.weight^", "mlp.gate_proj.weight,mlp.up_proj.weight")                                         \
    X(FC1B, "mlp.linear_fc1.bias", PART_LAYER, c->add_bias_linear, SEG(F, GATED ? F : 0), 0, CUT_ROWS,       \
      INIT_ZERO, 0, "mlp.c_fc.bias", "")                                                                     \
    X(FC2, "mlp.linear_fc2.weight", PART_LAYER, 1, SEG(H), F, CUT_COLS, INIT_SCALED, 1,                      \
      "mlp.c_proj.weight^", "mlp.down_proj.weight")                                                          \
    X(FC2B, "mlp.linear_fc2.bias", PART_LAYER, c->add_bias_linear, SEG(H), 0, CUT_NONE, INIT_ZERO, 0,        \
      "mlp.c_proj.bias", "")                                                                                 \
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
    int (*exists)(const Config *c);
    void (*shape)(const Config *c, int64_t segment[MAX_SEGMENTS], int64_t *cols);   /* global, unpadded */
    Cut cut;
    Init init;
    int decay;                       /* takes weight decay */
    const char *gpt2, *llama;        /* Hugging Face names, see PARAMS; "" = that family has none */
} ParamDef;

extern const ParamDef param_defs[PARAM_KINDS];

typedef struct {
    const ParamDef *def;
    ParamId id;
    int layer;                       /* global number of its layer, -1 outside the layers */
    int number; /* its place in the whole model's order, the same on every rank; with gaps */
    int copy;                        /* of a tensor that another rank owns: not counted, not saved */
    int bucket;
    char name[96];                   /* the checkpoint's: "decoder.layers.3.mlp.linear_fc1.weight" */
    int ndim;                        /* 1 or 2 */
    int64_t segment[MAX_SEGMENTS];   /* global rows of each segment, unused ones 0 */
    int64_t rows, cols;              /* global shape, unpadded; a vector is rows x 1 */
    int64_t local_rows, local_cols;  /* this rank's slice, vocabulary padded; a vector is local_rows x 1 */
    int64_t offset;                  /* in the rank's flat space, a multiple of SUMSQ_BLOCK */
    int64_t n;                       /* local elements, padding included */
    int64_t counted; /* leading elements that this rank counts and saves for all that hold them */
} Param;

typedef struct {
    PartKind kind;
    int layer;                       /* global, PART_LAYER only */
    int chunk;
    int first, count;                /* its params in Params.param */
    int bucket, buckets;             /* its buckets in Params.data */
    int param[PARAM_KINDS];          /* index by ParamId, -1 = absent */
} Part;

/* Neighbouring parts. */
typedef struct { int first, count; } PartRange;

/* A box of the global tensor that lies in this rank's slice, dense or strided: global rows [row0, row0+rows),
 * cols [col0, col0+cols) stand at flat element `at` + r*ld + c. */
typedef struct { int64_t row0, col0, rows, cols, at, ld; } Box;
#define MAX_BOXES (3 * MAX_SEGMENTS)

typedef struct {
    const Config *cfg;
    Grid *grid;
    Dtype type, real;                /* storage of weights; gradients, masters and moments */
    int nparts, nparam, nchunks;
    Part *part; /* the parts that this rank holds: chunk by chunk, in model order inside a chunk */
    PartRange *chunk;
    Param *param;                    /* by part, then in table order */
    Data data;                       /* buckets and arrays */
} Params;

/* Makes the table for this rank of the grid; allocates no tensor memory. A unit of data is a part until
 * params_units says otherwise. Not collective. */
void params_open(Params *p, const Config *cfg, Grid *grid, const Placement *pl);
void params_close(Params *p);

/* Sets the units that weights and gradients move in; together they are all parts, in order. Before
 * params_layout. */
void params_units(Params *p, const PartRange *unit, int n);

/* data_offload, before params_layout. */
void params_offload(Params *p, double share, Arena *mapped);

/* Lays the arrays out in `run` (which may be counting). Without gradients there are weights alone. moments: 0
 * to 2. */
void params_layout(Params *p, Device *dev, Arena *run, int gradients, int moments);

/* Initial values, the same bits in every layout: a function of (seed, name, index in the global tensor).
 * Needs a layout with gradients. Collective over the shard group. */
void params_init(Params *p, Device *d);

/* weight <- master (bf16, fp16) of what this rank updates, then the others' shards. Collective over the shard
 * group. */
void params_refresh(Params *p, Device *d);

/* Local views. A vector is [1, n]. Mat.p is NULL when the model has no such tensor, or while counting. A
 * unit's weights are there after data_ready, its gradients after data_enter; to ask earlier is a BUG. */
Mat params_weight(const Params *p, int part, ParamId id);
Mat params_grad(const Params *p, int part, ParamId id);

/* Where the output layer's weight lives: the head's own, its copy of the token embedding, or the embedding
 * part's. part is -1 when this rank has no head. */
void params_head(const Params *p, int *part, ParamId *id);

/* Elements [*from, *to) of tensor t, from its start, that are in this rank's shard; that this rank updates;
 * that it holds of an array. May be empty. */
void param_own(const Params *p, const Param *t, int64_t *from, int64_t *to);
void param_updated(const Params *p, const Param *t, int64_t *from, int64_t *to);
void param_held(const Params *p, const Param *t, const Flat *f, int64_t *from, int64_t *to);
/* Element `from` of tensor t in an array that holds it; NULL while counting. */
void *param_at(const Params *p, const Param *t, const Flat *f, int64_t from);

/* The boxes of elements [from, to) of one tensor, [0, n) being this rank's whole slice; padding has none.
 * Returns how many. */
int param_boxes(const Params *p, const Param *t, int64_t from, int64_t to, Box box[MAX_BOXES]);

/* The checkpoint's name of the tensor with this number. */
void param_name(const Config *cfg, int number, char *name, int size);

/* Parameters of the whole model, each once, without padding. */
int64_t params_count(const Config *cfg);
#endif
