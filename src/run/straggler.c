/* straggler -- intervals, the names of the ranks, and the warning */
#define _GNU_SOURCE
#include "straggler.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Why a rank's own time is not known. */
enum { SEES, SHARES_CORES, SHARES_GPU };
static const char *const why_blind[] = {
    [SHARES_CORES] = "a host has more ranks than cores, and its kernel does not tell how long each waits for "
                     "a core (/proc/thread-self/schedstat)",
    [SHARES_GPU] = "several ranks share a GPU, which does not tell whose work takes its time"};

/* What a rank tells the others at the start. */
typedef struct {
    char host[60];
    int32_t blind;                 /* SEES or why not */
} Place;

/* Names the hosts. Returns SEES, or why the ranks cannot be compared. */
static int hosts_of(Straggler *s, Grid *g, int sharing)
{
    int cores = !sharing && !comm_cores_suffice() && !pace_knows_cores();
    Place mine = {.blind = cores ? SHARES_CORES : sharing > 1 ? SHARES_GPU : SEES};
    Place *all = xcalloc((size_t)g->world, sizeof *all);
    Comm *c = &g->all;
    int blind = SEES;
    gethostname(mine.host, sizeof mine.host - 1);
    c->wait(c, c->all_gather(c, all, &mine, sizeof mine / sizeof(int32_t), I32));
    for (int r = 0; r < g->world; r++) {
        snprintf(s->host[r], sizeof s->host[r], "%.*s", (int)sizeof all[r].host, all[r].host);
        blind = all[r].blind > blind ? all[r].blind : blind;
    }
    free(all);
    return blind;
}

/* Names the ranks and finds those of equal work: of one stage, where no experts are shared out. */
static void places_of(Straggler *s, const Grid *g)
{
    for (int r = 0; r < g->world; r++) {
        int tp = grid_index(&g->spec, r, AXIS_TP), cp = grid_index(&g->spec, r, AXIS_CP),
            dp = grid_index(&g->spec, r, AXIS_DP), pp = grid_index(&g->spec, r, AXIS_PP);
        s->work[r] = g->spec.experts && g->spec.ep > 1 ? -1 : pp;
        snprintf(s->where[r], sizeof s->where[r], "tp %d cp %d dp %d pp %d", tp, cp, dp, pp);
    }
}

void straggler_open(Straggler *s, Grid *g, double threshold, int explicit, int sharing)
{
    size_t n = (size_t)g->world;
    *s = (Straggler){.skip = 1};
    if (!(threshold > 0) || g->world < 2)
        return;
    s->work = xcalloc(n, sizeof *s->work);
    s->host = xcalloc(n, sizeof *s->host);
    s->where = xcalloc(n, sizeof *s->where);
    int blind = hosts_of(s, g, sharing);
    s->on = blind == SEES;
    if (!s->on && explicit)
        all_ok(&g->all, 0, EXIT_RESOURCE, "straggler", "straggler_threshold compares what ranks take for "
               "their own work, but %s; change: straggler_threshold=0, or fewer ranks a host",
               why_blind[blind]);
    if (!s->on && !g->rank)
        warn("slow ranks are not looked for: %s", why_blind[blind]);
    places_of(s, g);
    if (s->on && !g->rank)
        judge_open(&s->judge, g->world, threshold, s->work);
}

void straggler_close(Straggler *s)
{
    judge_close(&s->judge);
    free(s->work);
    free(s->host);
    free(s->where);
    *s = (Straggler){0};
}

/* The phases of a slow rank, the worst first: "backward, forward". */
static const char *phases_of(const SlowRank *slow, char text[128])
{
    int at = snprintf(text, 128, "%s", slow->phase);
    for (int i = 0; i < slow->others; i++)
        at += snprintf(text + at, at < 128 ? 128 - (size_t)at : 0, ", %s", slow->other[i]);
    return text;
}

static void tell(const Straggler *s, const SlowRank *slow)
{
    char phases[128], beside[64] = "before";
    if (slow->peers)
        snprintf(beside, sizeof beside, slow->peers > 1 ? "the median of its %d peers" : "its peer",
                 slow->peers);
    warn("straggler: rank %d (host %s, %s) is %.0f %% slower than %s %s %s for %d intervals of %ld steps%s",
         slow->rank, slow->host, slow->where, 100 * slow->excess, beside, slow->of_phase ? "in" : "by",
         phases_of(slow, phases), slow->intervals, s->steps,
         slow->idle ? ": it was on no core meanwhile, stopped, throttled or waiting for a disk" : "");
}

/* Judges the interval that ends now. own: [world] of its steps. */
static void judge(Straggler *s, OwnSum *own)
{
    for (int i = 0; i < s->judge.ranks * OWN_PHASES; i++) {
        own[i / OWN_PHASES].took[i % OWN_PHASES] /= (double)s->steps;
        own[i / OWN_PHASES].idle[i % OWN_PHASES] /= (double)s->steps;
    }
    judge_interval(&s->judge, own);
    for (int i = 0; i < s->judge.n; i++) {
        SlowRank *slow = &s->judge.slow[i];
        slow->host = s->host[slow->rank];
        slow->where = s->where[slow->rank];
        if (slow->fresh)
            tell(s, slow);
    }
}

void straggler_step(Straggler *s, OwnTime *o, const GroupTotals *now, Metrics *m, Grid *g)
{
    /* the lengths of earlier steps are reduced, so that all ranks end the interval together */
    int ends = s->on && ++s->steps >= INTERVAL_STEPS && s->ms >= INTERVAL_MS * 3 / 4.;
    OwnSum *own = own_exchange(o, now, m, g, ends);
    s->ms += m->elapsed_ms;
    if (!ends)
        return;
    if (!s->skip && !g->rank)
        judge(s, own);
    s->skip = 0;
    s->steps = 0;
    s->ms = 0;
}
