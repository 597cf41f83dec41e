/* Which device a run computes on, and what carries its messages. */
#include "comm_device.h"
#include "run_layout.h"

static int threads_of(const Run *r) { return r->cfg->threads ? (int)r->cfg->threads : grid_cores(&r->grid); }

static void open_cuda(Run *r)
{
    const Config *c = r->cfg;
    cuda_open(&r->dev, r->params.real, grid_host_rank(&r->grid) % cuda_count());
    r->dev.pool = pool_open(threads_of(r));        /* for the host's own work: initial values */
    grid_device(&r->grid, &r->dev);
    if (c->distributed_backend == DISTRIBUTED_BACKEND_STAGED)
        comm_staged_grid(&r->grid, &r->dev);
    else
        comm_nccl_grid(&r->grid, &r->dev, (double)c->distributed_timeout_minutes * 60);
}

void run_device_open(Run *r)
{
    if (r->cfg->device == DEVICE_CUDA) {
        open_cuda(r);
    } else {
        cpu_open(&r->dev, r->params.real, isa_names[r->cfg->cpu_isa], threads_of(r));
        grid_device(&r->grid, &r->dev);
    }
    comm_threads(pool_threads(r->dev.pool));
}

int run_device_ranks(const Run *r)
{
    int here = grid_host_ranks(&r->grid), gpus = r->cfg->device == DEVICE_CUDA ? cuda_count() : 1;
    return (here - 1 - grid_host_rank(&r->grid) % gpus) / gpus + 1;
}

void run_device_memory(Run *r)
{
    if (r->cfg->device == DEVICE_CUDA && r->cfg->distributed_backend == DISTRIBUTED_BACKEND_NCCL)
        comm_nccl_register(r->arena.base, r->arena.size);
}

void run_device_close(Run *r)
{
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
        return cuda_bytes() + run_attention_bytes(r);
    return cpu_workspace(r->params.real, isa_names[r->cfg->cpu_isa], threads_of(r));
}
