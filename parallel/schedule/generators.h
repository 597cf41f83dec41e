/* generators -- between the files that write compute lists. out[p]: lists without instructions, with room for
 * all. */
#ifndef GENERATORS_H
#define GENERATORS_H
#include "schedule.h"

void generate_v_half(const PipeShape *s, InstrList *out);
void generate_v_min(const PipeShape *s, InstrList *out);
void generate_zb_auto(const PipeShape *s, InstrList *out);
#endif
