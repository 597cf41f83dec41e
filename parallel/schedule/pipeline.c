/* pipeline -- the executor of a rank's list of instructions */
#include "pipeline.h"
#include "base.h"

static void enter(const Stage *stage, const Instr *i)
{
    BUG_ON(!stage->act[i->op]);
    if (stage->note)
        stage->note(stage->ctx, i);
    if (stage->arrive)
        stage->arrive(stage->ctx, i);
}

/* Runs an F and the B beside it. Their spans lie one behind the other, each as long as it ran. */
static void run_pair(const Stage *stage, const Instr *f, const Instr *b)
{
    double took[2] = {0};              /* s that F, B ran */
    enter(stage, f);
    enter(stage, b);
    double start = stage->mark ? now() : 0;
    stage->pair(stage->ctx, f, b, took);
    if (stage->settle)
        stage->settle(stage->ctx, b);
    if (!stage->mark)
        return;
    stage->mark(stage->ctx, f, start, start + took[0]);
    stage->mark(stage->ctx, b, start + took[0], now());
}

static void run_one(const Stage *stage, const Instr *i)
{
    enter(stage, i);
    double start = stage->mark ? now() : 0;
    stage->act[i->op](stage->ctx, i);
    if (stage->settle)
        stage->settle(stage->ctx, i);
    if (stage->mark)
        stage->mark(stage->ctx, i, start, now());
}

void pipeline_run(const Schedule *s, const Stage *stage)
{
    for (int i = 0, n; i < s->n; i += n) {
        n = stage->pair ? instr_together(s->list, s->n, i) : 1;
        if (n == 2)
            run_pair(stage, &s->list[i], &s->list[i + 1]);
        else
            run_one(stage, &s->list[i]);
        stage->progress();
    }
}
