/* rows -- the ops on rows of tokens that travel to experts: gather_rows, sum_rows, scale_rows, row_dots. */
#include "work.h"

typedef struct { Device *d; Mat y, x, w; const int32_t *index; int k; } Job;

/* Returns the row of x that index[i] names, or -1. */
static int64_t row_of(const Job *j, int64_t i)
{
    BUG_ON(j->index[i] < -1 || j->index[i] >= j->x.rows);
    return j->index[i];
}

static void gather_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    size_t bytes = (size_t)t.cols * dtype_size(j->y.type);
    for (int64_t r = t.r0; r < t.r1; r++) {
        int64_t from = row_of(j, r);
        if (from < 0)
            memset(mat_at(j->y, r, t.c0), 0, bytes);
        else
            memcpy(mat_at(j->y, r, t.c0), mat_at(j->x, from, t.c0), bytes);
    }
}

void FN(cpu_gather_rows)(Device *d, Mat y, Mat x, const int32_t *index)
{
    BUG_ON(y.cols != x.cols || y.type != x.type);
    Job j = {.d = d, .y = y, .x = x, .index = index};
    pool_run(d->pool, gather_item, &j, work_items(y));
}

static void sum_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols), xm = mat_cols(j->x, t.c0, t.cols);
    REAL *buf = FN(row_buf)(j->d, thread, 0), *from = FN(row_buf)(j->d, thread, 1);
    for (int64_t r = t.r0; r < t.r1; r++) {
        REAL *sum = row_out(ym, r, buf);
        memset(sum, 0, (size_t)t.cols * sizeof *sum);
        for (int64_t k = r * j->k; k < (r + 1) * j->k; k++) {
            if (row_of(j, k) < 0)
                continue;
            const REAL *x = row_in(xm, row_of(j, k), from);
            for (int64_t i = 0; i < t.cols; i += VN)
                vput(sum + i, vget(sum + i, t.cols - i) + vget(x + i, t.cols - i), t.cols - i);
        }
        row_done(ym, r, sum);
    }
}

void FN(cpu_sum_rows)(Device *d, Mat y, Mat x, const int32_t *index, int k)
{
    BUG_ON(y.cols != x.cols || y.type != x.type || k < 0);
    Job j = {.d = d, .y = y, .x = x, .index = index, .k = k};
    pool_run(d->pool, sum_item, &j, work_items(y));
}

static void scale_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols), xm = mat_cols(j->x, t.c0, t.cols);
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *x = row_in(xm, r, buf), w = *(REAL *)mat_at(j->w, r, 0);
        REAL *y = row_out(ym, r, buf);
        for (int64_t i = 0; i < t.cols; i += VN)
            vput(y + i, w * vget(x + i, t.cols - i), t.cols - i);
        row_done(ym, r, y);
    }
}

void FN(cpu_scale_rows)(Device *d, Mat y, Mat x, Mat w)
{
    BUG_ON(y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    BUG_ON(w.rows != x.rows || w.cols != 1 || w.type != REAL_TYPE);
    Job j = {.d = d, .y = y, .x = x, .w = w};
    pool_run(d->pool, scale_item, &j, work_items(y));
}

/* Pieces of WORK_COLS columns, which stay in L1 after conversion, are summed one after the other. */
static void dots_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t r0 = item * work_rows(j->x.cols), end = r0 + work_rows(j->x.cols);
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *ybuf = FN(row_buf)(j->d, thread, 1);
    for (int64_t r = r0; r < end && r < j->x.rows; r++) {
        Vec sum[2] = {{0}};
        for (int64_t c = 0; c < j->x.cols; c += WORK_COLS) {
            int64_t n = j->x.cols - c < WORK_COLS ? j->x.cols - c : WORK_COLS, i = 0;
            const REAL *x = row_in(mat_cols(j->x, c, n), r, xbuf), *y = row_in(mat_cols(j->y, c, n), r, ybuf);
            for (; i + 2 * VN <= n; i += 2 * VN)
                for (int k = 0; k < 2; k++)
                    sum[k] += vload(x + i + k * VN) * vload(y + i + k * VN);
            for (; i < n; i += VN)
                sum[0] += vget(x + i, n - i) * vget(y + i, n - i);
        }
        *(REAL *)mat_at(j->w, r, 0) = vsum(sum[0] + sum[1]);
    }
}

void FN(cpu_row_dots)(Device *d, Mat dot, Mat x, Mat y)
{
    BUG_ON(y.rows != x.rows || y.cols != x.cols || y.type != x.type);
    BUG_ON(dot.rows != x.rows || dot.cols != 1 || dot.type != REAL_TYPE);
    Job j = {.d = d, .y = y, .x = x, .w = dot};
    pool_run(d->pool, dots_item, &j, row_items(x));
}
