/* run_device -- the device that a run computes on, its memory, and the transport of its messages */
#include "comm_device.h"
#include "run_layout.h"
#include <stdlib.h>

int run_threads(const Run *r) { return r->cfg->threads ? (int)r->cfg->threads : grid_cores(&r->grid); }

/* Ranks on this rank's GPU. GPUs are told apart by their unit id: a launcher may give each rank a number
 * 0. */
static int ranks_of_gpu(Run *r)
{
    Comm *all = &r->grid.all;
    int64_t mine = (int64_t)r->dev.unit, *each = xcalloc((size_t)all->size, sizeof *each);
    int n = 0;
    all->wait(all, all->all_gather(all, each, &mine, 1, I64));
    for (int i = 0; i < all->size; i++)
        n += each[i] == mine;
    free(each);
    return n;
}

static void open_cuda(Run *r)
{
    const Config *c = r->cfg;
    int gpus = cuda_count();
    cuda_open(&r->dev, r->params.real, grid_host_rank(&r->grid) % gpus);
    r->dev.pool = pool_open(run_threads(r));        /* host threads: they add up messages */
    r->gpu.sharing = ranks_of_gpu(r);
    all_ok(&r->grid.all, r->gpu.sharing == 1 || c->distributed_backend == DISTRIBUTED_BACKEND_STAGED,
           EXIT_RESOURCE, "nccl", "%d ranks have the same GPU, one of %d that this one sees, and NCCL needs "
           "one for each; change: as many ranks on each host as it has GPUs, or distributed_backend: staged",
           r->gpu.sharing, gpus);
    grid_device(&r->grid, &r->dev);
    if (c->distributed_backend == DISTRIBUTED_BACKEND_STAGED)
        grid_staged(&r->grid, &r->dev);
    else
        grid_nccl(&r->grid, &r->dev, (double)c->distributed_timeout_minutes * 60);
}

void run_device_open(Run *r)
{
    if (r->cfg->device == DEVICE_CUDA) {
        open_cuda(r);
    } else {
        char *isa = config_text(r->cfg, OPT_cpu_isa);
        cpu_open(&r->dev, r->params.real, isa, run_threads(r));
        free(isa);
        grid_device(&r->grid, &r->dev);
    }
    comm_threads(pool_threads(r->dev.pool));
}

int run_device_ranks(const Run *r)
{
    return r->cfg->device == DEVICE_CUDA ? r->gpu.sharing : grid_host_ranks(&r->grid);
}

void run_device_arenas(Run *r)
{
    const Memory *m = &r->plan.memory;
    device_arena(&r->dev, &r->arenas.run, "run", (size_t)m->arena);
    mapped_arena(&r->dev, &r->arenas.mapped, "run, offloaded", (size_t)m->mapped);
    host_arena(&r->dev, &r->arenas.host, "run, host", (size_t)m->staging);
    if (r->cfg->device == DEVICE_CUDA && r->cfg->distributed_backend == DISTRIBUTED_BACKEND_NCCL)
        comm_nccl_register(&r->dev, r->arenas.run.base, r->arenas.run.size);
}

void run_device_close(Run *r)
{
    host_arena_close(&r->dev, &r->arenas.host);
    mapped_arena_close(&r->dev, &r->arenas.mapped);
    device_arena_close(&r->dev, &r->arenas.run);
    if (r->cfg->device == DEVICE_CUDA) {
        pool_close(r->dev.pool);
        cuda_close(&r->dev);
    } else {
        cpu_close(&r->dev);
    }
}

size_t run_device_workspace(const Run *r)
{
    if (r->cfg->device == DEVICE_CUDA)
        return CUDA_WORKSPACE + run_attention_bytes(r);
    char *isa = config_text(r->cfg, OPT_cpu_isa);
    size_t n = cpu_workspace(r->params.real, isa, run_threads(r));
    free(isa);
    return n;
}
