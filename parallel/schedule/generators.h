/* generators -- between the files that write compute lists: generate_X for every row of SCHEDULES. out[p]:
 * lists without instructions, with room for all. */
#ifndef GENERATORS_H
#define GENERATORS_H
#include "schedule.h"

#define X(id, name, chunks, most, place, backward, least, generator, closed)                                 \
    void generate_##generator(const PipeShape *s, InstrList *out);
ALL_SCHEDULES(X)
#undef X
#endif
