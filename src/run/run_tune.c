/* run_tune -- algorithms of a GPU's matrix products, chosen before the first step and kept beside the
 * run */
#include "file.h"
#include "run_layout.h"
#include "tuned.h"
#include <stdlib.h>
#include <unistd.h>

#define TUNED_FILE "cublaslt.json"

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
    int64_t known = r->gpu.algorithms.n;
    run_attention_tune(r);
    cuda_tune(&r->dev, &r->gpu.products, &r->gpu.algorithms, (int)c->cublaslt_tune, r->arenas.run.base,
              r->arenas.run.size);
    if (path && r->gpu.algorithms.n > known) {
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
