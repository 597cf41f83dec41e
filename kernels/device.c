#include "device.h"

const char *dtype_name(Dtype t)
{
    static const char *const names[] = {"F64", "F32", "BF16", "F16", "I32", "I64"};
    BUG_ON((unsigned)t >= DTYPES);
    return names[t];
}
