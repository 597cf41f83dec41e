/* pipeline -- the executor of a rank's list of instructions */
#include "pipeline.h"
#include "base.h"

void pipeline_run(const Schedule *s, const Stage *stage)
{
    for (const Instr *i = s->list, *end = s->list + s->n; i < end; i++) {
        BUG_ON(!stage->act[i->op]);
        if (stage->note)
            stage->note(stage->ctx, i);
        if (stage->arrive)
            stage->arrive(stage->ctx, i);
        double start = stage->mark ? now() : 0;
        stage->act[i->op](stage->ctx, i);
        if (stage->mark)
            stage->mark(stage->ctx, i, start, now());
        stage->progress();
    }
}
