/* rank_log -- time of the groups' messages and slow ranks, as JSON and as scalars */
#include "rank_log.h"
#include "base.h"
#include "json_number.h"

void rank_log_add(RankLog *r, const GroupTimes *g, int n)
{
    BUG_ON(n > GROUP_NAMES || (r->steps && n != r->n));
    r->n = n;
    r->steps++;
    for (int i = 0; i < n; i++) {
        r->sum[i].name = g[i].name;
        r->sum[i].wait_ms += g[i].wait_ms;
        r->sum[i].busy_ms += g[i].busy_ms;
        r->sum[i].bytes += g[i].bytes;
    }
}

void rank_log_slow(RankLog *r, const SlowRank *s, int n)
{
    for (int i = 0; i < n; i++) {
        int at = 0;
        while (at < r->slows && r->slow[at].rank != s[i].rank)
            at++;
        if (at < SLOW_RANKS)
            r->slow[at] = s[i];
        r->slows = at == r->slows && at < SLOW_RANKS ? at + 1 : r->slows;
    }
}

static void put_groups(FILE *f, const RankLog *r)
{
    char wait[32], busy[32], bytes[32];
    double steps = (double)r->steps;
    for (int i = 0; i < r->n; i++)
        fprintf(f, "%s\"%s\": {\"wait_ms\": %s, \"busy_ms\": %s, \"bytes\": %s}", i ? ", " : ", \"comm\": {",
                r->sum[i].name, json_number_text(wait, r->sum[i].wait_ms / steps),
                json_number_text(busy, r->sum[i].busy_ms / steps),
                json_number_text(bytes, r->sum[i].bytes / steps));
    fprintf(f, r->n ? "}" : "");
}

static void put_slow(FILE *f, const RankLog *r)
{
    char excess[32];
    for (int i = 0; i < r->slows; i++) {
        const SlowRank *s = &r->slow[i];
        fprintf(f, "%s{\"rank\": %d, \"host\": \"%s\", \"where\": \"%s\", \"phase\": \"%s\", ",
                i ? ", " : ", \"stragglers\": [", s->rank, s->host, s->where, s->phase);
        fprintf(f, "\"phases\": [\"%s\"", s->phase);
        for (int k = 0; k < s->others; k++)
            fprintf(f, ", \"%s\"", s->other[k]);
        fprintf(f, "], \"excess\": %s, \"than\": \"%s\", \"idle\": %s, \"intervals\": %d}",
                json_number_text(excess, s->excess), s->peers ? "peers" : "before",
                s->idle ? "true" : "false", s->intervals);
    }
    fprintf(f, r->slows ? "]" : "");
}

char *rank_log_json(const RankLog *r)
{
    char *text;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    put_groups(f, r);
    put_slow(f, r);
    fclose(f);
    return text;
}

void rank_log_scalars(const RankLog *r, EventFile *f, double wall_time, int64_t step)
{
    Scalar s[3 * GROUP_NAMES];
    char name[3 * GROUP_NAMES][48];
    int n = 0;
    for (int i = 0; i < r->n; i++) {
        const double v[] = {r->sum[i].wait_ms, r->sum[i].busy_ms, r->sum[i].bytes};
        static const char *const what[] = {"wait_ms", "busy_ms", "bytes"};
        for (int k = 0; k < 3; k++, n++) {
            snprintf(name[n], sizeof name[n], "comm/%s_%s", r->sum[i].name, what[k]);
            s[n] = (Scalar){name[n], v[k] / (double)r->steps};
        }
    }
    for (int at = 0; at < n; at += 60)
        event_scalars(f, wall_time, step, s + at, n - at < 60 ? n - at : 60);
    for (n = 0; n < r->slows; n++) {
        snprintf(name[n], sizeof name[n], "straggler/rank_%d", r->slow[n].rank);
        s[n] = (Scalar){name[n], r->slow[n].excess};
    }
    s[n] = (Scalar){"stragglers", r->slows};
    if (r->n)
        event_scalars(f, wall_time, step, s, n + 1);
}
