/* Checkpoints: what is saved comes back, in any layout and type; what is damaged, foreign or hostile is
 * refused by name.
 *
 *   test_checkpoint                        all of it
 *   test_checkpoint save DIR N [async]     a tiny run that saves iteration N once; 0 if it is on disk. For
 * tests/kill_save.sh test_checkpoint load DIR               prints the newest whole iteration after comparing
 * every value
 * */
#define _GNU_SOURCE
#include "checkpoint.h"
#include "child.h"
#include "convert.h"
#include "faults.h"
#include "source.h"
#include "team.h"
#include <dirent.h>
#include <sys/stat.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static char folder[] = "/tmp/test_checkpoint.XXXXXX";
static char why[WHY];

/* ---- a model: four tensors, every value a function of name, iteration and place */

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

static double value(int tensor, int64_t iteration, int64_t r, int64_t c)
{
    double x =
        rng_uniform((uint64_t)iteration, (uint64_t)(tensor == 2 ? 0 : tensor), (uint64_t)(r * 1000 + c)) -
        0.5;
    return x;       /* the weight is its master, rounded */
}

typedef struct { Piece p[64]; int n; char memory[1 << 16]; size_t used; } Model;

/* A box of a tensor, with rows `ld` elements apart. */
static void add(Model *m, int t, int64_t row0, int64_t col0, int64_t rows, int64_t cols, int64_t ld)
{
    size_t size = dtype_size(tensors[t].type);
    m->p[m->n++] = (Piece){.name = tensors[t].name,
                           .type = tensors[t].type,
                           .ndim = tensors[t].ndim,
                           .shape = {tensors[t].rows, tensors[t].cols},
                           .row0 = row0,
                           .col0 = col0,
                           .rows = rows,
                           .cols = cols,
                           .data = m->memory + m->used,
                           .ld = ld,
                           .optim = tensors[t].optim};
    m->used += ((size_t)(rows * ld) * size + 7) / 8 * 8;
    BUG_ON(m->used > sizeof m->memory || m->n > 64);
}

/* Layouts: 0 whole; 1 the first tensor in three row segments; 2 rank r of n: rows; 3: columns with a
 * stride. */
static void make(Model *m, int layout, int rank, int size)
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
        } else {
            add(m, t, 0, 0, R, C, C);
        }
    }
}

static int tensor_of(const Piece *p)
{
    int t = 0;
    while (strcmp(tensors[t].name, p->name))
        t++;
    return t;
}

static void fill(Model *m, int64_t iteration)
{
    for (int i = 0; i < m->n; i++)
        for (int64_t r = 0; r < m->p[i].rows; r++)
            for (int64_t c = 0; c < m->p[i].cols; c++) {
                double x = value(tensor_of(&m->p[i]), iteration, m->p[i].row0 + r, m->p[i].col0 + c);
                convert((char *)m->p[i].data + (size_t)(r * m->p[i].ld + c) * dtype_size(m->p[i].type),
                        m->p[i].type, &x, F64, 1);
            }
}

/* Elements that are not what fill() writes; `from`: the type that the values were last rounded to. */
static int wrong(const Model *m, int64_t iteration)
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

static Config base_config(void)
{
    Config c = {.max_failed_saves = 2, .save_keep_last = CFG_ABSENT, .save_retain_interval = CFG_ABSENT,
                .on_corrupt = ON_CORRUPT_STOP};
    return c;
}

static Arena no_arena = {.base = (char *)1};

/* Saves iteration `it` of a fresh model through a Saver of its own; returns what is committed. */
static int64_t save(const char *dir, int64_t it, const Config *cfg)
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
    json_t *state = json_pack("{s:I, s:f}", "iteration", (json_int_t)it, "loss_scale", 65536.0);
    saver_save(s, it, state);
    json_decref(state);
    if (cfg->async_save)
        memset(m.memory, 0, sizeof m.memory);       /* training goes on: the snapshot must not notice */
    int64_t committed = saver_wait(s);
    saver_close(s);
    arena_close(&arena);
    return committed;
}

/* Loads into a layout and returns the iteration whose values all boxes hold; -1 when they do not. */
static int64_t load(const char *dir, int layout, int rank, int size, const Config *cfg)
{
    static Model m;
    make(&m, layout, rank, size);
    Comm self;
    comm_self_open(&self, "all");
    json_t *state = checkpoint_load(dir, cfg, &self, m.p, m.n, 0, NULL);
    int64_t it = json_integer_value(json_object_get(state, "iteration"));
    json_decref(state);
    return wrong(&m, it) ? -1 : it;
}

static void load_whole(void *dir)
{
    Config cfg = base_config();
    if (load(dir, 0, 0, 1, &cfg) < 0)
        _exit(99);
}

/* ---- files */

static char *path_of(const char *fmt, ...)
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

static char *slurp(const char *path, int64_t *n)
{
    char *text = file_read_text(AT_FDCWD, path, 0, 1 << 30, n, why);
    CHECK(text, "%s", why);
    return text;
}

static void spill(const char *path, const char *text, int64_t n)
{
    int fd = file_create(AT_FDCWD, path, 0, why);
    CHECK(fd >= 0 && file_write_at(fd, path, text, n, 0, why), "%s", why);
    close(fd);
}

/* ---- tests */

static void conversions(void)
{
    int bad = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        uint16_t in = (uint16_t)h, out;
        double d;
        float f;
        for (int t = BF16; t <= F16; t++) {
            convert(&d, F64, &in, (Dtype)t, 1);
            convert(&f, F32, &in, (Dtype)t, 1);
            convert(&out, (Dtype)t, &d, F64, 1);
            bad += out != in &&
                   !(isnan(d) && (out | (t == BF16 ? 0x40 : 0x200)) == (in | (t == BF16 ? 0x40 : 0x200)));
            bad += !isnan(d) && (double)f != d;
        }
    }
    CHECK(!bad, "%d of the 16-bit numbers do not survive", bad);
    static const struct { double in; uint16_t bf16, f16;
    } t[] = {
        {1.0, 0x3f80, 0x3c00},
        {-0.0, 0x8000, 0x8000},
        {65504, 0x4780, 0x7bff},
        {65519.99, 0x4780, 0x7bff},
        {65520, 0x4780, 0x7c00},
        {INFINITY, 0x7f80, 0x7c00},
        {1e300, 0x7f80, 0x7c00},
        {0x1p-24, 0x3380, 0x0001},
        {0x1p-25, 0x3300, 0x0000},
        {0x1.8p-25, 0x3340, 0x0001},
        {0x1p-140, 0x0000, 0x0000},
        {0x1p-133, 0x0001, 0x0000},
        /* halfway in BF16 but for a bit that F32 does not hold: a detour over F32 would round down */
        {1 + 0x1p-8 + 0x1p-40, 0x3f81, 0x3c04},
        {1 + 0x1p-8, 0x3f80, 0x3c04},
        {1 + 0x1.8p-7, 0x3f82, 0x3c0c},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint16_t b, h;
        convert(&b, BF16, &t[i].in, F64, 1);
        convert(&h, F16, &t[i].in, F64, 1);
        CHECK(b == t[i].bf16 && h == t[i].f16, "%a: %04x %04x, not %04x %04x", t[i].in, b, h, t[i].bf16,
              t[i].f16);
    }
}

static void round_trip(int async)
{
    Config cfg = base_config();
    cfg.async_save = async;
    char *dir = path_of("trip%d", async);
    CHECK(save(dir, 3, &cfg) == 3 && save(dir, 12345678, &cfg) == 12345678, "saved");
    CHECK(checkpoint_exists(dir) && !checkpoint_exists(folder), "exists");
    for (int layout = 0; layout < 4; layout++)
        for (int size = 1; size <= (layout >= 2 ? 5 : 1); size++)
            for (int rank = 0; rank < size; rank++)
                CHECK(load(dir, layout, rank, size, &cfg) == 12345678, "layout %d, rank %d of %d", layout,
                      rank, size);
    CHECK(load(path_of("trip%d/checkpoints/iter_0000003", async), 0, 0, 1, &cfg) == 3, "by its own folder");
    /* the same step again replaces the folder, and the bytes are the same */
    shell("cp -r %s/checkpoints/iter_12345678 %s/copy", dir, dir);
    CHECK(save(dir, 12345678, &cfg) == 12345678, "saved again");
    shell("diff -r %s/checkpoints/iter_12345678 %s/copy && [ \"$(ls %s/checkpoints)\" = "
          "\"iter_0000003\niter_12345678\nlatest\" ]",
          dir, dir, dir);
    shell("[ \"$(cat %s/checkpoints/latest)\" = iter_12345678 ]", dir);
    shell("grep -q gridiron %s/copy/manifest.json && [ \"$(ls %s/copy | tr '\\n' ' ')\" = "
          "'manifest.json model-00000.safetensors optim-00000.safetensors ' ]", dir, dir);
}

/* Types on load: from the master when there is one, to the master when there is none; moments only for a
 * whole resume. */
static void other_types(void)
{
    Config cfg = base_config();
    char *dir = path_of("trip0");
    Comm self;
    comm_self_open(&self, "all");
    double w[120], bad = 0;
    float moment = 9;
    Piece p[] = {{.name = "layer.weight",
                  .type = F64,
                  .ndim = 2,
                  .shape = {12, 10},
                  .rows = 12,
                  .cols = 10,
                  .data = w,
                  .ld = 10},
                 {.name = "layer.bias.exp_avg",
                  .type = F32,
                  .ndim = 1,
                  .shape = {7},
                  .rows = 1,
                  .cols = 1,
                  .data = &moment,
                  .ld = 1,
                  .optim = 1}};
    json_decref(checkpoint_load(dir, &cfg, &self, p, 2, 1, NULL));
    for (int i = 0; i < 120; i++)
        bad = fmax(bad, fabs(w[i] - (float)value(0, 12345678, i / 10, i % 10)));
    CHECK(bad == 0 && moment == 9, "an F64 weight comes from the F32 master; a moment is left alone: %g",
          bad);
    float b[7];
    Piece q = {.name = "layer.bias.master",
               .type = F32,
               .ndim = 1,
               .shape = {7},
               .rows = 7,
               .cols = 1,
               .data = b,
               .ld = 1,
               .optim = 1};
    json_decref(checkpoint_load(dir, &cfg, &self, &q, 1, 1, NULL));
    for (int i = 0; i < 7; i++) {
        uint16_t h;
        float f;
        double x = value(1, 12345678, i, 0);
        convert(&h, BF16, &x, F64, 1);
        convert(&f, F32, &h, BF16, 1);
        CHECK(b[i] == f, "a master that is not there is the weight: %g, %g", b[i], f);
    }
}

/* Several hash blocks, a partial read of one tensor, and a flipped bit outside of what is read. */
static void large(void)
{
    Config cfg = base_config();
    char *dir = path_of("large");
    Comm self;
    comm_self_open(&self, "all");
    int64_t R = 3000, C = 1000;
    float *w = xcalloc((size_t)(R * C), 4), *v = xcalloc((size_t)(R * C), 4);
    for (int64_t i = 0; i < R * C; i++)
        w[i] = (float)i;
    Piece p = {
        .name = "w", .type = F32, .ndim = 2, .shape = {R, C}, .rows = R, .cols = C, .data = w, .ld = C};
    Arena arena = no_arena;
    Saver *s = saver_open(&cfg, dir, &self, &p, 1, &arena);
    json_t *state = json_object();
    saver_save(s, 1, state);
    json_decref(state);
    saver_close(s);
    Piece q = p;
    q.row0 = 1100, q.col0 = 17, q.rows = 1500, q.cols = 31, q.data = v, q.ld = 40;
    shell("printf x | dd of=%s/checkpoints/iter_0000001/model-00000.safetensors bs=1 seek=1000 conv=notrunc "
          "2>/dev/null",
          dir);
    json_decref(checkpoint_load(dir, &cfg, &self, &q, 1, 0, NULL));
    int bad = 0;
    for (int64_t r = 0; r < q.rows; r++)
        for (int64_t c = 0; c < q.cols; c++)
            bad += v[r * 40 + c] != w[(q.row0 + r) * C + q.col0 + c];
    CHECK(!bad, "%d elements of the box differ", bad);
    Source src;
    CHECK(source_open(&src, path_of("large/checkpoints/iter_0000001"), why), "%s", why);
    CHECK(!source_verify(&src, NULL, why) && strstr(why, "model-00000") && strstr(why, "tensor w"), "%s",
          why);
    source_close(&src);
    free(w);
    free(v);
}

/* K07: every bit of the manifest, and random bits of the shards. */
static void flipped_bits(int shard_bits)
{
    Config cfg = base_config();
    char *dir = path_of("flip"), *iter = path_of("flip/checkpoints/iter_0000005");
    int64_t n;
    Source s;
    int missed = 0;
    CHECK(save(dir, 5, &cfg) == 5, "saved");
    char *text = slurp(path_of("flip/checkpoints/iter_0000005/manifest.json"), &n);
    for (int64_t bit = 0; bit < 8 * n; bit++) {
        Manifest m;
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        missed += manifest_parse(&m, text, n, why) || !strstr(why, "manifest.json");
        manifest_close(&m);
        text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    }
    for (int64_t cut = 0; cut < n; cut++) {
        Manifest m;
        missed += manifest_parse(&m, text, cut, why);
        manifest_close(&m);
    }
    CHECK(!missed, "%d flipped bits or cuts of the manifest were not seen", missed);
    free(text);
    missed = 0;
    for (int k = 0; k < 2; k++) {
        const char *name = k ? "optim-00000.safetensors" : "model-00000.safetensors";
        char *file = path_of("flip/checkpoints/iter_0000005/%s", name);
        text = slurp(file, &n);
        int fd = open(file, O_WRONLY);
        for (int i = 0; i < shard_bits / 2; i++) {
            Philox r = philox(7, (uint64_t)i, (uint64_t)k);
            int64_t bit = (int64_t)(r.v[0] % (uint64_t)(8 * n));
            char byte = (char)(text[bit / 8] ^ 1 << bit % 8);
            CHECK(pwrite(fd, &byte, 1, bit / 8) == 1, "flip");
            int ok = source_open(&s, iter, why) && source_verify(&s, NULL, why);
            missed += ok || !strstr(why, name);
            source_close(&s);
            CHECK(pwrite(fd, &text[bit / 8], 1, bit / 8) == 1, "flip back");
        }
        close(fd);
        free(text);
    }
    CHECK(!missed, "%d flipped bits of the shards were not seen", missed);
    CHECK(source_open(&s, iter, why) && source_verify(&s, NULL, why), "%s", why);
    source_close(&s);
}

/* K08 and K15: files that are missing, foreign, swapped; hints that lie. */
static void wrong_files(void)
{
    Config cfg = base_config();
    char *dir = path_of("files"), *it = path_of("files/checkpoints/iter_0000002");
    CHECK(save(dir, 1, &cfg) == 1 && save(dir, 2, &cfg) == 2, "saved");
    shell("cp -r %s/checkpoints %s/good", dir, dir);
#define AGAIN_WITH(...)                                                                                      \
    shell("rm -rf %s/checkpoints && cp -r %s/good %s/checkpoints", dir, dir, dir);                           \
    shell(__VA_ARGS__)
    AGAIN_WITH("rm %s/optim-00000.safetensors", it);
    DIES(load_whole, dir, 4, "optim-00000.safetensors is missing", "iter_0000002", "change:");
    AGAIN_WITH("cp %s/model-00000.safetensors %s/model-00001.safetensors", it, it);
    DIES(load_whole, dir, 4, "model-00001.safetensors does not belong");
    AGAIN_WITH("cp %s/good/iter_0000001/model-00000.safetensors %s/", dir, it);
    DIES(load_whole, dir, 4, "model-00000.safetensors is from iteration 1", "iteration 2");
    AGAIN_WITH("cp %s/optim-00000.safetensors %s/model-00000.safetensors", it, it);
    DIES(load_whole, dir, 4, "model-00000.safetensors");
    AGAIN_WITH("printf x >> %s/model-00000.safetensors", it);
    DIES(load_whole, dir, 4, "model-00000.safetensors has", "the manifest says");
    AGAIN_WITH("mv %s/model-00000.safetensors %s/m && ln -s m %s/model-00000.safetensors", it, it, it);
    DIES(load_whole, dir, 4, "model-00000.safetensors is not a regular file");
    AGAIN_WITH("printf '{}' > %s/manifest.json", it);
    DIES(load_whole, dir, 4, "manifest.json is damaged", "on_corrupt=previous");
    cfg.on_corrupt = ON_CORRUPT_PREVIOUS;
    int stderr_copy = dup(2), null = open("/dev/null", O_WRONLY);
    dup2(null, 2);
    CHECK(load(dir, 0, 0, 1, &cfg) == 1, "on_corrupt: previous takes the one before");
    dup2(stderr_copy, 2);
    close(stderr_copy);
    close(null);
    AGAIN_WITH("rm %s/manifest.json", it);
    CHECK(load(dir, 0, 0, 1, &cfg) == 1, "without a manifest it is no checkpoint");
    AGAIN_WITH("printf 'iter_0009999' > %s/checkpoints/latest; mkdir %s/checkpoints/iter_9 "
               "%s/checkpoints/iter_0000003.tmp",
               dir, dir, dir);
    CHECK(load(dir, 0, 0, 1, &cfg) == 2, "latest is only a hint");
    AGAIN_WITH("rm %s/checkpoints/latest", dir);
    CHECK(load(dir, 0, 0, 1, &cfg) == 2, "without the hint");
    AGAIN_WITH("rm -r %s/checkpoints/iter_*", dir);
    DIES(load_whole, dir, 4, "holds no checkpoint", "change:");
}

/* Rewrites a manifest and gives it the hash that then fits, as an attacker would. */
static void forge(const char *dir, const char *from, const char *to)
{
    int64_t n;
    char *file = xasprintf("%s/manifest.json", dir), *text = slurp(file, &n), *at = strstr(text, from);
    CHECK(at, "%s is not in the manifest", from);
    json_error_t e;
    char *edited = xasprintf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    json_t *j = json_loads(edited, 0, &e);
    CHECK(j, "%s", e.text);
    json_object_del(j, "hash");
    char *body = json_dumps(j, JSON_COMPACT);
    char *open = xasprintf("%.*s,\"hash\":\"", (int)strlen(body) - 1, body);
    uint64_t hash = XXH3_64bits(open, strlen(open));
    char *whole = xasprintf("%s%016llx\"}\n", open, (unsigned long long)hash);
    spill(file, whole, (int64_t)strlen(whole));
    free(whole), free(open), free(body), free(edited), free(text), free(file);
    json_decref(j);
}

/* K11 and K19: manifests that verify but must not be followed. */
static void hostile(void)
{
    static const struct { const char *from, *to, *reason;
    } t[] = {
        {"\"version\":1", "\"version\":2", "format version 2"},
        {"\"version\":1", "\"version\":0", "format version 0"},
        {"\"format\":\"gridiron\"", "\"format\":\"other\"", "not a gridiron"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"../model-00000.safetensors\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"/etc/passwd\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"..\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"a b\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"manifest.json\"", "file name 0"},
        {"\"name\":\"model-00000.safetensors\"", "\"name\":\"optim-00000.safetensors\"", "twice"},
        {"\"layer.bias\"", "\"../layer\"", "tensor name"},
        {"\"layer.bias\"", "\"a\\nb\"", "tensor name"},
        {"\"dtype\":\"BF16\"", "\"dtype\":\"U8\"", "dtype"},
        {"\"shape\":[12,10]", "\"shape\":[12,11]", "elements"},
        {"\"shape\":[12,10]", "\"shape\":[-12,10]", "below 1"},
        {"\"shape\":[12,10]", "\"shape\":[4611686018427387904,10]", "overflows"},
        {"\"shape\":[12,10]", "\"shape\":[12,10,1]", "dimensions"},
        {"\"rows\":12", "\"rows\":13", "does not lie in it"},
        {"\"row\":0", "\"row\":9223372036854775807", "does not lie in it"},
        {"\"row\":0", "\"row\":-1", "does not lie in it"},
        {"\"cols\":10,\"hash\":[\"", "\"cols\":10,\"hash\":[\"x", "malformed hash"},
        {"\"cols\":10,\"hash\":[", "\"cols\":10,\"hash\":[\"0000000000000000\",", "hash for each block"},
        {"\"file\":\"model-00000.safetensors\",\"row\"", "\"file\":\"other\",\"row\"", "not listed"},
        {"\"boxes\":[{",
         "\"boxes\":[{\"file\":\"model-00000.safetensors\",\"row\":1,\"col\":0,\"rows\":1,\"cols\":10,"
         "\"hash\":[\"0000000000000000\"]},{",
         "overlap"},
    };
    Config cfg = base_config();
    char *dir = path_of("hostile"), *it = path_of("hostile/checkpoints/iter_0000002");
    CHECK(save(dir, 2, &cfg) == 2, "saved");
    shell("cp %s/manifest.json %s/good.json", it, dir);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        shell("cp %s/good.json %s/manifest.json", dir, it);
        forge(it, t[i].from, t[i].to);
        DIES(load_whole, dir, 4, t[i].reason);
    }
    shell("cp %s/good.json %s/manifest.json", dir, it);
    forge(it, "\"iteration\":2", "\"iteration\":2");
    CHECK(load(dir, 0, 0, 1, &cfg) == 2, "a forged manifest that changes nothing loads");
}

/* Random damage that carries the right hash: nothing may crash, whatever it says. */
static void forged_at_random(int runs)
{
    Config cfg = base_config();
    char *dir = path_of("fuzz");
    int64_t n;
    int accepted = 0;
    CHECK(save(dir, 1, &cfg) == 1, "saved");
    char *text = slurp(path_of("fuzz/checkpoints/iter_0000001/manifest.json"), &n);
    char *bad = xcalloc(1, (size_t)n + 64);
    static const char *const words[] = {"-1", "0", "9223372036854775807", "1e300", "[]", "{}", "null", "\"x\"",
                                        "true", ""};
    const size_t body = (size_t)n - 19;         /* up to the hash's 16 digits, quote, brace, newline */
    for (int run = 0; run < runs; run++) {
        Philox r = philox(5, (uint64_t)run, 0);
        const char *word = words[r.v[1] % (sizeof words / sizeof *words)];
        size_t at = r.v[0] % (body - 3), end = at + r.v[2] % 12;
        end = end < body ? end : body;
        int64_t m = sprintf(bad, "%.*s%s%.*s", (int)at, text, word, (int)(body - end), text + end);
        Manifest got;
        m += sprintf(bad + m, "%016llx\"}\n", (unsigned long long)XXH3_64bits(bad, (size_t)m));
        accepted += manifest_parse(&got, bad, m, why);
        manifest_close(&got);
    }
    printf("# forged manifests: %d of %d accepted\n", accepted, runs);
    CHECK(accepted > 0 && accepted < runs / 2, "%d of %d accepted", accepted, runs);
    free(text);
    free(bad);
}

/* K10: another model; every key and tensor that differs in one line. */
static void load_other(void *arg)
{
    static const char mine[] =
        "model:\n  num_layers: 4\n  hidden_size: 96\n  num_attention_heads: 8\n  vocab_size: 300\n"
        "  untie_embeddings_and_output_weights: true\n";
    const char *skipped;
    Config cfg = *config_read_saved(mine, sizeof mine - 1, &skipped);
    Comm self;
    float w[4];
    Piece p[] = {
        {.name = "layer.weight",
         .type = F32,
         .ndim = 2,
         .shape = {2, 2},
         .rows = 2,
         .cols = 2,
         .data = w,
         .ld = 2},
        {.name = "absent", .type = F32, .ndim = 1, .shape = {4}, .rows = 4, .cols = 1, .data = w, .ld = 1}};
    comm_self_open(&self, "all");
    checkpoint_load(arg, &cfg, &self, p, 2, 0, NULL);
}

static void other_model(void)
{
    static const char saved[] =
        "model:\n  num_layers: 2\n  hidden_size: 64\n  num_attention_heads: 4\n  vocab_size: 257\n"
        "  untie_embeddings_and_output_weights: false\n";
    static const char *const words[] = {"num_layers is 2 there, 4 here",
                                        "hidden_size is 64 there, 96 here",
                                        "num_attention_heads is 4 there, 8 here",
                                        "vocab_size is 257 there, 300 here",
                                        "untie_embeddings_and_output_weights is false there, true here",
                                        "layer.weight is [12, 10] there, [2, 2] here",
                                        "absent is not there",
                                        "change:"};
    static Model m;
    Config cfg = base_config();
    char *dir = path_of("other");
    Comm self;
    Arena arena = no_arena;
    comm_self_open(&self, "all");
    make(&m, 0, 0, 1);
    fill(&m, 1);
    Saver *s = saver_open(&cfg, dir, &self, m.p, m.n, &arena);
    json_t *state = json_pack("{s:s}", "config", saved);
    saver_save(s, 1, state);
    json_decref(state);
    saver_close(s);
    int rc = child(load_other, dir);
    CHECK(rc == EXIT_CHECKPOINT && lines(said) == 1, "exit %d: %s", rc, said);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        CHECK(strstr(said, words[i]), "'%s' is not in: %s", words[i], said);
}

static void retention(void)
{
    Config cfg = base_config();
    char *dir = path_of("keep");
    cfg.save_keep_last = 2;
    cfg.save_retain_interval = 4;
    for (int64_t it = 1; it <= 10; it++)
        CHECK(save(dir, it, &cfg) == it, "saved");
    shell("[ \"$(ls %s/checkpoints | tr '\\n' ' ')\" = 'iter_0000004 iter_0000008 iter_0000009 iter_0000010 "
          "latest ' ]",
          dir);
    shell("mkdir -p %s/checkpoints/iter_0000003.tmp %s/checkpoints/iter_0000001.trash; touch "
          "%s/checkpoints/iter_0000003.tmp/x "
          "%s/checkpoints/iter_0000011.again.tmp; mkdir %s/checkpoints/iter_other",
          dir, dir, dir, dir, dir);
    CHECK(save(dir, 11, &cfg) == 11, "saved over leftovers");
    shell("[ \"$(ls %s/checkpoints | tr '\\n' ' ')\" = 'iter_0000004 iter_0000008 iter_0000010 iter_0000011 "
          "iter_other latest ' ]",
          dir);
}

/* K12 */
static void second_job(void *dir)
{
    Config cfg = base_config();
    save(dir, 9, &cfg);
}

static void locked(void)
{
    static Model m;
    Config cfg = base_config();
    Comm self;
    Arena arena = no_arena;
    char *dir = path_of("lock");
    comm_self_open(&self, "all");
    make(&m, 0, 0, 1);
    Saver *s = saver_open(&cfg, dir, &self, m.p, m.n, &arena);
    int rc = child(second_job, dir);
    CHECK(rc == EXIT_CHECKPOINT && strstr(said, "another job (process ") && lines(said) == 1, "exit %d: %s",
          rc, said);
    saver_close(s);
    rc = child(second_job, dir);
    CHECK(rc == 0, "exit %d: %s", rc, said);
}

/* ---- faults of the system */

/* Two saves of which every write after the third fails. */
static void save_two(void *dir, int async)
{
    Config cfg = base_config();
    static Model m;
    cfg.async_save = async;
    Comm self;
    Arena arena;
    comm_self_open(&self, "all");
    arena_open(&arena, "run", 1 << 16);
    make(&m, 0, 0, 1);
    fill(&m, 2);
    Saver *s = saver_open(&cfg, dir, &self, m.p, m.n, &arena);
    json_t *state = json_pack("{s:i}", "iteration", 2);
    fail_after = 3, fail_with = ENOSPC;
    saver_save(s, 2, state);
    saver_wait(s);
    fail_after = 3;
    saver_save(s, 3, state);
    saver_wait(s);
    _exit(98);                      /* max_failed_saves is 2: not reached */
}

static void save_two_sync(void *dir) { save_two(dir, 0); }
static void save_two_async(void *dir) { save_two(dir, 1); }

/* K17: the second save comes while the first is being written. */
static void save_in_a_hurry(void *dir)
{
    Config cfg = base_config();
    static Model m;
    Comm self;
    Arena arena;
    cfg.async_save = 1;
    comm_self_open(&self, "all");
    arena_open(&arena, "run", 1 << 16);
    make(&m, 0, 0, 1);
    Saver *s = saver_open(&cfg, dir, &self, m.p, m.n, &arena);
    slow_writes = 1;
    for (int64_t it = 5; it <= 7; it++) {
        json_t *state = json_pack("{s:I}", "iteration", (json_int_t)it);
        double start = now();
        fill(&m, it);
        saver_save(s, it, state);
        fill(&m, 0);
        saver_poll(s);
        json_decref(state);
        if (it == 5 && now() - start > 0.05)
            _exit(97);              /* it waited for the disk */
    }
    if (saver_wait(s) != 7)
        _exit(96);
    saver_close(s);
}

static void faults(void)
{
    Config cfg = base_config();
    char *dir = path_of("faults");
    short_writes = 1;
    CHECK(save(dir, 1, &cfg) == 1 && load(dir, 0, 0, 1, &cfg) == 1, "short and interrupted writes");
    short_writes = 0;
    for (int async = 0; async < 2; async++) {
        int rc = child(async ? save_two_async : save_two_sync, dir);
        CHECK(rc == EXIT_RESOURCE, "exit %d: %s", rc, said);
        CHECK(strstr(said, "warning: saving iteration 2 failed") && strstr(said, "No space left") &&
                  strstr(said, "writing it again") && strstr(said, "the run goes on") &&
                  strstr(said, "error[save]") && strstr(said, "are free; change:"),
              "%s", said);
        CHECK(load(dir, 0, 0, 1, &cfg) == 1, "the old one is whole");
        shell("[ \"$(ls %s/checkpoints | tr '\\n' ' ')\" = 'iter_0000001 latest ' ]", dir);
    }
    int rc = child(save_in_a_hurry, dir);
    CHECK(rc == 0 && strstr(said, "iteration 6 waits for the checkpoint of iteration 5") && lines(said) == 2,
          "exit %d: %s", rc, said);
    for (int it = 5; it <= 7; it++)
        CHECK(load(path_of("faults/checkpoints/iter_000000%d", it), 0, 0, 1, &cfg) == it, "iteration %d", it);
}

/* ---- several ranks, as threads */

typedef struct { Comm comm; const char *dir; int layout, async; int64_t committed; } Member;

static void *member(void *arg)
{
    Member *me = arg;
    Model *m = xcalloc(1, sizeof *m);
    Config cfg = base_config();
    Arena arena;
    cfg.async_save = me->async;
    arena_open(&arena, "run", 1 << 16);
    make(m, me->layout, me->comm.rank, me->comm.size);
    Saver *s = saver_open(&cfg, me->dir, &me->comm, m->p, m->n, &arena);
    for (int64_t it = 1; it <= 3; it++) {
        json_t *state = json_pack("{s:I}", "iteration", (json_int_t)it);
        fill(m, it);
        saver_save(s, it, state);
        json_decref(state);
        for (int i = 0; i < 3; i++)
            saver_poll(s);
        saver_wait(s);
    }
    me->committed = saver_wait(s);
    saver_close(s);
    memset(m->memory, 0, sizeof m->memory);
    json_t *state = checkpoint_load(me->dir, &cfg, &me->comm, m->p, m->n, 0, NULL);
    if (wrong(m, json_integer_value(json_object_get(state, "iteration"))))
        me->committed = -2;
    json_decref(state);
    arena_close(&arena);
    free(m);
    return NULL;
}

static void team(int size, int layout, int async)
{
    Team t;
    Member me[TEAM_MAX];
    pthread_t thread[TEAM_MAX];
    Config cfg = base_config();
    char *dir = path_of("team%d%d%d", size, layout, async);
    team_open(&t, size);
    for (int r = 0; r < size; r++) {
        me[r] = (Member){.comm = team_member(&t, r), .dir = dir, .layout = layout, .async = async};
        pthread_create(&thread[r], NULL, member, &me[r]);
    }
    for (int r = 0; r < size; r++) {
        pthread_join(thread[r], NULL);
        CHECK(me[r].committed == 3, "%d ranks, layout %d, rank %d: %lld", size, layout, r,
              (long long)me[r].committed);
    }
    for (int other = 0; other < 4; other++)
        for (int r = 0; r < 3; r++)
            CHECK(load(dir, other, other < 2 ? 0 : r, other < 2 ? 1 : 3, &cfg) == 3, "layout %d reads %d",
                  other, layout);
    team_close(&t);
}

static int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

int main(int argc, char **argv)
{
    Config cfg = base_config();
    if (argc >= 4 && !strcmp(argv[1], "save")) {
        int64_t it = atoll(argv[3]);
        cfg.async_save = argc > 4;
        cfg.save_keep_last = 2;
        return save(argv[2], it, &cfg) == it ? 0 : 9;
    }
    if (argc == 3 && !strcmp(argv[1], "load")) {
        int64_t it = load(argv[2], 0, 0, 1, &cfg);
        printf("%lld\n", (long long)it);
        return it < 0;
    }
    if (!mkdtemp(folder))
        return 1;
    int open_before = descriptors();
    conversions();
    round_trip(0);
    round_trip(1);
    other_types();
    large();
    flipped_bits(argc > 1 ? atoi(argv[1]) : 2000);
    wrong_files();
    hostile();
    forged_at_random(20000);
    other_model();
    retention();
    locked();
    faults();
    for (int layout = 2; layout <= 3; layout++)
        for (int async = 0; async < 2; async++)
            team(3, layout, async);
    CHECK(descriptors() == open_before, "%d descriptors, %d at the start", descriptors(), open_before);
    shell("rm -rf %s", folder);
    return test_end();
}
