/* tape -- what an instruction does to the clock, the groups and the gradients of a walk: recorded where its
 * layers run, and played where another microbatch or another pipeline rank does the same.
 *
 * Playing adds the same times in the same order as the layers would, so the clock comes to the same bits.
 * Times of operations are recorded. Messages are sent again, because what they take depends on where the
 * members of a group are and on what is under way. So are calls of Data, because what they do depends on the
 * windows of units. What a message starts is waited for within the same instruction. */
#ifndef TAPE_H
#define TAPE_H
#include "data.h"
#include "predict.h"

typedef struct {
    enum { TAPE_OP, TAPE_MESSAGE, TAPE_WAIT, TAPE_CALL, TAPE_WRITTEN } kind;
    int at;                    /* OP: OpKind. MESSAGE, WAIT: of the group, bytes from the start of the Grid.
                                * CALL: unit or product. WRITTEN: the product that has a value now */
    union {
        OpTime op;
        struct { int64_t n; CommKind kind; Dtype type; ReduceOp op; int root; } message;
        int sent;              /* WAIT: for which message of the tape, from 0 */
        struct { DataCall call; GradPhase phase; } call;
    };
} TapeEvent;

/* One instruction. made: bool, it has been recorded. */
typedef struct {
    int n, made;
    TapeEvent *event;          /* [n] */
    Token *token;              /* of its messages, while it is played */
} Tape;
void tape_close(Tape *t);

/* Records the instructions of a walk, one at a time. */
typedef struct Recorder {
    Tape *tape;                /* of the instruction that runs now; NULL: none is recorded */
    const Grid *grid;
    Data *data;
    DataWatch watch;           /* of data */
    int calls;                 /* calls of Data under way: what they do is not recorded */
    char *there;               /* [data->products] GradProduct.there when the instruction or a call began */
    Token *token;              /* [tokens] of all messages recorded so far */
    int tokens, first;         /* first: of this instruction's */
} Recorder;
void recorder_open(Recorder *r, const Grid *grid, Data *data);
void recorder_close(Recorder *r);
void recorder_begin(Recorder *r, Tape *tape);
void recorder_end(Recorder *r);

/* Plays an instruction.
 *   k     in/out  the clock
 *   grid  in/out  its groups send the messages
 *   peer  in      the pipeline rank that a message goes to or comes from */
void tape_play(const Tape *t, Tally *k, Grid *grid, Data *data, int peer);
#endif
