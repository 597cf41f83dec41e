/* custom -- compute lists as text, in the syntax of PyTorch's pipeline schedules
 * (torch.distributed.pipelining, compute only): one line a rank, actions separated by commas.
 *     0F0,0F1,0I0,0W0,0B1     an action: virtual stage, letter, microbatch
 *     1F0,1I0,1F1,1W0,1B1     F forward, B backward, I its half for the input (D here), W for the weights
 *
 * The k-th line that has actions is rank k of the pipeline. Blanks, empty cells and empty lines mean nothing.
 * With p lines and v * p stages every line has v stages: in a loop (stage s on rank s mod p), or for v = 2 as
 * a V (stages s and 2p - 1 - s on rank s); the stages in the file say which. Every stage has every microbatch
 * once forward and once backward, in order, in each of F, I or B, W. This program adds messages, gathers and
 * reductions itself: lists that name them are refused, and so are overlapped pairs. */
#ifndef CUSTOM_H
#define CUSTOM_H
#include "schedule.h"
#include <stdio.h>

enum { CUSTOM_BYTES_MOST = 256 << 20 };    /* of a file of lists */

typedef struct CustomLists {
    int p, v, m, vee;
    int split;                 /* bool: some backward stands in halves */
    InstrList *list;           /* [p] */
    Instr *all;                /* memory of the lists */
} CustomLists;

/* Called for each mistake; line and col count from 1. */
typedef void CustomMistake(void *ctx, int line, int col, const char *what);

/* Reads lists for p ranks, then lowers and checks them with equal costs, so that waiting for ever is a
 * mistake too. 1; 0: `say` was called for every mistake, but only the first of a line where others may follow
 * from it, and there is nothing to close.
 *   text     in   [size]
 *   p        in           ranks of the pipeline
 *   ctx      in           given to say */
int custom_read(CustomLists *c, const char *text, size_t size, int p, CustomMistake *say, void *ctx);
void custom_close(CustomLists *c);

/* Writes the compute of all ranks of a training step as such text. */
void custom_write(FILE *f, const ScheduleSet *set);
#endif
