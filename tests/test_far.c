/* test_far -- the executable itself over a device whose memory the host cannot touch and that is behind, for tests/far.sh.
 * The link lets cpu_open pass through here (Makefile). The CPU's ops do the work; what `take` gives cannot be read or
 * written but while an op or a copy runs, so that a host that does it faults. What the host is told of arrives when it
 * asks whether it is there, and not before. */
#define _GNU_SOURCE
#include "device.h"
#include "device_calls.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { char *p; size_t bytes; } Range;
typedef struct { void *dst, *copy; size_t bytes; } Told;

static Device cpu;
static Range range[8];
static int ranges, inside;
static Told *stash;                    /* by ticket - 1 */
static int64_t tickets, delivered;

static void set_protection(int protection)
{
    for (int i = 0; i < ranges; i++)
        if (range[i].p && mprotect(range[i].p, range[i].bytes, protection))
            die(EXIT_BUG, "far", "mprotect fails; change: report this");
}

static void enter(void)
{
    if (inside++ == 0)
        set_protection(PROT_READ | PROT_WRITE);
}

static void leave(void)
{
    if (--inside == 0)
        set_protection(PROT_NONE);
}

static int far_owns(Device *d, const void *p)
{
    (void)d;
    for (int i = 0; i < ranges; i++)
        if (range[i].p && (const char *)p >= range[i].p && (const char *)p < range[i].p + range[i].bytes)
            return 1;
    return 0;
}

static void fault(int sig, siginfo_t *info, void *context)
{
    static const char far_away[] = "the host touches device memory\n", other[] = "segmentation fault\n";
    int ours = far_owns(NULL, info->si_addr);
    (void)context;
    if (write(2, ours ? far_away : other, (ours ? sizeof far_away : sizeof other) - 1) < 0) {}
    signal(sig, SIG_DFL);
}

static void *far_take(Device *d, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    BUG_ON(ranges == 8);
    range[ranges++] = (Range){cpu.take(d, bytes), (bytes + page - 1) / page * page};
    set_protection(PROT_NONE);
    return range[ranges - 1].p;
}

static void far_give(Device *d, void *p, size_t bytes)
{
    for (int i = 0; i < ranges; i++)
        range[i].p = range[i].p == p ? NULL : range[i].p;
    cpu.give(d, p, bytes);
}

/* One side is the device's and the other is not. */
static void far_put(Device *d, void *dst, const void *src, size_t bytes)
{
    BUG_ON(bytes && (!far_owns(d, dst) || far_owns(d, src)));
    enter();
    cpu.put(d, dst, src, bytes);
    leave();
}

static void far_get(Device *d, void *dst, const void *src, size_t bytes)
{
    BUG_ON(bytes && (far_owns(d, dst) || !far_owns(d, src)));
    enter();
    cpu.get(d, dst, src, bytes);
    leave();
}

static int64_t far_tell(Device *d, void *dst, const void *src, size_t bytes)
{
    Told t = {dst, xcalloc(1, bytes), bytes};
    far_get(d, t.copy, src, bytes);
    memset(dst, 0xff, bytes);
    stash = xrealloc(stash, (size_t)(tickets + 1) * sizeof *stash);
    stash[tickets] = t;
    return ++tickets;
}

static void far_told(Device *d, int64_t ticket)
{
    (void)d;
    BUG_ON(ticket < 1 || ticket > tickets);
    for (; delivered < ticket; delivered++) {
        Told *t = &stash[delivered];
        memcpy(t->dst, t->copy, t->bytes);
        free(t->copy);
    }
}

#define X(name, args)                                                                                                  \
    static void far_##name args                                                                                        \
    {                                                                                                                  \
        enter();                                                                                                       \
        cpu.name(d, CALL_##name);                                                                                      \
        leave();                                                                                                       \
    }
OPS(X)
#undef X

void __real_cpu_open(Device *d, Dtype real, const char *isa, int threads);
void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads);

void __wrap_cpu_open(Device *d, Dtype real, const char *isa, int threads)
{
    struct sigaction act = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &act, NULL);
    __real_cpu_open(d, real, isa, threads);
    cpu = *d;
    d->late = 1;
    d->take = far_take;
    d->give = far_give;
    d->owns = far_owns;
    d->outer_take = far_take;
    d->outer_give = far_give;
    d->put = far_put;
    d->get = far_get;
    d->tell = far_tell;
    d->told = far_told;
#define X(name, args) d->name = far_##name;
    OPS(X)
#undef X
}
