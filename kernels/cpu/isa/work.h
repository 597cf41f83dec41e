/* work -- how the row-wise and elementwise ops cut a matrix into work items. The cut is a function of
 * the shape alone, so that no result depends on the number of threads. */
#ifndef WORK_H
#define WORK_H
#include "isa.h"

#define WORK 16384             /* elements of an item, about: 64 KiB of F32, a few microseconds */
#define WORK_COLS 4096         /* most columns of an elementwise item: conversions stay in L1 and L2 */

/* Row-wise: item i starts at row i*work_rows(cols) and has work_rows(cols) rows, the last item fewer. */
static inline int64_t work_rows(int64_t cols) { return cols >= WORK ? 1 : WORK / (cols > 0 ? cols : 1); }
static inline int64_t row_items(Mat m) { return (m.rows + work_rows(m.cols) - 1) / work_rows(m.cols); }

/* Elementwise: an item is rows [r0, r1) of `cols` columns from c0 on: whole rows, or WORK_COLS columns
 * of them where rows are wider. */
typedef struct { int64_t r0, r1, c0, cols; } Work;
static inline int64_t work_across(Mat m) { return (m.cols + WORK_COLS - 1) / WORK_COLS; }
static inline int64_t work_down(Mat m) { return work_rows(m.cols < WORK_COLS ? m.cols : WORK_COLS); }
static inline int64_t work_items(Mat m)
{
    return (m.rows + work_down(m) - 1) / work_down(m) * work_across(m);
}
static inline Work work_at(Mat m, int64_t item)
{
    int64_t r = item / work_across(m) * work_down(m), end = r + work_down(m);
    int64_t c = item % work_across(m) * WORK_COLS;
    return (Work){r, end < m.rows ? end : m.rows, c, m.cols - c < WORK_COLS ? m.cols - c : WORK_COLS};
}
#endif
