/* tiny -- a model of four tensors whose every value is a function of name, iteration and place, for tests of
 * checkpoints: saved in one layout, loaded and compared in any other. */
#ifndef TINY_H
#define TINY_H
#include "checkpoint.h"
#include "child.h"
#include "convert.h"
#include "source.h"
#include <fcntl.h>

static char folder[] = "/tmp/test_checkpoint.XXXXXX";      /* folder of the test program's files */
static char why[WHY];

/* ---- the model: four tensors whose values are functions of name, iteration and position */

#define TENSORS 4
static const struct {
    const char *name;
    Dtype type;
    int ndim;
    int64_t rows, cols;
    int optim;
} tensors[TENSORS] = {
    {"layer.weight", BF16, 2, 12, 10, 0},
    {"layer.bias", BF16, 1, 7, 1, 0},
    {"layer.weight.master", F32, 2, 12, 10, 1},
    {"layer.weight.exp_avg", F32, 2, 12, 10, 1},
};

static inline double value(int tensor, int64_t iteration, int64_t r, int64_t c)
{
    double x =
        rng_uniform((uint64_t)iteration, (uint64_t)(tensor == 2 ? 0 : tensor), (uint64_t)(r * 1000 + c)) -
        0.5;
    return x;       /* tensors 0 and 2 share their values: the weight is its master, rounded by fill */
}

typedef struct { TensorPiece p[64]; int n; char memory[1 << 16]; size_t used; } Model;

/* Adds the box [row0, row0 + rows) x [col0, col0 + cols) of tensor t to the model. ld: elements from row to
 * row. */
static inline void add(Model *m, int t, int64_t row0, int64_t col0, int64_t rows, int64_t cols, int64_t ld)
{
    size_t size = dtype_size(tensors[t].type);
    m->p[m->n++] = (TensorPiece){.name = tensors[t].name,
                           .type = tensors[t].type, .ndim = tensors[t].ndim,
                           .shape = {tensors[t].rows, tensors[t].cols}, .row0 = row0, .col0 = col0,
                           .rows = rows, .cols = cols, .data = m->memory + m->used, .ld = ld,
                           .optim = tensors[t].optim};
    m->used += ((size_t)(rows * ld) * size + 7) / 8 * 8;
    BUG_ON(m->used > sizeof m->memory || m->n > 64);
}

/* Makes the boxes of one rank of `size`.
 *
 *   layout 0   whole tensors
 *   layout 1   tensors of several columns in three segments of rows
 *   layout 2   the rank's share of the rows
 *   layout 3   the rank's share of the columns, rows wider apart than they are long; vectors as in 2
 *   layout 4   tensors of several columns in halves of two rows, as shards are cut, and the other rows */
static inline void make(Model *m, int layout, int rank, int size)
{
    memset(m, 0, sizeof *m);
    memset(m->memory, 0xee, sizeof m->memory);
    for (int t = 0; t < TENSORS; t++) {
        int64_t R = tensors[t].rows, C = tensors[t].cols;
        if (layout == 1 && C > 1) {
            add(m, t, 0, 0, 5, C, C);
            add(m, t, 5, 0, 4, C, C + 3);
            add(m, t, 9, 0, 3, C, C);
        } else if (layout == 2 || (layout == 3 && C == 1)) {
            int64_t a = R * rank / size, b = R * (rank + 1) / size;
            add(m, t, a, 0, b - a, C, C);
        } else if (layout == 3) {
            int64_t a = C * rank / size, b = C * (rank + 1) / size;
            add(m, t, 0, a, R, b - a, b - a + 1);
        } else if (layout == 4 && C > 1) {
            for (int i = 0; i < 4; i++)
                add(m, t, i / 2, i % 2 * (C / 2), 1, C / 2, C / 2);
            add(m, t, 2, 0, R - 2, C, C);
        } else {
            add(m, t, 0, 0, R, C, C);
        }
    }
}

static inline int tensor_of(const TensorPiece *p)
{
    int t = 0;
    while (strcmp(tensors[t].name, p->name))
        t++;
    return t;
}

static inline void fill(Model *m, int64_t iteration)
{
    for (int i = 0; i < m->n; i++)
        for (int64_t r = 0; r < m->p[i].rows; r++)
            for (int64_t c = 0; c < m->p[i].cols; c++) {
                double x = value(tensor_of(&m->p[i]), iteration, m->p[i].row0 + r, m->p[i].col0 + c);
                convert((char *)m->p[i].data + (size_t)(r * m->p[i].ld + c) * dtype_size(m->p[i].type),
                        m->p[i].type, &x, F64, 1);
            }
}

/* Number of elements that differ from what fill() writes for this iteration. */
static inline int wrong(const Model *m, int64_t iteration)
{
    int bad = 0;
    for (int i = 0; i < m->n; i++)
        for (int64_t r = 0; r < m->p[i].rows; r++)
            for (int64_t c = 0; c < m->p[i].cols; c++) {
                double x = value(tensor_of(&m->p[i]), iteration, m->p[i].row0 + r, m->p[i].col0 + c);
                char want[8];
                convert(want, m->p[i].type, &x, F64, 1);
                bad += memcmp((char *)m->p[i].data + (size_t)(r * m->p[i].ld + c) * dtype_size(m->p[i].type),
                              want, dtype_size(m->p[i].type)) != 0;
            }
    return bad;
}

static inline Config base_config(void)
{
    Config c = {.max_failed_saves = 2, .save_keep_last = CFG_ABSENT, .save_retain_interval = CFG_ABSENT,
                .on_corrupt = ON_CORRUPT_STOP};
    return c;
}

static Arena no_arena = {.base = (char *)1};

/* Saves iteration `it` of a new model through a new Saver. Returns the iteration that is committed. */
static inline int64_t save(const char *dir, int64_t it, const Config *cfg)
{
    static Model m;
    Arena arena;
    make(&m, 0, 0, 1);
    fill(&m, it);
    Comm self;
    comm_self_open(&self, "all");
    Arena count = {0};
    CHECK(!saver_open(cfg, dir, &self, m.p, m.n, &count), "a counting arena opens nothing");
    CHECK((count.used > 0) == cfg->async_save, "%zu bytes for the snapshot", count.used);
    arena_open(&arena, "run", count.used);
    Saver *s = saver_open(cfg, dir, &self, m.p, m.n, &arena);
    saver_start(s);
    json_t *state = json_pack("{s:I, s:f}", "iteration", (json_int_t)it, "loss_scale", 65536.0);
    saver_save(s, it, state);
    json_decref(state);
    if (cfg->async_save)
        memset(m.memory, 0, sizeof m.memory);       /* training goes on: the snapshot must not change */
    int64_t committed = saver_wait(s);
    saver_close(s);
    arena_close(&arena);
    return committed;
}

/* Loads the checkpoint into the boxes of a layout. Returns its iteration; -1: an element has another
 * value. */
static inline int64_t load(const char *dir, int layout, int rank, int size, const Config *cfg)
{
    static Model m;
    make(&m, layout, rank, size);
    Comm self;
    comm_self_open(&self, "all");
    json_t *state = checkpoint_load(&(LoadFrom){.path = dir}, cfg, &self, m.p, m.n, 0, NULL);
    int64_t it = json_integer_value(json_object_get(state, "iteration"));
    json_decref(state);
    return wrong(&m, it) ? -1 : it;
}

static inline void load_whole(void *dir)
{
    Config cfg = base_config();
    if (load(dir, 0, 0, 1, &cfg) < 0)
        _exit(99);
}

/* ---- files */

static inline char *path_of(const char *fmt, ...)
{
    static char ring[4][512];
    static int k;
    char *p = ring[k++ % 4], *end = p + snprintf(p, 512, "%s/", folder);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(end, (size_t)(p + 512 - end), fmt, ap);
    va_end(ap);
    return p;
}

static inline char *slurp(const char *path, int64_t *n)
{
    char *text = file_read_text(AT_FDCWD, path, 0, 1 << 30, n, why);
    CHECK(text, "%s", why);
    return text;
}

static inline void spill(const char *path, const char *text, int64_t n)
{
    int fd = file_create(AT_FDCWD, path, 0, why);
    CHECK(fd >= 0 && file_write_at(fd, path, text, n, 0, why), "%s", why);
    close(fd);
}
#endif
