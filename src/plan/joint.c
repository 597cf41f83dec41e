/* joint -- layers, their order and recomputation chosen together, for the machine of a plan */
#define _GNU_SOURCE
#include "joint.h"
#include "args.h"
#include "config_table.h"
#include "custom.h"
#include "result_file.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Partitions ordered in one placement of stages; fewer by SLOWER in published orders, of which zb-v's take
 * longer, and with three stages a rank. */
enum { ORDERS_MOST = 1000, ORDERS_LEAST = 20, SLOWER = 8 };
enum { ORDERED = 100000 };     /* microbatches of stages in them; so many take seconds */
enum { IMPROVED = 2 };         /* so many that were found and not NEAR their bound are improved: the best, */
static const double NEAR = 0.01, FAR = 0.01;   /* and another if it is not longer by FAR; */
static const double WORTH = 0.03;      /* none that is longer than the winner by so much */
enum { CHANGES = 20, ATTEMPTS = 3 };

/* What the searched keys are set to first, so that none of the configuration's is left. */
static const char *const cleared[] = {
    "pipeline_max_activations=null", "pipeline_balance=count", "num_layers_in_first_pipeline_stage=null",
    "num_layers_in_last_pipeline_stage=null", "account_for_embedding_in_pipeline_split=false",
    "account_for_loss_in_pipeline_split=false", "microbatch_group_size_per_vp_stage=null",
};
enum { CLEARED = sizeof cleared / sizeof *cleared };

/* Units of the model in one way to recompute, with backwards whole or split. */
typedef struct {
    Units u;
    Recompute how;
    double *all;               /* [8][n] memory of u's arrays; NULL: this is not legal */
} Timed;
enum { WAYS = 2 * RECOMPUTES };

/* What was found in one way, in one placement. */
typedef struct {
    Partition found;           /* without lists */
    const Timed *way;
    double room;               /* bytes of a rank, less what the planner found lacking */
} Candidate;

/* ---- configurations ---- */

static int recompute_changes(char **out, Recompute how)
{
    out[0] = textf("recompute_granularity=%s", layout_recompute[how]);
    out[1] = textf("recompute_method=%s", how == RECOMPUTE_FULL ? "uniform" : "none");
    out[2] = textf("recompute_num_layers=%s", how == RECOMPUTE_FULL ? "1" : "null");
    return 3;
}

/* Checks the configuration with the searched keys cleared and `n` changes; NULL: it breaks a rule. */
static const Config *changed(Check *k, const JointAsk *ask, Recompute how, int n, char **change, int world)
{
    char **line = keep_alloc((size_t)(ask->nargs + CLEARED + 3 + n), sizeof *line);
    int at = ask->nargs;
    memcpy(line, ask->args, (size_t)ask->nargs * sizeof *line);
    for (int i = 0; i < CLEARED; i++)
        line[at++] = text_copy(cleared[i]);
    at += recompute_changes(line + at, how);
    for (int i = 0; i < n; i++)
        line[at++] = change[i];
    config_check(k, ask->path, at, line, world, USE_MODEL);
    return k->n + k->dropped ? NULL : k->cfg;
}

/* Predicts a pipeline in which each unit has a rank of its own. Returns 0 if that is not legal. */
static int predict_units(Prediction *out, const JointAsk *ask, const Config *c, Recompute how, int whole,
                         Check *k)
{
    int64_t n = c->num_layers + 2;
    char *change[CHANGES];
    int at = 0;
    change[at++] = textf("pipeline_model_parallel_size=%ld", n);
    change[at++] = textf("pipeline_model_parallel_layout=E(|t)*%ld|L", c->num_layers);
    change[at++] = text_copy(whole ? "pipeline_schedule=1f1b" : "pipeline_schedule=zb-h1");
    change[at++] = text_copy("pipeline_schedule_file=null");
    change[at++] = text_copy("num_virtual_stages_per_pipeline_rank=null");
    int world = (int)(c->world / c->pipeline_model_parallel_size * n);
    const Config *apart = changed(k, ask, how, at, change, world);
    if (apart)
        predict(out, apart, ask->m);
    return apart != NULL;
}

/* ---- units ---- */

static int last_m(const Config *c)
{
    return (int)(c->batch_step[c->batch_steps - 1].batch / (c->micro_batch_size * c->data_parallel_size));
}

static int64_t kept_bytes(const Memory *m) { return m->parameters + m->gradients + m->optimizer; }

/* Times and weighs the units; 0: this way is not legal. */
static int timed_open(Timed *t, const JointAsk *ask, const Config *c, Recompute how, int whole, Check *k)
{
    Prediction apart = {0};
    size_t n = (size_t)c->num_layers + 2;
    *t = (Timed){.how = how};
    int legal = predict_units(&apart, ask, c, how, whole, k);
    double *x = t->all = xcalloc(8 * n, sizeof *x);
    for (size_t i = 0; i < n && legal; i++) {
        const StageTime *s = &apart.stage[i];
        const Memory *mem = &apart.memory[i];
        x[i] = s->forward.work;
        x[n + i] = s->backward_x.work;
        x[2 * n + i] = s->backward_w.work;
        x[3 * n + i] = (double)kept_bytes(mem);
        x[4 * n + i] = (double)(mem->data[SLOT_FD] + mem->data[SLOT_FW]);
        x[5 * n + i] = (double)(mem->total - mem->activations) - x[3 * n + i];
        x[6 * n + i] = (double)mem->data[SLOT_FD];
        x[7 * n + i] = (double)mem->data[SLOT_DW];
    }
    t->u = (Units){.n = (int)n, .cost = {x, x + n, x + 2 * n}, .fixed = x + 3 * n, .held = x + 4 * n,
                   .scratch = x + 5 * n, .arrived = x + 6 * n, .pending = x + 7 * n,
                   .room = machine_space(ask->m, c->world), .whole = whole,
                   .shape = {.p = (int)c->pipeline_model_parallel_size, .m = last_m(c), .hop = apart.hop,
                             .weight_share = 0, .limit = last_m(c)}};
    prediction_close(&apart);
    if (!legal) {
        free(t->all);
        t->all = NULL;
    }
    return legal;
}

/* ---- what comes out ---- */

static void write_lists(const Joint *j, const JointAsk *ask)
{
    ScheduleSet set;
    FILE *f = result_open(ask->lists);
    schedules_open(&set, &j->shape);
    custom_write(f, &set);
    schedules_close(&set);
    result_close(f, ask->lists);
}

/* The key that names the file of lists, on the heap. */
static char *lists_key(const JointAsk *ask)
{
    char *name = config_string(ask->lists), *key = xasprintf("pipeline_schedule_file=%s", name);
    free(name);
    return key;
}

/* Plans a configuration, of lists or of 1F1B; returns 0 and leaves `out` if it is not legal. */
static int plan_one(Planned *out, Check *k, const JointAsk *ask, Recompute how, int n, char **change)
{
    Prediction p;
    const Config *c = changed(k, ask, how, n, change, ask->world);
    if (!c)
        return 0;
    predict(&p, c, ask->m);
    *out = (Planned){.v = p.n / p.p, .recompute = how, .step = p.step,
                     .whole = !c->custom || !c->custom->split};
    for (int r = 0; r < p.p; r++)
        out->memory = p.memory[r].total > out->memory ? p.memory[r].total : out->memory;
    prediction_close(&p);
    return 1;
}

/* Writes the winner's lists and plans it with them. */
static void plan_winner(Joint *j, const JointAsk *ask)
{
    int n = j->shape.p * j->best.v, *layers = xcalloc((size_t)n, sizeof *layers);
    char *change[4];
    Check k;
    for (int s = 0; s < n; s++)
        layers[s] = j->best.first[s + 1] - j->best.first[s] - (s == 0) - (s == n - 1);
    free(j->layout);
    j->layout = config_print_layout(layers, n);
    free(layers);
    write_lists(j, ask);
    change[0] = textf("pipeline_model_parallel_layout=%s", j->layout);
    change[1] = text_copy("pipeline_schedule=custom");
    char *lists = change[2] = lists_key(ask);
    change[3] = text_copy("num_virtual_stages_per_pipeline_rank=null");
    int legal = plan_one(&j->winner, &k, ask, j->winner.recompute, 4, change);
    free(lists);
    if (legal)
        return;
    check_print(&k, stderr);
    die(EXIT_CONFIG, "search", "what --search found breaks the rules above; change: what they name");
}

/* ---- the search ---- */

/* Placements of stages: of a rank; bool, in a V; bool, in published orders: zb-v's, 1F1B's, which needs least
 * memory. Three and more a rank and published orders only where the others leave a gap; more than three where
 * microbatches are few, and the bubble is long with fewer stages. */
static const struct { int v, vee, published; } placement[PLACEMENTS] = {
    {1, 0, 0}, {2, 1, 0}, {2, 0, 0}, {2, 1, 1}, {1, 0, 1}, {3, 0, 0}, {4, 0, 0}, {6, 0, 0}, {8, 0, 0}};
enum { FEW = 4 };              /* microbatches for each rank of the pipeline */
static const double gap = 0.02;

static int possible(const Units *u, int place)
{
    int v = placement[place].v, vee = placement[place].vee, p = u->shape.p;
    if (placement[place].published && u->whole == vee)     /* zb-v splits backwards, 1F1B does not */
        return 0;
    return v == 1 || vee ? u->n >= v * p : p > 1 && (v <= 3 || (u->shape.m < FEW * p && u->n >= v * p));
}

/* Takes a partition as the winner if it fits and its step, planned with its lists, is shorter. Closes the one
 * that loses. Returns the bytes that its fullest rank lacks, 0 or less where it fits. */
static double offer(Joint *j, const JointAsk *ask, const Units *u, Recompute how, Partition *found)
{
    Joint other = {.best = *found, .winner = {.recompute = how}};
    void *mark = keep_mark();
    other.cost = xcalloc(3 * (size_t)(u->shape.p * found->v), sizeof *other.cost);
    other.shape = partition_shape(u, found, other.cost);
    plan_winner(&other, ask);
    keep_release(mark);
    int wins = machine_fits(ask->m, ask->world, other.winner.memory) &&
               (!j->winner.step || other.winner.step < j->winner.step);
    Joint before = *j;
    double lacks = (double)other.winner.memory - machine_space(ask->m, ask->world);
    if (wins) {
        j->best = other.best;
        j->shape = other.shape;
        j->cost = other.cost;
        j->winner = other.winner;
        j->layout = other.layout;
    }
    joint_close(wins ? &before : &other);
    *found = (Partition){0};
    return lacks;
}

/* What was found, without its lists. */
static Candidate candidate_of(const Units *u, const Partition *found, const Timed *way)
{
    size_t bytes = ((size_t)(u->shape.p * found->v) + 1) * sizeof *found->first;
    Candidate c = {*found, way, u->room};
    c.found.list = NULL;
    c.found.all = NULL;
    c.found.first = xcalloc(1, bytes);
    memcpy(c.found.first, found->first, bytes);
    return c;
}

/* Keeps the best candidates, best first. */
static void keep_candidate(Candidate *kept, Candidate c)
{
    int at = IMPROVED;
    while (at && (!kept[at - 1].found.first || c.found.hoped < kept[at - 1].found.hoped))
        at--;
    if (at < IMPROVED) {
        partition_close(&kept[IMPROVED - 1].found);
        memmove(kept + at + 1, kept + at, (size_t)(IMPROVED - 1 - at) * sizeof *kept);
        kept[at] = c;
    } else {
        partition_close(&c.found);
    }
}

static double best_step(const Joint *j) { return j->winner.step ? j->winner.step : INFINITY; }
/* The pipeline's part of it, which bounds are for. */
static double best_pipeline(const Joint *j) { return j->winner.step ? j->best.makespan : INFINITY; }

/* Searches one placement, with more bytes left free where the planner finds that a rank lacks some. */
static void try_placement(Joint *j, const JointAsk *ask, const Timed *t, int place, Candidate *kept)
{
    int v = placement[place].v, orders = ORDERED / (t->u.shape.p * t->u.shape.m * v);
    orders = orders < ORDERS_LEAST ? ORDERS_LEAST : orders > ORDERS_MOST ? ORDERS_MOST : orders;
    if (placement[place].published || v > 2)
        orders = orders / SLOWER < ORDERS_LEAST ? ORDERS_LEAST : orders / SLOWER;
    Units u = t->u;
    u.beat = j->winner.step ? j->best.makespan : 0;
    for (int i = 0; i < ATTEMPTS; i++) {
        Partition found;
        partition_search(&found, &u, v, placement[place].vee, placement[place].published, orders);
        j->tried += found.tried;
        Candidate c = candidate_of(&u, &found, t);
        double lacks = found.makespan < best_step(j) ? offer(j, ask, &u, t->how, &found) : 0;
        partition_close(&found);
        int far = isfinite(c.found.hoped) && c.found.hoped > c.found.bound * (1 + NEAR);
        if (lacks <= 0 && !c.found.published && far)
            keep_candidate(kept, c);
        else
            partition_close(&c.found);
        if (lacks <= 0)
            return;
        u.room -= lacks;
    }
}

static void try_way(Joint *j, const JointAsk *ask, const Timed *t, Candidate *kept)
{
    double any = units_bound(&t->u);
    j->bound = fmin(j->bound, any);
    for (int i = 0; i < PLACEMENTS; i++) {
        if (!possible(&t->u, i))
            continue;
        double here = partition_bound(&t->u, placement[i].v, placement[i].vee);
        j->placed[i] = fmin(j->placed[i], here);
        if (here < best_pipeline(j) * (1 - (placement[i].v > 2 || placement[i].published ? gap : 1e-4)))
            try_placement(j, ask, t, i, kept);
    }
}

/* Improves the best of what was found. */
static void improve(Joint *j, const JointAsk *ask, Candidate *kept)
{
    double best = kept[0].found.hoped;
    for (int k = 0; k < IMPROVED; k++) {
        Candidate *c = &kept[k];
        double most = fmin(best * (1 + FAR), best_pipeline(j) * (1 + WORTH));
        int worth = c->found.first && c->found.hoped <= most;
        for (int i = 0; i < ATTEMPTS && worth && c->found.bound < best_pipeline(j); i++) {
            Units u = c->way->u;
            u.room = c->room;
            Partition found = candidate_of(&u, &c->found, c->way).found;
            partition_improve(&found, &u);
            j->tried += found.tried - c->found.tried;
            if (!found.list)
                best = INFINITY;               /* so that the next one has its turn */
            double lacks = found.list ? offer(j, ask, &u, c->way->how, &found) : 0;
            partition_close(&found);
            if (lacks <= 0)
                break;
            c->room -= lacks;
        }
        partition_close(&c->found);
    }
}

double joint_placed(const Joint *j)
{
    for (int i = 0; i < PLACEMENTS; i++)
        if (placement[i].v == j->best.v && placement[i].vee == j->best.vee && isfinite(j->placed[i]))
            return j->placed[i];
    return j->bound;
}

/* Plans interleaved 1F1B with equal numbers of layers, or 1F1B, in one way to recompute. */
static void plan_even(Joint *j, const JointAsk *ask, const Config *c, Recompute how)
{
    for (int v = 1; v <= JOINT_STAGES_MOST; v++) {
        char *change[4];
        Planned even;
        Check k;
        if (c->num_layers % (v * c->pipeline_model_parallel_size))
            continue;
        void *mark = keep_mark();
        change[0] = textf("num_virtual_stages_per_pipeline_rank=%d", v);
        change[1] = textf("pipeline_schedule=%s", v > 1 ? "interleaved" : "1f1b");
        change[2] = text_copy("pipeline_model_parallel_layout=null");
        change[3] = text_copy("pipeline_schedule_file=null");
        int legal = plan_one(&even, &k, ask, how, 4, change);
        keep_release(mark);
        if (legal && machine_fits(ask->m, ask->world, even.memory) &&
            (!j->even.step || (even.v > 1) > (j->even.v > 1) ||
             ((even.v > 1) == (j->even.v > 1) && even.step < j->even.step)))
            j->even = even;
    }
}

/* Offers that, where nothing found is shorter.
 *   t  in  [WAYS] */
static void offer_even(Joint *j, const JointAsk *ask, const Timed *t)
{
    const Timed *way = &t[2 * j->even.recompute + 1];
    if (!j->even.step || j->even.step >= best_step(j) || !way->all)
        return;
    Partition even;
    partition_even(&even, &way->u, j->even.v);
    if (isfinite(even.makespan))
        offer(j, ask, &way->u, way->how, &even);
    partition_close(&even);
}

/* ---- all ---- */

static void refuse(const JointAsk *ask, const Config *c)
{
    int64_t p = c->pipeline_model_parallel_size;
    if (p < 2)
        die(EXIT_CONFIG, "search", "train plan --search shares a model out over a pipeline, and this one has "
            "one rank; change: pipeline_model_parallel_size of 2 or more");
    if (c->num_layers + 2 < p)
        die(EXIT_CONFIG, "search", "%ld pipeline ranks, but embedding, %ld layers and head are %ld units; "
            "change: pipeline_model_parallel_size of at most %ld", p, c->num_layers, c->num_layers + 2,
            c->num_layers + 2);
    if (ask->m->shared)
        die(EXIT_CONFIG, "search", "the ranks of machine %s share one device, so the time of a unit depends "
            "on what the others do; change: a machine whose ranks have devices of their own", ask->m->name);
    if (c->batch_steps > 1)
        die(EXIT_CONFIG, "search", "a file of lists has lists for one number of microbatches, and "
            "step_batch_size_schedule has several; change: global_batch_size in its place");
    if (c->cpu_offloading_num_layers)
        die(EXIT_CONFIG, "search", "cpu_offloading_num_layers counts the layers of a stage, which are what "
            "--search looks for; change: cpu_offloading_num_layers=0");
    if (c->overlap_moe_expert_parallel_comm)
        die(EXIT_CONFIG, "search", "--search orders both halves of backward apart, and "
            "overlap_moe_expert_parallel_comm pairs a whole one with a forward; change: "
            "overlap_moe_expert_parallel_comm=false");
}

/* Whether the command line leaves this way to recompute open. */
static int may(const JointAsk *ask, const Config *c, Recompute how)
{
    static const char key[] = "recompute_granularity=";
    for (int i = 0; i < ask->nargs; i++)
        if (!strncmp(ask->args[i], key, sizeof key - 1))
            return (int)how == c->recompute_granularity;
    return 1;
}

void joint_search(Joint *j, const JointAsk *ask, const Config *c)
{
    Timed t[WAYS] = {{.all = NULL}};
    Candidate kept[IMPROVED] = {{.room = 0}};
    Check k;
    int legal = 0;
    *j = (Joint){.bound = INFINITY};
    for (int i = 0; i < PLACEMENTS; i++)
        j->placed[i] = INFINITY;
    refuse(ask, c);
    void *mark = keep_mark();
    for (int how = 0; how < RECOMPUTES; how++)
        if (may(ask, c, (Recompute)how)) {
            for (int whole = 0; whole < 2; whole++)
                legal += timed_open(&t[2 * how + whole], ask, c, (Recompute)how, whole, &k);
            plan_even(j, ask, c, (Recompute)how);
        }
    if (!legal) {
        check_print(&k, stderr);
        die(EXIT_CONFIG, "search", "the units of the model cannot be timed, because the configuration with a "
            "pipeline rank for each of them breaks the rules above; change: what they name");
    }
    for (int i = 0; i < WAYS; i++)
        if (t[i].all)
            try_way(j, ask, &t[i], kept);
    improve(j, ask, kept);
    offer_even(j, ask, t);
    for (int i = 0; i < WAYS; i++)
        free(t[i].all);
    keep_release(mark);
    if (!j->winner.step)
        die(EXIT_CONFIG, "search", "no partition of the model over %ld pipeline ranks that was found fits "
            "into the memory of %s; change: more ranks, or a smaller micro_batch_size",
            c->pipeline_model_parallel_size, ask->m->name);
    write_lists(j, ask);
}

void joint_close(Joint *j)
{
    partition_close(&j->best);
    free(j->cost);
    free(j->layout);
}

/* ---- in words ---- */

char *joint_keys(const Joint *j, const JointAsk *ask, const Config *c)
{
    const int set[CLEARED] = {
        c->pipeline_max_activations != CFG_ABSENT, c->pipeline_balance != PIPELINE_BALANCE_COUNT,
        c->num_layers_in_first_pipeline_stage != CFG_ABSENT,
        c->num_layers_in_last_pipeline_stage != CFG_ABSENT,
        c->account_for_embedding_in_pipeline_split, c->account_for_loss_in_pipeline_split,
        c->microbatch_group_size_per_vp_stage != CFG_ABSENT &&
            c->microbatch_group_size_per_vp_stage != c->pipeline_model_parallel_size,
    };
    Recompute how = j->winner.recompute;
    char *text = NULL, *key = lists_key(ask), *file = args_text(1, &key);
    size_t size;
    FILE *f = xmemstream(&text, &size);
    fprintf(f, "'pipeline_model_parallel_layout=%s' pipeline_schedule=custom%s "
            "num_virtual_stages_per_pipeline_rank=%d recompute_granularity=%s recompute_method=%s "
            "recompute_num_layers=%s", j->layout, file, j->best.v, layout_recompute[how],
            how == RECOMPUTE_FULL ? "uniform" : "none", how == RECOMPUTE_FULL ? "1" : "null");
    for (int i = 0; i < CLEARED; i++)
        if (set[i])
            fprintf(f, " %s", cleared[i]);
    fclose(f);
    free(file);
    free(key);
    return text;
}

char *joint_clock(const Joint *j)
{
    static const char *const key[] = {"clock_forward_ms", "clock_backward_input_ms",
                                      "clock_backward_weight_ms"};
    int n = j->shape.p * j->best.v;
    char *text = NULL;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    fprintf(f, "--m %d ", j->shape.m);
    for (int k = 0; k < 3; k++) {
        fprintf(f, "'%s=[", key[k]);
        for (int s = 0; s < n; s++)
            fprintf(f, "%s%.6g", s ? "," : "", 1e3 * j->shape.cost[k][s]);
        fprintf(f, "]' ");
    }
    fprintf(f, "clock_p2p_ms=%.6g", 1e3 * j->shape.hop);
    fclose(f);
    return text;
}
