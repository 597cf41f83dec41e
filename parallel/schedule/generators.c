/* generators -- in which order a rank computes, as its paper says */
#include "base.h"
#include "generators.h"
#include "vee.h"
#include <string.h>

typedef struct { const PipeShape *s; InstrList *out; } Writer;

static void put(Writer *w, InstrKind op, int chunk, int mb)
{
    w->out->list[w->out->n++] =
        (Instr){.op = (uint8_t)op, .chunk = (uint8_t)chunk, .unit = WHOLE, .mb = (uint16_t)mb};
}

/* Makes the B written last run beside the F before it. */
static void pair(Writer *w) { w->out->list[w->out->n - 1].join = (uint8_t)w->s->paired; }

/* Writes `ahead` F, then F and B in turn, then the B that are left. gpipe: ahead = m. */
static void joined(Writer *w, int ahead)
{
    int m = w->s->m, f = 0;
    while (f < ahead && f < m)
        put(w, I_F, 0, f++);
    for (int b = 0; b < m; b++) {
        int next = f < m;
        if (next)
            put(w, I_F, 0, f++);
        put(w, I_B, 0, b);
        if (next)
            pair(w);
    }
}

/* The F before the first pair. A microbatch is sent on when its pair ends, so twice as many are on their way
 * as without pairs; Megatron-LM's combined 1F1B has as many. */
static int ahead_1f1b(const PipeShape *s, int rank)
{
    return s->paired ? 2 * (s->p - rank) - 1 : s->p - rank - 1;
}

/* Writes `ahead` F; then in turn D, the W of `late` microbatches before, and F; then the W that are left. */
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

/* Writes the k-th instruction of an order by groups of n microbatches, the last group shorter: a group runs
 * all chunks before the next group begins. */
static void in_groups(Writer *w, InstrKind op, int k)
{
    int m = w->s->m, v = w->s->v, n = w->s->group ? w->s->group : w->s->p;
    int first = k / (n * v) * n, size = m - first < n ? m - first : n, in = k - first * v, chunk = in / size;
    put(w, op, op == I_F ? chunk : v - 1 - chunk, first + in % size);
}

static void interleaved(Writer *w, int rank)
{
    int p = w->s->p, v = w->s->v, n = w->s->group ? w->s->group : p, total = w->s->m * v, f = 0;
    int ahead = 2 * (p - rank - 1) + (v - 1) * n + w->s->paired;
    while (f < ahead && f < total)
        in_groups(w, I_F, f++);
    for (int b = 0; b < total; b++) {
        int next = f < total;
        if (next)
            in_groups(w, I_F, f++);
        in_groups(w, I_B, b);
        if (next)
            pair(w);
    }
}

/* ---- two chunks a rank, placed as a V ---- */

/* done: next microbatch of each operation and chunk. */
typedef struct { Writer *w; int done[4][2]; } Turns;

/* Writes the next microbatch of an operation and chunk, if there is one. */
static void turn(Turns *t, InstrKind op, int chunk)
{
    int mb = t->done[op][chunk]++;
    if (mb < t->w->s->m)
        put(t->w, op, chunk, mb);
}

/* Runs the phases of a pipeline with at least 2p - 1 microbatches, and leaves out microbatches from m on. */
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

/* Writes the next B of a chunk: D and W at once. */
static void joined_turn(Turns *t, int chunk)
{
    t->done[I_W][chunk]++;
    put(t->w, I_B, chunk, t->done[I_D][chunk]++);
}

/* Writes the W of the first D at or after *from in the list, and moves *from behind that D. */
static void late_turn(Turns *t, int *from)
{
    const Instr *list = t->w->out->list;
    while (list[*from].op != I_D)
        ++*from;
    turn(t, I_W, list[(*from)++].chunk);
}

/* DualPipeV: one half of DualPipe (DeepSeek-AI 2024, arXiv:2412.19437, sec 3.2.1), placed as a V; eight
 * phases. From the middle of phase six on the backwards that drain the pipeline are split, to put off W: on
 * an odd rank from a chunk 1 on, on an even rank from the chunk 0 behind it. */
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
        if (i || below)                    /* the last rank's first F is what its neighbour waits for */
            pair(w);
        turn(&t, I_F, 1), joined_turn(&t, 0), pair(w);
    }
    for (int i = 0; i < below; i++) {
        joined_turn(&t, 1);
        turn(&t, I_F, 1), joined_turn(&t, 0), pair(w);
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

/* In a V microbatch j runs on stage s at time 2 j + s: a rank's two stages never meet, no rank waits. */
static void forward_vee(Writer *w, int rank)
{
    int m = w->s->m, ahead = w->s->p - rank; /* F of chunk 0 before the first of chunk 1 */
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

/* Defines generate_NAME: for each rank r, `write` writes its list by w. */
#define BY_RANK(name, write)                                                                                 \
    void generate_##name(const PipeShape *s, InstrList *out)                                                 \
    {                                                                                                        \
        for (int r = 0; r < s->p; r++) {                                                                     \
            Writer *w = &(Writer){s, &out[r]};                                                               \
            write;                                                                                           \
        }                                                                                                    \
    }
BY_RANK(gpipe, joined(w, s->m))
BY_RANK(1f1b, joined(w, ahead_1f1b(s, r)))
BY_RANK(interleaved, interleaved(w, r))
BY_RANK(zb_h1, split(w, s->p - r, r))
BY_RANK(zb_h2, split(w, 2 * (s->p - r) - 1, 2 * r))
BY_RANK(zb_v_equal, zb_v(w, r))
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
