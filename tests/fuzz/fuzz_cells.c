/* fuzz_cells -- a table of pipelines: clock_cells, and the CSV that `train bubble` wrote */
#include "bubble_table.h"
#include "config_table.h"
#include "fuzz.h"
#include <stdlib.h>

static void forget(void)
{
    config_forget();
}

static void run(const uint8_t *p, size_t n)
{
    int results = (int)fuzz_take(&p, &n, 1) & 1;
    Table t = {0};
    fuzz_file("x.csv", p, n);
    if (results) {
        bubble_read(&t, "x.csv");
        bubble_print(fuzz_nowhere(), &t);
        bubble_json(fuzz_nowhere(), &t);
        bubble_csv(fuzz_nowhere(), &t);
    } else {
        Check k;
        Wanted all = {0};
        char *args[] = {"clock_cells=x.csv", "clock_forward_ms=1", "clock_backward_input_ms=2",
                        "clock_backward_weight_ms=1"};
        check_open(&k, "x.yaml");
        config_parse_args(&k, 4, args);
        config_resolve(&k, 1, USE_BUBBLE);
        bubble_add_file(&t, k.cfg, &all);
    }
    bubble_close(&t);
}

static void seeds(void)
{
    fuzz_seed_text(
        "0label,schedule,p,v,m,forward_ms,published\na,1f1b,4,,8,1.5,0.27\nb,zb-v,4,2,8,1 2 3 4 5 6 7 8,\n");
    fuzz_seed_text("0schedule,p,m\n# c\ngpipe,2,4\r\nzb-h1,3,6\nzb-auto,2,4\n");
    fuzz_seed_text(
        "0schedule,p,m,max_activations,weight_share,published_peak,p2p_ms\nzb-auto,4,8,6,0.5,6,0.1\n");
    fuzz_seed_text(
        "1forward_ms,backward_input_ms,backward_weight_ms,p2p_ms,label,schedule,p,v,m,max_activations,"
        "weight_share,published,published_peak,steps,measured_ms,measured_least_ms,measured_most_ms,"
        "measured_rate,measured_step_rate,simulated_ms,simulated_rate,simulated_step_rate,"
        "closed_form_rate,closed_form_step_rate,peak_activations\n1,1,1,0,,1f1b,2,1,4,,1,,,3,1,1,1,0.2,"
        "0.3,1,0.2,0.3,0.2,0.3,2 1\n");
}

static const char *const words[] = {"schedule,p,m\n",
                                    "forward_ms",
                                    "backward_input_ms",
                                    "label",
                                    "published",
                                    "max_activations",
                                    "weight_share",
                                    "1f1b",
                                    "interleaved",
                                    "zb-auto",
                                    "v-half",
                                    "custom",
                                    "dualpipev",
                                    "65535",
                                    "1e308",
                                    "nan",
                                    "inf",
                                    "\"",
                                    NULL};

const FuzzTarget fuzz_cells = {"cells", run, seeds, forget, {EXIT_CONFIG}, words};
