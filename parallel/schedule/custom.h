/* custom -- compute lists as text: one line a rank, actions between commas, in the syntax of PyTorch's
 * pipeline schedules (torch.distributed.pipelining, compute only).
 *     0F0,0F1,0I0,0W0,0B1     an action: virtual stage, letter, microbatch
 *     1F0,1I0,1F1,1W0,1B1     F forward, B backward, I its half for the input (D here), W that for the
 *                             weights
 *
 * Line k of those that have actions is rank k of the pipeline. Blanks, empty cells and empty lines mean
 * nothing. With p lines and v * p stages every line has v of them, in a loop (stage s on rank s mod p), or
 * for v = 2 as a V (stage s on rank s, stage 2p - 1 - s there too); the file's own stages say which. Every
 * stage has every microbatch once forward and once backward, in order, in each of F, I or B, W. Messages,
 * parameters gathered and gradients reduced are this program's to put in: lists that name them are refused,
 * and so are overlapped pairs. */
#ifndef CUSTOM_H
#define CUSTOM_H
#include "schedule.h"
#include <stdio.h>

typedef struct CustomLists {
    int p, v, m, vee;
    int split;                 /* some backward stands in halves */
    InstrList *list;           /* [p] */
    Instr *all;                /* their memory */
} CustomLists;

/* Says what is wrong at a place of the text, counted from 1. */
typedef void CustomMistake(void *ctx, int line, int col, const char *what);

/* Reads lists for p ranks, and lowers and checks them once with equal costs: what waits for ever is a mistake
 * too. 1; or 0 with every mistake said, the first one of each line where others follow from it, and nothing
 * to close. */
int custom_read(CustomLists *c, const char *text, size_t size, int p, CustomMistake *say, void *ctx);
void custom_close(CustomLists *c);

/* The compute of all ranks of a training step as such text. */
void custom_write(FILE *f, const ScheduleSet *set);
#endif
