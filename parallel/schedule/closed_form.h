/* closed_form -- the bubble that a schedule's paper says it has. */
#ifndef CLOSED_FORM_H
#define CLOSED_FORM_H
#include "schedule.h"
#include <math.h>

/* Shares of the time; NAN: not known. As in Simulation. */
typedef struct { double rate, step_rate; } Rates;
#define NO_RATES ((Rates){NAN, NAN})

/* The bubble of a pipeline whose stages are equal (with the backward split: F = D = W too) and whose messages
 * take no time, by the formula of its schedule's row; NO_RATES for everything else. */
Rates closed_form(const PipeShape *s);
#endif
