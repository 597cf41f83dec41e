/* cuda_none -- the CUDA device of a build without CUDA: opening it is an error of the configuration */
#include "device.h"
#include "products.h"

int cuda_count(void)
{
    die(EXIT_CONFIG, "cuda",
        "this executable was built without CUDA; change: device: cpu, or build with make CUDA=1");
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

void cuda_tune(Device *d, const Products *p, Algorithms *known, int most, void *memory, size_t bytes)
{
    (void)d, (void)p, (void)known, (void)most, (void)memory, (void)bytes;
    BUG_ON("no GPU was opened");
}

int cuda_attention_built(void) { return 0; }

void cuda_attention(Device *d, const Products *p, size_t reserve, AttentionUse *use)
{
    (void)d, (void)p, (void)reserve, (void)use;
    BUG_ON("no GPU was opened");
}

void cuda_attention_time(Device *d, Algorithms *known, void *memory, size_t bytes, int64_t ns[2][2])
{
    (void)d, (void)known, (void)memory, (void)bytes, (void)ns;
    BUG_ON("no GPU was opened");
}

int cuda_attention_leave(Device *d, int backward)
{
    (void)d, (void)backward;
    BUG_ON("no GPU was opened");
}

void cuda_attention_close(Device *d)
{
    (void)d;
    BUG_ON("no GPU was opened");
}
