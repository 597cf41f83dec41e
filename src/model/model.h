/* model -- a GPT-style decoder: fwd, bwd_x (gradient of the input) and bwd_w (gradient of the weights)
 * of its layers, as functions over matrices in given memory.
 *
 * Letters (all local to the rank): B samples of a microbatch, S positions, T = B*S, R the rows of T that
 * this rank has between the linear layers (T/tp with sequence parallelism, else T), H width, A query
 * heads, K key/value heads, D head size, F feed-forward width, V vocabulary. Storage type unless said
 * otherwise.
 *
 * A rank holds chunks (virtual stages). A chunk is cut into units: the embedding, each group of layers
 * that is recomputed together (by default one layer), the head. Gradients are reduced and parameters
 * gathered unit by unit.
 *
 * Data of a microbatch in a chunk have one of three lifetimes, and a place in memory for each: FD, from
 * the input to D (input, attention's inputs, statistics of norms); FW, from F to W (inputs of the linear
 * layers); DW, from the arriving gradient to W (gradients between layers, output gradients of the linear
 * layers). With the joined B, W ends with D, and data within a layer's backward are scratch. Recomputed
 * data are made by the same code as in the forward, so the bits are the same. */
#ifndef MODEL_H
#define MODEL_H
#include "context.h"
#include "data.h"
#include "expert.h"
#include "fiber.h"
#include "loader.h"
#include "params.h"
#include "schedule.h"
#include "tensor.h"

/* Rows of a round of the dispatch, in the order of experts: n of this rank, experts_room at most. */
typedef struct {
    Mat x, h, weight;      /* [n,H]; [n,F] or [n,2F], F of this rank's part of an expert; real [n,1] */
} ExpertActs;

/* Activations of a layer that its backward reads, each with its lifetime. */
typedef struct {
    Mat x;                 /* [R,H] the layer's input. FD */
    Mat ln1, stat1;        /* [R,H] FW, real [R,2] FD */
    Mat qk, qstat, kstat;  /* [T,(A+K)D] before QK norm, real [T,2A], [T,2K]; only with qk_layernorm. FD */
    Mat qkv;               /* [T,(A+2K)D] after QK norm, rotation and, with a2a over a ranks, the exchange
                              of heads, which makes it [aT,(A+2K)D/a]. FD */
    Mat o, lse;            /* [T,AD] FW, real [T,A] or [aT,A/a] FD */
    Mat x1;                /* [R,H] after attention. FD */
    Mat ln2, stat2;        /* [R,H] FW, real [R,2] FD */
    Mat h, a;              /* [T,F] or [T,2F]; [T,F]. FW. With D and W apart D writes dh over h */
    Mat logits, weight;    /* with experts: real [R,E], the router's; real [R,k], of the chosen experts. FD */
    int32_t *choice;       /* with experts: [R,k] on the device. FD */
    int32_t *kept;         /* with experts: [R,k] on the device, choices with experts_dropped; may be choice.
                              FD */
    ExpertActs expert;     /* with experts: of the first round; no columns: D makes it again. FD */
    Fp8Turned ln1t, ln2t, at;  /* of ln1, ln2 and a, in their place: with room in one, that is scratch. FW */
    Mat8 ln1r, ln2r;           /* [R,H] of ln1, ln2, which then are not stored (norm.c). In scratch until the
                                  product that reads it */
    int64_t left;          /* offloaded layers: ticket of the last copy of these to the host */
} LayerActs;

/* Output gradients of a layer's linear layers, from its bwd_x to its bwd_w: [R,H], [R,H], [T,(A+2K)D].
 * The one of fc1 is LayerActs.h. */
typedef struct { Mat fc2, proj, qkv; } LayerGrads;

/* The pending end of a layer, x = res + dropout(x) in place. It is done by the norm that reads x next,
 * in the same pass over memory, or by mlp_settle. */
typedef struct {
    Mat x, res;            /* [R,H] res absent: nothing is pending */
    Dropout drop;
    int part;              /* the layer's part */
} Residual;

/* Keys and values of the positions generated so far, for one sequence. */
typedef struct { Mat *k, *v; int64_t length; } KvCache;   /* by global layer: [max, KD] */

/* What a slot has: the place of the data that are in it. A place may lie over those of other slots whose data
 * have ended. */
#define MODEL_SLOT                                                                                           \
    Arena mem;                                                                                               \
    int chunk;                                                                                               \
    Token arrived, sent;   /* messages that receive the first of these data, that send the last */
typedef struct { MODEL_SLOT } Slot;

typedef struct {
    union {
        Slot at;
        struct { MODEL_SLOT };
    };
    Batch batch;           /* the slot's copy of the microbatch */
    Mat *in;               /* [groups + 1] input of each group of layers, output of the last one: [R,H] */
    Residual residual;     /* of the layer that ran last */
} SlotFD;

typedef struct {
    union {
        Slot at;
        struct { MODEL_SLOT };
    };
    LayerActs *layer;      /* [layers of the largest chunk], from the slot's first use */
    LayerGrads *grads;     /* likewise */
} SlotFW;

typedef struct {
    union {
        Slot at;
        struct { MODEL_SLOT };
    };
    Mat dy, dx;            /* [R,H] the last gradient, and room for the next one */
} SlotDW;

/* Room on the device for the activations of one offloaded layer (offload.c). */
typedef struct {
    Arena d, w;            /* activations that D reads; that W reads */
    LayerActs *due;        /* the layer prefetched here for its backward; NULL: none */
    char *late;            /* where prefetched activations for W go: in w, or in DW memory until W */
    int64_t ticket;        /* of the last copy into or out of the window */
    int64_t left;          /* of the last copy from the window to the host */
} LayerWindow;

struct Model;

typedef enum { UNIT_EMBEDDING, UNIT_LAYERS, UNIT_HEAD } UnitKind;

typedef struct {
    UnitKind kind;
    int chunk, group;      /* group: number among the chunk's groups of layers */
    int part, count;       /* parts [part, part + count) of Params */
    int layer;             /* UNIT_LAYERS: its first layer, counted in its chunk */
    int recompute;         /* bool: F keeps the input alone */
    int offload;           /* bool: activations are on the host between F and the backward */
} ModelUnit;

typedef struct {
    int unit0, units;          /* units [unit0, unit0 + units) of ModelHeld.unit */
    int groups;                /* how many of these are UNIT_LAYERS */
    int layers;
    int prev, next;            /* pipeline ranks that hold the stage before and after; -1: none */
    int prev_here, next_here;  /* these stages as chunks of this rank; -1: on another rank */
} Chunk;

/* The microbatch and the chunk that an instruction works on, and the memory for what it keeps. */
typedef struct {
    const Chunk *chunk;
    const Batch *batch;
    SlotFD *fd;
    SlotFW *fw;
    SlotDW *dw;
    Arena *keep_d, *keep_w;    /* forward: memory for activations that D reads, that W reads */
    Arena *late;               /* backward: memory for what W reads */
    int redo;                  /* bool: this forward is made again for a backward that follows */
} Pass;

/* The sizes of this rank's slice of the layers, in the letters above. */
typedef struct {
    int64_t H, A, K, D, F, V;
    int64_t expert_F;          /* width of this rank's part of an expert */
    int64_t Vvalid;            /* columns of V without the padding */
    int64_t vocab0;            /* first token of this rank's slice */
    Dtype type, real;          /* type of storage; type of gradients, statistics and losses */
    Dtype logits;              /* type of the head's logits, but for a generated token's, which are real */
} ModelDims;

/* The tensor-parallel group as the layers use it. */
typedef struct {
    TensorGroup group;         /* group of the list that runs now: the tensor ranks, or `one` */
    Token *tokens;             /* [2 tp] messages of the group */
    Comm one;                  /* a group of this rank alone */
} ModelGroup;

/* What this rank holds of the model. */
typedef struct {
    int nchunks, nunits;
    Chunk *chunk;
    ModelUnit *unit;           /* [nunits] chunk by chunk */
} ModelHeld;

enum { MODEL_CHUNKS = 255 };

/* Bytes of a microbatch's data of each lifetime in each chunk, of the scratch, of an offload window's two
 * arenas, and of the scratch of lane 1. */
typedef struct {
    size_t data[SLOT_KINDS][MODEL_CHUNKS];
    size_t scratch, window_d, window_w, beside;
} ModelBytes;

/* Where a microbatch's activations and gradients lie. */
typedef struct {
    Arena all;                 /* memory of all slots: places by Schedule.place */
    ModelBytes bytes;          /* data: sizes of places; while the arena only counts, the most so far */
    int nfd, nfw, ndw;
    int layers;                /* of the largest chunk */
    Mat *in;                   /* memory of SlotFD.in */
    SlotFD *fd;
    SlotFW *fw;
    SlotDW *dw;
} ModelSlots;

/* What the routers of a training step did (router_stats.c), with a row for each layer with experts of the
 * whole model. A rank fills the rows of its own layers with what its tokens add; router_stats_reduce makes
 * them those of the global batch, and they stand until model_clear. */
enum { ROUTER_BALANCE, ROUTER_Z, ROUTER_ENTROPY, ROUTER_SUMS };
typedef struct {
    int layers, experts;       /* layers with experts: rows; 0: none. E */
    int *layer;                /* [layers] the layer of a row */
    int *row;                  /* [num_layers] the inverse; -1: a layer without experts */
    int64_t *count;            /* [layers][E + 1] on the host: choices of each expert; those dropped */
    double *sums;              /* [layers][ROUTER_SUMS] on the device: balance loss and z-loss with their
                                  coefficients, as much as they are in the sum of losses that the gradient is
                                  of; entropy of the scores in nats, summed over tokens */
} RouterStats;

/* Activations that are on the host between F and the backward (offload.c). */
typedef struct {
    LayerWindow window[2];     /* used in turn */
    int turn;                  /* the window that is used next */
    int layers;                /* offloaded layers of a chunk, at most */
    char *mapped;              /* [nfd][layers] host memory, as large as a window for each layer */
} ModelOffload;

/* Rows of this rank that are neighbours in the global order of tokens: from `row` on, n rows. */
typedef struct { int64_t start, row, n; } Piece;       /* start: sample * positions + position */

/* Host memory of capacity.c. E experts, k choices. */
typedef struct {
    int pieces;                /* of a rank, at most */
    Piece *piece;              /* [pieces] */
    int32_t *choice;           /* [R k] */
    void *weight;              /* [R k] real */
    int64_t *table;            /* [(1 + tp + ranks) pieces (1 + E)] what ranks gather from each other */
    int64_t *bins;             /* [E][256] */
    uint64_t *threshold;       /* [E] */
    int64_t *ties;             /* [E] */
    int64_t *fill;             /* [E] */
} Capacity;

/* FP8 (precision.c). */
typedef struct {
    Fp8Scale *scale;           /* on the device, [2: train, evaluate][nparts][LINEARS][LINEAR_SCALES] */
    float *seen;               /* on the device, [nparts][LINEARS][LINEAR_SCALES] buffer for messages */
    Fp8Weight *weight;         /* [nparts][LINEARS] FP8 copies of weights; NULL: none are kept */
    int keep;                  /* parts [0, keep) have copies */
    char *known;               /* [nparts][LINEARS] on the host, bool: scales are of a step before */
    int formats;               /* bool: every scale has the largest number of its format */
    const CastWatch *watch;    /* sees each cast; NULL: nothing does */
    int steady;                /* bool: a rehearsal of a step that is not the first: scales are known */
} ModelFp8;

/* The balance of the experts (router.c), on the host but for the bias. */
typedef struct {
    double *load;              /* [max(B, dp)][E] scratch: pairs of each sample, or dp rank, and expert */
    int32_t *plain;            /* [R k] scratch: experts of the largest scores, without bias and groups; NULL:
                                * there are none, or no balance loss */
    double *before;            /* [nparts][E + 1] global_aux_loss: pairs of each expert in the rounds of
                                * microbatches of this step that have been counted; how many microbatches */
    Mat bias;                  /* on the device, real [nparts, E]: what is added to the scores for choosing,
                                * no parameter; no rows without moe_router_enable_expert_bias */
} ModelBalance;

/* The list that runs now. */
typedef struct {
    const Schedule *schedule;
    int64_t B, S;              /* samples of a microbatch, positions of each that this rank has */
    Context context;           /* who has the others */
    const Batch *(*next_batch)(void *ctx, int mb); /* gives microbatch mb; returns NULL while counting */
    void *batch_ctx;
    double loss_scale;         /* multiplies every gradient: loss scale / tokens of a full global batch */
    double counted;            /* the step's share of tokens with a loss: its end divides gradients by it */
    int64_t step;              /* steps of the run before this one: moe_router_force changing goes by it */
    int evaluating;            /* bool: no dropout, no gradients; F of the head makes the loss */
    KvCache *cache;            /* not NULL in generation: F of the head makes logits */
    Mat logits;                /* generation: real [1, V] of the last position */
} ModelNow;

/* What an instruction uses while it runs. Of two that run by turns each has its own.
 *   experts  the dispatch of a layer's rows */
#define MODEL_LANE                                                                                           \
    Arena scratch;                                                                                           \
    Experts experts;
typedef struct { MODEL_LANE } ModelLane;

/* Lists with pairs (pair.c). The forward of training has lane 1, all else lane 0. */
typedef struct {
    Fiber *fiber;              /* NULL: there are no pairs */
    ModelLane other;           /* of the lane that is not in Model.lane */
    int lane;                  /* the one in Model.lane */
    const Instr *f, *b;        /* the pair that runs now */
} ModelPair;

/* A function that sees the tensors of a forward. */
typedef struct {
    void (*see)(void *ctx, struct Model *m, int part, const char *where, Mat x); /* NULL: none */
    void *ctx;
    RowMap rows;               /* during "logits": rows of T that the rows of x are */
    const Batch *batch;        /* during "logits": the microbatch */
} ModelWatch;

typedef struct Model {
    const Config *cfg;
    Grid *grid;
    Device *dev;
    Params *params;
    Data *data;                /* &params->data */
    ModelDims dim;
    ModelGroup tp;
    ModelHeld held;
    ModelSlots slots;
    union {
        ModelLane lane;        /* of the instruction that runs now */
        struct { MODEL_LANE };
    };
    ModelPair pair;
    ModelBalance balance;
    Capacity capacity;         /* of the experts, where they have one */
    RouterStats routers;       /* of the step */
    ModelOffload offload;
    Mat rope;                  /* real [P, rot] = (cos | sin) x attention factor; no rows without rope */
    int split;                 /* bool: the schedule splits the backward in D and W */
    struct { int ln, attn, mlp, act, moe; } keep;  /* bool: F keeps this; 0: selective recompute remakes it */
    ModelFp8 fp8;
    int64_t logits_rows;       /* rows of a slice of logits, of all ranks that share rows */
    ModelNow now;
    double *sums;              /* [MODEL_SUMS] on the device; set on tensor rank 0 of the loss stage */
    ModelWatch watch;
} Model;

/* The units of this rank in one table, chunk by chunk, on the heap.
 *   n          out            length of the table
 *   per_chunk  out  [nchunks] units of each chunk */
ModelUnit *model_units(const Config *cfg, const Params *params, int *n, int *per_chunk);

/* Fills the sizes, units and tables.
 *   slots        in      [SLOT_KINDS] how many slots of each lifetime
 *   room         in      bytes of the memory that their places are in
 *   split        in      bool: D and W apart
 *   recast       in      the last layers of this rank that go without copies of FP8 weights
 *   logits_rows  in      as in Model
 *   length       in      positions of a sequence: rope_scaling dynamic goes by it
 *   run, mapped  in/out  arenas that memory comes from; may only count
 *   bytes        in      model_peaks of a counting run of the same lists; zeros to count */
void model_open(Model *m, const Config *cfg, Grid *grid, const PipeShape *shape, Device *dev,
                Params *params, const int slots[SLOT_KINDS], size_t room, int split, int recast,
                int64_t logits_rows, int64_t length, Arena *run, Arena *mapped, const ModelBytes *bytes);
void model_close(Model *m);
ModelBytes model_peaks(Model *m);

/* model.c: notes what the data in a slot take. */
void slot_count(Model *m, int kind, Slot *s);

/* Model.sums: losses and their masks since model_clear, and room for a watcher's sum. model_clear clears the
 * statistics of the routers, too. */
enum { SUM_LOSS, SUM_MASK, SUM_WATCH, MODEL_SUMS };
void model_clear(Model *m);

/* Prepares the model for a list: its slots, and microbatches of B samples of `positions` each. share: split
 * the positions over the context group, and rows over the tensor group where sequence parallelism is on;
 * generation passes 0, its rows are too few. */
void model_begin(Model *m, const Schedule *schedule, int64_t B, int64_t positions, int share);

/* The instructions F, B, D and W, and the four messages, as the executor calls them. `model` is the
 * Model. */
void model_forward(void *model, const Instr *i);
void model_backward(void *model, const Instr *i);
void model_backward_x(void *model, const Instr *i);
void model_backward_w(void *model, const Instr *i);
/* Runs F and the B beside it by turns: while the rows of one travel to the experts, the other computes.
 *   took  out  [2]  s that F, B ran */
void model_pair(void *model, const Instr *f, const Instr *b, double took[2]);
/* Waits for the message that an F, B or D needs: its input, or the gradient of its output. */
void model_arrive(void *model, const Instr *i);
void model_send_activation(void *model, const Instr *i);
void model_recv_activation(void *model, const Instr *i);
void model_send_gradient(void *model, const Instr *i);
void model_recv_gradient(void *model, const Instr *i);
/* Waits until all messages of the list have left. */
void model_end(Model *m);

/* pair.c: puts what a lane uses in Model.lane; returns the lane that was there. Nothing without pairs. */
int model_lane(Model *m, int lane);

/* ---- the layers ---- */

/* Site names of dropout masks: the key is rng_key(seed, site) mixed with the layer's number. */
enum { SITE_EMBEDDING, SITE_ATTENTION, SITE_PROJ, SITE_MLP, SITE_ROUTER };
/* The hidden dropout (probability 0 while evaluating) of the rows that this rank has. */
Dropout model_dropout(const Model *m, const Pass *p, int site, int layer);
/* Takes room for the mask of a dropout of [R,H] on devices that keep masks. */
void model_keep_mask(const Model *m, const Pass *p);
/* First of the T rows that this rank has. */
int64_t model_row0(const Model *m);

/* rope.c: angles of the rotary columns. rates [n/2]: radians a position, of pairs of columns, for
 * sequences of `length` positions. */
void rope_rates(const Config *c, int64_t n, int64_t length, double *rates);
/* Makes the table Model.rope. */
void rope_open(Model *m, int64_t length, Arena *run);

/* Embedding: x [R,H] from the tokens. */
void embedding_fwd(Model *m, const Pass *p, int part, Mat x);
void embedding_bwd(Model *m, const Pass *p, int part, Mat dx);

/* How a linear layer of a part is multiplied. The head is multiplied as it is stored. */
typedef enum {
    LINEAR_QKV, LINEAR_PROJ,
    LINEAR_FC1, LINEAR_FC2,    /* of the mlp; in a layer with experts, those of all of them */
    LINEAR_SFC1, LINEAR_SFC2,  /* of the shared expert */
    LINEARS
} LinearId;
enum { LINEAR_SCALES = 3 };    /* scales of a linear layer: of input, weight, gradient of the output */

/* The norm before a layer's attention, with LINEAR_QKV, or before its mlp, with LINEAR_FC1. Where its result
 * is read by products in FP8 alone, it writes the FP8 copies of it, and the result is not stored.
 * model_norm_take: room for the result. */
void model_norm_take(Model *m, const Pass *p, int part, LayerActs *a, LinearId which);
/* Makes the result from x or, with sum, from sum = res + dropout(x), and the statistics. */
void model_norm_fwd(Model *m, int part, LayerActs *a, LinearId which, Mat sum, Mat x, Mat res,
                    const Dropout *drop);
/* Makes again what the backward reads and the forward has not kept.
 *   rows  in  bool: the product that follows the norm is made again, too */
void model_norm_restore(Model *m, const Pass *p, int part, LayerActs *a, LinearId which, int rows);
/* The precision of the product that follows the norm. */
Precision model_norm_precision(const Model *m, int part, LayerActs *a, LinearId which);

/* First half of a layer: x1 = x + dropout(proj(attention(norm(x)))), and ln2 = norm(x1) in the same pass
 * over memory. A pending Residual is added in the same pass as norm(x). */
void attention_fwd(Model *m, const Pass *p, int part, LayerActs *a);
/* Recomputes the activations that selective recompute left out of a. */
void attention_restore(Model *m, const Pass *p, int part, LayerActs *a);
/* dx [R,H] from dx1. weights, bool: also the weight gradients, while the input gradient is summed. */
void attention_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx, Mat dx1,
                   int weights);
void attention_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g);

/* Second half: y = x1 + dropout(fc2(act(fc1(ln2)))). The dropout and the last sum are left in
 * p->fd->residual, and x1 has to stay until they are done. y absent: only what the backward reads. */
void mlp_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y);
/* Does the pending Residual, where no norm follows. */
void mlp_settle(Model *m, const Pass *p);
void mlp_restore(Model *m, const Pass *p, int part, LayerActs *a);
void mlp_bwd(Model *m, const Pass *p, int part, LayerActs *a, LayerGrads *g, Mat dx1, Mat dy, int weights);
void mlp_bwd_w(Model *m, int part, LayerActs *a, LayerGrads *g);

/* Second half of a layer with experts, in the place of mlp_fwd and mlp_bwd. Its weight gradients are made in
 * D: there is no bwd_w. */
void moe_fwd(Model *m, const Pass *p, int part, LayerActs *a, Mat y);
void moe_bwd(Model *m, const Pass *p, int part, LayerActs *a, Mat dx1, Mat dy);
/* Its router: logits [R,E], choice and weight [R,k] from ln2; dln [R,H] += the gradient of ln2, from dweight
 * real [R,k] and the losses of its own. The gradient needs the layer's dispatch to be planned. */
void router_open(Model *m, int64_t rows, Arena *run);   /* for `rows` rows */
void router_close(Model *m);
void router_begin(Model *m);           /* a list begins */
/* Moves the bias of each expert by moe_router_bias_update_rate, up where the expert has got fewer pairs of
 * the step than the mean, down where more (Wang et al. 2024, arXiv:2408.15664, algorithm 1). The pairs are
 * those of Model.routers, summed over all ranks. */
void router_update_bias(Model *m);
void router_fwd(Model *m, const Pass *p, int part, LayerActs *a);
void router_bwd(Model *m, const Pass *p, int part, LayerActs *a, Mat dweight, Mat dln);
/* capacity.c: the limit of an expert's pairs. open takes host memory for `rows` rows and returns the largest
 * limit. drop sets a->kept after the router. limit returns that of the list that runs now, with the rows that
 * fill experts up, or NULL where there is none: in generation, and without a capacity. The last two are
 * collective over the ranks that share a microbatch. */
ExpertsLimit capacity_open(Model *m, int64_t rows);
void capacity_close(Model *m);
void capacity_drop(Model *m, const Pass *p, LayerActs *a);
const ExpertsLimit *capacity_limit(Model *m, const LayerActs *a, ExpertsLimit *l);
/* Statistics of the routers. open takes the device's sums from `run`, which may only count. add: what one
 * microbatch adds, from the logits [R,E] and the arguments of route_bwd; the layer's dispatch is planned.
 * reduce: over all ranks. */
void router_stats_open(RouterStats *s, const Config *c, Arena *run);
void router_stats_close(RouterStats *s);
void router_stats_clear(RouterStats *s, Device *d);
void router_stats_add(Model *m, int part, Mat logits, Mat push, const Routing *r);
void router_stats_reduce(RouterStats *s, Comm *all);
static inline int64_t router_counts(const RouterStats *s) { return s->layers * (int64_t)(s->experts + 1); }
/* The shared expert of such a layer: y [R,H] is its output. */
int shared_expert_exists(const Model *m);
void shared_expert_fwd(Model *m, int part, LayerActs *a, Mat y);
/* Its part in the gradient of ln2, from shared_expert_grads, which takes the room for it from scratch, to
 * shared_expert_add, which adds it: [R,H], and [R,1] of the gate's logit. No rows: there is none. */
typedef struct { Mat dx, gate; } SharedGrads;
SharedGrads shared_expert_grads(Model *m, int64_t R);
void shared_expert_bwd(Model *m, int part, LayerActs *a, Mat dy, SharedGrads out);
void shared_expert_add(Model *m, int part, SharedGrads g, Mat dln);
/* force.c: choice [R,k] on the device, by moe_router_force; NULL: a counting run. */
void force_choices(Model *m, const Pass *p, int part, int32_t *choice);
/* Whether the layer of a part has experts. */
static inline int model_is_moe(const Model *m, int part)
{
    return config_is_moe(m->cfg, m->params->part[part].layer);
}

/* Final norm, logits and loss, a slice of rows at a time: logits are made once and never all held.
 *   x   in   [R,H]
 *   dx  out  [R,H]  gradient of x, with the gradients of the head's weights; absent: loss only */
void head_run(Model *m, const Pass *p, int part, Mat x, Mat dx);
/* Logits (real [1, V]) of the last row of x. */
void head_logits(Model *m, int part, Mat x, Mat logits);

/* How linear layer `which` of a part is multiplied. */
Precision model_precision(const Model *m, int part, LinearId which);
/* Whether a layer is multiplied in FP8. */
int model_in_fp8(const Config *cfg, int layer);
/* Whether two layers of the model run the same operations and send the same messages. */
int model_layers_alike(const Config *cfg, int a, int b);
/* Room for the transposed FP8 copy of a layer's activation [rows, cols], which the weight gradient reads in
 * its place. There is none where the layer is not multiplied in FP8, where the weight gradient gathers rows,
 * and where `from` is not the memory for what W reads, or that is scratch. */
Fp8Turned model_turned(const Model *m, int part, const Pass *p, Arena *from, int64_t rows, int64_t cols);
/* The same of an output gradient [rows, cols], in scratch, within one call of the backward.
 *   weights  in  bool: the weight gradient follows in the same call */
Fp8Turned model_turned_gradient(Model *m, int part, int64_t rows, int64_t cols, int weights);
static const Precision as_stored;
/* Takes the memory of FP8 from `run`, which may only count. recast: as model_open's. */
void precision_open(Model *m, int recast, Arena *run);
/* Whether copies of FP8 weights are worth their memory: several microbatches a step, weights not
 * sharded. */
int precision_keeps(const Config *cfg);
/* Rows of an expert that a rank sends are a multiple of this. */
int64_t precision_rows_piece(const Config *cfg);
/* Number of linear layers of this rank's parts: nparts * LINEARS, part by part. */
int64_t precision_linears(const Model *m);
/* The weight of linear layer i of these, of a layer's experts that of the first; NULL: there is none, or it
 * is not multiplied in FP8. */
const Param *precision_weight(const Model *m, int64_t i);
/* Whether FP8 scales follow from earlier steps, so that a checkpoint keeps them. */
int precision_delayed(const Model *m);
/* Number of this rank's layers that are multiplied in FP8. */
int precision_layers(const Config *cfg, const Params *params);
void precision_close(Model *m);
/* Marks all copies of weights as stale: a list begins, and the weights may have changed. */
void precision_begin(Model *m);
/* Sets the next step's FP8 scales from this step's magnitudes. Collective over tensor and data
 * groups. */
void model_next_scales(Model *m);

/* Bytes of a window's two arenas: their sizes, or while counting the larger peak of both windows, which hold
 * different layers, rounded so that another arena can follow. */
size_t offload_room_d(const Model *m);
size_t offload_room_w(const Model *m);
/* Whether the activations of u leave the device: never in a list without a backward. */
int offload_wanted(const Model *m, const ModelUnit *u);
/* Returns a free window for a layer's forward. offload_start then copies it to the host. */
LayerWindow *offload_enter(Model *m);
void offload_start(Model *m, const Pass *p, const ModelUnit *u, LayerWindow *w);
/* Waits until the activations of unit k are back on the device, and prefetches those of the next
 * unit. */
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
