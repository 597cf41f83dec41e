/* cuda_none -- a build without CUDA: what asks for it is told so. */
#include "device.h"

int cuda_count(void)
{
    die(EXIT_CONFIG, "cuda", "this executable was built without CUDA; change: device: cpu, or build with make CUDA=1");
}

void cuda_open(Device *d, Dtype real, int index)
{
    (void)d;
    (void)real;
    (void)index;
    cuda_count();
}

void cuda_close(Device *d)
{
    BUG_ON(d);
}
