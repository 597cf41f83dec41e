/* custom -- reads and writes compute lists as text */
#define _GNU_SOURCE
#include "custom.h"
#include "base.h"
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int line, col, rank, stage, mb; InstrKind op; } Action;

typedef struct {
    int p, n;                      /* ranks; actions */
    int lines;                     /* lines that have actions */
    Action *action;                /* [n] in the order of the text */
    int *first;                    /* [lines + 1] index of each line's first action */
    int line, mistakes;            /* line of the text being read; mistakes so far */
    CustomMistake *say;
    void *ctx;
} Reader;

static void mistake(Reader *r, int line, int col, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void mistake(Reader *r, int line, int col, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->mistakes++;
    r->say(r->ctx, line, col, text);
}

static const char letter[] = {[I_F] = 'F', [I_B] = 'B', [I_D] = 'I', [I_W] = 'W'};

/* ---- cells ---- */

/* Reads a number below `most` and moves *s behind it; -1: there is none. */
static int number(const char **s, const char *end, int most)
{
    int64_t n = 0;
    if (*s == end || !isdigit((unsigned char)**s))
        return -1;
    for (; *s < end && isdigit((unsigned char)**s); ++*s)
        n = n < most ? 10 * n + (**s - '0') : n;
    return n < most ? (int)n : -1;
}

static int has_word(const char *s, const char *end, const char *word)
{
    return memmem(s, (size_t)(end - s), word, strlen(word)) != NULL;
}

/* Says why a cell is no action. */
static void refuse_cell(Reader *r, int col, const char *s, const char *end)
{
    static const char *const ours[] = {"SEND", "RECV", "UNSHARD", "RESHARD", "REDUCE_GRAD"};
    char shown[32];
    int n = end - s < 24 ? (int)(end - s) : 24;
    for (int i = 0; i < n; i++)
        shown[i] = isprint((unsigned char)s[i]) ? s[i] : '?';
    shown[n] = 0;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (has_word(s, end, ours[i])) {
            mistake(r, r->line, col, "%s: messages, gathered parameters and reduced gradients are put in by "
                    "this program: give F, I, B and W only", shown);
            return;
        }
    if (has_word(s, end, "OVERLAP") || *s == '(')
        mistake(r, r->line, col, "%s: this build has no overlapped pairs; give the two one after the other",
                shown);
    else
        mistake(r, r->line, col, "'%s' is no action; one is a stage below %d, one of F, I, B, W, and a "
                "microbatch below %d, such as 0F0", shown, STAGES_MOST, MICROBATCHES_MOST);
}

static void read_cell(Reader *r, int col, const char *s, const char *end)
{
    const char *from = s, *at;
    Action a = {.line = r->line, .col = col, .rank = r->lines - 1, .stage = number(&s, end, STAGES_MOST)};
    if (a.stage < 0 || s == end || !(at = memchr(letter, *s, sizeof letter)) || !*at) {
        refuse_cell(r, col, from, end);
        return;
    }
    s++;
    a.op = (InstrKind)(at - letter);
    a.mb = number(&s, end, MICROBATCHES_MOST);
    if (a.mb < 0 || s != end) {
        refuse_cell(r, col, from, end);
        return;
    }
    r->action = xgrow(r->action, r->n, sizeof *r->action);
    r->action[r->n++] = a;
}

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static void read_line(Reader *r, const char *start, const char *end)
{
    int found = 0;
    for (const char *s = start; s < end; s++) {
        const char *to = memchr(s, ',', (size_t)(end - s)), *next = to ? to : end;
        to = next;
        while (s < to && is_blank(*s))
            s++;
        while (to > s && is_blank(to[-1]))
            to--;
        if (to > s && !found++) {
            r->first = xrealloc(r->first, (size_t)(r->lines + 2) * sizeof *r->first);
            r->first[r->lines++] = r->n;
        }
        if (to > s)
            read_cell(r, (int)(s - start) + 1, s, to);
        s = next;
    }
}

static void read_text(Reader *r, const char *text, size_t size)
{
    const char *end = text + size;
    for (const char *s = text; s < end;) {
        const char *to = memchr(s, '\n', (size_t)(end - s));
        to = to ? to : end;
        r->line++;
        read_line(r, s, to);
        s = to + 1;
    }
    if (r->lines)
        r->first[r->lines] = r->n;
    if (r->lines != r->p)
        mistake(r, r->line ? r->line : 1, 1, "the file ends with %d line%s of actions, but the pipeline has "
                "%d ranks: give a line for each", r->lines, r->lines == 1 ? "" : "s", r->p);
}

/* ---- stages ---- */

/* Finds m, v and vee from the stages and microbatches of the actions. */
static void find_placement(Reader *r, CustomLists *c)
{
    const Action *last = r->action, *turn = NULL;
    for (int i = 0; i < r->n; i++) {
        last = r->action[i].stage > last->stage ? &r->action[i] : last;
        turn = !turn && r->action[i].stage == r->p ? &r->action[i] : turn;
        c->m = r->action[i].mb >= c->m ? r->action[i].mb + 1 : c->m;
    }
    c->p = r->p;
    c->v = (last->stage + 1) / r->p;
    if ((last->stage + 1) % r->p || c->v > CHUNKS_MOST) {
        mistake(r, last->line, last->col, "stage %d makes %d stages; %d ranks have as many each, %d at most",
                last->stage, last->stage + 1, r->p, CHUNKS_MOST);
        return;
    }
    c->vee = c->v == 2 && r->p > 1 && turn && turn->rank == r->p - 1;
    for (int k = 0; k < r->lines; k++)
        for (int i = r->first[k]; i < r->first[k + 1]; i++) {
            const Action *a = &r->action[i];
            int there = place_rank(c->vee, c->p, a->stage);
            if (there == a->rank)
                continue;
            mistake(r, a->line, a->col, "stage %d stands in the line of rank %d; %d stages on %d ranks %s "
                    "have it on rank %d", a->stage, a->rank, c->p * c->v, c->p,
                    c->vee ? "as a V (stage p is on the last rank)" : "in a loop", there);
            break;
        }
}

/* ---- order ---- */

/* Of a chunk: the next microbatch of F, of I or B, of W or B. */
typedef struct { int f, d, w; } Done;

/* What is wrong with an action after those in n; NULL: nothing. */
static const char *misplaced(const Action *a, const Done *n)
{
    int next = a->op == I_F ? n->f : a->op == I_W ? n->w : n->d;
    if (a->mb < next)
        return "stands twice";
    if (a->mb > next)
        return "is out of order: the microbatches of a stage run one after the other";
    if (a->op == I_W)
        return a->mb < n->d ? NULL : "comes before its I";
    if (a->op != I_F && a->mb >= n->f)
        return "comes before its F";
    return a->op == I_B && n->w != a->mb ? "is out of order: a W of an earlier microbatch is not done" : NULL;
}

/* Copies a line's actions to the list of its rank. done: [v], zeros. */
static void read_order(Reader *r, CustomLists *c, int rank, Done *done)
{
    InstrList *l = &c->list[rank];
    for (int i = r->first[rank]; i < r->first[rank + 1]; i++) {
        const Action *a = &r->action[i];
        Done *n = &done[a->stage / c->p];
        const char *what = misplaced(a, n);
        if (what) {
            mistake(r, a->line, a->col, "%d%c%d %s", a->stage, letter[a->op], a->mb, what);
            return;
        }
        n->f += a->op == I_F;
        n->d += a->op == I_D || a->op == I_B;
        n->w += a->op == I_W || a->op == I_B;
        c->split |= a->op == I_D;
        l->list[l->n++] = (Instr){.op = (uint8_t)a->op, .chunk = (uint8_t)(a->stage / c->p), .unit = WHOLE,
                                  .mb = (uint16_t)a->mb};
    }
}

/* Checks that a line has every microbatch. done: [v] */
static void read_end(Reader *r, const CustomLists *c, int rank, const Done *done)
{
    const Action *end = &r->action[r->first[rank + 1] - 1];
    for (int k = 0; k < c->v; k++) {
        const Done *n = &done[k];
        int stage = place_stage(c->vee, c->p, rank, k);
        if (n->f != c->m || n->d != c->m || n->w != c->m)
            mistake(r, end->line, end->col, "the line ends with %d F, %d I or B, %d W or B of stage %d; the "
                    "file has %d microbatches", n->f, n->d, n->w, stage, c->m);
    }
}

/* Lowers and checks: lists that are right by themselves may still wait for each other. */
static void check_together(Reader *r, const CustomLists *c)
{
    ScheduleSet set;
    char why[256];
    PipeShape s = {.kind = SCHEDULE_CUSTOM, .p = c->p, .v = c->v, .m = c->m, .vee = c->vee, .lists = c->list,
                   .weight_share = 1};
    schedules_lower(&set, &s, c->list);
    if (!schedules_check(&set, why, sizeof why)) {
        const Action *at = &r->action[0];
        for (int i = 0; set.stuck >= 0 && i < r->n; i++) {
            const Action *a = &r->action[i];
            if (a->rank == set.stuck && a->op == set.stuck_at.op && a->stage / c->p == set.stuck_at.chunk &&
                a->mb == set.stuck_at.mb)
                at = a;
        }
        mistake(r, at->line, at->col, "%d%c%d: %s", at->stage, letter[at->op], at->mb, why);
    }
    schedules_close(&set);
}

int custom_read(CustomLists *c, const char *text, size_t size, int p, CustomMistake *say, void *ctx)
{
    Reader r = {.p = p, .say = say, .ctx = ctx};
    *c = (CustomLists){0};
    read_text(&r, text, size);
    if (!r.mistakes)
        find_placement(&r, c);
    if (!r.mistakes) {
        Done *done = xcalloc((size_t)c->p * (size_t)c->v, sizeof *done);
        c->list = xcalloc((size_t)p, sizeof *c->list);
        c->all = xcalloc((size_t)r.n, sizeof *c->all);
        for (int k = 0; k < p; k++) {
            c->list[k].list = c->all + r.first[k];
            read_order(&r, c, k, done + k * c->v);
        }
        for (int k = 0, ordered = !r.mistakes; k < p && ordered; k++)
            read_end(&r, c, k, done + k * c->v);
        free(done);
    }
    if (!r.mistakes)
        check_together(&r, c);
    free(r.action);
    free(r.first);
    if (r.mistakes)
        custom_close(c);
    return !r.mistakes;
}

void custom_close(CustomLists *c)
{
    free(c->list);
    free(c->all);
    *c = (CustomLists){0};
}

void custom_write(FILE *f, const ScheduleSet *set)
{
    for (int r = 0; r < set->shape.p; r++) {
        const char *between = "";
        for (int i = 0; i < set->rank[r].n; i++) {
            const Instr *in = &set->rank[r].list[i];
            if (in->op > I_W)
                continue;
            fprintf(f, "%s%d%c%d", between, pipe_stage(&set->shape, r, in->chunk), letter[in->op], in->mb);
            between = ",";
        }
        fprintf(f, "\n");
    }
}
