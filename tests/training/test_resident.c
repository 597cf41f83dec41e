/* test_resident -- what a layout is planned to hold beside what a run of it holds, to the page: random legal
 * layouts of one world in one job. `test_resident N [SEED]`: N layouts of this world, with FEW one, half of
 * them with experts.
 *
 * Of each layout and rank: the plan that `train plan` makes is the run's own; after two steps with an update,
 * an evaluation and a save every arena is full, and its pages that are in memory are those of the plan; the
 * process has not grown by more than the plan says, and what libraries and the heap take. */
#include "config_table.h"
#include "layout_run.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum { PAGE = 4096 };
enum { NOISE = 3 << 20, TOKENS = 8192, DRAWS = 64, SLACK = 48 * PAGE, TIMES = 8 };

/* ---- the model: that of the layouts, with tensors of many pages ---- */

/* A microbatch whose tokens, labels and documents are functions of the position. */
static const Batch *many_tokens(void *run, int mb)
{
    static int32_t tokens[TOKENS], labels[TOKENS], position[TOKENS], start[TOKENS];
    static float mask[TOKENS];
    static int64_t sample[8];
    static Batch batch;
    Run *r = run;
    const Config *c = r->cfg;
    int64_t B = c->micro_batch_size, S = c->seq_length;
    int packed = c->reset_attention_mask;
    Positions own = context_own(&r->model.now.context);
    BUG_ON(B * S > TOKENS || B > 8);
    for (int64_t b = 0; b < B; b++) {
        sample[b] = mb * B + b;
        for (int64_t i = 0; i < S; i++)
            start[b * S + i] = (int32_t)(i / 24 * 24);
        for (const PositionRun *p = own.run; p < own.run + own.count; p++)
            for (int32_t i = p->start; i < p->start + p->n; i++) {
                int64_t at = b * own.stride + p->row + i - p->start;
                tokens[at] = (int32_t)((i * 61 + mb + b) % c->vocab_size);
                labels[at] = (int32_t)((i * 61 + 61 + mb + b) % c->vocab_size);
                position[at] = i - (packed ? start[b * S + i] : 0);
                mask[at] = 1;
            }
    }
    batch = (Batch){B, S, own, tokens, labels, position, packed ? start : NULL, mask, sample};
    return &batch;
}

/* What a plan counts beside the layout: storage, state, saves, offloading, checks. */
static void add_state(Words *a, uint64_t key)
{
    static const char *const type[] = {"fp64", "fp32", "bf16", "fp16"};
    static const char *const rule[] = {"adam", "sgd", "lamb", "lars"};
    add_arg(a, "params_dtype", type[pick(key, 200, 4)]);
    add_arg(a, "initial_loss_scale", "1");             /* the first step updates: fp16 is finite */
    add_arg(a, "init_method_std", "0.02");
    add_arg(a, "optimizer", rule[pick(key, 201, 8) / 2 % 4]);
    add_arg(a, "async_save", pick(key, 202, 2) ? "true" : "false");
    if (pick(key, 203, 3) == 0) {
        add_arg(a, "optimizer_cpu_offload", "true");
        add_arg(a, "optimizer_offload_fraction", pick(key, 204, 2) ? "0.4" : "1");
    }
    if (pick(key, 205, 6) == 0)
        add_arg(a, "cpu_offloading_num_layers", "1");
    if (pick(key, 206, 5) == 0)
        add_arg(a, "sdc_check_interval", "2");
    if (pick(key, 207, 4) == 0)
        add_number(a, "logits_slice_rows", 48);
    if (pick(key, 208, 4) == 0)
        add_arg(a, "logits_dtype", "bf16");
    static const char *const moment[] = {"fp32", "bf16", "fp16", "fp8"};
    if (pick(key, 209, 2)) {           /* blocks of 32 elements */
        set_arg(a, "kv_channels=32");
        add_arg(a, "exp_avg_dtype", moment[pick(key, 210, 4)]);
        if (pick(key, 201, 8) / 2 % 2 == 0)
            add_arg(a, "exp_avg_sq_dtype", moment[pick(key, 211, 4)]);
    }
}

/* The configuration of a layout. The state is drawn until it is legal. */
static const Config *drawn(Words *a, const Layout *l, uint64_t key)
{
    for (int draw = 0; draw < DRAWS; draw++) {
        char width[32], seq[32];
        Check k;
        layout_args(a, l);
        snprintf(width, sizeof width, "ffn_hidden_size=%d",
                 32 * families[l->is[FAMILY]].width * layout_heads(world));
        snprintf(seq, sizeof seq, "seq_length=%d", TIMES * layout_seq(world));
        set_arg(a, width);
        set_arg(a, seq);
        set_arg(a, "hidden_size=96");
        set_arg(a, "kv_channels=12");
        set_arg(a, "vocab_size=1999");
        if (draw < DRAWS - 1)
            add_state(a, key + (uint64_t)draw * 1000003);
        config_check(&k, file, a->n, a->arg, world, USE_STEPS);
        if (!k.n)
            return configure(a, world);
    }
    BUG_ON("no state is legal");
    return NULL;
}

/* ---- pages ---- */

static double least = 1;               /* share of an arena that was in memory, at least */
static int arenas, exact;              /* arenas compared; those whose every page was in memory */

/* Bytes of the pages of [at, at + n) that are in memory. */
static int64_t in_memory(const char *at, int64_t n)
{
    size_t pages = (size_t)(n + PAGE - 1) / PAGE;
    unsigned char *seen = xcalloc(pages + 1, 1);
    int64_t bytes = 0;
    BUG_ON(n && mincore((void *)at, pages * PAGE, seen));
    for (size_t i = 0; i < pages; i++)
        bytes += seen[i] & 1 ? PAGE : 0;
    free(seen);
    return bytes;
}

static int64_t to_pages(int64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* Bytes of an array that no tensor of this rank has: shards begin and end at multiples of a block. */
static int64_t between_tensors(const Run *r, const Flat *f)
{
    const Params *p = &r->params;
    int64_t n = f->n[0] + f->n[1];
    for (int i = 0; i < p->nparam; i++) {
        int64_t from, to;
        param_held(p, &p->param[i], f, &from, &to);
        n -= to - from;
    }
    return f->p || f->offloaded ? n / f->block * (int64_t)dtype_size(f->type) : 0;
}

/* Marks the pieces of ARENA_ALIGN bytes in which the data of a list's microbatches lie. */
static void mark(const Run *r, const Schedule *s, char *seen)
{
    for (int k = 0; k < SLOT_KINDS; k++)
        for (int i = 0; i < s->v * s->m; i++)
            if (s->slot[k][i] != NO_SLOT)
                memset(seen + s->place[k][i] / ARENA_ALIGN, 1,
                       (r->plan.bytes.data[k][i / s->m] + ARENA_ALIGN - 1) / ARENA_ALIGN);
}

/* Bytes between the places of microbatches, which none has used. */
static int64_t unused_places(const Run *r)
{
    size_t n = r->model.slots.all.size / ARENA_ALIGN, unused = 0;
    char *seen = xcalloc(n + 1, 1);
    mark(r, &r->plan.lists[0].train, seen);
    mark(r, &r->plan.lists[0].forward, seen);
    for (size_t i = 0; i < n; i++)
        unused += !seen[i];
    free(seen);
    return (int64_t)unused * ARENA_ALIGN;
}

/* Bytes that a run need not touch: between places, in the arrays of tensors, SLACK for sums of squares of
 * what other ranks hold and the like; and whatever passes through a rank without layers. */
static int64_t untouched(const Run *r)
{
    const Data *d = &r->params.data;
    int layers = 0;
    for (int i = 0; i < r->params.nparts; i++)
        layers |= r->params.part[i].kind == PART_LAYER;
    if (!layers)
        return r->plan.memory.arena;
    int64_t n = between_tensors(r, &d->weight) + between_tensors(r, &d->grad) +
                unused_places(r) + SLACK;
    n += d->master.p != d->weight.p ? between_tensors(r, &d->master) : 0;
    for (int i = 0; i < d->moments; i++)
        n += between_tensors(r, &d->moment[i]) + between_tensors(r, &d->scale[i]);
    return n;
}

/* Whether an arena is full and in memory, to the page. `idle` bytes may be missing: untouched() bytes, and
 * where there are experts a third of the arena, as the plan has room for what the worst routing sends. */
static void check_arena(const Arena *a, int64_t planned, int64_t idle)
{
    int64_t held = in_memory(a->base, planned), whole = to_pages(planned);
    CHECK((int64_t)a->size == planned && (int64_t)a->peak == planned,
          "rank %d, arena '%s': %zu bytes mapped, %zu taken at most, %lld planned\n#   %s", rank, a->name,
          a->size, a->peak, (long long)planned, current);
    CHECK(held <= whole && held >= whole - idle,
          "rank %d, arena '%s': %lld bytes in memory, %lld planned, %lld in pages, of which %lld may be "
          "untouched\n#   %s", rank, a->name, (long long)held, (long long)planned, (long long)whole,
          (long long)idle, current);
    least = fmin(least, whole ? (double)held / (double)whole : 1);
    exact += held == whole;
    arenas++;
}

static void check_same(const Memory *plan, const Memory *run)
{
    static const struct { const char *name; size_t at; } row[] = {
        {"parameters", offsetof(Memory, parameters)}, {"gradients", offsetof(Memory, gradients)},
        {"optimizer", offsetof(Memory, optimizer)},   {"activations", offsetof(Memory, activations)},
        {"buffers", offsetof(Memory, buffers)},       {"total", offsetof(Memory, total)},
        {"host", offsetof(Memory, host)},             {"arena", offsetof(Memory, arena)},
        {"mapped", offsetof(Memory, mapped)},         {"staging", offsetof(Memory, staging)},
        {"saving", offsetof(Memory, saving)},         {"evaluation", offsetof(Memory, evaluation)}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        int64_t a = *(const int64_t *)((const char *)plan + row[i].at),
                b = *(const int64_t *)((const char *)run + row[i].at);
        CHECK(a == b, "rank %d, %s: %lld planned, %lld in the run\n#   %s", rank, row[i].name, (long long)a,
              (long long)b, current);
    }
}

static void one_layout(const Layout *l, uint64_t key)
{
    static Run r, plan;
    Words a;
    Result res = {0};
    char name[600];
    const Config *c = drawn(&a, l, key);
    run_plan(&plan, c, RUN_TRAIN, 0, rank);
    Memory planned = plan.plan.memory;
    run_plan_close(&plan);
    snprintf(name, sizeof name, "%s/held.%d", work_folder(), layouts);
    int64_t before = metrics_memory_resident();
    open_run(&r, c, RUN_TRAIN, name);
    r.step.feed = many_tokens;
    train(&r, 2, &res);
    step_forward(&r, &run_lists(&r, config_batch_at(c, 0))->forward, c->micro_batch_size, c->seq_length, 1);
    json_t *state = run_state(&r);
    saver_save(r.checkpoint.saver, r.progress.iteration, state);
    saver_wait(r.checkpoint.saver);
    json_decref(state);
    int64_t grown = metrics_memory_resident() - before;
    check_same(&planned, &r.plan.memory);
    int64_t idle = untouched(&r), experts = c->num_moe_experts == CFG_ABSENT ? 0 : 1;
    check_arena(&r.arenas.run, planned.arena, idle + experts * planned.arena / 3);
    /* each slot has room for what the fullest chunk sends to the host */
    check_arena(&r.arenas.mapped, planned.mapped,
                c->cpu_offloading_num_layers ? planned.mapped : idle + experts * planned.mapped / 3);
    check_arena(&r.arenas.host, planned.staging, PAGE);        /* of a second step under way */
    CHECK(SANITIZED || grown <= planned.total + NOISE,
          "rank %d: %.2f MB more in memory, %.2f planned\n#   %s", rank, (double)grown / 1e6,
          (double)planned.total / 1e6, current);
    layouts++;
    run_close(&r);
}

int main(int argc, char **argv)
{
    enum { MOST = 8192 };
    static Layout list[MOST];
    int n = argc > 1 && !test_few() ? atoi(argv[1]) : 1;
    uint64_t seed = argc > 2 ? (uint64_t)atoi(argv[2]) : 1;
    double start = now();
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);     /* pages are counted: no page of 2 MiB */
    layouts_open();
    for (int i = 0; i < n; i++) {
        int all = layouts_all(world, i % 2, list, MOST, seed + (uint64_t)(i / 2));
        one_layout(&list[pick(seed, (uint64_t)i, all)], hash64(&i, sizeof i, seed));
    }
    if (rank == 0)
        printf("# rank 0: %d of %d arenas in memory to the page, the others to %.2f %% or more\n", exact,
               arenas, 100 * least);
    int bad = layouts_close(start);
    return rank ? test_failures > 0 : bad;
}
