/* closed_form -- the bubble that a schedule's paper says it has. */
#ifndef CLOSED_FORM_H
#define CLOSED_FORM_H
#include "schedule.h"
#include <math.h>

/* Bubbles as in Simulation, shares of the time; NAN: not known. */
typedef struct { double rate, step_rate; } Rates;
#define NO_RATES ((Rates){NAN, NAN})

/* The bubble by the formula of the schedule's row, if all stages take equal times (F = D = W too where the
 * backward is split) and messages take none; else NO_RATES. */
Rates closed_form(const PipeShape *s);
#endif
