/* params -- the parameter table, the parts that a rank holds, and their places in the flat space */
#include "params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names that the table's expressions use. */
#define H (c->hidden_size)
#define V (c->vocab_size)
#define P (c->max_position_embeddings)
#define D (c->kv_channels)
#define Q (c->num_attention_heads * c->kv_channels)
#define KV (c->num_query_groups * c->kv_channels)
#define F (c->ffn_hidden_size)
#define E (c->num_moe_experts)
#define EF (c->moe_ffn_hidden_size)
#define SF (c->moe_shared_expert_intermediate_size)
#define SHARED (SF != CFG_ABSENT)
#define MOE config_is_moe(c, layer)
#define GATED act_gated((ActKind)c->activation)
#define LAYERNORM (c->normalization == NORMALIZATION_LAYERNORM)
#define SEG(...) {__VA_ARGS__}

#define X(id, name, part, condition, segments, columns, ...)                                                 \
    static int exists_##id(const Config *c, int layer)                                                       \
    {                                                                                                        \
        (void)c, (void)layer;                                                                                \
        return (condition);                                                                                  \
    }                                                                                                        \
    static void shape_##id(const Config *c, int64_t segment[MAX_SEGMENTS], int64_t *cols)                    \
    {                                                                                                        \
        const int64_t rows[MAX_SEGMENTS] = segments;                                                         \
        memcpy(segment, rows, sizeof rows);                                                                  \
        *cols = (columns);                                                                                   \
        (void)c;                                                                                             \
    }
PARAMS(X)
#undef X

const ParamDef param_defs[PARAM_KINDS] = {
#define X(id, name, part, condition, segments, columns, cut, init, decay, gpt2, llama)                       \
    {name, part, exists_##id, shape_##id, cut, init, decay, gpt2, llama},
    PARAMS(X)
#undef X
};

#undef H
#undef V
#undef P
#undef D
#undef Q
#undef KV
#undef F
#undef E

/* ---- a rank's slice of a tensor ---- */

/* The ranks that share the slices of t. */
static const Comm *slices(const Params *p, const Param *t)
{
    return t->expert >= 0 ? &p->grid->expert[EXPERT_TP] : &p->grid->axis[AXIS_TP];
}

/* How many neighbouring tensor ranks hold the same key/value head. */
static int kv_share(const Params *p) { return p->grid->spec.kv_share; }

static int is_kv(const Param *t, int segment) { return (t->id == P_QKV || t->id == P_QKVB) && segment > 0; }

/* Rows [*first, *first + *rows) of segment s that are in this rank's slice, vocabulary padding
 * included. */
static void slice(const Params *p, const Param *t, int s, int64_t *first, int64_t *rows)
{
    int64_t n = t->segment[s];
    *first = 0;
    *rows = n;
    if (t->def->cut != CUT_ROWS)
        return;
    if (t->id == P_WTE || t->id == P_HEAD) {
        int64_t multiple = p->cfg->make_vocab_size_divisible_by * slices(p, t)->size;
        n = (n + multiple - 1) / multiple * multiple;
    }
    int share = is_kv(t, s) ? kv_share(p) : 1;
    *rows = n * share / slices(p, t)->size;
    *first = slices(p, t)->rank / share * *rows;
}

int64_t param_shared_kv(const Params *p, const Param *t)
{
    int64_t first, rows;
    if (!is_kv(t, 1))
        return t->n;
    slice(p, t, 0, &first, &rows);
    return rows * t->local_cols;
}

static int64_t counted(const Params *p, const Param *t)
{
    if (t->copy || (t->def->cut == CUT_NONE && slices(p, t)->rank))
        return 0;
    return slices(p, t)->rank % kv_share(p) == 0 ? t->n : param_shared_kv(p, t);
}

int param_boxes(const Params *p, const Param *t, int64_t from, int64_t to, Box box[MAX_BOXES])
{
    int64_t global = 0, local = 0, C = t->local_cols,
            col0 = t->def->cut == CUT_COLS ? slices(p, t)->rank * C : 0;
    int n = 0;
    for (int s = 0; s < MAX_SEGMENTS && t->segment[s]; s++) {
        int64_t first, rows;
        slice(p, t, s, &first, &rows);
        int64_t valid = first + rows > t->segment[s] ? t->segment[s] - first : rows;
        int64_t a = from > local * C ? from : local * C,
                b = to < (local + valid) * C ? to : (local + valid) * C;
        while (a < b) {       /* up to three boxes: the end of a row, whole rows, the start of a row */
            int64_t col = a % C, whole = col ? 0 : (b - a) / C, part = b - a < C - col ? b - a : C - col;
            box[n++] = (Box){global + first + a / C - local, col0 + col, whole ? whole : 1, whole ? C : part,
                             t->offset + a, C};
            a += whole ? whole * C : part;
        }
        global += t->segment[s];
        local += rows;
    }
    return n;
}

BlockNumbers param_blocks(const Params *p, const Param *t, int64_t from, int64_t *to)
{
    int64_t global = 0, local = 0, C = t->local_cols, first = 0, rows = 0;
    for (int s = 0; s < MAX_SEGMENTS && t->segment[s]; s++) {
        slice(p, t, s, &first, &rows);
        if (from < (local + rows) * C || s + 1 == MAX_SEGMENTS || !t->segment[s + 1])
            break;
        global += t->segment[s];
        local += rows;
    }
    *to = *to < (local + rows) * C ? *to : (local + rows) * C;
    BlockNumbers b = {.key = rng_key((uint64_t)p->cfg->seed, t->name),
                      .run = INT32_MAX,
                      .at = (int32_t)((from - local * C) / MOMENT_BLOCK),
                      .first = (global + first) * t->cols / MOMENT_BLOCK};
    if (t->def->cut == CUT_COLS) {
        b.first = slices(p, t)->rank * C / MOMENT_BLOCK;
        b.run = (int32_t)(C / MOMENT_BLOCK);
        b.step = (int32_t)(t->cols / MOMENT_BLOCK);
    }
    return b;
}

/* ---- which tensors ---- */

static int part_number(const Config *c, PartKind kind, int layer)
{
    return kind == PART_EMBEDDING ? 0 : kind == PART_LAYER ? layer + 1 : (int)c->num_layers + 1;
}

/* A number counts parts, then rows of the table, then experts; 0 is no expert. */
static int64_t experts_numbered(const Config *c)
{
    return c->num_moe_experts == CFG_ABSENT ? 1 : c->num_moe_experts + 1;
}

void param_name(const Config *cfg, int64_t number, char *name, int size)
{
    int64_t expert = number % experts_numbered(cfg) - 1, row = number / experts_numbered(cfg);
    int layer = (int)(row / PARAM_KINDS) - 1;
    const ParamDef *def = &param_defs[row % PARAM_KINDS];
    if (expert >= 0)
        snprintf(name, (size_t)size, "decoder.layers.%d.%s%d", layer, def->name, (int)expert);
    else if (def->part == PART_LAYER)
        snprintf(name, (size_t)size, "decoder.layers.%d.%s", layer, def->name);
    else
        snprintf(name, (size_t)size, "%s", def->name);
    BUG_ON(layer > (int)cfg->num_layers);
}

static int is_experts(ParamId id) { return id >= P_EFC1 && id <= P_EFC2B; }

static void add_param(Params *p, Part *part, ParamId id, int expert)
{
    const ParamDef *def = &param_defs[id];
    Param *t = &p->param[p->nparam];
    int layer = part->kind == PART_LAYER ? part->layer : -1;
    *t = (Param){.def = def, .id = id, .layer = layer, .copy = def->part != part->kind, .expert = expert};
    t->number = part_number(p->cfg, def->part, layer) * (int64_t)PARAM_KINDS + (int)id;
    t->number = t->number * experts_numbered(p->cfg) + expert + 1;
    param_name(p->cfg, t->number, t->name, sizeof t->name);
    def->shape(p->cfg, t->segment, &t->cols);
    t->ndim = t->cols ? 2 : 1;
    t->cols = t->cols ? t->cols : 1;
    for (int s = 0; s < MAX_SEGMENTS && t->segment[s]; s++) {
        int64_t first, rows;
        slice(p, t, s, &first, &rows);
        t->rows += t->segment[s];
        t->local_rows += rows;
    }
    t->local_cols = def->cut == CUT_COLS ? t->cols / slices(p, t)->size : t->cols;
    t->n = t->local_rows * t->local_cols;
    t->counted = counted(p, t);
    p->nparam++;
    part->count++;
}

/* ---- the flat space ---- */

/* Tensors of a part in the order of memory, bucket by bucket. Tensors whose gradients are partial sums
 * over the tensor group come first in their bucket, so that one message carries them. */
typedef enum { BUCKET_D, BUCKET_EMBEDDING, BUCKET_W, BUCKET_EXPERTS, BUCKET_KINDS } BucketKind;
static const ParamId flat_order[BUCKET_KINDS][17] = {
    [BUCKET_D] = {P_QNORM, P_QNORMB, P_KNORM, P_KNORMB, P_LN1, P_LN1B, P_LN2, P_LN2B, P_LNF, P_LNFB, P_WPE,
                  P_ROUTER, P_SGATE, P_SFC1, P_SFC2, P_HEAD, PARAM_KINDS},
    [BUCKET_EMBEDDING] = {P_WTE, PARAM_KINDS},
    [BUCKET_W] = {P_PROJB, P_FC2B, P_QKV, P_QKVB, P_PROJ, P_FC1, P_FC1B, P_FC2, PARAM_KINDS},
    [BUCKET_EXPERTS] = {P_EFC1, P_EFC1B, P_EFC2, P_EFC2B, PARAM_KINDS},
};

/* Whether a rank's gradient of t is a partial sum: a replicated tensor that each tensor rank applies to
 * its own heads, or with sequence parallelism to its own positions. The ranks that share an expert see the
 * same tokens. */
static int is_partial(const Params *p, const Param *t)
{
    int head_norm = t->id == P_QNORM || t->id == P_QNORMB || t->id == P_KNORM || t->id == P_KNORMB;
    return head_norm || (p->cfg->sequence_parallel && t->def->cut == CUT_NONE && t->expert < 0);
}

static int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static void add_bucket(Params *p, Part *part, BucketKind kind, Bucket *b, int index)
{
    int64_t at = b->at, partial = b->at;
    b->expert = kind == BUCKET_EXPERTS;
    for (const ParamId *id = flat_order[kind]; *id != PARAM_KINDS; id++)
        for (int i = 0; i < (b->expert ? p->experts : 1) && part->param[*id] >= 0; i++) {
            Param *t = &p->param[part->param[*id] + i];
            t->offset = at;
            t->bucket = index;
            BUG_ON(is_partial(p, t) && partial != at);
            at += up(t->n, SUMSQ_BLOCK);
            partial = is_partial(p, t) ? at : partial;
            if (is_kv(t, 1)) {
                int64_t q = param_shared_kv(p, t);
                b->sum[b->sums++] = (PartialSum){t->offset + q, t->n - q, &p->grid->kv};
            }
        }
    if (partial > b->at)
        b->sum[b->sums++] = (PartialSum){b->at, partial - b->at, &p->grid->axis[AXIS_TP]};
    const Comm *shard = b->expert ? &p->grid->expert[EXPERT_SHARD] : &p->grid->shard;
    b->n = up(at - b->at, SUMSQ_BLOCK * (int64_t)shard->size);
    b->phase = kind == BUCKET_W ? PHASE_W : PHASE_D;
}

/* ---- opening ---- */

static void add_part(Params *p, PartKind kind, int layer, int chunk, int copy_wte)
{
    Part *part = &p->part[p->nparts++];
    *part = (Part){.kind = kind, .layer = layer, .chunk = chunk, .first = p->nparam};
    for (int id = 0; id < PARAM_KINDS; id++) {
        int first = p->grid->expert[EXPERT_EP].rank * p->experts;
        part->param[id] = -1;
        if (!(param_defs[id].part == kind && param_defs[id].exists(p->cfg, layer)) &&
            !(copy_wte && id == P_WTE))
            continue;
        part->param[id] = p->nparam;
        for (int i = 0; i < (is_experts((ParamId)id) ? p->experts : 1); i++)
            add_param(p, part, (ParamId)id, is_experts((ParamId)id) ? first + i : -1);
    }
}

static Bucket *make_buckets(Params *p, int *n)
{
    Bucket *bucket = xcalloc((size_t)p->nparts * BUCKET_KINDS + 1, sizeof *bucket);
    *n = 0;
    for (int i = 0; i < p->nparts; i++) {
        Part *part = &p->part[i];
        part->bucket = *n;
        for (int kind = 0; kind < BUCKET_KINDS; kind++) {
            Bucket *b = &bucket[*n];
            *b = (Bucket){.at = *n ? b[-1].at + b[-1].n : 0};
            add_bucket(p, part, (BucketKind)kind, b, *n);
            *n += b->n > 0;
        }
        part->buckets = *n - part->bucket;
    }
    return bucket;
}

/* The part of this kind on this rank; -1: none. */
static int find_part(const Params *p, PartKind kind)
{
    for (int i = 0; i < p->nparts; i++)
        if (p->part[i].kind == kind)
            return i;
    return -1;
}

static int by_place(const void *a, const void *b)
{
    int64_t x = ((const GradProduct *)a)->at, y = ((const GradProduct *)b)->at;
    return (x > y) - (x < y);
}

/* Lists the parameters whose gradients come from products. The word embedding is one because of a head
 * that is tied to it; before the embedding itself adds, a gradient without a value is cleared. */
static void list_products(Params *p)
{
    static const ParamId ids[] = {P_WTE, P_QKV, P_PROJ, P_FC1, P_FC2, P_SFC1, P_SFC2, P_EFC1, P_EFC2, P_HEAD};
    GradProduct *list = xcalloc((size_t)p->nparam + 1, sizeof *list);
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        for (size_t k = 0; k < sizeof ids / sizeof *ids; k++)
            if (t->id == ids[k])
                list[n++] = (GradProduct){.at = t->offset, .n = t->n, .bucket = t->bucket};
    }
    qsort(list, (size_t)n, sizeof *list, by_place);
    for (int i = 0; i < p->nparam; i++) {
        GradProduct key = {.at = p->param[i].offset};
        const GradProduct *at = bsearch(&key, list, (size_t)n, sizeof *list, by_place);
        p->param[i].product = at ? (int)(at - list) : -1;
    }
    data_products(&p->data, list, n);
}

void params_open(Params *p, const Config *cfg, Grid *grid, const Placement *pl)
{
    int pp = grid->index[AXIS_PP], buckets, tied = -1;
    *p = (Params){.cfg = cfg, .grid = grid, .type = (Dtype)cfg->params_dtype, .nchunks = pl->v};
    p->real = p->type == F64 ? F64 : F32;
    if (cfg->num_moe_experts != CFG_ABSENT)
        p->experts = (int)cfg->num_moe_experts / grid->expert[EXPERT_EP].size;
    size_t most = 2, of_experts = (P_EFC2B - P_EFC1 + 1) * (size_t)p->experts;
    for (int c = 0; c < pl->v; c++)
        most += (size_t)placement_at(pl, pp, c)->layers;
    p->part = xcalloc(most, sizeof *p->part);
    p->param = xcalloc(most * (PARAM_KINDS + of_experts), sizeof *p->param);
    p->chunk = xcalloc((size_t)pl->v, sizeof *p->chunk);
    int one_rank = pl->stage[0].pp_rank == pl->stage[pl->n - 1].pp_rank;
    int other_end = !cfg->untie_embeddings_and_output_weights && !one_rank;
    for (int c = 0; c < pl->v; c++) {
        const StagePlace *place = placement_at(pl, pp, c);
        p->chunk[c].first = p->nparts;
        if (place->embedding)
            add_part(p, PART_EMBEDDING, -1, c, 0);
        for (int i = 0; i < place->layers; i++)
            add_part(p, PART_LAYER, place->first_layer + i, c, 0);
        if (place->loss)
            add_part(p, PART_HEAD, -1, c, other_end);
        p->chunk[c].count = p->nparts - p->chunk[c].first;
    }
    Bucket *bucket = make_buckets(p, &buckets);
    for (int i = 0; other_end && i < p->nparam; i++)
        if (p->param[i].id == P_WTE)
            tied = p->param[i].bucket;
    data_open(&p->data, (Sharding)cfg->data_parallel_sharding_strategy, grid, p->type, p->real, bucket,
              buckets, tied);
    Dtype kept = cfg->main_grads_dtype == MAIN_GRADS_DTYPE_BF16 ? BF16 : p->real;
    data_gradients(&p->data, kept, cfg->grad_reduce_in_bf16 ? BF16 : kept);
    data_moments(&p->data, (MomentType)cfg->exp_avg_dtype, (MomentType)cfg->exp_avg_sq_dtype);
    list_products(p);
    PartRange *unit = xcalloc((size_t)p->nparts + 1, sizeof *unit);
    for (int i = 0; i < p->nparts; i++)
        unit[i] = (PartRange){i, 1};
    params_units(p, unit, p->nparts);
    free(unit);
}

void params_close(Params *p)
{
    data_close(&p->data);
    free(p->part);
    free(p->param);
    free(p->chunk);
    *p = (Params){0};
}

void params_units(Params *p, const PartRange *unit, int n)
{
    Unit *made = xcalloc((size_t)n + 1, sizeof *made);
    int next = 0, head, embedding = find_part(p, PART_EMBEDDING);
    ParamId id;
    params_head(p, &head, &id);
    for (int i = 0; i < n; i++) {
        const Part *first = &p->part[unit[i].first], *last = first + unit[i].count - 1;
        BUG_ON(unit[i].first != next || unit[i].count < 1);
        next += unit[i].count;
        made[i] = (Unit){first->bucket, last->bucket + last->buckets - first->bucket, -1};
        /* tied embeddings: the head's unit also reads the embedding's bucket */
        if (last->kind == PART_HEAD && head == embedding && unit[i].first > head)
            made[i].also = p->param[p->part[head].param[P_WTE]].bucket;
    }
    BUG_ON(next != p->nparts);
    data_units(&p->data, made, n);
}

void params_head(const Params *p, int *part, ParamId *id)
{
    *part = find_part(p, PART_HEAD);
    *id = p->cfg->untie_embeddings_and_output_weights ? P_HEAD : P_WTE;
    if (*part >= 0 && p->part[*part].param[*id] < 0)
        *part = find_part(p, PART_EMBEDDING);
}

/* Parameters of the model with `experts` experts in a layer that has experts. */
static int64_t count_with(const Config *cfg, int64_t experts)
{
    int64_t n = 0;
    for (int id = 0; id < PARAM_KINDS; id++) {
        int64_t segment[MAX_SEGMENTS], cols, rows = 0, times = 0;
        int in_layer = param_defs[id].part == PART_LAYER;
        for (int layer = 0; layer < (in_layer ? cfg->num_layers : 1); layer++)
            times += param_defs[id].exists(cfg, in_layer ? layer : -1);
        if (!times)
            continue;
        param_defs[id].shape(cfg, segment, &cols);
        for (int s = 0; s < MAX_SEGMENTS; s++)
            rows += segment[s];
        n += rows * (cols ? cols : 1) * times * (is_experts((ParamId)id) ? experts : 1);
    }
    return n;
}

int64_t params_count(const Config *cfg) { return count_with(cfg, cfg->num_moe_experts); }
int64_t params_active(const Config *cfg) { return count_with(cfg, cfg->moe_router_topk); }
