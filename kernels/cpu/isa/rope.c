/* rope -- rotary positions, in place. */
#include "work.h"

typedef struct { Device *d; Mat x, table; const int32_t *position; int dim, inverse; } Job;

static void turn(REAL *row, int64_t cols, int dim, const REAL *cosine, int64_t half, int inverse)
{
    const REAL *sine = cosine + half;
    for (REAL *a = row; a < row + cols; a += dim)
        for (int64_t i = 0; i < half; i += VN) {
            Vec c = vget(cosine + i, half - i), s = vget(sine + i, half - i);
            Vec u = vget(a + i, half - i), v = vget(a + half + i, half - i);
            if (inverse)
                s = -s;
            vput(a + i, u * c - v * s, half - i);
            vput(a + half + i, v * c + u * s, half - i);
        }
}

/* An item is a few rows; it turns as many heads at a time as a row buffer holds. */
static void rope_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t step = work_rows(j->x.cols), r0 = item * step, most = ROW_MAX / j->dim * j->dim;
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    for (int64_t r = r0; r < r0 + step && r < j->x.rows; r++) {
        int64_t p = j->position[r];
        BUG_ON(p < 0 || p >= j->table.rows);
        for (int64_t c = 0; c < j->x.cols; c += most) {
            Mat heads = mat_cols(j->x, c, j->x.cols - c < most ? j->x.cols - c : most);
            REAL *row = (REAL *)row_in(heads, r, buf);
            turn(row, heads.cols, j->dim, mat_at(j->table, p, 0), j->table.cols / 2, j->inverse);
            row_done(heads, r, row);
        }
    }
}

void FN(cpu_rope)(Device *d, Mat x, int dim, Mat table, const int32_t *position, int inverse)
{
    BUG_ON(dim < 1 || x.cols % dim || dim > ROW_MAX);
    BUG_ON(table.type != REAL_TYPE || table.cols % 2 || table.cols > dim);
    Job j = {d, x, table, position, dim, inverse};
    pool_run(d->pool, rope_item, &j, row_items(x));
}
