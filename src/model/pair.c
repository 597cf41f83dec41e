/* pair -- the F and the B of two microbatches by turns: one computes while rows of the other travel to the
 * experts or back (DeepSeek-AI 2024, arXiv:2412.19437, sec 3.2.1).
 *
 * Both run the code that runs alone, each on a stack of its own. A turn ends where a dispatch waits
 * (Experts.turns), at the same places of the code on all ranks. So the collectives of both come in one order
 * on all members of a group, and B adds to the gradients what it adds alone: the bits are the same.
 *
 * Each of the two has a ModelLane. All else that they share is not under way when a turn ends: messages of
 * the tensor and context groups are awaited in the function that starts them, and FP8 scales hold for a
 * step. */
#include "model.h"

int model_lane(Model *m, int lane)
{
    ModelPair *p = &m->pair;
    int before = p->lane;
    if (!p->fiber || lane == before)
        return before;
    ModelLane here = m->lane;
    m->lane = p->other;
    p->other = here;
    p->lane = lane;
    return before;
}

static void turned(void *model)
{
    Model *m = model;
    model_lane(m, !m->pair.lane);
}

static void run_f(void *model) { model_forward(model, ((Model *)model)->pair.f); }
static void run_b(void *model) { model_backward(model, ((Model *)model)->pair.b); }

void model_pair(void *model, const Instr *f, const Instr *b, double took[2])
{
    Model *m = model;
    double ran[2];             /* B, F */
    m->pair.f = f;
    m->pair.b = b;
    fiber_run(m->pair.fiber, run_b, run_f, turned, m, ran);
    took[0] = ran[1];
    took[1] = ran[0];
}
