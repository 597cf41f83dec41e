/* train flight -- what the ranks of a run did before it died or hung, and who waited for whom */
#include "comm.h"
#include "commands.h"
#include "file.h"
#include "flight.h"
#include "json_number.h"
#include "schedule.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { COLUMNS = 72, SHOWN = 24 }; /* width of the timeline; instructions of the least active rank in it */

/* The record of one host, and its ranks in the order of the job. */
typedef struct {
    Flight *f;
    double latest;
} Record;
typedef struct {
    const Record *from;
    int local;
    const FlightRank *r;
} Row;

typedef struct {
    const char *path;
    Record *record;
    int records, rows, world;
    Row *row;   /* [rows] by rank */
    double end; /* the latest time of all records, s since 1970 */
    char *lost; /* which files are no whole records, and why; NULL: all are */
    int code;   /* exit code when no record is whole */
} View;

/* ---- reading ---- */

/* Makes a text of a record one line of printable characters. */
static void plain(char *text) { text_plain(text, strlen(text), ""); }

/* Notes a file that is no whole record. */
static void lose(View *v, int code, const char *why)
{
    v->lost = v->lost ? xasprintf("%s; %s", v->lost, why) : xstrdup(why);
    v->code = v->code ? v->code : code;
}

static void read_record(View *v, const char *name)
{
    char why[WHY], *path = xasprintf("%s/%s", v->path, name);
    int64_t size;
    Flight *f = (Flight *)file_read_text(AT_FDCWD, path, 0, (int64_t)1 << 34, &size, why);
    int whole = f && flight_whole(f, (size_t)size);
    if (f && !whole)
        snprintf(why, sizeof why, "%.300s is not a whole flight record of this version", path);
    free(path);
    if (!whole) {
        lose(v, f ? EXIT_COMPARE : EXIT_RESOURCE, why);
        free(f);
        return;
    }
    for (FlightRank *r = f->rank; r < f->rank + f->ranks; r++) {
        plain(r->host);
        plain(r->where);
        plain(r->note);
        plain(r->fate);
        for (int k = 0; k < FLIGHT_GROUPS; k++)
            plain(r->group[k].name);
    }
    int dead = flight_dead(f);
    if (dead >= 0 && !f->rank[dead].fate[0])
        strcpy(f->rank[dead].fate, "died");
    v->record = xgrow(v->record, v->records, sizeof *v->record);
    v->record[v->records++] = (Record){f, flight_latest(f)};
    v->world = f->world;
    v->end = fmax(v->end, flight_latest(f) + f->wall);
}

static int by_rank(const void *a, const void *b)
{
    int s = ((const Row *)a)->r->rank, t = ((const Row *)b)->r->rank;
    return (s > t) - (s < t);
}

static void read_all(View *v)
{
    DIR *dir = opendir(v->path);
    if (!dir)
        die(EXIT_CONFIG, "usage", "train flight: cannot open the folder %s; change: give a run directory",
            v->path);
    for (struct dirent *e; (e = readdir(dir));)
        if (!strncmp(e->d_name, "flight.", 7) && e->d_name[7] &&
            !e->d_name[7 + strspn(e->d_name + 7, "0123456789")])
            read_record(v, e->d_name);
    closedir(dir);
    if (v->lost && !v->records)
        die(v->code, "flight",
            "%s; change: see whether you may read it, or read it with the build that wrote it", v->lost);
    if (v->lost)
        warn("%s: its ranks are left out; change: read it with the build that wrote it, or delete it",
             v->lost);
    free(v->lost);
    if (!v->records)
        die(EXIT_CONFIG, "usage",
            "train flight: %s holds no flight record; change: give the directory of a run "
            "that has died or hung: it is written then",
            v->path);
    for (int k = 0; k < v->records; k++)
        for (int i = 0; i < v->record[k].f->ranks; i++)
            if (v->record[k].f->rank[i].pid) {
                v->row = xgrow(v->row, v->rows, sizeof *v->row);
                v->row[v->rows++] = (Row){&v->record[k], i, &v->record[k].f->rank[i]};
            }
    if (v->rows)
        qsort(v->row, (size_t)v->rows, sizeof *v->row, by_rank);
}

/* ---- what a rank did and does ---- */

static double wall(const Row *w, double t)
{
    return t + w->from->f->wall;
}
static int64_t kept(const FlightRank *r)
{
    return r->instrs < FLIGHT_INSTRS ? r->instrs : FLIGHT_INSTRS;
}

/* The rank's record k from the end, 0: the newest. */
static const FlightInstr *instr_at(const FlightRank *r, int64_t k)
{
    return &r->instr[(r->instrs - 1 - k) % FLIGHT_INSTRS];
}

static const char *name_of(const FlightInstr *i, char text[32])
{
    Instr x;
    memcpy(&x, &i->what, sizeof x);
    if (x.op < INSTR_KINDS && x.phase < 3)
        instr_print(&x, text, 32);
    else
        snprintf(text, 32, "?");
    return text;
}

/* Writes what the rank does at the end of its record, and returns since when, on its own clock. */
static double doing(const Row *w, char *text, int size)
{
    const FlightRank *r = w->r;
    char wait[96];
    if (r->left || !flight_is_waiting(w->from->f, w->local, w->from->latest)) {
        snprintf(text, (size_t)size, "%s%s%s",
                 r->left      ? "has left"
                 : r->fate[0] ? r->fate
                              : "does not wait",
                 r->note[0] ? ", in " : "", r->note);
        return r->progress;
    }
    int rank = flight_waits_for(w->from->f, w->local);
    flight_print_wait(w->from->f, w->local, wait, sizeof wait);
    if (rank >= 0)
        snprintf(text, (size_t)size, "waits for rank %d: %s, in %s", rank, wait, r->note);
    else
        snprintf(text, (size_t)size, "waits for %s, which all%s have joined, in %s", wait,
                 rank == FLIGHT_UNKNOWN ? " of this host" : "", r->note);
    return r->since;
}

/* ---- the timeline ---- */

/* Where the drawn time begins and ends: the last SHOWN instructions of the rank that has the fewest there. */
static void window(const View *v, double *from, double *to)
{
    *from = INFINITY;
    *to = -INFINITY;
    for (int i = 0; i < v->rows; i++) {
        const FlightRank *r = v->row[i].r;
        int64_t n = kept(r) < SHOWN ? kept(r) : SHOWN;
        if (n) {
            const FlightInstr *last = instr_at(r, 0);
            *from = fmin(*from, wall(&v->row[i], instr_at(r, n - 1)->start));
            *to = fmax(*to, wall(&v->row[i], fmax(last->start, last->end)));
        }
    }
    *to += (*to - *from) / 16;
}

/* Draws a rank's row: the letter of the instruction at each moment, - while its message is awaited, a blank
 * between instructions. */
static void draw(const Row *w, double from, double to, char line[COLUMNS + 1])
{
    memset(line, ' ', COLUMNS);
    line[COLUMNS] = 0;
    for (int64_t k = kept(w->r) - 1; k >= 0; k--) {
        const FlightInstr *i = instr_at(w->r, k);
        char name[32];
        double scale = COLUMNS / (to - from), begun = i->begun > 0 ? wall(w, i->begun) : to,
               start = wall(w, i->start),
               end = i->end > 0 ? wall(w, i->end)
                     : k        ? wall(w, instr_at(w->r, k - 1)->start)
                                : to;
        int first = (int)fmin(COLUMNS, fmax(0, (start - from) * scale)),
            last = (int)fmax(-1, fmin(COLUMNS - 1, (end - from) * scale)),
            awaits = i->begun > 0 ? begun - start > 1 / scale
                                  : !k && flight_is_waiting(w->from->f, w->local, w->from->latest);
        name_of(i, name);
        for (int c = first; c <= last && end >= from; c++)
            line[c] = awaits && from + c / scale < begun ? '-' : *name;
    }
}

static void print_timeline(const View *v)
{
    double from, to;
    char line[COLUMNS + 1], name[32];
    window(v, &from, &to);
    if (!(to > from))
        return;
    printf("\nthe last instructions: %.3f s, %.3g ms a column; - awaits a message\n", to - from,
           1e3 * (to - from) / COLUMNS);
    for (int i = 0; i < v->rows; i++) {
        draw(&v->row[i], from, to, line);
        printf("%5d |%s|\n", v->row[i].r->rank, line);
    }
    printf("\n%5s  newest last: instruction, iteration, seconds before the end and it took\n", "rank");
    for (int i = 0; i < v->rows; i++) {
        const Row *w = &v->row[i];
        printf("%5d ", w->r->rank);
        for (int64_t n = kept(w->r), k = n < 6 ? n - 1 : 5; k >= 0; k--) {
            const FlightInstr *x = instr_at(w->r, k);
            printf(" %s %" PRId64 " -%.3f", name_of(x, name), x->iteration, v->end - wall(w, x->start));
            if (x->end > 0)
                printf(" %.4f", x->end - x->start);
            printf("%s%s", x->end > 0 ? "" : " not done", k ? "," : "\n");
        }
        if (!kept(w->r))
            printf(" none\n");
    }
}

/* ---- the whole ---- */

/* For whom the ranks of a host wait: the rank that the launcher saw die, or one that a rank saw end or stand
 * still, before others. Where all only waited for each other when the job was killed: rank -1. */
static FlightBlame blame(const Record *rec)
{
    const Flight *f = rec->f;
    int dead = flight_dead(f);
    char *first = xcalloc((size_t)f->ranks, 1);
    for (int i = 0; i < f->ranks; i++)
        first[i] = dead < 0 ? f->rank[i].fate[0] != 0 : i == dead;
    FlightBlame b = flight_blame(f, rec->latest, NULL, first);
    free(first);
    if (b.lost)
        b.rank = -1;
    b.lost = b.rank >= 0 && b.local >= 0 && strstr(f->rank[b.local].fate, FLIGHT_LOST) != NULL;
    return b;
}

static void print_blame(const View *v)
{
    for (int k = 0; k < v->records; k++) {
        const Record *rec = &v->record[k];
        FlightBlame b = blame(rec);
        if (b.rank < 0)
            continue;
        printf("host %s: %s", rec->f->rank[0].host, b.local >= 0 ? rec->f->rank[b.local].where : "");
        if (b.local < 0)
            printf("rank %d of another host", b.rank);
        printf(": %d %s for it%s\n", b.waiting, b.waiting == 1 ? "rank waits" : "ranks wait",
               b.lost ? ": " FLIGHT_LOST : "");
    }
}

static void print(const View *v)
{
    char text[400], day[32];
    time_t end = (time_t)v->end;
    strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", localtime(&end));
    char *path = text_shown(v->path);
    printf("flight record of %s: %d of %d ranks, until %s\n", path, v->rows, v->world, day);
    free(path);
    print_blame(v);
    printf("\n%5s %9s %6s  what, and for how many seconds\n", "rank", "process", "steps");
    for (int i = 0; i < v->rows; i++) {
        const Row *w = &v->row[i];
        double since = doing(w, text, sizeof text);
        printf("%5d %9d %6" PRId64 "  %s: %.3f\n", w->r->rank, w->r->pid, (int64_t)w->r->steps, text,
               fmax(0, v->end - wall(w, since)));
    }
    print_timeline(v);
}

static json_t *row_json(const Row *w)
{
    const FlightRank *r = w->r;
    char text[400], name[32];
    double since = doing(w, text, sizeof text);
    int whom = flight_waits_for(w->from->f, w->local);
    json_t *instrs = json_array(), *ops = json_array();
    for (int64_t k = kept(r) - 1; k >= 0; k--) {
        const FlightInstr *i = instr_at(r, k);
        json_array_append_new(instrs,
                              json_pack("{s:s s:I s:f s:f s:f}", "instruction", name_of(i, name), "iteration",
                                        (json_int_t)i->iteration, "start", wall(w, i->start), "begun",
                                        i->begun > 0 ? wall(w, i->begun) : 0., "end",
                                        i->end > 0 ? wall(w, i->end) : 0.));
    }
    for (int64_t k = r->ops < FLIGHT_OPS ? r->ops - 1 : FLIGHT_OPS - 1; k >= 0; k--) {
        const FlightOp *o = &r->op[(r->ops - 1 - k) % FLIGHT_OPS];
        if (o->kind < 0 || o->kind >= COMM_KINDS)
            continue;
        json_array_append_new(
            ops, json_pack("{s:s s:o s:i s:I s:I s:f s:f}", "kind", comm_kind_name[o->kind], "group",
                           json_text(o->group > 0 && o->group <= FLIGHT_GROUPS
                                         ? r->group[o->group - 1].name
                                         : ""),
                           "peer", o->peer, "sequence", (json_int_t)o->seq, "bytes", (json_int_t)o->bytes,
                           "start", wall(w, o->start), "end", o->end > 0 ? wall(w, o->end) : 0.));
    }
    return json_pack("{s:i s:i s:o s:o s:o s:o s:f s:I s:f s:i s:o s:o}", "rank", r->rank, "pid", r->pid,
                     "host", json_text(r->host), "where", json_text(r->where), "note", json_text(r->note),
                     "state", json_text(text), "since", wall(w, since), "steps", (json_int_t)r->steps,
                     "step_p99", flight_p99(r), "waits_for", whom < 0 ? -1 : whom,
                     "instructions", instrs, "operations", ops);
}

static void print_json(const View *v)
{
    json_t *ranks = json_array(), *waited = json_array();
    for (int i = 0; i < v->rows; i++)
        json_array_append_new(ranks, row_json(&v->row[i]));
    for (int k = 0; k < v->records; k++) {
        FlightBlame b = blame(&v->record[k]);
        if (b.rank >= 0)
            json_array_append_new(waited, json_pack("{s:i s:b s:i}", "rank", b.rank, "lost_message", b.lost,
                                                    "waiting", b.waiting));
    }
    json_t *o = json_pack("{s:i s:f s:o s:o}", "world", v->world, "end", v->end, "waited_for", waited,
                          "ranks", ranks);
    json_dumpf(o, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    putchar('\n');
    json_decref(o);
}

int command_flight(int argc, char **argv)
{
    View v = {0};
    Args a = cli_open("flight", argc, argv);
    int json = args_switch(&a, "--json");
    v.path = cli_next(&a, "RUN, a run directory");
    cli_end(&a);
    free(a.v);
    read_all(&v);
    if (json)
        print_json(&v);
    else
        print(&v);
    for (int k = 0; k < v.records; k++)
        free(v.record[k].f);
    free(v.record);
    free(v.row);
    return EXIT_DONE;
}
