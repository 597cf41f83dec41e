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
#define GATED act_gated((ActKind)c->activation)
#define LAYERNORM (c->normalization == NORMALIZATION_LAYERNORM)
#define SEG(...) {__VA_ARGS__}

#define X(id, name, part, condition, segments, columns, ...)                                                 \
    static int exists_##id(const Config *c)                                                                  \
    {                                                                                                        \
        (void)c;                                                                                             \
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

/* ---- a rank's slice of a tensor ---- */

static int tp_size(const Params *p) { return p->grid->size[AXIS_TP]; }
static int tp_rank(const Params *p) { return p->grid->index[AXIS_TP]; }

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
        int64_t multiple = p->cfg->make_vocab_size_divisible_by * tp_size(p);
        n = (n + multiple - 1) / multiple * multiple;
    }
    int share = is_kv(t, s) ? kv_share(p) : 1;
    *rows = n * share / tp_size(p);
    *first = tp_rank(p) / share * *rows;
}

static int64_t counted(const Params *p, const Param *t)
{
    int64_t first, rows;
    if (t->copy || (t->def->cut == CUT_NONE && tp_rank(p)))
        return 0;
    if (!is_kv(t, 1) || tp_rank(p) % kv_share(p) == 0)
        return t->n;
    slice(p, t, 0, &first, &rows);
    return rows * t->local_cols;
}

int param_boxes(const Params *p, const Param *t, int64_t from, int64_t to, Box box[MAX_BOXES])
{
    int64_t global = 0, local = 0, C = t->local_cols, col0 = t->def->cut == CUT_COLS ? tp_rank(p) * C : 0;
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

/* ---- which tensors ---- */

static int part_number(const Config *c, PartKind kind, int layer)
{
    return kind == PART_EMBEDDING ? 0 : kind == PART_LAYER ? layer + 1 : (int)c->num_layers + 1;
}

void param_name(const Config *cfg, int number, char *name, int size)
{
    int layer = number / PARAM_KINDS - 1;
    const ParamDef *def = &param_defs[number % PARAM_KINDS];
    if (def->part == PART_LAYER)
        snprintf(name, (size_t)size, "decoder.layers.%d.%s", layer, def->name);
    else
        snprintf(name, (size_t)size, "%s", def->name);
    BUG_ON(layer > (int)cfg->num_layers);
}

static void add_param(Params *p, Part *part, ParamId id)
{
    const ParamDef *def = &param_defs[id];
    Param *t = &p->param[p->nparam];
    int layer = part->kind == PART_LAYER ? part->layer : -1;
    *t = (Param){.def = def, .id = id, .layer = layer, .copy = def->part != part->kind,
                 .number = part_number(p->cfg, def->part, layer) * PARAM_KINDS + (int)id};
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
    t->local_cols = def->cut == CUT_COLS ? t->cols / tp_size(p) : t->cols;
    t->n = t->local_rows * t->local_cols;
    t->counted = counted(p, t);
    part->param[id] = p->nparam++;
    part->count++;
}

/* ---- the flat space ---- */

/* Tensors of a part in the order of memory, bucket by bucket. Tensors whose gradients are partial sums
 * over the tensor group come first in their bucket, so that one message carries them. */
typedef enum { BUCKET_D, BUCKET_EMBEDDING, BUCKET_W, BUCKET_KINDS } BucketKind;
static const ParamId flat_order[BUCKET_KINDS][13] = {
    [BUCKET_D] = {P_QNORM, P_QNORMB, P_KNORM, P_KNORMB, P_LN1, P_LN1B, P_LN2, P_LN2B, P_LNF, P_LNFB, P_WPE,
                  P_HEAD, PARAM_KINDS},
    [BUCKET_EMBEDDING] = {P_WTE, PARAM_KINDS},
    [BUCKET_W] = {P_PROJB, P_FC2B, P_QKV, P_QKVB, P_PROJ, P_FC1, P_FC1B, P_FC2, PARAM_KINDS},
};

/* Whether a rank's gradient of t is a partial sum: a replicated tensor that each tensor rank applies to
 * its own heads, or with sequence parallelism to its own positions. */
static int is_partial(const Params *p, const Param *t)
{
    int head_norm = t->id == P_QNORM || t->id == P_QNORMB || t->id == P_KNORM || t->id == P_KNORMB;
    return head_norm || (p->cfg->sequence_parallel && t->def->cut == CUT_NONE);
}

static int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

static void add_bucket(Params *p, Part *part, BucketKind kind, Bucket *b, int index)
{
    int64_t at = b->at, partial = b->at;
    for (const ParamId *id = flat_order[kind]; *id != PARAM_KINDS; id++) {
        if (part->param[*id] < 0)
            continue;
        Param *t = &p->param[part->param[*id]];
        t->offset = at;
        t->bucket = index;
        BUG_ON(is_partial(p, t) && partial != at);
        at += up(t->n, SUMSQ_BLOCK);
        partial = is_partial(p, t) ? at : partial;
        if (is_kv(t, 1)) {
            int64_t first, q;
            slice(p, t, 0, &first, &q);
            q *= t->local_cols;
            b->sum[b->sums++] = (PartialSum){t->offset + q, t->n - q, &p->grid->kv};
        }
    }
    if (partial > b->at)
        b->sum[b->sums++] = (PartialSum){b->at, partial - b->at, &p->grid->axis[AXIS_TP]};
    b->n = up(at - b->at, SUMSQ_BLOCK * (int64_t)p->grid->shard.size);
    b->phase = kind == BUCKET_W ? PHASE_W : PHASE_D;
}

/* ---- opening ---- */

static void add_part(Params *p, PartKind kind, int layer, int chunk, int copy_wte)
{
    Part *part = &p->part[p->nparts++];
    *part = (Part){.kind = kind, .layer = layer, .chunk = chunk, .first = p->nparam};
    for (int id = 0; id < PARAM_KINDS; id++) {
        part->param[id] = -1;
        if ((param_defs[id].part == kind && param_defs[id].exists(p->cfg)) || (copy_wte && id == P_WTE))
            add_param(p, part, (ParamId)id);
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

void params_open(Params *p, const Config *cfg, Grid *grid, const Placement *pl)
{
    int pp = grid->index[AXIS_PP], buckets, tied = -1;
    *p = (Params){.cfg = cfg, .grid = grid, .type = (Dtype)cfg->params_dtype, .nchunks = pl->v};
    p->real = p->type == F64 ? F64 : F32;
    size_t most = (size_t)cfg->num_layers + 2;
    p->part = xcalloc(most, sizeof *p->part);
    p->param = xcalloc(most * PARAM_KINDS, sizeof *p->param);
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

int64_t params_count(const Config *cfg)
{
    int64_t n = 0;
    for (int id = 0; id < PARAM_KINDS; id++) {
        int64_t segment[MAX_SEGMENTS], cols, rows = 0;
        if (!param_defs[id].exists(cfg))
            continue;
        param_defs[id].shape(cfg, segment, &cols);
        for (int s = 0; s < MAX_SEGMENTS; s++)
            rows += segment[s];
        n += rows * (cols ? cols : 1) * (param_defs[id].part == PART_LAYER ? cfg->num_layers : 1);
    }
    return n;
}
