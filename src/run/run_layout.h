/* run_layout -- the steps of run_open, in their order; only src/run includes this. */
#ifndef RUN_LAYOUT_H
#define RUN_LAYOUT_H
#include "run.h"

/* The grid that a configuration describes. */
GridSpec run_spec(const Config *c);

/* Opens the parameter table with the groups of r->grid. */
void run_table_open(Run *r);
/* Makes units and instruction lists of this rank from the table. Rank 0 checks the lists of all ranks.
 *   made  in  lists of all ranks, checked before; NULL: made here */
void lists_open(Run *r, const StepLists *made);
/* Sets the units alone, for a table that was opened again. */
void lists_units(Run *r);
void lists_close(Run *r);
/* Whether the schedule splits the backward in D and W. */
int lists_split(const Config *c, const PipeShape *s);

/* Opens the device of this rank, and the groups of r->grid over its memory. Dies as cuda_open and the
 * groups do. Collective. */
void run_device_open(Run *r);
void run_device_close(Run *r);
/* Dies with EXIT_CONFIG unless the CPUs of all ranks compute the same bits; warns of other GPUs, and of ranks
 * with fewer threads. Collective. */
void run_alike(Run *r);
/* Threads of this rank's CPU. */
int run_threads(const Run *r);
/* Ranks that share this rank's device, itself included. */
int run_device_ranks(const Run *r);
/* Bytes that the device would take for itself. */
size_t run_device_workspace(const Run *r);

/* On a GPU: chooses the kernels of attention, reserves their memory, and describes the choice in
 * r->gpu.attention. Dies with EXIT_RESOURCE when attention_backend is fused and cuDNN lacks a kernel for
 * one of the shapes. Collective. */
void run_attention(Run *r);
/* Bytes that cuDNN's attention takes; 0 where cuDNN is not used. */
size_t run_attention_bytes(const Run *r);

/* Bytes of the device that this rank needs once it is open, reserve included. An open GPU has taken its
 * workspace already. */
int64_t run_need(const Run *r);
/* room.c: chooses slices of logits and copies of FP8 weights for `bytes` of the device, and plans anew where
 * there is less room than the plan takes. Collective. */
void run_room(Run *r, int64_t bytes);
/* Checks that the plan fits, after run_room. Dies with EXIT_RESOURCE, and names three changes that would
 * help, when device or host have less memory left than the ranks that share it need. Collective. */
void run_fit(Run *r);

/* Maps the arenas in the plan's sizes and registers them with the groups that need that (NCCL). */
void run_device_arenas(Run *r);

/* On a GPU: reads the algorithms of the matrix products from the run's file, times those that are
 * missing in the arena, which is still empty, and writes them to the file. */
void run_tune(Run *r, const char *run_dir);
/* With attention_backend auto: times cuDNN's kernels and our own over all ranks, and takes the faster
 * ones for the forward, and for the backward. Adds the times to r->gpu.attention. Times nothing with
 * cublaslt_tune 1. Collective. */
void run_attention_tune(Run *r);

/* Takes all memory of the run from arenas, which may only count, and fills r->plan.memory. */
void run_layout_take(Run *r, Device *dev, RunArenas *from, const char *run_dir);
void run_layout_give(Run *r);

/* run_routers.c: room for the statistics of open steps, from `host`, which may only count; their copy at the
 * end of a step, which the device ends before the verdict; what run_routers returns, of open step `at`. */
void routers_open(Run *r, Arena *host);
void routers_close(Run *r);
void routers_keep(Run *r);
void routers_collect(Run *r, int at);

/* sdc.c: memory of the hashes, from `run`, which may only count. sdc_verify, before an update: dies unless
 * all that sdc_seal has hashed is unchanged; does nothing where that was not called since the last update.
 * sdc_seal, after an update: compares replicas, and keeps the hashes. Both wait for the device and are
 * collective. */
void sdc_open(Run *r, Arena *run);
void sdc_close(Run *r);
void sdc_verify(Run *r);
void sdc_seal(Run *r);

/* reference.c, with log_reference: memory of the reference, from `run`, which may only count; its numbers. */
void reference_open(Run *r, Arena *run);
void reference_begin(Run *r);

/* rerun.c, with sdc_rerun: memory of the hashes, from `run`, which may only count. rerun_first runs the step
 * that comes without its update, and has what follows recorded until rerun_pause, before gradients are
 * finished; rerun_compare dies with EXIT_TRANSIENT or EXIT_PERSISTENT where they disagree,
 * and does nothing without a rerun_first. Collective, but for rerun_pause. */
void rerun_open(Run *r, Device *dev, Arena *run);
void rerun_close(Run *r);
void rerun_first(Run *r);
void rerun_pause(Run *r);
void rerun_compare(Run *r);
#endif
