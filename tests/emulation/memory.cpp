/* memory -- device and pinned memory, copies, and messages for faults: see include/emulation.h. */
#include "runtime.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <map>
#include <memory>
#include <vector>

static const size_t PAGE = 4096, ALIGN = 256, HUGE = 2 << 20;
struct TensorPiece { size_t bytes; int live; };
static std::map<char *, TensorPiece> pieces, pinned;
static char *space, *top;
static size_t taken, space_bytes = (size_t)256 << 30;
static int open_now = 1, guard;

static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
static char *page_of(const void *p) { return (char *)((uintptr_t)p / PAGE * PAGE); }

/* The piece that holds p, or else the last one below p. */
static std::map<char *, TensorPiece>::iterator piece_before(std::map<char *, TensorPiece> &all, const void *p)
{
    auto i = all.upper_bound((char *)p);
    return i == all.begin() ? all.end() : --i;
}

static int inside(std::map<char *, TensorPiece> &all, const void *p, size_t bytes)
{
    auto i = piece_before(all, p);
    return i != all.end() && i->second.live && (size_t)((char *)p - i->first) + bytes <= i->second.bytes;
}

int memory_is_device(const void *p, size_t bytes) { return inside(pieces, p, bytes); }
int memory_is_pinned(const void *p, size_t bytes) { return inside(pinned, p, bytes); }

int memory_in_space(const void *p) { return space && (char *)p >= space && (char *)p < space + space_bytes; }

static const char *words(const void *p)
{
    static char text[200];
    auto i = piece_before(pieces, p);
    if (i == pieces.end())
        return "before all device memory";
    snprintf(text, sizeof text, "%zu bytes into a piece of %zu%s", (size_t)((char *)p - i->first),
             i->second.bytes, i->second.live ? "" : " that was freed");
    return text;
}

void emulation_check(const void *p, size_t bytes, const char *what)
{
    if (bytes && !memory_is_device(p, bytes))
        emulation_fail("%s: %zu bytes at %p are not within a piece of device memory: %s", what, bytes, p,
                       memory_in_space(p) ? words(p) : "memory of the host");
}

static void faulted(int signal_number, siginfo_t *info, void *)
{
    const char *kernel = emulation_kernel();
    signal(signal_number, SIG_DFL);
    if (memory_in_space(info->si_addr) && kernel)
        emulation_fail("kernel %s touches what is not its own: %s", kernel, words(info->si_addr));
    if (memory_in_space(info->si_addr))
        emulation_fail("the host touches device memory, %s", words(info->si_addr));
    if (kernel)
        emulation_fail(
            "kernel %s touches %p: no memory of the device (behind its shared memory, or its stack is full)",
            kernel, info->si_addr);
    auto i = piece_before(pinned, info->si_addr);
    if (i != pinned.end() && (char *)info->si_addr < i->first + pages(i->second.bytes))
        emulation_fail("the host touches pinned memory that was freed");
    raise(signal_number);
}

void memory_open(void)
{
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    while ((space = top = (char *)mmap(nullptr, space_bytes, PROT_NONE, how, -1, 0)) == MAP_FAILED &&
           space_bytes > (size_t)16 << 30)
        space_bytes /= 2;          /* a program under valgrind has less than 128 GiB in all */
    if (space == MAP_FAILED)
        emulation_fail("no address space for device memory");
    guard = (int)emulation_option("EMULATION_GUARD", 0);
    open_now = !guard;
    static char stack[64 * 1024];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, nullptr);
    struct sigaction a = {};
    a.sa_sigaction = faulted;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &a, nullptr);
    sigaction(SIGBUS, &a, nullptr);
}

void memory_access(int allowed)
{
    if (!guard || allowed == open_now)
        return;
    open_now = allowed;
    for (auto &i : pieces)
        if (i.second.live)
            mprotect(page_of(i.first), pages((size_t)(i.first - page_of(i.first)) + i.second.bytes),
                     allowed ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* ---- allocation ---- */

static size_t memory_size(void) { return (size_t)emulation_option("EMULATION_MEMORY", (int64_t)4 << 30); }

extern "C" cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    Entry e;
    if (e.error)
        return e.error;
    *total = memory_size();
    *available = *total - taken;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMalloc(void **p, size_t bytes)
{
    Entry e;
    if (e.error)
        return e.error;
    if (!bytes) {
        *p = nullptr;
        return cudaSuccess;
    }
    size_t size = pages((bytes + ALIGN - 1) / ALIGN * ALIGN);
    if (bytes > memory_size() - taken)
        return cudaErrorMemoryAllocation;
    if (size + PAGE + HUGE > (size_t)(space + space_bytes - top))
        emulation_fail("%zu bytes of address space are used up: memory is never used again", space_bytes);
    if (size > HUGE)
        top += HUGE - (size_t)(top - space) % HUGE;
    char *start = top, *at = start + size - (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (mprotect(start, size, PROT_READ | PROT_WRITE))
        return cudaErrorMemoryAllocation;
    if (size > HUGE)
        madvise(start, size, MADV_HUGEPAGE);           /* mprotect is faster on large pages */
    memset(start, 0xff, size);
    top += size + PAGE;
    if (!open_now)
        mprotect(start, size, PROT_NONE);
    pieces[at] = {bytes, 1};
    taken += bytes;
    *p = at;
    return cudaSuccess;
}

/* Checks that the bytes between a piece and the ends of its pages still hold 0xff. */
static void check_slack(char *p, size_t bytes)
{
    char *end = p + (bytes + ALIGN - 1) / ALIGN * ALIGN;
    for (char *c = page_of(p); c < end; c++)
        if ((c < p || c >= p + bytes) && *c != (char)0xff)
            emulation_fail("something wrote %s a piece of %zu bytes of device memory, at %td",
                           c < p ? "before" : "behind", bytes, c - p);
}

extern "C" cudaError_t emulation_free(void *p, const char *file, int line)
{
    Entry e;
    if (e.error || !p)
        return e.error;
    auto i = pieces.find((char *)p);
    if (i == pieces.end() || !i->second.live)
        emulation_fail("%s:%d: cudaFree(%p): %s", file, line, p,
                       i == pieces.end() ? "no device memory begins here" : "freed before");
    streams_drain();
    memory_access(1);
    size_t size = (size_t)((char *)p - page_of(p)) + (i->second.bytes + ALIGN - 1) / ALIGN * ALIGN;
    check_slack((char *)p, i->second.bytes);
    mmap(page_of(p), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    i->second.live = 0;
    taken -= i->second.bytes;
    return cudaSuccess;
}

extern "C" cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    Entry e;
    if (e.error)
        return e.error;
    if (!bytes)
        return cudaErrorInvalidValue;
    void *at = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return cudaErrorMemoryAllocation;
    memset(at, 0xff, bytes);
    pinned[(char *)at] = {bytes, 1};
    *p = at;
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return cudaMallocHost(p, bytes);
}

extern "C" cudaError_t emulation_free_host(void *p, const char *file, int line)
{
    Entry e;
    if (e.error || !p)
        return e.error;
    auto i = pinned.find((char *)p);
    if (i == pinned.end() || !i->second.live)
        emulation_fail("%s:%d: cudaFreeHost(%p): no pinned memory begins here", file, line, p);
    streams_drain();
    size_t size = pages(i->second.bytes);
    if (guard) {
        mmap(p, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        i->second.live = 0;
    } else {
        munmap(p, size);
        pinned.erase(i);
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    Entry e;
    if (e.error)
        return e.error;
    if (memory_is_device(p, 1) || !bytes)
        return cudaErrorInvalidValue;
    if (memory_is_pinned(p, 1))
        return cudaErrorHostMemoryAlreadyRegistered;
    pinned[(char *)p] = {bytes, 1};
    return cudaSuccess;
}

extern "C" cudaError_t cudaHostUnregister(void *p)
{
    Entry e;
    if (e.error)
        return e.error;
    return pinned.erase((char *)p) ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

extern "C" cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
    Entry e;
    if (e.error)
        return e.error;
    *a = {};
    a->device = -1;
    if (memory_is_device(p, 1)) {
        a->type = cudaMemoryTypeDevice;
        a->device = 0;
        a->devicePointer = (void *)p;
    } else if (memory_is_pinned(p, 1)) {
        a->type = cudaMemoryTypeHost;
        a->hostPointer = a->devicePointer = (void *)p;
    }
    return cudaSuccess;
}

/* ---- copies ---- */

struct Rows { char *dst; const char *src; size_t dst_pitch, src_pitch, width, height; };

static void copy_rows(const Rows &r)
{
    for (size_t i = 0; i < r.height; i++)
        memmove(r.dst + i * r.dst_pitch, r.src + i * r.src_pitch, r.width);
}

static size_t extent(size_t pitch, const Rows &r) { return (r.height - 1) * pitch + r.width; }

/* Checks that source and destination are what `kind` says. Returns their kind. */
static cudaMemcpyKind check_kind(const Rows &r, cudaMemcpyKind kind)
{
    int to = memory_in_space(r.dst), from = memory_in_space(r.src);
    cudaMemcpyKind is = to ? (from ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                        : from ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
    if (kind != cudaMemcpyDefault && kind != is)
        emulation_fail("copy to %p from %p: said to be of kind %d, is of kind %d", (void *)r.dst,
                       (const void *)r.src, kind, is);
    if (to)
        emulation_check(r.dst, extent(r.dst_pitch, r), "copy to");
    if (from)
        emulation_check(r.src, extent(r.src_pitch, r), "copy from");
    return is;
}

/* Enqueues a copy with the semantics of the runtime. A copy from pageable memory reads it at the call; a
 * copy to pageable memory ends before the call returns. Pinned memory is read and written when the copy
 * runs. */
static cudaError_t copy_async(Rows r, cudaMemcpyKind kind, cudaStream_t s)
{
    Entry e;
    if (e.error || !r.width || !r.height)
        return e.error;
    kind = check_kind(r, kind);
    int way = kind == cudaMemcpyHostToDevice, between = way || kind == cudaMemcpyDeviceToHost;
    if (between)
        copy_in_turn(s, way, 0);
    if (kind == cudaMemcpyHostToDevice && !memory_is_pinned(r.src, extent(r.src_pitch, r))) {
        auto held = std::make_shared<std::vector<char>>(r.width * r.height);
        copy_rows({held->data(), r.src, r.width, r.src_pitch, r.width, r.height});
        Rows from = {r.dst, held->data(), r.dst_pitch, r.width, r.width, r.height};
        emulation_enqueue(s, "copy from the host", [from, held] { copy_rows(from); });
        copy_in_turn(s, way, 1);
        return cudaSuccess;
    }
    emulation_enqueue(s, "copy", [r] { copy_rows(r); });
    if (between)
        copy_in_turn(s, way, 1);
    if (kind == cudaMemcpyDeviceToHost && !memory_is_pinned(r.dst, extent(r.dst_pitch, r)))
        stream_drain(s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                                       cudaStream_t s)
{
    return copy_async({(char *)dst, (const char *)src, bytes, bytes, bytes, 1}, kind, s);
}

extern "C" cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                                         size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t s)
{
    if (width > dst_pitch || width > src_pitch)
        return cudaErrorInvalidValue;
    return copy_async({(char *)dst, (const char *)src, dst_pitch, src_pitch, width, height}, kind, s);
}

/* cudaMemcpy runs on the default stream and waits for no other stream: all are made with
 * cudaStreamNonBlocking. */
extern "C" cudaError_t emulation_memcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                                        const char *, int)
{
    Entry e;
    if (e.error || !bytes)
        return e.error;
    Rows r = {(char *)dst, (const char *)src, bytes, bytes, bytes, 1};
    check_kind(r, kind);
    memory_access(1);
    copy_rows(r);
    return cudaSuccess;
}

extern "C" cudaError_t emulation_memset(void *p, int value, size_t bytes, const char *, int)
{
    Entry e;
    if (e.error || !bytes)
        return e.error;
    emulation_check(p, bytes, "cudaMemset");
    memory_access(1);
    memset(p, value, bytes);
    return cudaSuccess;
}

extern "C" cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    Entry e;
    if (e.error || !bytes)
        return e.error;
    if (!memory_is_pinned(p, bytes))
        emulation_check(p, bytes, "cudaMemsetAsync");
    emulation_enqueue(s, "memset", [=] { memset(p, value, bytes); });
    return cudaSuccess;
}
