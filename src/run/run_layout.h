/* run_layout -- inside run: lists, sizes and memory. Only run.c and run_layout.c include it. */
#ifndef RUN_LAYOUT_H
#define RUN_LAYOUT_H
#include "run.h"

extern const char *const isa_names[];

GridSpec run_spec(const Config *c);

/* The parameter table, with the groups of r->grid. */
void table_open(Run *r);
/* Units and instruction lists of this rank, from the table; all lists of all ranks are checked by rank 0.
 * made: NULL, or where they come from. */
void lists_open(Run *r, const StepLists *made);
/* The units alone, for a table that was opened again. */
void lists_units(Run *r);
void lists_close(Run *r);
/* Whether the schedule splits the backward in D and W. */
int lists_split(const Config *c, const PipeShape *s);

/* Opens table and lists over groups that only count, rehearses every list, and finds every size: r->memory,
 * and the slots and scratch of the model. */
void layout_count(Run *r, const Config *cfg, RunUse use, int64_t kv_length, int rank, const Rehearsal *over,
                  ModelBytes *bytes);
/* Takes all memory of the run; the arenas may be counting. */
void layout_take(Run *r, Device *dev, RunArenas *from, const char *run_dir, const ModelBytes *bytes);
void layout_give(Run *r);
/* On a GPU: chooses what attention computes with, and takes what that needs of its memory; r->attention says
 * it. With attention_backend fused and without cuDNN's kernels for all of it dies with EXIT_RESOURCE.
 * Collective. */
void run_attention(Run *r);
/* With attention_backend auto: of cuDNN and our own kernels the faster for forwards, and for backwards, of
 * all ranks' time; says so. As run_tune: products of cublaslt_tune 1 are not timed either. Collective. */
void run_attention_tune(Run *r, void *memory, size_t bytes);
/* What that takes, when it is cuDNN. */
size_t run_attention_bytes(const Run *r);

/* On a GPU: its matrix products' algorithms, from the file of the run or timed and written there. memory: the
 * arena's, before anything lies in it. */
void run_tune(Run *r, const char *run_dir, void *memory, size_t bytes);
/* The device of this rank, and the groups of r->grid over its memory. Collective. Dies as cuda_open and the
 * groups do. */
void run_device_open(Run *r);
/* Ranks that share this one's device. */
int run_device_ranks(const Run *r);
/* Keeps copies of FP8 weights of as many layers as there is room for on every rank: fills r->fp8_recast, and
 * r->memory and `bytes` anew where that is not all. Dies with EXIT_RESOURCE, and three changes that would
 * help, when device or host have less memory left than the plan of the ranks that share it. Between opening
 * the device and taking memory. Collective. */
void run_fit(Run *r, ModelBytes *bytes);
/* Tells the groups of r->arena. */
void run_device_memory(Run *r);
void run_device_close(Run *r);
/* What the device would take for itself. */
size_t run_device_workspace(const Run *r);
/* Adds to r->memory what device and transport take for themselves. */
void layout_workspace(Run *r);
#endif
