/* comm_none -- a build without CUDA: no device whose memory groups could reach has been opened. */
#include "comm_device.h"

void comm_staged_grid(Grid *g, Device *d)
{
    (void)g;
    BUG_ON(d);
}

void comm_nccl_grid(Grid *g, Device *d, double timeout)
{
    (void)timeout;
    comm_staged_grid(g, d);
}

void comm_nccl_register(void *p, size_t bytes)
{
    (void)bytes;
    BUG_ON(p);
}
