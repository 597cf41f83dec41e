#include "model.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void make_groups(Model *m)
{
    const Config *c = m->cfg;
    int layers = (int)c->num_layers, full = c->recompute_granularity == RECOMPUTE_GRANULARITY_FULL;
    int uniform = full && c->recompute_method == RECOMPUTE_METHOD_UNIFORM;
    int block = full && c->recompute_method == RECOMPUTE_METHOD_BLOCK, n = full ? (int)c->recompute_num_layers : 1;
    m->group = xcalloc((size_t)layers, sizeof *m->group);
    for (int first = 0; first < layers; m->ngroups++) {
        int count = uniform ? n < layers - first ? n : layers - first : 1;
        m->group[m->ngroups] = (LayerGroup){first, count, uniform || (block && first < n)};
        first += count;
    }
}

static int recomputes(const Config *c, const char *module)
{
    if (c->recompute_granularity != RECOMPUTE_GRANULARITY_SELECTIVE)
        return 0;
    for (int i = 0; i < c->recompute_modules.n; i++)
        if (!strcmp(c->recompute_modules.v[i], module))
            return 1;
    return 0;
}

static void make_rope(Model *m, Arena *run)
{
    const Config *c = m->cfg;
    if (c->position_embedding_type != POSITION_EMBEDDING_TYPE_ROPE)
        return;
    int64_t rot = (int64_t)((double)m->D * c->rotary_percent), half = rot / 2;
    m->rope = mat_take(run, c->max_position_embeddings, rot, m->real);
    if (!m->rope.p)
        return;
    for (int64_t p = 0; p < m->rope.rows; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(c->rotary_base, -2.0 * (double)i / (double)rot);
            if (m->real == F64) {
                double *row = (double *)m->rope.p + p * rot;
                row[i] = cos(angle), row[half + i] = sin(angle);
            } else {
                float *row = (float *)m->rope.p + p * rot;
                row[i] = (float)cos(angle), row[half + i] = (float)sin(angle);
            }
        }
}

static void batch_layout(Model *m, Slot *s, int64_t B, int64_t S)
{
    const Config *c = m->cfg;
    Batch *b = &s->batch;
    size_t T = (size_t)(B * S);
    *b = (Batch){.batch = B, .seq = S};
    b->tokens = arena_take(&s->mem, T * 4);
    b->labels = arena_take(&s->mem, T * 4);
    b->position = arena_take(&s->mem, T * 4);
    b->doc_start = c->reset_attention_mask ? arena_take(&s->mem, T * 4) : NULL;
    b->loss_mask = arena_take(&s->mem, T * 4);
    b->sample = arena_take(&s->mem, (size_t)B * 8);
}

/* Copies a microbatch into its slot, which outlives the loader's buffer. src NULL: counting. */
static void batch_keep(Model *m, Slot *s, const Batch *src)
{
    int64_t B = src ? src->batch : m->cfg->micro_batch_size, S = src ? src->seq : m->cfg->seq_length;
    size_t T = (size_t)(B * S);
    s->mem.used = 0;
    batch_layout(m, s, B, S);
    if (!src)
        return;
    memcpy(s->batch.tokens, src->tokens, T * 4);
    memcpy(s->batch.labels, src->labels, T * 4);
    memcpy(s->batch.position, src->position, T * 4);
    memcpy(s->batch.loss_mask, src->loss_mask, T * 4);
    memcpy(s->batch.sample, src->sample, (size_t)B * 8);
    if (s->batch.doc_start)
        memcpy(s->batch.doc_start, src->doc_start, T * 4);
    for (size_t i = 0; i < T; i++)
        m->mask_sum += src->loss_mask[i];
}

void model_open(Model *m, const Config *cfg, const Grid *grid, Device *dev, Params *params, int slots, Arena *run,
                size_t slot_bytes, size_t scratch_bytes)
{
    int tp = grid->size[AXIS_TP];
    *m = (Model){.cfg = cfg, .grid = grid, .dev = dev, .params = params, .tp = (Comm *)&grid->axis[AXIS_TP],
                 .H = cfg->hidden_size, .A = cfg->num_attention_heads / tp, .K = cfg->num_query_groups / tp,
                 .D = cfg->kv_channels, .F = cfg->ffn_hidden_size / tp, .V = cfg->padded_vocab_size / tp,
                 .type = params->type, .real = params->real, .nslots = slots, .loss_scale = 1};
    m->vocab0 = m->tp->rank * m->V;
    m->Vvalid = cfg->vocab_size - m->vocab0 < m->V ? cfg->vocab_size - m->vocab0 : m->V;
    m->keep_ln = !recomputes(cfg, "layernorm");
    m->keep_attn = !recomputes(cfg, "core_attn");
    m->keep_mlp = !recomputes(cfg, "mlp");
    make_groups(m);
    make_rope(m, run);
    m->slot = xcalloc((size_t)slots, sizeof *m->slot);
    m->redo = xcalloc((size_t)cfg->num_layers, sizeof *m->redo);
    m->scratch = (Arena){.name = "scratch", .size = scratch_bytes, .base = arena_take(run, scratch_bytes)};
    for (int i = 0; i < slots; i++) {
        Slot *s = &m->slot[i];
        s->in = xcalloc((size_t)m->ngroups + 1, sizeof *s->in);
        s->layer = xcalloc((size_t)cfg->num_layers, sizeof *s->layer);
        s->mem = (Arena){.name = "activations", .size = slot_bytes, .base = arena_take(run, slot_bytes)};
    }
}

void model_close(Model *m)
{
    for (int i = 0; i < m->nslots; i++) {
        free(m->slot[i].in);
        free(m->slot[i].layer);
    }
    free(m->slot);
    free(m->redo);
    free(m->group);
    *m = (Model){0};
}

Dropout model_dropout(const Model *m, const Slot *s, int site, int layer)
{
    static const char *const name[] = {"embedding", "attention", "proj", "mlp"};
    uint64_t key = rng_key((uint64_t)m->cfg->seed, name[site]);
    return (Dropout){.p = m->evaluating ? 0 : m->cfg->hidden_dropout, .key = hash64(&layer, sizeof layer, key),
                     .sample = s->batch.sample, .seq = s->batch.seq};
}

static void layer_fwd(Model *m, Slot *s, int layer, LayerActs *a, Arena *keep, Mat x, Mat y)
{
    a->x = x;
    attention_fwd(m, s, layer + 1, a, keep);
    mlp_fwd(m, s, layer + 1, a, keep, y);
}

/* Runs all layers; what the backward needs stays in the slot. Returns the output of the last. */
static Mat layers_fwd(Model *m, Slot *s)
{
    int64_t T = s->batch.batch * s->batch.seq;
    Mat x = s->in[0] = mat_take(&s->mem, T, m->H, m->type);
    embedding_fwd(m, s, x);
    for (int g = 0; g < m->ngroups; g++) {
        const LayerGroup *group = &m->group[g];
        size_t mark = m->scratch.used;
        s->in[g + 1] = mat_take(&s->mem, T, m->H, m->type);
        for (int i = 0; i < group->count; i++) {
            int last = i == group->count - 1, layer = group->first + i;
            Mat y = last ? s->in[g + 1] : mat_take(&m->scratch, T, m->H, m->type);
            size_t temporary = m->scratch.used;
            layer_fwd(m, s, layer, &s->layer[layer], group->recompute ? &m->scratch : &s->mem, x, y);
            arena_reset(&m->scratch, temporary);
            x = y;
        }
        arena_reset(&m->scratch, mark);
    }
    return x;
}

void model_forward(void *model, int chunk, int mb)
{
    Model *m = model;
    Slot *s = &m->slot[mb % m->nslots];
    BUG_ON(chunk != 0);
    batch_keep(m, s, m->next_batch ? m->next_batch(m->batch_ctx, mb) : NULL);
    layers_fwd(m, s);
}

/* dx from dy, and the layer's weight gradients. */
static void layer_bwd(Model *m, Slot *s, int layer, LayerActs *a, Mat dx, Mat dy)
{
    int part = layer + 1;
    LayerGrads grads;
    size_t mark = m->scratch.used;
    attention_restore(m, s, part, a);
    mlp_restore(m, part, a);
    Mat dx1 = mat_take(&m->scratch, dy.rows, m->H, m->type);
    mlp_bwd(m, s, part, a, &grads, dx1, dy, 1);
    attention_bwd(m, s, part, a, &grads, dx, dx1, 1);
    arena_reset(&m->scratch, mark);
}

/* The forward of a group again, keeping in scratch what its backward needs. */
static void group_redo(Model *m, Slot *s, const LayerGroup *group, Mat x)
{
    for (int i = 0; i < group->count; i++) {
        Mat y = mat_take(&m->scratch, x.rows, m->H, m->type);
        layer_fwd(m, s, group->first + i, &m->redo[i], &m->scratch, x, y);
        x = y;
    }
}

void model_backward(void *model, int chunk, int mb)
{
    Model *m = model;
    Slot *s = &m->slot[mb % m->nslots];
    BUG_ON(chunk != 0);
    int64_t T = s->batch.batch * s->batch.seq;
    size_t start = m->scratch.used;
    Mat none = {.type = m->real}, dy = mat_take(&m->scratch, T, m->H, m->type);
    Mat dx = mat_take(&m->scratch, T, m->H, m->type);
    head_run(m, s, s->in[m->ngroups], dy, none);
    for (int g = m->ngroups - 1; g >= 0; g--) {
        const LayerGroup *group = &m->group[g];
        size_t mark = m->scratch.used;
        if (group->recompute)
            group_redo(m, s, group, s->in[g]);
        for (int i = group->count - 1; i >= 0; i--) {
            LayerActs *a = group->recompute ? &m->redo[i] : &s->layer[group->first + i];
            layer_bwd(m, s, group->first + i, a, dx, dy);
            Mat swap = dx;
            dx = dy;
            dy = swap;
        }
        arena_reset(&m->scratch, mark);
    }
    embedding_bwd(m, s, dy);
    arena_reset(&m->scratch, start);
}

void model_begin(Model *m)
{
    m->loss_sum = m->mask_sum = 0;
    data_begin(&m->params->data);
}

void model_evaluate(Model *m, const Batch *b, Mat logits)
{
    Slot *s = &m->slot[0];
    int before = m->evaluating;
    m->evaluating = 1;
    batch_keep(m, s, b);
    Mat x = layers_fwd(m, s), none = {.type = m->type};
    head_run(m, s, x, none, logits);
    m->evaluating = before;
}

void model_extend(Model *m, KvCache *cache, const int32_t *tokens, int64_t n, Mat logits)
{
    Slot *s = &m->slot[0];
    s->mem.used = 0;
    m->evaluating = 1;
    batch_layout(m, s, 1, n);
    s->batch.doc_start = NULL;
    for (int64_t i = 0; tokens && i < n; i++) {
        s->batch.tokens[i] = tokens[i];
        s->batch.position[i] = (int32_t)(cache->length + i);
    }
    s->cache = cache;
    Mat x = layers_fwd(m, s);
    cache->length += n;
    s->cache = NULL;
    head_logits(m, mat_rows(x, n - 1, 1), logits);
}
