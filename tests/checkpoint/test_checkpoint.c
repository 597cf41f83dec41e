/* test_checkpoint -- checkpoints saved and loaded in any layout and type, with faults of the disk
 *
 *   test_checkpoint                        all of it
 *   test_checkpoint save DIR N [async]     saves iteration N of the tiny model; 0 if it is on disk
 *   test_checkpoint load DIR               prints the newest whole iteration after comparing every value
 *
 * The last two are for tests/checkpoint/kill_save.sh. */
#define _GNU_SOURCE
#include "faults.h"
#include "memory_copies.h"
#include "run_directory.h"
#include "team.h"
#include "tiny.h"
#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

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
            bad += convert_count_not_finite(&in, (Dtype)t, 1) != !isfinite(d) ||
                   convert_count_not_finite(&f, F32, 1) != !isfinite(d) ||
                   convert_count_not_finite(&d, F64, 1) != !isfinite(d);
        }
    }
    CHECK(!bad, "%d of the 16-bit numbers do not survive, or are counted wrongly", bad);
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
        /* just above halfway in BF16, by a bit that F32 does not hold: going through F32 would round down */
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
    /* saving the same step again replaces the folder by one with the same bytes */
    shell("cp -r %s/checkpoints/iter_12345678 %s/copy", dir, dir);
    CHECK(save(dir, 12345678, &cfg) == 12345678, "saved again");
    shell("diff -r %s/checkpoints/iter_12345678 %s/copy && [ \"$(ls %s/checkpoints)\" = "
          "\"iter_0000003\niter_12345678\nlatest\" ]",
          dir, dir, dir);
    shell("[ \"$(cat %s/checkpoints/latest)\" = iter_12345678 ]", dir);
    shell("grep -q gridiron %s/copy/manifest.json && [ \"$(ls %s/copy | tr '\\n' ' ')\" = "
          "'manifest.json model-00000.safetensors optim-00000.safetensors ' ]", dir, dir);
}

/* Saves a step again where renameat2 has no flags: the checkpoint that has its name may be a damaged one. */
static void plain_renames(void)
{
    Config cfg = base_config();
    char *dir = path_of("plain");
    plain_names = 1;
    CHECK(save(dir, 1, &cfg) == 1 && save(dir, 2, &cfg) == 2, "saved");
    shell("cp -r %s/checkpoints/iter_0000002 %s/copy", dir, dir);
    shell(": > %s/checkpoints/iter_0000002/model-00000.safetensors", dir);
    CHECK(save(dir, 2, &cfg) == 2, "saved again");
    shell("diff -r %s/checkpoints/iter_0000002 %s/copy && [ \"$(ls %s/checkpoints)\" = "
          "\"iter_0000001\niter_0000002\nlatest\" ]",
          dir, dir, dir);
    /* the host died between the two names */
    shell("cd %s/checkpoints && mv iter_0000002 iter_0000002.old && cp -r iter_0000001 iter_0000001.old",
          dir);
    CHECK(save(dir, 3, &cfg) == 3, "saved after that");
    plain_names = 0;
    shell("diff -r %s/checkpoints/iter_0000002 %s/copy && [ \"$(ls -d %s/checkpoints/iter_*)\" = \"$(ls -d "
          "%s/checkpoints/iter_000000[123])\" ]",
          dir, dir, dir, dir);
}

/* A load in another type reads the master where the checkpoint has one, and makes the master from the
 * weight where it has none. Moments are loaded only for a whole resume. */
static void other_types(void)
{
    Config cfg = base_config();
    char *dir = path_of("trip0");
    Comm self;
    comm_self_open(&self, "all");
    double w[120], bad = 0;
    float moment = 9;
    TensorPiece p[] = {{.name = "layer.weight",
                  .type = F64, .ndim = 2, .shape = {12, 10}, .rows = 12, .cols = 10, .data = w, .ld = 10},
                 {.name = "layer.bias.exp_avg", .type = F32, .ndim = 1, .shape = {7}, .rows = 1, .cols = 1,
                  .data = &moment, .ld = 1, .optim = 1}};
    json_decref(checkpoint_load(&(LoadFrom){.path = dir}, &cfg, &self, p, 2, 1, NULL));
    for (int i = 0; i < 120; i++)
        bad = worse(bad, fabs(w[i] - (float)value(0, 12345678, i / 10, i % 10)));
    CHECK(bad == 0 && moment == 9, "an F64 weight comes from the F32 master; a moment is left alone: %g",
          bad);
    float b[7];
    TensorPiece q = {.name = "layer.bias.master",
               .type = F32, .ndim = 1, .shape = {7}, .rows = 7, .cols = 1, .data = b, .ld = 1, .optim = 1};
    json_decref(checkpoint_load(&(LoadFrom){.path = dir}, &cfg, &self, &q, 1, 1, NULL));
    for (int i = 0; i < 7; i++) {
        uint16_t h;
        float f;
        double x = value(1, 12345678, i, 0);
        convert(&h, BF16, &x, F64, 1);
        convert(&f, F32, &h, BF16, 1);
        CHECK(b[i] == f, "a master that is not there is the weight: %g, %g", b[i], f);
    }
}

/* A shard of several hash blocks, of a tensor in two pieces, the first of which ends within a block that
 * begins within a row: it is read in part, a bit outside of that part is flipped. */
static void large(void)
{
    Config cfg = base_config();
    char *dir = path_of("large");
    Comm self;
    comm_self_open(&self, "all");
    int64_t R = 3000, C = 1000, first = 1100;
    float *w = xcalloc((size_t)(R * C), 4), *v = xcalloc((size_t)(R * C), 4);
    for (int64_t i = 0; i < R * C; i++)
        w[i] = (float)i;
    TensorPiece p = {
        .name = "w", .type = F32, .ndim = 2, .shape = {R, C}, .rows = R, .cols = C, .data = w, .ld = C};
    TensorPiece pieces[] = {p, p};
    pieces[0].rows = pieces[1].row0 = first;
    pieces[1].rows = R - first;
    pieces[1].data = memcpy(v, w + first * C, (size_t)((R - first) * C) * sizeof *w);
    memset(w + first * C, 0, (size_t)((R - first) * C) * sizeof *w);       /* not behind the first piece */
    Arena arena = no_arena;
    Saver *s = saver_open(&cfg, dir, &self, pieces, 2, &arena);
    saver_start(s);
    json_t *state = json_object();
    saver_save(s, 1, state);
    json_decref(state);
    saver_close(s);
    TensorPiece q = p;
    q.row0 = first, q.col0 = 17, q.rows = 1500, q.cols = 31, q.data = v, q.ld = 40;
    shell("printf x | dd of=%s/checkpoints/iter_0000001/model-00000.safetensors bs=1 seek=1000 conv=notrunc "
          "2>/dev/null",
          dir);
    json_decref(checkpoint_load(&(LoadFrom){.path = dir}, &cfg, &self, &q, 1, 0, NULL));
    int bad = 0;
    for (int64_t r = 0; r < q.rows; r++)
        for (int64_t c = 0; c < q.cols; c++)
            bad += v[r * 40 + c] != (float)((q.row0 + r) * C + q.col0 + c);
    CHECK(!bad, "%d elements of the box differ", bad);
    Source src;
    CHECK(source_open(&src, path_of("large/checkpoints/iter_0000001"), why), "%s", why);
    CHECK(!source_verify(&src, NULL, why) && strstr(why, "model-00000") && strstr(why, "tensor w"), "%s",
          why);
    source_close(&src);
    free(w);
    free(v);
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

/* K12: a job claims its folder for as long as the job lives. */
static void claim(const char *dir, RunDirectory *d)
{
    Config cfg = base_config();
    Comm self;
    comm_self_open(&self, "all");
    cfg.save = dir;
    run_directory_claim(d, &cfg, &self);
}

static void second_job(void *dir)
{
    RunDirectory d;
    claim(dir, &d);
}

static void locked(void)
{
    RunDirectory d;
    char *dir = path_of("lock");
    claim(dir, &d);
    int rc = child(second_job, dir);
    CHECK(rc == EXIT_CHECKPOINT && strstr(said, "another job (process ") && lines(said) == 1, "exit %d: %s",
          rc, said);
    run_directory_close(&d);
    rc = child(second_job, dir);
    CHECK(rc == 0, "exit %d: %s", rc, said);
}

/* A checkpoint that is deleted or replaced while it is read counts as gone, and not as damaged. One that
 * still lies there does not count as gone. */
static void gone(void)
{
    Config cfg = base_config();
    Source s;
    char *dir = path_of("gone"), *one = path_of("gone/checkpoints/iter_0000001");
    CHECK(save(dir, 1, &cfg) == 1 && save(dir, 2, &cfg) == 2, "saved");
    CHECK(source_open(&s, one, why) && !source_gone(&s, one), "%s", why);
    shell("mv %s %s.trash && rm %s.trash/optim*", one, one, one);
    CHECK(!source_verify(&s, NULL, why) && source_gone(&s, one), "%s", why);
    source_close(&s);
    CHECK(!source_open(&s, one, why) && source_gone(&s, one), "%s", why);
    shell("cp -r %s.trash %s", one, one);
    CHECK(source_open(&s, one, why) && !source_verify(&s, NULL, why) && !source_gone(&s, one), "damaged: %s",
          why);
    shell("mv %s %s.other && cp -r %s.other %s", one, one, one, one);
    CHECK(source_gone(&s, one), "replaced by another");
    source_close(&s);
    CHECK(source_open_newest(&s, dir, why) && s.m.iteration == 2, "%s", why);
    source_close(&s);
}

/* Names of checkpoints have 7 to 18 digits, which fit 64 bits. */
static void names(void)
{
    static const char *const none[] = {"iter_000001",  "iter_0000001.tmp", "iter_00000x1",
                                       "item_0000001", "iter_",            "iter_-0000001",
                                       "iter_9223372036854775808"};
    int64_t it = -1;
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK(!source_iteration(none[i], &it) && it == -1, "%s is taken for iteration %lld", none[i],
              (long long)it);
    CHECK(source_iteration("iter_0000012", &it) && it == 12, "%lld", (long long)it);
    CHECK(source_iteration("iter_999999999999999999", &it) && it == 999999999999999999, "%lld",
          (long long)it);
}

/* ---- faults of the system */

/* Two saves, each with every write after the third failing. */
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
    saver_start(s);
    json_t *state = json_pack("{s:i}", "iteration", 2);
    fail_after = 3, fail_with = ENOSPC;
    saver_save(s, 2, state);
    saver_wait(s);
    fail_after = 3;
    saver_save(s, 3, state);
    saver_wait(s);
    _exit(98);                      /* not reached, because max_failed_saves is 2 */
}

static void save_two_sync(void *dir) { save_two(dir, 0); }
static void save_two_async(void *dir) { save_two(dir, 1); }

/* Passes on what the program prints; releases held writes when the text says that a save waits. */
static void *let_go(void *pipe)
{
    char text[1024];
    for (ssize_t n; (n = read(((int *)pipe)[0], text, sizeof text - 1)) > 0;) {
        text[n] = 0;
        if (strstr(text, "iteration 6 waits"))
            atomic_store(&held_writes, 0);
        if (write(((int *)pipe)[2], text, (size_t)n) != n)
            _exit(95);
    }
    return NULL;
}

/* K17: the second save comes while the first is being written. The first goes on once the second waits. */
static void save_in_a_hurry(void *dir)
{
    int said_by[3] = {-1, -1, dup(2)};
    pthread_t thread;
    if (pipe(said_by) || dup2(said_by[1], 2) != 2 || close(said_by[1]) ||
        pthread_create(&thread, NULL, let_go, said_by))
        _exit(94);
    alarm(240);                     /* ends a first save that is never released */
    Config cfg = base_config();
    static Model m;
    Comm self;
    Arena arena;
    cfg.async_save = 1;
    comm_self_open(&self, "all");
    arena_open(&arena, "run", 1 << 16);
    make(&m, 0, 0, 1);
    Saver *s = saver_open(&cfg, dir, &self, m.p, m.n, &arena);
    saver_start(s);
    held_writes = 1;
    for (int64_t it = 5; it <= 7; it++) {
        json_t *state = json_pack("{s:I}", "iteration", (json_int_t)it);
        fill(&m, it);
        saver_save(s, it, state);
        fill(&m, 0);
        saver_poll(s);
        json_decref(state);
    }
    if (saver_wait(s) != 7)
        _exit(96);
    saver_close(s);
    close(2);
    pthread_join(thread, NULL);
}

/* The snapshot's pages are touched before the first save, beside the training thread. */
static void touched(void)
{
    Config cfg = base_config();
    Comm self;
    Arena arena;
    int64_t R = 4096, C = 1024, pages = R * C * 4 / 4096, there = 0;
    static unsigned char page[4096];
    char *w = xcalloc((size_t)(R * C), 4);
    TensorPiece p = {.name = "w", .type = F32, .ndim = 2, .shape = {R, C}, .rows = R, .cols = C, .data = w,
                     .ld = C};
    cfg.async_save = 1;
    comm_self_open(&self, "all");
    arena_open(&arena, "run", (size_t)(R * C * 4));
    Saver *s = saver_open(&cfg, path_of("touched"), &self, &p, 1, &arena);
    for (double start = now(); there < pages && now() - start < 60; usleep(1000)) {
        CHECK(mincore(arena.base, (size_t)(R * C * 4), page) == 0, "mincore");
        there = 0;
        for (int64_t i = 0; i < pages; i++)
            there += page[i] & 1;
    }
    CHECK(there == pages, "%ld of %ld pages of the snapshot are there", (long)there, (long)pages);
    saver_close(s);
    arena_close(&arena);
    free(w);
}

/* ---- a checkpoint that is read back */

static struct { Model m; Comm self; Arena arena; Saver *s; } back;

static void back_open(char *dir, int async, int verify)
{
    static Config cfg;
    cfg = base_config();
    cfg.async_save = async;
    cfg.verify_saves = verify;
    cfg.save_keep_last = 1;
    comm_self_open(&back.self, "all");
    arena_open(&back.arena, "run", 1 << 16);
    make(&back.m, 0, 0, 1);
    back.s = saver_open(&cfg, dir, &back.self, back.m.p, back.m.n, &back.arena);
    saver_start(back.s);
}

static void back_save(int64_t it)
{
    json_t *state = json_pack("{s:I}", "iteration", (json_int_t)it);
    fill(&back.m, it);
    saver_save(back.s, it, state);
    json_decref(state);
}

static void back_close(void)
{
    saver_close(back.s);
    arena_close(&back.arena);
}

/* One bit of iteration 2 is written wrong, then every write of iterations 3 and 4. */
static void save_damaged(char *dir, int async)
{
    back_open(dir, async, 1);
    back_save(1);
    saver_wait(back.s);
    flips = 1;
    back_save(2);
    fill(&back.m, 0);
    if (saver_wait(back.s) != 2)
        _exit(97);
    flips = 1 << 30;
    back_save(3);
    if (saver_wait(back.s) != 2)
        _exit(96);
    back_save(4);
    saver_wait(back.s);
    _exit(98);                      /* not reached, because max_failed_saves is 2 */
}
static void save_damaged_sync(void *dir) { save_damaged(dir, 0); }
static void save_damaged_async(void *dir) { save_damaged(dir, 1); }

/* Saves 1 and 3 fail, and save 2 between them does not. */
static void save_between(void *dir)
{
    back_open(dir, 0, 0);
    fail_with = ENOSPC;
    for (int64_t it = 1; it <= 3; it++) {
        fail_after = it == 2 ? -1 : 3;
        back_save(it);
        if (saver_wait(back.s) != (it == 1 ? -1 : 2) || !saver_lost(back.s) != (it == 2))
            _exit(97);
    }
    fail_after = -1;
    back_close();
    _exit(0);                       /* max_failed_saves, 2, counts failures in a row */
}

static int is_there(const char *dir, int it)
{
    char *path = xasprintf("%s/checkpoints/iter_%07d/manifest.json", dir, it);
    int there = access(path, F_OK) == 0;
    free(path);
    return there;
}

/* A wrong bit of any tensor, of the model and of the optimizer, is found. */
static void read_whole(void)
{
    for (int t = 0; t < TENSORS; t++) {
        char *dir = path_of("whole%d", t);
        back_open(dir, 0, 1);
        sound = t;
        flips = 1;
        back_save(1);
        const char *damaged = path_of("whole%d/checkpoints/iter_0000001.damaged", t);
        CHECK(saver_wait(back.s) == 1 && access(damaged, F_OK) == 0, "%s is not read back", tensors[t].name);
        back_close();
    }
    sound = 0;
}

/* Older checkpoints go when a newer one is verified and not before; a hurry leaves it unverified. */
static void deleted_late(void)
{
    char *dir = path_of("late");
    back_open(dir, 1, 1);
    back_save(1);
    saver_wait(back.s);
    drops = 0;
    held_reads = 1;
    back_save(2);
    for (double start = now(); saver_committed(back.s) < 2 && now() - start < 60; usleep(1000))
        saver_poll(back.s);
    CHECK(is_there(dir, 1) && is_there(dir, 2), "iteration 1 is there while 2 is read back");
    held_reads = 0;
    saver_wait(back.s);
    CHECK(!is_there(dir, 1) && is_there(dir, 2), "iteration 2 is verified");
    CHECK(drops == 3, "%d files of 3 are read from the disk", (int)drops);
    saver_hurry(back.s);
    back_save(3);
    CHECK(saver_wait(back.s) == 3 && is_there(dir, 2), "iteration 2 is the last verified one");
    back_save(4);
    saver_wait(back.s);
    CHECK(!is_there(dir, 3) && is_there(dir, 4) && is_there(dir, 2), "the newest and the last verified one");
    back_close();
    back_open(dir, 1, 1);           /* a new process knows of no verified one, unless it has loaded it */
    saver_hurry(back.s);
    back_save(5);
    saver_wait(back.s);
    CHECK(is_there(dir, 2) && is_there(dir, 4), "nothing is deleted while none is known to be good");
    saver_loaded(back.s, 4, 0);
    back_save(6);
    saver_wait(back.s);
    CHECK(is_there(dir, 2) && is_there(dir, 5), "the loaded one has not been verified");
    saver_loaded(back.s, 4, 1);
    back_save(7);
    saver_wait(back.s);
    CHECK(!is_there(dir, 2) && is_there(dir, 4) && !is_there(dir, 5), "the loaded one is good");
    back_close();
}

/* Where nothing is read back, a checkpoint that a start has loaded goes as others do. */
static void deleted_unread(void)
{
    char *dir = path_of("unread");
    back_open(dir, 0, 0);
    back_save(1);
    back_close();
    back_open(dir, 0, 0);
    saver_loaded(back.s, 1, 1);
    back_save(2);
    back_close();
    CHECK(!is_there(dir, 1) && is_there(dir, 2), "save_keep_last is 1");
}

static void read_back(void)
{
    Config cfg = base_config();
    for (int async = 0; async < 2; async++) {
        char *dir = path_of("back%d", async);
        int rc = child(async ? save_damaged_async : save_damaged_sync, dir);
        CHECK(rc == EXIT_RESOURCE, "exit %d: %s", rc, said);
        CHECK(strstr(said, "iteration 2 was read back and is damaged: model-00000.safetensors is damaged: "
                           "tensor ") &&
                  strstr(said, "it is now iter_0000002.damaged, and written again") &&
                  strstr(said, "iter_0000003.damaged; older checkpoints stay") &&
                  strstr(said, "error[save]") && lines(said) == 6, "%s", said);
        CHECK(load(dir, 0, 0, 1, &cfg) == 2, "the newest that is good");
        shell("[ \"$(ls %s/checkpoints | tr '\\n' ' ')\" = 'iter_0000002 iter_0000002.damaged "
              "iter_0000003.damaged iter_0000004.damaged latest ' ]", dir);
    }
    CHECK(child(save_between, path_of("between")) == 0, "two failures that are not in a row: %s", said);
    read_whole();
    deleted_late();
    deleted_unread();
}

/* Before the first save its time follows from the bytes, afterwards from the longest one. */
static void predicted(void)
{
    Config cfg = base_config();
    static Model m;
    Comm self;
    Arena arena;
    cfg.async_save = 1;
    comm_self_open(&self, "all");
    arena_open(&arena, "run", 1 << 16);
    make(&m, 0, 0, 1);
    fill(&m, 1);
    Saver *s = saver_open(&cfg, path_of("predicted"), &self, m.p, m.n, &arena);
    saver_start(s);
    double bytes = 0, start = now();
    for (int i = 0; i < m.n; i++)
        bytes += (double)(m.p[i].rows * m.p[i].cols) * (double)dtype_size(m.p[i].type);
    CHECK(saver_predict(s) == bytes / SAVE_RATE, "%g s for %g bytes", saver_predict(s), bytes);
    held_writes = 1;
    json_t *state = json_object();
    saver_save(s, 1, state);
    CHECK(saver_predict(s) == 2 * bytes / SAVE_RATE, "beside another save: %g s", saver_predict(s));
    usleep(20000);
    held_writes = 0;
    saver_wait(s);
    CHECK(saver_predict(s) >= 0.02 && saver_predict(s) <= now() - start, "measured: %g s", saver_predict(s));
    /* a long save, then a short one, until that one is the shorter of the two: the machine may be busy */
    for (int tries = 1, longer = 1; longer && tries <= 10; tries++) {
        held_writes = 1;
        saver_save(s, 2, state);
        usleep(10000U << tries);
        held_writes = 0;
        saver_wait(s);
        double first = saver_predict(s), begun = now();
        saver_save(s, 3, state);
        saver_wait(s);
        longer = now() - begun > first;
        CHECK(longer || saver_predict(s) >= first, "%g s, then %g s", first, saver_predict(s));
    }
    json_decref(state);
    saver_close(s);
    arena_close(&arena);
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
                  strstr(said, "error[save]") && strstr(said, "are free; change:") && lines(said) == 5,
              "%s", said);
        CHECK(load(dir, 0, 0, 1, &cfg) == 1, "the old one is whole");
        shell("[ \"$(ls %s/checkpoints | tr '\\n' ' ')\" = 'iter_0000001 latest ' ]", dir);
    }
    int rc = child(save_in_a_hurry, dir);
    CHECK(rc == 0 && strstr(said, "iteration 6 waits for the checkpoint of iteration 5") && lines(said) <= 2,
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
    cfg.verify_saves = 1;
    arena_open(&arena, "run", 1 << 16);
    make(m, me->layout, me->comm.rank, me->comm.size);
    Saver *s = saver_open(&cfg, me->dir, &me->comm, m->p, m->n, &arena);
    saver_start(s);
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
    json_t *state = checkpoint_load(&(LoadFrom){.path = me->dir}, &cfg, &me->comm, m->p, m->n, 0, NULL);
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
    flips = 1;                      /* a bit of iteration 1 is written wrong, by any rank */
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
    CHECK(access(path_of("team%d%d%d/checkpoints/iter_0000001.damaged", size, layout, async), F_OK) == 0 &&
              load(path_of("team%d%d%d/checkpoints/iter_0000001", size, layout, async), 0, 0, 1, &cfg) == 1,
          "iteration 1 is written again");
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

/* Reads a checkpoint of six shards with a limit on open files that has room for `room` more. */
static int room;

static void read_with_few(void *dir)
{
    rlim_t files = 0;
    for (int free = 0; free < room; files++)
        free += fcntl((int)files, F_GETFD) < 0;
    Config cfg = base_config();
    Source s;
    if (setrlimit(RLIMIT_NOFILE, &(struct rlimit){files, files}))
        _exit(97);
    if (load(dir, 0, 0, 1, &cfg) != 3)
        _exit(98);
    if (!source_open_whole(&s, dir, why) || !source_verify(&s, NULL, why))
        die(EXIT_CHECKPOINT, "verify", "%s", why);
    source_close(&s);
    _exit(0);
}

/* More shards than files that a process may open: none of them is damaged. */
static void few_descriptors(void)
{
    for (room = 2; room <= 8; room++) {
        int code = child(read_with_few, path_of("team330"));
        CHECK(code == 0, "room for %d: exit %d: %s", room, code, said);
    }
    room = 1;                       /* for the folder alone */
    DIES(read_with_few, path_of("team330"), EXIT_RESOURCE, "unreadable", "iter_0000003", "ulimit -n");
}

/* The folder of copies in memory: what lies in it, which copies are forgotten, and that another user, who may
 * have made it, cannot enter it. */
static void memory_folders(void)
{
    Config cfg = base_config();
    Comm self;
    int64_t found[MEMORY_LISTED];
    char *dir = path_of("copies"), *beside = path_of("copies2");
    comm_self_open(&self, "all");
    CHECK(!memory_holds(dir), "the launcher has made none");
    setenv("GRIDIRON_MEMORY", dir, 1);
    CHECK(memory_make(why) && memory_make(why), "%s", why);
    CHECK(memory_holds(dir) && memory_holds(path_of("copies/checkpoints")) && !memory_holds(beside),
          "what lies in the folder");
    for (int64_t it = 3; it <= 5; it++)
        CHECK(save(dir, it, &cfg) == it, "saved");
    CHECK(memory_list(found, &self) == 3 && found[0] == 5 && found[1] == 4 && found[2] == 3, "newest first");
    memory_forget(4, &self);
    CHECK(memory_list(found, &self) == 2 && found[0] == 4, "what comes after 4 is gone, 4 is there");
    chmod(dir, 0710);
    CHECK(!memory_make(why) && strstr(why, "is not a folder of this user alone") &&
              memory_list(found, &self) == 0, "others may enter it: %s", why);
    chmod(dir, 0700);
    shell("ln -s %s %s", dir, beside);
    setenv("GRIDIRON_MEMORY", beside, 1);
    CHECK(!memory_make(why) && memory_list(found, &self) == 0, "a link is followed");
    unsetenv("GRIDIRON_MEMORY");
}

int main(int argc, char **argv)
{
    Config cfg = base_config();
    if (argc >= 4 && !strcmp(argv[1], "save")) {
        int64_t it = atoll(argv[3]);
        cfg.async_save = argc > 4;
        cfg.save_keep_last = 2;
        cfg.verify_saves = 1;
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
    plain_renames();
    other_types();
    large();
    retention();
    memory_folders();
    locked();
    gone();
    names();
    predicted();
    touched();
    read_back();
    faults();
    for (int layout = 2; layout <= 3; layout++)
        for (int async = 0; async < 2; async++)
            team(3, layout, async);
    team(1, 4, 0);
    few_descriptors();
    CHECK(descriptors() == open_before, "%d descriptors, %d at the start", descriptors(), open_before);
    shell("rm -rf %s", folder);
    return test_end();
}
