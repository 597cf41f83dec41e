/* kinds -- the rows of SCHEDULES as data, and the rules that they make */
#include "kinds.h"
#include <string.h>

const ScheduleInfo schedule_info[SCHEDULE_KINDS] = {
#define X(id, name, chunks, most, place, backward, least, ...)                                               \
    {name, chunks, most, PLACE_##place, BACKWARD_##backward, least},
    ALL_SCHEDULES(X)
#undef X
};

const char *schedule_name(ScheduleKind kind) { return schedule_info[kind].name; }

ScheduleKind schedule_find(const char *name)
{
    int k = 0;
    while (k < SCHEDULE_CHOICES && strcmp(schedule_info[k].name, name))
        k++;
    return (ScheduleKind)k;
}

int schedule_chunks(ScheduleKind kind)
{
    const ScheduleInfo *row = &schedule_info[kind];
    return row->chunks == row->most ? row->most : 0;
}

int schedule_leaves(int64_t p, int64_t m, int64_t group) { return m % group && m % group < p; }

const char *schedule_least(const ScheduleInfo *row)
{
    static const char *const word[] = {"no", "one", "two", "three", "four"};
    return word[row->least];
}

unsigned schedule_breaks(ScheduleKind kind, int64_t p, int64_t v, int64_t m, int64_t group)
{
    const ScheduleInfo *row = &schedule_info[kind];
    unsigned broken = (v < row->chunks || v > row->most ? BREAKS_CHUNKS : 0) |
                      (m < row->least * p ? BREAKS_LEAST : 0);
    if (kind == SCHEDULE_INTERLEAVED && p > 1 && (group < p || group > m))
        broken |= BREAKS_GROUP;
    else if (kind == SCHEDULE_INTERLEAVED && p > 1 && schedule_leaves(p, m, group))
        broken |= BREAKS_REST;
    return broken;
}
