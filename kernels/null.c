/* null -- a device whose ops do nothing. A run of the real code on it, with arenas that only count,
 * finds the exact size of every arena. */
#include "device.h"
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define X(name, params, names) static void null_##name params {}
OPS(X)
#undef X

static void *null_take(Device *d, size_t bytes) { return NULL; }
static void null_give(Device *d, void *p, size_t bytes) {}
static int null_owns(Device *d, const void *p) { return 0; }
static size_t null_left(Device *d) { return SIZE_MAX; }
static void null_put(Device *d, void *dst, const void *src, size_t bytes) {}
static int64_t null_read_async(Device *d, void *dst, const void *src, size_t bytes) { return 0; }
static int64_t null_prefetch(Device *d, void *dst, const void *src, size_t n, int64_t after) { return 0; }
static void null_read_wait(Device *d, int64_t ticket) {}
static void null_sync(Device *d) {}
static int64_t null_ticket(Device *d) { return 0; }
static double null_between(Device *d, int64_t from, int64_t to) { return 0; }

void null_open(Device *d, Dtype real)
{
    *d = (Device){.name = "null", .isa = "none", .real = real, .take = null_take, .give = null_give,
                  .owns = null_owns, .left = null_left, .mapped_take = null_take, .mapped_give = null_give,
                  .offload = null_read_async, .prefetch = null_prefetch, .stream_wait = null_read_wait,
                  .side_begin = null_sync, .side_end = null_ticket, .put = null_put, .get = null_put,
                  .read_async = null_read_async, .read_wait = null_read_wait, .snapshot = null_read_async,
                  .wait_snapshots = null_sync, .mark = null_ticket, .between = null_between,
                  .host_take = null_take, .host_give = null_give, .sync = null_sync};
#define X(name, params, names) d->name = null_##name;
    OPS(X)
#undef X
}
