/* runtime -- what the files of the emulation share: see include/emulation.h. */
#ifndef EMULATION_RUNTIME_H
#define EMULATION_RUNTIME_H
#include <emulation.h>

/* The kernel that runs, or NULL. */
const char *emulation_kernel(void);

/* Memory (memory.cpp). `lost` says what an address that faulted is, in words, or returns NULL. */
void memory_open(void);
void memory_access(int allowed); /* whether device memory may be touched now, where EMULATION_GUARD asks */
int memory_is_device(const void *p, size_t bytes);
int memory_is_pinned(const void *p, size_t bytes);

/* Streams (streams.cpp). */
void streams_drain(void);
void stream_drain(cudaStream_t s);
/* Around a copy off the device (way 0) or to it (1), where EMULATION_ENGINES asks: it waits for the last of
 * its way. */
void copy_in_turn(cudaStream_t s, int way, int ends);
/* What every call of the runtime begins with: the lock, kept till the end of the scope; whether there is a
 * device. anywhere: a thread may make this call before it has chosen a device. */
struct Entry {
    Entry(int anywhere = 0);
    ~Entry();
    cudaError_t error;                    /* cudaSuccess, or why this call cannot be */
};
int64_t emulation_option(const char *name, int64_t otherwise);
#endif
