/* params -- the parameter table. From one row follow allocation, this rank's slice, the initial value, the gradient,
 * the optimizer group, the checkpoint entry, Hugging Face import and export, and the tests.
 *
 * A model is cut into parts: the embedding, each decoder layer, the head. Every tensor has a global shape (the
 * checkpoint's: no padding) and a local one (this rank's slice, the vocabulary padded). A weight of a linear layer is
 * [out, in]. Rows may come in segments (q | k | v, gate | up), each of which tensor parallelism cuts on its own and
 * which Hugging Face may keep as tensors of their own. Vectors have cols = 0 in the table and one dimension on disk. */
#ifndef PARAMS_H
#define PARAMS_H
#include "config.h"
#include "device.h"
#include "grid.h"

typedef enum { PART_EMBEDDING, PART_LAYER, PART_HEAD } PartKind;
typedef enum { CUT_NONE, CUT_ROWS, CUT_COLS } Cut;     /* over the tensor group; rows: each segment on its own */
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_SCALED } Init;  /* SCALED: init_method_std / sqrt(2 L) */

/* X(id, name, part, condition, segments, cols, cut, init, decay, gpt2 names, llama names)
 * condition and the dimensions are expressions of `c`, the resolved config. Names inside a layer follow the prefix
 * "decoder.layers.N."; Hugging Face names likewise "transformer.h.N." and "model.layers.N." (a leading '/' means no
 * layer prefix); commas separate one name a segment; a trailing '^' marks a transposed (Conv1D) tensor. */
#define PARAMS(X)                                                                                                     \
X(WTE, "embedding.word_embeddings.weight", PART_EMBEDDING, 1, SEG(V), H, CUT_ROWS, INIT_NORMAL, 1,                     \
  "transformer.wte.weight", "model.embed_tokens.weight")                                                              \
X(WPE, "embedding.position_embeddings.weight", PART_EMBEDDING,                                                        \
  c->position_embedding_type == POSITION_EMBEDDING_TYPE_LEARNED_ABSOLUTE, SEG(P), H, CUT_NONE, INIT_NORMAL, 1,         \
  "transformer.wpe.weight", "")                                                                                       \
X(LN1, "input_layernorm.weight", PART_LAYER, 1, SEG(H), 0, CUT_NONE, INIT_ONE, 0,                                      \
  "ln_1.weight", "input_layernorm.weight")                                                                            \
X(LN1B, "input_layernorm.bias", PART_LAYER, LAYERNORM, SEG(H), 0, CUT_NONE, INIT_ZERO, 0, "ln_1.bias", "")             \
X(QKV, "self_attention.linear_qkv.weight", PART_LAYER, 1, SEG(Q, KV, KV), H, CUT_ROWS, INIT_NORMAL, 1,                 \
  "attn.c_attn.weight^", "self_attn.q_proj.weight,self_attn.k_proj.weight,self_attn.v_proj.weight")                    \
X(QKVB, "self_attention.linear_qkv.bias", PART_LAYER, c->add_bias_linear || c->add_qkv_bias, SEG(Q, KV, KV), 0,        \
  CUT_ROWS, INIT_ZERO, 0,                                                                                             \
  "attn.c_attn.bias", "self_attn.q_proj.bias,self_attn.k_proj.bias,self_attn.v_proj.bias")                             \
X(QNORM, "self_attention.q_layernorm.weight", PART_LAYER, c->qk_layernorm, SEG(D), 0, CUT_NONE, INIT_ONE, 0,           \
  "", "self_attn.q_norm.weight")                                                                                      \
X(QNORMB, "self_attention.q_layernorm.bias", PART_LAYER, c->qk_layernorm && LAYERNORM, SEG(D), 0, CUT_NONE,            \
  INIT_ZERO, 0, "", "")                                                                                               \
X(KNORM, "self_attention.k_layernorm.weight", PART_LAYER, c->qk_layernorm, SEG(D), 0, CUT_NONE, INIT_ONE, 0,           \
  "", "self_attn.k_norm.weight")                                                                                      \
X(KNORMB, "self_attention.k_layernorm.bias", PART_LAYER, c->qk_layernorm && LAYERNORM, SEG(D), 0, CUT_NONE,            \
  INIT_ZERO, 0, "", "")                                                                                               \
X(PROJ, "self_attention.linear_proj.weight", PART_LAYER, 1, SEG(H), Q, CUT_COLS, INIT_SCALED, 1,                       \
  "attn.c_proj.weight^", "self_attn.o_proj.weight")                                                                   \
X(PROJB, "self_attention.linear_proj.bias", PART_LAYER, c->add_bias_linear, SEG(H), 0, CUT_NONE, INIT_ZERO, 0,         \
  "attn.c_proj.bias", "")                                                                                             \
X(LN2, "pre_mlp_layernorm.weight", PART_LAYER, 1, SEG(H), 0, CUT_NONE, INIT_ONE, 0,                                    \
  "ln_2.weight", "post_attention_layernorm.weight")                                                                   \
X(LN2B, "pre_mlp_layernorm.bias", PART_LAYER, LAYERNORM, SEG(H), 0, CUT_NONE, INIT_ZERO, 0, "ln_2.bias", "")           \
X(FC1, "mlp.linear_fc1.weight", PART_LAYER, 1, SEG(F, GATED ? F : 0), H, CUT_ROWS, INIT_NORMAL, 1,                     \
  "mlp.c_fc.weight^", "mlp.gate_proj.weight,mlp.up_proj.weight")                                                      \
X(FC1B, "mlp.linear_fc1.bias", PART_LAYER, c->add_bias_linear, SEG(F, GATED ? F : 0), 0, CUT_ROWS, INIT_ZERO, 0,       \
  "mlp.c_fc.bias", "")                                                                                                \
X(FC2, "mlp.linear_fc2.weight", PART_LAYER, 1, SEG(H), F, CUT_COLS, INIT_SCALED, 1,                                    \
  "mlp.c_proj.weight^", "mlp.down_proj.weight")                                                                       \
X(FC2B, "mlp.linear_fc2.bias", PART_LAYER, c->add_bias_linear, SEG(H), 0, CUT_NONE, INIT_ZERO, 0,                      \
  "mlp.c_proj.bias", "")                                                                                              \
X(LNF, "decoder.final_layernorm.weight", PART_HEAD, 1, SEG(H), 0, CUT_NONE, INIT_ONE, 0,                               \
  "transformer.ln_f.weight", "model.norm.weight")                                                                     \
X(LNFB, "decoder.final_layernorm.bias", PART_HEAD, LAYERNORM, SEG(H), 0, CUT_NONE, INIT_ZERO, 0,                       \
  "transformer.ln_f.bias", "")                                                                                        \
X(HEAD, "output_layer.weight", PART_HEAD, c->untie_embeddings_and_output_weights, SEG(V), H, CUT_ROWS, INIT_NORMAL, 1, \
  "lm_head.weight", "lm_head.weight")

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
    char name[96];                   /* the checkpoint's: "decoder.layers.3.mlp.linear_fc1.weight" */
    int ndim;                        /* 1 or 2 */
    int64_t segment[MAX_SEGMENTS];   /* global rows of each segment, unused ones 0 */
    int64_t rows, cols;              /* global shape, unpadded; a vector is rows x 1 */
    int64_t local_rows, local_cols;  /* this rank's slice, vocabulary padded; a vector is local_rows x 1 */
    int64_t offset;                  /* elements from the start of the rank's flat arrays */
    int64_t n;                       /* local elements, padding included */
} Param;

typedef struct {
    PartKind kind;
    int layer;                       /* global, PART_LAYER only */
    int first, count;                /* its params in Params.param */
    int param[PARAM_KINDS];          /* index by ParamId, -1 = absent */
} Part;

/* A box of the global tensor that lies in this rank's slice, dense or strided: global rows [row0, row0+rows), cols
 * [col0, col0+cols) stand at flat element `at` + r*ld + c of the rank's arrays. */
typedef struct { int64_t row0, col0, rows, cols, at, ld; } Box;

typedef struct {
    const Config *cfg;
    const Grid *grid;
    Dtype type, real;                /* storage of weights; gradients, masters and moments */
    int nparts, nparam;
    Part *part;                      /* the parts that this rank holds, in model order */
    Param *param;
    int64_t elems;                   /* length of each flat array below */
    void *weight;                    /* type */
    void *grad;                      /* real */
    void *master;                    /* real; the same memory as weight when type == real */
    void *moment[2];                 /* real; NULL where the optimizer has none */
} Params;

/* Makes the table for this rank; allocates no tensor memory. Not collective. */
void params_open(Params *p, const Config *cfg, const Grid *grid);
void params_close(Params *p);

/* Lays the flat arrays out in `run` (which may be counting). Without gradients there are weights alone. moments: 0 to 2. */
void params_layout(Params *p, Arena *run, int gradients, int moments);

/* Initial values, the same bits in every layout: a function of (seed, name, index in the global tensor). Needs a layout
 * with gradients. */
void params_init(Params *p, Device *d);

/* weight <- master (bf16, fp16); nothing when they are one. */
void params_refresh(Params *p, Device *d);

/* Local views. A vector is [1, n]. Mat.p is NULL when the model has no such tensor. */
Mat params_weight(const Params *p, int part, ParamId id);
Mat params_grad(const Params *p, int part, ParamId id);

/* The boxes of one tensor that this rank holds; returns how many (<= MAX_SEGMENTS). */
int param_boxes(const Params *p, const Param *t, Box box[MAX_SEGMENTS]);

/* Parameters of the whole model, each once, without padding. */
int64_t params_count(const Config *cfg);
#endif
