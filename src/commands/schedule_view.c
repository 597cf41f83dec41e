/* train schedule -- instruction lists of a configuration: checked, simulated, printed, drawn; trains
 * nothing */
#include "bound.h"
#include "commands.h"
#include "config_table.h"
#include "custom.h"
#include "json_number.h"
#include "result_file.h"
#include "run_costs.h"
#include "schedule_svg.h"
#include "start.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Config *cfg;
    PipeShape shape;
    PipeShape own;             /* as a run has it */
    double *cost;              /* [4][p*v] */
    int timed; /* times are the clock's, in ms; else those of `own`, or F, D and W of a microbatch on
                * a rank take 1 each */
    ScheduleSet set;
    Simulation sim;
    Schedule *rank;            /* [p] expanded */
} View;

/* Fills out [stages] with the times of a clock_* key, or with 1 a rank. A single number is the time of a
 * rank: its chunks share it evenly. */
static void costs_of(double *out, const List *times, int stages, int chunks)
{
    for (int s = 0; s < stages; s++)
        out[s] =
            times->n > 1 ? strtod(times->v[s], NULL) : (times->n ? strtod(times->v[0], NULL) : 1) / chunks;
}

static void open_shape(View *v, const Config *c)
{
    const List *times[] = {&c->clock_forward_ms, &c->clock_backward_input_ms, &c->clock_backward_weight_ms};
    Placement place;
    v->timed = times[0]->n > 0;
    if (v->timed != (times[1]->n > 0) || v->timed != (times[2]->n > 0))
        die(EXIT_CONFIG, "clock", "train schedule: clock_forward_ms, clock_backward_input_ms and "
            "clock_backward_weight_ms go together; change: give all three, or none");
    placement_open(&place, c);
    v->shape = v->own = run_shape(c, &place);
    v->shape.m =
        (int)(c->batch_step[c->batch_steps - 1].batch / (c->micro_batch_size * c->data_parallel_size));
    v->cost = xcalloc(4 * (size_t)place.n, sizeof *v->cost);
    for (int k = 0; k < 3; k++) {
        costs_of(v->cost + k * place.n, times[k], place.n, place.v);
        v->shape.cost[k] = v->timed || !v->own.cost[k] ? v->cost + k * place.n : v->own.cost[k];
    }
    if (c->clock_p2p_ms.n > 1)
        v->shape.hops = v->cost + 3 * place.n;
    for (int s = 0; s < c->clock_p2p_ms.n && c->clock_p2p_ms.n > 1; s++)
        v->cost[3 * place.n + s] = strtod(c->clock_p2p_ms.v[s], NULL);
    v->shape.hop = c->clock_p2p_ms.n == 1 ? strtod(c->clock_p2p_ms.v[0], NULL) : 0;
    v->shape.weight_share = isnan(c->clock_weight_share) ? v->shape.weight_share : c->clock_weight_share;
    placement_close(&place);
}

static void view_open(View *v, const Config *c, int spans)
{
    char why[256];
    if (!c->stages)
        die(EXIT_CONFIG, "split",
            "train schedule: pipeline_balance cost splits by measured times, which a run makes; change: "
            "pipeline_balance=count, or the pipeline_model_parallel_layout of the run's config.yaml");
    v->cfg = c;
    open_shape(v, c);
    schedules_open(&v->set, &v->shape);
    if (!schedules_check(&v->set, why, sizeof why))
        die(EXIT_BUG, "schedule", "the lists of this schedule are wrong: %s; change: pipeline_schedule=1f1b, "
            "and report it", why);
    simulate(&v->set, &v->sim, spans);
    v->rank = xcalloc((size_t)v->shape.p, sizeof *v->rank);
    int *units = xcalloc((size_t)v->shape.v, sizeof *units);
    for (int rank = 0; rank < c->world; rank++) {
        int stage = run_index(c, rank, AXIS_PP);
        if (v->rank[stage].list)
            continue;
        Expand e = run_expand(c, rank, units);
        schedule_open(&v->rank[stage], &v->set, stage, &e);
    }
    free(units);
}

static void view_close(View *v)
{
    for (int r = 0; r < v->shape.p; r++)
        schedule_close(&v->rank[r]);
    free(v->rank);
    simulation_close(&v->sim);
    schedules_close(&v->set);
    run_shape_close(&v->own);
    free(v->cost);
}

/* Returns where the times of the simulation and of a schedule search come from. */
static const char *source(const View *v) { return v->timed ? "clock" : v->own.cost[0] ? "flops" : "equal"; }

static double peak_of(const View *v)
{
    double most = 0;
    for (int r = 0; r < v->shape.p; r++)
        most = v->sim.peak[r] > most ? v->sim.peak[r] : most;
    return most;
}

/* The time that no order of these stages that holds no more can beat. */
static double bound_of(const View *v) { return step_bound(&v->shape, peak_of(v)); }

/* How far above that time the lists are, in %. */
static double above_bound(const View *v)
{
    double bound = bound_of(v);
    return v->sim.makespan > bound ? 100 * (v->sim.makespan / bound - 1) : 0;
}

static char *title_of(const View *v)
{
    const PipeShape *s = &v->shape;
    double least = v->sim.peak[0], most = peak_of(v);
    for (int r = 1; r < s->p; r++)
        least = v->sim.peak[r] < least ? v->sim.peak[r] : least;
    char *peak = least < most ? xasprintf("%g to %g", least, most) : xasprintf("%g", most);
    char *title = xasprintf("%s, %d rank%s x %d chunk%s, %d microbatch%s: time %g%s, bubble %.1f %% (of the "
                            "step %.1f %%), peak activations %s",
                            options[OPT_pipeline_schedule].choices[s->kind], s->p, s->p == 1 ? "" : "s", s->v,
                            s->v == 1 ? "" : "s", s->m, s->m == 1 ? "" : "es", v->sim.makespan,
                            v->timed ? " ms" : "", 100 * v->sim.rate, 100 * v->sim.step_rate, peak);
    free(peak);
    return title;
}

/* ---- text ---- */

/* Prints one instruction. A message that is sent has a capital letter, one that is received a small
 * one. */
static void print_instr(const Instr *i, int v)
{
    static const char *const short_name[] = {[I_SA] = "A", [I_RA] = "a", [I_SG] = "G", [I_RG] = "g"};
    char text[32];
    if (i->op > I_RG || i->unit != WHOLE) {
        instr_print(i, text, sizeof text);
        printf("%s", text);
        return;
    }
    printf("%s%d", i->op > I_W ? short_name[i->op] : instr_info[i->op].letters, i->mb);
    if (v > 1)
        printf(".%d", i->chunk);
}

/* Whether the schedule's order depends on the times, but a run gives it none. */
static int varies(const PipeShape *s)
{
    return s->kind == SCHEDULE_ZB_V || s->kind == SCHEDULE_V_HALF || s->kind == SCHEDULE_V_MIN;
}

static void print_text(const View *v)
{
    int64_t all = 0;
    char *title = title_of(v);
    printf("%s\n", title);
    free(title);
    for (int r = 0; r < v->shape.p; r++) {
        const Schedule *s = &v->rank[r];
        int open = 0;
        printf("rank %d:", r);
        for (int i = 0; i < s->n; i++) {
            int message = instr_info[s->list[i].op].message, more = i + 1 < s->n && s->list[i + 1].join;
            int beside = !message && s->list[i].join;
            printf("%s", open ? " " : message ? " [" : beside ? "+" : " ");
            print_instr(&s->list[i], v->shape.v);
            printf("%s", message && !more ? "]" : "");
            open = message && more;
        }
        printf("\n");
        all += v->set.rank[r].n;
    }
    printf("F forward, B backward (D of the input, W of the weights), microbatch%s; A a activation sent, "
           "received, G g gradient; [ ] one group;\n%sG/ X/ gather, release a unit's parameters, R/ reduce "
           "its gradients, T add a tied embedding's two, S step\n", v->shape.v > 1 ? ".chunk" : "",
           v->shape.paired ? "F+B by turns, one computes while rows of the other travel to experts;\n" : "");
    if (v->own.cost[0]) {
        printf("searched with the %s, forward and both halves of backward:",
               v->timed ? "times of clock_*, ms" : "FLOPs of the stages");
        run_costs_print(stdout, &v->shape);
        printf("\n");
    }
    if (v->timed && varies(&v->shape))
        printf("the order is chosen for the times of clock_*; a run's is that of equal times, or this one "
               "with --csv FILE and pipeline_schedule=custom\n");
    printf("bound: no order of these stages that holds no more takes less than %g%s; this one takes %.2f %% "
           "more\n", bound_of(v), v->timed ? " ms" : "", above_bound(v));
    printf("checked: %ld instructions, every message paired, no deadlock; hash %016llx\n", all,
           (unsigned long long)schedules_hash(&v->set));
}

/* ---- JSON ---- */

static json_t *as_json(const View *v)
{
    json_t *ranks = json_array(), *peak = json_array();
    char text[32];
    for (int r = 0; r < v->shape.p; r++) {
        json_t *list = json_array();
        for (int i = 0; i < v->rank[r].n; i++) {
            instr_print(&v->rank[r].list[i], text, sizeof text);
            json_array_append_new(list, json_string(text));
        }
        json_array_append_new(ranks, list);
        json_array_append_new(peak, json_number(v->sim.peak[r]));
    }
    return json_pack("{s:o s:o s:o s:o s:o s:o s:o}", "ranks", ranks, "makespan",
                     json_number(v->sim.makespan), "lower_bound", json_number(bound_of(v)), "rate",
                     json_number(v->sim.rate), "step_rate", json_number(v->sim.step_rate),
                     "peak_activations", peak, "costs", run_costs_json(&v->shape, source(v)));
}

/* ---- files ---- */

static void write_svg(const View *v, const char *path)
{
    FILE *f = result_open(path);
    char *title = title_of(v);
    const char *unit = v->timed ? "ms"
                       : v->own.cost[0]
                           ? "time by FLOPs; 1 is a third of the mean work of a microbatch on a rank"
                           : "time; the forward of a microbatch on one rank takes 1";
    schedule_svg(f, &v->set, &v->sim, title, unit);
    free(title);
    result_close(f, path);
}

/* Writes Chrome's trace format: a process a rank, with one row for compute and others for messages.
 * Without clock times one unit of time is 1 ms. */
static void write_trace(const View *v, const char *path)
{
    FILE *f = result_open(path);
    char text[32];
    fprintf(f, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (int r = 0; r < v->shape.p; r++) {
        fprintf(f, "%s\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}",
                r ? "," : "", r, r);
        for (int t = 0; t < 2; t++)
            fprintf(
                f,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                r, t, t ? "messages" : "compute");
        for (int i = 0; i < v->set.rank[r].n; i++) {
            const Instr *in = &v->set.rank[r].list[i];
            const Span *at = &v->sim.span[r][i];
            instr_print(in, text, sizeof text);
            fprintf(f,
                    ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,"
                    "\"tid\":%d,\"args\":{\"chunk\":%d,\"microbatch\":%d}}",
                    text, instr_info[in->op].letters, 1e3 * at->start, 1e3 * (at->end - at->start), r,
                    instr_info[in->op].message, in->chunk, in->mb);
        }
    }
    fprintf(f, "\n]}\n");
    result_close(f, path);
}

int command_schedule(int argc, char **argv)
{
    Args a = cli_open("schedule", argc, argv);
    int json = args_switch(&a, "--json");
    const char *svg = args_value(&a, "--svg"), *trace = args_value(&a, "--trace"),
               *csv = args_value(&a, "--csv");
    int world = (int)args_number(&a, "--world");
    const char *path = cli_next(&a, "CONFIG");
    cli_end(&a);
    cli_may_write("--svg", svg);
    cli_may_write("--trace", trace);
    cli_may_write("--csv", csv);
    View v = {0};
    view_open(&v, start_plan(path, &a, world), svg || trace);
    if (svg)
        write_svg(&v, svg);
    if (trace)
        write_trace(&v, trace);
    if (csv) {
        FILE *f = result_open(csv);
        custom_write(f, &v.set);
        result_close(f, csv);
    }
    if (json)
        json_print(stdout, as_json(&v), JSON_INDENT(2));
    else
        print_text(&v);
    view_close(&v);
    return EXIT_DONE;
}
