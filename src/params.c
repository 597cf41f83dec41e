#include "params.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The words that the table's expressions use. */
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

#define X(id, name, part, condition, segments, columns, ...)                                                           \
    static int exists_##id(const Config *c)                                                                            \
    {                                                                                                                  \
        (void)c;                                                                                                       \
        return (condition);                                                                                            \
    }                                                                                                                  \
    static void shape_##id(const Config *c, int64_t segment[MAX_SEGMENTS], int64_t *cols)                              \
    {                                                                                                                  \
        const int64_t rows[MAX_SEGMENTS] = segments;                                                                   \
        memcpy(segment, rows, sizeof rows);                                                                            \
        *cols = (columns);                                                                                             \
        (void)c;                                                                                                       \
    }
PARAMS(X)
#undef X

const ParamDef param_defs[PARAM_KINDS] = {
#define X(id, name, part, condition, segments, columns, cut, init, decay, gpt2, llama)                                 \
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

/* Every tensor starts on a cache line, whatever the storage type; the flat arrays are whole rows of FLAT_COLS, so that
 * ops over all of them share out by rows. */
#define ELEM_ALIGN 64
#define FLAT_COLS 4096

static void add_param(Params *p, Part *part, ParamId id)
{
    const ParamDef *def = &param_defs[id];
    int tp = p->grid->size[AXIS_TP];
    Param *t = &p->param[p->nparam];
    *t = (Param){.def = def, .id = id, .layer = part->kind == PART_LAYER ? part->layer : -1};
    if (part->kind == PART_LAYER)
        snprintf(t->name, sizeof t->name, "decoder.layers.%d.%s", part->layer, def->name);
    else
        snprintf(t->name, sizeof t->name, "%s", def->name);
    def->shape(p->cfg, t->segment, &t->cols);
    t->ndim = t->cols ? 2 : 1;
    t->cols = t->cols ? t->cols : 1;
    for (int s = 0; s < MAX_SEGMENTS; s++)
        t->rows += t->segment[s];
    int64_t rows = t->rows, multiple = p->cfg->make_vocab_size_divisible_by * tp;
    if (id == P_WTE || id == P_HEAD)
        rows = (rows + multiple - 1) / multiple * multiple;
    t->local_rows = def->cut == CUT_ROWS ? rows / tp : rows;
    t->local_cols = def->cut == CUT_COLS ? t->cols / tp : t->cols;
    t->n = t->local_rows * t->local_cols;
    t->offset = p->elems;
    p->elems += (t->n + ELEM_ALIGN - 1) / ELEM_ALIGN * ELEM_ALIGN;
    part->param[id] = p->nparam++;
    part->count++;
}

void params_open(Params *p, const Config *cfg, const Grid *grid)
{
    int layers = (int)cfg->num_layers;
    *p = (Params){.cfg = cfg, .grid = grid, .type = (Dtype)cfg->params_dtype};
    p->real = p->type == F64 ? F64 : F32;
    p->nparts = layers + 2;
    p->part = xcalloc((size_t)p->nparts, sizeof *p->part);
    p->param = xcalloc((size_t)(layers + 2) * PARAM_KINDS, sizeof *p->param);
    for (int i = 0; i < p->nparts; i++) {
        Part *part = &p->part[i];
        part->kind = i == 0 ? PART_EMBEDDING : i == p->nparts - 1 ? PART_HEAD : PART_LAYER;
        part->layer = i - 1;
        part->first = p->nparam;
        for (int id = 0; id < PARAM_KINDS; id++) {
            part->param[id] = -1;
            if (param_defs[id].part == part->kind && param_defs[id].exists(cfg))
                add_param(p, part, (ParamId)id);
        }
    }
    p->elems = (p->elems + FLAT_COLS - 1) / FLAT_COLS * FLAT_COLS;
}

void params_close(Params *p)
{
    free(p->part);
    free(p->param);
    *p = (Params){0};
}

void params_layout(Params *p, Arena *run, int gradients, int moments)
{
    size_t real = (size_t)p->elems * dtype_size(p->real);
    p->weight = p->master = arena_take(run, (size_t)p->elems * dtype_size(p->type));
    if (!gradients)
        return;
    p->grad = arena_take(run, real);
    if (p->type != p->real)
        p->master = arena_take(run, real);
    for (int i = 0; i < moments; i++)
        p->moment[i] = arena_take(run, real);
}

int param_boxes(const Params *p, const Param *t, Box box[MAX_SEGMENTS])
{
    int tp = p->grid->size[AXIS_TP], r = p->grid->index[AXIS_TP], n = 0;
    int64_t global = 0, local = 0;
    for (int s = 0; s < MAX_SEGMENTS && t->segment[s]; s++) {
        int64_t mine = t->local_rows, first = r * mine;    /* one segment: the padded slice, trimmed below */
        if (t->segment[s] != t->rows) {
            mine = t->def->cut == CUT_ROWS ? t->segment[s] / tp : t->segment[s];
            first = t->def->cut == CUT_ROWS ? r * mine : 0;
        } else if (t->def->cut != CUT_ROWS) {
            first = 0;
        }
        int64_t rows = first + mine > t->segment[s] ? t->segment[s] - first : mine;
        if (rows > 0)
            box[n++] = (Box){global + first, t->def->cut == CUT_COLS ? r * t->local_cols : 0, rows, t->local_cols,
                             t->offset + local * t->local_cols, t->local_cols};
        global += t->segment[s];
        local += mine;
    }
    return n;
}

typedef struct { const Params *p; const Param *t; Box box; uint64_t key; double std; } InitWork;

/* Rows of one item: small enough to share a tensor out, the same whatever the number of threads. */
#define INIT_ROWS 16
#define INIT_COLS 256

static void init_rows(void *ctx, int64_t item, int thread)
{
    const InitWork *w = ctx;
    double x[INIT_COLS];
    (void)thread;
    int64_t end = (item + 1) * INIT_ROWS < w->box.rows ? (item + 1) * INIT_ROWS : w->box.rows;
    for (int64_t r = item * INIT_ROWS; r < end; r++)
        for (int64_t c = 0; c < w->box.cols; c += INIT_COLS) {
            int64_t n = w->box.cols - c < INIT_COLS ? w->box.cols - c : INIT_COLS, at = w->box.at + r * w->box.ld + c;
            uint64_t index = (uint64_t)((w->box.row0 + r) * w->t->cols + w->box.col0 + c);
            if (w->t->def->init != INIT_ONE)
                rng_normals(w->key, 0, index, n, x);
            for (int64_t i = 0; i < n; i++) {
                double value = w->t->def->init == INIT_ONE ? 1 : w->std * x[i];
                if (w->p->real == F64)
                    ((double *)w->p->master)[at + i] = value;
                else
                    ((float *)w->p->master)[at + i] = (float)value;
            }
        }
}

void params_init(Params *p, Device *d)
{
    d->zero(d, p->master, (size_t)p->elems * dtype_size(p->real));
    for (int i = 0; i < p->nparam; i++) {
        Param *t = &p->param[i];
        double std = p->cfg->init_method_std;
        if (t->def->init == INIT_ZERO)
            continue;
        if (t->def->init == INIT_SCALED)
            std /= sqrt(2.0 * (double)p->cfg->num_layers);
        Box box[MAX_SEGMENTS];
        int n = param_boxes(p, t, box);
        for (int b = 0; b < n; b++) {
            InitWork w = {p, t, box[b], rng_key((uint64_t)p->cfg->seed, t->name), std};
            pool_run(d->pool, init_rows, &w, (box[b].rows + INIT_ROWS - 1) / INIT_ROWS);
        }
    }
    params_refresh(p, d);
}

void params_refresh(Params *p, Device *d)
{
    if (p->weight != p->master)
        d->copy(d, mat(p->weight, p->elems / FLAT_COLS, FLAT_COLS, p->type),
                mat(p->master, p->elems / FLAT_COLS, FLAT_COLS, p->real));
}

static Mat view(const Params *p, const void *flat, Dtype type, int part, ParamId id)
{
    int i = p->part[part].param[id];
    if (i < 0)
        return (Mat){.type = type};
    const Param *t = &p->param[i];
    char *at = flat ? (char *)flat + (size_t)t->offset * dtype_size(type) : NULL;
    return t->ndim == 1 ? mat(at, 1, t->n, type) : mat(at, t->local_rows, t->local_cols, type);
}

Mat params_weight(const Params *p, int part, ParamId id) { return view(p, p->weight, p->type, part, id); }
Mat params_grad(const Params *p, int part, ParamId id) { return view(p, p->grad, p->real, part, id); }

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
