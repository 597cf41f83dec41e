/* meter -- a small model's step with a clock around every op */
#include "meter.h"
#include "balance.h"
#include "cost.h"
#include <stddef.h>
#include <stdlib.h>

/* The functions of the run's device and tensor group are replaced by ones that call and time them. */
struct Meter {
    Run run;
    Config cfg;
    int layers;                /* of the only stage */
    BatchStep batch;
    Batch tokens;
    Comm group;                /* the tensor group as it was */
    Device cpu;                /* the device as it was */
    Device sizes;              /* a device that reports the FLOPs and bytes of an op to sink */
    CostSink sink;
    Cost cost;                 /* of the last op */
    int inside;                /* bool: an operation runs; operations that it calls are part of it */
    Metrics metrics;
    Call *call;                /* [n] of the last step */
    int n;
    float *took;               /* [steps][n] s */
    int steps;                 /* recorded */
};

#define LAYERS 2               /* least layers; there are more until the state is STATE bytes */
#define STATE (128 << 20)      /* bytes of parameters, gradients and moments: more than caches hold */
#define TOKENS 2048            /* most tokens of a microbatch of several sequences */

int meter_is_product(OpKind w)
{
    return w == OPKIND_matmul || w == OPKIND_linear || w == OPKIND_attention_fwd || w == OPKIND_attention_bwd;
}

/* ---- the device ---- */

static Meter *meter_of(Device *d) { return (Meter *)((char *)d - offsetof(Meter, run.dev)); }

static void keep_cost(void *meter, const Cost *c) { ((Meter *)meter)->cost = *c; }

static void record(Meter *m, OpKind w, double start, double end)
{
    double size = meter_is_product(w) ? m->cost.flops : m->cost.bytes;
    m->call = xgrow(m->call, m->n, sizeof *m->call);
    m->call[m->n++] = (Call){w, size, m->cost.bytes, end - start};
}

/* Operations that the CPU composes of others, which are timed instead. */
static int composed(OpKind w)
{
    return w == OPKIND_linear_act_fwd || w == OPKIND_linear_act_bwd_x || w == OPKIND_linear_bwd_w;
}

#define X(name, params, names) \
    static void metered_##name params \
    { \
        Meter *m = meter_of(d); \
        double start = now(); \
        if (composed(OPKIND_##name)) { \
            m->cpu.name names; \
            return; \
        } \
        m->inside++; \
        m->cpu.name names; \
        double end = now(); \
        if (--m->inside) \
            return; \
        m->cost = (Cost){0}; \
        d = &m->sizes; \
        d->name names; \
        record(m, OPKIND_##name, start, end); \
    }
OPS(X)
#undef X

/* ---- the tensor group ---- */

static Meter *group_meter(Comm *c) { return (Meter *)((char *)c - offsetof(Meter, run.grid.axis[AXIS_TP])); }

static Token record_message(Meter *m, double start, Token t)
{
    m->cost = (Cost){0};
    record(m, METER_MESSAGE, start, now());
    return t;
}

static Token metered_all_reduce(Comm *c, void *buf, int64_t n, Dtype type, ReduceOp op)
{
    Meter *m = group_meter(c);
    double start = now();
    return record_message(m, start, m->group.all_reduce(c, buf, n, type, op));
}

static Token metered_all_gather(Comm *c, void *out, const void *in, int64_t n, Dtype type)
{
    Meter *m = group_meter(c);
    double start = now();
    return record_message(m, start, m->group.all_gather(c, out, in, n, type));
}

static void metered_wait(Comm *c, Token t)
{
    Meter *m = group_meter(c);
    double start = now();
    m->group.wait(c, t);
    record_message(m, start, t);
}

static void replace_group(Meter *m)
{
    Comm *c = &m->run.grid.axis[AXIS_TP];
    m->group = *c;
    c->all_reduce = metered_all_reduce;
    c->all_gather = metered_all_gather;
    c->wait = metered_wait;
}

static void replace_device(Meter *m)
{
    m->sink = (CostSink){keep_cost, m};
    cost_open(&m->sizes, m->run.dev.real, &m->sink);
    Device *d = &m->run.dev;
    m->cpu = *d;
#define X(name, params, names) d->name = metered_##name;
    OPS(X)
#undef X
}

/* ---- the model ---- */

int meter_splits(const Config *cfg, int n)
{
    return cfg->num_attention_heads % n == 0 && cfg->num_query_groups % n == 0 &&
           cfg->ffn_hidden_size % n == 0;
}

int meter_sizes(const Config *cfg, int64_t size[METER_SIZES])
{
    int64_t most = cfg->seq_length < TOKENS ? TOKENS / cfg->seq_length : 1, batch = 1;
    for (int i = 0; i < cfg->batch_steps; i++)
        batch = cfg->batch_step[i].batch > batch ? cfg->batch_step[i].batch : batch;
    size[0] = 1;
    size[1] = most < batch ? most : batch;
    return size[1] > 1 ? 2 : 1;
}

/* Layers until the state is STATE bytes, at most the model's; a parameter takes at least 16 bytes. */
static int layers_of(const Config *cfg, Config *c)
{
    int n = LAYERS;
    for (; n < cfg->num_layers; n++) {
        c->num_layers = n;
        if (16 * params_count(c) >= STATE)
            break;
    }
    return n;
}

int64_t meter_state(const Config *cfg)
{
    Config c = *config_for_one_rank(cfg);
    c.num_layers = layers_of(cfg, &c);
    return 16 * params_count(&c);
}

Meter *meter_open(const Config *cfg, Axis axis, int world, int64_t sequences)
{
    Meter *m = xcalloc(1, sizeof *m);
    Config *c = &m->cfg;
    *c = *config_for_one_rank(cfg);
    m->layers = layers_of(cfg, c);
    c->num_layers = m->layers;
    c->stages = 1;
    c->stage_layers = &m->layers;
    c->recompute_num_layers = 1;
    c->lr = c->min_lr = 0;
    c->log_reference = 1;
    c->micro_batch_size = sequences;
    c->world = world;
    *(axis == AXIS_TP ? &c->tensor_model_parallel_size : &c->data_parallel_size) = world;
    config_pad_vocab(c);
    c->threads = world == 1 ? pool_cores() : 0;
    c->check_for_nan_in_loss_and_grad = 0;
    m->batch = (BatchStep){0, c->micro_batch_size * c->data_parallel_size};
    c->batch_steps = 1;
    c->batch_step = &m->batch;
    m->tokens = balance_tokens_open(c);
    run_open(&m->run, c, RUN_TRAIN, 0, NULL);
    m->run.generation.sequence = m->tokens;
    m->run.step.feed = run_sequence;
    m->run.step.metrics = &m->metrics;
    replace_device(m);
    replace_group(m);
    return m;
}

Run *meter_run(Meter *m) { return &m->run; }
const Config *meter_config(const Meter *m) { return &m->cfg; }

void meter_close(Meter *m)
{
    Comm *c = &m->run.grid.axis[AXIS_TP];
    c->all_reduce = m->group.all_reduce;
    c->all_gather = m->group.all_gather;
    c->wait = m->group.wait;
    m->run.dev = m->cpu;
    run_close(&m->run);
    balance_tokens_close(&m->tokens);
    free(m->call);
    free(m->took);
    free(m);
}

/* ---- steps ---- */

double meter_step(Meter *m)
{
    int before = m->n, first = !m->call;
    m->n = 0;
    double start = now();
    run_gradients(&m->run);
    double took = now() - start;
    if (first)
        return took;
    if (m->n != before) {                      /* one of the steps skipped its update: begin again */
        m->steps = 0;
        return took;
    }
    m->took = xrealloc(m->took, (size_t)(m->steps + 1) * (size_t)m->n * sizeof *m->took);
    for (int i = 0; i < m->n; i++)
        m->took[(size_t)m->steps * (size_t)m->n + (size_t)i] = (float)m->call[i].seconds;
    m->steps++;
    return took;
}

void meter_reference(Meter *m, ReferenceTime *whole, ReferenceTime *calm)
{
    run_reference(&m->run, &m->cpu, whole, calm);
}

int meter_steps(const Meter *m) { return m->steps; }

int meter_calls(const Meter *m, Call **call)
{
    double *x = xcalloc((size_t)m->steps, sizeof *x);
    BUG_ON(!m->steps);
    for (int i = 0; i < m->n; i++) {
        for (int s = 0; s < m->steps; s++)
            x[s] = m->took[(size_t)s * (size_t)m->n + (size_t)i];
        qsort(x, (size_t)m->steps, sizeof *x, by_double);
        m->call[i].seconds = x[(m->steps - 1) / 4];
    }
    free(x);
    *call = m->call;
    return m->n;
}
