/* table -- fills a Device with the ops of one instruction set and real type; the threads' buffers. */
#include "isa.h"

void FN(cpu_fill)(Device *d)
{
    d->real = REAL_TYPE;
#define X(op, params, names) d->op = FN(cpu_##op);
    OPS(X)
#undef X
}

REAL *FN(row_buf)(Device *d, int thread, int slot)
{
    return (REAL *)cpu_of(d)->rows + (int64_t)(thread * ROW_SLOTS + slot) * ROW_MAX;
}

REAL *FN(sum_buf)(Device *d, int thread, int slot)
{
    return (REAL *)cpu_of(d)->sums + (int64_t)(thread * 2 + slot) * SUM_MAX;
}
