/* bench_step CONFIG [key=value ...] -- the executable itself, with an event before and after every op
 * that a step enqueues on the GPU's compute stream. Shows how long each op takes there, and how long the
 * stream is idle before it. The linker wraps cuda_open and cuda_close with those of this file
 * (Makefile).
 *
 * A step lasts from the end of its predecessor's gradients, where the host reads the verdict, to the end
 * of its own. The first BENCH_STEP_SKIPPED (2) steps do not count. The stream is idle when no op and no
 * copy runs: the host was late, or a message was. The two events cost each op about a microsecond on the
 * GPU, which counts as the op's time. When the run ends, writes JSON to the file that BENCH_STEP names,
 * or a table to standard error. */
#include "cuda.h"
#include "machine.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPY_PUT = OPKINDS, COPY_TELL, KINDS };

typedef struct { int kind; cudaEvent_t begin, end; } Span;
typedef struct { int kind; double ms, idle; int64_t calls; } Total;

static Device gpu;
static Span *span;
static int64_t spans, span_room;
static int64_t *told;                  /* [tells] span of each verdict that the host has read */
static int64_t tells;
static int inside;                     /* depth of nested ops; only the outermost op is a span */

static cudaEvent_t mark(Device *d)
{
    cudaEvent_t e;
    CUDA_OK(cudaEventCreate(&e));
    CUDA_OK(cudaEventRecord(e, cuda_stream(d)));
    return e;
}

static void enter(Device *d, int kind)
{
    if (inside++)
        return;
    if (spans == span_room)
        span = xrealloc(span, sizeof *span * (size_t)(span_room = 2 * span_room + 4096));
    span[spans] = (Span){kind, mark(d), NULL};
}

static void leave(Device *d)
{
    if (--inside)
        return;
    span[spans++].end = mark(d);
}

#define X(name, params, names)                       \
    static void timed_##name params           \
    {                                       \
        enter(d, OPKIND_##name);              \
        gpu.name names;           \
        leave(d);                           \
    }
OPS(X)
#undef X

static void timed_put(Device *d, void *dst, const void *src, size_t bytes)
{
    enter(d, COPY_PUT);
    gpu.put(d, dst, src, bytes);
    leave(d);
}

static int64_t timed_read_async(Device *d, void *dst, const void *src, size_t bytes)
{
    enter(d, COPY_TELL);
    int64_t ticket = gpu.read_async(d, dst, src, bytes);
    leave(d);
    told = xrealloc(told, sizeof *told * (size_t)(tells + 1));
    told[tells++] = spans - 1;
    return ticket;
}

static double elapsed(cudaEvent_t a, cudaEvent_t b)
{
    float ms;
    CUDA_OK(cudaEventElapsedTime(&ms, a, b));
    return ms;
}

static int by_time(const void *a, const void *b)
{
    const Total *x = a, *y = b;
    return (x->ms + x->idle < y->ms + y->idle) - (x->ms + x->idle > y->ms + y->idle);
}

static const char *kind_name(int kind)
{
    return kind == COPY_PUT ? "copy to the GPU" : kind == COPY_TELL ? "copy to the host" : op_name[kind];
}

static void print(FILE *f, int json, const Total *t, int steps, double step)
{
    double busy = 0;
    for (int i = 0; i < KINDS; i++)
        busy += t[i].ms / steps;
    if (json)
        fprintf(f, "{\"steps\": %d, \"step_ms\": %.6g, \"idle_share\": %.6g, \"ops\": [", steps, step,
                1 - busy / step);
    else
        fprintf(f, "%d steps of %.3f ms, idle %.2f %% of it\n| op | calls | ms | idle before, ms | share |\n"
                "|---|---|---|---|---|\n", steps, step, 100 * (1 - busy / step));
    for (int i = 0; i < KINDS && t[i].calls; i++)
        fprintf(
            f,
            json ? "%s{\"name\": \"%s\", \"calls\": %.6g, \"ms\": %.6g, \"idle_ms\": %.6g, \"share\": %.6g}"
                 : "%s| %s | %.6g | %.4g | %.4g | %.4f |\n",
            json && i ? ", " : "", kind_name(t[i].kind), (double)t[i].calls / steps, t[i].ms / steps,
            t[i].idle / steps, t[i].ms / steps / step);
    fprintf(f, json ? "]}\n" : "");
}

static void report(void)
{
    Total total[KINDS] = {0};
    const char *path = getenv("BENCH_STEP"), *first_ones = getenv("BENCH_STEP_SKIPPED");
    int skipped = first_ones ? atoi(first_ones) : 2, steps = (int)tells - skipped;
    if (skipped < 1)
        die(EXIT_CONFIG, "bench-step", "BENCH_STEP_SKIPPED is %s; change: at least 1", first_ones);
    if (steps < 1)
        die(EXIT_CONFIG, "bench-step",
            "%lld steps: the first %d do not count; change: train_iters of at least %d", (long long)tells,
            skipped, skipped + 1);
    const Span *first = &span[told[skipped - 1]], *last = &span[told[tells - 1]];
    for (int i = 0; i < KINDS; i++)
        total[i].kind = i;
    for (const Span *s = first + 1; s <= last; s++) {
        total[s->kind].calls++;
        total[s->kind].ms += elapsed(s->begin, s->end);
        total[s->kind].idle += elapsed(s[-1].end, s->begin);
    }
    qsort(total, KINDS, sizeof *total, by_time);
    FILE *f = path ? fopen(path, "w") : stderr;
    if (!f)
        die(EXIT_RESOURCE, "bench-step", "cannot write %s; change: BENCH_STEP", path);
    print(f, path != NULL, total, steps, elapsed(first->end, last->end) / steps);
    if (path && fclose(f))
        die(EXIT_RESOURCE, "bench-step", "cannot write %s; change: free space", path);
}

void __real_cuda_open(Device *d, Dtype real, int index);
void __wrap_cuda_open(Device *d, Dtype real, int index);
void __real_cuda_close(Device *d);
void __wrap_cuda_close(Device *d);

void __wrap_cuda_open(Device *d, Dtype real, int index)
{
    __real_cuda_open(d, real, index);
    gpu = *d;
    d->put = timed_put;
    d->read_async = timed_read_async;
#define X(name, params, names) d->name = timed_##name;
    OPS(X)
#undef X
}

void __wrap_cuda_close(Device *d)
{
    d->sync(d);
    report();
    for (int64_t i = 0; i < spans; i++) {
        CUDA_OK(cudaEventDestroy(span[i].begin));
        CUDA_OK(cudaEventDestroy(span[i].end));
    }
    free(span);
    free(told);
    __real_cuda_close(d);
}
