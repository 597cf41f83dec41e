/* races -- finds two accesses of a kernel to the same byte of which one writes and that nothing orders: what
 * compute-sanitizer's racecheck finds in shared memory, and the same in device memory, between the blocks of
 * a launch, too.
 *
 * With RACES=1 the compiler puts a call before each access that it makes (-fsanitize=thread); these calls
 * come here, and not to its library. Memory is ordered by __syncthreads, __syncwarp (of a whole warp),
 * barrier_some and the order of one thread, and not by shuffles, votes or matrix instructions, which promise
 * nothing about it. An atomic is ordered with atomics. A cp.async writes when it is issued and when it is
 * waited for. Blocks of one launch are not ordered at all.
 *
 * A report needs no unlucky order: it is there in every run that has the two accesses. Of the readers since
 * the last write the last READERS are known. */
#include "runtime.h"
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unordered_map>

enum { READERS = 3, PAGE_SHIFT = 12, PAGE_BYTES = 1 << PAGE_SHIFT, WARPS = 32, LANES = 32, NEAR = 256 };

/* time: number of orderings before it, 0: there was no access. from: where in the program. */
struct Access { uint32_t time, from; uint16_t thread, atomic; };
struct Byte { Access write, read[READERS]; };
struct Page { uintptr_t number; Byte *bytes; };

extern char shared[];
#ifdef RACES
enum { CHECKS = 1 };
#else
enum { CHECKS = 0 };           /* copies and atomics alone are told to us */
#endif

static uint32_t now = 1, launch, block;    /* times at which the running launch and block began */
static int on;                             /* bool: a kernel runs, and its accesses are told */
/* Times before which all that others have done is known: to all threads of the block; of a warp, to each
 * other; to the threads of a warp of what another warp has done. */
static uint32_t known, warp_known[WARPS], warps_known[WARPS][WARPS];

static std::unordered_map<uintptr_t, Byte *> &pages = *new std::unordered_map<uintptr_t, Byte *>;
static Page near[NEAR];

void races_launch(int starts)
{
    on = CHECKS && starts;
    launch = ++now;
    if (now < 1u << 31)
        return;
    for (auto &p : pages)
        memset(static_cast<void *>(p.second), 0, PAGE_BYTES * sizeof(Byte));
    now = launch = 1;
}

void races_block(void)
{
    block = ++now;
    known = 0;
    memset(warp_known, 0, sizeof warp_known);
    memset(warps_known, 0, sizeof warps_known);
}

void races_barrier(void) { known = ++now; }

void races_some(const unsigned *lanes)
{
    uint32_t all[WARPS] = {};
    now++;
    for (int w = 0; w < WARPS; w++)
        for (int v = 0; v < WARPS && lanes[w]; v++)
            all[v] = lanes[v] ? now : warps_known[w][v] > all[v] ? warps_known[w][v] : all[v];
    for (int w = 0; w < WARPS; w++)
        if (lanes[w]) {
            memcpy(warps_known[w], all, sizeof all);
            warp_known[w] = now;
        }
}

void races_warp(int warp) { warp_known[warp] = ++now; }

/* Whether this thread knows of an access of its block. */
static int is_known(const Access &a)
{
    int me = emulation_thread(), w = me / LANES, v = a.thread / LANES;
    if (a.thread == me || a.time < known)
        return 1;
    return a.time < (w == v ? warp_known[w] : warps_known[w][v]);
}

/* Files and lines of a place in the program, innermost first. */
static void place(uint32_t from, char *text, size_t size)
{
    char command[200];
    size_t n = 0;
    snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe 0x%x", getpid(), from);
    FILE *f = popen(command, "r");
    while (f && n + 200 < size && fgets(text + n, (int)(size - n), f)) {
        char *name = strstr(text + n, "kernels/cuda/"), *end = strpbrk(text + n, " \n");
        if (end)
            *end = 0;
        if (name)
            memmove(text + n, name, strlen(name) + 1);
        n += strlen(text + n);
        text[n++] = ' ';
    }
    text[n ? n - 1 : 0] = 0;
    if (f)
        pclose(f);
}

static int is_shared(const char *p) { return p >= shared && p < shared + EMULATION_SHARED; }

[[noreturn]] static void race(const char *p, const Access &a, int wrote, uint32_t from, int writes)
{
    char here[1000], there[1000], whose[60];
    place(from, here, sizeof here);
    place(a.from, there, sizeof there);
    if (a.time < block)
        snprintf(whose, sizeof whose, "a thread of another block");
    else
        snprintf(whose, sizeof whose, "thread %d", a.thread);
    emulation_fail("race in kernel %s: thread %d %s byte %zu of %s memory (%s) that %s %s (%s), and nothing "
                   "orders the two",
                   emulation_kernel(), emulation_thread(), writes ? "writes" : "reads",
                   is_shared(p) ? (size_t)(p - shared) : (size_t)p, is_shared(p) ? "shared" : "device", here,
                   whose, wrote ? "has written" : "has read", there);
}

static Byte *page(uintptr_t number)
{
    Page *c = &near[number % NEAR];
    if (c->number != number) {
        Byte *&bytes = pages[number];
        if (!bytes)
            bytes = static_cast<Byte *>(calloc(PAGE_BYTES, sizeof(Byte)));
        *c = {number, bytes};
    }
    return c->bytes;
}

/* Notes a read where the oldest is, or this thread's own. */
static void note(Access *read, const Access &mine)
{
    Access *to = read;
    for (int i = 0; i < READERS; i++) {
        if (read[i].thread == mine.thread && read[i].time >= block) {
            to = read + i;
            break;
        }
        if (read[i].time < to->time)
            to = read + i;
    }
    *to = mine;
}

/* Of the first, the program. */
static int first_base(struct dl_phdr_info *i, size_t, void *base)
{
    *static_cast<uintptr_t *>(base) = i->dlpi_addr;
    return 1;
}

static void touch(const char *p, size_t n, int writes, int atomic, const void *caller)
{
    static uintptr_t base;
    if (!on || (!is_shared(p) && !memory_in_space(p)))
        return;
    if (!base)
        dl_iterate_phdr(first_base, &base);
    Access mine = {now, (uint32_t)((uintptr_t)caller - base - 1), (uint16_t)emulation_thread(),
                   (uint16_t)atomic};
    uint32_t since = is_shared(p) ? block : launch;
    for (; n; n--, p++) {
        Byte *b = page((uintptr_t)p >> PAGE_SHIFT) + ((uintptr_t)p & (PAGE_BYTES - 1));
        const Access &w = b->write;
        if (w.time >= since && !(atomic && w.atomic) && (w.time < block || !is_known(w)))
            race(p, w, 1, mine.from, writes);
        for (const Access &r : b->read)
            if (writes && r.time >= since && (r.time < block || !is_known(r)))
                race(p, r, 0, mine.from, writes);
        if (writes)
            b->write = mine;
        else
            note(b->read, mine);
    }
}

void emulation_touch(const void *p, size_t bytes, int writes, int atomic)
{
    touch(static_cast<const char *>(p), bytes, writes, atomic, __builtin_return_address(0));
}

#ifdef RACES
/* ---- what the compiler calls ---- */
#define CALL(name, bytes, writes)                                                                            \
    extern "C" void __tsan_##name(const void *p)                                                             \
    {                                                                                                        \
        touch(static_cast<const char *>(p), bytes, writes, 0, __builtin_return_address(0));                  \
    }
#define CALLS(bytes)                                                                                         \
    CALL(read##bytes, bytes, 0)                                                                              \
    CALL(write##bytes, bytes, 1)                                                                             \
    CALL(unaligned_read##bytes, bytes, 0)                                                                    \
    CALL(unaligned_write##bytes, bytes, 1)
CALLS(1)
CALLS(2)
CALLS(4)
CALLS(8)
CALLS(16)
extern "C" void __tsan_read_range(const void *p, size_t n) { emulation_touch(p, n, 0, 0); }
extern "C" void __tsan_write_range(const void *p, size_t n) { emulation_touch(p, n, 1, 0); }
/* of the host */
extern "C" int __tsan_atomic32_fetch_add(int *p, int x, int order) { return __atomic_fetch_add(p, x, order); }
extern "C" void __tsan_init(void) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void) {}
extern "C" void __tsan_vptr_update(void *, void *) {}
#endif
