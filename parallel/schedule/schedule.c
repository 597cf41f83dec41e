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

const char *schedule_name(ScheduleKind kind)
{
    static const char *const name[] = {"gpipe",  "1f1b",  "interleaved", "zb-h1",   "zb-h2",  "zb-v",
                                       "v-half", "v-min", "dualpipev",   "zb-auto", "custom", "forward"};
    return name[kind];
}

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

/* ---- placement ---- */

static int is_vee(const PipeShape *s)
{
    return s->kind == SCHEDULE_ZB_V || s->kind == SCHEDULE_V_HALF || s->kind == SCHEDULE_V_MIN ||
           s->kind == SCHEDULE_DUALPIPEV ||
           ((s->kind == SCHEDULE_FORWARD || s->kind == SCHEDULE_CUSTOM) && s->vee);
}

int pipe_stage(const PipeShape *s, int rank, int chunk)
{
    return is_vee(s) ? (chunk ? 2 * s->p - 1 - rank : rank) : chunk * s->p + rank;
}

void pipe_place(const PipeShape *s, int stage, int *rank, int *chunk)
{
    *chunk = stage / s->p;
    *rank = is_vee(s) && *chunk ? 2 * s->p - 1 - stage : stage % s->p;
}

int pipe_peer(const PipeShape *s, int rank, const Instr *i, int *chunk)
{
    int up = i->op == I_SA || i->op == I_RG, peer;
    pipe_place(s, pipe_stage(s, rank, i->chunk) + (up ? 1 : -1), &peer, chunk);
    return peer;
}

/* ---- the set of all ranks' lists ---- */

void schedules_open(ScheduleSet *set, const PipeShape *shape)
{
    size_t most = (size_t)shape->v * (size_t)shape->m * (shape->kind == SCHEDULE_FORWARD ? 1 : 3),
           p = (size_t)shape->p;
    BUG_ON(shape->p < 1 || shape->p > 4096 || shape->v < 1 || shape->v > 255 || shape->m < 1 ||
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
