/* report_memory -- the report's card of memory: planned and held bytes by category */
#include "chart.h"
#include "report_data.h"
#include <math.h>

/* Prints a row. both: bool, the table has a column `held at most`. A NAN leaves its cell empty. */
static void memory_row(FILE *f, const char *css, const char *name, double planned, double used, double most,
                       int both)
{
    char t[32], u[32];
    html_put(f, "<tr class='%s'><td>%s</td><td class='mem'><div><span class='a faint' style='width:%.2f%%'>"
             "</span><span class='a' style='width:%.2f%%'></span></div></td><td class='n'>%s</td>", css, name,
             100 * fmax(0, planned) / most, 100 * fmax(0, used) / most,
             isfinite(planned) ? report_bytes_text(t, planned) : "");
    if (both)
        html_put(f, "<td class='n'>%s</td>", isfinite(used) ? report_bytes_text(u, used) : "");
    html_put(f, "</tr>\n");
}

void report_put_memory(FILE *f, const Report *r)
{
    static const Key keys[] = {{"a faint", "planned", NULL}, {"a", "held", NULL}};
    json_t *memory = json_object_get(r->run, "memory"), *o;
    const char *name;
    double plan = 0, most = 0, resident = r->n ? report_largest(r->col[C_memory_bytes], r->n) : NAN;
    int both = isfinite(resident);
    if (!json_object_size(memory))
        return;
    json_object_foreach(memory, name, o) {
        plan += fmax(0, report_number_of(o, "planned"));
        most = fmax(most, fmax(report_number_of(o, "planned"), report_number_of(o, "used")));
        both |= isfinite(report_number_of(o, "used"));
    }
    most = fmax(most, fmax(plan, resident));
    card_open(f, "", "Memory", "of one process");
    html_keys(f, keys, 1 + both);
    html_table(f, "", both ? "||planned|held at most" : "||planned");
    json_object_foreach(memory, name, o)
        memory_row(f, "", name, report_number_of(o, "planned"), report_number_of(o, "used"), most, both);
    memory_row(f, "total", "in all", plan, resident, most, both);
    html_table_end(f);
    if (both)
        html_put(f, "<p class='note'>What the process holds is known as a whole; the program itself and its "
                    "libraries are in it.</p>\n");
    card_close(f);
}
