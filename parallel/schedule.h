/* schedule -- what a rank does in one step, as a list of instructions.
 *
 * A generator writes compute only: F, B (or its halves D and W), by chunk and microbatch, in the order a rank wants.
 * Lowering adds what happens between: a part's REDUCE when its gradients are final, STEP at the end. With one rank there
 * are no messages, so the list is also the plain training loop: F0 B0 F1 B1 ... R S. Forward-only lists serve evaluation.
 * A chunk's microbatches run forward and backward in order, so slot = microbatch mod slots. */
#ifndef SCHEDULE_H
#define SCHEDULE_H
#include <stdint.h>

/* X(id, letters, is a message, cost in forwards) */
#define INSTRS(X)                                                                                                      \
    X(F, "F", 0, 1)    /* forward */                                                                                   \
    X(B, "B", 0, 2)    /* backward, joined */                                                                          \
    X(D, "D", 0, 1)    /* backward of the input */                                                                     \
    X(W, "W", 0, 1)    /* backward of the weights */                                                                   \
    X(SA, "SA", 1, 0)  /* activation sent, received; gradient sent, received */                                        \
    X(RA, "RA", 1, 0)                                                                                                  \
    X(SG, "SG", 1, 0)                                                                                                  \
    X(RG, "RG", 1, 0)                                                                                                  \
    X(G, "G", 0, 0)    /* gather a part's parameters */                                                                \
    X(X, "X", 0, 0)    /* release them */                                                                              \
    X(R, "R", 0, 0)    /* a part's gradients are final: reduce them */                                                 \
    X(T, "T", 0, 0)    /* add the two gradients of a tied embedding */                                                 \
    X(S, "S", 0, 0)    /* optimizer step */

typedef enum {
#define X(id, ...) I_##id,
    INSTRS(X)
#undef X
    INSTR_KINDS
} InstrKind;

extern const struct InstrInfo { const char *letters; int message; double cost; } instr_info[INSTR_KINDS];

typedef struct { uint8_t op, chunk, part, join; uint16_t mb; } Instr;

typedef enum { SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_FORWARD } ScheduleKind;

typedef struct {
    int n;
    Instr *list;
    int slots;                 /* microbatches in flight at the peak: F done, B not */
} Schedule;

/* The compute instructions of `rank` of `p` for m microbatches, in order; returns how many (at most 2m).
 * gpipe: Huang et al. 2019, arXiv:1811.06965. 1f1b: Narayanan et al. 2021, arXiv:2104.04473, sec 2.2.1. */
int schedule_generate(ScheduleKind kind, int p, int rank, int m, Instr *out);

/* A whole step of one rank that holds `parts` parts: compute, then R of every part from the last to the first, then S.
 * Forward-only lists have neither. Allocates; not collective. */
void schedule_open(Schedule *s, ScheduleKind kind, int p, int rank, int m, int parts);
void schedule_close(Schedule *s);

/* "F0.0", "R/3", "S": the instruction as text. */
void instr_print(const Instr *i, char *text, int size);
#endif
