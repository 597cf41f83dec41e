/* cuda_none -- the CUDA device of a build without CUDA: opening it is an error of the configuration */
#include "device.h"
#include "products.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"

int cuda_count(void)
{
    die(EXIT_CONFIG, "cuda",
        "this executable was built without CUDA; change: device: cpu, or build with make CUDA=1");
}

void cuda_open(Device *d, Dtype real, int index) { cuda_count(); }

void cuda_close(Device *d) { BUG_ON(d); }

void cuda_tune(Device *d, const Products *p, Algorithms *known, int most, void *memory, size_t bytes)
{
    BUG_ON("no GPU was opened");
}

void cuda_algorithms_prefix(const Device *d, char text[ALGORITHM_KEY]) { BUG_ON("no GPU was opened"); }

int cuda_attention_built(void) { return 0; }
const char *cuda_built(void) { return "GPUs: none, built without CUDA (make CUDA=1)"; }

void cuda_attention(Device *d, const Products *p, size_t reserve, AttentionUse *use)
{
    BUG_ON("no GPU was opened");
}

void cuda_attention_time(Device *d, Algorithms *known, void *memory, size_t bytes, int64_t ns[2][2])
{
    BUG_ON("no GPU was opened");
}

int cuda_attention_leave(Device *d, int backward) { BUG_ON("no GPU was opened"); }

void cuda_attention_close(Device *d) { BUG_ON("no GPU was opened"); }
