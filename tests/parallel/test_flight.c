/* test_flight -- whom a flight record blames where groups are too large for it, or reach to other hosts;
 * which step it names where two ranks begin theirs at once */
#include "comm.h"
#include "flight.h"
#include "test.h"
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, HERE = 100 };            /* s: the time of the look */
static Flight *f;

/* Two ranks of a host, in group `world` of so many ranks. Both have called its collective 7 and wait for it.
 *   known    in    bool: the record has room for the members */
static void waiting(int size, int known)
{
    memset(f, 0, flight_bytes(RANKS));
    f->ranks = RANKS;
    for (int i = 0; i < RANKS; i++) {
        FlightRank *r = &f->rank[i];
        r->rank = i;
        r->pid = 1 + i;
        r->group[0] = (FlightGroup){.name = "world", .id = 1, .size = size, .at = known ? 0 : -1, .open = 1,
                                    .calls = 7};
        for (int k = 0; known && k < size; k++)
            r->member[k] = k;
        r->op[0] = (FlightOp){.number = 1, .seq = 7, .group = 1, .peer = -1, .kind = COMM_ALL_REDUCE};
        r->ops = r->waits = 1;
        r->since = HERE - 10 + i;
        r->alive = HERE;
    }
}

static void blames(const char *what, int rank, int local, int lost)
{
    FlightBlame b = flight_blame(f, HERE, NULL, NULL);
    CHECK(b.rank == rank && b.local == local && b.lost == lost,
          "%s: rank %d, place %d, lost %d; not %d, %d, %d", what, b.rank, b.local, b.lost, rank, local, lost);
}

/* Two ranks begin one iteration after the other at once: the record keeps the later one. */
static void steps(void)
{
    enum { ROUNDS = 1000 };
    int fd = flight_make(RANKS, 0), status = -1, wrong = 0;
    _Atomic int *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    BUG_ON(at == MAP_FAILED);
    pid_t child = fork();
    BUG_ON(child < 0);
    flight_open(fd, RANKS, child == 0, child == 0, RANKS, 0);
    for (int i = 0; i < 2 * ROUNDS; i++) {
        char want[32];
        int64_t instr = 0;
        for (atomic_fetch_add(&at[i % 2], 1); atomic_load(&at[i % 2]) < RANKS * (i / 2 + 1);)
            sched_yield();
        if (i % 2 == 0)
            flight_instr(&instr, i + 1 + (child == 0));
        snprintf(want, sizeof want, "@step %d", i + 1);
        wrong += i % 2 && strcmp(flight_here()->step, want);
    }
    if (!child)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the other rank: %d", status);
    CHECK(!wrong, "%d of %d steps went back", wrong, ROUNDS);
}

int main(void)
{
    f = xcalloc(1, flight_bytes(RANKS));
    waiting(RANKS, 1);
    blames("all of a small group wait", 0, 0, 1);
    waiting(3, 1);
    blames("a rank of another host may be missing", 2, -1, 0);
    waiting(FLIGHT_MEMBERS + 1, 0);
    blames("any rank of another host may be missing", FLIGHT_UNKNOWN, -1, 0);
    f->rank[1].waits = 0;
    f->rank[1].group[0].calls = 6;
    blames("a rank of this host does not come to a large group", 1, 1, 0);
    f->rank[1].waits = 1;
    f->rank[1].op[0] = (FlightOp){.number = 1, .seq = 1, .group = 1, .peer = 3000, .kind = COMM_RECV};
    blames("a rank of this host waits for another host's before it comes to a large group", 3000, -1, 0);
    waiting(FLIGHT_MEMBERS + 1, 0);
    f->rank[0].op[0].number = 1001;        /* the record has gone round */
    blames("nobody knows for what the first rank waits", FLIGHT_UNKNOWN, -1, 0);
    waiting(RANKS, 1);
    f->rank[0].waits = f->rank[1].waits = -1;
    blames("all wait for their device", 0, 0, 1);
    for (int large = 0; large < 2; large++) {
        waiting(large ? FLIGHT_MEMBERS + 1 : 3, !large);
        f->rank[0].waits = f->rank[1].waits = -1;
        blames("all wait for their device, which may wait for another host", FLIGHT_UNKNOWN, -1, 0);
    }
    free(f);
    steps();
    return test_end();
}
