/* fuzz_machine -- the description of a machine, by hand or from `train plan --calibrate`: what is read is
 * written and read again. Texts up to a NUL: the description, and the one that it may be like (y.yaml). */
#include "config_table.h"
#include "fuzz.h"
#include "machine.h"
#include <stdlib.h>

static void forget(void)
{
    config_forget();
}

static void run(const uint8_t *p, size_t n)
{
    size_t first, second;
    char *x = fuzz_take_text(&p, &n, &first), *y = fuzz_take_text(&p, &n, &second), *text = NULL;
    fuzz_file("x.yaml", x, first);
    fuzz_file("y.yaml", y, second);
    const Machine *m = machine_load("d/x.yaml");
    for (double size = 1; size < 1e12; size *= 1000)
        if (!(curve_at(&m->matmul, size) >= 0) || !(curve_at(&m->memory, size) >= 0))
            fuzz_found("a share of a peak at %g is not >= 0", size);
    FILE *f = xmemstream(&text, &first);
    machine_write(f, m, "# notes\n");
    fclose(f);
    if (!m->like) {
        fuzz_file("z.yaml", text, first);
        machine_load("d/z.yaml");
    }
    free(text);
}

static void seeds(void)
{
    for (int k = 0; k < 3; k++) {
        static const char *const names[] = {"h100.yaml", "a100-80gb.yaml", "a100-80gb-2022.yaml"};
        char *path = xasprintf("configs/machines/%s", names[k]), text[1 << 14];
        FILE *f = fopen(path, "r");
        size_t n = f ? fread(text, 1, sizeof text, f) : 0;
        if (f)
            fclose(f);
        if (n)
            fuzz_seed(text, n);
        free(path);
    }
    fuzz_seed_text("machine:\n  like: y\n");
}

#define FIELD(section, key, type, def, legal, help) #key ":",
static const char *const words[] = {
#include "machine.def"
    "like: y", "[1e6, 0.5]", "1e308", "-1", "null", NULL};
#undef FIELD

const FuzzTarget fuzz_machine = {"machine", run, seeds, forget, {EXIT_CONFIG}, words};
