/* plan_times -- prints a prediction */
#include "plan_times.h"
#include <math.h>
#include <stddef.h>

static double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

/* The pipeline rank with the smallest bubble. */
static int busiest(const Prediction *p)
{
    int best = 0;
    for (int r = 1; r < p->p; r++)
        if (p->rank[r].bubble < p->rank[best].bubble)
            best = r;
    return best;
}

/* Whether several ranks share a sequence. */
static int has_context(const Prediction *p) { return p->most[AXIS_CP].ops > 0; }

/* Whether ranks share the experts of a layer. */
static int has_experts(const Prediction *p) { return p->most[AXIS_EP].ops > 0; }

static void print_stages(FILE *f, const Prediction *p)
{
    fprintf(f, "stages     ms of a microbatch, in brackets of it waiting for the tensor%s%s group\n  "
            "%-8s %18s %18s %18s\n", has_context(p) ? ", context" : "",
            has_experts(p) ? ", expert" : "", "stage",
            "forward", "backward",
            "of weights");
    for (int s = 0; s < p->n; s++) {
        const Spent *t[] = {&p->stage[s].forward, &p->stage[s].backward_x, &p->stage[s].backward_w};
        fprintf(f, "  %-8d", s);
        for (int k = 0; k < 3; k++)
            fprintf(f, " %9.3f (%6.3f)", 1e3 * t[k]->work, 1e3 * t[k]->waits);
        fprintf(f, "\n");
    }
    if (p->p > 1)
        fprintf(f, "  a message between pipeline ranks takes %.3f ms\n", 1e3 * p->hop);
}

static void print_ranks(FILE *f, const Prediction *p)
{
    static const struct { const char *name; size_t at; } columns[] = {
        {"forward", offsetof(RankTime, forward)}, {"backward", offsetof(RankTime, backward)},
        {"tensor", offsetof(RankTime, tp)},       {"context", offsetof(RankTime, cp)},
        {"experts", offsetof(RankTime, ep)},
        {"pipeline", offsetof(RankTime, bubble)}, {"data", offsetof(RankTime, dp)},
        {"optimizer", offsetof(RankTime, optimizer)}, {"host", offsetof(RankTime, host)},
        {"slowest", offsetof(RankTime, slowest)},
        {"step", offsetof(RankTime, total)}};
    fprintf(f, "ranks      ms of the step, by pipeline rank\n  %-8s", "rank");
    for (int r = -1; r < p->p; r++) {
        if (r >= 0)
            fprintf(f, "  %-8d", r);
        for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
            if ((columns[i].at == offsetof(RankTime, cp) && !has_context(p)) ||
                (columns[i].at == offsetof(RankTime, host) && !(p->rank[0].host > 0)) ||
                (columns[i].at == offsetof(RankTime, slowest) && !(p->rank[0].slowest > 0)) ||
                (columns[i].at == offsetof(RankTime, ep) && !has_experts(p)))
                continue;
            else if (r < 0)
                fprintf(f, " %10s", columns[i].name);
            else
                fprintf(f, " %10.2f", 1e3 * *(const double *)((const char *)&p->rank[r] + columns[i].at));
        fprintf(f, "\n");
    }
}

static void print_work(FILE *f, const Prediction *p, int rank)
{
    const RankTime *t = &p->rank[rank];
    fprintf(f, "operations ms in a step of pipeline rank %d, the busiest\n", rank);
    for (int w = 0; w < OPKINDS; w++)
        if (t->work[w] > 0)
            fprintf(f, "  %-16s %10.2f  %5.1f %%\n", op_name[w], 1e3 * t->work[w],
                    percent(t->work[w], t->total));
    for (int a = 0; a < AXES; a++)
        if (t->sent[a] > 0)
            fprintf(f, "  messages of %-4s %10.2f  %5.1f %%, hidden and not\n", grid_axis_name[a],
                    1e3 * t->sent[a], percent(t->sent[a], t->total));
}

/* A rank's own work by its losses, s. */
static void add_work(double s[LOSSES], const RankTime *t, double share)
{
    s[LOSS_PEAK] += share * t->work[WORK_PEAK];
    s[LOSS_PRODUCTS] += share * t->work[WORK_BELOW_PEAK];
    s[LOSS_MEMORY] += share * t->work[WORK_MEMORY];
    s[LOSS_CAST] += share * t->work[WORK_CAST];
    s[LOSS_LAUNCH] += share * t->work[WORK_LAUNCH];
}

Losses plan_losses(const Prediction *p)
{
    Losses l = {.rank = busiest(p), .step = p->step};
    const RankTime *t = &p->rank[l.rank];
    double own[LOSSES] = {0}, more = 0, sum = 0;
    add_work(own, t, 1);
    for (int r = 0; r < p->p; r++)
        add_work(l.s, &p->rank[r], 1. / p->p);
    for (int i = 0; i <= LOSS_LAUNCH; i++)
        more += own[i] - l.s[i];
    for (int i = 0; i <= LOSS_LAUNCH && more < 0; i++)     /* this stage has less than the mean one */
        l.s[i] = own[i];
    l.s[LOSS_IMBALANCE] = fmax(0, more);
    l.s[LOSS_TENSOR] = t->tp;
    l.s[LOSS_CONTEXT] = t->cp;
    l.s[LOSS_EXPERT] = t->ep;
    l.s[LOSS_PIPELINE] = t->bubble;
    l.s[LOSS_DATA] = t->dp;
    l.s[LOSS_HOST] = t->host;
    l.s[LOSS_SLOWEST] = t->slowest;
    for (int i = 0; i < LOSSES; i++)
        sum += l.s[i];
    l.s[LOSS_OTHER] = t->total - sum;
    return l;
}

static void print_losses(FILE *f, const Prediction *p)
{
    Losses l = plan_losses(p);
    fprintf(f, "losses     of the step, of pipeline rank %d, the busiest\n", l.rank);
    for (int i = 0; i < LOSSES; i++)
        if (fabs(l.s[i]) > 5e-5 * p->step)
            fprintf(f, "  %-46s %10.2f ms  %5.1f %%\n", loss_text[i], 1e3 * l.s[i],
                    percent(l.s[i], p->step));
}

void plan_times(FILE *f, const Prediction *p, const Config *c, int explain)
{
    int rank = busiest(p);
    const RankTime *t = &p->rank[rank];
    int64_t batch = c->batch_step[c->batch_steps - 1].batch;
    double tokens = (double)(batch * c->seq_length), flops = run_flops_per_token(c) * tokens;
    fprintf(f, "time       %.2f ms a step: %.0f tokens/s, %.1f TFLOP/s of a rank; bubble %.2f %%\n",
            1e3 * p->step, tokens / p->step, flops / p->step / c->world / 1e12, 100 * p->bubble);
    fprintf(f, "           computing %.1f %%, waiting for the tensor group %.1f %%",
            percent(t->forward + t->backward, t->total), percent(t->tp, t->total));
    if (has_context(p))
        fprintf(f, ", for the context group %.1f %%", percent(t->cp, t->total));
    if (has_experts(p))
        fprintf(f, ", for the expert group %.1f %%", percent(t->ep, t->total));
    fprintf(f, ", for the pipeline %.1f %%, for the data group %.1f %%, optimizer %.1f %%",
            percent(t->bubble, t->total), percent(t->dp, t->total), percent(t->optimizer, t->total));
    if (t->host > 0)
        fprintf(f, ", for the host's launches %.1f %%", percent(t->host, t->total));
    if (t->slowest > 0)
        fprintf(f, ", for the slowest rank %.1f %%", percent(t->slowest, t->total));
    fprintf(f, ", on pipeline rank %d\n", rank);
    if (!explain)
        return;
    print_stages(f, p);
    print_ranks(f, p);
    print_work(f, p, rank);
    print_losses(f, p);
}
