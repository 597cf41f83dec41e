/* null -- a device that does nothing. A counting run of the real code over it, with arenas that have no
 * memory, finds every arena's exact size. */
#include "device.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define X(name, args) static void null_##name args {}
OPS(X)
#undef X

static void *null_take(Device *d, size_t bytes) { return NULL; }
static void null_give(Device *d, void *p, size_t bytes) {}
static int null_owns(Device *d, const void *p) { return 0; }
static size_t null_left(Device *d) { return SIZE_MAX; }
static void null_put(Device *d, void *dst, const void *src, size_t bytes) {}
static int64_t null_tell(Device *d, void *dst, const void *src, size_t bytes) { return 0; }
static int64_t null_fetch(Device *d, void *dst, const void *outer, size_t bytes, int64_t after) { return 0; }
static void null_told(Device *d, int64_t ticket) {}
static void null_sync(Device *d) {}
static int64_t null_along(Device *d) { return 0; }

void null_open(Device *d, Dtype real)
{
    *d = (Device){.name = "null",
                  .isa = "none",
                  .real = real,
                  .take = null_take,
                  .give = null_give,
                  .owns = null_owns,
                  .left = null_left,
                  .outer_take = null_take,
                  .outer_give = null_give,
                  .leave = null_tell,
                  .fetch = null_fetch,
                  .arrived = null_told,
                  .aside = null_sync,
                  .along = null_along,
                  .put = null_put,
                  .get = null_put,
                  .tell = null_tell,
                  .told = null_told,
                  .snapshot = null_tell,
                  .settle = null_sync,
                  .host_take = null_take,
                  .host_give = null_give,
                  .sync = null_sync};
#define X(name, args) d->name = null_##name;
    OPS(X)
#undef X
}
