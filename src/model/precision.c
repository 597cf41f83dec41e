/* precision -- how the linear layers are multiplied: as they are stored, or in FP8
 *
 * With delayed scaling a scale belongs to a whole tensor: at the end of a step all ranks that hold parts
 * of the tensor take the maximum of their magnitudes (as Transformer Engine does over tensor and data
 * groups). So the scales of a step, and those in a checkpoint, are the same in every layout but for the
 * rounding of the values that were cast.
 *
 * With blocks each block of a matrix has its own scale (device.h), found when it is cast. A rank of the
 * tensor group has whole blocks (config_rules.c), so that the scales of weights, inputs and gradients are
 * those of one rank; blocks of a weight gradient's factors reach over 128 or 32 tokens of a microbatch on
 * this rank.
 *
 * Weights change only between steps. Where a step has several microbatches, the FP8 copies that the
 * first one makes serve the others, for two bytes an element, where there is room (room.c); the last
 * layers go without first. A copy that is made anew has the same bits. Sharded weights are whole for one
 * unit at a time, so their copies are not kept.
 *
 * The experts of a layer have the scales of one linear layer together, so that an expert which no token has
 * visited for long has scales, too. The rows and weights of one expert are cast at a time. Copies of their
 * weights are not kept: with a scale from the matrix itself the next expert's cast replaces it. An expert
 * may have any number of rows, with blocks of 128 any multiple of four: the dispatch makes up the rest with
 * rows of zeros (expert.h). Sums over rows run over the next multiple of 16 or 32, filled up with zeros. The
 * ranks of tp and data together hold all experts of a layer. */
#include "fp8.h"
#include "model.h"
#include <stdlib.h>
#include <string.h>

static const struct { ParamId dense, moe; } weight_of[LINEARS] = {
    [LINEAR_QKV] = {P_QKV, P_QKV},    [LINEAR_PROJ] = {P_PROJ, P_PROJ},
    [LINEAR_FC1] = {P_FC1, P_EFC1},   [LINEAR_FC2] = {P_FC2, P_EFC2},
    [LINEAR_SFC1] = {P_SFC1, P_SFC1}, [LINEAR_SFC2] = {P_SFC2, P_SFC2}};

int64_t precision_linears(const Model *m) { return (int64_t)m->params->nparts * LINEARS; }
static int64_t scales(const Model *m) { return precision_linears(m) * LINEAR_SCALES; }

int precision_delayed(const Model *m)
{
    return m->cfg->fp8 != FP8_NONE && m->cfg->fp8_recipe == FP8_RECIPE_DELAYED;
}

/* The scaling of inputs and output gradients, but for delayed scales. */
static Fp8Scaling scaling_of(const Config *c)
{
    switch (c->fp8_recipe) {
    case FP8_RECIPE_BLOCKWISE: return FP8_VECTORS;
    case FP8_RECIPE_MXFP8:     return FP8_MX;
    default:                   return FP8_OWN;
    }
}

int64_t precision_rows_piece(const Config *c)
{
    return c->fp8 == FP8_NONE ? 1 : fp8_rows_piece(scaling_of(c));
}

int model_in_fp8(const Config *c, int layer)
{
    int edge = c->first_last_layers_bf16 && (layer < c->num_layers_at_start_in_bf16 ||
                                             layer >= c->num_layers - c->num_layers_at_end_in_bf16);
    return c->fp8 != FP8_NONE && layer >= 0 && !edge;
}

int model_layers_alike(const Config *c, int a, int b)
{
    return config_is_moe(c, a) == config_is_moe(c, b) && model_in_fp8(c, a) == model_in_fp8(c, b) &&
           !strcmp(config_context_kind(c, a), config_context_kind(c, b));
}

const Param *precision_weight(const Model *m, int64_t i)
{
    const Part *part = &m->params->part[i / LINEARS];
    int moe = config_is_moe(m->cfg, part->layer);
    int at = part->param[moe ? weight_of[i % LINEARS].moe : weight_of[i % LINEARS].dense];
    return model_in_fp8(m->cfg, part->layer) && at >= 0 ? &m->params->param[at] : NULL;
}

/* Whether FP8 copies of linear layer i are kept. */
static int is_kept(const Model *m, int64_t i)
{
    const Param *weight = precision_weight(m, i);
    return i < m->fp8.keep * LINEARS && weight && weight->expert < 0;
}

int precision_keeps(const Config *c)
{
    return c->fp8 != FP8_NONE && config_batch_most(c) > c->micro_batch_size * c->data_parallel_size &&
           c->data_parallel_sharding_strategy != DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS_PARAMS;
}

int precision_layers(const Config *c, const Params *p)
{
    int n = 0;
    for (int i = 0; i < p->nparts; i++)
        n += model_in_fp8(c, p->part[i].layer);
    return n;
}

/* The number of leading parts whose weights have copies. */
static int keep_before(const Model *m, int recast)
{
    int keep = precision_keeps(m->cfg) ? m->params->nparts : 0;
    for (; keep > 0 && recast > 0; keep--)
        recast -= model_in_fp8(m->cfg, m->params->part[keep - 1].layer);
    return keep;
}

void precision_open(Model *m, int recast, Arena *run)
{
    if (m->cfg->fp8 == FP8_NONE)
        return;
    m->fp8.scale = arena_take(run, (size_t)(2 * scales(m)) * sizeof *m->fp8.scale);
    m->fp8.seen = arena_take(run, (size_t)scales(m) * sizeof *m->fp8.seen);
    m->fp8.known = xcalloc((size_t)precision_linears(m) + 1, 1);
    m->fp8.keep = keep_before(m, recast);
    m->fp8.weight = m->fp8.keep ? xcalloc((size_t)precision_linears(m) + 1, sizeof *m->fp8.weight) : NULL;
    for (int64_t i = 0; i < m->fp8.keep * LINEARS; i++) {
        if (!is_kept(m, i))
            continue;
        const Param *w = precision_weight(m, i);
        const Fp8Scaling scaling = linear_weights(scaling_of(m->cfg));
        m->fp8.weight[i].plain = arena_take(run, fp8_bytes(w->local_rows, w->local_cols, scaling));
        m->fp8.weight[i].turned =
            m->data->gradients ? arena_take(run, fp8_bytes(w->local_cols, w->local_rows, scaling)) : NULL;
    }
}

void precision_begin(Model *m)
{
    for (int64_t i = 0; i < m->fp8.keep * LINEARS; i++)
        m->fp8.weight[i].there = 0;
}

void precision_close(Model *m)
{
    free(m->fp8.known);
    free(m->fp8.weight);
}

/* Whether linear layer i has the scales of a step before: 1 where no finite magnitude has set one. */
static int is_known(const Model *m, int64_t i)
{
    return m->fp8.known[i] || (m->fp8.steady && precision_delayed(m));
}

Precision model_precision(const Model *m, int part, LinearId which)
{
    /* generation is not multiplied in FP8: its number of rows is arbitrary */
    if (!model_in_fp8(m->cfg, m->params->part[part].layer) || m->now.cache)
        return as_stored;
    int64_t at = (int64_t)part * LINEARS + which;
    Fp8Scale *s =
        m->fp8.scale ? m->fp8.scale + (m->now.evaluating ? scales(m) : 0) + at * LINEAR_SCALES : NULL;
    int delayed = precision_delayed(m) && is_known(m, at) && !m->now.evaluating;
    return (Precision){s,
                       s ? s + 1 : NULL,
                       s ? s + 2 : NULL,
                       .fp8 = 1, .e4m3 = m->cfg->fp8 == FP8_E4M3,
                       .scaling = delayed ? FP8_DELAYED : scaling_of(m->cfg),
                       .watch = m->fp8.watch, .kept = is_kept(m, at) ? &m->fp8.weight[at] : NULL};
}

Fp8Turned model_turned(const Model *m, int part, const Pass *p, Arena *from, int64_t rows, int64_t cols)
{
    int kept = p->keep_w != &m->scratch && from == p->keep_w && rows == model_tokens(m);
    Precision precision = model_precision(m, part, LINEAR_FC1);
    if (!kept || !precision.fp8)
        return (Fp8Turned){0};
    return linear_turned(from, rows, cols, precision.scaling);
}

Fp8Turned model_turned_gradient(Model *m, int part, int64_t rows, int64_t cols, int weights)
{
    Precision precision = model_precision(m, part, LINEAR_FC1);
    if (!weights || m->tp.group.overlap || !precision.fp8)
        return (Fp8Turned){0};
    return linear_turned(&m->scratch, rows, cols, precision.scaling);
}

/* Turns the largest magnitudes of this rank's parts into those of the whole tensors. As integers, the
 * bits of non-negative floats have the order of the floats, so I32 maximum serves. */
static void agree(Model *m)
{
    const int64_t n = scales(m), apart = sizeof *m->fp8.scale / sizeof *m->fp8.seen;
    Mat all = mat(m->fp8.seen, n, 1, F32),
        each = {m->fp8.scale ? &m->fp8.scale->seen : NULL, n, 1, apart, F32};
    Comm *group[] = {&m->grid->axis[AXIS_TP], &m->grid->data};
    m->dev->copy(m->dev, all, each);
    for (int i = 0; i < 2; i++)
        group[i]->wait(group[i], group[i]->all_reduce(group[i], m->fp8.seen, n, I32, OP_MAX));
    m->dev->copy(m->dev, each, all);
}

/* Gives every scale the largest number of its format, which a cast sets, too: fp8_next passes over a scale
 * that this process has not cast with, and a rank's own experts may have had no tokens where another rank's
 * had. */
static void set_formats(Model *m)
{
    const size_t bytes = (size_t)scales(m) * sizeof *m->fp8.scale;
    Fp8Scale *s = xcalloc(1, bytes + 1);
    m->dev->get(m->dev, s, m->fp8.scale, bytes);
    for (int64_t i = 0; i < precision_linears(m); i++)
        for (int k = 0; k < LINEAR_SCALES && precision_weight(m, i); k++)
            s[i * LINEAR_SCALES + k].largest =
                fp8_largest(k == LINEAR_SCALES - 1 && m->cfg->fp8 != FP8_E4M3 ? E5M2 : E4M3);
    m->dev->put(m->dev, m->fp8.scale, s, bytes);
    free(s);
    m->fp8.formats = 1;
}

void model_next_scales(Model *m)
{
    const Config *c = m->cfg;
    if (!precision_delayed(m))
        return;
    m->dev->wait_snapshots(m->dev);            /* fp8_next overwrites what a save may still copy */
    if (!m->fp8.formats)
        set_formats(m);
    agree(m);
    m->dev->fp8_next(m->dev, m->fp8.scale, scales(m), c->fp8_amax_history_len,
                     c->fp8_amax_compute_algo == FP8_AMAX_COMPUTE_ALGO_MOST_RECENT);
    if (!m->fp8.steady)
        memset(m->fp8.known, 1, (size_t)precision_linears(m));
}
