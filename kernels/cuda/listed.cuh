/* listed -- many arrays in one launch: what the kernel needs to know of each is part of its argument, which
 * lies in constant memory. Blocks go over the arrays in turn; entry i's first is its `first`. */
#ifndef LISTED_CUH
#define LISTED_CUH
#include "common.cuh"

enum { LISTED = 256 };         /* of up to 96 bytes: a launch takes 32764 bytes of arguments */

/* The entry that block `b` belongs to: the last whose first block is not above it. All threads of a block
 * agree. */
template <class T> __device__ __forceinline__ int listed(const T *entry, int count, int64_t b)
{
    int low = 0;
    for (int high = count; high - low > 1;) {
        int middle = (low + high) / 2;
        if (entry[middle].first <= b)
            low = middle;
        else
            high = middle;
    }
    return low;
}
#endif
