/* listed -- many arrays in one launch. A list with an entry for each array is part of the kernel's
 * argument, which is in constant memory. Entry i has the blocks from its member `first` on, up to the
 * next entry's. */
#ifndef LISTED_CUH
#define LISTED_CUH
#include "common.cuh"

enum { LISTED = 256 };         /* most entries of up to 96 bytes: a launch takes 32764 bytes of arguments */

/* Returns the entry that block b belongs to: the last one whose `first` is at most b. */
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
