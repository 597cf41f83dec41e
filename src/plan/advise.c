/* advise -- a configuration with one key changed, predicted for each key that a user would try */
#include "advise.h"
#include "base.h"
#include "config_table.h"
#include "split.h"
#include <stdlib.h>
#include <string.h>

/* Keys whose size is doubled and halved. The pipeline keeps its number of chunks a rank. */
static const int sizes[] = {OPT_micro_batch_size, OPT_tensor_model_parallel_size,
                            OPT_pipeline_model_parallel_size, OPT_context_parallel_size,
                            OPT_expert_model_parallel_size, OPT_num_virtual_stages_per_pipeline_rank};

/* Whole settings, one or two keys. */
static const char *const settings[] = {
    "sequence_parallel=true", "tp_comm_overlap=true", "overlap_grad_reduce=true",
    "overlap_grad_reduce=true overlap_param_gather=true", "pipeline_schedule=zb-h1", "pipeline_schedule=zb-v",
    "data_parallel_sharding_strategy=no_shard", "data_parallel_sharding_strategy=optim",
    "data_parallel_sharding_strategy=optim_grads", "data_parallel_sharding_strategy=optim_grads_params",
    "recompute_granularity=none", "recompute_granularity=selective",
};

typedef struct {
    const char *path;
    int nargs, world;
    char **args;
    const Machine *m;
    double step;               /* s: a change must be faster */
    int n;
    Advice *best;              /* [n] */
} Search;

/* Puts a change into the list of the best, in the order of their times. */
static void keep(Search *s, const Advice *c)
{
    int at = s->n;
    while (at > 0 && s->best[at - 1].step > c->step)
        at--;
    if (at >= ADVICES)
        return;
    s->n += s->n < ADVICES;
    memmove(&s->best[at + 1], &s->best[at], (size_t)(s->n - at - 1) * sizeof *c);
    s->best[at] = *c;
}

int advise_legal(Check *k, const char *path, int nargs, char **args, int world, const char *text)
{
    char **line = keep_alloc((size_t)nargs + 2, sizeof *line), *copy = text_copy(text), *second;
    int n = nargs;
    memcpy(line, args, (size_t)n * sizeof *line);
    second = strchr(copy, ' ');
    if (second)
        *second++ = 0;
    line[n++] = copy;
    if (second)
        line[n++] = second;
    config_check(k, path, n, line, world, USE_MODEL);
    return !k->n && !k->dropped;
}

int advise_try(Advice *c, const char *path, int nargs, char **args, int world, const Machine *m,
               const char *text)
{
    void *mark = keep_mark();
    int fits = 0;
    Check k;
    *c = (Advice){.step = 0};
    if (advise_legal(&k, path, nargs, args, world, text)) {
        Prediction p;
        predict(&p, split_predicted(k.cfg, m, NULL), m);
        c->step = p.step;
        for (int r = 0; r < p.p; r++)
            c->memory = p.memory[r].total > c->memory ? p.memory[r].total : c->memory;
        prediction_close(&p);
        snprintf(c->text, sizeof c->text, "%s", text);
        fits = machine_fits(m, world, c->memory);
    }
    keep_release(mark);
    return fits;
}

static void try_change(Search *s, const char *text)
{
    Advice c;
    /* A change of less than a thousandth is none. */
    if (advise_try(&c, s->path, s->nargs, s->args, s->world, s->m, text) && c.step < 0.999 * s->step)
        keep(s, &c);
}

int advise(Advice best[ADVICES], const char *path, int nargs, char **args, int world, const Machine *m,
           double step)
{
    Search s = {path, nargs, world, args, m, step, 0, best};
    Check k;
    void *mark = keep_mark();
    config_check(&k, path, nargs, args, world, USE_MODEL);
    for (size_t i = 0; !k.n && i < sizeof sizes / sizeof *sizes; i++) {
        const Option *o = &options[sizes[i]];
        int64_t now = *(const int64_t *)((const char *)k.cfg + o->offset);
        for (int twice = 0; twice < 2; twice++)
            if (now > 0 && (twice || now % 2 == 0))
                try_change(&s, textf("%s=%ld", o->key, (long)(twice ? 2 * now : now / 2)));
    }
    for (size_t i = 0; !k.n && i < sizeof settings / sizeof *settings; i++)
        try_change(&s, settings[i]);
    keep_release(mark);
    return s.n;
}
