/* checksum -- hashes that travel with messages */
#include "checksum.h"
#include "group.h"
#include <xxhash.h>

uint64_t piece_sum(const Request *r, const void *p, size_t bytes)
{
    return r->checked ? XXH3_64bits(p, bytes) : 0;
}

void piece_check(const Request *r, const void *p, size_t bytes, uint64_t sum, int from)
{
    const Group *g = r->group;
    if (!bytes || piece_sum(r, p, bytes) == sum)
        return;
    die(EXIT_COMM, "message", "group %s, operation %lld, %s: a piece of %lld bytes from rank %d to rank %d "
        "has changed on its way; nothing of it is used; change: start again with load=latest, and test "
        "memory and network of a host that is named again", g->name, (long long)r->number,
        comm_kind_name[r->kind], (long long)bytes, from, g->world[g->rank]);
}
