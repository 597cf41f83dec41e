#include "pipeline.h"
#include "base.h"

void pipeline_run(Pipeline *p)
{
    const Stage *s = p->stage;
    const Instr *end = p->schedule->list + p->schedule->n;
    for (p->pc = p->schedule->list; p->pc < end; p->pc++) {
        double start = s->mark ? now() : 0;
        switch (p->pc->op) {
        case I_F: s->forward(s->model, p->pc->chunk, p->pc->mb);  break;
        case I_B: s->backward(s->model, p->pc->chunk, p->pc->mb); break;
        case I_R: s->reduce(s->model, p->pc->part);               break;
        case I_S: s->step(s->model);                              break;
        default:  BUG_ON("an instruction that no generator writes");
        }
        if (s->mark)
            s->mark(s->model, p->pc, start, now());
    }
    p->pc = NULL;
}
