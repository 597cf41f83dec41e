/* kernels -- runs a grid's blocks one after the other, and the threads of a block as fibers: see
 * include/emulation.h.
 *
 * When a thread ends, its fiber starts the next thread: a kernel without barriers never switches fibers. */
#include "runtime.h"
#include <cuda_runtime.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(start, end) 0
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

enum {
    THREADS = 1024,
    WARPS = THREADS / 32,
    PAGE = 4096,
    STACK = 256 * 1024,
    SHARED = EMULATION_SHARED,
    CANARY = 256
};
/* Shared memory: kernels declare it as `extern __shared__ char shared[]`. */
alignas(PAGE) char shared[SHARED + 2 * PAGE];
static_assert(SHARED % PAGE == 0, "");

/* ---- switching stacks ---- */

/* Switches to the stack `to`; *from: the stack that was left. */
#ifdef __x86_64__
extern "C" void emulation_switch(void **from, void *to);
__asm__(".text\n.globl emulation_switch\n.type emulation_switch, @function\nemulation_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulation_switch, . - emulation_switch\n");

static void *stack_start(char *stack, void (*body)(void))
{
    void **top = reinterpret_cast<void **>(stack + STACK) - 1;
    *top = nullptr;                /* body's return address (it never returns), 8 below a multiple of 16 */
    *--top = reinterpret_cast<void *>(body);
    top -= 6;
    memset(static_cast<void *>(top), 0, 6 * sizeof *top);
    return top;
}
#else
#include <ucontext.h>
static void emulation_switch(void **from, void *to)
{
    ucontext_t here;
    *from = &here;
    swapcontext(&here, static_cast<ucontext_t *>(to));
}

static void *stack_start(char *stack, void (*body)(void))
{
    ucontext_t *u = new ucontext_t;
    getcontext(u);
    u->uc_stack.ss_sp = stack;
    u->uc_stack.ss_size = STACK;
    u->uc_link = nullptr;
    makecontext(u, body, 0);
    return u;
}
#endif

struct Fiber { void *at; };
struct Place { const char *what, *file; int line; };
struct Thread {
    Fiber *fiber;              /* fiber on which the thread waits; NULL: not started, or not waiting */
    uint3 index;
    Place place;               /* call at which the thread waits */
    int ended;
};
/* A warp, and the meeting of its lanes at a warp operation. Masks of lanes and their bytes have two
 * buffers, because a meeting may begin before all lanes have read the results of the one before. */
struct Warp {
    unsigned alive, ready, met, mask, present[2];
    int turn, orders;          /* orders: bool: the meeting is a __syncwarp, which orders memory */
    Place place;
    char lanes[2][32 * EMULATION_LANE_BYTES];
};

/* A barrier of some threads: how many it is of, how many wait, and which lanes of each warp. */
struct Some { int threads, waiting; unsigned lanes[WARPS]; Place place; };
enum { SOME = 16 };

/* The block that is running. */
static struct Block {
    std::function<void()> *body;
    const char *kernel;
    int threads, warps, alive, at_barrier;
    unsigned warps_ready;
    int order[WARPS];          /* the warps, the one that goes on before all others first */
    int restless;              /* bool: any warp goes on, after each call that may switch */
    Some some[SOME];           /* barriers of some threads, by id */
    int current, warp;         /* running thread; its warp, which mostly goes on while it can */
    Place barrier;
    Thread thread[THREADS];
    Warp warp_of[WARPS];
    Fiber main;
    uint64_t serial;
} b;
static std::vector<Fiber *> idle;
/* All of them, never freed: a leak check at the end of the process looks for those that still run. */
static std::vector<Fiber *> &made = *new std::vector<Fiber *>;
static int running;

int emulation_thread(void) { return b.current; }
uint64_t emulation_block(void) { return b.serial; }
const char *emulation_kernel(void) { return running ? b.kernel : nullptr; }

[[noreturn]] static void stuck(void)
{
    std::map<std::pair<const char *, int>, std::pair<int, const char *>> places;
    for (int i = 0; i < b.threads; i++)
        if (!b.thread[i].ended) {
            const Place &p = b.thread[i].place;
            auto &n = places[{p.file, p.line}];
            n.first++;
            n.second = p.what;
        }
    char text[1024] = "";
    for (auto &p : places)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d threads at %s %s:%d",
                 *text ? ", " : "", p.second.first, p.second.second, p.first.first, p.first.second);
    emulation_fail("kernel %s, block (%u, %u, %u): nobody can go on: %s; %d of %d threads have ended",
                   b.kernel, blockIdx.x, blockIdx.y, blockIdx.z, text, b.threads - b.alive, b.threads);
}

/* Returns a bit of the set, each with the same probability. */
static int lane_of(unsigned set)
{
    for (uint64_t n = emulation_random((uint64_t)__builtin_popcount(set)); n; n--)
        set &= set - 1;
    return __builtin_ctz(set);
}

/* Returns the warp that goes on when another one cannot: mostly the first one in the block's order, so that
 * a warp may be far behind the others. */
static int next_warp(void)
{
    if (b.restless || !emulation_random(16))
        return lane_of(b.warps_ready);
    int i = 0;
    while (!(b.warps_ready >> b.order[i] & 1))
        i++;
    return b.order[i];
}

/* Picks the thread that goes on, mostly of the warp that ran last; -1: all threads have ended. */
static int pick(void)
{
    if (!b.alive)
        return -1;
    if (!b.warps_ready)
        stuck();
    if (b.restless || !(b.warps_ready >> b.warp & 1) || !emulation_random(16))
        b.warp = next_warp();
    Warp *w = &b.warp_of[b.warp];
    int lane = lane_of(w->ready);
    w->ready &= ~(1u << lane);
    if (!w->ready)
        b.warps_ready &= ~(1u << b.warp);
    return b.warp * 32 + lane;
}

static void make_ready(int warp, unsigned lanes)
{
    b.warp_of[warp].ready |= lanes;
    if (b.warp_of[warp].ready)
        b.warps_ready |= 1u << warp;
}

static void start(int thread)
{
    b.current = thread;
    threadIdx = b.thread[thread].index;
}

static void fiber_body(void);
static Fiber *fiber_take(void)
{
    if (idle.empty()) {
        char *p = static_cast<char *>(mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (p == MAP_FAILED || mprotect(p, PAGE, PROT_NONE))
            emulation_fail("no memory for a thread's stack");
        /* the stacks lie so near each other that valgrind takes a switch for a deep call */
        (void)VALGRIND_STACK_REGISTER(p + PAGE, p + PAGE + STACK);
        made.push_back(new Fiber{stack_start(p + PAGE, fiber_body)});
        idle.push_back(made.back());
    }
    Fiber *f = idle.back();
    idle.pop_back();
    return f;
}

/* The current thread waits until it is picked again; another thread goes on. */
static void wait_here(void)
{
    int self = b.current, next = pick();
    if (next != self) {
        Fiber here;
        b.thread[self].fiber = &here;
        Fiber *to = b.thread[next].fiber ? b.thread[next].fiber : fiber_take();
        start(next);
        emulation_switch(&here.at, to->at);
    }
    b.thread[self].fiber = nullptr;
    start(self);
}

static void meeting_done(int warp)
{
    Warp *w = &b.warp_of[warp];
    if (w->orders && w->met == w->alive)
        races_warp(warp);
    w->present[w->turn] = w->met;
    w->turn ^= 1;
    make_ready(warp, w->met);
    w->met = 0;
}

static void barrier_done(void)
{
    races_barrier();
    for (int i = 0; i < b.warps; i++)
        make_ready(i, b.warp_of[i].alive);
    b.at_barrier = 0;
}

static void thread_ended(void)
{
    int warp = b.current / 32;
    Warp *w = &b.warp_of[warp];
    b.thread[b.current].ended = 1;
    w->alive &= ~(1u << (b.current & 31));
    b.alive--;
    if (w->met && w->met == (w->mask & w->alive))
        meeting_done(warp);
    if (b.at_barrier && b.at_barrier == b.alive)
        barrier_done();
}

static void fiber_body(void)
{
    Fiber *self = nullptr;
    for (;;) {
        (*b.body)();
        thread_ended();
        int next = pick();
        if (next >= 0 && !b.thread[next].fiber) {
            start(next);
            continue;
        }
        if (!self)
            self = new Fiber;
        idle.push_back(self);
        Fiber *to = &b.main;
        if (next >= 0) {
            to = b.thread[next].fiber;
            start(next);
        }
        emulation_switch(&self->at, to->at);
    }
}

/* ---- barriers and warp operations ---- */

static void in_kernel(const char *what)
{
    if (!running)
        emulation_fail("%s outside a kernel", what);
}

void emulation_barrier(const char *file, int line)
{
    in_kernel("__syncthreads");
    Place here = {"__syncthreads", file, line};
    if (b.at_barrier && (b.barrier.line != line || strcmp(b.barrier.file, file)))
        emulation_fail("kernel %s: a thread waits at barrier %s:%d while others wait at %s:%d", b.kernel,
                       file, line, b.barrier.file, b.barrier.line);
    b.barrier = b.thread[b.current].place = here;
    if (++b.at_barrier == b.alive)
        barrier_done();
    wait_here();
}

void emulation_barrier_some(int id, int threads, const char *file, int line)
{
    in_kernel("barrier_some");
    if (id < 1 || id >= SOME || threads < 32 || threads % 32 || threads > b.threads)
        emulation_fail("kernel %s, %s:%d: barrier_some(%d, %d) in a block of %d", b.kernel, file, line, id,
                       threads, b.threads);
    Some *s = &b.some[id];
    Place here = {"barrier_some", file, line};
    if (s->waiting && (s->threads != threads || s->place.line != line || strcmp(s->place.file, file)))
        emulation_fail("kernel %s: a thread waits at barrier %d of %d threads %s:%d while others wait at it, "
                       "of %d, %s:%d", b.kernel, id, threads, file, line, s->threads, s->place.file,
                       s->place.line);
    s->threads = threads;
    s->place = b.thread[b.current].place = here;
    s->lanes[b.current / 32] |= 1u << (b.current & 31);
    if (++s->waiting == threads) {
        races_some(s->lanes);
        for (int i = 0; i < b.warps; i++) {
            if (s->lanes[i] && s->lanes[i] != b.warp_of[i].alive)
                emulation_fail("kernel %s, %s:%d: barrier %d without all lanes of a warp", b.kernel, file,
                               line, id);
            make_ready(i, s->lanes[i]);
            s->lanes[i] = 0;
        }
        s->waiting = 0;
    }
    wait_here();
}

const char *emulation_meet(unsigned mask, const void *mine, size_t bytes, unsigned *present, const char *what,
                           const char *file, int line)
{
    in_kernel(what);
    int self = b.current, lane = self & 31;
    Warp *w = &b.warp_of[self / 32];
    if (!(mask >> lane & 1))
        emulation_fail("%s:%d: lane %d calls %s with mask %08x", file, line, lane, what, mask);
    const Place &p = w->place;
    if (w->met && (w->mask != mask || p.line != line || strcmp(p.what, what) || strcmp(p.file, file)))
        emulation_fail(
            "kernel %s: a warp has diverged: lane %d is at %s %s:%d (mask %08x) while others wait at %s "
            "%s:%d (mask %08x)",
            b.kernel, lane, what, file, line, mask, p.what, p.file, p.line, w->mask);
    w->place = b.thread[self].place = {what, file, line};
    w->mask = mask;
    w->orders = !strcmp(what, "__syncwarp");
    int turn = w->turn;
    if (bytes)
        memcpy(w->lanes[turn] + (size_t)lane * bytes, mine, bytes);
    w->met |= 1u << lane;
    if (w->met == (mask & w->alive))
        meeting_done(self / 32);
    wait_here();
    *present = w->present[turn];
    return w->lanes[turn];
}

/* ---- grids ---- */

static void run_block(std::function<void()> *body)
{
    b.body = body;
    b.alive = b.threads;
    b.at_barrier = b.warp = 0;
    b.warps_ready = 0;
    b.serial++;
    races_block();
    memset(b.some, 0, sizeof b.some);
    b.restless = !emulation_random(4);
    std::iota(b.order, b.order + b.warps, 0);
    for (int i = b.warps; i > 1; i--)
        std::swap(b.order[i - 1], b.order[emulation_random((uint64_t)i)]);
    for (int i = 0; i < b.threads; i++) {
        b.thread[i].fiber = nullptr;
        b.thread[i].ended = 0;
    }
    for (int i = 0; i < b.warps; i++) {
        int lanes = std::min(32, b.threads - 32 * i);
        Warp *w = &b.warp_of[i];
        w->alive = lanes == 32 ? ~0u : (1u << lanes) - 1;
        w->ready = w->met = 0;
        make_ready(i, w->alive);
    }
    start(pick());
    Fiber *f = fiber_take();
    emulation_switch(&b.main.at, f->at);
}

static std::map<const void *, int> shared_limits;
cudaError_t emulation_shared_limit(const void *kernel, cudaFuncAttribute which, int value)
{
    if (emulation_option("EMULATION_CAPABILITY", 90) >= 110)
        return cudaErrorNoKernelImageForDevice;
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || value > emulation_option("EMULATION_OPTIN_KIB", 227) * 1024)
            return cudaErrorInvalidValue;
        shared_limits[kernel] = value;
    }
    return cudaSuccess;
}

/* Fills `bytes` of shared memory with 0xff. CANARY bytes behind them hold 0xff, which shared_whole
 * checks; the pages behind these fault. */
static void shared_ready(size_t bytes)
{
    static size_t open = sizeof shared;
    size_t pages = (bytes + CANARY + PAGE - 1) / PAGE * PAGE;
    if (pages != open) {
        mprotect(shared, sizeof shared, PROT_READ | PROT_WRITE);
        mprotect(shared + pages, sizeof shared - pages, PROT_NONE);
        open = pages;
    }
    memset(shared, 0xff, bytes + CANARY);
}

/* Makes shared memory readable when the process ends: a leak checker reads all variables then. */
static struct Open { ~Open() { mprotect(shared, sizeof shared, PROT_READ | PROT_WRITE); } } open_at_end;

static void shared_whole(size_t bytes)
{
    for (size_t i = bytes; i < bytes + CANARY; i++)
        if (shared[i] != (char)0xff)
            emulation_fail(
                "kernel %s, block (%u, %u, %u) writes %zu bytes behind its %zu bytes of shared memory",
                b.kernel, blockIdx.x, blockIdx.y, blockIdx.z, i - bytes, bytes);
}

static void run_grid(const char *kernel, dim3 grid, dim3 block, size_t bytes, std::function<void()> *body)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    b.kernel = kernel;
    b.threads = (int)(block.x * block.y * block.z);
    b.warps = (b.threads + 31) / 32;
    for (int i = 0; i < b.threads; i++)
        b.thread[i].index = {(unsigned)i % block.x, (unsigned)i / block.x % block.y,
                             (unsigned)i / block.x / block.y};
    gridDim = grid;
    blockDim = block;
    std::vector<uint64_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    for (uint64_t i = blocks; i > 1; i--)
        std::swap(order[i - 1], order[emulation_random(i)]);
    running = 1;
    races_launch(1);
    for (uint64_t i : order) {
        blockIdx = {(unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y), (unsigned)(i / grid.x / grid.y)};
        shared_ready(bytes);
        run_block(body);
        shared_whole(bytes);
    }
    races_launch(0);
    running = 0;
}

/* ---- numbers of launches ---- */

static std::map<std::string, uint64_t> launches;

static void write_launches(void)
{
    FILE *f = fopen(getenv("EMULATION_LAUNCHES"), "a");
    for (const auto &l : launches)
        if (f)
            fprintf(f, "%" PRIu64 " %s\n", l.second, l.first.c_str());
    if (!f || fclose(f))
        fprintf(stderr, "emulation: cannot write %s\n", getenv("EMULATION_LAUNCHES"));
}

static void count_launch(const char *kernel)
{
    static int wanted = -1;
    if (wanted < 0 && (wanted = getenv("EMULATION_LAUNCHES") != nullptr))
        atexit(write_launches);
    if (wanted)
        launches[kernel]++;
}

/* EMULATION_SLOW=RANK:KERNEL:FROM:US: on rank RANK each launch of a kernel whose name has KERNEL in it takes
 * US microseconds longer, from the FROM-th of them on. Returns how much longer this one takes. */
static useconds_t slower(const char *kernel)
{
    static long rank = -1, from, us, seen;
    static char part[64];
    static const char *option = getenv("EMULATION_SLOW");
    if (option && rank < 0 && sscanf(option, "%ld:%63[^:]:%ld:%ld", &rank, part, &from, &us) != 4)
        emulation_fail("EMULATION_SLOW=%s is not RANK:KERNEL:FROM:US", option);
    if (!option || rank != (long)emulation_option("OMPI_COMM_WORLD_RANK", 0) || !strstr(kernel, part))
        return 0;
    return ++seen >= from ? (useconds_t)us : 0;
}

void emulation_launch(const char *kernel, const void *function, dim3 grid, dim3 block, size_t shared_bytes,
                      cudaStream_t s, std::function<void()> thread, const char *file, int line)
{
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (cudaPeekAtLastError() != cudaSuccess)
        emulation_fail(
            "%s:%d: kernel %s: the thread's last error, which a launch looks at, is %s of a call before",
            file, line, kernel, cudaGetErrorName(cudaPeekAtLastError()));
    if (!threads || threads > THREADS || block.z > 64 || !grid.x || !grid.y || !grid.z || grid.x > 0x7fffffff
        || grid.y > 65535 || grid.z > 65535)
        emulation_fail("%s:%d: kernel %s launched with grid (%u, %u, %u), block (%u, %u, %u)", file, line,
                       kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z);
    auto limit = shared_limits.find(function);
    size_t most = limit == shared_limits.end() ? 48 * 1024 : (size_t)limit->second;
    if (shared_bytes > std::max(most, (size_t)48 * 1024))
        emulation_fail("%s:%d: kernel %s launched with %zu bytes of shared memory, allowed are %zu "
                       "(cudaFuncSetAttribute)", file, line, kernel, shared_bytes, most);
    count_launch(kernel);
    useconds_t longer = slower(kernel);
    emulation_enqueue(s, kernel, [=]() mutable {
        run_grid(kernel, grid, block, shared_bytes, &thread);
        usleep(longer);
    });
}
