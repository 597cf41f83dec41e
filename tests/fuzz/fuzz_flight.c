/* fuzz_flight -- flight records as `train flight` reads and prints them. A run has the records of one or two
 * hosts, of one to three ranks each, all of which wait for each other; the input patches them.
 *
 *   byte 0     bits 0 and 1: ranks of the first host; bit 2: a second host, with one rank; bit 3: --json;
 *              bits 4 and 5, one of them: nothing is printed, which takes most of the time, but all is judged
 *   the rest   patches: field, rank, place in it (a byte each), then the value */
#define file_read_text fuzz_read_text
#include "flight_view.c"
#undef file_read_text
#include "fuzz.h"
#include "schedule.h"
#include <stddef.h>

enum { HOSTS = 2, RANKS = 3, PATCHES = 64, INSTRS = 8, OPS = 6 };

/* Fields by offset in the record of a rank (rank 0 and `head`: of the host); size: bytes of an element. */
#define FIELD(f)                                                                                             \
    {                                                                                                        \
        offsetof(FlightRank, f), sizeof((FlightRank *)0)->f, 1, 0, 0                                         \
    }
#define ITEM(list, f)                                                                                        \
    {                                                                                                        \
        offsetof(FlightRank, list) + offsetof(__typeof__(*((FlightRank *)0)->list), f),                      \
            sizeof((FlightRank *)0)->list->f, sizeof *((FlightRank *)0)->list, 0, 0                          \
    }
#define HEAD(f)                                                                                              \
    {                                                                                                        \
        offsetof(Flight, f), sizeof((Flight *)0)->f, 1, 1, 0                                                 \
    }
#define CHARS(f, n)                                                                                          \
    {                                                                                                        \
        offsetof(FlightRank, f) + n, 1, 1, 0, 0                                                              \
    }
static const struct {
    size_t at;
    int size;
    size_t step;
    int head, unused;
} fields[] = {
    FIELD(rank),
    FIELD(pid),
    FIELD(phase),
    FIELD(left),
    FIELD(phase_start),
    FIELD(progress),
    FIELD(waits),
    FIELD(since),
    FIELD(alive),
    FIELD(steps),
    FIELD(instrs),
    FIELD(ops),
    FIELD(members),
    ITEM(instr, what),
    ITEM(instr, iteration),
    ITEM(instr, start),
    ITEM(instr, begun),
    ITEM(instr, end),
    ITEM(op, number),
    ITEM(op, seq),
    ITEM(op, bytes),
    ITEM(op, start),
    ITEM(op, end),
    ITEM(op, group),
    ITEM(op, peer),
    ITEM(op, kind),
    ITEM(op, device),
    ITEM(group, id),
    ITEM(group, first),
    ITEM(group, size),
    ITEM(group, at),
    ITEM(group, open),
    ITEM(group, calls),
    {offsetof(FlightRank, member), 4, 4, 0, 0},
    {offsetof(FlightRank, bin), 4, 4, 0, 0},
    HEAD(ranks),
    HEAD(world),
    HEAD(wall),
    HEAD(host),
    HEAD(code),
    {offsetof(Flight, dead), 8, 1, 1, 0},
    CHARS(host, 0),
    CHARS(host, 1),
    CHARS(host, 63),
    CHARS(where, 0),
    CHARS(where, 5),
    CHARS(note, 0),
    CHARS(note, 111),
    CHARS(fate, 0),
    CHARS(fate, 159),
    {offsetof(FlightRank, group), 1, 1, 0, 0},
};
#define FIELDS (sizeof fields / sizeof *fields)

static Flight *record[HOSTS][RANKS + 1]; /* [host][ranks] of exactly its size */
static struct {
    uint8_t *at;
    int size;
    uint64_t was;
} patch[PATCHES];
static int patches;

static void fill_rank(FlightRank *r, int rank, int world)
{
    double t = 1000;
    *r = (FlightRank){.rank = rank,
                      .pid = 4000 + rank,
                      .phase = PHASE_STEP,
                      .progress = 1003.2,
                      .waits = OPS,
                      .since = 1003,
                      .alive = 1003.1,
                      .steps = 5,
                      .instrs = INSTRS,
                      .ops = OPS};
    snprintf(r->host, sizeof r->host, "host%d", rank / 2);
    snprintf(r->where, sizeof r->where, "rank %d tp 0 pp %d", rank, rank);
    snprintf(r->note, sizeof r->note, "iteration 6, F1.0");
    for (int i = 0; i < INSTRS; i++, t += 0.1) {
        Instr x = {.op = (uint8_t)(i % INSTR_KINDS), .mb = (uint16_t)i};
        r->instr[i] = (FlightInstr){.iteration = i / 6, .start = t, .begun = t + 0.01, .end = t + 0.08};
        memcpy(&r->instr[i].what, &x, sizeof x);
    }
    r->instr[INSTRS - 1].end = 0;
    for (int i = 0; i < OPS; i++)
        r->op[i] = (FlightOp){.number = i + 1,
                              .seq = i / 2 + 1,
                              .bytes = 4096,
                              .start = 1000 + i * 0.1,
                              .end = i < OPS - 1 ? 1000.05 + i * 0.1 : 0,
                              .group = 1 + i % 2,
                              .peer = -1,
                              .kind = COMM_ALL_REDUCE};
    r->op[OPS - 1] = (FlightOp){.number = OPS,
                                .seq = 3,
                                .bytes = 64,
                                .start = 1003,
                                .group = 2,
                                .peer = (rank + 1) % world,
                                .kind = COMM_RECV};
    for (int g = 0; g < 2; g++) {
        r->group[g] = (FlightGroup){.id = 7 + g, .size = world, .at = g * world, .open = 1, .calls = 10};
        snprintf(r->group[g].name, sizeof r->group[g].name, g ? "pp" : "tp");
        for (int k = 0; k < world; k++)
            r->member[g * world + k] = k;
    }
    r->members = 2 * world;
    r->bin[150] = 5;
}

static Flight *get_record(int host, int ranks)
{
    Flight **f = &record[host][ranks];
    if (*f)
        return *f;
    *f = xcalloc(1, flight_bytes(ranks));
    memcpy((*f)->magic, FLIGHT_MAGIC, sizeof(*f)->magic);
    (*f)->ranks = ranks;
    (*f)->world = RANKS + 1;
    (*f)->wall = 1.7e9;
    (*f)->host = host * RANKS;
    snprintf((*f)->run, sizeof(*f)->run, "@run runs/x");
    for (int i = 0; i < ranks; i++)
        fill_rank(&(*f)->rank[i], host * RANKS + i, RANKS + 1);
    return *f;
}

char *fuzz_read_text(int dir, const char *name, int nofollow, int64_t limit, int64_t *size, char why[WHY]);
char *fuzz_read_text(int dir, const char *name, int nofollow, int64_t limit, int64_t *size, char why[WHY])
{
    (void)dir, (void)nofollow, (void)limit, (void)why;
    Flight *f = record[name[strlen(name) - 1] - '0'][0];
    *size = (int64_t)flight_bytes(f == record[1][1] ? 1 : f == record[0][1] ? 1 : f == record[0][2] ? 2 : 3);
    return memcpy(xcalloc(1, (size_t)*size), f, (size_t)*size);
}

/* Writes the patches of the input into the records; takes back those of the run before. */
static void put_patches(int ranks, int hosts, const uint8_t *p, size_t n)
{
    while (patches--)
        memcpy(patch[patches].at, &patch[patches].was, (size_t)patch[patches].size);
    for (patches = 0; n > 3 && patches < PATCHES; patches++) {
        int k = (int)(fuzz_take(&p, &n, 1) % FIELDS), rank = (int)fuzz_take(&p, &n, 1), size = fields[k].size;
        size_t place = fuzz_take(&p, &n, 1), many = fields[k].step > 1 ? INSTRS : 1;
        Flight *f = hosts > 1 && rank & 64 ? record[1][1] : record[0][ranks];
        uint8_t *base = (uint8_t *)&f->rank[f == record[1][1] ? 0 : rank % ranks];
        patch[patches].at =
            (fields[k].head ? (uint8_t *)f : base) + fields[k].at + place % many * fields[k].step;
        patch[patches].size = size;
        memcpy(&patch[patches].was, patch[patches].at, (size_t)size);
        uint64_t value = fuzz_take(&p, &n, (size_t)size);
        memcpy(patch[patches].at, &value, (size_t)size);
    }
}

/* All that is worked out for printing. */
static void judge(View *v)
{
    char text[400], line[COLUMNS + 1], name[32];
    double from, to;
    window(v, &from, &to);
    for (int k = 0; k < v->records; k++)
        blame(&v->record[k]);
    for (int i = 0; i < v->rows; i++) {
        Row *w = &v->row[i];
        if (*w->r->fate || i % 2)
            doing(w, text, sizeof text);
        if (to > from)
            draw(w, from, to, line);
        if (kept(w->r))
            name_of(instr_at(w->r, kept(w->r) - 1), name);
    }
}

static void run(const uint8_t *p, size_t n)
{
    int kind = (int)fuzz_take(&p, &n, 1), ranks = kind % 4 % RANKS + 1, hosts = kind & 4 ? 2 : 1;
    fuzz_running = 0; /* the records outlive the run */
    record[0][0] = get_record(0, ranks);
    record[1][0] = get_record(1, 1);
    fuzz_running = 1;
    put_patches(ranks, hosts, p, n);
    View v = {.path = "x"};
    fuzz_file("flight.0", "", 0);
    if (hosts > 1)
        fuzz_file("flight.1", "", 0);
    read_all(&v);
    if (kind & 48)
        judge(&v);
    else if (kind & 8)
        print_json(&v);
    else
        print(&v);
    json_t *row = (kind & 56) == 8 && v.rows ? row_json(&v.row[v.rows - 1]) : NULL;
    if ((kind & 56) == 8 && v.rows && !row)
        fuzz_found("a rank without its JSON");
    json_decref(row);
    for (int i = 0; i < v.records; i++)
        free(v.record[i].f);
    free(v.record);
    free(v.row);
}

static void seeds(void)
{
    for (int kind = 0; kind < 64; kind++) {
        uint8_t p[4 + 12 * 8] = {(uint8_t)kind};
        fuzz_seed(p, 1);
        for (size_t k = 0; k < FIELDS; k++) {
            p[1] = (uint8_t)k;
            p[3] = (uint8_t)(k % INSTRS);
            p[4] = (uint8_t)k;
            fuzz_seed(p, 12);
        }
    }
}

const FuzzTarget fuzz_flight = {"flight", run, seeds, NULL, {EXIT_COMPARE, EXIT_CONFIG}, NULL};
