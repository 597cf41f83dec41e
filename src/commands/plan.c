/* train plan -- placement, exact memory, arithmetic and messages of a run of any size, without starting
 * it */
#include "advise.h"
#include "balance.h"
#include "calibrate.h"
#include "commands.h"
#include "config_table.h"
#include "hints.h"
#include "joint.h"
#include "json_number.h"
#include "plan_times.h"
#include "run_costs.h"
#include "split.h"
#include "start.h"
#include <math.h>
#include <stdlib.h>

static const struct { const char *name; size_t at; } categories[] = {
    {"parameters", offsetof(Memory, parameters)}, {"gradients", offsetof(Memory, gradients)},
    {"optimizer", offsetof(Memory, optimizer)},   {"activations", offsetof(Memory, activations)},
    {"buffers", offsetof(Memory, buffers)},       {"total", offsetof(Memory, total)},
    {"host", offsetof(Memory, host)},             {"reserve", offsetof(Memory, reserve)},
    {"saving", offsetof(Memory, saving)},         {"evaluation", offsetof(Memory, evaluation)},
};
enum { CATEGORIES = sizeof categories / sizeof *categories };

static int64_t bytes_of(const Memory *m, int i) { return *(int64_t *)((char *)m + categories[i].at); }

typedef struct {
    const Config *cfg;
    Memory *memory;                /* [world] memory of each rank */
    Traffic most[AXES];            /* messages of the rank that sends most on the axis */
    Placement placement;
    StepLists lists;
    PipeShape shape;               /* pipeline of a step in the last segment of batch sizes */
    Simulation sim;
    int64_t logits_rows;           /* as in RunPlan */
    double flops;                  /* of the model in a step, as MFU counts them */
    double *rank_flops;            /* [p * cp] of a rank of each pipeline rank and context rank */
    int *first;                    /* [p] lowest rank of each pipeline rank */
    const Machine *machine;        /* machine of the prediction; NULL: no prediction */
    Prediction will;
} Plan;

/* Fills p->memory. Ranks of one pipeline stage differ in what they save and in their shards' ends, so every
 * rank takes its memory, but only the first one of a stage runs the lists. */
static void ask_ranks(Plan *p)
{
    const Config *c = p->cfg;
    int stages = (int)c->pipeline_model_parallel_size, *known = xcalloc((size_t)stages, sizeof *known);
    RunPeaks *peaks = xcalloc((size_t)stages, sizeof *peaks);
    p->memory = xcalloc((size_t)c->world, sizeof *p->memory);
    p->first = xcalloc((size_t)stages, sizeof *p->first);
    for (int rank = 0; rank < c->world; rank++) {
        int stage = run_index(c, rank, AXIS_PP), first = !known[stage];
        p->first[stage] = first ? rank : p->first[stage];
        known[stage] = 1;
        if (p->machine && c->world == stages) {        /* the prediction has asked already */
            p->memory[rank] = p->will.memory[stage];
            continue;
        }
        Run r;
        run_plan_over(&r, c, RUN_TRAIN, 0, rank,
                      &(Rehearsal){.lists = &p->lists, .apart = p->machine && !p->machine->shared,
                                   .fp8_recast = p->will.fp8_recast, .logits_rows = p->will.logits_rows,
                                   .peaks = first ? NULL : &peaks[stage]});
        p->memory[rank] = r.plan.memory;
        peaks[stage] = run_plan_peaks(&r);
        for (int a = 0; a < AXES; a++)
            if (r.plan.traffic[a].bytes > p->most[a].bytes)
                p->most[a] = r.plan.traffic[a];
        run_plan_close(&r);
    }
    free(peaks);
    free(known);
}

/* Fills p->rank_flops. Context ranks of one pipeline rank see equally many pairs of a query and a key only
 * where their chunks are balanced, so each of them is asked. */
static void ask_flops(Plan *p)
{
    const Config *c = p->cfg;
    int cp = (int)c->context_parallel_size, n = p->placement.p * cp;
    p->rank_flops = xcalloc((size_t)n, sizeof *p->rank_flops);
    for (int rank = 0; rank < c->world; rank++) {
        double *at =
            &p->rank_flops[run_index(c, rank, AXIS_PP) * cp + run_index(c, rank, AXIS_CP)];
        if (!*at)
            *at = run_flops(c, rank, &p->lists);
    }
}

static void plan_open(Plan *p, const Config *c, const Machine *machine)
{
    const BatchStep *last = &c->batch_step[c->batch_steps - 1];
    *p = (Plan){.cfg = c, .machine = machine,
                .flops = run_flops_per_token(c) * (double)(last->batch * c->seq_length)};
    placement_open(&p->placement, c);
    step_lists_open(&p->lists, c, &p->placement);
    p->shape = p->lists.shape;
    p->logits_rows = run_logits_rows(c, c->device == DEVICE_CUDA, 0);
    if (machine) {
        predict_over(&p->will, c, machine, &p->lists);
        memcpy(p->most, p->will.most, sizeof p->most);
        p->logits_rows = p->will.logits_rows;
    }
    ask_ranks(p);
    for (int rank = 0; rank < c->world && machine; rank++)
        p->memory[rank].reserve = machine_reserve(machine, c->world);
    ask_flops(p);
    simulate(&p->lists.train[p->lists.n - 1], &p->sim, 0);
}

static void plan_close(Plan *p)
{
    simulation_close(&p->sim);
    step_lists_close(&p->lists);
    placement_close(&p->placement);
    prediction_close(&p->will);
    free(p->memory);
    free(p->rank_flops);
    free(p->first);
}

static double flops_of(const Plan *p, int rank)
{
    const Config *c = p->cfg;
    return p->rank_flops[run_index(c, rank, AXIS_PP) * c->context_parallel_size +
                         run_index(c, rank, AXIS_CP)];
}

/* ---- experts ---- */

/* What the routing decides, at the plan's routing and at the worst one. */
typedef struct {
    int64_t each, rows;            /* experts of a rank in a layer; rows that it has in a round, at most */
    int64_t rounds[2];
    double memory[2], sent[2], flops[2], step[2];      /* of the rank with most; bytes, bytes, FLOPs, s */
    const char *routing;           /* the plan's routing */
} Routings;

static void read_plan(Routings *x, int i, const Plan *p)
{
    for (int rank = 0; rank < p->cfg->world; rank++) {
        x->memory[i] = fmax(x->memory[i], (double)p->memory[rank].total);
        x->flops[i] = fmax(x->flops[i], flops_of(p, rank));
    }
    x->sent[i] = (double)p->most[AXIS_EP].bytes;
    x->step[i] = p->machine ? p->will.step : NAN;
}

/* The last dispatch of a counting run. */
typedef struct { int64_t each, rows, rounds; } DispatchSizes;

static void see_experts(void *sizes, Run *r, const Lists *l)
{
    const Experts *x = &r->model.lane.experts;
    int64_t most = 0;
    run_rehearse_step(r, l);
    for (int i = 0; i < x->ep->size; i++)
        most = x->first[i + 1] - x->first[i] > most ? x->first[i + 1] - x->first[i] : most;
    if (x->rows)
        *(DispatchSizes *)sizes = (DispatchSizes){x->local, experts_room(x),
                                                  most > x->window ? (most + x->window - 1) / x->window : 1};
}

static DispatchSizes dispatch_of(const Plan *p, const Config *c)
{
    DispatchSizes x = {0};
    for (int s = 0; s < p->placement.p && !x.each; s++) {      /* the first stage with experts */
        Run r;
        run_plan_over(&r, c, RUN_TRAIN, 0, p->first[s],
                      &(Rehearsal){.lists = &p->lists, .step = see_experts, .ctx = &x});
        run_plan_close(&r);
    }
    return x;
}

/* Makes the plan once more for a routing in which all tokens choose the experts of one rank, of the rank that
 * has them. The rounds of a dispatch bound its memory. */
static Routings routings_of(const Plan *p)
{
    Config worst = *p->cfg;
    Routings x = {.routing = p->cfg->moe_router_force == MOE_ROUTER_FORCE_HOT ||
                             p->cfg->moe_router_force == MOE_ROUTER_FORCE_CHANGING ? "hot" : "balanced"};
    Plan other;
    worst.moe_router_force = MOE_ROUTER_FORCE_HOT;
    plan_open(&other, &worst, p->machine);
    read_plan(&x, 0, p);
    read_plan(&x, 1, &other);
    DispatchSizes planned = dispatch_of(p, p->cfg), hot = dispatch_of(p, &worst);
    x.each = planned.each;
    x.rows = planned.rows;
    x.rounds[0] = planned.rounds;
    x.rounds[1] = hot.rounds;
    plan_close(&other);
    return x;
}

static json_t *routing_json(const Routings *x, int i)
{
    return json_pack("{s:I s:I s:I s:o s:o}", "rounds", (json_int_t)x->rounds[i], "memory",
                     (json_int_t)x->memory[i], "ep_bytes", (json_int_t)x->sent[i], "flops_of_rank",
                     json_number(x->flops[i]), "step_ms",
                     isnan(x->step[i]) ? json_null() : json_number(1e3 * x->step[i]));
}

static json_t *experts_json(const Plan *p)
{
    if (p->cfg->num_moe_experts == CFG_ABSENT)
        return json_null();
    Routings x = routings_of(p);
    return json_pack("{s:I s:I s:s s:o s:o}", "of_rank", (json_int_t)x.each, "rows_of_round",
                     (json_int_t)x.rows, "routing", x.routing, "planned", routing_json(&x, 0), "worst",
                     routing_json(&x, 1));
}

static void print_experts(const Plan *p)
{
    const Config *c = p->cfg;
    if (c->num_moe_experts == CFG_ABSENT)
        return;
    Routings x = routings_of(p);
    printf("experts    %ld of a layer, %ld a token; a rank has %ld, and at most %ld rows of them at once\n"
           "  routing         rounds    MB in all   MB over ep    TFLOP a rank%s\n", c->num_moe_experts,
           c->moe_router_topk, x.each, x.rows, p->machine ? "    ms a step" : "");
    for (int i = 0; i < 2; i++) {
        printf("  %-15s %6ld %12.1f %12.1f %15.4g", i ? "all to one rank" : x.routing, x.rounds[i],
               x.memory[i] / 1e6, x.sent[i] / 1e6, x.flops[i] / 1e12);
        if (p->machine)
            printf(" %12.2f", 1e3 * x.step[i]);
        printf("\n");
    }
}

static json_t *as_json(const Plan *p)
{
    const Config *c = p->cfg;
    json_t *memory = json_array(), *messages = json_object(), *stages = json_array(), *flops = json_array();
    for (int rank = 0; rank < c->world; rank++) {
        json_array_append_new(flops, json_number(flops_of(p, rank)));
        json_t *m = json_pack("{s:i}", "rank", rank);
        for (int i = 0; i < CATEGORIES; i++)
            json_object_set_new(m, categories[i].name, json_integer(bytes_of(&p->memory[rank], i)));
        json_array_append_new(memory, m);
    }
    for (int i = 0; i < p->placement.n; i++) {
        const StagePlace *s = &p->placement.stage[i];
        json_array_append_new(stages, json_pack("{s:i s:i s:i s:i s:b s:b}", "pp_rank", s->pp_rank, "chunk",
                                                s->chunk, "first_layer", s->first_layer, "layers", s->layers,
                                                "embedding", s->embedding, "loss", s->loss));
    }
    for (int a = 0; a < AXES; a++)
        json_object_set_new(messages, grid_axis_name[a],
                            json_pack("{s:I s:I}", "count", (json_int_t)p->most[a].ops, "bytes",
                                      (json_int_t)p->most[a].bytes));
    json_t *step = p->machine ? json_number(1e3 * p->will.step) : json_null();
    return json_pack("{s:i s:o s:s s:i s:o s:o s:o s:o s:o s:o s:o s:I s:I s:o s:i s:I s:o}",
                     "world", c->world, "layout", start_layout(c), "schedule", schedule_name(p->shape.kind),
                     "microbatches", p->shape.m,
                     "stages", stages, "memory", memory, "messages", messages, "flops_per_step",
                     json_number(p->flops), "flops_per_rank", flops, "bubble",
                     json_number(p->machine ? p->will.bubble : p->sim.rate), "step_ms", step,
                     "num_parameters", (json_int_t)params_count(c), "num_active_parameters",
                     (json_int_t)params_active(c),
                     "experts", experts_json(p), "fp8_recast_layers", p->will.fp8_recast,
                     "logits_slice_rows", (json_int_t)p->logits_rows,
                     "schedule_costs", run_costs_json(&p->shape, p->shape.cost[0] ? "flops" : "equal"));
}

static void print_memory(const Plan *p)
{
    int64_t most = 0, reserve = p->memory[0].reserve;
    printf("memory     bytes of the first rank of each pipeline stage\n  %-12s", "");
    for (int s = 0; s < p->placement.p; s++)
        printf(" %15s%-3d", "stage ", s);
    printf("\n");
    for (int rank = 0; rank < p->cfg->world; rank++)
        most = p->memory[rank].total > most ? p->memory[rank].total : most;
    for (int i = 0; i < CATEGORIES; i++) {
        printf("  %-12s", categories[i].name);
        for (int s = 0; s < p->placement.p; s++) {
            const Memory *m = &p->memory[p->first[s]];
            printf(" %18ld", bytes_of(m, i));
        }
        printf("\n");
    }
    printf("  %.1f MB on the fullest rank\n"
           "  saving is counted in %s; evaluation, in the total, is what one takes beyond a step\n",
           (double)most / 1e6, reserve ? "host" : "the total");
    if (reserve)
        printf("  %.1f MB more stay free: a reserve for the GPU's driver and its libraries, which load while "
               "the run goes on\n", (double)reserve / 1e6);
    if (p->machine) {
        printf("  %.1f MB of the machine's %.1f: %s\n", (double)(most + reserve) / 1e6,
               machine_room(p->machine, p->cfg->world) / 1e6,
               machine_fits(p->machine, p->cfg->world, most) ? "fits" : "TOO LARGE");
    }
    printf("logits     %s\n", run_logits_text(p->cfg, p->logits_rows));
    const char *fp8 = run_fp8_text(p->cfg, p->will.fp8_recast);
    if (fp8)
        printf("fp8        %s\n", fp8);
}

static void print_flops(const Plan *p)
{
    int cp = (int)p->cfg->context_parallel_size;
    double apart = 0;
    printf("arithmetic of a rank of each pipeline stage, recomputation included:");
    for (int s = 0; s < p->placement.p; s++) {
        const double *x = p->rank_flops + s * cp;
        double most = x[0], least = x[0];
        for (int i = 1; i < cp; i++)
            most = fmax(most, x[i]), least = fmin(least, x[i]);
        apart = fmax(apart, most / least - 1);
        printf(" %.4g", most / 1e12);
    }
    printf(" TFLOP a step\n");
    if (cp > 1)
        printf("           context ranks apart by %.2f %%\n", 100 * apart);
}

static void print(const Plan *p)
{
    const Config *c = p->cfg;
    const BatchStep *last = &c->batch_step[c->batch_steps - 1];
    printf("model      %ld parameters%s: %ld layers, width %ld, %ld heads of %ld (%ld key/value), vocabulary "
           "%ld (%ld with padding)\n", params_count(c), c->num_moe_experts == CFG_ABSENT ? ""
           : textf(", %ld of them active", params_active(c)), c->num_layers, c->hidden_size,
           c->num_attention_heads,
           c->kv_channels, c->num_query_groups, c->vocab_size, c->padded_vocab_size);
    printf("layout     %d ranks: tensor %ld x pipeline %ld x context %ld x data %ld", c->world,
           c->tensor_model_parallel_size, c->pipeline_model_parallel_size,
           c->context_parallel_size, c->data_parallel_size);
    if (c->num_moe_experts == CFG_ABSENT)
        printf("\n");
    else
        printf("; experts: expert tensor %ld x expert %ld x data %ld\n", c->expert_tensor_parallel_size,
               c->expert_model_parallel_size, c->world / c->pipeline_model_parallel_size /
               c->expert_tensor_parallel_size / c->expert_model_parallel_size);
    placement_print(stdout, &p->placement);
    printf("step       %ld samples of %ld tokens: %d microbatches of %ld on each of %ld model replicas; %.3g "
           "TFLOP\n", last->batch, c->seq_length, p->shape.m, c->micro_batch_size, c->data_parallel_size,
           p->flops / 1e12);
    printf("schedule   %s, bubble %.1f %% %s; activations of", schedule_name(p->shape.kind),
           100 * p->sim.rate, run_costs_phrase(&p->shape));
    for (int s = 0; s < p->shape.p; s++)
        printf(" %.3g", p->sim.peak[s]);
    printf(" microbatches\n");
    if (p->shape.cost[0]) {
        printf("costs      of the search, forward and both halves of backward:");
        run_costs_print(stdout, &p->shape);
        printf("\n");
    }
    print_flops(p);
    print_memory(p);
    printf("messages   of a rank and step, on the rank with most\n");
    for (int a = 0; a < AXES; a++)
        if (p->most[a].ops)
            printf("  %-12s %15ld operations %15.1f MB\n", grid_axis_name[a], p->most[a].ops,
                   (double)p->most[a].bytes / 1e6);
    print_experts(p);
}

/* Adds what --explain says to the object of --json. */
static void explain_json(json_t *j, const Prediction *p, const Advice *best, int n)
{
    Losses l = plan_losses(p);
    json_t *losses = json_object(), *changes = json_array();
    for (int i = 0; i < LOSSES; i++)
        json_object_set_new(losses, loss_name[i], json_number(100 * l.s[i] / p->step));
    for (int i = 0; i < n; i++)
        json_array_append_new(changes, json_pack("{s:s s:o s:I}", "change", best[i].text, "step_ms",
                                                 json_number(1e3 * best[i].step), "memory",
                                                 (json_int_t)best[i].memory));
    json_object_set_new(j, "losses_percent", losses);
    json_object_set_new(j, "changes", changes);
}

/* Does --calibrate. argv: arguments behind the command's name. */
static void command_calibrate(const Config *c, const char *path, int argc, char **argv)
{
    size_t n = path ? strlen(path) : 0;
    if (n < 6 || strcmp(path + n - 5, ".yaml"))
        die(EXIT_CONFIG, "usage", "train plan --calibrate writes what it measures to --machine FILE.yaml; "
            "change: give the file, for example --machine configs/machines/local.yaml");
    if (!calibrate_may_write(path))
        die(EXIT_CONFIG, "machine", "%s is there, and --calibrate has not written it; change: --machine with "
            "another file, or remove this one", path);
    cli_may_write("--machine", path);
    char **line = xcalloc((size_t)argc + 1, sizeof *line);
    line[0] = "plan";
    memcpy(line + 1, argv, (size_t)argc * sizeof *argv);
    calibrate(c, path, argc + 1, line);
    free(line);
}

/* ---- --search ---- */

static json_t *planned_json(const Planned *p)
{
    if (!p->step)
        return json_null();
    return json_pack("{s:i s:s s:s s:o s:I}", "vpp", p->v, "recompute", layout_recompute[p->recompute],
                     "backward", p->whole ? "whole" : "split", "step_ms", json_number(1e3 * p->step),
                     "memory", (json_int_t)p->memory);
}

static const char *placement_name(const Joint *j)
{
    static const char *const loop[] = {
#define LOOP(number) number " stages a rank in a loop"
        "one stage a rank", LOOP("two"), LOOP("three"), LOOP("four"), LOOP("five"), LOOP("six"),
        LOOP("seven"), LOOP("eight"), LOOP("nine"), LOOP("ten"), LOOP("eleven"), LOOP("twelve"),
        LOOP("thirteen"), LOOP("fourteen"), LOOP("fifteen"), LOOP("sixteen")};
#undef LOOP
    _Static_assert(sizeof loop / sizeof *loop == JOINT_STAGES_MOST, "a name for each number");
    return j->best.vee ? "two stages a rank in a V" : loop[j->best.v - 1];
}

static json_t *search_json(const Joint *j, const char *keys, const char *clock)
{
    return json_pack("{s:s s:s s:s s:s s:o s:o s:o s:i s:o s:o}", "placement", placement_name(j),
                     "layout", j->layout, "keys", keys, "clock", clock, "pipeline_ms",
                     json_number(1e3 * j->best.makespan), "lower_bound_ms", json_number(1e3 * j->bound),
                     "placement_bound_ms", json_number(1e3 * joint_placed(j)), "ordered", j->tried, "planned",
                     planned_json(&j->winner), "equal_layers", planned_json(&j->even));
}

static void print_search(const Joint *j, const char *keys, const char *clock)
{
    const Planned *w = &j->winner, *e = &j->even;
    printf("found      %s, backwards %s, recomputing %s: %s\n", placement_name(j),
           w->whole ? "whole" : "split", layout_recompute[w->recompute], j->layout);
    printf("pipeline   %.2f ms of a step; no order of any partition that fits takes less than %.2f with %s: "
           "%.2f %% more; than %.2f with any number of stages anywhere: %.2f %%\n", 1e3 * j->best.makespan,
           1e3 * joint_placed(j), placement_name(j), 100 * (j->best.makespan / joint_placed(j) - 1),
           1e3 * j->bound, 100 * (j->best.makespan / j->bound - 1));
    printf("step       %.2f ms, %.1f MB on the fullest rank; %d partitions ordered\n", 1e3 * w->step,
           (double)w->memory / 1e6, j->tried);
    if (e->step)
        printf("beside     %s with equal numbers of layers, %d stage%s a rank, recomputing %s: %.2f ms, %.1f "
               "MB; %.2f times as long\n", e->v > 1 ? "interleaved 1F1B" : "1F1B", e->v, e->v > 1 ? "s" : "",
               layout_recompute[e->recompute], 1e3 * e->step, (double)e->memory / 1e6, e->step / w->step);
    else
        printf("beside     no 1F1B with equal numbers of layers is legal and fits\n");
    printf("keys       %s\nclock      %s\n", keys, clock);
}

/* The configuration for --search. Layers need not divide, because they are still to be shared out; nothing is
 * measured.
 *   keys  in  [nkeys]  the command line as start_args has it */
static const Config *start_search(const char *path, Args *a, int nkeys, char **keys, int world)
{
    Check k;
    char **line = keep_alloc((size_t)nkeys + 1, sizeof *line);
    memcpy(line, keys, (size_t)nkeys * sizeof *line);
    line[nkeys] = text_copy("pipeline_balance=cost");
    for (int more = 0; more < 2; more++) {
        config_check(&k, path, nkeys + more, line, world, USE_MODEL);
        if (!k.n && !k.dropped) {
            free(a->v);
            return k.cfg;
        }
    }
    return start_plan(path, a, world);         /* says what is wrong */
}

/* Does --search. */
static void command_search(const Config *c, const JointAsk *ask, int json)
{
    Joint j;
    joint_search(&j, ask, c);
    char *keys = joint_keys(&j, ask, c), *clock = joint_clock(&j);
    if (json)
        json_print(stdout, search_json(&j, keys, clock), JSON_INDENT(2));
    else
        print_search(&j, keys, clock);
    free(keys);
    free(clock);
    joint_close(&j);
}

/* modes: how many of --explain, --search and --calibrate are given; written: bool: --calibrate and --json;
 * needs: the switch that needs a machine, NULL: none does. */
static void check_usage(int modes, int written, const char *machine, const char *needs)
{
    if (modes > 1)
        die(EXIT_CONFIG, "usage", "train plan does one of --explain, --search and --calibrate; change: give "
            "one of them");
    if (written)
        die(EXIT_CONFIG, "usage", "train plan --calibrate writes a file and has no JSON; change: leave out "
            "--json");
    if (needs && !machine)
        die(EXIT_CONFIG, "usage", "train plan %s needs the times of a machine; change: give --machine",
            needs);
}

int command_plan(int argc, char **argv)
{
    Args a = cli_open("plan", argc, argv);
    const char *lists = args_value(&a, "--search");
    int json = args_switch(&a, "--json"), world = (int)args_number(&a, "--world");
    int explain = args_switch(&a, "--explain"), measure = args_switch(&a, "--calibrate");
    const char *machine = args_value(&a, "--machine");
    double most = args_number(&a, "--at-most");
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    check_usage(explain + measure + (lists != NULL), measure && json, machine,
                lists ? "--search" : explain ? "--explain" : NULL);
    cli_may_write("--search", lists);
    if (!isnan(most)) {
        printf(json ? "{\"world\": %d}\n" : "%d\n", start_smaller(path, &a, world, (int)most));
        return EXIT_DONE;
    }
    if (measure) {
        command_calibrate(balance_here(start_plan(path, &a, world)), machine, argc, argv);
        return EXIT_DONE;
    }
    int nkeys;
    char **keys = start_args(path, a.n, a.v, &nkeys);
    const Config *c = lists ? start_search(path, &a, nkeys, keys, world) : start_plan(path, &a, world);
    Plan p;
    const Machine *m = machine ? machine_load(machine) : NULL;
    if (m)
        predict_check(c, m);
    if (lists) {
        command_search(c, &(JointAsk){path, nkeys, c->world, keys, m, lists}, json);
        return EXIT_DONE;
    }
    c = m ? split_predicted(c, m, stderr) : balance_here(c);
    plan_open(&p, c, m);
    Advice best[ADVICES];
    int n = explain && m ? advise(best, path, nkeys, keys, c->world, m, p.will.step) : 0;
    Hint hint[HINTS];
    int hinted = hints(hint, &(HintAsk){path, nkeys, c->world, keys, c, m, p.shape.m,
                                        m ? p.will.bubble : p.sim.rate, p.will.step});
    if (json) {
        json_t *j = as_json(&p), *lines = json_array();
        for (int i = 0; i < hinted; i++)
            json_array_append_new(lines, json_string(hint[i].text));
        json_object_set_new(j, "hints", lines);
        if (explain && m)
            explain_json(j, &p.will, best, n);
        json_print(stdout, j, JSON_INDENT(2));
    } else {
        print(&p);
        if (p.machine)
            plan_times(stdout, &p.will, c, explain);
        for (int i = 0; i < n; i++)
            printf("%s %-46s %10.2f ms  %+5.1f %%\n", i ? "          " : "changes   ", best[i].text,
                   1e3 * best[i].step, 100 * (best[i].step / p.will.step - 1));
        for (int i = 0; i < hinted; i++)
            printf("hint       %s\n", hint[i].text);
    }
    plan_close(&p);
    return EXIT_DONE;
}
