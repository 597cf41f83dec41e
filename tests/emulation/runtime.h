/* runtime -- declarations shared by the files of the emulation: see include/emulation.h. */
#ifndef EMULATION_RUNTIME_H
#define EMULATION_RUNTIME_H
#include <emulation.h>

/* Name of the running kernel; NULL: none runs. */
const char *emulation_kernel(void);

/* Memory (memory.cpp). */
void memory_open(void);
void memory_access(int allowed); /* EMULATION_GUARD: allows or forbids access to device memory */
int memory_is_device(const void *p, size_t bytes);
int memory_is_pinned(const void *p, size_t bytes);

int memory_in_space(const void *p); /* bool: of the addresses that device memory may have */

/* Races (races.cpp): what orders the accesses of a kernel. */
void races_launch(int starts);      /* bool: or it has ended */
void races_block(void);             /* a block starts */
void races_barrier(void);           /* of all threads of the block */
void races_some(const unsigned *lanes);     /* [32]: of these lanes of each warp: all or none */
void races_warp(int warp);          /* a __syncwarp of all its lanes */

/* Streams (streams.cpp). */
void streams_drain(void);
void stream_drain(cudaStream_t s);
/* EMULATION_ENGINES: called before (ends 0) and after (ends 1) a copy is enqueued, lets the copy wait
 * for the last one in its direction. way 0: copies to the host; 1: to the device. */
void copy_in_turn(cudaStream_t s, int way, int ends);
/* Every call of the runtime begins with an Entry, which holds the lock until its scope ends. anywhere: a
 * thread may make this call before it has chosen a device. */
struct Entry {
    Entry(int anywhere = 0);
    ~Entry();
    cudaError_t error;                    /* cudaSuccess; otherwise the call fails with this error */
};
int64_t emulation_option(const char *name, int64_t otherwise);
#endif
