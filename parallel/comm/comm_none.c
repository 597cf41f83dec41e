/* comm_none -- comm_device.h in a build without CUDA: nobody has a cuda device to call it with */
#include "comm_device.h"

void comm_staged_wrap(void *device, Comm *c)
{
    (void)c;
    BUG_ON(device);
}

NcclWorld *comm_nccl_start(Comm *world, Device *d, double timeout)
{
    (void)world, (void)timeout;
    BUG_ON(d);
    return NULL;
}

void comm_nccl_wrap(void *world, Comm *c) { comm_staged_wrap(world, c); }

void comm_nccl_register(const Device *d, void *p, size_t bytes)
{
    (void)d, (void)bytes;
    BUG_ON(p);
}
