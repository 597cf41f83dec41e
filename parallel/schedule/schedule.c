/* schedule -- instructions as text, and the set of all ranks' lists */
#include "schedule.h"
#include "base.h"
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

const struct InstrInfo instr_info[INSTR_KINDS] = {
#define X(id, letters, message) {letters, message},
    INSTRS(X)
#undef X
};

void instr_print(const Instr *i, char *text, int size)
{
    static const char *const phase[] = {"", "d", "w"};
    const char *letters = instr_info[i->op].letters;
    if (i->op == I_S || i->op == I_T)
        snprintf(text, (size_t)size, "%s", letters);
    else if (i->op > I_RG)
        snprintf(text, (size_t)size, "%s/%d%s", letters, i->unit, phase[i->phase]);
    else if (i->unit == WHOLE)
        snprintf(text, (size_t)size, "%s%d.%d", letters, i->mb, i->chunk);
    else
        snprintf(text, (size_t)size, "%s%d.%d/%d", letters, i->mb, i->chunk, i->unit);
}

/* ---- the set of all ranks' lists ---- */

void schedules_open(ScheduleSet *set, const PipeShape *shape)
{
    size_t most = (size_t)shape->v * (size_t)shape->m * (shape->kind == SCHEDULE_FORWARD ? 1 : 3),
           p = (size_t)shape->p;
    BUG_ON(shape->p < 1 || shape->p > RANKS_MOST || shape->v < 1 || shape->v > CHUNKS_MOST || shape->m < 1 ||
           shape->m > MICROBATCHES_MOST);
    InstrList *compute = xcalloc(p, sizeof *compute);
    Instr *all = xcalloc(p * most, sizeof *all);
    for (size_t r = 0; r < p; r++)
        compute[r].list = all + r * most;
    schedule_generate(shape, compute);
    for (size_t r = 0; r < p; r++)
        BUG_ON((size_t)compute[r].n > most);
    schedules_lower(set, shape, compute);
    free(all);
    free(compute);
}

void schedules_close(ScheduleSet *set)
{
    free(set->rank);
    free(set->all);
    *set = (ScheduleSet){0};
}

uint64_t schedules_hash(const ScheduleSet *set)
{
    const PipeShape *s = &set->shape;
    const int head[] = {(int)s->kind, s->p, s->v, s->m, s->group, s->vee};
    uint64_t h = XXH3_64bits(head, sizeof head);
    for (int r = 0; r < s->p; r++)
        h = XXH3_64bits_withSeed(set->rank[r].list, (size_t)set->rank[r].n * sizeof(Instr), h);
    return h;
}
