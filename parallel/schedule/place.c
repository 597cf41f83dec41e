/* place -- which rank and chunk a virtual stage lies on, and which rank is at the other end of a message */
#include "schedule.h"

int place_rank(int vee, int p, int stage) { return vee && stage / p ? p - 1 - stage % p : stage % p; }

int place_stage(int vee, int p, int rank, int c) { return c * p + (vee && c ? p - 1 - rank : rank); }

static int is_vee(const PipeShape *s)
{
    int place = schedule_info[s->kind].place;
    return place == PLACE_GIVEN ? s->vee : place == PLACE_VEE;
}

int pipe_stage(const PipeShape *s, int rank, int chunk) { return place_stage(is_vee(s), s->p, rank, chunk); }

void pipe_place(const PipeShape *s, int stage, int *rank, int *chunk)
{
    *chunk = stage / s->p;
    *rank = place_rank(is_vee(s), s->p, stage);
}

int pipe_peer(const PipeShape *s, int rank, const Instr *i, int *chunk)
{
    int up = i->op == I_SA || i->op == I_RG, peer;
    pipe_place(s, pipe_stage(s, rank, i->chunk) + (up ? 1 : -1), &peer, chunk);
    return peer;
}
