/* fiber -- two functions that run by turns on one thread, each on a stack of its own. One has the caller's
 * stack, the other that of the fiber. All functions are local. */
#ifndef FIBER_H
#define FIBER_H

typedef struct Fiber Fiber;

/* Maps a stack with a guard page at its end. */
Fiber *fiber_open(void);
void fiber_close(Fiber *f);

/* Runs both functions to their ends. here(ctx) begins, on the caller's stack; there(ctx) has the fiber's.
 *   turned  in         called with ctx at every change between the two, before the other one goes on
 *   took    out  [2]   s that `here` and `there` ran, the turns of the other one left out */
void fiber_run(Fiber *f, void (*here)(void *ctx), void (*there)(void *ctx), void (*turned)(void *ctx),
               void *ctx, double took[2]);

/* Called by one of the two: the other one runs until it calls fiber_turn itself or returns. Returns at once
 * when nothing runs, or the other one is through. */
void fiber_turn(Fiber *f);
#endif
