/* null -- a device that does nothing. A counting run of the real code over it, with arenas that have no memory,
 * finds every arena's exact size. */
#include "device.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define X(name, args) static void null_##name args {}
OPS(X)
#undef X

void null_open(Device *d, Dtype real)
{
    *d = (Device){.name = "null", .isa = "none", .real = real};
#define X(name, args) d->name = null_##name;
    OPS(X)
#undef X
}
