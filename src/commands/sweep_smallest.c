/* train sweep --smallest-world -- how many ranks of a machine a model needs */
#include "sweep_smallest.h"
#include "args.h"
#include "base.h"
#include "json_number.h"
#include "machine.h"
#include <stdlib.h>
#include <string.h>

enum { MOST = 65536 };

/* What a world is found to need. */
typedef struct {
    int world, legal, fit;
    int64_t bytes;             /* of the fullest rank in the layout that needs least; 0: none is legal */
    int bound;                 /* bool: bytes is a rank's share of the model's state, and there is no plan */
    double room;               /* bytes that a rank may have */
} Need;

static int64_t least_bytes(const Sweep *s)
{
    int64_t least = 0;
    for (int i = 0; i < s->n; i++)
        if (s->layout[i].memory > 0 && (!least || s->layout[i].memory < least))
            least = s->layout[i].memory;
    return least;
}

/* Plans a world in *one, unless each rank's share of the model's state is more than it may have. */
static Need look_at(Sweep *one, const Config *c, int64_t state)
{
    const Machine *m = machine_load(one->machine);
    Need need = {.world = one->world, .room = machine_space(m, one->world), .bytes = state / one->world};
    need.bound = !machine_fits(m, one->world, need.bytes);
    if (need.bound)
        return need;
    sweep_plan(one, c);
    need.legal = one->n;
    need.fit = one->fit;
    need.bytes = least_bytes(one);
    return need;
}

static void say(const Need *x)
{
    if (!x->bytes)
        printf("  %8d   no layout is legal\n", x->world);
    else
        printf("  %8d %s %10.2f %12.2f   %s\n", x->world, x->bound ? ">=" : "  ",
               (double)x->bytes / (1 << 30), x->room / (1 << 30), x->fit ? "fits" : "too little");
    fflush(stdout);
}

static json_t *need_json(const Need *x)
{
    return json_pack("{s:i s:i s:o s:b s:I}", "world", x->world, "fit", x->fit, "memory",
                     x->bytes ? json_integer(x->bytes) : json_null(), "memory_is_a_bound", x->bound,
                     "memory_of_a_rank", (json_int_t)x->room);
}

static void answer(const Sweep *s, json_t *tried, int json)
{
    LayoutArg text[LAYOUT_ARGS];
    const SweepLayout *l = sweep_best(s);
    json_t *args = json_array();
    for (int i = 0, n = layout_args(s, l, text); i < n; i++)
        json_array_append_new(args, json_string(text[i]));
    if (json) {
        json_print(stdout,
                   json_pack("{s:i s:s s:O s:I s:O}", "smallest_world", s->world, "machine", s->machine,
                             "worlds", tried, "memory", (json_int_t)l->memory, "layout", args),
                   JSON_INDENT(2));
    } else {
        printf("%d rank%s of %s: the smallest of these worlds in which a layout fits\n", s->world,
               s->world > 1 ? "s" : "", s->machine);
        sweep_winner(stdout, s);
        char *path = args_text(1, (char *[]){(char *)s->path}), *words = args_text(s->ngiven, s->given);
        char *machine = args_text(1, (char *[]){(char *)s->machine});
        printf("next       train sweep%s --world %d --machine%s%s ranks all layouts\n", path, s->world,
               machine, words);
        free(path);
        free(machine);
        free(words);
    }
    json_decref(args);
}

static int upward(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

void sweep_smallest(const Sweep *s, const Config *c, const int *world, int n, int json)
{
    json_t *tried = json_array();
    int count = world ? n : 31, *order = xcalloc((size_t)count, sizeof *order);
    if (!s->machine)
        die(EXIT_CONFIG, "usage",
            "train sweep --smallest-world asks about the memory of a machine; change: give "
            "--machine, for example --machine h100");
    if (s->measure || s->weak || s->objective != OBJECTIVE_TOKENS)
        die(EXIT_CONFIG, "usage",
            "train sweep --smallest-world measures and ranks nothing; change: leave out "
            "--measure, --weak-scaling and --objective, and sweep the world that it finds");
    for (int i = 0; i < count; i++)
        order[i] = world ? world[i] : 1 << i;
    qsort(order, (size_t)count, sizeof *order, upward);
    if (!json)
        printf("  %8s %12s %12s\n", "ranks", "GiB needed", "GiB there");
    int64_t state = sweep_state(s);
    for (int i = 0; i < count && order[i] <= MOST; i++) {
        Sweep one = *s;
        one.world = order[i];
        one.least = 1;
        Need need = look_at(&one, c, state);
        json_array_append_new(tried, need_json(&need));
        if (!json)
            say(&need);
        if (need.fit)
            answer(&one, tried, json);
        free(one.layout);
        if (need.fit) {
            json_decref(tried);
            free(order);
            return;
        }
    }
    die(EXIT_CONFIG, "sweep",
        "%s fits none of the worlds that were tried on %s; change: a larger --world, a machine "
        "with more memory per rank, or keys that need less (optimizer_cpu_offload, main_grads_dtype, a "
        "larger global_batch_size for more data ranks)",
        s->path, s->machine);
}
