/* embed -- looks up rows of the token and position tables, and sums their gradients. */
#include "work.h"

#define COL_BLOCK 128          /* columns of an item of the backward */
#define TOKENS 1024            /* tokens whose sums are added to a BF16 gradient at a time */

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

/* dw += rows [from, to) of dy, at most TOKENS, by their rows row_of - row0 of dw, which is BF16: the tokens
 * of a row are summed first, so that this row is rounded once. */
static void add_rounded(const Job *j, int thread, Mat dw, const int32_t *row_of, int64_t row0, Mat dy,
                        int64_t from, int64_t to)
{
    char done[TOKENS] = {0};
    REAL *buf = FN(row_buf)(j->d, thread, 0), sum[COL_BLOCK];
    for (int64_t r = from; r < to; r++) {
        int64_t v = row_of[r] - row0;
        if (done[r - from] || v < 0 || v >= dw.rows)
            continue;
        FN(load_reals)(sum, mat_at(dw, v, 0), dw.cols, dw.type);
        for (int64_t q = r; q < to; q++)
            if (row_of[q] == row_of[r]) {
                add_row(mat(sum, 1, dw.cols, REAL_TYPE), 0, row_in(dy, q, buf));
                done[q - from] = 1;
            }
        FN(store_reals)(mat_at(dw, v, 0), sum, dw.cols, dw.type);
    }
}

/* Adds rows of dy to a table's gradient. Returns at once where there is none. */
static void add_table(const Job *j, int thread, Mat dw, const int32_t *row_of, int64_t row0, Mat dy)
{
    REAL *buf = FN(row_buf)(j->d, thread, 0);
    if (!dw.p)
        return;
    for (int64_t r = 0; dw.type != REAL_TYPE && r < dy.rows; r += TOKENS)
        add_rounded(j, thread, dw, row_of, row0, dy, r, r + TOKENS < dy.rows ? r + TOKENS : dy.rows);
    for (int64_t r = 0; dw.type == REAL_TYPE && r < dy.rows; r++) {
        int64_t v = row_of[r] - row0;
        if (v >= 0 && v < dw.rows)
            add_row(dw, v, row_in(dy, r, buf));
    }
}

/* An item is a block of columns and goes over all tokens in order, because two tokens may share a row. */
static void bwd_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t c0 = item * COL_BLOCK, w = j->y.cols - c0 < COL_BLOCK ? j->y.cols - c0 : COL_BLOCK;
    Mat dy = mat_cols(j->y, c0, w), dwte = mat_cols(j->wte, c0, w), dwpe = mat_cols(j->wpe, c0, w);
    for (int64_t r = 0; r < dy.rows && dwpe.p; r++)
        BUG_ON(j->position[r] < 0 || j->position[r] >= dwpe.rows);
    add_table(j, thread, dwte, j->token, j->v0, dy);
    add_table(j, thread, dwpe, j->position, 0, dy);
}

void FN(cpu_embed_bwd)(Device *d, Mat dwte, int64_t v0, Mat dwpe, Mat dy, const int32_t *token,
                       const int32_t *position)
{
    BUG_ON(dwte.p && (dwte.cols != dy.cols || !is_gradient(dwte.type, dy.type)));
    BUG_ON(dwpe.p && (dwpe.cols != dy.cols || !is_gradient(dwpe.type, dy.type)));
    Job j = {d, dy, dwte, dwpe, token, position, v0};
    pool_run(d->pool, bwd_item, &j, (dy.cols + COL_BLOCK - 1) / COL_BLOCK);
}
