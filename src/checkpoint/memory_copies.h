/* memory_copies -- checkpoints in the memory of the hosts: memory_save_interval.
 *
 * scripts/launch --restarts makes a folder in a memory file system, names it in GRIDIRON_MEMORY and removes
 * it at the end. It outlives every rank. A second Saver writes there what checkpoint.h describes, always from
 * a snapshot, and keeps the newest MEMORY_KEPT copies; one more is there while it is written. The folder has
 * the form of a run directory, so a start loads a copy as it loads a checkpoint: each block against its hash,
 * in any layout. No copy is made while a save to the disk is under way (train.c), so that the disk has every
 * save that was due before a copy; a start from a copy whose own iteration is to be saved saves it.
 *
 * On one host the folder outlives every process. With several, each rank's shards also go to a rank of the
 * next host, in rounds between steps, so that a host that is lost takes no shard with it; the manifest is
 * committed on each host once all shards are there. Before a load every host gets the shards it lacks. */
#ifndef MEMORY_COPIES_H
#define MEMORY_COPIES_H
#include "comm.h"
#include "file.h"

#define MEMORY_KEPT 2

/* This host's folder; NULL: the launcher has made none. With GRIDIRON_RANKS_PER_HOST each pretended host has
 * its own in it. Local. */
const char *memory_folder(void);

/* Iterations of the copies on any host, newest first, at most MEMORY_LISTED. Returns how many. Collective. */
#define MEMORY_LISTED 8
int memory_list(int64_t iteration[MEMORY_LISTED], Comm *all);

char *memory_copy(int64_t iteration);   /* the folder of a copy on this host, from malloc */
int memory_holds(const char *dir);      /* whether dir is the folder of a copy */

/* Deletes the copies of iterations after `iteration`: the run goes on from there. Collective; dies with
 * EXIT_RESOURCE. */
void memory_forget(int64_t iteration, Comm *all);

/* Makes this host's folder, for this user alone, where the launcher has not. Returns 1, or 0 and a reason. */
int memory_make(char why[WHY]);

/* Gives every host the copy of `iteration` whole: manifest and shards come from hosts that have them. A
 * shard that nobody has stays away. Collective; returns 1, or 0 and a reason on a rank that failed. */
int peers_fetch(int64_t iteration, Comm *all, char why[WHY]);

/* Bytes of this host's memory file system that copies may take: free ones, and what its copies have.
 * Local. */
int64_t memory_room(void);
#endif
