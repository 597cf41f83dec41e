/* train report -- the report of a run made anew; where its last recorded step went, beside a plan of it */
#include "commands.h"
#include "config_table.h"
#include "json_number.h"
#include "jsonl.h"
#include "plan_times.h"
#include "split.h"
#include "start.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Plans the recorded step on a machine: the configuration of the run that recorded, on as many ranks. The run
 * may have gone on with another configuration since, which is then in config.yaml. */
static Losses plan_of(const char *run, const char *machine, const Timeline *t)
{
    char *config = xasprintf("%s/config.yaml", run), *argv[OPTIONS];
    int n = 0;
    if (!t->config)
        die(EXIT_CONFIG, "usage", "train report: %s/trace.json does not say the configuration of its step; "
            "change: record a step again (trace_steps), or leave out --machine", run);
    for (int i = 0; i < OPTIONS; i++) {
        const char *value = json_string_value(json_object_get(t->config, options[i].key));
        if (value)
            argv[n++] = (char *)textf("%s=%s", options[i].key, value);
    }
    Args keys = cli_open("report", n, argv);
    const Config *c = start_plan(config, &keys, t->ranks);
    const Machine *m = machine_load(machine);
    Prediction p;
    predict_check(c, m);
    predict(&p, split_predicted(c, m, NULL), m);
    Losses l = plan_losses(&p);
    prediction_close(&p);
    free(config);
    return l;
}

/* A file of the run directory; NULL: it is not there. */
static json_t *file_of(const char *run, const char *name)
{
    char *path = xasprintf("%s/%s", run, name);
    json_t *j = json_of_file(path);
    free(path);
    return j;
}

/* Reads trace.json. A run that recorded nothing has no ranks. */
static void read_timeline(Timeline *t, const char *run)
{
    json_t *trace = file_of(run, "trace.json");
    timeline_read(t, trace);
    json_decref(trace);
}

/* Finds the plan that plan.json keeps of the measured step. Returns whether there is one. */
static int kept_plan(Losses *planned, const char *run, int64_t iteration)
{
    json_t *plan = file_of(run, "plan.json");
    int kept = report_kept_plan(planned, plan, iteration);
    json_decref(plan);
    return kept;
}

static json_t *percents(const Losses *l)
{
    json_t *o = json_object();
    for (int i = 0; i < LOSSES; i++)
        json_object_set_new(o, loss_name[i], json_number(100 * l->s[i] / l->step));
    return o;
}

/* measured, planned: NULL where there is none. */
static void print_json(const char *run, const Losses *measured, const Losses *planned)
{
    const Losses *both[] = {measured, planned};
    static const char *const name[] = {"measured", "planned"};
    json_t *j = json_pack("{s:o s:o s:o s:{} s:{}}", "run", json_text(run), "iteration",
                          measured ? json_integer(measured->iteration) : json_null(), "rank",
                          measured ? json_integer(measured->rank) : json_null(), "step_ms", "losses_percent");
    for (int i = 0; i < 2; i++) {
        json_object_set_new(json_object_get(j, "step_ms"), name[i],
                            both[i] ? json_number(1e3 * both[i]->step) : json_null());
        json_object_set_new(json_object_get(j, "losses_percent"), name[i],
                            both[i] ? percents(both[i]) : json_null());
    }
    json_print(stdout, j, JSON_INDENT(2));
}

static void print_cells(const Losses *l, double s)
{
    printf(" %10.2f ms %6.1f %%", 1e3 * s, 100 * s / l->step);
}

static void print_losses(const Losses *l, const Losses *planned)
{
    printf("losses of iteration %lld, of rank %d, which waits least\n%-46s %22s%s\n", (long long)l->iteration,
           l->rank, "", "measured", planned ? "                planned" : "");
    for (int i = 0; i < LOSSES; i++) {
        if (!(fabs(l->s[i]) > 5e-5 * l->step) && !(planned && fabs(planned->s[i]) > 5e-5 * planned->step))
            continue;
        printf("%-46s", loss_text[i]);
        print_cells(l, l->s[i]);
        if (planned)
            print_cells(planned, planned->s[i]);
        printf("\n");
    }
    printf("%-46s", "the step");
    print_cells(l, l->step);
    if (planned)
        print_cells(planned, planned->step);
    printf("\nlargest loss: %s\n", loss_name[losses_largest(l)]);
}

int command_report(int argc, char **argv)
{
    Args a = cli_open("report", argc, argv);
    int json = args_switch(&a, "--json");
    const char *machine = args_value(&a, "--machine"), *run = cli_next(&a, "RUN, a run directory");
    char why[WHY];
    Timeline t;
    Losses measured, planned = {0};
    cli_end(&a);
    cli_run_has("report", run, "metrics.jsonl");
    read_timeline(&t, run);
    if (machine && !t.ranks)
        die(EXIT_CONFIG, "usage", "train report: %s has no recorded step to set a plan beside; "
            "change: train with trace_steps, for example trace_steps=[10], or leave out --machine", run);
    if (machine)
        planned = plan_of(run, machine, &t);
    int found = losses_measured(&measured, &t, machine ? &planned : NULL), shown = machine != NULL;
    if (machine)
        planned.iteration = measured.iteration;
    else if (found && (shown = kept_plan(&planned, run, measured.iteration)))
        losses_measured(&measured, &t, &planned);
    if ((machine && found && !report_keep_plan(run, &planned, why)) || !report_write(run, why))
        die(EXIT_RESOURCE, "report", "%s/report.html cannot be written: %s; change: free space, or make the "
            "directory writable", run, why);
    if (json)
        print_json(run, found ? &measured : NULL, shown ? &planned : NULL);
    else if (found)
        print_losses(&measured, shown ? &planned : NULL);
    else
        printf("no losses: no step was recorded on a CPU (trace_steps)\n");
    char *name = text_shown(run);
    if (!json)
        printf("report  %s/report.html\n", name);
    free(name);
    timeline_close(&t);
    free(a.v);
    return EXIT_DONE;
}
