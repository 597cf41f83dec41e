/* report_ranks -- the report's table of slow ranks, and that of the time of messages */
#include "base.h"
#include "page.h"
#include "report_data.h"
#include <stdlib.h>

void report_add_stragglers(json_t *all, const json_t *list, double iteration, double before)
{
    size_t i, k;
    json_t *s, *e;
    json_array_foreach((json_t *)list, i, s) {
        json_t *known = NULL;
        json_array_foreach(all, k, e)          /* the last time that the rank was slow, if it still is */
            if (report_number_of(e, "rank") == report_number_of(s, "rank") &&
                report_number_of(e, "to") >= before)
                known = e;
        if (!known) {
            json_array_append_new(all, known = json_deep_copy(s));
            json_object_set_new(known, "from", json_real(iteration));
        }
        json_object_set_new(known, "to", json_real(iteration));
        if (json_array_size(all) > SLOW_SHOWN)
            json_array_remove(all, 0);
    }
}

static void put_stragglers(FILE *f, const Report *r)
{
    char from[32], to[32], unit[96], *text;
    size_t size, i;
    json_t *s;
    if (!json_array_size(r->stragglers))
        return;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "rank\thost\tplace\tslow in\tby\titerations\n");
    json_array_foreach(r->stragglers, i, s)
        fprintf(rows, "%.0f\t%s\t%s\t%s\t%.0f %%\t%s to %s\n", report_number_of(s, "rank"),
                report_text_of(s, "host"), report_text_of(s, "where"), report_text_of(s, "phase"),
                100 * report_number_of(s, "excess"), report_grouped(from, report_number_of(s, "from")),
                report_grouped(to, report_number_of(s, "to")));
    fclose(rows);
    int n = snprintf(unit, sizeof unit, "ranks that took longer than others for their own work");
    if (json_array_size(r->stragglers) == SLOW_SHOWN)
        snprintf(unit + n, sizeof unit - (size_t)n, ", the last %d times", SLOW_SHOWN);
    card_open(f, " wide", "Stragglers", unit);
    html_table(f, "", text);
    card_close(f);
}

static void put_groups(FILE *f, const Report *r)
{
    char wait[32], busy[32], bytes[32], *text;
    size_t size;
    const char *name;
    json_t *g;
    if (!json_object_size(r->comm))
        return;
    FILE *rows = xmemstream(&text, &size);
    fprintf(rows, "group\twaits\tmoves\tbytes\n");
    json_object_foreach(r->comm, name, g)
        fprintf(rows, "%s\t%s\t%s\t%s\n", name, report_ms_text(wait, report_number_of(g, "wait_ms")),
                report_ms_text(busy, report_number_of(g, "busy_ms")),
                report_bytes_text(bytes, report_number_of(g, "bytes")));
    fclose(rows);
    card_open(f, "", "Messages", "of a rank in a step, by group, at the end");
    html_table(f, "", text);
    card_close(f);
}

void report_put_ranks(FILE *f, const Report *r)
{
    put_stragglers(f, r);
    put_groups(f, r);
}
