/* attention_none -- sdpa.h in a build without cuDNN: the library cannot be opened. */
#include "sdpa.h"
#include <stdio.h>
#pragma GCC diagnostic ignored "-Wunused-parameter"

int sdpa_built(void) { return 0; }

Sdpa *sdpa_open(cudaStream_t stream, SdpaWhy *why)
{
    snprintf(why->text, sizeof why->text, "this executable was built without it (scripts/setup gpu)");
    return NULL;
}

Sdpa *sdpa_open_absent(int sm, const char *p, SdpaWhy *why) { return sdpa_open(NULL, why); }

void sdpa_close(Sdpa *s) { BUG_ON(s); }

const char *sdpa_name(const Sdpa *s)
{
    BUG_ON(s);
    return "";
}

SdpaPlan *sdpa_plan(Sdpa *s, const SdpaShape *shape, size_t bytes, SdpaWhy *why)
{
    BUG_ON("cuDNN was not opened");
}

void sdpa_plan_close(SdpaPlan *p) { BUG_ON(p); }
size_t sdpa_plan_bytes(const SdpaPlan *p)
{
    BUG_ON(p);
    return 0;
}

void sdpa_run(Sdpa *s, SdpaPlan *p, void *const mat[SDPA_MATS], float *statistics, void *workspace)
{
    BUG_ON("cuDNN was not opened");
}
