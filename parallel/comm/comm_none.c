/* comm_none -- comm_device.h in a build without CUDA: nobody has a cuda device to call it with */
#include "comm_device.h"

void comm_staged_wrap(void *device, Comm *c)
{
    (void)c;
    BUG_ON(device);
}

void comm_nccl_start(Comm *world, Device *d, double timeout)
{
    (void)world, (void)timeout;
    BUG_ON(d);
}

void comm_nccl_wrap(void *device, Comm *c) { comm_staged_wrap(device, c); }

void comm_nccl_register(void *p, size_t bytes)
{
    (void)bytes;
    BUG_ON(p);
}
