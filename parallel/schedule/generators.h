/* generators -- generate_X of every row of SCHEDULES, which the files that write compute lists define;
 * contract as schedule_generate. */
#ifndef GENERATORS_H
#define GENERATORS_H
#include "schedule.h"

#define X(id, name, chunks, most, place, backward, least, generator, closed)                                 \
    void generate_##generator(const PipeShape *s, InstrList *out);
ALL_SCHEDULES(X)
#undef X
#endif
