/* colsum -- gradients that are sums over rows: the norms' gain and bias, and the bias of a linear layer.
 *
 * Rows are cut into blocks. An item adds up the rows of one block in order; then the sums of the blocks
 * are added in order. The number of rows in a block follows from the shape alone. Two levels of sums
 * keep the error of long F32 sums small. */
#include "work.h"

#define BLOCK_ROWS 64
#define PIECE 1024             /* columns of an item */

typedef struct {
    Device *d;
    Mat out[2];                /* dgain, dbias; either may be absent */
    Mat dy, x, stats;          /* x and stats are used for dgain only */
    int groups;
    int64_t n, rows, blocks;   /* columns of out, rows of a block, number of blocks */
} Job;

static int64_t pieces(const Job *j) { return (j->n + PIECE - 1) / PIECE; }
static int64_t piece_cols(const Job *j, int64_t c0) { return j->n - c0 < PIECE ? j->n - c0 : PIECE; }

/* Returns the sum of a block for out[k], [n]. The sums of all blocks lie in two row buffers of thread
 * 0. */
static REAL *partial(const Job *j, int k, int64_t b) { return FN(row_buf)(j->d, 0, 2 + k) + b * j->n; }

static void block_item(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    int64_t block = item / pieces(j), end = (block + 1) * j->rows;
    int64_t c0 = item % pieces(j) * PIECE, w = piece_cols(j, c0);
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *dybuf = FN(row_buf)(j->d, thread, 1);
    REAL *gain = partial(j, 0, block) + c0, *bias = partial(j, 1, block) + c0;
    memset(gain, 0, (size_t)w * sizeof(REAL));
    memset(bias, 0, (size_t)w * sizeof(REAL));
    for (int64_t r = block * j->rows; r < end && r < j->dy.rows; r++)
        for (int g = 0; g < j->groups; g++) {
            const REAL *dy = row_in(mat_cols(j->dy, g * j->n + c0, w), r, dybuf), *x = NULL, *stats = NULL;
            if (j->out[0].p) {
                x = row_in(mat_cols(j->x, g * j->n + c0, w), r, xbuf);
                stats = mat_at(j->stats, r, 2 * g);
            }
            for (int64_t i = 0; i < w; i += VN) {
                Vec e = vget(dy + i, w - i);
                if (x) {
                    Vec xh = (vget(x + i, w - i) - stats[0]) * stats[1];
                    vput(gain + i, vget(gain + i, w - i) + e * xh, w - i);
                }
                vput(bias + i, vget(bias + i, w - i) + e, w - i);
            }
        }
}

static void total_item(void *ctx, int64_t item, int thread)
{
    (void)thread;
    const Job *j = ctx;
    int64_t c0 = item * PIECE, w = piece_cols(j, c0);
    for (int k = 0; k < 2; k++) {
        Mat part = mat_cols(j->out[k], c0, w);
        REAL piece[PIECE];
        if (!part.p)
            continue;
        const REAL *old = row_in(part, 0, piece);
        REAL *out = row_out(part, 0, piece);
        for (int64_t i = 0; i < w; i += VN) {
            Vec sum = {0};
            for (int64_t b = 0; b < j->blocks; b++)
                sum += vget(partial(j, k, b) + c0 + i, w - i);
            vput(out + i, vget(old + i, w - i) + sum, w - i);
        }
        row_done(part, 0, out);
    }
}

static void column_sums(Job *j)
{
    j->n = j->dy.cols / j->groups;
    BUG_ON(j->dy.cols % j->groups || j->n > ROW_MAX);
    for (int k = 0; k < 2; k++)
        BUG_ON(j->out[k].p && (j->out[k].cols != j->n || !is_gradient(j->out[k].type, j->dy.type)));
    if (!j->n || !j->dy.rows)
        return;
    int64_t most = ROW_MAX / j->n, blocks = (j->dy.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    j->rows = BLOCK_ROWS * ((blocks + most - 1) / most);
    j->blocks = (j->dy.rows + j->rows - 1) / j->rows;
    pool_run(j->d->pool, block_item, j, j->blocks * pieces(j));
    pool_run(j->d->pool, total_item, j, pieces(j));
}

void FN(norm_columns)(Device *d, Mat dgain, Mat dbias, Mat dy, Mat x, Mat stats, int groups)
{
    BUG_ON(dy.rows != x.rows || dy.cols != x.cols || stats.type != REAL_TYPE || !dgain.p);
    BUG_ON(stats.rows != x.rows || stats.cols != 2 * groups);
    Job j = {.d = d, .out = {dgain, dbias}, .dy = dy, .x = x, .stats = stats, .groups = groups};
    column_sums(&j);
}

void FN(cpu_bias_bwd)(Device *d, Mat db, Mat dy)
{
    BUG_ON(db.cols != dy.cols);
    for (int64_t at = 0; at < dy.cols; at += ROW_MAX) {        /* the bias of an MLP may be longer */
        int64_t n = dy.cols - at < ROW_MAX ? dy.cols - at : ROW_MAX;
        Job j = {.d = d, .out = {{0}, mat_cols(db, at, n)}, .dy = mat_cols(dy, at, n), .groups = 1};
        column_sums(&j);
    }
}
