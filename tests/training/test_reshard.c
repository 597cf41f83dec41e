/* test_reshard -- checkpoints move between layouts
 *
 * One layout saves after two steps. Any other loads the same bits of weights, masters and moments, and
 * takes the same third step. The first layout loads what the other saves.
 *   save FOLDER K     K layouts of this world save, each into its own run directory with a record beside it
 *   load FOLDER TAG   layouts of this world load the saved runs of all worlds and save them again as TAG
 *   back FOLDER TAG   the layouts of `save` in this world load what was saved again as TAG
 *
 * Every third has bf16 weights, and moments of 16 or 8 bits.
 *
 * Elements are compared by their place in the whole tensor, so a permutation is found. */
#include "layout_run.h"

/* What a checkpoint holds. elements: their number; hash: sum over elements of a hash of tensor, place
 * and bits. */
typedef struct { uint64_t elements, hash; } State;

static State state_of(Run *r)
{
    int n;
    TensorPiece *p = pieces_open(&r->params, PIECES_SAVE, &n);
    expert_bias_pieces(&r->model, PIECES_SAVE, &p, &n);
    State s = {0};
    for (int i = 0; i < n; i++) {
        uint64_t name = hash64(p[i].name, strlen(p[i].name), 1);
        for (int64_t row = 0; row < p[i].rows; row++)
            for (int64_t col = 0; col < p[i].cols; col++) {
                struct { int64_t row, col; uint64_t bits; } e = {p[i].row0 + row, p[i].col0 + col, 0};
                piece_get(&p[i], row * p[i].ld + col, 1, &e.bits);
                s.hash += hash64(&e, sizeof e, name);
                s.elements++;
            }
    }
    pieces_close(p, n);
    /* the hash is added modulo 2^64 in two halves of 32 bits */
    int64_t sum[3] = {(int64_t)s.elements, (int64_t)(s.hash & 0xffffffff), (int64_t)(s.hash >> 32)};
    Comm *all = &r->grid.all;
    all->wait(all, all->all_reduce(all, sum, 3, I64, OP_SUM));
    return (State){(uint64_t)sum[0], (uint64_t)sum[1] + ((uint64_t)sum[2] << 32)};
}

static void save(Run *r)
{
    json_t *state = run_state(r);
    saver_save(r->checkpoint.saver, r->progress.iteration, state);
    json_decref(state);
    CHECK(saver_wait(r->checkpoint.saver) == r->progress.iteration, "saved at %lld",
          (long long)r->progress.iteration);
}

/* ---- the layouts, by world and number ---- */

static const char *const rules[] = {"optimizer=adam", "optimizer=sgd", "optimizer=lamb"};

/* Draws a layout of n ranks. family: of its model; -1: any, with experts or without. */
static void layout_of(Layout *l, int n, int family, int experts, uint64_t key)
{
    static const int sizes[] = {1, 2, 4, 8};
    do {
        layout_draw(l, ++key);
        l->is[TP] = sizes[pick(key, 100, 4)];
        l->is[PP] = sizes[pick(key, 101, 4)];
        l->is[CP] = sizes[pick(key, 102, 4)];
        l->is[DP] = n / (l->is[TP] * l->is[PP] * l->is[CP]);
        if (layout_world(l) != n)
            continue;
        if (experts)
            layout_draw_experts(l, key);
        l->is[MICRO] = experts ? 1 : l->is[MICRO];     /* the balance of experts is a microbatch's */
        l->is[CAPACITY] = 0;                           /* what is dropped would be another function */
        l->is[FAMILY] = family >= 0 ? family : l->is[FAMILY];
    } while (layout_world(l) != n || !layout_normal(l));
}

/* bf16 with moments of fewer bits, whose blocks are of 32 elements: all widths times 32. */
static void set_narrow(Words *a, int k)
{
    static const char *const first[] = {"exp_avg_dtype=fp8", "exp_avg_dtype=bf16", "exp_avg_dtype=fp16"};
    for (int i = 0; i < a->n; i++) {
        char *number = strchr(a->text[i], '=') + 1;
        if (strstr(a->text[i], "ffn_hidden_size=") || strstr(a->text[i], "intermediate_size="))
            sprintf(number, "%d", 32 * atoi(number));
    }
    set_arg(a, "hidden_size=32");
    set_arg(a, "kv_channels=32");
    set_arg(a, "params_dtype=bf16");
    set_arg(a, rules[k % 3]);
    set_arg(a, first[k % 3]);
    if (k % 3 != 1)
        set_arg(a, k % 3 ? "exp_avg_sq_dtype=fp16" : "exp_avg_sq_dtype=fp8");
}

static const Config *config_of(const Layout *l, int k, int async)
{
    Words a;
    layout_args(&a, l);
    if (k % 3 == 2) {
        set_narrow(&a, k / 3);
    } else {
        set_arg(&a, "params_dtype=fp64");
        set_arg(&a, rules[k / 2 % 3]);
    }
    if (async)
        set_arg(&a, "async_save=true");
    return configure(&a, world);
}

/* The record beside a saved run: its layout, its state, and the loss of the step after the save. */
typedef struct { Layout layout; State state; double loss; } Record;

static int record(const char *path, Record *rec, const char *mode)
{
    FILE *f = fopen(path, mode);
    if (!f)
        return 0;
    size_t n = *mode == 'r' ? fread(rec, sizeof *rec, 1, f) : fwrite(rec, sizeof *rec, 1, f);
    fclose(f);
    return n == 1;
}

static void save_all(const char *folder, int count)
{
    static Run r;
    for (int k = 0; k < count; k++) {
        char dir[600], path[640];
        Record rec = {0};
        Result res = {0};
        layout_of(&rec.layout, world, -1, k % 2, (uint64_t)(1000 * world + 100 * k));
        snprintf(dir, sizeof dir, "%s/%d-%d", folder, world, k);
        snprintf(path, sizeof path, "%s.record", dir);
        r = (Run){0};
        open_run(&r, config_of(&rec.layout, k, k % 2), RUN_TRAIN, dir);
        train(&r, 2, &res);
        save(&r);
        rec.state = state_of(&r);
        train(&r, 1, &res);
        rec.loss = res.loss[0];
        if (rank == 0)
            CHECK(record(path, &rec, "w") && rec.state.elements > 10000, "%s: %llu elements", path,
                  (unsigned long long)rec.state.elements);
        run_close(&r);
        layouts++;
    }
}

static int contexts, grids;    /* number of loads under another number of context ranks, or expert grid */

/* Loads `dir` in another layout: the state is the record's, and so is the loss of the third step. to:
 * run directory for a second save; NULL: none. */
static void load_one(const char *dir, const Layout *l, int k, const Record *rec, const char *to)
{
    static Run r;
    Result res = {0};
    r = (Run){0};
    const Config *c = config_of(l, k, k % 2 == 0);
    open_run(&r, c, RUN_TRAIN, to);
    free(run_load(&r, dir));
    State s = state_of(&r);
    if (rank == 0)
        CHECK(s.hash == rec->state.hash && s.elements == rec->state.elements && r.progress.iteration == 2,
              "%s: loaded %llu elements of %llu, other bits; iteration %lld\n#   %s", dir,
              (unsigned long long)s.elements, (unsigned long long)rec->state.elements,
              (long long)r.progress.iteration, current);
    if (to)
        save(&r);
    train(&r, 1, &res);
    if (rank == 0)
        CHECK(apart(res.loss[0], rec->loss) <= (c->params_dtype == PARAMS_DTYPE_FP64 ? 1e-12 : 1e-2),
              "%s: third step %.17g, was %.17g\n#   %s", dir, res.loss[0], rec->loss, current);
    run_close(&r);
    layouts++;
    contexts += l->is[CP] != rec->layout.is[CP];
    grids += l->is[EP] != rec->layout.is[EP] || l->is[ETP] != rec->layout.is[ETP];
}

enum { WORLDS = 4, MOST = 64 };
static const int worlds[WORLDS] = {1, 2, 4, 8};

static void load_all(const char *folder, const char *tag)
{
    for (int w = 0; w < WORLDS; w++)
        for (int k = 0; k < MOST; k++) {
            char dir[600], path[640], to[640];
            Record rec;
            Layout l;
            snprintf(dir, sizeof dir, "%s/%d-%d", folder, worlds[w], k);
            snprintf(path, sizeof path, "%s.record", dir);
            snprintf(to, sizeof to, "%s-%s", dir, tag);
            if (!record(path, &rec, "r"))
                continue;
            layout_of(&l, world, rec.layout.is[FAMILY], rec.layout.is[EP] > 0,
                      (uint64_t)(7777 * world + 13 * worlds[w] + k));
            load_one(dir, &l, k, &rec, to);
        }
}

static void load_back(const char *folder, const char *tag)
{
    for (int k = 0; k < MOST; k++) {
        char dir[600], path[640];
        Record rec;
        snprintf(path, sizeof path, "%s/%d-%d.record", folder, world, k);
        snprintf(dir, sizeof dir, "%s/%d-%d-%s", folder, world, k, tag);
        if (record(path, &rec, "r"))
            load_one(dir, &rec.layout, k, &rec, NULL);
    }
}

int main(int argc, char **argv)
{
    double start = now();
    layouts_open();
    CHECK(argc == 4, "usage: save FOLDER K | load FOLDER TAG | back FOLDER TAG");
    if (argc == 4 && !strcmp(argv[1], "save"))
        save_all(argv[2], atoi(argv[3]));
    else if (argc == 4 && !strcmp(argv[1], "load"))
        load_all(argv[2], argv[3]);
    else if (argc == 4 && !strcmp(argv[1], "back"))
        load_back(argv[2], argv[3]);
    CHECK(layouts > 0, "nothing to do");
    if (rank == 0 && contexts + grids)
        printf("# %d loads under another context_parallel_size, %d under another expert grid\n", contexts,
               grids);
    return layouts_close(start);
}
