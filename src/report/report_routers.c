/* report_routers -- the report's map of the experts' load, as data that the page's script draws */
#include "base.h"
#include "page.h"
#include "report_data.h"

/* Prints how many times the mean each expert of a layer has. */
static void put_row(FILE *f, const json_t *load)
{
    double all = 0;
    size_t e;
    json_t *x;
    json_array_foreach(load, e, x)
        all += json_number_value(x);
    fputc('[', f);
    json_array_foreach(load, e, x)
        fprintf(f, e ? ",%.4g" : "%.4g",
                all > 0 ? json_number_value(x) * (double)json_array_size(load) / all : 0);
    fputc(']', f);
}

void report_put_routers(FILE *f, const Report *r)
{
    json_t *layers = json_object_get(r->moe, "layers"), *load = json_object_get(r->moe, "load"), *x;
    char t[32];
    size_t i;
    if (!json_array_size(json_array_get(load, 0)) || json_array_size(layers) != json_array_size(load))
        return;
    card_open(f, " wide", "Load of the experts", "");
    html_put(f, "<p class='note first'>Each row is a layer and each field an expert, after iteration %s: "
             "pale fields have about an even share of the tokens; strong fields beside strong fields of the "
             "other colour are a router that sends most tokens to few experts.</p>\n",
             report_grouped(t, r->moe_at));
    html_put(f, "<script type='application/json' class='loads'>{'layers':[");
    json_array_foreach(layers, i, x)
        fprintf(f, i ? ",%.0f" : "%.0f", json_number_value(x));
    html_put(f, "],'load':[");
    json_array_foreach(load, i, x) {
        fputs(i ? "," : "", f);
        put_row(f, x);
    }
    fputs("]}</script>\n", f);
    card_close(f);
}
