/* The generators: in which order a rank computes. Each is a page of its paper. */
#include "base.h"
#include "generators.h"
#include <string.h>

typedef struct { const PipeShape *s; InstrList *out; } Writer;

static void put(Writer *w, InstrKind op, int chunk, int mb)
{
    w->out->list[w->out->n++] =
        (Instr){.op = (uint8_t)op, .chunk = (uint8_t)chunk, .unit = WHOLE, .mb = (uint16_t)mb};
}

/* `ahead` forwards, then F and B in turn, then the backwards that are left. gpipe: ahead = m. */
static void joined(Writer *w, int ahead)
{
    int m = w->s->m, f = 0;
    while (f < ahead && f < m)
        put(w, I_F, 0, f++);
    for (int b = 0; b < m; b++) {
        if (f < m)
            put(w, I_F, 0, f++);
        put(w, I_B, 0, b);
    }
}

/* `ahead` forwards, then D, W of the microbatch `late` before it, F in turn; what is left of W fills the end.
 */
static void split(Writer *w, int ahead, int late)
{
    int m = w->s->m, f = 0, done = 0;
    while (f < ahead && f < m)
        put(w, I_F, 0, f++);
    for (int b = 0; b < m; b++) {
        put(w, I_D, 0, b);
        if (b >= late)
            put(w, I_W, 0, done++);
        if (f < m)
            put(w, I_F, 0, f++);
    }
    while (done < m)
        put(w, I_W, 0, done++);
}

/* Groups of n microbatches, the last one shorter; a group runs all chunks before the next begins. The k-th of
 * this order. */
static void in_groups(Writer *w, InstrKind op, int k)
{
    int m = w->s->m, v = w->s->v, n = w->s->group ? w->s->group : w->s->p;
    int first = k / (n * v) * n, size = m - first < n ? m - first : n, in = k - first * v, chunk = in / size;
    put(w, op, op == I_F ? chunk : v - 1 - chunk, first + in % size);
}

static void interleaved(Writer *w, int rank)
{
    int p = w->s->p, v = w->s->v, n = w->s->group ? w->s->group : p, total = w->s->m * v, f = 0;
    int ahead = 2 * (p - rank - 1) + (v - 1) * n;
    while (f < ahead && f < total)
        in_groups(w, I_F, f++);
    for (int b = 0; b < total; b++) {
        if (f < total)
            in_groups(w, I_F, f++);
        in_groups(w, I_B, b);
    }
}

/* ---- two chunks a rank, placed as a V ---- */

typedef struct { Writer *w; int done[4][2]; } Turns;           /* next microbatch by operation and chunk */

static void turn(Turns *t, InstrKind op, int chunk)
{
    int mb = t->done[op][chunk]++;
    if (mb < t->w->s->m)
        put(t->w, op, chunk, mb);
}

/* Phases of a full pipe of at least 2p - 1 microbatches; those beyond m are left out. */
static void zb_v(Writer *w, int rank)
{
    int p = w->s->p, n = w->s->m > 2 * p - 1 ? w->s->m : 2 * p - 1;
    Turns t = {w};
    for (int i = 0; i < 2 * (p - rank) - 1; i++)
        turn(&t, I_F, 0);
    for (int i = 0; i < rank; i++)
        turn(&t, I_F, 1), turn(&t, I_F, 0);
    for (int i = 0; i < p - rank; i++)
        turn(&t, I_F, 1), turn(&t, I_D, 1), turn(&t, I_W, 1);
    while (t.done[I_F][1] < t.done[I_F][0] || t.done[I_F][0] < n) {
        if (t.done[I_F][0] < n)
            turn(&t, I_F, 0);
        turn(&t, I_D, 0), turn(&t, I_W, 0);
        turn(&t, I_F, 1), turn(&t, I_D, 1), turn(&t, I_W, 1);
    }
    for (int i = 0; i < rank; i++)
        turn(&t, I_D, 0), turn(&t, I_D, 1);
    for (int i = 0; i < p - rank; i++)
        turn(&t, I_D, 0), turn(&t, I_W, 0);
    while (t.done[I_W][1] < n)
        turn(&t, I_W, 1);
    while (t.done[I_W][0] < n)
        turn(&t, I_W, 0);
}

/* Both halves at once. */
static void joined_turn(Turns *t, int chunk)
{
    t->done[I_W][chunk]++;
    put(t->w, I_B, chunk, t->done[I_D][chunk]++);
}

/* W of the first D from *from on in the list whose W is still to come. */
static void late_turn(Turns *t, int *from)
{
    const Instr *list = t->w->out->list;
    while (list[*from].op != I_D)
        ++*from;
    turn(t, I_W, list[(*from)++].chunk);
}

/* DualPipeV: the half of DualPipe (DeepSeek-AI 2024, arXiv:2412.19437, sec 3.2.1) that a V makes of it; eight
 * phases. The last half of the backwards that drain the pipe is split, to put off W: from the middle of phase
 * six on, an odd rank with chunk 1 and an even one with the chunk 0 behind it. */
static void dualpipev(Writer *w, int rank)
{
    int p = w->s->p, m = w->s->m, below = p - 1 - rank, above = rank + 1;
    Turns t = {w};
    BUG_ON(m < 2 * p);
    for (int i = 0; i < 2 * below; i++)
        turn(&t, I_F, 0);
    for (int i = 0; i < above; i++)
        turn(&t, I_F, 0), turn(&t, I_F, 1);
    for (int i = 0; i < below; i++)
        turn(&t, I_D, 1), turn(&t, I_W, 1), turn(&t, I_F, 1);
    for (int i = 0; i < m - 2 * p + above; i++) {
        turn(&t, I_F, 0), joined_turn(&t, 1);
        turn(&t, I_F, 1), joined_turn(&t, 0);
    }
    for (int i = 0; i < below; i++) {
        joined_turn(&t, 1);
        turn(&t, I_F, 1), joined_turn(&t, 0);
    }
    int late = w->out->n;
    for (int i = 0; i < 2 * above; i++) {
        int chunk = i % 2 == 0;
        if (i >= above / 2 * 2 + (rank % 2 == 0))
            turn(&t, I_D, chunk);
        else
            joined_turn(&t, chunk);
    }
    for (int i = 0; i < below; i++)
        late_turn(&t, &late), turn(&t, I_D, 0);
    for (int i = 0; i < above; i++)
        late_turn(&t, &late);
}

/* In a V microbatch j is at stage s at time 2 j + s: a rank's two stages never meet, and nothing waits. */
static void forward_vee(Writer *w, int rank)
{
    int m = w->s->m, ahead = w->s->p - rank; /* forwards of chunk 0 before chunk 1 has its first */
    for (int j = 0; j < m + ahead; j++) {
        if (j >= ahead)
            put(w, I_F, 1, j - ahead);
        if (j < m)
            put(w, I_F, 0, j);
    }
}

static void forward(Writer *w, int rank)
{
    if (w->s->vee)
        forward_vee(w, rank);
    else
        for (int k = 0; k < w->s->m * w->s->v; k++)
            in_groups(w, I_F, k);
}

/* ---- one function for each row of SCHEDULES ---- */

/* generate_NAME: writes the list of each rank r by w. */
#define BY_RANK(name, write)                                                                                 \
    void generate_##name(const PipeShape *s, InstrList *out)                                                 \
    {                                                                                                        \
        for (int r = 0; r < s->p; r++) {                                                                     \
            Writer *w = &(Writer){s, &out[r]};                                                               \
            write;                                                                                           \
        }                                                                                                    \
    }
BY_RANK(gpipe, joined(w, s->m))
BY_RANK(1f1b, joined(w, s->p - r - 1))
BY_RANK(interleaved, interleaved(w, r))
BY_RANK(zb_h1, split(w, s->p - r, r))
BY_RANK(zb_h2, split(w, 2 * (s->p - r) - 1, 2 * r))
BY_RANK(zb_v, zb_v(w, r))
BY_RANK(dualpipev, dualpipev(w, r))
BY_RANK(forward, forward(w, r))

void generate_custom(const PipeShape *s, InstrList *out)
{
    for (int r = 0; r < s->p; r++) {
        out[r].n = s->lists[r].n;
        memcpy(out[r].list, s->lists[r].list, (size_t)out[r].n * sizeof *out[r].list);
    }
}

void schedule_generate(const PipeShape *s, InstrList *out)
{
    static void (*const generate[SCHEDULE_KINDS])(const PipeShape *s, InstrList *out) = {
#define X(id, name, chunks, most, place, backward, least, generator, closed) generate_##generator,
        ALL_SCHEDULES(X)
#undef X
    };
    int chunks = schedule_chunks(s->kind);
    BUG_ON((chunks && s->v != chunks) || (s->kind == SCHEDULE_FORWARD && s->vee && s->v != 2));
    generate[s->kind](s, out);
}
