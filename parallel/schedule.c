#include "schedule.h"
#include "base.h"
#include <stdio.h>
#include <stdlib.h>

const struct InstrInfo instr_info[INSTR_KINDS] = {
#define X(id, letters, message, cost) {letters, message, cost},
    INSTRS(X)
#undef X
};

int schedule_generate(ScheduleKind kind, int p, int rank, int m, Instr *out)
{
    int ahead = kind == SCHEDULE_1F1B ? p - rank - 1 : m, n = 0, f = 0;
    if (ahead > m)
        ahead = m;
    while (f < ahead)
        out[n++] = (Instr){.op = I_F, .mb = (uint16_t)f++};
    if (kind == SCHEDULE_FORWARD)
        return n;
    for (int b = 0; b < m; b++) {
        if (f < m)
            out[n++] = (Instr){.op = I_F, .mb = (uint16_t)f++};
        out[n++] = (Instr){.op = I_B, .mb = (uint16_t)b};
    }
    return n;
}

static int peak_in_flight(const Instr *list, int n)
{
    int now_held = 0, peak = 1;
    for (int i = 0; i < n; i++) {
        now_held += (list[i].op == I_F) - (list[i].op == I_B || list[i].op == I_W);
        if (now_held > peak)
            peak = now_held;
    }
    return peak;
}

void schedule_open(Schedule *s, ScheduleKind kind, int p, int rank, int m, int parts)
{
    BUG_ON(m < 1 || m > UINT16_MAX || parts > UINT8_MAX + 1);
    s->list = xcalloc((size_t)(2 * m + parts + 1), sizeof *s->list);
    s->n = schedule_generate(kind, p, rank, m, s->list);
    s->slots = kind == SCHEDULE_FORWARD ? 1 : peak_in_flight(s->list, s->n);
    if (kind == SCHEDULE_FORWARD)
        return;
    for (int part = parts - 1; part >= 0; part--)
        s->list[s->n++] = (Instr){.op = I_R, .part = (uint8_t)part};
    s->list[s->n++] = (Instr){.op = I_S};
}

void schedule_close(Schedule *s)
{
    free(s->list);
    *s = (Schedule){0};
}

void instr_print(const Instr *i, char *text, int size)
{
    if (i->op <= I_RG)
        snprintf(text, (size_t)size, "%s%d.%d", instr_info[i->op].letters, i->mb, i->chunk);
    else if (i->op == I_S || i->op == I_T)
        snprintf(text, (size_t)size, "%s", instr_info[i->op].letters);
    else
        snprintf(text, (size_t)size, "%s/%d", instr_info[i->op].letters, i->part);
}
