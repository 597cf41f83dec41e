/* culprit -- the first tensor that is not finite, found by running the failed step again */
#include "config_table.h"
#include "kept.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The first tensor that is not finite. */
typedef struct {
    char name[160] __attribute__((aligned(8)));    /* for the message */
    int64_t order;             /* place in a forward; weights come before activations */
} Culprit;
static const Culprit nobody = {.order = INT64_MAX};

static double sum_of(Model *m, Mat x)
{
    double sum = 0, *at = m->sums + SUM_WATCH;
    m->dev->zero(m->dev, at, sizeof *at);
    m->dev->sum(m->dev, at, x);
    m->dev->get(m->dev, &sum, at, sizeof sum);
    return sum;
}

static void find_culprit(void *culprit, Model *m, int part, const char *where, Mat x)
{
    Culprit *c = culprit;
    const Part *p = &m->params->part[part];
    if (c->name[0] || isfinite(sum_of(m, x)))
        return;
    c->order = p->kind == PART_EMBEDDING ? 0 : p->kind == PART_HEAD ? INT32_MAX : 1 + p->layer;
    if (p->kind == PART_LAYER)
        snprintf(c->name, sizeof c->name, "the output of decoder.layers.%d.%s", p->layer, where);
    else
        snprintf(c->name, sizeof c->name, "the output of %s", where);
}

/* Runs the next batch and names the first gradient that is not finite; "the loss" when all are finite but
 * the loss is not; NULL when that is finite, too. */
static const char *bad_gradient(Run *r)
{
    run_gradients(r);
    const char *bad = optimizer_blame(&r->opt, &r->step.verdict, NULL);
    return bad ? bad : isfinite(r->step.verdict.loss) ? NULL : "the loss";
}

/* The first weight of this rank that is not finite. */
static Culprit find_weight(Run *r)
{
    const Params *p = &r->params;
    Culprit c = nobody;
    for (int i = 0; i < p->nparam && !c.name[0]; i++) {
        int64_t from, to;
        param_held(p, &p->param[i], &p->data.weight, &from, &to);
        if (from < to && !isfinite(sum_of(&r->model, mat(param_at(p, &p->param[i], &p->data.weight, from), 1,
                                                         to - from, p->type)))) {
            snprintf(c.name, sizeof c.name, "the weight %s", p->param[i].name);
            c.order = INT64_MIN + p->param[i].number;     /* before what a forward finds */
        }
    }
    return c;
}

void run_check_weights(Run *r, const char *dir)
{
    Comm *all = &r->grid.all;
    Culprit culprit = find_weight(r);
    int64_t first = culprit.order;
    all->wait(all, all->all_reduce(all, &first, 1, I64, OP_MIN));
    all_ok(all, first == INT64_MAX || culprit.order != first, EXIT_NUMERIC, "not-finite", "%s: %s holds a "
           "NaN or an infinity; change: load an earlier checkpoint; `train inspect` counts such values", dir,
           culprit.name);
}

int run_locate(Run *r, char name[160])
{
    Comm *all = &r->grid.all;
    const Lists *l = run_lists(r, config_batch_at(r->cfg, r->progress.consumed_samples));
    Culprit culprit = find_weight(r);
    r->model.watch = (ModelWatch){.see = find_culprit, .ctx = &culprit};
    r->step.source = r->loader;
    r->step.source_first = r->progress.consumed_samples;
    step_forward(r, &l->forward, r->cfg->micro_batch_size, r->cfg->seq_length, 1);
    int64_t first = culprit.order;
    all->wait(all, all->all_reduce(all, &first, 1, I64, OP_MIN));
    r->model.watch.see = NULL;
    if (first == INT64_MAX) {
        const char *bad = bad_gradient(r);
        if (!bad) {
            strcpy(name, "nothing");
            return -1;
        }
        snprintf(culprit.name, sizeof culprit.name, "the gradient of %s", bad);
    }
    int64_t finder = culprit.order == first ? all->rank : INT64_MAX;
    all->wait(all, all->all_reduce(all, &finder, 1, I64, OP_MIN));
    all->wait(all, all->broadcast(all, culprit.name, sizeof culprit.name / 8, I64, (int)finder));
    memcpy(name, culprit.name, sizeof culprit.name);
    return (int)finder;
}

/* Ends the job after a step that was not finite and is so when it runs again: a bit has flipped in a
 * gradient, in a message or in an operation.
 *   bad, holder  in  the gradient that was not finite, and the rank that held it; NULL, -1: not known */
static _Noreturn void end_transient(Run *r, const Metrics *m, const char *bad, int holder)
{
    Comm *all = &r->grid.all;
    char host[HOST_NAME], where[256] = "";
    int64_t speaker = holder < 0 ? 0 : holder;
    if (bad)
        snprintf(where, sizeof where, ", where the gradient of %s was not finite in the share of rank %d on "
                 "host %s", bad, holder, host_name(host));
    all_ok(all, all->rank != speaker, EXIT_TRANSIENT, "transient",
           "iteration %lld: loss %g, gradient norm %g%s; run again, the same step is finite; nothing was "
           "updated; change: start again with load=latest, and test a host that is named again; "
           "sdc_rerun=true finds the rank that computes wrong bits", (long long)m->iteration, m->lm_loss,
           m->grad_norm, where);
    die(EXIT_BUG, "transient", "no rank has spoken; change: report this");
}

/* What makes a step smaller, by keys that this run may set. */
static const char *smaller_steps(const Config *c)
{
    const char *warmup = !isnan(c->lr_warmup_fraction)        ? "lr_warmup_fraction"
                         : c->train_samples != CFG_ABSENT ? "lr_warmup_samples"
                                                          : "lr_warmup_iters";
    return textf("lower lr or raise %s, %s clip_grad", warmup, c->clip_grad > 0 ? "lower" : "set");
}

_Noreturn void run_not_finite(Run *r, const Launched *s)
{
    Comm *all = &r->grid.all;
    Metrics m = s->m;
    char name[160], kept[96];
    int holder = -1;
    /* the gradients are those of step s until a later one is launched */
    const char *bad = run_open_steps(r) == 1 ? optimizer_blame(&r->opt, &r->step.verdict, &holder) : NULL;
    bad = holder < 0 ? NULL : strcpy(kept, bad);
    m.lm_loss = r->step.verdict.loss;
    m.grad_norm = r->step.verdict.norm;
    /* the weights are still those of step s: a verdict that is not finite stops every later update */
    data_settle(&r->params.data);
    r->progress.iteration = m.iteration - 1;
    r->progress.consumed_samples = s->consumed_samples;
    int finder = run_locate(r, name);
    if (finder < 0)
        end_transient(r, &m, bad, holder);
    kept_write(r, &m, s->consumed_samples, s->limits, name);
    all_ok(all, all->rank != finder, EXIT_NUMERIC, "not-finite",
           "iteration %lld: loss %g; the first tensor that is not finite is %s; nothing was updated; change: "
           "%s, or resume from an earlier checkpoint", (long long)m.iteration, m.lm_loss, name,
           smaller_steps(r->cfg));
    die(EXIT_BUG, "not-finite", "no rank has found what is not finite; change: report this");
}
