/* test_params -- the parameter table in every layout
 *
 * The pieces that all ranks save tile each tensor once. A rank loads all that it holds. Key and value
 * heads are on the rank of their queries. Buckets are as data.c needs them. Initial values have the same
 * bits in every layout. Ranks are opened one after the other over groups whose messages do nothing. */
#include "checkpoint.h"
#include "ranks.h"
#include "test.h"

static char file[512];

/* ---- groups with a size and a rank, whose messages do nothing ---- */

static Token nothing_reduce(Comm *c, void *b, int64_t n, Dtype t, ReduceOp o)
{
    return (void)c, (void)b, (void)n, (void)t, (void)o, 0;
}
static Token nothing_scatter(Comm *c, void *o, const void *i, int64_t n, Dtype t, ReduceOp op)
{
    return (void)c, (void)o, (void)i, (void)n, (void)t, (void)op, 0;
}
static Token nothing_gather(Comm *c, void *o, const void *i, int64_t n, Dtype t)
{
    return (void)c, (void)o, (void)i, (void)n, (void)t, 0;
}
static void nothing_wait(Comm *c, Token t) { (void)c, (void)t; }

static Comm nothing(void *ctx, RankGroup kind, int id, int size, int rank)
{
    (void)ctx, (void)kind, (void)id;
    return (Comm){.name = "nothing", .rank = rank, .size = size, .all_reduce = nothing_reduce,
                  .reduce_scatter = nothing_scatter, .all_gather = nothing_gather, .wait = nothing_wait};
}

/* ---- how often each element of each tensor has been seen ---- */

enum { PLAIN, MASTERS, FIRST, SECOND, ARRAYS };
static const char *const suffix[ARRAYS] = {"", ".master", ".exp_avg", ".exp_avg_sq"};
typedef struct { char name[128]; int64_t rows, cols; uint8_t *seen; } Tensor;
typedef struct { Tensor *tensor; int n, at; } Whole;

static Whole whole_open(const Params *one)
{
    Whole w = {xcalloc((size_t)one->nparam * ARRAYS, sizeof *w.tensor), 0, 0};
    for (int a = 0; a < ARRAYS; a++)
        for (int i = 0; i < one->nparam; i++) {
            const Param *t = &one->param[i];
            Tensor *x = &w.tensor[w.n++];
            snprintf(x->name, sizeof x->name, "%s%s", t->name, suffix[a]);
            x->rows = t->rows, x->cols = t->cols;
            x->seen = xcalloc((size_t)(t->rows * t->cols), 1);
        }
    return w;
}

static void whole_close(Whole *w)
{
    for (int i = 0; i < w->n; i++)
        free(w->tensor[i].seen);
    free(w->tensor);
}

static Tensor *find(Whole *w, const char *name)
{
    for (int k = 0; k < w->n; k++, w->at++)
        if (!strcmp(w->tensor[w->at %= w->n].name, name))
            return &w->tensor[w->at];
    return NULL;
}

static void see(Whole *w, const TensorPiece *p)
{
    Tensor *t = find(w, p->name);
    CHECK(t && p->shape[0] == t->rows && (p->ndim == 1 || p->shape[1] == t->cols), "%s", p->name);
    for (int64_t r = 0; t && r < p->rows; r++)
        for (int64_t c = 0; c < p->cols; c++)
            t->seen[(p->row0 + r) * t->cols + p->col0 + c]++;
}

static void check_seen(Whole *w, const char *what, int arrays[ARRAYS])
{
    for (int i = 0; i < w->n; i++) {
        Tensor *t = &w->tensor[i];
        int64_t wrong = 0, n = t->rows * t->cols;
        for (int64_t k = 0; k < n; k++)
            wrong += t->seen[k] != arrays[i / (w->n / ARRAYS)];
        CHECK(!wrong, "%s: %lld of %lld elements of %s not saved once", what, (long long)wrong, (long long)n,
              t->name);
        memset(t->seen, 0, (size_t)n);
    }
}

/* ---- one rank ---- */

/* A rank loads as many elements of the weights as the slices of its tensors hold; weights that are halves of
 * masters come with the shard of these. */
static void check_load(const Params *p, const char *what)
{
    int n;
    int64_t loaded = 0, held = 0;
    TensorPiece *list = pieces_open(p, PIECES_LOAD, &n);
    for (int i = 0; i < n; i++)
        if (p->data.halves ? strstr(list[i].name, ".master") != NULL : !list[i].optim)
            loaded += list[i].rows * list[i].cols;
    pieces_close(list, n);
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        int64_t from = 0, to = t->n, padded = t->local_rows;
        if (p->data.halves ? p->data.master.sharded : p->data.weight.sharded)
            param_own(p, t, &from, &to);
        if (t->id == P_WTE || t->id == P_HEAD) {
            int64_t first = p->grid->index[AXIS_TP] * t->local_rows, left = t->rows - first;
            padded = left < 0 ? 0 : left < padded ? left : padded;
        }
        to = to < padded * t->local_cols ? to : padded * t->local_cols;
        held += to > from ? to - from : 0;
    }
    CHECK(loaded == held, "%s: loads %lld of %lld elements", what, (long long)loaded, (long long)held);
}

/* The rows of k and v are those that this rank's query heads read. */
static void check_heads(const Params *p, const char *what)
{
    const Config *c = p->cfg;
    int tp = p->grid->size[AXIS_TP], r = p->grid->index[AXIS_TP];
    int64_t A = c->num_attention_heads, K = c->num_query_groups, D = c->kv_channels;
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        Box box[MAX_BOXES];
        if (t->id != P_QKV)
            continue;
        int n = param_boxes(p, t, 0, t->n, box);
        int64_t first = r * A / tp, last = (r + 1) * A / tp - 1;      /* query heads */
        CHECK(n == 3 && box[0].row0 == first * D && box[0].rows == (last - first + 1) * D, "%s: query rows",
              what);
        for (int s = 1; s < n; s++)
            CHECK(box[s].row0 - (A + (s - 1) * K) * D == first * K / A * D &&
                      box[s].rows == (last * K / A - first * K / A + 1) * D,
                  "%s: rows [%lld, +%lld) of segment %d", what, (long long)box[s].row0,
                  (long long)box[s].rows, s);
    }
}

/* Tensors lie apart, on block edges, inside their bucket; each partial sum covers what must be summed and
 * nothing else. */
static void check_buckets(const Params *p, const char *what)
{
    const Data *d = &p->data;
    const Config *c = p->cfg;
    int64_t end = 0;
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        const Bucket *b = &d->bucket[t->bucket];
        int partial = 0, head = t->id >= P_QNORM && t->id <= P_KNORMB, rows = 0;
        int64_t kv = t->n;
        int64_t end_of_t = t->offset + t->n;
        CHECK(t->offset % SUMSQ_BLOCK == 0 && t->offset >= b->at && end_of_t <= b->at + b->n, "%s: %s", what,
              t->name);
        int linear = strstr(t->name, "linear") && !strstr(t->name, "experts");
        CHECK((b->phase == PHASE_W) == (t->def->part == PART_LAYER && linear), "%s: half of %s", what,
              t->name);
        CHECK(b->expert == (t->expert >= 0), "%s: bucket of %s", what, t->name);
        for (int s = 0; s < b->sums; s++) {
            const PartialSum *x = &b->sum[s];
            int64_t lo = t->offset > x->at ? t->offset : x->at,
                    hi = end_of_t < x->at + x->n ? end_of_t : x->at + x->n;
            if (lo >= hi)
                continue;
            if (x->comm == &p->grid->kv)
                rows = 1, kv = lo - t->offset;
            else
                partial = lo == t->offset && hi == lo + t->n ? 1 : 9;
        }
        int whole = t->def->cut == CUT_NONE && t->expert < 0;
        CHECK(partial == (head || (c->sequence_parallel && whole)), "%s: sum of %s", what, t->name);
        CHECK(rows == (t->id == P_QKV || t->id == P_QKVB), "%s: key rows of %s", what, t->name);
        CHECK(!rows || kv == c->num_attention_heads / p->grid->size[AXIS_TP] * c->kv_channels * t->local_cols,
              "%s: key rows of %s from %lld", what, t->name, (long long)kv);
    }
    for (int b = 0; b < d->buckets; b++) {
        int64_t n = d->bucket[b].n;
        int64_t edge = data_groups(d, b)->shard->size * SUMSQ_BLOCK;
        CHECK(d->bucket[b].at == end && n > 0 && n % edge == 0, "%s: bucket %d", what, b);
        end += n;
    }
    CHECK(end == d->elems, "%s: flat space", what);
}

/* Compares every element of this rank's shard of masters with the formula of the initial values. */
static void check_values(Params *p, const char *what)
{
    int n;
    int64_t wrong = 0;
    TensorPiece *list = pieces_open(p, PIECES_SAVE, &n);
    for (int i = 0; i < n; i++) {
        const TensorPiece *q = &list[i];
        int bias = strstr(q->name, "bias") != NULL, gain = q->ndim == 1 && !bias;
        int last = strstr(q->name, "linear_proj.w") || strstr(q->name, "linear_fc2.w");
        double std = p->cfg->init_method_std / (last ? sqrt(2.0 * (double)p->cfg->num_layers) : 1);
        uint64_t key = rng_key((uint64_t)p->cfg->seed, q->name);
        int64_t C = q->ndim == 2 ? q->shape[1] : 1;
        for (int64_t r = 0; r < q->rows && !q->optim; r++)
            for (int64_t c = 0; c < q->cols; c++) {
                uint64_t index = (uint64_t)((q->row0 + r) * C + q->col0 + c);
                double want = bias ? 0 : gain ? 1 : std * rng_normal(key, 0, index);
                wrong += ((double *)q->data)[r * q->ld + c] != want;
            }
    }
    pieces_close(list, n);
    CHECK(!wrong, "%s: %lld initial values", what, (long long)wrong);
}

static void initial_values(Params *p, const char *what)
{
    Device dev;
    Arena count = {.name = "run"}, run;
    null_open(&dev, p->real);
    params_layout(p, &dev, &count, 1, 2);
    arena_open(&run, "run", count.used);
    memset(run.base, 0xff, count.used);
    cpu_open(&dev, p->real, test_isa(), 1);
    params_layout(p, &dev, &run, 1, 2);
    CHECK(run.used == count.used, "%s: memory", what);
    params_init(p, &dev);
    check_values(p, what);
    cpu_close(&dev);
    arena_close(&run);
}

/* ---- layouts ---- */

static void layout(const RankShape *s, const char *list, Whole *w, int values)
{
    const Config *c = ranks_config(file, s, list);
    char what[400];
    Placement pl;
    int64_t counted = 0;
    placement_open(&pl, c);
    int bf16 = c->params_dtype == PARAMS_DTYPE_BF16;
    for (int r = 0; r < ranks_world(s); r++) {
        Grid g;
        Params p;
        Device null;
        Arena count = {.name = "run"};
        int n;
        snprintf(what, sizeof what, "tp %d dp %d/%d pp %d etp %d ep %d rank %d %s", s->tp, s->dp,
                 s->instances, s->pp, s->etp, s->ep, r, list);
        ranks_grid(&g, s, r, nothing, NULL);
        params_open(&p, c, &g, &pl);
        null_open(&null, p.real);
        params_layout(&p, &null, &count, 1, 2);
        TensorPiece *pieces = pieces_open(&p, PIECES_SAVE, &n);
        for (int i = 0; i < n; i++)
            see(w, &pieces[i]);
        pieces_close(pieces, n);
        check_load(&p, what);
        check_heads(&p, what);
        check_buckets(&p, what);
        for (int i = 0; i < p.nparam; i++)
            if (data_groups(&p.data, p.param[i].bucket)->data->rank == 0)
                counted += p.param[i].counted;
        if (values)
            initial_values(&p, what);
        params_close(&p);
    }
    check_seen(w, what, (int[ARRAYS]){1, bf16, 1, 1});
    int64_t padding = c->padded_vocab_size - c->vocab_size;
    padding *= c->hidden_size * (1 + c->untie_embeddings_and_output_weights);
    CHECK(counted == params_count(c) + padding, "%s: %lld of %lld parameters", what, (long long)counted,
          (long long)params_count(c));
    placement_close(&pl);
}

/* Numbers of tensors and parameters of a model with experts; names of its numbers. */
static void names_and_counts(void)
{
    RankShape s = {1, 2, 1, 1, 1, 1, 2};
    const Config *c = ranks_config(file, &s, "num_moe_experts=8|moe_router_topk=3|moe_layer_freq=[0,1,0,1]|"
                                             "moe_ffn_hidden_size=16|add_bias_linear=true");
    const Config *dense = ranks_config(file, &(RankShape){1, 2, 1, 1, 1}, "");
    int64_t ffn = 2 * 24 * 56 + 56 + 24, expert = 2 * 24 * 16 + 16 + 24, router = 8 * 24;
    int64_t rest = params_count(dense) - 2 * ffn + 2 * router;
    CHECK(params_active(dense) == params_count(dense), "all are active in a dense model");
    CHECK(params_count(c) == rest + 2 * 8 * expert, "%lld parameters", (long long)params_count(c));
    CHECK(params_active(c) == rest + 2 * 3 * expert, "%lld active", (long long)params_active(c));
    for (int r = 0; r < 2; r++) {
        StagePlace all = {.layers = 4, .embedding = 1, .loss = 1};
        Grid g;
        Params p;
        char name[96];
        int found = 0;
        ranks_grid(&g, &s, r, nothing, NULL);
        params_open(&p, c, &g, &(Placement){1, 1, 1, &all});
        CHECK(p.experts == 4, "%d experts on rank %d", p.experts, r);
        for (int i = 0; i < p.nparam; i++) {
            const Param *t = &p.param[i];
            param_name(c, t->number, name, sizeof name);
            CHECK(!strcmp(name, t->name), "%s is called %s", t->name, name);
            CHECK(!i || t->number > t[-1].number, "%s: number", t->name);
            CHECK(t->expert < 0 || t->expert / 4 == r, "%s on rank %d", t->name, r);
            found += !strcmp(t->name, r ? "decoder.layers.3.mlp.experts.linear_fc1.weight5"
                                        : "decoder.layers.1.mlp.experts.linear_fc2.bias0");
            found += !strcmp(t->name, "decoder.layers.1.mlp.router.weight");
            CHECK(!strstr(t->name, "layers.1.mlp.linear") && !strstr(t->name, "layers.0.mlp.experts"), "%s",
                  t->name);
        }
        CHECK(found == 2, "rank %d: %d of 2 names", r, found);
        params_close(&p);
    }
}

static const char *const families[] = {
    "",
    "position_embedding_type=rope|normalization=RMSNorm|activation=swiglu|add_bias_linear=false|num_query_"
    "groups=2|untie_embeddings_and_output_weights=true",
    "position_embedding_type=rope|qk_layernorm=true|activation=geglu|num_query_groups=1|sequence_parallel="
    "true",
    "num_query_groups=4|qk_layernorm=true|add_qkv_bias=true|params_dtype=bf16|sequence_parallel=true",
    "num_moe_experts=8|moe_layer_freq=[0,1,1,0]|moe_ffn_hidden_size=16|sequence_parallel=true",
    "num_moe_experts=4|moe_ffn_hidden_size=40|add_bias_linear=false|activation=swiglu|sequence_parallel=true|"
    "moe_shared_expert_intermediate_size=24|moe_shared_expert_gate=true",
};
enum { FAMILIES = sizeof families / sizeof *families };

/* One, two and four pipeline ranks with one chunk each; two with two chunks, interleaved and as a V. */
static const struct { int pp; const char *list; } pipes[] = {
    {1, ""}, {2, ""}, {4, ""}, {2, "num_virtual_stages_per_pipeline_rank=2"}, {2, "pipeline_schedule=zb-v"},
};
enum { PIPES = sizeof pipes / sizeof *pipes };

static const char *const stages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};

static void one_of_all(const Config *c, Whole *w, int family, int tp, int pipe, int dp, int split, int stage)
{
    int share = tp > c->num_query_groups ? tp / (int)c->num_query_groups : 1;
    RankShape s = {tp, dp, pipes[pipe].pp, split, share};
    if (dp % split || (split > 1 && !stage))
        return;
    /* a sample of the combinations of large sizes */
    if ((tp > 2 && dp > 2 && stage != family % 4) || (tp == 2 && pipe > 1 && dp == 4))
        return;
    if (c->num_moe_experts != CFG_ABSENT) {
        static int k;
        static const int etp[] = {1, 2, 4, 8}, ep[] = {1, 2, 4};
        s.etp = etp[k % 4];
        s.ep = ep[k++ / 4 % 3];
        if (split > 1 || tp * dp % (s.etp * s.ep))
            return;
    }
    char *list = xasprintf("%s%s%s%sdata_parallel_sharding_strategy=%s", families[family],
                           *families[family] ? "|" : "", pipes[pipe].list, *pipes[pipe].list ? "|" : "",
                           stages[stage]);
    layout(&s, list, w, (tp + dp + pipe + stage) % 5 == 0 && c->params_dtype == PARAMS_DTYPE_FP64);
    free(list);
}

int main(void)
{
    snprintf(file, sizeof file, "%s/params.yaml", getenv("WORK") ? getenv("WORK") : "/tmp");
    FILE *f = fopen(file, "w");
    fputs("model: {num_layers: 4, hidden_size: 24, num_attention_heads: 8, kv_channels: 6, ffn_hidden_size: "
          "56, seq_length: 8, vocab_size: 131, make_vocab_size_divisible_by: 8}\n"
          "train: {micro_batch_size: 1, global_batch_size: 48}\n"
          "data: {tokenizer_type: none}\nprecision: {params_dtype: fp64}\n",
          f);
    fclose(f);
    names_and_counts();
    for (int i = 0; i < FAMILIES; i++) {
        RankShape one = {1, 1, 1, 1, 1};
        const Config *c = ranks_config(file, &one, families[i]);
        StagePlace all = {.layers = 4, .embedding = 1, .loss = 1};
        Grid g;
        Params p;
        ranks_grid(&g, &one, 0, nothing, NULL);
        params_open(&p, c, &g, &(Placement){1, 1, 1, &all});
        Whole w = whole_open(&p);
        params_close(&p);
        for (int tp = 1; tp <= 8; tp *= 2)
            for (int k = 0; k < PIPES; k++)
                for (int dp = 1; dp <= 4; dp++)
                    for (int split = 1; split <= dp; split++)
                        for (int stage = 0; stage < 4; stage++)
                            one_of_all(c, &w, i, tp, k, dp, split, stage);
        whole_close(&w);
    }
    return test_end();
}
