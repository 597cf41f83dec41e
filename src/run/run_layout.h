/* run_layout -- inside run: the steps of its start, in their order. */
#ifndef RUN_LAYOUT_H
#define RUN_LAYOUT_H
#include "run.h"

GridSpec run_spec(const Config *c);

/* The parameter table, with the groups of r->grid. */
void run_table_open(Run *r);
/* Units and instruction lists of this rank, from the table; all lists of all ranks are checked by rank 0.
 * made: NULL, or where they come from. */
void lists_open(Run *r, const StepLists *made);
/* The units alone, for a table that was opened again. */
void lists_units(Run *r);
void lists_close(Run *r);
/* Whether the schedule splits the backward in D and W. */
int lists_split(const Config *c, const PipeShape *s);

/* The device of this rank, and the groups of r->grid over its memory. Collective. Dies as cuda_open and the
 * groups do. */
void run_device_open(Run *r);
void run_device_close(Run *r);
/* Ranks that share this one's device. */
int run_device_ranks(const Run *r);
/* Bytes that the device would take for itself. */
size_t run_device_workspace(const Run *r);

/* On a GPU: chooses what attention computes with, and takes what that needs of its memory; r->gpu.attention
 * says it. With attention_backend fused and without cuDNN's kernels for all of it dies with EXIT_RESOURCE.
 * Collective. */
void run_attention(Run *r);
/* Bytes that attention takes, when it is cuDNN. */
size_t run_attention_bytes(const Run *r);

/* Keeps copies of FP8 weights of as many layers as there is room for on every rank: fills r->plan.fp8_recast,
 * and bytes and memory of the plan anew where that is not all. Dies with EXIT_RESOURCE, and three changes
 * that would help, when device or host have less memory left than the plan of the ranks that share it.
 * Collective. */
void run_fit(Run *r);

/* Maps the arenas of the plan's sizes; the groups may know of them. */
void run_device_arenas(Run *r);

/* On a GPU: the algorithms of its matrix products, from the file of the run, or timed in the arena, which is
 * empty still, and written to the file. */
void run_tune(Run *r, const char *run_dir);
/* With attention_backend auto: of cuDNN and our own kernels the faster for forwards, and for backwards, of
 * all ranks' time; says so. As run_tune: products of cublaslt_tune 1 are not timed either. Collective. */
void run_attention_tune(Run *r);

/* Takes all memory of the run from arenas that may be counting, and fills r->plan.memory. */
void run_layout_take(Run *r, Device *dev, RunArenas *from, const char *run_dir);
void run_layout_give(Run *r);
#endif
