/* report_losses -- the report's table of where the last recorded step went, measured and planned */
#include "losses.h"
#include "page.h"
#include "report_data.h"
#include "timeline.h"
#include <math.h>
#include <stdlib.h>

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

void report_put_losses(FILE *f, const Report *r, const Losses *planned)
{
    Timeline t;
    Losses l;
    char text[96], *rows;
    size_t size;
    timeline_read(&t, r->trace);
    if (losses_measured(&l, &t, planned)) {
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
