/* test_masters -- the state of a bf16 parameter in 16 bytes: weight, remainder of the master, F32 gradient
 * and moments.
 *
 * twin     trains fifty steps by each rule, with gradients of 32 bits, and of 16 where the rule has those. A
 *          twin keeps whole F32 masters and moments of what this rank updates, and takes the same steps from
 *          the same gradients with the ops on whole masters: the masters' bits are the same after every
 *          step, and a weight is its master rounded, ties away from 0
 * old      loads a checkpoint whose weights were rounded to nearest even, as they were before masters were
 *          kept in two halves: the masters decide what the weights are, in every ZeRO stage */
#include "half.h"
#include "layout_run.h"

enum { TENSORS = 64, TWIN_STEPS = 50 };
static const char *const stages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

static const Config *config_for(const char *const *more)
{
    static const char *const model[] = {"params_dtype=bf16", "num_layers=2", "num_attention_heads=2",
                                        "seq_length=16", "micro_batch_size=2", "global_batch_size=8",
                                        "init_method_std=0.1", "untie_embeddings_and_output_weights=true",
                                        "normalization=RMSNorm", NULL};
    static Words a;
    a = (Words){0};
    for (const char *const *m = model; *m; m++)
        add_arg(&a, *m, NULL);
    for (const char *const *m = more; *m; m++)
        set_arg(&a, *m);
    return configure(&a, world);
}

/* ---- the twin ---- */

/* Elements [from, from + n) of a tensor, or none: whole masters, moments and the step's gradient. */
typedef struct { const Param *t; int64_t from, n, counted; float *w, *g, *m, *v; double wd, trust; } Twin;

static int twin_open(Run *r, Twin twin[TENSORS])
{
    Params *p = &r->params;
    int n = 0;
    for (int i = 0; i < p->nparam; i++) {
        int64_t from, to, last;
        const Param *t = &p->param[i];
        param_updated(p, t, &from, &to);
        Twin *x = &twin[n++];
        BUG_ON(n == TENSORS);
        *x = (Twin){.t = t, .from = from, .n = to - from, .wd = t->def->decay ? r->cfg->weight_decay : 0};
        x->w = xcalloc((size_t)x->n * 4 + 1, sizeof(float));
        x->g = x->w + x->n, x->m = x->g + x->n, x->v = x->m + x->n;
        if (x->n)
            masters_get(p, &r->dev, t, from, x->n, x->w);
        param_own(p, t, &from, &last);
        x->counted = last < t->counted ? last : t->counted;
    }
    return n;
}

/* The trust ratio of x from the norms of whole masters, over all shards. Collective. */
static void twin_trust(Run *r, Twin *x, int lars)
{
    Device *d = &r->dev;
    Comm *c = data_groups(&r->params.data, x->t->bucket)->shard;
    Exact e[2] = {{.bad = 0}, {.bad = 0}};
    int64_t from, to;
    param_own(&r->params, x->t, &from, &to);
    int64_t n = (to < x->t->counted ? to : x->t->counted) - from, at = from - x->from;
    if (n > 0) {
        d->squares(d, &(Squares){e, x->w + at, n, NULL}, 1, F32);
        d->squares(d, &(Squares){e + 1, x->g + at, n, NULL}, 1, F32);
    }
    d->carry(d, e, 2);
    c->wait(c, c->all_reduce(c, e, 2 * EXACT_WORDS, I64, OP_SUM));
    d->carry(d, e, 2);
    d->trust(d, &x->trust, e, 1, lars, r->cfg->lars_trust_coefficient, r->cfg->weight_decay, r->opt.verdict);
}

static void twin_step(Run *r, Twin *twin, int n, double lr)
{
    const Config *c = r->cfg;
    Device *d = &r->dev;
    double t = (double)r->opt.updates;
    Updated list[TENSORS];
    Update u = {.list = list, .out_type = F32, .verdict = r->opt.verdict, .lr = lr,
                .beta1 = c->adam_beta1, .beta2 = c->adam_beta2, .eps = c->adam_eps,
                .bias1 = 1 - pow(c->adam_beta1, t), .bias2 = 1 - pow(c->adam_beta2, t), .before1 = 1,
                .before2 = 1, .momentum = c->sgd_momentum, .nesterov = c->sgd_nesterov};
    int trust = c->optimizer == OPTIMIZER_LAMB || c->optimizer == OPTIMIZER_LARS;
    for (int i = 0; i < n; i++) {
        Twin *x = &twin[i];
        if (!x->n)
            continue;
        list[u.count++] = (Updated){.n = x->n, .w = x->w, .g = x->g, .m = x->m, .v = x->v, .dir = x->g,
                            .trust = trust && x->wd > 0 ? &x->trust : NULL, .wd = x->wd};
    }
    if (c->optimizer == OPTIMIZER_LAMB)
        d->lamb_direction(d, &u);
    for (int i = 0; i < n && trust; i++)
        if (twin[i].wd > 0)
            twin_trust(r, &twin[i], c->optimizer == OPTIMIZER_LARS);
    switch (c->optimizer) {
    case OPTIMIZER_ADAM: d->adam(d, &u); break;
    case OPTIMIZER_SGD:  d->sgd(d, &u); break;
    case OPTIMIZER_LAMB: d->lamb_apply(d, &u); break;
    default:             d->lars(d, &u); break;
    }
}

/* Elements whose master differs from the twin's, or whose weight is not that master rounded. */
static int64_t differing(Run *r, const Twin *twin, int n)
{
    const Params *p = &r->params;
    int64_t wrong = 0;
    for (int i = 0; i < n; i++) {
        const Twin *x = &twin[i];
        if (!x->n)
            continue;
        float *now = xcalloc((size_t)x->n, sizeof *now);
        masters_get(p, &r->dev, x->t, x->from, x->n, now);
        const uint16_t *weight = param_at(p, x->t, &p->data.weight, x->from);
        for (int64_t k = 0; k < x->n; k++)
            wrong += memcmp(&now[k], &x->w[k], sizeof *now) || weight[k] != master_weight(x->w[k]);
        free(now);
    }
    return wrong;
}

static void twin(const Config *c, const char *what)
{
    Run r = {0};
    Twin twin[TENSORS];
    double first = 0, lr = 0.004;
    int64_t wrong = 0;
    open_run(&r, c, RUN_TRAIN, NULL);
    Data *d = &r.params.data;
    int n = twin_open(&r, twin);
    CHECK(d->master.type == I16, "%s: masters are %s", what, dtype_name(d->master.type));
    if (d->stage == SHARD_NONE && c->optimizer == OPTIMIZER_ADAM && !c->optimizer_cpu_offload)
        CHECK(d->bytes[0] + d->bytes[1] + d->bytes[2] == (d->grad.type == BF16 ? 14 : 16) * d->elems,
              "%s: %lld bytes for %lld elements", what,
              (long long)(d->bytes[0] + d->bytes[1] + d->bytes[2]), (long long)d->elems);
    for (int s = 0; s < TWIN_STEPS; s++) {
        r.step.metrics = NULL;
        run_gradients(&r);
        first = s ? first : r.step.verdict.loss;
        for (int i = 0; i < n; i++) {
            const Twin *x = &twin[i];
            if (x->n)
                r.dev.copy(&r.dev, mat(x->g, 1, x->n, F32),
                           mat(param_at(&r.params, x->t, &d->grad, x->from), 1, x->n, d->grad.type));
        }
        r.dev.wait_snapshots(&r.dev);
        optimizer_step(&r.opt, lr);
        data_gather_all(d, s & 1);
        twin_step(&r, twin, n, lr);
        data_settle(d);
        wrong += differing(&r, twin, n);
        r.progress.iteration++;
        r.progress.consumed_samples += config_batch_at(c, 0);
    }
    CHECK(!wrong, "%s: %lld masters or weights differ from the twin's", what, (long long)wrong);
    CHECK(r.step.verdict.loss < first, "%s: loss %g to %g", what, first, r.step.verdict.loss);
    for (int i = 0; i < n; i++)
        free(twin[i].w);
    run_close(&r);
    layouts++;
}

static void twins(void)
{
    static const char *const rules[][2] = {{"optimizer=adam", NULL},
                                           {"optimizer=sgd", NULL},
                                           {"optimizer=sgd", "sgd_nesterov=true"},
                                           {"optimizer=lamb", NULL},
                                           {"optimizer=lars", "lars_trust_coefficient=0.1"}};
    for (int i = 0; i < 5; i++)
        for (int stage = 0; stage < 4; stage++) {
            char text[64];
            const char *more[6] = {text, rules[i][0], NULL};
            int n = 2;
            snprintf(text, sizeof text, "data_parallel_sharding_strategy=%s", stages[stage]);
            if (rules[i][1])
                more[n++] = rules[i][1];
            if ((i + stage) % 3 == 2)
                more[n++] = "optimizer_cpu_offload=true";
            more[n] = NULL;
            const Config *c = config_for(more);
            twin(c, current);
            if (i == 3 || (i + stage) % 2)
                continue;
            more[n++] = "main_grads_dtype=bf16";
            more[n] = NULL;
            c = config_for(more);
            twin(c, current);
        }
}

/* ---- checkpoints with weights that were rounded to even ---- */

/* Every second master lies in the middle between two weights, above an even one or below one. */
static double tie(const Params *p, const Param *t, int64_t row, int64_t col, double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u = (u & 0xffff0000) | ((uint64_t)(row + col + t->number) % 2 ? 0x8000 : u & 0xffff);
    memcpy(&f, &u, sizeof f);
    (void)p;
    return f;
}

/* Saves a run's state, its weights as masters rounded to nearest even. */
static void save_old(const Config *c, const char *dir)
{
    Run r = {0};
    int n;
    int64_t ties = 0;
    open_run(&r, c, RUN_TRAIN, NULL);
    TensorPiece *p = pieces_open(&r.params, PIECES_SAVE, &n);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n && !p[i].optim; k++) {
            size_t length = strlen(p[i].name);
            if (!p[k].rest || p[k].data != p[i].data || strncmp(p[k].name, p[i].name, length) ||
                strcmp(p[k].name + length, ".master"))
                continue;
            uint16_t *old = xcalloc((size_t)(p[i].rows * p[i].cols), sizeof *old);
            for (int64_t e = 0; e < p[i].rows * p[i].cols; e++) {
                float x;
                piece_get(&p[k], e / p[i].cols * p[i].ld + e % p[i].cols, 1, &x);
                old[e] = f32_to_bf16(x);
                ties += old[e] != master_weight(x);
            }
            p[i].data = old, p[i].ld = p[i].cols, p[i].dev = NULL;
            break;
        }
    CHECK(ties > 100, "%lld weights of the old form differ", (long long)ties);
    Arena arena = {.base = (char *)1};
    Saver *s = saver_open(c, dir, &r.grid.all, p, n, &arena);
    saver_start(s);
    json_t *state = run_state(&r);
    saver_save(s, r.progress.iteration, state);
    json_decref(state);
    saver_close(s);
    for (int i = 0; i < n; i++)
        if (!p[i].optim && !p[i].dev)
            free(p[i].data);
    pieces_close(p, n);
    run_close(&r);
}

/* Loads the state; every weight that this rank computes with is its master, rounded. */
static void load_old(const Config *c, const char *dir)
{
    Run r = {0};
    int64_t wrong = 0, seen = 0;
    open_run(&r, c, RUN_TRAIN, NULL);
    Params *p = &r.params;
    char *from = run_load(&r, dir);
    free(from);
    for (int u = 0; u < p->data.units; u++) {
        data_gather(&p->data, u);
        data_ready(&p->data, u);
        for (int i = 0; i < p->nparam; i++) {
            const Param *t = &p->param[i];
            const Unit *unit = &p->data.unit[u];
            if (t->bucket < unit->first || t->bucket >= unit->first + unit->count)
                continue;
            const Bucket *b = &p->data.bucket[t->bucket];
            const uint16_t *weight = (const uint16_t *)b->weight + (t->offset - b->at);
            int64_t own, end;
            param_updated(p, t, &own, &end);
            int64_t *mine = xcalloc((size_t)t->n, sizeof *mine);
            for (int64_t k = own; k < end; k++) {
                float x;
                masters_get(p, &r.dev, t, k, 1, &x);
                mine[k] = master_weight(x);
            }
            Comm *shard = data_groups(&p->data, t->bucket)->shard;
            if (p->data.stage != SHARD_NONE)
                shard->wait(shard, shard->all_reduce(shard, mine, t->n, I64, OP_SUM));
            for (int64_t k = 0; k < t->n; k++, seen++)
                wrong += weight[k] != (uint16_t)mine[k];
            free(mine);
        }
        data_release(&p->data, u);
    }
    CHECK(!wrong && seen > 1000, "%lld of %lld weights are not their masters, rounded\n#   %s",
          (long long)wrong, (long long)seen, current);
    run_close(&r);
    layouts++;
}

int main(void)
{
    double start = now();
    char dir[640];
    layouts_open();
    twins();
    snprintf(dir, sizeof dir, "%s/old", work_folder());
    value_of = tie;
    save_old(config_for((const char *const[]){NULL}), dir);
    value_of = noisy;
    for (int stage = 0; stage < 4; stage++) {
        char text[64];
        snprintf(text, sizeof text, "data_parallel_sharding_strategy=%s", stages[stage]);
        load_old(config_for((const char *const[]){text, NULL}), dir);
    }
    return layouts_close(start);
}
