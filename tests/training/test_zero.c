/* test_zero -- data parallelism over ranks that are threads, against plain sums and against one rank
 *
 * Every ZeRO stage, hybrid sharding, tensor and pipeline slices, experts over a grid of their own. The
 * gradient of an element in microbatch m is a function of (tensor, element, m), so every layout must find
 * the same sums. Where several ranks contribute to a gradient, their parts differ and add up to it.
 *
 * Integers make sums exact: every layout must then match one rank bit for bit, whatever its order. With
 * other numbers the pairs of stages that promise equal bits must have them, and all stages must agree
 * with one rank to rounding.
 *
 * Masters and moments of some, all or none of the buckets are offloaded, which must change no bit.
 *
 * The same ranks save and load: any layout reads another layout's checkpoint to the bit and resumes. */
#include "checkpoint.h"
#include "optimizer.h"
#include "ranks.h"
#include "team.h"
#include "test.h"

static char file[512];
enum { MICROBATCHES = 4, STEPS = 3, TEAMS = 8 };

/* A run, which all its ranks share. */
typedef struct {
    RankShape shape;
    const Config *cfg;
    Placement place;
    int integers, split_backward, unit;    /* unit: layers in a unit */
    double offload;                        /* share of the optimizer's state that is offloaded */
    uint64_t seed;                         /* of the team: chooses which messages are delayed */
    const char *load, *save;               /* run directories; load: steps start at `first` */
    int first;
    Team *team[R_KINDS][TEAMS];
} Job;

/* Whole tensors, assembled from the pieces that the ranks save. */
typedef struct { char name[128]; int64_t n; double *x; } Tensor;
typedef struct { Tensor *tensor; int n; double norm[STEPS], zeros[STEPS]; int64_t bytes[3]; } Result;

/* ---- gradients ---- */

static double gradient(const Job *j, const Param *t, int64_t index, int step, int mb)
{
    uint64_t stream = (uint64_t)(t->number * 64 + step * 8 + mb);
    if (j->integers)
        return floor(rng_uniform(21, stream, (uint64_t)index) * 17) - 8;
    return rng_normal(21, stream, (uint64_t)index);
}

/* The part of an element's gradient that contributor k of n has: a random integer; contributor 0 has the
 * rest. */
static double contribution(const Job *j, const Param *t, int64_t index, int step, int mb, int k, int n)
{
    double rest = gradient(j, t, index, step, mb);
    for (int i = 1; i < n; i++) {
        uint64_t stream = (uint64_t)(t->number * 64 + step * 8 + mb) * 8 + (uint64_t)i;
        double part = floor(rng_uniform(22, stream, (uint64_t)index) * 9) - 4;
        if (i == k)
            return part;
        rest -= part;
    }
    return rest;
}

/* An element's gradient of an expert as a step's backward adds it here: the members of the group that adds
 * experts' gradients, and their microbatches, each have a part of its sum over the microbatches. */
static double expert_part(const Job *j, const Params *p, const Param *t, int64_t index, int step, int mb)
{
    int mine = MICROBATCHES / j->shape.dp, n = ranks_edp(&j->shape) * mine;
    int k = p->grid->expert[EXPERT_DATA].rank * mine + mb % mine;
    double sum = 0;
    for (int i = 0; i < MICROBATCHES; i++)
        sum += contribution(j, t, index, step, i, k, n);
    return sum;
}

/* Adds this rank's part of one tensor's gradient to g. tie: 0: the embedding's half of a tied tensor, 1:
 * the head's. */
static void add_gradient(const Job *j, const Params *p, const Param *t, Mat g, int step, int mb, int tie)
{
    int tp = p->grid->size[AXIS_TP], r = p->grid->index[AXIS_TP], share = j->shape.kv_share;
    int norm = t->id >= P_QNORM && t->id <= P_KNORMB;
    int tied = t->id == P_WTE && !j->cfg->untie_embeddings_and_output_weights;
    int partial = norm || (j->cfg->sequence_parallel && t->def->cut == CUT_NONE && t->expert < 0);
    Box box[MAX_BOXES];
    int n = param_boxes(p, t, 0, t->n, box);
    for (int b = 0; b < n; b++) {
        int kv = (t->id == P_QKV || t->id == P_QKVB) && b > 0, k = partial ? r
                                                                   : kv    ? r % share
                                                                   : tied  ? tie
                                                                           : 0;
        int of = partial ? tp : kv ? share : tied ? 2 : 1;
        for (int64_t y = 0; y < box[b].rows; y++)
            for (int64_t x = 0; x < box[b].cols; x++) {
                int64_t at = box[b].at - t->offset + y * box[b].ld + x;
                int64_t index = (box[b].row0 + y) * t->cols + box[b].col0 + x;
                double v = t->expert < 0 ? contribution(j, t, index, step, mb, k, of)
                                         : expert_part(j, p, t, index, step, mb);
                if (p->real == F64)
                    ((double *)g.p)[at] += v;
                else
                    ((float *)g.p)[at] += (float)v;
            }
    }
}

/* The backward of one unit as the model does it: each layer asks for its gradients tensor by tensor. */
static void unit_backward(const Job *j, Params *p, PartRange unit, int number, int step, int mb, int last,
                          GradPhase phase)
{
    int head, whole = p->data.stage <= SHARD_OPTIM;
    ParamId head_id;
    params_head(p, &head, &head_id);
    data_enter(&p->data, number, phase);
    for (int part = unit.first; part < unit.first + unit.count; part++) {
        int at_head = p->part[part].kind == PART_HEAD;
        for (int id = 0; id < PARAM_KINDS; id++) {
            int i = p->part[part].param[id];
            if (i < 0 || (phase != PHASE_ALL && p->data.bucket[p->param[i].bucket].phase != phase))
                continue;
            for (int e = 0; e < (p->param[i].expert < 0 ? 1 : p->experts); e++)
                add_gradient(j, p, &p->param[i + e], params_expert_grad(p, part, (ParamId)id, e), step, mb,
                             at_head);
        }
        if (at_head && head != part && phase != PHASE_W)
            add_gradient(j, p, &p->param[p->part[head].param[head_id]], params_grad(p, head, head_id), step,
                         mb, 1);
    }
    if (!whole || last)
        data_reduce(&p->data, number, phase);
}

/* ---- weights ---- */

/* An element as a number; a BF16 element gives its bits. */
static double number_at(const void *e, Dtype type)
{
    return type == F64 ? *(const double *)e : type == F32 ? *(const float *)e : *(const uint16_t *)e;
}

/* A weighted sum of the weights of t, which lie at w; 0 of a copy. */
static double weights_sum(const Params *p, const Param *t, Mat w)
{
    Box box[MAX_BOXES];
    double sum = 0;
    int n = t->copy ? 0 : param_boxes(p, t, 0, t->n, box);
    for (int b = 0; b < n; b++)
        for (int64_t y = 0; y < box[b].rows; y++)
            for (int64_t x = 0; x < box[b].cols; x++) {
                Mat e = {.p = w.p, .rows = 1, .cols = t->n, .ld = t->n, .type = w.type};
                double at = (double)((box[b].row0 + y) * t->cols + box[b].col0 + x);
                e = mat_cols(e, box[b].at - t->offset + y * box[b].ld + x, 1);
                sum += number_at(e.p, w.type) * fmod(at, 7);
            }
    return sum;
}

/* A forward over all units, with their weights gathered. Returns a weighted sum of the weights, which a
 * stale shard would change. */
static double forward(Params *p, const PartRange *unit, int units)
{
    double sum = 0;
    data_gather(&p->data, 0);
    for (int u = 0; u < units; u++) {
        if (u + 1 < units)
            data_gather(&p->data, u + 1);
        data_ready(&p->data, u);
        for (int part = unit[u].first; part < unit[u].first + unit[u].count; part++)
            for (int id = 0; id < PARAM_KINDS; id++) {
                int i = p->part[part].param[id];
                for (int e = 0; i >= 0 && e < (p->param[i].expert < 0 ? 1 : p->experts); e++)
                    sum += weights_sum(p, &p->param[i + e], params_expert_weight(p, part, (ParamId)id, e));
            }
        data_release(&p->data, u);
    }
    return sum;
}

/* The same sum over the weights that each rank owns and updates. */
static double owned(Params *p)
{
    int n;
    double sum[2] = {0};
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        int64_t from, to;
        Box box[MAX_BOXES];
        param_own(p, t, &from, &to);
        n = t->copy ? 0 : param_boxes(p, t, from, to, box);
        for (int b = 0; b < n; b++)
            for (int64_t y = 0; y < box[b].rows; y++)
                for (int64_t x = 0; x < box[b].cols; x++) {
                    const void *e =
                        param_at(p, t, &p->data.weight, box[b].at - t->offset + y * box[b].ld + x);
                    double at = (double)((box[b].row0 + y) * t->cols + box[b].col0 + x);
                    sum[p->data.bucket[t->bucket].expert] += number_at(e, p->type) * fmod(at, 7);
                }
    }
    for (int e = 0; e < 2; e++) {
        Comm *c = p->data.groups[e].shard;
        c->wait(c, c->all_reduce(c, &sum[e], 1, F64, OP_SUM));
    }
    return sum[0] + sum[1];
}

/* ---- a rank ---- */

typedef struct { Job *job; int rank; Result *out; pthread_mutex_t *lock; } Member;

static Comm member_comm(void *ctx, RankGroup kind, int id, int size, int rank)
{
    Job *j = ctx;
    (void)size;
    return team_member(j->team[kind][id], rank);
}

static PartRange *make_units(const Params *p, int layers, int *n)
{
    PartRange *unit = xcalloc((size_t)p->nparts, sizeof *unit);
    *n = 0;
    for (int i = 0; i < p->nparts; i++) {
        PartRange *last = *n ? &unit[*n - 1] : NULL;
        if (last && p->part[i].kind == PART_LAYER && p->part[i - 1].kind == PART_LAYER &&
            last->count < layers && p->part[i].chunk == p->part[i - 1].chunk)
            last->count++;
        else
            unit[(*n)++] = (PartRange){i, 1};
    }
    return unit;
}

static Tensor *tensor_of(Result *out, const TensorPiece *q, const char *suffix)
{
    char name[160];
    snprintf(name, sizeof name, "%s%s", q->name, suffix);
    for (int i = 0; i < out->n; i++)
        if (!strcmp(out->tensor[i].name, name))
            return &out->tensor[i];
    out->tensor = xrealloc(out->tensor, (size_t)(out->n + 1) * sizeof *out->tensor);
    Tensor *t = &out->tensor[out->n++];
    t->n = q->shape[0] * (q->ndim == 2 ? q->shape[1] : 1);
    snprintf(t->name, sizeof t->name, "%.127s", name);
    t->x = xcalloc((size_t)t->n, sizeof *t->x);
    for (int64_t i = 0; i < t->n; i++)
        t->x[i] = NAN;
    return t;
}

/* Copies this rank's pieces of a list into the whole tensors. */
static void keep(Member *me, Params *p, PieceUse use, const char *suffix)
{
    int n;
    TensorPiece *list = pieces_open(p, use, &n);
    pthread_mutex_lock(me->lock);
    for (int i = 0; i < n; i++) {
        const TensorPiece *q = &list[i];
        Tensor *t = tensor_of(me->out, q, suffix);
        int64_t C = q->ndim == 2 ? q->shape[1] : 1;
        for (int64_t r = 0; r < q->rows; r++)
            for (int64_t c = 0; c < q->cols; c++) {
                double e;          /* room for an element of any type */
                piece_get(q, r * q->ld + c, 1, &e);
                t->x[(q->row0 + r) * C + q->col0 + c] = number_at(&e, q->type);
            }
    }
    pthread_mutex_unlock(me->lock);
    pieces_close(list, n);
}

/* The last stage's copy of a tied embedding equals the tensor that the first stage saves. */
static void check_copy(Member *me, Params *p)
{
    int64_t wrong = 0;
    for (int i = 0; i < p->nparam; i++) {
        const Param *t = &p->param[i];
        Box box[MAX_BOXES];
        int64_t from, to;
        param_own(p, t, &from, &to);
        int n = t->copy ? param_boxes(p, t, from, to, box) : 0;
        for (int k = 0; k < me->out->n; k++)
            for (int b = 0; b < n && !strcmp(me->out->tensor[k].name, t->name); b++)
                for (int64_t r = 0; r < box[b].rows; r++)
                    for (int64_t c = 0; c < box[b].cols; c++) {
                        const double *e =
                            param_at(p, t, &p->data.weight, box[b].at - t->offset + r * box[b].ld + c);
                        int64_t at = (box[b].row0 + r) * t->cols + box[b].col0 + c;
                        wrong += p->type == F64 && *e != me->out->tensor[k].x[at];
                    }
    }
    CHECK(!wrong, "%lld elements of a tied copy have gone astray", (long long)wrong);
}

static void step(Member *me, Params *p, Optimizer *o, const PartRange *unit, int units, int number)
{
    const Job *j = me->job;
    int dp = j->shape.dp, mine = MICROBATCHES / dp, first = p->grid->index[AXIS_DP] * mine;
    double sums[2] = {0, 1}, gscale = 1.0 / 64, seen, right;
    o->updates = number;
    seen = forward(p, unit, units);
    right = owned(p);
    CHECK(fabs(seen - right) <= 1e-9 * fmax(1, fabs(right)), "rank %d sees weights of %.15g, not %.15g",
          me->rank, seen, right);
    data_begin(&p->data);
    for (int mb = first; mb < first + mine; mb++) {
        int last = mb == first + mine - 1;
        for (int u = units - 1; u >= 0; u--)
            unit_backward(j, p, unit[u], u, number, mb, last, j->split_backward ? PHASE_D : PHASE_ALL);
        for (int u = units - 1; u >= 0 && j->split_backward; u--)
            unit_backward(j, p, unit[u], u, number, mb, last, PHASE_W);
    }
    data_wait_grads(&p->data);
    data_tied(&p->data);
    keep(me, p, PIECES_GRADIENT, number == 0 ? ".grad" : number == 1 ? ".grad1" : ".grad2");
    optimizer_judge(o, sums, gscale, 0, (Limits){INFINITY, INFINITY, 1});
    Verdict v = optimizer_verdict(o);
    double zeros = optimizer_zeros(o);
    if (me->rank == 0) {
        me->out->norm[number] = v.norm;
        me->out->zeros[number] = j->integers ? zeros : 0;
    }
    CHECK(!v.bad && isfinite(v.norm), "norm");
    p->grid->all.barrier(&p->grid->all);
    optimizer_step(o, 0.01);
    data_gather_all(&p->data, j->seed & 1);
}

static void load_state(const Job *j, Params *p)
{
    int n;
    TensorPiece *list = pieces_open(p, PIECES_LOAD, &n);
    json_decref(checkpoint_load(&(LoadFrom){.path = j->load}, j->cfg, &p->grid->all, list, n, 0, NULL));
    pieces_close(list, n);
    pieces_loaded(p);
}

static void save_state(const Job *j, Params *p)
{
    int n;
    TensorPiece *list = pieces_open(p, PIECES_SAVE, &n);
    int64_t mine = 0, total;
    Comm *all = &p->grid->all;
    for (int i = 0; i < n; i++)
        mine += list[i].rows * list[i].cols;
    total = mine;
    all->wait(all, all->all_reduce(all, &total, 1, I64, OP_SUM));
    CHECK(p->grid->copies.rank || mine * 3 >= total / (p->grid->shard.size * j->shape.pp * j->shape.tp),
          "rank %d writes %lld of %lld elements", p->grid->rank, (long long)mine, (long long)total);
    Arena arena = {.base = (char *)1};
    Saver *s = saver_open(j->cfg, j->save, all, list, n, &arena);
    saver_start(s);
    json_t *state = json_pack("{s:i}", "iteration", STEPS);
    saver_save(s, STEPS, state);
    json_decref(state);
    saver_close(s);
    pieces_close(list, n);
}

/* The offloaded share is the one asked for, rounded up to a bucket; its bytes are those of all arrays of
 * the optimizer. */
static void check_offload(const Job *j, const Data *d, int64_t bytes)
{
    int64_t away = d->elems - d->resident, first = away;
    size_t size = (size_t)d->moments * dtype_size(d->real);
    size += d->type == d->real ? 0 : dtype_size(d->master.type);
    for (int b = 0; b < d->buckets; b++)
        first = d->bucket[b].at == d->resident ? d->bucket[b].n : first;
    CHECK((double)away >= j->offload * (double)d->elems &&
              (!away || (double)(away - first) < j->offload * (double)d->elems),
          "%lld of %lld elements are offloaded, asked for %g of them", (long long)away, (long long)d->elems,
          j->offload);
    CHECK(bytes == d->moment[0].n[1] * (int64_t)size, "%lld bytes for %lld elements",
          (long long)bytes, (long long)away);
}

static void *run_rank(void *arg)
{
    Member *me = arg;
    Job *j = me->job;
    Grid g;
    Params p;
    Optimizer o;
    Device dev;
    Arena count = {.name = "run"}, run, mapped_count = {.name = "mapped"}, mapped;
    int units;
    ranks_grid(&g, &j->shape, me->rank, member_comm, j);
    params_open(&p, j->cfg, &g, &j->place);
    PartRange *unit = make_units(&p, j->unit, &units);
    params_units(&p, unit, units);
    null_open(&dev, p.real);
    params_offload(&p, j->offload, &mapped_count);
    params_layout(&p, &dev, &count, 1, optimizer_moments(j->cfg));
    optimizer_open(&o, j->cfg, &p, &dev, &count);
    optimizer_close(&o);
    arena_open(&run, "run", count.used);
    arena_open(&mapped, "mapped", mapped_count.used);
    memset(run.base, 0xff, count.used);           /* NaN, so that unwritten memory shows */
    memset(mapped.base, 0xff, mapped_count.used);
    cpu_open(&dev, p.real, test_isa(), 1);
    params_offload(&p, j->offload, &mapped);
    params_layout(&p, &dev, &run, 1, optimizer_moments(j->cfg));
    optimizer_open(&o, j->cfg, &p, &dev, &run);
    CHECK(run.used == count.used && mapped.used == mapped_count.used, "memory");
    check_offload(j, &p.data, (int64_t)mapped.used);
    if (me->rank == 0) {
        memcpy(me->out->bytes, p.data.bytes, sizeof p.data.bytes);
        me->out->bytes[2] += (int64_t)mapped.used;
    }
    if (j->load)
        load_state(j, &p);
    else
        params_init(&p, &dev);
    for (int m = 0; m < p.data.moments && !j->load; m++) {
        const Flat *f = &p.data.moment[m];
        dev.zero(&dev, f->p, (size_t)f->n[0] * dtype_size(p.real));
        dev.zero(&dev, f->offloaded, (size_t)f->n[1] * dtype_size(p.real));
    }
    for (int s = j->first; s < STEPS; s++)
        step(me, &p, &o, unit, units, s);
    for (int u = 0; u < units; u++) {
        data_gather(&p.data, u);
        data_ready(&p.data, u);
        data_release(&p.data, u);
    }
    keep(me, &p, PIECES_SAVE, "");
    if (j->save)
        save_state(j, &p);
    g.all.barrier(&g.all);
    check_copy(me, &p);
    optimizer_close(&o);
    params_close(&p);
    free(unit);
    cpu_close(&dev);
    arena_close(&run);
    arena_close(&mapped);
    return NULL;
}

/* ---- a layout ---- */

static int groups_of(const RankShape *s, RankGroup kind, int *size)
{
    int world = ranks_world(s);
    *size = kind == R_ALL      ? world
            : kind == R_TP     ? s->tp
            : kind == R_DP     ? s->dp
            : kind == R_PP     ? s->pp
            : kind == R_SHARD  ? s->dp / s->instances
            : kind == R_COPIES ? s->instances
            : kind == R_KV     ? s->kv_share
            : kind == R_EP     ? (s->ep ? s->ep : 1)
            : kind == R_ETP    ? (s->ep ? s->etp : 1)
            : kind == R_EDP    ? ranks_edp(s)
            : kind == R_EDP_SHARD  ? ranks_edp(s) / ranks_edp_copies(s)
            : kind == R_EDP_COPIES ? ranks_edp_copies(s)
                               : 2;
    return kind == R_EMBEDDING ? s->tp * s->dp : world / *size;
}

static Result run_job(Job j, const char *list)
{
    const RankShape shape = j.shape;
    Result out = {0};
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread[TEAM_MAX];
    Member me[TEAM_MAX];
    j.cfg = ranks_config(file, &shape, list);
    placement_open(&j.place, j.cfg);
    for (int kind = 0; kind < R_KINDS; kind++) {
        int size, n = groups_of(&shape, (RankGroup)kind, &size);
        for (int id = 0; id < n; id++) {
            j.team[kind][id] = xcalloc(1, sizeof(Team));
            team_open(j.team[kind][id], size);
            j.team[kind][id]->seed = j.seed;
        }
    }
    for (int r = 0; r < ranks_world(&shape); r++) {
        me[r] = (Member){&j, r, &out, &lock};
        pthread_create(&thread[r], NULL, run_rank, &me[r]);
    }
    for (int r = 0; r < ranks_world(&shape); r++)
        pthread_join(thread[r], NULL);
    for (int kind = 0; kind < R_KINDS; kind++)
        for (int id = 0; id < TEAMS; id++)
            if (j.team[kind][id]) {
                team_close(j.team[kind][id]);
                free(j.team[kind][id]);
            }
    placement_close(&j.place);
    return out;
}

static void close_result(Result *r)
{
    for (int i = 0; i < r->n; i++)
        free(r->tensor[i].x);
    free(r->tensor);
}

/* The largest difference of a tensor, relative to its largest element; infinite where an element is
 * missing. */
static double difference(const Result *a, const Result *b, char *where, size_t room)
{
    double worst = 0;
    snprintf(where, room, "nothing");
    if (a->n != b->n)
        return INFINITY;
    for (int i = 0; i < a->n; i++) {
        const Tensor *x = &a->tensor[i], *y = NULL;
        double most = 1e-300, diff = 0;
        for (int k = 0; k < b->n; k++)
            if (!strcmp(b->tensor[k].name, x->name))
                y = &b->tensor[k];
        if (!y || y->n != x->n)
            return snprintf(where, room, "%s", x->name), INFINITY;
        for (int64_t e = 0; e < x->n; e++) {
            double d = fabs(x->x[e] - y->x[e]);
            most = fmax(most, fabs(x->x[e]));
            diff = isnan(d) ? INFINITY : fmax(diff, d);
        }
        if (diff / most > worst) {
            worst = diff / most;
            snprintf(where, room, "%s", x->name);
        }
    }
    for (int s = 0; s < STEPS; s++)
        worst = a->zeros[s] != b->zeros[s]
                    ? INFINITY
                    : worse(worst, fabs(a->norm[s] - b->norm[s]) / fmax(a->norm[s], 1e-300));
    return worst;
}

static void compare(const char *what, const Result *a, const Result *b, double tolerance)
{
    char where[160];
    double d = difference(a, b, where, sizeof where);
    CHECK(d <= tolerance, "%s: %s differs by %.3g", what, where, d);
}

/* ---- cases ---- */

static const char *const stages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
static const char *const optimizers[] = {"adam", "sgd", "lamb", "lars"};
static int cases;

static Result with_files(RankShape s, const char *model, const char *optimizer, int stage, int integers,
                         const char *load, const char *save, int first)
{
    char *list =
        xasprintf("%s|optimizer=%s|data_parallel_sharding_strategy=%s", model, optimizer, stages[stage]);
    int k = cases++;
    Result r = run_job((Job){.shape = s, .integers = integers, .split_backward = k % 3 == 1,
                             .unit = 1 + k % 3, .offload = k % 5 == 4 ? 1 : 0.3 * (k % 5),
                             .seed = k % 4 ? hash64(&k, sizeof k, HASH_SEED) : 0, .load = load, .save = save,
                             .first = first},
                       list);
    free(list);
    return r;
}

static Result with(RankShape s, const char *model, const char *optimizer, int stage, int integers)
{
    return with_files(s, model, optimizer, stage, integers, NULL, NULL, 0);
}

/* Compares all ZeRO stages of one model and layout with one rank and with each other. */
static void layout(RankShape s, const char *one_rank, const char *pipe, const char *optimizer)
{
    char *model = xasprintf("%s%s%s", one_rank, *pipe ? "|" : "", pipe);
    int f64 = !strstr(model, "params_dtype");
    for (int integers = f64 ? 0 : 1; integers < 2; integers++) {
        Result one = with((RankShape){1, 1, 1, 1, 1}, one_rank, optimizer, 0, integers), r[4];
        for (int stage = 0; stage < 4; stage++) {
            char what[500];
            if (!stage && s.instances > 1) {
                r[0] = (Result){0};
                continue;
            }
            r[stage] = with(s, model, optimizer, stage, integers);
            snprintf(what, sizeof what, "tp %d dp %d/%d pp %d etp %d ep %d %s %s stage %d%s", s.tp, s.dp,
                     s.instances, s.pp, s.etp, s.ep, model, optimizer, stage, integers ? " integers" : "");
            /* integers make sums exact; with tp 1 the norm's blocks are those of one rank too */
            int exact = integers && s.tp == 1 && s.etp <= 1;
            compare(what, &one, &r[stage], exact ? 0 : !f64 ? 1e-6 : s.ep ? 1e-11 : 1e-12);
            if (stage % 2 && (stage > 1 || s.instances == 1))
                compare(what, &r[stage - 1], &r[stage], 0);
        }
        /* bytes of moments and own masters */
        for (int stage = 1; stage < 4 && s.instances == 1 && !s.ep; stage++)
            CHECK(r[stage].bytes[2] * s.dp == r[0].bytes[2], "stage %d keeps %lld bytes of %lld", stage,
                  (long long)r[stage].bytes[2], (long long)r[0].bytes[2]);
        for (int stage = 0; stage < 4; stage++)
            close_result(&r[stage]);
        close_result(&one);
    }
    free(model);
}

/* Each element's gradient is the formula's sum over microbatches. */
static void plain_sums(void)
{
    RankShape one = {1, 1, 1, 1, 1};
    Job j = {.cfg = ranks_config(file, &one, ""), .integers = 1};
    Result r = with((RankShape){2, 2, 2, 1, 1}, "", "sgd", 2, 1);
    for (int number = 0; number < ((int)j.cfg->num_layers + 2) * PARAM_KINDS; number++) {
        const ParamDef *def = &param_defs[number % PARAM_KINDS];
        int at = number / PARAM_KINDS, last = (int)j.cfg->num_layers + 1;
        Param t = {.number = number};
        char name[128], want[160];
        if ((at == 0) != (def->part == PART_EMBEDDING) || (at == last) != (def->part == PART_HEAD) ||
            !def->exists(j.cfg, at - 1))
            continue;
        param_name(j.cfg, number, name, sizeof name);
        snprintf(want, sizeof want, "%s.grad", name);
        int found = 0;
        for (int i = 0; i < r.n; i++)
            for (int64_t e = 0; !strcmp(r.tensor[i].name, want) && e < r.tensor[i].n; e++) {
                double sum = 0;
                for (int mb = 0; mb < MICROBATCHES; mb++)
                    sum += gradient(&j, &t, e, 0, mb);
                found += r.tensor[i].x[e] != sum ? -1000000 : 1;
            }
        CHECK(found > 0, "%s: not the sum", want);
    }
    close_result(&r);
}

#define FULL "qk_layernorm=true|position_embedding_type=learned_absolute"
#define GROUPS "num_query_groups=2|untie_embeddings_and_output_weights=true|qk_layernorm=true"
#define BF16 "params_dtype=bf16"
#define EXPERTS                                                                                              \
    "num_moe_experts=4|moe_layer_freq=[0,1,1,0]|moe_ffn_hidden_size=20|add_bias_linear=false|"               \
    "activation=swiglu|moe_shared_expert_intermediate_size=12|moe_shared_expert_gate=true"

/* Each layout of a ring loads the checkpoint of the layout before it and saves its own. Each also takes
 * one more step from that checkpoint, and all have the same result. */
static void reshard(void)
{
    static const struct Link { RankShape shape; const char *pipe; int stage;
    } ring[] = {
        {{1, 1, 1, 1, 1}, "", 0},
        {{1, 4, 1, 1, 1}, "", 0},
        {{2, 2, 2, 1, 1}, "", 3},
        {{1, 2, 2, 1, 1}, "", 1},
        {{4, 2, 1, 2, 2}, "sequence_parallel=true", 2},
        {{1, 2, 2, 1, 1}, "pipeline_schedule=zb-v", 3},
        {{2, 1, 2, 1, 1}, "", 2},
        {{1, 4, 1, 4, 1}, "", 1},
        {{1, 2, 2, 1, 1}, "num_virtual_stages_per_pipeline_rank=2", 0},
        {{1, 1, 1, 1, 1}, "", 3},
    }, experts[] = {
        {{1, 1, 1, 1, 1, 0, 0}, "", 0},
        {{1, 4, 1, 1, 1, 1, 4}, "", 3},
        {{2, 2, 2, 1, 1, 2, 1}, "sequence_parallel=true", 1},
        {{1, 4, 1, 2, 1, 1, 2}, "", 2},
        {{4, 2, 1, 1, 1, 1, 2}, "sequence_parallel=true", 2},
        {{1, 2, 2, 1, 1, 1, 2}, "pipeline_schedule=zb-v", 3},
        {{2, 1, 2, 1, 1, 1, 1}, "sequence_parallel=true", 3},
        {{1, 4, 1, 1, 1, 4, 1}, "", 1},
        {{1, 2, 2, 1, 1, 2, 1}, "num_virtual_stages_per_pipeline_rank=2", 0},
        {{1, 1, 1, 1, 1, 0, 0}, "", 3},
    };
    enum { RING = sizeof ring / sizeof *ring };
    for (int family = 0; family < 4; family++) {
        const char *model = family == 0   ? FULL
                            : family == 1 ? GROUPS
                            : family == 2 ? FULL "|" BF16
                                          : EXPERTS;
        const struct Link *link = family == 3 ? experts : ring;
        char *dir = xasprintf("%s/zero%d", getenv("WORK") ? getenv("WORK") : "/tmp", family);
        char from[600], to[600], what[300];
        Result first = {0}, more = {0};
        for (int i = 0; i < RING; i++) {
            char *list = xasprintf("%s%s%s", model, *link[i].pipe ? "|" : "", link[i].pipe);
            RankShape s = link[i].shape;
            s.kv_share = family == 1 && s.tp > 2 ? s.tp / 2 : 1;
            snprintf(from, sizeof from, "%s/%d", dir, i - 1);
            snprintf(to, sizeof to, "%s/%d", dir, i);
            snprintf(what, sizeof what, "model %d, layout %d", family, i);
            Result r = with_files(s, list, "adam", link[i].stage, 1, i ? from : NULL, to, i ? STEPS : 0);
            if (i == 0) {
                first = r;
                for (int k = 0; k < r.n; k++)       /* gradients are not saved */
                    while (k < first.n && strstr(first.tensor[k].name, ".grad")) {
                        free(first.tensor[k].x);
                        first.tensor[k] = first.tensor[--first.n];
                    }
                memset(first.norm, 0, sizeof first.norm);
                memset(first.zeros, 0, sizeof first.zeros);
            } else {
                compare(what, &first, &r, 0);
                close_result(&r);
            }
            if (i) {    /* one more step from the checkpoint of the layout before */
                r = with_files(s, list, "adam", link[i].stage, 1, from, NULL, STEPS - 1);
                if (i == 1)
                    more = r;
                else {
                    compare(what, &more, &r, s.tp > 1 || s.etp > 1 ? 1e-6 : 0);
                    close_result(&r);
                }
            }
            free(list);
        }
        for (int i = 0; family == 3 && i < RING; i++)      /* every pair, in one of the two directions */
            for (int k = i + 1; k < RING; k++) {
                int a = (i + k) % 2 ? i : k, b = i + k - a;
                char *list = xasprintf("%s%s%s", model, *link[b].pipe ? "|" : "", link[b].pipe);
                snprintf(from, sizeof from, "%s/%d", dir, a);
                snprintf(what, sizeof what, "experts, from layout %d to %d", a, b);
                RankShape s = link[b].shape;
                Result r = with_files(s, list, "adam", link[b].stage, 1, from, NULL, STEPS);
                compare(what, &first, &r, 0);
                close_result(&r);
                free(list);
            }
        close_result(&first);
        close_result(&more);
        free(dir);
    }
}

int main(int argc, char **argv)
{
    (void)argv;
    snprintf(file, sizeof file, "%s/zero.yaml", getenv("WORK") ? getenv("WORK") : "/tmp");
    FILE *f = fopen(file, "w");
    fputs("model: {num_layers: 4, hidden_size: 24, num_attention_heads: 4, kv_channels: 6, ffn_hidden_size: "
          "56, seq_length: 8, vocab_size: 131, make_vocab_size_divisible_by: 8}\n"
          "train: {micro_batch_size: 1, global_batch_size: 4}\n"
          "optimizer: {weight_decay: 0.1, clip_grad: 0.5}\n"
          "data: {tokenizer_type: none}\nprecision: {params_dtype: fp64}\n",
          f);
    fclose(f);
    plain_sums();
    reshard();
    for (int k = 0; k < 4; k++)
        layout((RankShape){1, 4, 1, 1, 1}, FULL, "", optimizers[k]);
    for (int k = 0; k < 4; k++)
        layout((RankShape){2, 2, 2, 1, 1}, FULL, "sequence_parallel=true", optimizers[(k + 2) % 4]),
            k += argc < 2;
    layout((RankShape){1, 4, 1, 2, 1}, FULL, "", "adam");
    layout((RankShape){1, 2, 2, 1, 1}, FULL, "num_virtual_stages_per_pipeline_rank=2", "lamb");
    layout((RankShape){1, 2, 2, 1, 1}, FULL, "pipeline_schedule=zb-v", "lars");
    layout((RankShape){4, 2, 1, 1, 2}, GROUPS, "sequence_parallel=true", "lamb");
    layout((RankShape){1, 4, 1, 4, 1}, GROUPS, "", "lars");
    layout((RankShape){2, 2, 1, 1, 1}, GROUPS "|" BF16, "", "adam");
    layout((RankShape){1, 4, 1, 1, 1}, FULL "|" BF16, "", "sgd");
    layout((RankShape){1, 4, 1, 1, 1, 1, 4}, EXPERTS, "", "adam");
    layout((RankShape){1, 4, 1, 1, 1, 1, 2}, EXPERTS, "", "lamb");
    layout((RankShape){1, 4, 1, 1, 1, 2, 2}, EXPERTS "|moe_layer_freq=1", "", "lars");
    layout((RankShape){2, 2, 2, 1, 1, 1, 2}, EXPERTS, "sequence_parallel=true", "lamb");
    layout((RankShape){4, 1, 1, 1, 1, 2, 1}, EXPERTS, "sequence_parallel=true", "sgd");
    layout((RankShape){2, 4, 1, 1, 1, 1, 2}, EXPERTS "|" BF16, "sequence_parallel=true", "adam");
    layout((RankShape){1, 4, 1, 2, 1, 1, 2}, EXPERTS, "", "adam");
    layout((RankShape){1, 4, 1, 2, 1, 1, 4}, EXPERTS, "", "lars");
    layout((RankShape){2, 4, 1, 2, 1, 1, 2}, EXPERTS, "sequence_parallel=true", "lamb");
    layout((RankShape){2, 4, 1, 4, 1, 2, 1}, EXPERTS, "sequence_parallel=true", "adam");
    layout((RankShape){1, 4, 1, 1, 1, 2, 1}, "num_moe_experts=3", "", "adam");
    return test_end();
}
