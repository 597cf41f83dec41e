/* config_layout -- layout strings, which share layers out over virtual stages
 *
 *   E  embedding          x*n     x repeated n times
 *   t  layer              (..)*n  a group repeated n times
 *   L  loss               ,       no meaning: commas are removed before the string is read
 *   |  next virtual stage, in model order
 *
 * The grammar is Megatron-LM's (pipeline_parallel_layer_layout.py) without m (multi-token
 * prediction). */
#define _GNU_SOURCE
#include "config_table.h"
#include <ctype.h>

#define MARKS_MAX (STAGES_MOST + 10000 + 2)
static const char legal[] = "E (embedding), t (layer), L (loss), | (next stage), x*n, (..)*n";

typedef struct { char c; int at; } Mark;        /* at: position in the user's string, from 1 */

typedef struct {
    const Mark *in;     /* [n] characters without commas */
    int n, i;           /* length of in; next one to read */
    Mark *out;          /* [made] characters with all repetitions written out */
    int made;
    char *why;          /* what is wrong, and where; NULL: nothing so far */
} LayoutText;

static int here(const LayoutText *l)
{
    return l->i < l->n ? l->in[l->i].at : l->n ? l->in[l->n - 1].at + 1 : 1;
}
static char peek(const LayoutText *l) { return l->i < l->n ? l->in[l->i].c : 0; }

static int wrong(LayoutText *l, int at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int wrong(LayoutText *l, int at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    l->why = textf("character %d: %s", at, textv(fmt, ap));
    va_end(ap);
    return 0;
}

/* Reads a repetition *n behind a mark or a group into *times; 1 if there is none. must: it may not be
 * left out. */
static int repeat(LayoutText *l, int must, int *times)
{
    *times = 1;
    if (peek(l) != '*')
        return !must || wrong(l, here(l), "a group (..) needs *n, how often it stands");
    l->i++;
    int at = here(l);
    int64_t n = 0;
    for (; isdigit((unsigned char)peek(l)); l->i++)
        n = n > MARKS_MAX ? n : 10 * n + (peek(l) - '0');
    if (n < 1 || n > MARKS_MAX)
        return wrong(l, at, "* needs a number from 1 to %d", MARKS_MAX);
    if (peek(l) == '*')
        return wrong(l, here(l), "a repetition of a repetition; write one number");
    *times = (int)n;
    return 1;
}

/* Repeats the marks made since `from`, so that they stand there `times` times. */
static int copy(LayoutText *l, int from, int times, int at)
{
    int64_t length = l->made - from;
    if (from + length * times > MARKS_MAX)
        return wrong(l, at, "the string stands for more than %d layers and stages", MARKS_MAX);
    for (int64_t i = length; i < length * times; i++)
        l->out[l->made++] = l->out[from + i % length];
    return 1;
}

static int mark(LayoutText *l)
{
    Mark m = l->in[l->i++];
    int times, from = l->made;
    if (m.c == 'm')
        return wrong(l, m.at, "m (multi-token prediction) is not in this build; legal: %s", legal);
    if (m.c == '*')
        return wrong(l, m.at, "* repeats what stands before it, and there is nothing");
    if (!strchr("EtL|", m.c))
        return wrong(l, m.at, "%s; legal: %s", m.c == ' ' ? "a blank" : quoted(&m.c, 1), legal);
    if (l->made == MARKS_MAX)
        return wrong(l, m.at, "the string stands for more than %d layers and stages", MARKS_MAX);
    l->out[l->made++] = m;
    return repeat(l, 0, &times) && copy(l, from, times, m.at);
}

static int group(LayoutText *l)
{
    int at = here(l), from = l->made, times;
    for (l->i++; peek(l) != ')';) {
        if (!peek(l))
            return wrong(l, at, "this ( is not closed");
        if (peek(l) == '(')
            return wrong(l, here(l), "a group within a group; legal inside: E, t, L, |, x*n");
        if (!mark(l))
            return 0;
    }
    if (l->made == from)
        return wrong(l, at, "an empty group");
    l->i++;
    return repeat(l, 1, &times) && copy(l, from, times, at);
}

/* Checks that the string has one E, first, and one L, last. */
static int ends(LayoutText *l)
{
    if (!l->made)
        return wrong(l, 1, "the string is empty; legal: %s", legal);
    if (l->out[0].c != 'E')
        return wrong(l, l->out[0].at, "'%c', but the model begins with E (embedding)", l->out[0].c);
    for (int i = 1; i < l->made; i++) {
        if (l->out[i].c == 'E')
            return wrong(l, l->out[i].at, "E (embedding) a second time; it stands once, first");
        if (l->out[i - 1].c == 'L')
            return wrong(l, l->out[i].at, "'%c' behind L (loss), with which the model ends", l->out[i].c);
    }
    if (l->out[l->made - 1].c != 'L')
        return wrong(l, here(l), "the string ends without L (loss)");
    return 1;
}

char *config_parse_layout(const char *text, const int **layers, int *stages)
{
    size_t length = strlen(text);
    Mark *in = xcalloc(length + 1, sizeof *in);
    LayoutText l = {.in = in, .out = xcalloc(MARKS_MAX, sizeof *l.out)};
    int ok = 1;
    for (size_t i = 0; i < length; i++)
        if (text[i] != ',')
            in[l.n++] = (Mark){text[i], (int)i + 1};
    while (ok && l.i < l.n) {
        if (peek(&l) == ')')
            ok = wrong(&l, here(&l), "this ) closes nothing");
        else
            ok = peek(&l) == '(' ? group(&l) : mark(&l);
    }
    ok = ok && ends(&l);
    if (ok) {
        int n = 1, *count, s = 0;
        for (int i = 0; i < l.made; i++)
            n += l.out[i].c == '|';
        count = keep_alloc((size_t)n, sizeof *count);
        for (int i = 0; i < l.made; i++) {
            s += l.out[i].c == '|';
            count[s] += l.out[i].c == 't';
        }
        *layers = count;
        *stages = n;
    }
    free(in);
    free(l.out);
    return l.why;
}

char *config_print_layout(const int *layers, int n)
{
    char *text = NULL;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    for (int s = 0; s < n; s++) {
        fprintf(f, "%s%s%s", s ? "|" : "", s ? "" : "E", layers[s] ? "t" : "");
        if (layers[s] > 1)
            fprintf(f, "*%d", layers[s]);
    }
    fprintf(f, "L");
    fclose(f);
    return text;
}
