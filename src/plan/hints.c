/* hints -- layouts that cost more than they need to, each found by its own test */
#include "hints.h"
#include "advise.h"
#include "base.h"
#include "config_table.h"
#include "run.h"
#include <stdlib.h>
#include <string.h>

enum { WHOLE_TILES = 64 };     /* numbers of 16 bits: what tensor cores and their loads take at a time */
enum { PER_RANK = 4 };         /* microbatches of a pipeline rank from which on the bubble is small */
#define BUBBLE_SMALL 0.1
#define FASTER 0.99            /* a change to this share of the step, or less, is worth a line */

#define HINT(...) (snprintf(out[n++].text, sizeof out->text, __VA_ARGS__))

static int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }

/* Whether a tensor group has ranks on several hosts of `ranks` ranks. */
static int crosses_hosts(const Config *c, int ranks)
{
    int *host = xcalloc((size_t)c->world, sizeof *host), crosses = 0;
    for (int rank = 0; rank < c->world; rank++) {
        int group = run_index(c, rank, AXIS_PP);
        group = group * (int)c->data_parallel_size + run_index(c, rank, AXIS_DP);
        group = group * (int)c->context_parallel_size + run_index(c, rank, AXIS_CP);
        crosses |= host[group] && host[group] != 1 + rank / ranks;
        host[group] = 1 + rank / ranks;
    }
    free(host);
    return crosses;
}

/* Whether a change of a key fits and is faster; fills *a. */
static int pays(Advice *a, const HintAsk *ask, const char *change)
{
    return advise_try(a, ask->path, ask->nargs, ask->args, ask->world, ask->m, change) &&
           a->step < FASTER * ask->step;
}

/* The width of products of a rank that fills no whole tiles of tensor cores; 0: all do. BLOOM's authors
 * measured steps 1.3 to 1.4 times as long on A100 with heads of 108 in place of 144, and with products 1,800
 * wide in place of 1,728 (github.com/bigscience-workshop/bigscience,
 * train/tr11-176B-ml/chronicles-prequel.md).
 *   name  out  the key that it comes from */
static int64_t ragged(const Config *c, const char **name)
{
    int64_t t = c->tensor_model_parallel_size;
    int64_t experts = c->num_moe_experts == CFG_ABSENT ? 0 : c->moe_ffn_hidden_size;
    const struct { const char *name; int64_t width; } all[] = {
        {"kv_channels", c->kv_channels}, {"hidden_size", c->hidden_size},
        {"ffn_hidden_size", c->ffn_hidden_size / t},
        {"moe_ffn_hidden_size", experts / c->expert_tensor_parallel_size}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].width % WHOLE_TILES) {
            *name = all[i].name;
            return all[i].width;
        }
    return 0;
}

/* Whether the configuration is legal with a change of a key. */
static int legal(const HintAsk *ask, const char *change)
{
    void *mark = keep_mark();
    Check k;
    int fine = advise_legal(&k, ask->path, ask->nargs, ask->args, ask->world, change);
    keep_release(mark);
    return fine;
}

int hints(Hint out[HINTS], const HintAsk *ask)
{
    const Config *c = ask->c;
    int n = 0, m = ask->microbatches, p = (int)c->pipeline_model_parallel_size, t, ranks;
    Advice a;
    t = (int)c->tensor_model_parallel_size;
    ranks = ask->m ? (int)ask->m->ranks : ask->world;
    if (t > 1 && ranks < ask->world && crosses_hosts(c, ranks))
        HINT("tensor groups of %d ranks cross hosts of %d, so every layer waits for the network; change: %s",
             t, ranks,
             ranks % t ? textf("tensor_model_parallel_size=%d", gcd(t, ranks)) : "rank_order with tp first");
    if (p > 1 && m < PER_RANK * p && ask->bubble > BUBBLE_SMALL)
        HINT("%d microbatches for %d pipeline ranks leave a bubble of %.1f %%; change: %d microbatches or "
             "more "
             "(global_batch_size, micro_batch_size), or fewer pipeline ranks%s",
             m, p, 100 * ask->bubble, PER_RANK * p,
             c->pipeline_schedule != PIPELINE_SCHEDULE_ZB_V && legal(ask, "pipeline_schedule=zb-v")
                 ? ", or pipeline_schedule=zb-v" : "");
    long twice = 2 * (long)c->micro_batch_size;
    if (ask->m && m % 2 == 0 && (p == 1 || m / 2 >= PER_RANK * p) &&
        pays(&a, ask, textf("micro_batch_size=%ld", twice)))
        HINT("%d microbatches are more than needed: with twice the micro batch a step takes %.2f ms in place "
             "of %.2f, and %.1f GiB; change: micro_batch_size=%ld", m, 1e3 * a.step, 1e3 * ask->step,
             (double)a.memory / (1 << 30), twice);
    if (ask->m && m > 1 &&
        c->data_parallel_sharding_strategy >= DATA_PARALLEL_SHARDING_STRATEGY_OPTIM_GRADS &&
        pays(&a, ask, "data_parallel_sharding_strategy=optim"))
        HINT(
            "gradients are reduced after each of %d microbatches; with optim, once a step, a step takes %.2f "
            "ms in place of %.2f, and %.1f GiB; change: data_parallel_sharding_strategy=optim",
            m, 1e3 * a.step, 1e3 * ask->step, (double)a.memory / (1 << 30));
    const char *name;
    int64_t width = ask->m && !ask->m->shared ? ragged(c, &name) : 0;
    if (width)
        HINT("products of a rank are %ld wide by %s, no multiple of %d: tensor cores take up to 1.4 times as "
             "long, which this prediction does not know; change: %s so that a rank has a multiple of %d",
             width, name, WHOLE_TILES, name, WHOLE_TILES);
    return n;
}
