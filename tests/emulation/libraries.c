/* libraries -- opens the emulated CUDA libraries, which are linked in: nothing to do */
#include "libraries.h"

#define X(f) .f = f,
#ifdef LT_FUNCTIONS
const LtApi *lt_api(void)
{
    static const LtApi api = {LT_FUNCTIONS(X)};
    return &api;
}
#endif
#ifdef NCCL_FUNCTIONS
const NcclApi *nccl_api(void)
{
    static const NcclApi api = {NCCL_FUNCTIONS(X)};
    return &api;
}
#endif
#undef X
