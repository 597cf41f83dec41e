/* embed -- looks up rows of the token and position tables, and sums their gradients. */
#include "work.h"

#define COL_BLOCK 128          /* columns of an item of the backward */

typedef struct { Device *d; Mat y, wte, wpe; const int32_t *token, *position; int64_t v0; } Job;

static void fwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols), wte = mat_cols(j->wte, t.c0, t.cols);
    Mat wpe = mat_cols(j->wpe, t.c0, t.cols);
    REAL *tbuf = FN(row_buf)(j->d, thread, 0), *pbuf = FN(row_buf)(j->d, thread, 1);
    for (int64_t r = t.r0; r < t.r1; r++) {
        int64_t v = j->token[r] - j->v0;
        const REAL *a = v >= 0 && v < wte.rows ? row_in(wte, v, tbuf) : NULL, *b = NULL;
        if (wpe.p) {
            BUG_ON(j->position[r] < 0 || j->position[r] >= wpe.rows);
            b = row_in(wpe, j->position[r], pbuf);
        }
        REAL *y = row_out(ym, r, tbuf);
        for (int64_t i = 0; i < t.cols; i += VN) {
            Vec s = a ? vget(a + i, t.cols - i) : vset(0);
            vput(y + i, b ? s + vget(b + i, t.cols - i) : s, t.cols - i);
        }
        row_done(ym, r, y);
    }
}

void FN(cpu_embed_fwd)(Device *d, Mat y, const int32_t *token, const int32_t *position, Mat wte, int64_t v0,
                       Mat wpe)
{
    BUG_ON(wte.cols != y.cols || (wpe.p && wpe.cols != y.cols));
    Job j = {d, y, wte, wpe, token, position, v0};
    pool_run(d->pool, fwd_item, &j, work_items(y));
}

static void add_row(Mat w, int64_t row, const REAL *e)
{
    REAL *o = mat_at(w, row, 0);
    for (int64_t i = 0; i < w.cols; i += VN)
        vput(o + i, vget(o + i, w.cols - i) + vget(e + i, w.cols - i), w.cols - i);
}

/* An item is a block of columns and goes over all tokens in order, because two tokens may share a row. */
static void bwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t c0 = item * COL_BLOCK, w = j->y.cols - c0 < COL_BLOCK ? j->y.cols - c0 : COL_BLOCK;
    Mat dy = mat_cols(j->y, c0, w), dwte = mat_cols(j->wte, c0, w), dwpe = mat_cols(j->wpe, c0, w);
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    for (int64_t r = 0; r < dy.rows; r++) {
        const REAL *e = row_in(dy, r, buf);
        int64_t v = j->token[r] - j->v0;
        if (dwte.p && v >= 0 && v < dwte.rows)
            add_row(dwte, v, e);
        if (dwpe.p) {
            BUG_ON(j->position[r] < 0 || j->position[r] >= dwpe.rows);
            add_row(dwpe, j->position[r], e);
        }
    }
}

void FN(cpu_embed_bwd)(Device *d, Mat dwte, int64_t v0, Mat dwpe, Mat dy, const int32_t *token,
                       const int32_t *position)
{
    BUG_ON(dwte.p && (dwte.cols != dy.cols || dwte.type != REAL_TYPE));
    BUG_ON(dwpe.p && (dwpe.cols != dy.cols || dwpe.type != REAL_TYPE));
    Job j = {d, dy, dwte, dwpe, token, position, v0};
    pool_run(d->pool, bwd_item, &j, (dy.cols + COL_BLOCK - 1) / COL_BLOCK);
}
