/* report_losses -- the report's table of where the last recorded step went, measured and planned */
#include "file.h"
#include "json_number.h"
#include "losses.h"
#include "page.h"
#include "report_data.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The two cells of a loss: its time and its share. */
static void put_cells(FILE *f, const Losses *l, double s)
{
    char t[32];
    fprintf(f, "\t%s\t%.1f %%", report_ms_text(t, 1e3 * s), l->step > 0 ? 100 * s / l->step : 0);
}

static void put_rows(FILE *f, const Losses *l, const Losses *planned)
{
    fprintf(f, planned ? "loss\tmeasured\t\tplanned\t\n" : "loss\tmeasured\t\n");
    for (int i = 0; i < LOSSES; i++) {
        if (!(fabs(l->s[i]) > 5e-5 * l->step) && !(planned && fabs(planned->s[i]) > 5e-5 * planned->step))
            continue;
        fputs(loss_text[i], f);
        put_cells(f, l, l->s[i]);
        if (planned)
            put_cells(f, planned, planned->s[i]);
        fputc('\n', f);
    }
    fputs("the step", f);
    put_cells(f, l, l->step);
    if (planned)
        put_cells(f, planned, planned->step);
    fputc('\n', f);
}

/* ---- plan.json ---- */

int report_keep_plan(const char *run_dir, const Losses *planned, char why[WHY])
{
    json_t *s = json_object(), *j = json_pack("{s:I s:i s:o s:o}", "iteration",
                                              (json_int_t)planned->iteration, "pp_rank", planned->rank,
                                              "step_s", json_number(planned->step), "losses_s", s);
    for (int i = 0; i < LOSSES; i++)
        json_object_set_new(s, loss_name[i], json_number(planned->s[i]));
    char *text = json_dumps(j, JSON_INDENT(2));
    int ok = file_replace_in(run_dir, "plan.json", text, (int64_t)strlen(text), why);
    free(text);
    json_decref(j);
    return ok;
}

int report_kept_plan(Losses *l, const json_t *j, int64_t iteration)
{
    const json_t *s = json_object_get(j, "losses_s"), *of = json_object_get(j, "iteration");
    int whole = json_is_integer(of) && json_integer_value(of) == iteration;
    *l = (Losses){.iteration = iteration, .step = report_number_of(j, "step_s")};
    for (int i = 0; i < LOSSES; i++)
        whole &= isfinite(l->s[i] = report_number_of(s, loss_name[i]));
    return whole && l->step > 0;
}

void report_put_losses(FILE *f, const Report *r)
{
    Timeline t;
    Losses l, plan, *planned = NULL;
    char text[96], *rows;
    size_t size;
    timeline_read(&t, r->trace);
    int found = losses_measured(&l, &t, NULL);
    if (found && report_kept_plan(&plan, r->plan, l.iteration))
        losses_measured(&l, &t, planned = &plan);
    if (found) {
        FILE *table = xmemstream(&rows, &size);
        put_rows(table, &l, planned);
        fclose(table);
        snprintf(text, sizeof text, "iteration %lld, of rank %d, which waits least", (long long)l.iteration,
                 l.rank);
        card_open(f, "", "Where a step goes", text);
        html_table(f, "", rows);
        card_close(f);
    }
    timeline_close(&t);
}
