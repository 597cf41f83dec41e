/* model -- a GPT-style decoder as functions over views of memory: fwd, bwd_x (gradient of the input), bwd_w
 * (gradient of the weights).
 *
 * Letters (all local to the rank): B samples of a microbatch, S positions, T = B*S, R the rows of T that this
 * rank has between the linear layers (T/tp with sequence parallelism, else T), H width, A query heads, K
 * key/value heads, D head size, F feed-forward width, V vocabulary. Storage type unless said otherwise.
 *
 * A rank holds chunks (virtual stages), a chunk is cut into units: the embedding, each group of layers that
 * is recomputed together (one layer as a rule), the head. Units are the grain of gradient reduction and
 * parameter gathering.
 *
 * A microbatch in a chunk has three lifetimes, and a slot of memory for each: FD, from its input to D (input,
 * attention's inputs, statistics of norms); FW, from F to W (inputs of the linear layers); DW, from the
 * gradient that comes in to W (gradients between layers, output gradients of the linear layers). With the
 * joined B the last ends with the others, and what lives within a layer's backward is scratch. What recompute
 * leaves out is made again in the backward, by the same code, so the bits are the same. */
#ifndef MODEL_H
#define MODEL_H
#include "data.h"
#include "loader.h"
#include "params.h"
#include "schedule.h"
#include "tensor.h"

typedef struct {
    Mat x;                 /* [R,H] the layer's input. FD */
    Mat ln1, stat1;        /* [R,H] FW, real [R,2] FD */
    Mat qk, qstat, kstat;  /* [T,(A+K)D] before QK norm, real [T,2A], [T,2K]; only with qk_layernorm. FD */
    Mat qkv;               /* [T,(A+2K)D] after QK norm and rotation. FD */
    Mat o, lse;            /* [T,AD] FW, real [T,A] FD */
    Mat x1;                /* [R,H] after attention. FD */
    Mat ln2, stat2;        /* [R,H] FW, real [R,2] FD */
    Mat h, a;              /* [T,F] or [T,2F]; [T,F]. FW. A backward whose W comes later writes dh over h */
    int64_t left;          /* where the layer is offloaded: the last copy that took these off the device */
} LayerActs;

/* Output gradients of a layer's linear layers, from its bwd_x to its bwd_w: [R,H], [R,H], [T,(A+2K)D]; that
 * of fc1 is LayerActs.h. */
typedef struct { Mat fc2, proj, qkv; } LayerGrads;

/* The end of a layer, x = res + dropout(x) in place, while it is still to be done: by the norm that reads x
 * next, in the same pass over memory, or by mlp_settle. res absent: it is done. */
typedef struct {
    Mat x, res;            /* [R,H] */
    Dropout drop;
    int part;              /* of the layer */
} Residual;

/* Keys and values of the positions generated so far, for one sequence. */
typedef struct { Mat *k, *v; int64_t length; } KvCache;   /* by global layer: [max, KD] */

typedef struct {
    Arena mem;
    Batch batch;           /* this microbatch's own copy */
    Mat *in;               /* input of each group of layers, then the output of the last: [R,H] */
    Residual residual;     /* of the layer that ran last */
    Token arrived, sent;   /* of in[0]; of the last */
} SlotFD;

typedef struct {
    Arena mem;
    LayerActs *layer;      /* by layer of the chunk */
    LayerGrads *grads;
} SlotFW;

typedef struct {
    Arena mem;
    Mat dy, dx;            /* [R,H] gradient that came in last, room for the next */
    Token arrived, sent;
} SlotDW;

/* Room for what one layer keeps, where it lies elsewhere between F and its backward (offload.c). */
typedef struct {
    Arena d, w;            /* what D needs, what W needs */
    LayerActs *due; /* whose activations are on their way into it, or in it, for a backward to come; NULL:
                       nobody's */
    char *late;            /* where those that W needs go: in w, or where they stay until W */
    int64_t ticket, left;  /* of its last copy; of the last one off the device */
} LayerWindow;

struct Model;

typedef enum { UNIT_EMBEDDING, UNIT_LAYERS, UNIT_HEAD } UnitKind;

typedef struct {
    UnitKind kind;
    int chunk, group;      /* group: which of the chunk's groups of layers */
    int part, count;       /* its parts in Params */
    int layer;             /* UNIT_LAYERS: the first, counted in its chunk */
    int recompute;
    int offload;           /* what it keeps is elsewhere between F and its backward */
} ModelUnit;

typedef struct {
    int unit0, units;      /* its units in ModelHeld.unit */
    int groups;            /* units of layers among them */
    int layers;
    int prev, next;        /* pipeline ranks that hold the stage before and after, -1: none */
    int prev_here, next_here;  /* the chunk of this rank that is that stage, -1: not here */
} Chunk;

/* Which microbatch of which chunk an instruction is about, and where what it leaves behind is kept. */
typedef struct {
    const Chunk *chunk;
    const Batch *batch;
    SlotFD *fd;
    SlotFW *fw;
    SlotDW *dw;
    Arena *keep_d, *keep_w;    /* of a forward: what D needs, what W needs */
    Arena *late;               /* of a backward: what W needs */
} Pass;

/* The sizes of this rank's slice of the layers, in the letters above. */
typedef struct {
    int64_t H, A, K, D, F, V;
    int64_t Vvalid;            /* columns of V that are no padding */
    int64_t vocab0;            /* first token of this rank's slice */
    Dtype type, real;          /* of storage; of gradients, statistics and losses */
} ModelDims;

/* The tensor-parallel group as the layers use it. */
typedef struct {
    TensorGroup group;         /* of the pass that runs now: the ranks' own, or `one` */
    Token *tokens;             /* its messages: [2 tp] */
    Comm one;                  /* a group of one */
} ModelGroup;

/* What this rank holds of the model. */
typedef struct {
    int nchunks, nunits;
    Chunk *chunk;
    ModelUnit *unit;           /* chunk by chunk */
} ModelHeld;

/* Where a microbatch's activations and gradients lie. */
typedef struct {
    int nfd, nfw, ndw;
    SlotFD *fd;
    SlotFW *fw;
    SlotDW *dw;
} ModelSlots;

/* Activations that lie elsewhere between F and its backward (offload.c). */
typedef struct {
    LayerWindow window[2];     /* taken in turn */
    int turn;
    int layers;                /* offloaded layers of a chunk, at most */
    char *mapped;               /* [nfd][layers] what each layer keeps */
} ModelOffload;

/* FP8 (precision.c). */
typedef struct {
    Fp8Scale *scale;           /* on the device: [2: training, evaluation][nparts][LINEARS][LINEAR_SCALES] */
    float *seen;               /* on the device: largest magnitudes of the scales, for messages */
    Fp8Weight *weight;         /* [nparts][LINEARS] copies of weights that a list keeps; NULL: none */
    int keep;                  /* copies are of parts [0, keep) */
    char *known;               /* [nparts][LINEARS] on the host, bool: earlier steps have left scales */
} ModelFp8;

/* The list that runs now. */
typedef struct {
    const Schedule *schedule;
    int64_t B, S;              /* samples of a microbatch, positions */
    const Batch *(*next_batch)(void *ctx, int mb); /* microbatch mb of this step; NULL while only counting */
    void *batch_ctx;
    double loss_scale;         /* multiplies every gradient: loss scale / tokens of a full global batch */
    int evaluating;            /* no dropout, no gradients: F of the head makes the loss */
    KvCache *cache;            /* generation: F of the head makes logits */
    Mat logits;                /* real [1, V] of the last position */
} ModelNow;

/* Who sees the tensors of a forward. */
typedef struct {
    void (*see)(void *ctx, struct Model *m, int part, const char *where, Mat x); /* NULL: nobody */
    void *ctx;
    RowMap rows;               /* during "logits": the row of T that each row of x is */
    const Batch *batch;        /* during "logits": the microbatch */
} ModelWatch;

typedef struct Model {
    const Config *cfg;
    Grid *grid;
    Device *dev;
    Params *params;
    Data *data;                /* of params */
    ModelDims dim;
    ModelGroup tp;
    ModelHeld held;
    ModelSlots slots;
    ModelOffload offload;
    Arena scratch;
    Mat rope;                  /* real [P, rot] = (cos | sin); rows 0 when there is none */
    int split;                 /* bool: the schedule splits the backward */
    struct { int ln, attn, mlp; } keep;    /* bool: selective recompute does not leave it out */
    ModelFp8 fp8;
    ModelNow now;
    double *sums;              /* [MODEL_SUMS] on the device: losses and masks since model_clear, on tensor
                                  rank 0 of the stage with the loss; room for a watcher's sum */
    ModelWatch watch;
} Model;

/* The units of this rank: *units of each chunk (per_chunk[nchunks]) in one table, on the heap. */
ModelUnit *model_units(const Config *cfg, const Params *params, int *n, int *per_chunk);

/* Bytes of a slot of each lifetime, of the scratch, and of what an offloaded layer keeps for D and for W. */
typedef struct { size_t fd, fw, dw, scratch, window_d, window_w; } ModelBytes;

/* Fills the sizes, units and tables. slots: how many of each lifetime; split: D and W apart. recast: layers
 * of this rank, the last ones, whose FP8 weights are cast in every microbatch, for want of room to keep the
 * copies. Memory comes from `run` and `mapped` (which may be counting). bytes: from a counting run of the
 * same lists, zeros to count. */
void model_open(Model *m, const Config *cfg, Grid *grid, const PipeShape *shape, Device *dev,
                Params *params, const int slots[SLOT_KINDS], int split, int recast, Arena *run, Arena *mapped,
                const ModelBytes *bytes);
void model_close(Model *m);
ModelBytes model_peaks(const Model *m);

/* Sums from 0 on. */
enum { SUM_LOSS, SUM_MASK, SUM_WATCH, MODEL_SUMS };
void model_clear(Model *m);

/* Before a list runs: its slot tables, the shape of its microbatches, and whether rows may be shared out (a
 * sequence that is being generated has too few). */
void model_begin(Model *m, const Schedule *schedule, int64_t B, int64_t S, int share_rows);

/* The instructions F, B, D, W and the four messages, as the executor calls them: ctx is the Model. */
void model_forward(void *model, const Instr *i);
void model_backward(void *model, const Instr *i);
void model_backward_x(void *model, const Instr *i);
void model_backward_w(void *model, const Instr *i);
/* Waits for the input of an F, the output's gradient of a B or D, where another rank sends it. */
void model_arrive(void *model, const Instr *i);
void model_send_activation(void *model, const Instr *i);
void model_recv_activation(void *model, const Instr *i);
void model_send_gradient(void *model, const Instr *i);
void model_recv_gradient(void *model, const Instr *i);
/* All messages of the list have left. */
void model_end(Model *m);

/* ---- the layers ---- */

/* Site names of dropout masks: the key is rng_key(seed, site) mixed with the layer's number. */
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_PROJ, SITE_MLP };
/* Of rows that this rank has; p is hidden_dropout, 0 while evaluating. */
Dropout model_dropout(const Model *m, const Pass *p, int site, int layer);
/* Room for the mask of a dropout of [R,H], where the device keeps it. */
void model_keep_mask(const Model *m, const Pass *p);
/* First of the T rows that this rank has. */
int64_t model_row0(const Model *m);

/* Embedding: x [R,H] from the tokens. */
void embedding_fwd(Model *m, const Pass *p, int part, Mat x);
void embedding_bwd(Model *m, const Pass *p, int part, Mat dx);

/* First half of a layer: x1 = x + dropout(proj(attention(norm(x)))), and ln2 = norm(x1) in the same pass over
 * memory; so is norm(x) with the end of the layer before, where that is still to be done. */
void attention_fwd(Model *m, const Pass *p, int part, LayerActs *a);
/* Makes again what selective recompute left out of a. */
void attention_restore(Model *m, const Pass *p, int part, LayerActs *a);
/* dx [R,H] from dx1; with `weights`, the weight gradients beside the sum of the input gradient. */
void attention_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx, Mat dx1,
                   int weights);
void attention_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g);

/* Second half: y = x1 + dropout(fc2(act(fc1(ln2)))), but for the last sum: that is left in p->fd->residual,
 * and x1 has to stay until it is done. y absent: what the backward reads, and no more. */
void mlp_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y);
/* Does the sum that mlp_fwd has left, where no norm will. */
void mlp_settle(Model *m, const Pass *p);
void mlp_restore(Model *m, const Pass *p, int part, LayerActs *a);
void mlp_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx1, Mat dy, int weights);
void mlp_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g);

/* Final norm, logits and loss, a slice of rows at a time, so that the logits of a slice are made once and
 * never all held. x [R,H]; dx [R,H] absent: loss only, else the gradient and those of the head's weights. */
void head_run(Model *m, const Pass *p, int part, Mat x, Mat dx);
/* Logits (real [1, V]) of the last row of x. */
void head_logits(Model *m, int part, Mat x, Mat logits);

/* How a linear layer of a part is multiplied; the head's as it is stored. */
typedef enum { LINEAR_QKV, LINEAR_PROJ, LINEAR_FC1, LINEAR_FC2, LINEARS } LinearId;
enum { LINEAR_SCALES = 3 };    /* of a linear layer in FP8: input, weight, gradient of the output */
Precision model_precision(const Model *m, int part, LinearId which);
static const Precision as_stored;
/* Memory from `run`, which may be counting. recast: as model_open's. */
void precision_open(Model *m, int recast, Arena *run);
/* Whether a list keeps copies of FP8 weights where there is room: with several microbatches, of weights that
 * stay whole. */
int precision_keeps(const Config *cfg);
/* Linear layers of this rank's parts, part by part: [nparts][LINEARS]. */
int64_t precision_linears(const Model *m);
/* The weight of linear layer i of them; NULL: the layer is not multiplied in FP8. */
const Param *precision_weight(const Model *m, int64_t i);
/* Whether FP8 scales follow from steps before, so that a checkpoint keeps them. */
int precision_delayed(const Model *m);
/* FP8 layers of a table. */
int precision_layers(const Config *cfg, const Params *params);
void precision_close(Model *m);
/* A list begins: weights may have changed. */
void precision_begin(Model *m);
/* The end of a step: FP8 scales follow from what it has seen. Collective over tensor and data groups. */
void model_next_scales(Model *m);

/* Bytes of a window's arena: its own, or as many as it was seen to need, rounded so that another can lie
 * behind it. */
size_t offload_window_room(const Arena *a);
/* Whether what u keeps leaves the device: never where there is no backward to come. */
int offload_wanted(const Model *m, const ModelUnit *u);
/* Room for what a layer keeps of a forward, then the copies off the device. */
LayerWindow *offload_enter(Model *m);
void offload_start(Model *m, const Pass *p, const ModelUnit *u, LayerWindow *w);
/* What unit k has kept is there. */
void offload_return(Model *m, const Pass *p, int k);

static inline NormKind model_norm(const Model *m) { return (NormKind)m->cfg->normalization; }
/* T, the positions of a microbatch. */
static inline int64_t model_tokens(const Model *m) { return m->now.B * m->now.S; }
/* A matrix of storage type. */
static inline Mat model_take(const Model *m, Arena *from, int64_t rows, int64_t cols)
{
    return mat_take(from, rows, cols, m->dim.type);
}
static inline void model_watch(Model *m, int part, const char *where, Mat x)
{
    if (m->watch.see)
        m->watch.see(m->watch.ctx, m, part, where, x);
}
#endif
