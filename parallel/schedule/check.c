/* check -- whether each rank's list is complete and in order, and all lists together come to their end */
#include "base.h"
#include "schedule.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Microbatches of one chunk done so far, by operation. B counts as D and as W. */
typedef struct { int done[I_RG + 1]; } Progress;

typedef struct {
    const ScheduleSet *set;
    char *why;                 /* [size] the reason */
    int size;
    Progress *chunk;           /* [v] of the rank being read */
    int *before, *after;       /* [v] stages next to each chunk: a chunk of this rank, OTHER rank, or NONE */
} Reader;

enum { OTHER = -1, NONE = -2 };

static int complain(const Reader *c, int rank, int at, const Instr *i, const char *what)
{
    char text[32];
    instr_print(i, text, sizeof text);
    snprintf(c->why, (size_t)c->size, "rank %d at %d: %s %s", rank, at, text, what);
    return 0;
}

/* Why instruction i must not stand here; NULL: it may. */
static const char *misplaced(const Reader *c, const Instr *i)
{
    const Progress *k = c->chunk;
    const int *done = k[i->chunk].done;
    int mb = i->mb, before = c->before[i->chunk], after = c->after[i->chunk];
    switch (i->op) {
    case I_F:
        if (before >= 0 ? mb >= k[before].done[I_F] : before == OTHER && mb >= done[I_RA])
            return "comes before its input";
        return NULL;
    case I_B:
    case I_D:
        if (mb >= done[I_F])
            return "comes before its forward";
        if (after >= 0 ? mb >= k[after].done[I_D] : after == OTHER && mb >= done[I_RG])
            return "comes before its gradient";
        return i->op == I_B && mb != done[I_W] ? "is out of order" : NULL;
    case I_W:  return mb >= done[I_D] ? "comes before its D" : NULL;
    case I_SA:
        return after != OTHER ? "goes to no rank" : mb >= done[I_F] ? "comes before its forward" : NULL;
    case I_SG:
        return before != OTHER ? "goes to no rank" : mb >= done[I_D] ? "comes before its backward" : NULL;
    case I_RA: return before != OTHER ? "comes from no rank" : NULL;
    case I_RG: return after != OTHER ? "comes from no rank" : NULL;
    default:   return "is neither compute nor a message";
    }
}

/* Whether instruction i may be one with the one before: a message with a message; a B with an F of another
 * microbatch, since neither needs the other. */
static int joins(const Instr *list, int i)
{
    const Instr *now = &list[i], *before = now - 1;
    if (!i)
        return 0;
    if (instr_info[now->op].message)
        return instr_info[before->op].message;
    return now->op == I_B && before->op == I_F && now->mb != before->mb;
}

static int read_rank(Reader *c, int rank)
{
    const PipeShape *s = &c->set->shape;
    const InstrList *l = &c->set->rank[rank];
    int forward = s->kind == SCHEDULE_FORWARD;
    memset(c->chunk, 0, (size_t)s->v * sizeof *c->chunk);
    for (int i = 0; i < l->n; i++) {
        const Instr *now = &l->list[i];
        if (now->op > I_RG || now->chunk >= s->v || now->mb >= s->m || now->unit != WHOLE)
            return complain(c, rank, i, now, "is no instruction of this pipeline");
        int *done = c->chunk[now->chunk].done, op = now->op == I_B ? I_D : now->op;
        if (now->mb != done[op])
            return complain(c, rank, i, now, now->mb < done[op] ? "stands twice" : "is out of order");
        if (forward && op != I_F && op != I_SA && op != I_RA)
            return complain(c, rank, i, now, "stands in a forward-only list");
        if (now->join && !joins(l->list, i))
            return complain(c, rank, i, now, instr_info[now->op].message ? "joins no message"
                                                                         : "stands beside no F of another "
                                                                           "microbatch");
        const char *what = misplaced(c, now);
        if (what)
            return complain(c, rank, i, now, what);
        done[op]++;
        done[I_W] += now->op == I_B;
    }
    for (int chunk = 0; chunk < s->v; chunk++) {
        const int *done = c->chunk[chunk].done;
        int up = c->after[chunk] == OTHER ? s->m : 0, down = c->before[chunk] == OTHER ? s->m : 0,
            back = !forward;
        const struct {
            InstrKind op;
            int n;
        } want[] = {{I_F, s->m},  {I_D, back * s->m},  {I_W, back * s->m}, {I_SA, up},
                    {I_RA, down}, {I_SG, back * down}, {I_RG, back * up}};
        for (size_t k = 0; k < sizeof want / sizeof *want; k++)
            if (done[want[k].op] != want[k].n) {
                snprintf(c->why, (size_t)c->size, "rank %d chunk %d: %d of %d %s", rank, chunk,
                         done[want[k].op], want[k].n, instr_info[want[k].op].letters);
                return 0;
            }
    }
    return 1;
}

static int read_all(const ScheduleSet *set, char *why, int size)
{
    const PipeShape *s = &set->shape;
    int ok = 1, stages = s->p * s->v;
    Reader c = {.set = set, .why = why, .size = size, .chunk = xcalloc((size_t)s->v, sizeof *c.chunk)};
    c.before = xcalloc(2 * (size_t)s->v, sizeof *c.before);
    c.after = c.before + s->v;
    for (int r = 0; r < s->p && ok; r++) {
        for (int k = 0; k < s->v; k++) {
            int stage = pipe_stage(s, r, k), peer, chunk;
            c.before[k] = c.after[k] = NONE;
            if (stage > 0) {
                pipe_place(s, stage - 1, &peer, &chunk);
                c.before[k] = peer == r ? chunk : OTHER;
            }
            if (stage + 1 < stages) {
                pipe_place(s, stage + 1, &peer, &chunk);
                c.after[k] = peer == r ? chunk : OTHER;
            }
        }
        ok = read_rank(&c, r);
    }
    free(c.chunk);
    free(c.before);
    return ok;
}

/* ---- no deadlock ---- */

/* Whether `other` is the other end of message i. */
static int fits(const PipeShape *s, int rank, const Instr *i, const Instr *other)
{
    static const uint8_t answer[] = {[I_SA] = I_RA, [I_RA] = I_SA, [I_SG] = I_RG, [I_RG] = I_SG};
    int chunk;
    pipe_peer(s, rank, i, &chunk);
    return other->op == answer[i->op] && other->mb == i->mb && other->chunk == chunk;
}

static int explain(const ScheduleSet *set, const int *next, int rank, char *why, int size)
{
    const PipeShape *s = &set->shape;
    const InstrList *l = &set->rank[rank];
    int chunk, peer = pipe_peer(s, rank, &l->list[next[rank]], &chunk);
    char mine[32], other[32] = "its end";
    instr_print(&l->list[next[rank]], mine, sizeof mine);
    if (next[peer] < set->rank[peer].n)
        instr_print(&set->rank[peer].list[next[peer]], other, sizeof other);
    snprintf(why, (size_t)size, "deadlock: rank %d at %d: %s waits for rank %d, which is at %d: %s", rank,
             next[rank], mine, peer, next[peer], other);
    return 0;
}

/* Runs all lists. A rank stops at a message, and goes on when its peer has come to the other end of it. */
static int rendezvous(const ScheduleSet *set, char *why, int size)
{
    const PipeShape *s = &set->shape;
    int *next = xcalloc(2 * (size_t)s->p, sizeof *next), *todo = next + s->p, n = 0, ok = 1;
    uint8_t *listed = xcalloc((size_t)s->p, 1);
    for (int r = s->p - 1; r >= 0; r--)
        listed[todo[n++] = r] = 1;
    while (n) {
        int r = todo[--n], chunk;
        const InstrList *l = &set->rank[r];
        listed[r] = 0;
        while (next[r] < l->n) {
            const Instr *i = &l->list[next[r]];
            if (!instr_info[i->op].message) {
                next[r]++;
                continue;
            }
            int peer = pipe_peer(s, r, i, &chunk);
            const InstrList *pl = &set->rank[peer];
            while (next[peer] < pl->n && !instr_info[pl->list[next[peer]].op].message)
                next[peer]++;
            if (next[peer] == pl->n || !fits(s, r, i, &pl->list[next[peer]]))
                break;
            next[r]++;
            next[peer]++;
            if (!listed[peer])
                listed[todo[n++] = peer] = 1;
        }
    }
    for (int r = 0; r < s->p && ok; r++)
        if (next[r] < set->rank[r].n)
            ok = explain(set, next, r, why, size);
    free(next);
    free(listed);
    return ok;
}

int schedules_check(const ScheduleSet *set, char *why, int size)
{
    if (set->stuck >= 0) {
        char text[32];
        instr_print(&set->stuck_at, text, sizeof text);
        snprintf(why, (size_t)size, "rank %d never gets to %s: the ranks' orders of compute wait for each "
                 "other", set->stuck, text);
        return 0;
    }
    return read_all(set, why, size) && rendezvous(set, why, size);
}
