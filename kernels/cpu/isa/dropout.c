/* dropout -- dropout with a residual; masks from Philox4x32-10 (isa.h), a vector of counters at a
 * time. */
#include "work.h"

#define WN ((int)(VBYTES / 8))     /* counters of a vector */

/* out = a[0] b[0] a[2] b[2] ... a[1] b[1] a[3] b[3] ... */
static inline void store_pairs(void *out, WVec a, WVec b)
{
    WVec even, odd;
#if defined(ISA_avx512)
    even = (WVec)_mm512_unpacklo_epi64((__m512i)a, (__m512i)b);
    odd = (WVec)_mm512_unpackhi_epi64((__m512i)a, (__m512i)b);
#elif defined(ISA_avx2)
    even = (WVec)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
    odd = (WVec)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
#else
    for (int i = 0; i < WN; i += 2) {
        even[i] = a[i], even[i + 1] = b[i];
        odd[i] = a[i + 1], odd[i + 1] = b[i + 1];
    }
#endif
    memcpy(out, &even, sizeof even);
    memcpy((char *)out + sizeof even, &odd, sizeof odd);
}

void FN(draw_words)(uint32_t *words, int64_t n, uint64_t key, int64_t first, int64_t position, int64_t sample)
{
    WVec step, zero = {0};
    for (int i = 0; i < WN; i++)
        step[i] = (uint64_t)(i / 2 + i % 2 * WN / 2);      /* the order that store_pairs undoes */
    for (int64_t i = 0; i < n; i += WN * 4) {
        WVec c[4] = {(uint64_t)(first + i / 4) + step, (uint64_t)position - zero, (uint64_t)sample - zero,
                     ((uint64_t)sample >> 32) - zero};
        vphilox(c, key);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        store_pairs(words + i, c[0] | c[1] << 32, c[2] | c[3] << 32);
#else
        store_pairs(words + i, c[0] << 32 | c[1], c[2] << 32 | c[3]);
#endif
    }
}

typedef struct { Device *d; Mat y, x, res; const Dropout *s; } Job;

static void item_fn(void *ctx, int64_t item, int thread)
{
    const Job *j = ctx;
    const Dropout *s = j->s;
    Work t = work_at(j->y, item);
    Mat ym = mat_cols(j->y, t.c0, t.cols), xm = mat_cols(j->x, t.c0, t.cols);
    Mat rm = mat_cols(j->res, t.c0, t.cols);
    REAL *xbuf = FN(row_buf)(j->d, thread, 0), *rbuf = FN(row_buf)(j->d, thread, 1);
    REAL *f = FN(row_buf)(j->d, thread, 2), keep = (REAL)(1 / (1 - s->p)), jitter = (REAL)s->jitter;
    uint32_t *words = (void *)FN(row_buf)(j->d, thread, 3), limit = dropout_limit(s->p);
    int64_t first = (s->col0 + t.c0) / 4, skip = (s->col0 + t.c0) % 4;   /* words of columns before c0 */
    for (int64_t i = 0; i < t.cols; i++)
        f[i] = 1;
    for (int64_t r = t.r0; r < t.r1; r++) {
        const REAL *x = row_in(xm, r, xbuf), *res = j->res.p ? row_in(rm, r, rbuf) : NULL;
        REAL *y = row_out(ym, r, xbuf);
        if (s->p > 0 || s->jitter > 0) {
            int64_t row = s->row0 + r, seq = s->runs->stride;
            int64_t position = positions_at(s->runs, row % seq);
            FN(draw_words)(words, skip + t.cols, s->key, first, position, s->sample[row / seq]);
            for (int64_t i = 0; i < t.cols && s->jitter > 0; i++)
                f[i] = 1 + jitter * ((REAL)(int32_t)(words[skip + i] >> 8) * (REAL)0x1p-23 - 1);
            for (int64_t i = 0; i < t.cols && s->jitter <= 0; i++)
                f[i] = words[skip + i] >= limit ? keep : 0;
        }
        for (int64_t i = 0; i < t.cols; i += VN) {
            Vec v = vget(x + i, t.cols - i) * vget(f + i, t.cols - i);
            vput(y + i, res ? v + vget(res + i, t.cols - i) : v, t.cols - i);
        }
        row_done(ym, r, y);
    }
}

void FN(cpu_dropout_fwd)(Device *d, Mat y, Mat x, Mat res, const Dropout *s)
{
    BUG_ON(!(s->p >= 0 && s->p < 1 && s->jitter >= 0 && s->p * s->jitter == 0));
    BUG_ON(y.rows != x.rows || y.cols != x.cols || (res.p && (res.rows != x.rows || res.cols != x.cols)));
    Job j = {d, y, x, res, s};
    pool_run(d->pool, item_fn, &j, work_items(y));
}

/* The backward applies the same mask: it is the forward without a residual. */
void FN(cpu_dropout_bwd)(Device *d, Mat dx, Mat dy, const Dropout *s)
{
    FN(cpu_dropout_fwd)(d, dx, dy, (Mat){0}, s);
}
