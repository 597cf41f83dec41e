/* vee -- orders for two chunks a rank, placed as a V, where F, D and W take unequal times or messages take
 * time. Private to the generators of zb-v, v-half and v-min.
 *
 * Each of these schedules has several orders: that of equal times, the published algorithm's, and more that
 * have the same F and D, and W in other places. The shortest step wins among those that have no higher
 * bubble rate than the published order and hold no more on the fullest rank. */
#ifndef VEE_H
#define VEE_H
#include "schedule.h"

typedef struct {
    const PipeShape *s;
    InstrList *best;           /* [p] the caller's */
    InstrList *trial;          /* [p] room for an order that is offered next */
    Instr *all;                /* memory of `trial` */
    double makespan, rate;     /* of `best` */
    double rate_most;          /* no order may have a higher rate, */
    double peak_most;          /* nor hold more on a rank */
} Vee;

/* Whether other orders can be better than that of equal times: times differ, or messages take time. */
int vee_uneven(const PipeShape *s);

/* Whether trying many orders takes less than a second. Larger pipelines take the published order or that of
 * equal times. */
int vee_small(const PipeShape *s);

/* best  in  [p] an order that holds; stays the caller's and is replaced by better ones */
void vee_open(Vee *v, const PipeShape *s, InstrList *best);
void vee_close(Vee *v);

/* Makes `trial` empty. */
void vee_clear(Vee *v);

/* Takes `trial` for the published order: it bounds what follows, and becomes the best if it is shorter than
 * the best or if that breaks a bound. */
void vee_publish(Vee *v);

/* Takes `trial` if its step is shorter than the best one's and it keeps within the bounds. */
void vee_offer(Vee *v);

/* Offers the F and D of `order`, which holds, with W in other places, if the pipeline is small. Leaves
 * `trial` undefined.
 *   order  in  [p] may be `trial` or `best` */
void vee_refill(Vee *v, const InstrList *order);

/* The order of equal times (generators.c). */
void generate_zb_v_equal(const PipeShape *s, InstrList *out);
#endif
