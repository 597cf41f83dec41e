/* libraries -- the emulated ones need not be opened. */
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
