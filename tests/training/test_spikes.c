/* test_spikes -- steps whose loss jumps: on_spike in several layouts, on the host and on a GPU
 *
 * The batches of three steps have wrong labels. `skip` ends with the bits of a run that never saw them, in
 * one piece, resumed between two of them, and with every step computed twice (sdc_rerun); `rewind` with the
 * bits of a run without everything between a save and a spike; `warn` with those of a run that judges
 * nothing. All layouts decide alike.
 *   test_spikes FOLDER [KEY=VALUE ...]    further keys, of every run */
#include "layout_run.h"

enum { STEPS = 30, FIRST = 18, SECOND = 19, THIRD = 26, WINDOW = 8, BATCH = 8, SPIKES = 16 };
static const int64_t wrong[] = {FIRST, SECOND, THIRD};
enum { WRONG = sizeof wrong / sizeof *wrong };

static int is_among(int64_t x, const int64_t *list, int n)
{
    for (int i = 0; i < n; i++)
        if (list[i] == x)
            return 1;
    return 0;
}

/* A text that is learnt in a few steps: most labels are 3. Those of the wrong steps are 11. */
static void text_with_jumps(Sample *x, const Config *c, int64_t s)
{
    sample_text(x, c, s);
    for (int64_t i = 0; i < c->seq_length; i++) {
        int rare = rng_uniform(6, (uint64_t)s, (uint64_t)i) < 0.15;
        x->mask[i] = 1;
        x->label[i] = is_among(s / BATCH + 1, wrong, WRONG) ? 11 : rare ? x->label[i] : 3;
    }
}

/* What a run left behind. hash: of weights, masters, moments; spikes: the iterations called one. */
typedef struct {
    uint64_t hash;
    int64_t updates, skipped, samples, spike[SPIKES];
    int spikes;
} End;

static uint64_t hash_of(Run *r)
{
    int n;
    char *copy = NULL;
    TensorPiece *p = pieces_open(&r->params, PIECES_SAVE, &n);
    expert_bias_pieces(&r->model, PIECES_SAVE, &p, &n);
    uint64_t sum = 0;
    data_settle(&r->params.data);
    for (int i = 0; i < n; i++) {
        uint64_t name = hash64(p[i].name, strlen(p[i].name), 1);
        size_t size = dtype_size(p[i].type), line = (size_t)p[i].cols * size;
        copy = xrealloc(copy, line + 1);
        for (int64_t row = 0; row < p[i].rows; row++) {
            piece_get(&p[i], row * p[i].ld, p[i].cols, copy);
            for (int64_t col = 0; col < p[i].cols; col++) {
                struct { int64_t row, col; uint64_t bits; } e = {p[i].row0 + row, p[i].col0 + col, 0};
                memcpy(&e.bits, copy + (size_t)col * size, size);
                sum += hash64(&e, sizeof e, name);
            }
        }
    }
    free(copy);
    pieces_close(p, n);
    int64_t half[2] = {(int64_t)(sum & 0xffffffff), (int64_t)(sum >> 32)};
    Comm *all = &r->grid.all;
    all->wait(all, all->all_reduce(all, half, 2, I64, OP_SUM));
    return (uint64_t)half[0] + ((uint64_t)half[1] << 32);
}

/* What a run does: saves: iterations after which it saves; without: steps whose batches it never sees. */
typedef struct { int64_t saves[4], without[16]; int nsaves, nwithout; } Way;

static int64_t newest;                 /* iteration of the newest checkpoint */

static void save_here(Run *r)
{
    newest = r->progress.iteration;
    json_t *state = run_state(r);
    saver_save(r->checkpoint.saver, r->progress.iteration, state);
    json_decref(state);
    CHECK(saver_wait(r->checkpoint.saver) == r->progress.iteration, "saved at %lld",
          (long long)r->progress.iteration);
}

/* Rewinds. What the run has counted, and for how long its schedules stood still, stays as it was: the
 * checkpoint's numbers are older ones. */
static void rewind_to(Run *r, const char *path)
{
    RunProgress *p = &r->progress;
    p->nans++;
    p->unscheduled.iterations++;
    p->batches.tokens++;
    const RunProgress was = *p;
    const int64_t row = ++r->spikes.in_a_row;
    run_rewind(r, &(LoadFrom){.path = path});
    CHECK(p->nans == was.nans && p->unscheduled.iterations == was.unscheduled.iterations &&
          p->batches.tokens == was.batches.tokens && r->spikes.in_a_row == row,
          "rewound: %lld NaNs and %lld, schedules still for %lld and %lld, tokens %lld and %lld, %lld spikes "
          "in a row and %lld", (long long)p->nans, (long long)was.nans, (long long)p->unscheduled.iterations,
          (long long)was.unscheduled.iterations, (long long)p->batches.tokens, (long long)was.batches.tokens,
          (long long)r->spikes.in_a_row, (long long)row);
    r->spikes.in_a_row--;
}

/* Collects steps as the training loop does. */
static void settle(Run *r, int open, End *e, const char *dir)
{
    while (run_open_steps(r) > open) {
        Metrics m;
        char path[700];
        run_collect(r, &m);
        if (!r->spikes.now.iteration)
            continue;
        BUG_ON(e->spikes == SPIKES);
        e->spike[e->spikes++] = r->spikes.now.iteration;
        if (r->cfg->on_spike != ON_SPIKE_REWIND)
            continue;
        snprintf(path, sizeof path, "%s/checkpoints/iter_%07ld", dir, newest);
        rewind_to(r, path);
    }
}

static int left_open;                  /* bool: the newest step is not collected, as on a GPU */

static void go(Run *r, const Way *w, int64_t to, End *e, const char *dir)
{
    RunProgress *p = &r->progress;
    while (p->iteration < to) {
        if (is_among(p->iteration + 1, w->without, w->nwithout)) {
            settle(r, 0, e, dir);
            p->iteration++;
            p->consumed_samples += BATCH;
            continue;
        }
        run_step(r, &(Metrics){0});
        int64_t at = p->iteration;
        int saves = is_among(at, w->saves, w->nsaves);
        settle(r, r->dev.late || left_open, e, dir);
        if (p->iteration < at)
            continue;
        if (saves || at == to)
            settle(r, 0, e, dir);
        if (saves)
            save_here(r);
    }
    e->hash = hash_of(r);
    e->updates = r->opt.updates;
    e->skipped = r->progress.skipped + r->spikes.skipped;
    e->samples = p->consumed_samples;
}

static char **keys;                    /* further keys of every run */
static int nkeys;
static int twice;                      /* bool: every step runs twice (sdc_rerun) */

static const Config *config_of(const Layout *l, const char *policy)
{
    char text[64];
    Words a;
    layout_args(&a, l);
    snprintf(text, sizeof text, "on_spike=%s", policy);
    set_arg(&a, text);
    set_arg(&a, "save_interval=10");
    set_arg(&a, "spike_window=8");
    set_arg(&a, "spike_sigma=20");
    set_arg(&a, "lr=0.01");
    if (twice) {
        set_arg(&a, "sdc_rerun=true");
        set_arg(&a, "sdc_check_interval=1");
    }
    for (int i = 0; i < nkeys; i++)
        set_arg(&a, keys[i]);
    return configure(&a, world);
}

/* Runs one way to the end. dir: run directory, or NULL. stop: a new run goes on after this step; 0: none. */
static End run_way(const Layout *l, const char *policy, const Way *w, const char *dir, int64_t stop)
{
    static Run r;
    End e = {0};
    for (int part = stop ? 0 : 1; part < 2; part++) {
        r = (Run){0};
        open_run(&r, config_of(l, policy), RUN_TRAIN, dir);
        if (stop && part)
            free(run_load(&r, dir));
        go(&r, w, part ? STEPS : stop, &e, dir);
        run_close(&r);
    }
    layouts++;
    return e;
}

/* The limits of losses 1 to 4, and of norms ten times as large, with spikes between them. */
static void limits_of_history(void)
{
    Config c = {.on_spike = ON_SPIKE_SKIP, .spike_window = 4, .spike_sigma = 2};
    Spikes s, loaded;
    Limits l = {INFINITY, INFINITY, 0}, again;
    spikes_open(&s, &c);
    spikes_open(&loaded, &c);
    for (int i = 1; i <= 9; i++) {
        int spike = i == 6 || i == 8;
        double loss = spike ? 1000 : 1 + i % 4;
        l = spikes_limits(&s, &c, i);
        CHECK(isfinite(l.loss) == (i >= 6), "limit %g of step %d", l.loss, i);
        spikes_see(&s, &c, &(Spike){.iteration = i, .loss = loss, .norm = 10 * loss, .first = 2 * i,
                                    .samples = 2, .limits = l});
        CHECK((s.now.iteration == i) == spike, "step %d: a spike at %lld", i, (long long)s.now.iteration);
    }
    /* step 9 goes by 3, 4, 5 and 7: losses 4 1 2 4, median 3, distances 1 2 1 1 */
    CHECK(fabs(l.loss - (3 + 2 * 1.4826)) < 1e-12 && fabs(l.norm - 10 * l.loss) < 1e-9,
          "limits %.17g and %.17g", l.loss, l.norm);
    CHECK(s.skipped == 2 && s.nout == 2 && s.out[1].first == 16, "%lld spikes are skipped",
          (long long)s.skipped);
    json_t *state = spikes_state(&s);
    CHECK(spikes_load(&loaded, &c, state, 9), "its own state is refused");
    l = spikes_limits(&s, &c, 11);
    again = spikes_limits(&loaded, &c, 11);
    CHECK(l.loss == again.loss && l.norm == again.norm && loaded.nout == 2 && loaded.skipped == 2,
          "loaded: limits %.17g and %.17g", again.loss, again.norm);
    CHECK(!spikes_load(&loaded, &c, state, 4), "a state of later steps is taken");
    json_decref(state);
    spikes_close(&s);
    spikes_close(&loaded);
}

/* Judges a step by its limits; returns whether it is a spike. */
static int judged(Spikes *s, const Config *c, int64_t iteration, double loss, double norm)
{
    spikes_see(s, c, &(Spike){.iteration = iteration, .loss = loss, .norm = norm, .first = 2 * iteration,
                              .samples = 2, .limits = spikes_limits(s, c, iteration)});
    return s->now.iteration == iteration;
}

/* Where all steps are equal the limits are 6 % above them; the loss alone makes a spike, and the norm alone.
 * A new level that lasts ends a run, or is learnt with `warn`. */
static void limits_of_levels(void)
{
    Config c = {.on_spike = ON_SPIKE_SKIP, .spike_window = 4, .spike_sigma = 6}, narrow = c;
    Spikes s, loaded;
    int i = 1, found = 0, stays = 0;
    spikes_open(&s, &c);
    for (; i <= 8; i++)
        found += judged(&s, &c, i, 4, 8);
    Limits l = spikes_limits(&s, &c, i);
    CHECK(!found && fabs(l.loss - 4.24) < 1e-12 && fabs(l.norm - 8.48) < 1e-12,
          "%d spikes, limits %.17g %.17g", found, l.loss, l.norm);
    CHECK(!judged(&s, &c, 9, 4.2, 8.4) && judged(&s, &c, 10, 4.3, 8) && judged(&s, &c, 11, 4, 8.5),
          "the limits of one of the two");
    CHECK(!spikes_stay(&s, &c) && judged(&s, &c, 12, 8, 16) && !spikes_stay(&s, &c) &&
              judged(&s, &c, 13, 8, 16) && spikes_stay(&s, &c), "%ld spikes in a row", s.in_a_row);
    narrow.spike_window = 2;
    spikes_open(&loaded, &narrow);
    json_t *state = spikes_state(&s), *good = json_object_get(state, "good");
    CHECK(spikes_load(&loaded, &narrow, state, 13) && loaded.n == 3 && loaded.in_a_row == 4 &&
              loaded.good[2].iteration == 9, "%ld good steps of a wider window", loaded.n);
    json_array_append(good, json_array_get(good, 0));
    CHECK(!spikes_load(&loaded, &narrow, state, 13), "good steps in another order are taken");
    json_decref(state);
    spikes_close(&loaded);
    spikes_close(&s);
    c.on_spike = ON_SPIKE_WARN;
    spikes_open(&s, &c);
    for (i = 1, found = 0; i <= 40; i++) {
        found += judged(&s, &c, i, i < 10 ? 4 : 8, 8);
        stays |= spikes_stay(&s, &c);
    }
    l = spikes_limits(&s, &c, i);
    CHECK(!stays && found >= 4 && found < 12 && l.loss > 8, "warn: %d spikes, limit %g", found, l.loss);
    spikes_close(&s);
}

/* Checks that two runs have ended alike. */
static void same_end(const char *what, const End *a, const End *b)
{
    CHECK(a->hash == b->hash, "%s: other bits\n#   %s", what, current);
    CHECK(a->updates == b->updates && a->samples == b->samples, "%s: %lld updates and %lld, %lld samples and "
          "%lld\n#   %s", what, (long long)a->updates, (long long)b->updates, (long long)a->samples,
          (long long)b->samples, current);
}

/* Checks the first n spikes; exact: bool: there are no others. */
static void found(const char *what, const End *e, int n, int exact)
{
    int same = e->spikes == n || (!exact && e->spikes > n);
    for (int i = 0; i < n && same; i++)
        same = e->spike[i] == wrong[i];
    CHECK(same, "%s: %d spikes, at %lld, %lld, %lld, %lld\n#   %s", what, e->spikes, (long long)e->spike[0],
          (long long)e->spike[1], (long long)e->spike[2], (long long)e->spike[3], current);
}

static void all_ways(const Layout *l, const char *folder, int k)
{
    char dir[4][600];
    for (int i = 0; i < 4; i++)
        snprintf(dir[i], sizeof dir[i], "%s/%d-%d-%d", folder, world, k, i);
    End plain = run_way(l, "none", &(Way){0}, NULL, 0), warned = run_way(l, "warn", &(Way){0}, NULL, 0);
    found("warn", &warned, 2, 0);
    same_end("warn", &plain, &warned);

    End without = run_way(l, "none", &(Way){.without = {FIRST, SECOND, THIRD}, .nwithout = 3}, NULL, 0);
    End skipped = run_way(l, "skip", &(Way){0}, NULL, 0);
    End resumed = run_way(l, "skip", &(Way){.saves = {FIRST}, .nsaves = 1}, dir[0], FIRST);
    found("skip", &skipped, WRONG, 1);
    found("skip, resumed", &resumed, WRONG, 1);
    same_end("skip and a run without these batches", &skipped, &without);
    same_end("skip, resumed", &resumed, &skipped);
    CHECK(skipped.skipped == WRONG && skipped.updates == STEPS - WRONG, "%lld steps are skipped",
          (long long)skipped.skipped);

    /* a step runs twice before the host knows that the one before it was held */
    left_open = twice = 1;
    End again = run_way(l, "skip", &(Way){0}, NULL, 0);
    left_open = twice = 0;
    found("skip, every step twice", &again, WRONG, 1);
    same_end("skip, every step twice", &again, &skipped);

    /* the steps after the save at 16 up to SECOND, and after the one at 24 up to THIRD */
    Way saves = {.saves = {16, 24}, .nsaves = 2}, parts = {.saves = {16, 24, 28}, .nsaves = 3};
    End shorter = run_way(l, "none", &(Way){.without = {17, 18, 19, 25, 26}, .nwithout = 5}, NULL, 0);
    End back = run_way(l, "rewind", &saves, dir[1], 0);
    End back_resumed = run_way(l, "rewind", &parts, dir[2], 28);
    found("rewind", &back, WRONG, 1);
    same_end("rewind and a run without these batches", &back, &shorter);
    same_end("rewind, resumed", &back_resumed, &back);
    CHECK(back.skipped == 5, "a rewind skips %lld steps", (long long)back.skipped);
}

int main(int argc, char **argv)
{
    double start = now();
    layouts_open();
    limits_of_history();
    limits_of_levels();
    text_source = text_with_jumps;
    CHECK(argc > 1, "usage: FOLDER [KEY=VALUE ...]");
    keys = argv + 2;
    nkeys = argc - 2;
    /* tensor, pipeline, data ranks; ZeRO; family; expert ranks: those that fit the world */
    static const int rows[][6] = {{1, 1, 1, 0, 2, 0}, {2, 1, 1, 0, 0, 0}, {1, 2, 1, 0, 2, 0},
                                  {1, 1, 2, 1, 0, 0}, {2, 2, 1, 0, 2, 0}, {1, 2, 2, 2, 0, 0},
                                  {1, 1, 4, 3, 2, 0}, {2, 1, 2, 3, 0, 0}, {1, 1, 4, 1, 9, 4}};
    for (int k = 0; k < (int)(sizeof rows / sizeof *rows) && argc > 1; k++) {
        const int *row = rows[k];
        Layout l = {.is = {[TP] = row[0], [PP] = row[1], [CP] = 1, [DP] = row[2], [HEADS] = 1,
                           [ZERO] = row[3], [INSTANCES] = 1, [MICRO] = 1, [FAMILY] = row[4], [EP] = row[5],
                           [ETP] = row[5] ? 1 : 0}};
        if (layout_world(&l) == world && layout_normal(&l))
            all_ways(&l, argv[1], k);
    }
    CHECK(layouts > 0, "no layout for %d ranks", world);
    return layouts_close(start);
}
