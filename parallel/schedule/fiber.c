/* fiber -- a second stack on the same thread, for two functions that run by turns */
#define _GNU_SOURCE
#include "fiber.h"
#include "base.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define LEAVE(fake, bottom, size) __sanitizer_start_switch_fiber(fake, bottom, size)
#define ENTER(fake, bottom, size) __sanitizer_finish_switch_fiber(fake, bottom, size)
#else
#define LEAVE(fake, bottom, size) ((void)(fake), (void)(bottom), (void)(size))
#define ENTER(fake, bottom, size) ((void)(fake), (void)(bottom), (void)(size))
#endif

#ifdef __SANITIZE_THREAD__         /* the thread sanitizer takes each stack for a thread */
#include <sanitizer/tsan_interface.h>
#define THREAD_HERE() __tsan_get_current_fiber()
#define THREAD_OPEN() __tsan_create_fiber(0)
#define THREAD_ENTER(thread) __tsan_switch_to_fiber(thread, 0)
#define THREAD_CLOSE(thread) __tsan_destroy_fiber(thread)
#else
#define THREAD_HERE() NULL
#define THREAD_OPEN() NULL
#define THREAD_ENTER(thread) ((void)(thread))
#define THREAD_CLOSE(thread) ((void)(thread))
#endif

#define STACK (8 << 20)            /* bytes, as the main thread usually has; untouched pages cost nothing */

enum { HERE, THERE };

/* One of the two. */
typedef struct {
    ucontext_t at;             /* where it goes on */
    void (*run)(void *ctx);
    int done;                  /* bool: it has returned */
    const void *bottom;        /* its stack, for the address sanitizer */
    size_t size;
    void *fake;                /* of the address sanitizer */
    void *thread;              /* of the thread sanitizer */
} Side;

struct Fiber {
    char *stack;               /* [STACK], its first page is the guard */
    Side side[2];
    int now;                   /* HERE or THERE: the one that runs */
    int on;                    /* bool: inside fiber_run */
    void (*turned)(void *ctx);
    void *ctx;
    double since, *took;       /* since: when the present turn began */
};

Fiber *fiber_open(void)
{
    Fiber *f = xcalloc(1, sizeof *f);
    f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED || mprotect(f->stack, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE))
        die(EXIT_RESOURCE, "stack", "a second stack of %d MiB cannot be mapped; change: more memory, or "
            "overlap_moe_expert_parallel_comm=false", STACK >> 20);
    return f;
}

void fiber_close(Fiber *f)
{
    if (!f)
        return;
    munmap(f->stack, STACK);
    free(f);
}

/* Goes on with the other one; returns when the turn is back. */
static void change(Fiber *f)
{
    Side *mine = &f->side[f->now], *other = &f->side[!f->now];
    int leaves = f->now == THERE && mine->done;        /* this stack is not used again */
    f->took[f->now] += now() - f->since;
    f->now = !f->now;
    f->turned(f->ctx);
    f->since = now();
    LEAVE(leaves ? NULL : &mine->fake, other->bottom, other->size);
    THREAD_ENTER(other->thread);
    BUG_ON(swapcontext(&mine->at, &other->at));
    ENTER(mine->fake, &other->bottom, &other->size);
}

/* The first function on the fiber's stack. makecontext passes ints only. */
static void begin(unsigned high, unsigned low)
{
    Fiber *f = (Fiber *)((uintptr_t)high << 32 | low);
    ENTER(NULL, &f->side[HERE].bottom, &f->side[HERE].size);
    f->side[THERE].run(f->ctx);
    f->side[THERE].done = 1;
    change(f);                         /* does not come back */
}

void fiber_turn(Fiber *f)
{
    if (f->on && !f->side[!f->now].done)
        change(f);
}

void fiber_run(Fiber *f, void (*here)(void *ctx), void (*there)(void *ctx), void (*turned)(void *ctx),
               void *ctx, double took[2])
{
    uint64_t self = (uintptr_t)f;
    Side *s = &f->side[THERE];
    BUG_ON(f->on);
    took[HERE] = took[THERE] = 0;
    f->side[HERE] = (Side){.run = here, .thread = THREAD_HERE()};
    *s = (Side){.run = there, .bottom = f->stack, .size = STACK, .thread = THREAD_OPEN()};
    BUG_ON(getcontext(&s->at));
    s->at.uc_stack.ss_sp = f->stack;
    s->at.uc_stack.ss_size = STACK;
    s->at.uc_link = NULL;
    makecontext(&s->at, (void (*)(void))(uintptr_t)begin, 2, (unsigned)(self >> 32), (unsigned)self);
    f->now = HERE;
    f->on = 1;
    f->turned = turned;
    f->ctx = ctx;
    f->took = took;
    f->since = now();
    here(ctx);
    f->side[HERE].done = 1;
    while (!s->done)
        change(f);
    took[HERE] += now() - f->since;
    THREAD_CLOSE(s->thread);
    f->on = 0;
}
