/* The report's memory, beside its plan. */
#include "base.h"
#include "chart.h"
#include "report_data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* used: what is not known has no cell of its own where nothing is. */
static void memory_row(FILE *f, const char *name, double planned, double used, double most, int both,
                       int total)
{
    char t[32];
    fprintf(f, "<tr%s><td>", total ? " class=\"total\"" : "");
    html_text(f, name);
    fprintf(f, "</td><td class=\"mem\"><div>");
    if (planned > 0)
        fprintf(f, "<span class=\"p\" style=\"width:%.2f%%\"></span>", 100 * planned / most);
    if (used > 0)
        fprintf(f, "<span class=\"u\" style=\"width:%.2f%%\"></span>", 100 * used / most);
    fprintf(f, "</div></td><td class=\"n\">%s</td>", isfinite(planned) ? bytes_text(t, planned) : "");
    if (both)
        fprintf(f, "<td class=\"n\">%s</td>", isfinite(used) ? bytes_text(t, used) : "");
    fprintf(f, "</tr>\n");
}

void put_memory(FILE *f, const Report *r)
{
    json_t *memory = json_object_get(r->run, "memory"), *o;
    const char *name;
    double plan = 0, most = 0, resident = r->n ? largest(r->col[C_memory_bytes], r->n) : NAN;
    int both = isfinite(resident);
    if (!json_object_size(memory))
        return;
    json_object_foreach(memory, name, o) {
        plan += fmax(0, number_of(o, "planned"));
        most = fmax(most, fmax(number_of(o, "planned"), number_of(o, "used")));
        both |= isfinite(number_of(o, "used"));
    }
    most = fmax(most, fmax(plan, resident));
    card_open(f, "", "Memory", "of one process");
    fprintf(f,
            "<ul class=\"legend areas\"><li class=\"a "
            "faint\">planned</li>%s</ul></div>\n<table><thead><tr><th></th><th></th><th "
            "class=\"n\">planned</th>%s</tr></thead><tbody>\n",
            both ? "<li class=\"a\">held</li>" : "", both ? "<th class=\"n\">held at most</th>" : "");
    json_object_foreach(memory, name, o)
        memory_row(f, name, number_of(o, "planned"), number_of(o, "used"), most, both, 0);
    memory_row(f, "in all", plan, resident, most, both, 1);
    fprintf(f, "</tbody></table>\n");
    if (both)
        fprintf(f, "<p class=\"note\">What the process holds is known as a whole; the program itself and its "
                   "libraries are in it.</p>\n");
    fprintf(f, "</section>\n");
}
