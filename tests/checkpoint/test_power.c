/* test_power -- the executable, with a record of what it does to files, and the states that a power loss may
 * leave of that; for tests/checkpoint/power.sh
 *
 *   POWER_ROOT=DIR POWER_LOG=FILE test_power ...      runs as `train`, and records (power_record.h)
 *   test_power states FILE ROOT SEEDS [EVERY COMMAND]
 *       makes the states in ROOT one after the other, and checks that ROOT/run holds the newest whole
 *       checkpoint and that no other file of it, and no corpus, is a half one. COMMAND, a line for the shell,
 *       is run on each EVERY-th state and ends with 0 if it could go on from it.
 *
 * The power is lost after each operation of the record in turn. What had been flushed is there. Of all else
 * any part may be: each name in a folder by itself, a rename as one; the bytes of each write whole, cut, as
 * zeros, or not at all. A rename between two folders lasts once one of them is flushed, as in a journal.
 * Choices: nothing, everything, names without bytes, names with zeros, bytes without names, and SEEDS random
 * ones. After Pillai et al. 2014, "All File Systems Are Not Created Equal", OSDI. */
#define _GNU_SOURCE
#include "power_record.h"
#include "run_directory.h"
#include "source.h"
#include "test.h"
#include <ftw.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);

/* ---- the record */

/* Numbers of files: an inode may be used again, a number is not. */
typedef struct { Op op; const char *data; int id, other, dir[2], sync; } Step;  /* sync: when it is flushed */
static Step *step;
static int steps, files;
static int64_t *inode;              /* [files] */

static int number(int64_t ino, int made)
{
    if (!ino)
        return -1;
    for (int i = files; !made && i-- > 0;)
        if (inode[i] == ino)
            return i;
    inode = xrealloc(inode, (size_t)(files + 1) * sizeof *inode);
    inode[files] = ino;
    return files++;
}

static int flushes(const Step *s, const Step *of)
{
    return s->op.kind == OP_SYNC && (of->op.kind == OP_WRITE || of->op.kind == OP_CUT
                                         ? s->id == of->id : s->id == of->dir[0] || s->id == of->dir[1]);
}

static void read_record(const char *path)
{
    char why[WHY];
    int64_t size;
    char *text = file_read_text(AT_FDCWD, path, 0, (int64_t)1 << 30, &size, why);
    if (!text)
        printf("%s\n", why), exit(1);
    for (int64_t at = 0; at < size;) {
        Step s = {.data = text + at + sizeof(Op)};
        memcpy(&s.op, text + at, sizeof(Op));
        at += (int64_t)sizeof(Op) + (s.op.kind == OP_WRITE ? s.op.bytes : 0);
        s.dir[0] = number(s.op.dir[0], 0);
        s.dir[1] = number(s.op.dir[1], 0);
        s.id = number(s.op.ino, s.op.kind == OP_NAME && s.op.made);
        s.other = number(s.op.other, 0);
        step = xrealloc(step, (size_t)(steps + 1) * sizeof *step);
        step[steps++] = s;
    }
    for (int i = 0; i < steps; i++)
        for (step[i].sync = i + 1; step[i].sync < steps && !flushes(&step[step[i].sync], &step[i]);)
            step[i].sync++;
}

/* ---- a state in memory */

typedef struct { const char *name; int id; } Entry;
typedef struct { int folder, entries; Entry e[64]; char *p; int64_t n, room; } Node;
static Node *node;                  /* [files]; the first is the root */

static void forget(int id)
{
    for (int i = 0; i < files; i++)
        for (int k = 0; k < node[i].entries; k++)
            if (node[i].e[k].id == id)
                node[i].e[k--] = node[i].e[--node[i].entries];
}

static int find(const Node *d, const char *name)
{
    for (int k = 0; k < d->entries; k++)
        if (!strcmp(d->e[k].name, name))
            return d->e[k].id;
    return -1;
}

/* The name stands for the file from now on, and no other name does. id -1: it is gone. */
static void entry(int dir, const char *name, int id)
{
    Node *d = &node[dir];
    if (id >= 0)
        forget(id);
    for (int k = 0; k < d->entries; k++)
        if (!strcmp(d->e[k].name, name))
            d->e[k--] = d->e[--d->entries];
    if (id >= 0)
        d->e[d->entries++] = (Entry){name, id};
    BUG_ON(d->entries == 64);
}

static void resize(Node *f, int64_t n)
{
    if (n > f->room)
        f->p = xrealloc(f->p, (size_t)(f->room = 2 * n));
    if (n > f->n)
        memset(f->p + f->n, 0, (size_t)(n - f->n));
    f->n = n;
}

typedef enum { NOTHING, ALL, EMPTY, ZEROS, NAMELESS, RANDOM } Mode;

static uint64_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Bytes of a write that was not flushed. */
static void lose(Node *f, const Step *s, Mode mode, uint64_t *seed)
{
    int64_t end = s->op.at + s->op.bytes, whole = 0, part;
    switch (mode == RANDOM ? draw(seed) % 4 : mode == ZEROS ? 1 : mode == NAMELESS || mode == ALL ? 3 : 0) {
    case 0: return;
    case 1: break;
    case 2:
        part = (int64_t)(draw(seed) % (uint64_t)(s->op.bytes + 1));
        whole = part, end = draw(seed) % 2 ? s->op.at + part : end;
        break;
    default: whole = s->op.bytes;
    }
    resize(f, end > f->n ? end : f->n);
    memcpy(f->p + s->op.at, s->data, (size_t)whole);
    if (end - s->op.at > whole)
        memset(f->p + s->op.at + whole, 0, (size_t)(end - s->op.at - whole));
}

static void rename_nodes(const Step *s)
{
    entry(s->dir[0], s->op.name[0], -1);
    entry(s->dir[1], s->op.name[1], s->id);
    if (s->other >= 0)
        entry(s->dir[0], s->op.name[0], s->other);
}

/* The state when the power is lost before step k. */
static void build(int k, Mode mode, uint64_t seed)
{
    for (int i = 0; i < files; i++)
        node[i].folder = i == 0, node[i].entries = 0, node[i].n = 0;
    for (int i = 0; i < k; i++) {
        const Step *s = &step[i];
        int flushed = s->sync < k;
        int named = flushed || (mode == RANDOM ? draw(&seed) % 2 : mode != NOTHING && mode != NAMELESS);
        int kept = flushed || (mode == RANDOM ? draw(&seed) % 2 : mode == ALL || mode == NAMELESS);
        if (s->op.kind == OP_NAME && s->op.made)
            node[s->id].folder = s->op.made == 2;
        if (s->op.kind == OP_WRITE)
            lose(&node[s->id], s, flushed ? ALL : mode, &seed);
        else if (s->op.kind == OP_CUT && kept)
            resize(&node[s->id], s->op.at);
        else if (s->op.kind == OP_NAME && named)
            entry(s->dir[0], s->op.name[0], s->id);
        else if (s->op.kind == OP_MOVE && named)
            rename_nodes(s);
    }
}

static uint64_t digest(int id)
{
    const Node *d = &node[id];
    uint64_t h = 0;
    if (!d->folder)
        return XXH3_64bits(d->p, (size_t)d->n);
    for (int k = 0; k < d->entries; k++)        /* in any order */
        h += XXH3_64bits_withSeed(d->e[k].name, strlen(d->e[k].name), digest(d->e[k].id) + 1);
    return h;
}

/* ---- on the disk */

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *f)
{
    (void)s, (void)type;
    return f->level ? remove(path) : 0;
}

static void lay_out(int id, const char *path)
{
    char why[WHY];
    for (int k = 0; k < node[id].entries; k++) {
        const Node *f = &node[node[id].e[k].id];
        char *at = xasprintf("%s/%s", path, node[id].e[k].name);
        if (f->folder) {
            CHECK(mkdir(at, 0777) == 0, "%s", at);
            lay_out(node[id].e[k].id, at);
        } else {
            int fd = file_create(AT_FDCWD, at, 1, why);
            CHECK(fd >= 0 && file_write_at(fd, at, f->p, f->n, 0, why), "%s", why);
            close(fd);
        }
        free(at);
    }
}

/* ---- what must be there */

/* Contents that file_replace, tokenize and a save have given a name: each is a whole version of it. */
typedef struct { char name[POWER_NAME]; int step; uint64_t hash; } Version;
static Version *version;
static int versions;
static const char *const replaced[] = {"latest",     "run.json",   "config.yaml",  "report.html",
                                       "corpus.bin", "corpus.idx", MANIFEST};

static int is_replaced(const char *name)
{
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (!strcmp(name, replaced[i]))
            return 1;
    return 0;
}

static void add_version(const char *name, int at, int id)
{
    version = xrealloc(version, (size_t)(versions + 1) * sizeof *version);
    version[versions] = (Version){.step = at, .hash = digest(id)};
    strcpy(version[versions++].name, name);
}

static void find_versions(void)
{
    int64_t iteration;
    for (int i = 0; i < steps; i++) {
        if (step[i].op.kind != OP_MOVE)
            continue;
        build(i, ALL, 0);
        int manifest = find(&node[step[i].id], MANIFEST);
        if (is_replaced(step[i].op.name[1]))
            add_version(step[i].op.name[1], i, step[i].id);
        else if (source_iteration(step[i].op.name[1], &iteration) && manifest >= 0)
            add_version(MANIFEST, i, manifest);
    }
}

/* The number of the version, from 0 for each name; -1: it is none. */
static int version_of(const char *name, uint64_t hash)
{
    int n = 0, found = -1;
    for (int i = 0; i < versions; i++)
        if (!strcmp(version[i].name, name)) {
            if (version[i].hash == hash)
                found = n;
            n++;
        }
    return found;
}

/* Newest checkpoints when the power is lost before step k: the one that the trainer takes for saved, because
 * it has begun to write the hint, and the one whose name had been given by then. */
static void promised(int k, int64_t *reported, int64_t *named)
{
    int64_t it;
    *reported = *named = -1;
    for (int i = 0; i < k; i++)
        if (step[i].op.kind == OP_MOVE && source_iteration(step[i].op.name[1], &it))
            *named = it;
        else if (step[i].op.kind == OP_NAME && !strcmp(step[i].op.name[0], "latest.tmp"))
            *reported = *named;
}

static char wrong[600];             /* what is wrong with the state; "": nothing */
__attribute__((format(printf, 1, 2))) static void is_wrong(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(wrong, sizeof wrong, fmt, ap);
    va_end(ap);
}

/* Files that are replaced as a whole, outside of checkpoints. A corpus is a pair of one version. */
static void check_files(int id)
{
    const Node *d = &node[id];
    for (int k = 0; k < d->entries; k++) {
        const Node *f = &node[d->e[k].id];
        if (f->folder && strncmp(d->e[k].name, "iter_", 5))
            check_files(d->e[k].id);
        else if (!f->folder && is_replaced(d->e[k].name) && version_of(d->e[k].name, digest(d->e[k].id)) < 0)
            is_wrong("%s, %ld bytes, is no whole version of it", d->e[k].name, (long)f->n);
    }
    int bin = find(d, "corpus.bin"), idx = find(d, "corpus.idx");
    if (idx >= 0 &&
        (bin < 0 || version_of("corpus.bin", digest(bin)) != version_of("corpus.idx", digest(idx))))
        is_wrong("the index is not that of the tokens");
}

/* Whether a folder that has the name of a checkpoint is one of those that were saved, whole. */
static void check_whole(const char *dir)
{
    Source s;
    char why[WHY];
    int64_t bytes = 0, size;
    if (!source_open(&s, dir, why)) {
        is_wrong("%.200s: %.300s", dir, why);
        return;
    }
    char *text = file_read_text(s.fd, MANIFEST, 1, 1 << 30, &size, why);
    if (!source_verify(&s, &bytes, why) || !text)
        is_wrong("%.200s is damaged: %.300s", dir, why);
    else if (version_of(MANIFEST, XXH3_64bits(text, (size_t)size)) < 0)
        is_wrong("%.200s has another manifest", dir);
    free(text);
    source_close(&s);
}

static void check_checkpoints(const char *run, int k)
{
    Source s;
    char why[WHY];
    int64_t reported, named;
    int n;
    promised(k, &reported, &named);
    char **list = source_list(run, &n);
    for (int i = 0; i < n; i++)
        check_whole(list[i]);
    source_list_free(list, n);
    if (!source_open_newest(&s, run, why)) {
        if (n || reported >= 0)
            is_wrong("iteration %ld was saved, %ld was being saved: %.300s", (long)reported, (long)named,
                     why);
        return;
    }
    if (s.m.iteration != named && s.m.iteration != reported)
        is_wrong("iteration %ld is loaded, not %ld or %ld", (long)s.m.iteration, (long)reported, (long)named);
    source_close(&s);
}

/* ---- all states */

static uint64_t *seen;
static int states, resumed, bad;

static int is_new(uint64_t hash)
{
    for (int i = states; i-- > 0 && i > states - 4000;)
        if (seen[i] == hash)
            return 0;
    seen = xrealloc(seen, (size_t)(states + 1) * sizeof *seen);
    seen[states++] = hash;
    return 1;
}

static void check_state(const char *root, const char *run, int k, Mode mode, int every, const char *command)
{
    static const char *const words[] = {"nothing else",     "everything",          "names without bytes",
                                        "names with zeros", "bytes without names", "random parts"};
    int64_t reported, named;
    promised(k, &reported, &named);
    /* the same files may be right before a save was reported, and wrong after */
    if (!is_new(digest(0) ^ XXH3_64bits(&reported, sizeof reported)))
        return;
    wrong[0] = 0;
    nftw(root, remove_one, 32, FTW_DEPTH | FTW_PHYS);
    lay_out(0, root);
    check_files(0);
    check_checkpoints(run, k);
    if (!*wrong && command && states % every == 0 && ++resumed && system(command))
        is_wrong("`%s` fails", command);
    if (*wrong && bad++ < 10)
        printf("# before operation %d of %d, with %s: %s\n", k, steps, words[mode], wrong);
}

static int all_states(int argc, char **argv)
{
    if (argc < 5)
        return 2;
    const char *root = argv[3], *command = argc > 6 ? argv[6] : NULL;
    char *run = xasprintf("%s/run", root);
    int seeds = atoi(argv[4]), every = command ? atoi(argv[5]) : 1;
    struct stat s;
    CHECK(stat(root, &s) == 0, "%s", root);
    number((int64_t)s.st_ino, 0);               /* the root is number 0 */
    read_record(argv[2]);
    node = xcalloc((size_t)files, sizeof *node);
    find_versions();
    for (int k = 0; k <= steps; k++)
        for (int i = 0; i < RANDOM + seeds; i++) {
            Mode mode = i < RANDOM ? (Mode)i : RANDOM;
            build(k, mode, (uint64_t)(k * 1000003 + i));
            check_state(root, run, k, mode, every, command);
        }
    free(run);
    printf("# %d operations, %d states, %d of them gone on from, %d bad\n", steps, states, resumed, bad);
    CHECK(steps > 20 && states > steps / 2 && !bad, "%d states are bad", bad);
    return test_end();
}

int __wrap_main(int argc, char **argv)
{
    return argc > 1 && !strcmp(argv[1], "states") ? all_states(argc, argv) : __real_main(argc, argv);
}
