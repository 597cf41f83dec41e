/* streams -- queues, events, and the order in which a seed lets things run: see include/emulation.h. */
#include "runtime.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

/* State of one cudaEventRecord: complete or not, and the time when it completed. */
struct Record { int done; double when; cudaStream_t stream; };
/* An item of a stream's queue: work (run), an event record (record) or a wait for one (wait). */
struct Item {
    const char *what;
    std::function<int()> run;
    std::shared_ptr<Record> record, wait;
};
struct CUstream_st {
    std::deque<Item> queue;
    uint64_t added, ran,                   /* items enqueued, items run */
        rank;                              /* the stream of the highest rank runs first */
    int closed;
};
struct CUevent_st { std::shared_ptr<Record> last; int timed; };

static std::vector<cudaStream_t> streams;
static std::map<cudaEvent_t, int> events;
static pthread_mutex_t lock;
static int no_device, depth, inside, device, waits_for_others, until_rank, until_haste, haste;
static uint64_t random_state, calls;
static int64_t work_takes, queue_most;     /* EMULATION_CLOCK in ns, EMULATION_QUEUE; 0: without */
static std::atomic<int64_t> counted;       /* ns of the counted clock */
static thread_local cudaError_t last_error;
static thread_local int chose_device;      /* bool: the thread has called cudaSetDevice */
static pthread_t first_thread;

[[noreturn]] void emulation_fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "emulation: %s\n", text);
    fflush(stderr);
    _exit(8);
}

int64_t emulation_option(const char *name, int64_t otherwise)
{
    const char *v = getenv(name);
    return v && *v ? strtoll(v, nullptr, 0) : otherwise;
}

uint64_t emulation_random(uint64_t n)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return n < 2 ? 0 : (uint64_t)((unsigned __int128)(random_state * 0x2545f4914f6cdd1dull) * n >> 64);
}

double emulation_clock(void) { return 1e-9 * (double)counted; }

static double seconds(void)
{
    struct timespec t;
    if (work_takes)
        return emulation_clock();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- places that wait ---- */

struct Site { std::string name; uint64_t count; };
static std::vector<Site> sites;
static std::map<std::string, int> host_sites;

static void write_sites(void)
{
    const char *path = getenv("EMULATION_SITES");
    if (!path || !*path)
        return;
    std::string all;
    for (const Site &s : sites)
        all += s.name + " " + std::to_string(s.count) + "\n";
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (fd < 0 || write(fd, all.data(), all.size()) != (ssize_t)all.size())
        fprintf(stderr, "emulation: cannot write %s\n", path);
    if (fd >= 0)
        close(fd);
}

/* *state: 2 (index in sites + 1), plus 1 when EMULATION_DROP names the place. */
int emulation_site(int *state, const char *kind, const char *file, int line)
{
    if (!*state) {
        std::string place = std::string(file) + ":" + std::to_string(line);
        const char *drop = getenv("EMULATION_DROP");
        sites.push_back({std::string(kind) + " " + place, 0});
        *state = (int)(2 * sites.size() + (drop && place == drop));
    }
    sites[(size_t)*state / 2 - 1].count++;
    return !(*state & 1);
}

static int waits(const char *kind, const char *file, int line)
{
    return emulation_site(&host_sites[std::string(kind) + file + ":" + std::to_string(line)], kind, file,
                          line);
}

/* ---- entering ---- */

static void open_once(void)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
    no_device = (int)emulation_option("EMULATION_NO_DEVICE", 0);
    work_takes = emulation_option("EMULATION_CLOCK", 0);
    queue_most = emulation_option("EMULATION_QUEUE", 0);
    random_state = ((uint64_t)emulation_option("EMULATION_SEED", 1) + 1) * 0x9e3779b97f4a7c15ull
                   ^ ((uint64_t)emulation_option("OMPI_COMM_WORLD_RANK", 0) << 17);
    for (int i = 0; i < 16; i++)
        emulation_random(2);
    first_thread = pthread_self();
    memory_open();
    atexit(write_sites);
}

Entry::Entry(int anywhere)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
    pthread_mutex_lock(&lock);
    inside++;
    calls++;
    if (emulation_kernel())
        emulation_fail("kernel %s calls the runtime", emulation_kernel());
    if (!anywhere && !chose_device && !pthread_equal(pthread_self(), first_thread))
        emulation_fail("a thread that never called cudaSetDevice calls the runtime: it would open device 0");
    error = no_device ? cudaErrorInsufficientDriver : cudaSuccess;
    if (error)
        last_error = error;
}

Entry::~Entry()
{
    if (!--inside)
        memory_access(0);
    pthread_mutex_unlock(&lock);
}

/* ---- running ---- */

static int can_run(cudaStream_t s)
{
    return !s->queue.empty() && !(s->queue.front().wait && !s->queue.front().wait->done);
}

/* Runs the first item of s. Returns 0 when the item waits for another process. */
static int run_first(cudaStream_t s)
{
    Item &i = s->queue.front();
    if (i.record) {
        i.record->done = 1;
        i.record->when = seconds();
    } else if (i.run) {
        memory_access(1);                  /* until the runtime call that runs this item returns */
        depth++;
        int done = i.run();
        depth--;
        if (!done)
            return 0;
        counted += work_takes;
    }
    s->queue.pop_front();
    s->ran++;
    if (s->closed && s->queue.empty()) {
        for (size_t k = 0; k < streams.size(); k++)
            if (streams[k] == s)
                streams.erase(streams.begin() + (ptrdiff_t)k);
        delete s;
    }
    return 1;
}

/* Runs one item, of the stream with the highest rank that can run. Ranks are drawn again after up to 40
 * items, so that one stream runs far ahead of another. Returns 0 when no item can run. */
static int run_any(void)
{
    if (--until_rank < 0) {
        until_rank = (int)emulation_random(40);
        static const int64_t last = emulation_option("EMULATION_LAST", -1);
        for (size_t i = 0; i < streams.size(); i++)
            streams[i]->rank = (int64_t)i == last ? 0 : 1 + emulation_random(1 << 20);
    }
    std::vector<cudaStream_t> can;
    for (cudaStream_t s : streams)
        if (can_run(s))
            can.push_back(s);
    while (!can.empty()) {
        size_t best = 0;
        for (size_t i = 1; i < can.size(); i++)
            if (can[i]->rank > can[best]->rank)
                best = i;
        if (run_first(can[best]))
            return 1;
        can.erase(can.begin() + (ptrdiff_t)best);
    }
    return 0;
}

/* Runs one item that stream s needs: its first one, or one of the stream that its first item waits for. */
static int run_needed(cudaStream_t s)
{
    while (!s->queue.empty() && !can_run(s))
        s = s->queue.front().wait->stream;
    return !s->queue.empty() && run_first(s);
}

/* Runs items until reached() returns 1. By chance runs only items that stream s needs (s NULL: never),
 * or any. */
static void run_until(cudaStream_t s, const std::function<int()> &reached)
{
    int barely = s && emulation_random(2) == 0;
    for (int idle = 0; !reached();) {
        if ((barely && run_needed(s)) || run_any()) {
            idle = 0;
            continue;
        }
        if (!waits_for_others || depth)
            emulation_fail("a wait that nothing will end");
        int level = inside;
        inside = 0;
        pthread_mutex_unlock(&lock);
        usleep(idle++ < 100 ? 20 : 500);
        pthread_mutex_lock(&lock);
        inside = level;
    }
}

void streams_drain(void)
{
    run_until(nullptr, [] {
        for (cudaStream_t s : streams)
            if (!s->queue.empty())
                return 0;
        return 1;
    });
}

void stream_drain(cudaStream_t s)
{
    uint64_t end = s->added;
    run_until(s, [&] { return s->ran >= end; });
}

void emulation_pass(double s)
{
    Entry e(1);
    streams_drain();
    counted += (int64_t)(1e9 * s);
}

/* Thread that runs items while the host makes no runtime calls. Without it ranks could deadlock: one
 * rank's work may need work of another rank whose host waits outside the runtime. */
static void *keep_going(void *)
{
    for (uint64_t seen = 0;;) {
        usleep(2000);
        pthread_mutex_lock(&lock);
        if (calls == seen && !depth)
            for (int i = 0; i < 64 && run_any(); i++)
                ;
        memory_access(0);
        seen = calls;
        pthread_mutex_unlock(&lock);
    }
    return nullptr;
}

static void check_stream(cudaStream_t s)
{
    for (cudaStream_t i : streams)
        if (i == s && !s->closed)
            return;
    emulation_fail("%p is no open stream (the default stream is not used)", (void *)s);
}

static void add(cudaStream_t s, Item i)
{
    check_stream(s);
    s->queue.push_back(std::move(i));
    s->added++;
    /* haste: for up to 200 items at a time the device keeps pace with the host */
    if (--until_haste < 0) {
        static const int hastes[] = {0, 0, 0, 1, 4, 8};
        until_haste = (int)emulation_random(200);
        haste = hastes[emulation_random(6)];
    }
    if (!depth && emulation_random(8) < (uint64_t)haste)
        run_any();
    if (!depth && queue_most)
        run_until(s, [&] { return (int64_t)s->queue.size() <= queue_most; });
}

void emulation_enqueue(cudaStream_t s, const char *what, std::function<void()> run)
{
    Entry e;
    if (e.error)
        emulation_fail("%s without a device", what);
    add(s, {what, [run] { run(); return 1; }, nullptr, nullptr});
}

void emulation_enqueue_until(cudaStream_t s, const char *what, std::function<int()> run)
{
    Entry e;
    if (e.error)
        emulation_fail("%s without a device", what);
    if (!waits_for_others) {
        pthread_t t;
        if (pthread_create(&t, nullptr, keep_going, nullptr))
            emulation_fail("no thread");
        pthread_detach(t);
        waits_for_others = 1;
    }
    add(s, {what, run, nullptr, nullptr});
}

/* cudaErrorNotReady of a query is also the thread's last error, until cudaGetLastError. */
static cudaError_t not_ready(void) { return last_error = cudaErrorNotReady; }

void copy_in_turn(cudaStream_t s, int way, int ends)
{
    static std::shared_ptr<Record> last[2];
    static const int64_t engines = emulation_option("EMULATION_ENGINES", 0);
    if (!engines)
        return;
    if (!ends && last[way])
        add(s, {"copy engine", nullptr, nullptr, last[way]});
    if (ends) {
        last[way] = std::make_shared<Record>(Record{0, 0, s});
        add(s, {"copy engine", nullptr, last[way], nullptr});
    }
}

/* ---- streams and events ---- */

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    Entry e;
    if (e.error)
        return e.error;
    if (flags != cudaStreamNonBlocking)
        emulation_fail("a stream that waits for the default stream");
    *s = new CUstream_st{};
    streams.push_back(*s);
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    return cudaStreamCreateWithFlags(s, flags);
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    Entry e;
    if (e.error)
        return e.error;
    check_stream(s);
    s->queue.push_back({"end", nullptr, nullptr, nullptr});
    s->added++;
    s->closed = 1;
    return cudaSuccess;
}

extern "C" cudaError_t emulation_stream_synchronize(cudaStream_t s, const char *file, int line)
{
    Entry e;
    if (e.error)
        return e.error;
    check_stream(s);
    if (waits("synchronize", file, line))
        stream_drain(s);
    return cudaSuccess;
}

extern "C" cudaError_t emulation_device_synchronize(const char *file, int line)
{
    Entry e;
    if (e.error)
        return e.error;
    if (waits("synchronize", file, line))
        streams_drain();
    return cudaSuccess;
}

/* A query runs an item: a host that polls makes progress. */
extern "C" cudaError_t cudaStreamQuery(cudaStream_t s)
{
    Entry e;
    if (e.error)
        return e.error;
    check_stream(s);
    if (!s->queue.empty())
        run_any();
    return s->queue.empty() ? cudaSuccess : not_ready();
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    Entry e;
    if (e.error)
        return e.error;
    *event = new CUevent_st{nullptr, !(flags & cudaEventDisableTiming)};
    events[*event] = 1;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

static void check_event(cudaEvent_t e)
{
    if (!events.count(e))
        emulation_fail("%p is no event", (void *)e);
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Entry e;
    if (e.error)
        return e.error;
    check_event(event);
    events.erase(event);
    delete event;
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    Entry e;
    if (e.error)
        return e.error;
    check_event(event);
    event->last = std::make_shared<Record>(Record{0, 0, s});
    add(s, {"record", nullptr, event->last, nullptr});
    return cudaSuccess;
}

extern "C" cudaError_t emulation_stream_wait_event(cudaStream_t s, cudaEvent_t event, unsigned,
                                                   const char *file, int line)
{
    Entry e;
    if (e.error)
        return e.error;
    check_event(event);
    check_stream(s);
    if (waits("wait", file, line) && event->last)
        add(s, {"wait", nullptr, nullptr, event->last});
    return cudaSuccess;
}

extern "C" cudaError_t emulation_event_synchronize(cudaEvent_t event, const char *file, int line)
{
    Entry e;
    if (e.error)
        return e.error;
    check_event(event);
    if (waits("synchronize", file, line) && event->last) {
        std::shared_ptr<Record> r = event->last;
        if (!r->done)
            run_until(r->stream, [&] { return r->done; });
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Entry e;
    if (e.error)
        return e.error;
    check_event(event);
    if (event->last && !event->last->done)
        run_any();
    return !event->last || event->last->done ? cudaSuccess : not_ready();
}

extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    Entry e;
    if (e.error)
        return e.error;
    check_event(start);
    check_event(end);
    if (!start->timed || !end->timed || !start->last || !end->last)
        return cudaErrorInvalidResourceHandle;
    if (!start->last->done || !end->last->done)
        return cudaErrorNotReady;
    *ms = (float)(1e3 * (end->last->when - start->last->when));
    return cudaSuccess;
}

extern "C" cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *ctx)
{
    Entry e;
    if (e.error)
        return e.error;
    emulation_enqueue(s, "host function", [=] { f(ctx); });
    return cudaSuccess;
}

/* ---- the device ---- */

extern "C" cudaError_t cudaGetDeviceCount(int *count)
{
    Entry e;
    if (e.error)
        return e.error;
    *count = (int)emulation_option("EMULATION_DEVICES", 1);
    return cudaSuccess;
}

extern "C" cudaError_t cudaSetDevice(int d)
{
    Entry e(1);
    if (e.error)
        return e.error;
    if (d < 0 || d >= (int)emulation_option("EMULATION_DEVICES", 1))
        return cudaErrorInvalidDevice;
    device = d;
    chose_device = 1;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDevice(int *d)
{
    Entry e;
    *d = device;
    return e.error;
}

/* With EMULATION_DEVICES all processes see the same devices; without it each process has a device of its
 * own. */
extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int d)
{
    Entry e;
    if (e.error)
        return e.error;
    *p = {};
    snprintf(p->name, sizeof p->name, "emulated");
    const char *rank = emulation_option("EMULATION_DEVICES", 0) ? nullptr : getenv("OMPI_COMM_WORLD_RANK");
    snprintf(p->uuid.bytes, sizeof p->uuid.bytes, "%.8s %d", rank ? rank : "", d);
    p->totalGlobalMem = (size_t)emulation_option("EMULATION_MEMORY", (int64_t)4 << 30);
    p->sharedMemPerBlock = 48 * 1024;
    p->sharedMemPerBlockOptin = (size_t)emulation_option("EMULATION_OPTIN_KIB", 227) * 1024;
    p->sharedMemPerMultiprocessor = EMULATION_SHARED;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->multiProcessorCount = (int)emulation_option("EMULATION_SMS", 4);
    p->major = (int)emulation_option("EMULATION_CAPABILITY", 90) / 10;
    p->minor = (int)emulation_option("EMULATION_CAPABILITY", 90) % 10;
    p->l2CacheSize = 16 << 10;         /* small: as many operands as it holds are drawn for each product */
    return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr which, int d)
{
    cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, d);
    if (e)
        return e;
    switch (which) {
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMemoryClockRate: *value = 2250000; break;          /* 3e6 bytes a microsecond */
    case cudaDevAttrGlobalMemoryBusWidth: *value = 6400; break;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    default: return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

extern "C" cudaError_t cudaDriverGetVersion(int *version)
{
    *version = no_device ? 0 : 13000;
    return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

extern "C" cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

extern "C" cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

static const struct { cudaError_t e; const char *name, *text; } errors[] = {
#define ROW(e, text) {e, #e, text}
    ROW(cudaSuccess, "no error"),
    ROW(cudaErrorInvalidValue, "invalid argument"),
    ROW(cudaErrorMemoryAllocation, "out of memory"),
    ROW(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ROW(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    ROW(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ROW(cudaErrorInvalidDevice, "invalid device ordinal"),
    ROW(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ROW(cudaErrorNotReady, "device not ready"),
    ROW(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    ROW(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ROW(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
#undef ROW
};

extern "C" const char *cudaGetErrorName(cudaError_t e)
{
    for (auto &i : errors)
        if (i.e == e)
            return i.name;
    return "cudaErrorUnknown";
}

extern "C" const char *cudaGetErrorString(cudaError_t e)
{
    for (auto &i : errors)
        if (i.e == e)
            return i.text;
    return "unknown error";
}
