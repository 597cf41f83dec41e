/* flight -- the flight record of the ranks of a host: the last instructions and operations of each, with
 * times, and what each waits for. It lies in memory that these ranks share and that outlives them: a file
 * beside the job's page where scripts/launch has started the job, else anonymous memory. After a failure the
 * memory is copied as it is to RUN/flight.N (N: the lowest rank of the host), where `train flight` reads it.
 *
 * Writers take no lock and allocate nothing; instructions and waits are written by the rank's main thread,
 * operations under the engine's lock. A reader may see a record half written, so it checks every index that
 * it takes from here. Times are in s on the clock of now(). Without flight_open the writers do nothing. All
 * functions are local. */
#ifndef FLIGHT_H
#define FLIGHT_H
#include "base.h"
#include <stdatomic.h>
#include <stddef.h>

enum {
    FLIGHT_INSTRS = 1000, FLIGHT_OPS = 1000, FLIGHT_GROUPS = 128, FLIGHT_MEMBERS = 2048, FLIGHT_BINS = 320
};

/* What a rank is in the middle of; each has its own limit for a hang. */
typedef enum { PHASE_OTHER, PHASE_STEP, PHASE_SAVE, PHASE_EVAL, PHASES } FlightPhase;

typedef struct {
    uint64_t what;                 /* the bytes of the Instr */
    int64_t iteration;
    double start, begun, end;      /* noted; its message there, computing; done. 0: not yet, or not told */
} FlightInstr;

typedef struct {
    int64_t number;                /* of the rank's operations, from 1; 0: none */
    int64_t seq;                   /* of the group's collectives, or of the messages to or from the peer */
    int64_t bytes;                 /* comm_payload */
    double start, end;             /* end 0: under way, or on the device */
    int32_t group;                 /* place + 1 in the rank's list of groups; 0: not in it */
    int32_t peer;                  /* world rank; -1: a collective */
    int32_t kind;                  /* CommKind */
    int32_t device;                /* bool: a stream does it; its end is not recorded */
} FlightOp;

typedef struct {
    char name[16];
    int32_t id, first;             /* of the group; its lowest world rank: both together name it */
    int32_t size, at;              /* number of members; where they begin in member[], -1: no room */
    _Atomic int32_t open;          /* bool */
    _Atomic int64_t calls;         /* collectives that this rank has called */
} FlightGroup;

typedef struct {
    int32_t rank, pid;             /* world rank; 0: no process yet */
    char host[HOST_NAME], where[112], note[112];      /* texts, as in job.h */
    char fate[160];                /* text: how the rank ended, or why it stands still; "": not known */
    _Atomic int phase;             /* FlightPhase */
    _Atomic int left;              /* bool: it has said goodbye */
    double phase_start, longest[PHASES];       /* s: longest time of a phase that is over */
    _Atomic double progress;       /* when the rank last began or ended anything */
    _Atomic int64_t waits;         /* operation that the main thread waits for; -1: the device; 0: none */
    _Atomic double since, alive;   /* of that wait: its begin; when the waiting thread last looked */
    _Atomic int64_t steps;         /* finished by this process */
    _Atomic uint32_t bin[FLIGHT_BINS];         /* steps by length: bin b ends at 1 us * 2^((b + 1) / 8) */
    _Atomic int64_t instrs, ops;   /* ever recorded; record k is at (k - 1) % the size */
    _Atomic uint32_t answers;      /* how often the process has written its calls when asked */
    char calls[4096];              /* text: these calls, one a line */
    int32_t members;               /* used of member[] */
    int32_t member[FLIGHT_MEMBERS];            /* world ranks */
    FlightGroup group[FLIGHT_GROUPS];
    FlightInstr instr[FLIGHT_INSTRS];
    FlightOp op[FLIGHT_OPS];
} FlightRank;

typedef struct {
    char magic[8];                 /* FLIGHT_MAGIC */
    int32_t ranks, world;          /* of the host; of the job */
    double wall;                   /* s to add to a time here for the time since 1970 */
    int32_t host;                  /* lowest world rank of the host */
    int32_t code;                  /* exit code that a rank wanted; 0: none could say */
    char gap[8];                   /* 0 */
    char run[1008];                /* text: "@run " and the run directory; scripts/launch_job looks for it */
    char dead[16];                 /* text: the world rank that scripts/launch_job saw die; "": none */
    _Atomic int64_t begun;         /* latest iteration that a rank of the host has begun */
    char step[32];                 /* text: "@step " and that iteration; scripts/launch_restarts reads it */
    _Atomic int64_t frozen;        /* bool: what ranks do is not recorded any more */
    FlightRank rank[];             /* [ranks] */
} Flight;

#define FLIGHT_MAGIC "FLIGHT1"
_Static_assert(offsetof(Flight, dead) == 1048, "scripts/launch_job writes there");
/* In place of a world rank: the record does not tell who it is. */
#define FLIGHT_UNKNOWN (-2)
/* In the fate of the rank for which the others wait, where a hang has this cause. */
#define FLIGHT_LOST "a message is lost"

size_t flight_bytes(int ranks);
/* Makes the memory of a host with `ranks` ranks; returns its descriptor. */
int flight_make(int ranks, int host);
/* Maps the memory and announces this rank in it.
 *   fd       in    closed here; -1: this process has no others beside it, and makes its own memory */
void flight_open(int fd, int ranks, int local, int rank, int world, int host);

Flight *flight_here(void);         /* NULL: not open */

/* ---- writing ---- */

/* Names the run directory, where the copy goes. Opens the record of a process that is the whole job. */
void flight_run(const char *dir);
void flight_where(const char *text);
void flight_note(const char *text);
void flight_instr(const void *instr, int64_t iteration);       /* of 8 bytes: it begins */
void flight_mark(double begun, double end);                    /* the last instruction is done */
FlightPhase flight_phase(FlightPhase phase);                    /* returns the phase that it ends */
void flight_step(double seconds);                              /* a step took so long */
void flight_left(void);
void flight_moved(void);           /* a piece of a message or a block of a file has moved; any thread */
void flight_answer(const char *calls, size_t n);               /* the calls of this process: its text */
void flight_fate(int local, const char *text);                 /* how rank `local` ended or stands still */

/* Adds a group that this rank has joined; returns what FlightOp.group holds. */
int flight_group(const char *name, int id, const int *member, int n);
void flight_group_close(int group);
/* Records that an operation begins; returns its number. */
int64_t flight_op(int group, int kind, int peer, int64_t seq, int64_t bytes, int device);
void flight_op_end(int64_t number);
/* The main thread waits for an operation (-1: for the device); the same again says that it still looks. */
void flight_wait(int64_t number);
void flight_wait_end(void);

/* The record stays as it is: the job ends, and a stopped rank goes on for a moment when it is killed. */
void flight_freeze(void);
/* Copies the memory to the run directory, once; for a signal handler too. code: with which the job ends. */
void flight_save(int code);

/* ---- reading; f may be a copy, or be written meanwhile ---- */

/* Whether `bytes` bytes are a whole flight record. */
int flight_whole(const Flight *f, size_t bytes);
double flight_latest(const Flight *f);         /* the latest time that any rank has written */
/* Whether rank `local` waited for another, or its device, at time t. */
int flight_is_waiting(const Flight *f, int local, double t);
/* The world rank that rank `local` waits for; -1: all whom its operation needs have called it;
 * FLIGHT_UNKNOWN: one of another host may have not. */
int flight_waits_for(const Flight *f, int local);
/* Writes what the rank waits for: "all_reduce 57 of group tp", "recv 3 from rank 2 of group pp". */
void flight_print_wait(const Flight *f, int local, char *text, int size);
double flight_p99(const FlightRank *r);        /* of a step, in s; 0: no step is known */

/* Whom the others wait for. */
typedef struct {
    int local;                     /* place of that rank; -1: it is on another host */
    int rank;                      /* its world rank, or FLIGHT_UNKNOWN; -1: nobody is left to blame */
    int lost;                      /* bool: every rank waits in turn, so a message is lost */
    int waiter;                    /* place of the rank that has waited longest; -1: none waits */
    int waiting;                   /* number of ranks that wait */
} FlightBlame;
/* The place of the rank that scripts/launch_job saw die; -1: none, or it is on another host. */
int flight_dead(const Flight *f);
/*   skip     in  [ranks]  bool: not this one; NULL: all ranks that have not left
 *   first    in  [ranks]  bool: this one before others that do not wait; 'T': it is stopped, so it does not
 *                         wait, whatever its record says; NULL: none */
FlightBlame flight_blame(const Flight *f, double t, const char *skip, const char *first);
#endif
