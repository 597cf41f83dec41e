/* Pipeline schedules: the published lists, times and peaks; every schedule checked. */
#include "base.h"
#include "schedule.h"
#include "test.h"

static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"};
enum { KINDS = sizeof names / sizeof *names };

static int is_vee(ScheduleKind kind) { return kind >= SCHEDULE_ZB_V && kind <= SCHEDULE_V_MIN; }
static int chunks_of(ScheduleKind kind) { return is_vee(kind) || kind == SCHEDULE_INTERLEAVED ? 2 : 1; }

static char *text_of(const Instr *list, int n)
{
    size_t room = (size_t)n * 12 + 1, at = 0;
    char *all = xcalloc(room, 1), one[24];
    for (int i = 0; i < n; i++) {
        instr_print(&list[i], one, sizeof one);
        at += (size_t)snprintf(all + at, room - at, "%s%s", i ? (list[i].join ? "+" : " ") : "", one);
    }
    return all;
}

static void check_set(const ScheduleSet *set, const char *what)
{
    char why[256] = "";
    const PipeShape *s = &set->shape;
    CHECK(schedules_check(set, why, sizeof why), "%s p %d v %d m %d: %s", what, s->p, s->v, s->m, why);
}

/* ---- the lists, letter by letter ---- */

static void published_orders(void)
{
    static const struct { ScheduleKind kind; const char *rank[4]; } want[] = {
        {SCHEDULE_GPIPE, {"FFFFFFFFBBBBBBBB", "FFFFFFFFBBBBBBBB", "FFFFFFFFBBBBBBBB", "FFFFFFFFBBBBBBBB"}},
        {SCHEDULE_1F1B, {"FFFFBFBFBFBFBBBB", "FFFBFBFBFBFBFBBB", "FFBFBFBFBFBFBFBB", "FBFBFBFBFBFBFBFB"}},
        {SCHEDULE_ZB_H1, {"FFFFDWFDWFDWFDWFDWDWDWDW", "FFFDFDWFDWFDWFDWFDWDWDWW",
                          "FFDFDFDWFDWFDWFDWFDWDWWW", "FDFDFDFDWFDWFDWFDWFDWWWW"}},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape s = {.kind = want[k].kind, .p = 4, .v = 1, .m = 8};
        Instr memory[4][24];
        InstrList list[4] = {{0, memory[0]}, {0, memory[1]}, {0, memory[2]}, {0, memory[3]}};
        schedule_generate(&s, list);
        for (int rank = 0; rank < 4; rank++) {
            char text[25] = {0};
            for (int i = 0; i < list[rank].n; i++)
                text[i] = *instr_info[list[rank].list[i].op].letters;
            CHECK(!strcmp(text, want[k].rank[rank]), "%s rank %d: %s", names[s.kind], rank, text);
        }
    }
}

/* Of 1F1B, Megatron's fused send_forward_recv_backward and send_backward_recv_forward come out of the clock. */
static void published_messages(void)
{
    static const struct { ScheduleKind kind; int rank; const char *text; } want[] = {
        {SCHEDULE_1F1B, 0, "F0.0 SA0.0 F1.0 SA1.0 F2.0 SA2.0 F3.0 SA3.0 RG0.0 B0.0 F4.0 SA4.0+RG1.0 B1.0 F5.0 "
                           "SA5.0+RG2.0 B2.0"},
        {SCHEDULE_1F1B, 1, "RA0.0 F0.0 RA1.0+SA0.0 F1.0 RA2.0+SA1.0 F2.0 RA3.0+SA2.0 RG0.0 B0.0 SG0.0 F3.0 "
                           "SA3.0+RG1.0 B1.0 RA4.0+SG1.0 F4.0"},
        {SCHEDULE_1F1B, 3, "RA0.0 F0.0 RA1.0 B0.0 SG0.0 F1.0 B1.0 RA2.0+SG1.0 F2.0 B2.0 RA3.0+SG2.0 F3.0 B3.0 "
                           "RA4.0+SG3.0 F4.0 B4.0"},
        {SCHEDULE_ZB_H1, 3, "RA0.0 F0.0 RA1.0 D0.0 SG0.0 F1.0 D1.0 RA2.0+SG1.0 F2.0 D2.0 RA3.0+SG2.0 F3.0 D3.0 "
                            "SG3.0 W0.0 RA4.0 F4.0 D4.0 SG4.0 W1.0"},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape s = {.kind = want[k].kind, .p = 4, .v = 1, .m = 8};
        ScheduleSet set;
        schedules_open(&set, &s);
        char *text = text_of(set.rank[want[k].rank].list, set.rank[want[k].rank].n);
        CHECK(!strncmp(text, want[k].text, strlen(want[k].text)), "%s rank %d: %s", names[s.kind], want[k].rank, text);
        free(text);
        schedules_close(&set);
    }
}

/* One rank: the plain training loop. */
static void one_rank(void)
{
    static const struct { ScheduleKind kind; int slots; const char *text; } want[] = {
        {SCHEDULE_1F1B, 1, "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 R/3 R/2 R/1 R/0 S"},
        {SCHEDULE_GPIPE, 3, "F0.0 F1.0 F2.0 B0.0 B1.0 B2.0 R/3 R/2 R/1 R/0 S"},
        {SCHEDULE_ZB_H1, 1, "F0.0 D0.0 W0.0 F1.0 D1.0 W1.0 F2.0 D2.0 W2.0 R/3 R/2 R/1 R/0 S"},
        {SCHEDULE_FORWARD, 1, "F0.0 F1.0 F2.0"},
    };
    for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
        PipeShape shape = {.kind = want[k].kind, .p = 1, .v = 1, .m = 3};
        ScheduleSet set;
        Schedule s;
        schedules_open(&set, &shape);
        check_set(&set, want[k].text);
        schedule_open(&s, &set, 0, &(Expand){.units = (const int[]){4}});
        char *text = text_of(s.list, s.n);
        CHECK(!strcmp(text, want[k].text), "%s", text);
        CHECK(s.slots[SLOT_FD] == want[k].slots && s.units == 4, "%s: %d slots", want[k].text, s.slots[SLOT_FD]);
        free(text);
        schedule_close(&s);
        schedules_close(&set);
    }
}

/* ---- every schedule is whole and comes to its end ---- */

static void every_schedule(void)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int p = 1; p <= 16; p++)
            for (int m = kind == SCHEDULE_INTERLEAVED ? p : 1; m <= 48; m += kind == SCHEDULE_INTERLEAVED ? p : 1) {
                PipeShape s = {.kind = (ScheduleKind)kind, .p = p, .v = chunks_of((ScheduleKind)kind), .m = m};
                ScheduleSet set;
                schedules_open(&set, &s);
                check_set(&set, names[kind]);
                schedules_close(&set);
            }
}

int main(void)
{
    published_orders();
    published_messages();
    one_rank();
    every_schedule();
    return test_end();
}
