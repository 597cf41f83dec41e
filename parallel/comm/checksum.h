/* checksum -- hashes that travel with messages. A piece of an operation with `checked` has a hash, which its
 * writer takes from the bytes that it was given. Each reader hashes what has arrived, before the result of
 * the operation is seen: the copy, or a slot after it was added, so that no change before that is missed. */
#ifndef CHECKSUM_H
#define CHECKSUM_H
#include "engine.h"

/* The hash of a piece; 0: the operation is not checked. */
uint64_t piece_sum(const Request *r, const void *p, size_t bytes);
/* Ends the job if the operation is checked and a piece that has arrived does not have the hash.
 *   from     in                world rank that wrote the piece */
void piece_check(const Request *r, const void *p, size_t bytes, uint64_t sum, int from);
#endif
