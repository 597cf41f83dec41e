/* run_tune -- algorithms of a GPU's matrix products, chosen before the first step and kept beside the
 * run */
#include "file.h"
#include "run_layout.h"
#include "tuned.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TUNED_FILE "cublaslt.json"

/* Takes the algorithms of this GPU and this release from the table of cublaslt_table, after those that r has.
 * A table without any of them is refused if the configuration names it, else rank 0 says so. */
static void read_table(Run *r)
{
    const char *named = r->cfg->cublaslt_table;
    int found = !strcmp(named, "auto"), ok = 1;
    char why[WHY] = "", here[ALGORITHM_KEY], gpu[ALGORITHM_KEY], *path = NULL;
    if (!strcmp(named, "none") || (found && r->cfg->cublaslt_tune == 1))
        return;
    cuda_algorithms_prefix(&r->dev, here);
    snprintf(gpu, sizeof gpu, "%s", r->dev.isa);
    for (char *p = gpu; *p; p++)
        *p = *p == ' ' || *p == '/' ? '-' : *p;
    if (found) {
        char *shipped = xasprintf("configs/algorithms/%s.json", gpu);
        path = file_shipped(shipped);
        free(shipped);
    } else
        path = xstrdup(named);
    if (!found || !access(path, F_OK)) {
        int64_t n = tuned_table(&r->gpu.algorithms, path, here, why);
        ok = n > 0;
        if (!n)
            snprintf(why, sizeof why, "nothing in it is of '%.*s'", (int)strlen(here) - 1, here);
    }
    all_ok(&r->grid.all, ok || found, EXIT_CONFIG, "cublaslt-table", "cublaslt_table: %s: %s; change: auto, "
           "none, or the table of this GPU and release (scripts/gpu_algorithms makes one)", path, why);
    if (!ok && !r->grid.rank)
        warn("%s: %s; it is not used: products are timed; change: scripts/gpu_algorithms makes one", path,
             why);
    free(path);
}

/* Gives all ranks one list: of each key the entry of the lowest rank that has it. Ranks that compute the
 * same numbers for themselves, as those of a tensor group do the router's, must not choose apart. Returns
 * whether an entry of this rank has changed. Collective. */
static int agree(Run *r)
{
    Comm *all = &r->grid.all;
    Algorithms *mine = &r->gpu.algorithms, agreed = {0};
    int changed = 0;
    for (;;) {
        int64_t i = 0;
        while (i < mine->n && algorithms_find(&agreed, mine->list[i].key))
            i++;
        int64_t who = i < mine->n ? all->rank : all->size, n;
        all->wait(all, all->all_reduce(all, &who, 1, I64, OP_MIN));
        if (who == all->size)
            break;
        n = who == all->rank ? mine->n : 0;
        all->wait(all, all->all_reduce(all, &n, 1, I64, OP_MAX));
        _Static_assert(sizeof(Algorithm) % sizeof(int64_t) == 0, "whole words");
        Algorithm *list = xcalloc((size_t)n, sizeof *list);
        int64_t words = n * (int64_t)(sizeof *list / sizeof(int64_t));
        if (who == all->rank)
            memcpy(list, mine->list, (size_t)n * sizeof *list);
        /* others add zeros */
        all->wait(all, all->all_reduce(all, list, words, I64, OP_SUM));
        for (int64_t k = 0; k < n; k++)
            algorithms_add(&agreed, &list[k]);
        free(list);
    }
    for (int64_t i = 0; i < mine->n; i++) {
        const Algorithm *to = algorithms_find(&agreed, mine->list[i].key);
        changed |= memcmp(to->words, mine->list[i].words, sizeof to->words) || to->us != mine->list[i].us;
    }
    algorithms_close(mine);
    *mine = agreed;
    return changed;
}

void run_tune(Run *r, const char *run_dir)
{
    const Config *c = r->cfg;
    char why[WHY], *path = NULL;
    if (c->device != DEVICE_CUDA)
        return;
    if (c->cublaslt_algorithms)
        path = xstrdup(c->cublaslt_algorithms);
    else if (run_dir)
        path = xasprintf("%s/" TUNED_FILE, run_dir);
    if (path)
        tuned_read(&r->gpu.algorithms, path);
    read_table(r);
    agree(r);
    int64_t known = r->gpu.algorithms.n;
    run_attention_tune(r);
    cuda_tune(&r->dev, &r->gpu.products, &r->gpu.algorithms, (int)c->cublaslt_tune, r->arenas.run.base,
              r->arenas.run.size);
    if (agree(r))              /* the plans that were made hold this rank's choice */
        cuda_tune(&r->dev, &r->gpu.products, &r->gpu.algorithms, 1, r->arenas.run.base, r->arenas.run.size);
    if (path && !r->grid.rank && r->gpu.algorithms.n > known) {
        if (run_dir)
            file_make_dirs(run_dir, why); /* tuned_write reports a folder that could not be made */
        tuned_write(&r->gpu.algorithms, path);
    }
    free(path);
}

void run_keep_tuned(Run *r, const char *run_dir)
{
    char *path = xasprintf("%s/" TUNED_FILE, run_dir);
    if (r->cfg->device == DEVICE_CUDA && !r->cfg->cublaslt_algorithms && r->gpu.algorithms.n &&
        access(path, F_OK))
        tuned_write(&r->gpu.algorithms, path);
    free(path);
}
