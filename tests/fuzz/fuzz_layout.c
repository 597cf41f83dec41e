/* fuzz_layout -- pipeline_model_parallel_layout: a string that is read is printed and read again: the same */
#include "config_table.h"
#include "fuzz.h"

static void forget(void)
{
    config_forget();
}

static void run(const uint8_t *p, size_t n)
{
    size_t length;
    const char *text = fuzz_take_text(&p, &n, &length);
    const int *layers, *again;
    int stages, many;
    if (config_parse_layout(text, &layers, &stages))
        return;
    if (stages < 1 || stages > 1 << 20)
        fuzz_found("%d stages", stages);
    char *back = config_print_layout(layers, stages), *why = config_parse_layout(back, &again, &many);
    if (why || many != stages || memcmp(layers, again, (size_t)stages * sizeof *layers))
        fuzz_found("'%s' becomes '%s', which is another one: %s", text, back, why ? why : "");
    free(back);
}

static void seeds(void)
{
    fuzz_seed_text("Et|t|ttL");
    fuzz_seed_text("E|(t|)*3,m|L");
    fuzz_seed_text("Ettt|(tt|)*29,tL");
    fuzz_seed_text("E|t*3|(t*2|tt)*2|L");
}

static const char *const words[] = {"E", "t",    "L",      "|", "(",        ")",
                                    "*", "t*12", "(t|)*4", ",", "99999999", NULL};

const FuzzTarget fuzz_layout = {"layout", run, seeds, forget, {0}, words};
