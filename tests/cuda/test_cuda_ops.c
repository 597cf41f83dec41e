/* test_cuda_ops -- every op of a GPU against its CPU twin in F64, random sizes and types. See
 * cuda_ops.h.
 *   test_cuda_ops [NAME [ROUNDS]]      ops whose case's name begins with NAME; ROUNDS draws of each case and
 *                                      type (default 6) */
#include "cuda_ops.h"

/* ---- comparing ---- */

/* Copies device memory to the host as a checkpoint does: read_async into pinned memory. */
static void be_told(Device *d, void *dst, const void *src, size_t bytes)
{
    void *host = d->host_take(d, bytes);
    d->read_wait(d, d->read_async(d, host, src, bytes));
    memcpy(dst, host, bytes);
    d->host_give(d, host, bytes);
}

static void bench_read(Bench *b)
{
    for (int i = 0; i < b->n; i++) {
        const Tensor *t = &b->t[i];
        if (t->mapped)
            be_told(b->d, t->host, t->base, t->bytes);
        else
            b->d->get(b->d, t->host, t->base, t->bytes);
    }
}

static void bench_close(Bench *b)
{
    for (int i = 0; i < b->n; i++) {
        if (b->t[i].mapped)
            b->d->mapped_give(b->d, b->t[i].base, b->t[i].bytes);
        else
            b->d->give(b->d, b->t[i].base, b->t[i].bytes);
        free(b->t[i].host);
    }
}

/* Limit of an element's difference: the error of F32 arithmetic, relative to the tensor's largest
 * element, plus half a unit of the last place of the type that the element is rounded to. */
static double tolerance(const Tensor *t, double x, double largest)
{
    double half = t->rounded == BF16  ? 0x1p-8 * fabs(x)
                  : t->rounded == F16 ? fmax(0x1p-11 * fabs(x), 0x1p-25)
                                      : 0;
    return half + 2e-6 * largest * t->loose;
}

static void compare_numbers(const char *what, int k, const Tensor *t, const Tensor *ref)
{
    const Mat m = t->m;
    const char *p = tensor_host(t), *q = tensor_host(ref);
    double worst = 0, largest = t->largest, at[2] = {0, 0};
    int wild = 0, stray = 0;
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        double z = get(q, i, ref->m.type);
        largest = isfinite(z) ? fmax(largest, fabs(z)) : largest;
    }
    for (int64_t r = 0; r < m.rows; r++) {
        for (int64_t c = 0; c < m.cols; c++) {
            double y = get(p, r * m.ld + c, m.type), z = get(q, r * m.cols + c, ref->m.type);
            int finite = isfinite(rounded(z, t->rounded));
            wild += finite ? !isfinite(y) : !(y == rounded(z, t->rounded) || (isnan(y) && isnan(z)));
            double off = isfinite(y) && finite ? fabs(y - z) / fmax(tolerance(t, z, largest), 1e-300) : 0;
            if (off > worst)
                worst = off, at[0] = y, at[1] = z;
        }
        for (int64_t c = m.cols; c < m.ld; c++)
            stray += !isnan(get(p, r * m.ld + c, m.type));
    }
    CHECK(worst <= 1 && !wild && !stray,
          "%s: tensor %d [%lld, %lld] ld %lld %s: %.3g times the tolerance (%.9g for %.9g, largest %g), %d "
          "not finite, %d beyond a row",
          what, k, (long long)m.rows, (long long)m.cols, (long long)m.ld, dtype_name(m.type), worst, at[0],
          at[1], largest, wild, stray);
}

static void compare_tensors(const char *what, const Bench *b, const Bench *ref)
{
    for (int i = 0; i < b->n; i++) {
        const Tensor *t = &b->t[i], *r = &ref->t[i];
        if (t->role == OUT || t->role == INOUT)
            compare_numbers(what, i, t, r);
        else if (t->role == EXACT) {
            const Exact *got = (const Exact *)t->host, *want = (const Exact *)r->host;
            for (size_t k = 0; k < t->bytes / sizeof *got; k++) {
                double x = exact_round(&got[k]), y = exact_round(&want[k]);
                CHECK(fabs(x - y) <= 1e-12 * fabs(y) || (isnan(x) && isnan(y)),
                      "%s: sum %zu of tensor %d is %.17g for %.17g",
                      what, k, i, x, y);
            }
        } else if (t->role == RAW)
            CHECK(!memcmp(t->host, r->host, t->bytes), "%s: input %d was written to", what, i);
    }
}

static int64_t mapped_tensors;         /* of all benches */

static Bench bench_run(void (*fn)(Bench *b), Device *d, int oracle, Dtype storage, uint64_t seed, int tight)
{
    Bench b = {.d = d, .oracle = oracle, .storage = storage, .seed = seed, .tight = tight};
    fn(&b);
    for (int i = 0; i < b.n; i++)
        mapped_tensors += b.t[i].mapped;
    bench_read(&b);
    return b;
}

void compare_op(const char *what, void (*fn)(Bench *b), Device *oracle, Device *gpu, Dtype storage,
                uint64_t seed, int tight)
{
    char name[128];
    snprintf(name, sizeof name, "%s %s seed %llu%s", what, dtype_name(storage), (unsigned long long)seed,
             tight ? " tight" : "");
    Bench ref = bench_run(fn, oracle, 1, storage, seed, tight),
          one = bench_run(fn, gpu, 0, storage, seed, tight),
          two = bench_run(fn, gpu, 0, storage, seed, tight);
    CHECK(ref.n == one.n && one.n == two.n && ref.draws == one.draws,
          "%s: a case draws what depends on the device", name);
    compare_tensors(name, &one, &ref);
    for (int i = 0; i < one.n; i++)
        CHECK(!memcmp(one.t[i].host, two.t[i].host, one.t[i].bytes), "%s: tensor %d: another run, other bits",
              name, i);
    bench_close(&ref);
    bench_close(&one);
    bench_close(&two);
}

/* ---- cases ---- */

static const Dtype types[] = {F32, BF16, F16};

static void case_copy(Bench *b)
{
    int64_t rows = draw_size(b, 70), cols = draw_cols(b, 1100);
    Dtype to = types[draw(b, 0, 2)];
    state_begin(b);
    Mat x = input(b, rows, cols, b->storage, 1);
    state_end(b);
    b->d->copy(b->d, output(b, rows, cols, to), x);
}

static void case_zero(Bench *b)
{
    int64_t n = draw_size(b, 5000);
    state_begin(b);
    Mat y = output(b, 1, n, b->storage);
    state_end(b);
    b->d->zero(b->d, y.p, (size_t)n * dtype_size(y.type));
}

static void case_add(Bench *b)
{
    int64_t rows = draw_size(b, 70), cols = draw_cols(b, 1100);
    int wider = b->storage == BF16 && draw(b, 0, 1);       /* F32 += BF16 */
    Mat x = input(b, rows, cols, wider ? F32 : b->storage, 1), z = input(b, rows, cols, b->storage, 1);
    Mat y = output_or(b, wider || draw(b, 0, 1) ? x : z);
    b->d->add(b->d, y, x, z);
}

static void case_sum_parts(Bench *b)
{
    int64_t rows = draw_size(b, 40), cols = draw_cols(b, 1100), parts = draw(b, 1, 5);
    Mat x = input(b, parts * rows, cols, b->storage, 1);
    b->d->sum_parts(b->d, output(b, rows, cols, b->storage), x);
}

/* A gradient's type: F32, or BF16 where storage is. */
static Dtype gradient_type(Bench *b) { return b->storage == BF16 && draw(b, 0, 1) ? BF16 : F32; }

static void case_bias_bwd(Bench *b)
{
    int64_t rows = draw_size(b, 300), cols = draw_cols(b, 1100);
    Mat dy = input(b, rows, cols, b->storage, 1), db = changed(b, 1, cols, gradient_type(b), 1);
    b->d->bias_bwd(b->d, db, dy);
}

static Mat storage_input_or_none(Bench *b, int64_t rows, int64_t cols, double spread)
{
    return draw(b, 0, 1) ? input(b, rows, cols, b->storage, spread) : (Mat){0};
}

static void case_norm(Bench *b)
{
    int groups = draw(b, 0, 1) ? 1 : (int)draw(b, 2, 6);
    NormKind kind = draw(b, 0, 1) ? NORM_RMS : NORM_LAYER;
    int64_t rows = draw_size(b, 70), n = draw_cols(b, groups > 1 ? 128 : 2100);
    Mat x = input(b, rows, groups * n, b->storage, 2), gain = input(b, 1, n, b->storage, 1), none = {0};
    Mat bias = kind == NORM_LAYER ? storage_input_or_none(b, 1, n, 1) : none;
    Mat stats = output(b, rows, 2 * groups, F32), y = output(b, rows, groups * n, b->storage);
    loosen(b, 2);
    b->d->norm_fwd(b->d, y, stats, x, gain, bias, 1e-3, kind, groups);
    Mat dy = input(b, rows, groups * n, b->storage, 1), dres = storage_input_or_none(b, rows, groups * n, 1);
    Dtype type = gradient_type(b);
    Mat dgain = changed(b, 1, n, type, 1);
    loosen(b, 4);
    Mat dbias = none;
    if (kind == NORM_LAYER && draw(b, 0, 1)) {
        dbias = changed(b, 1, n, type, 1);
        loosen(b, 4);
    }
    Mat dx = output(b, rows, groups * n, b->storage);
    loosen(b, 8);
    b->d->norm_bwd(b->d, dx, dgain, dbias, dres, dy, x, stats, gain, kind, groups);
}

static void case_act(Bench *b)
{
    ActKind kind = (ActKind)draw(b, 0, 5);
    int64_t rows = draw_size(b, 70), cols = draw_cols(b, 1100), wide = act_gated(kind) ? 2 * cols : cols;
    Mat h = input(b, rows, wide, b->storage, 2), da = input(b, rows, cols, b->storage, 1);
    b->d->act_fwd(b->d, output(b, rows, cols, b->storage), h, kind);
    b->d->act_bwd(b->d, output_or(b, h), da, h, kind);
}

/* Every third element of the last tensor, from element `first` on, is the log-sum-exp of no keys. */
static void no_keys(Bench *b, int64_t first)
{
    Tensor *t = &b->t[b->n - 1];
    for (int64_t i = first; i < t->m.rows * t->m.cols; i += 3)
        put(tensor_host(t), i / t->m.cols * t->m.ld + i % t->m.cols, t->m.type, -INFINITY);
    tensor_put(b, t);
}

static void case_merge(Bench *b)
{
    int heads = (int)draw(b, 1, 10), dim = (int)draw_cols(b, 70);
    int64_t rows = draw_size(b, 70);
    Mat o = changed(b, rows, heads * dim, F32, 1), lse = changed(b, rows, heads, F32, 2);
    no_keys(b, 0);
    Mat piece = input(b, rows, heads * dim, b->storage, 1), plse = input(b, rows, heads, F32, 2);
    no_keys(b, 1);
    b->d->attention_merge(b->d, o, lse, piece, plse);
}

static void case_rope(Bench *b)
{
    int heads = (int)draw(b, 1, 5), dim = 2 * (int)draw(b, 1, 40);
    int rot = draw(b, 0, 1) ? dim : 2 * (int)draw(b, 1, dim / 2);
    int64_t rows = draw_size(b, 70);
    dim = b->tight ? (dim + 15) / 16 * 16 : dim;
    rot = b->tight ? dim : rot;
    Mat x = changed(b, rows, heads * dim, b->storage, 1), table = input(b, 64, rot, F32, 1);
    const int32_t *position = whole(b, rows, 0, 63);
    b->d->rope(b->d, x, dim, table, position, (int)draw(b, 0, 1));
}

static void case_embed(Bench *b)
{
    int64_t rows = draw_size(b, 150), cols = draw_cols(b, 600), vocab = draw_size(b, 60), v0 = draw(b, 0, 20);
    /* one case in four has hundreds of equal tokens: their gradients are summed in several segments */
    int many = draw(b, 0, 3) == 0;
    if (many)
        rows = draw(b, 300, 700), cols = draw_cols(b, 70);
    const int32_t *token = whole(b, rows, many ? v0 : 0, many ? v0 + 1 : 79),
                  *position = whole(b, rows, 0, 31);
    int positions = (int)draw(b, 0, 1);
    Mat none = {0}, wte = input(b, vocab, cols, b->storage, 1);
    Mat wpe = positions ? input(b, 32, cols, b->storage, 1) : none;
    b->d->embed_fwd(b->d, output(b, rows, cols, b->storage), token, position, wte, v0, wpe);
    Dtype type = gradient_type(b);
    Mat dy = input(b, rows, cols, b->storage, 1), dwte = changed(b, vocab, cols, type, 1), dwpe = none;
    loosen(b, 4);
    if (positions) {
        dwpe = changed(b, 32, cols, type, 1);
        loosen(b, 4);
    }
    b->d->embed_bwd(b->d, dwte, v0, dwpe, dy, token, position);
}

static Dropout draw_dropout(Bench *b, int64_t rows)
{
    int64_t sample[64], seq = draw(b, 1, rows);
    for (int i = 0; i < 64; i++)
        sample[i] = (int64_t)draw(b, 0, 1 << 30) << 8;
    if (rows / seq > 62)
        seq = rows;
    double p = draw(b, 0, 3) ? 0.1 * (double)draw(b, 1, 9) : 0;
    int64_t col0 = draw(b, 0, 40) * (b->tight ? 8 : 1), row0 = draw(b, 0, seq - 1);
    static Positions runs;             /* two runs, with a gap between them */
    int32_t start = (int32_t)draw(b, 0, 99), half = (int32_t)draw(b, 0, seq - 1);
    int32_t gap = (int32_t)draw(b, 0, 9);
    runs = (Positions){.stride = seq, .count = 2,
                       .run = {{start, half, 0}, {start + half + gap, (int32_t)seq - half, half}}};
    return (Dropout){.p = p, .key = 0x1234567890abcdefull, .sample = raw(b, sample, sizeof sample),
                     .runs = &runs, .col0 = col0, .row0 = row0};
}

static void case_dropout(Bench *b)
{
    int64_t rows = draw_size(b, 70), cols = draw_cols(b, 1100);
    Dropout s = draw_dropout(b, rows);
    Mat x = input(b, rows, cols, b->storage, 1), res = storage_input_or_none(b, rows, cols, 1);
    b->d->dropout_fwd(b->d, output(b, rows, cols, b->storage), x, res, &s);
    b->d->dropout_bwd(b->d, output_or(b, x), x, &s);
}

/* The GPU computes ln from y as it is stored, the CPU from y in F64: 16-bit types have looser bounds for
 * ln and stats. */
static void case_add_norm(Bench *b)
{
    int64_t rows = draw_size(b, 70), cols = draw_cols(b, 2100);
    NormKind kind = draw(b, 0, 1) ? NORM_RMS : NORM_LAYER;
    Dropout s = draw_dropout(b, rows);
    double loose = b->storage == F32 ? 4 : b->storage == BF16 ? 40000 : 5000;
    Mat x = input(b, rows, cols, b->storage, 1), res = input(b, rows, cols, b->storage, 1), none = {0};
    Mat gain = input(b, 1, cols, b->storage, 1),
        bias = kind == NORM_LAYER ? input(b, 1, cols, b->storage, 1) : none;
    Mat y = output(b, rows, cols, b->storage), stats = output(b, rows, 2, F32);
    loosen(b, loose);
    Mat ln = output(b, rows, cols, b->storage);
    loosen(b, loose);
    b->d->add_norm_fwd(b->d, y, ln, stats, x, res, &s, gain, bias, 1e-1, kind);
}

/* Index -1 is no row; a row of sum_rows is the sum of k rows of x. */
static void case_rows(Bench *b)
{
    int64_t rows = draw_size(b, 70), many = draw_size(b, 70), cols = draw_cols(b, 1100), k = draw(b, 1, 9);
    Mat x = input(b, many, cols, b->storage, 1);
    const int32_t *index = whole(b, rows, -1, many - 1), *sums = whole(b, rows * k, -1, many - 1);
    b->d->gather_rows(b->d, output(b, rows, cols, b->storage), x, index);
    b->d->sum_rows(b->d, output(b, rows, cols, b->storage), x, sums, (int)k);
    loosen(b, 4);
    Mat real = input(b, many, cols, F32, 1), z = input(b, many, cols, b->storage, 1);
    b->d->gather_rows(b->d, output(b, rows, cols, F32), real, index);
    Mat w = input(b, many, 1, F32, 1);
    b->d->row_dots(b->d, output(b, many, 1, F32), x, z);
    loosen(b, 8);
    b->d->scale_rows(b->d, output_or(b, x), x, w);
}

/* Logits are multiples of 1/16 in F64 and F32: rounding changes no choice, and many are equal. */
static Mat logits_of(Bench *b, int64_t rows, int64_t experts, double spread)
{
    Mat x = input(b, rows, experts, F32, spread);
    Tensor *t = &b->t[b->n - 1];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t e = 0; e < experts; e++) {
            int64_t at = i * t->m.ld + e;
            put(tensor_host(t), at, t->m.type, nearbyint(16 * get(tensor_host(t), at, t->m.type)) / 16);
        }
    tensor_put(b, t);
    return x;
}

static void case_route(Bench *b)
{
    int64_t rows = draw_size(b, 70), groups = draw(b, 0, 1) * draw(b, 1, 9), each = draw(b, 1, 40);
    int64_t experts = groups ? groups * each : draw_size(b, 300), per = draw(b, 1, groups ? each : experts);
    int64_t limit = groups ? draw(b, 1, groups) : 1;
    Routing r = {.topk = (int)(per * limit), .sigmoid = (int)draw(b, 0, 1), .pre_softmax = (int)draw(b, 0, 1),
                 .scale = draw(b, 0, 1) ? 2.5 : 1, .groups = (int)groups, .group_topk = (int)limit,
                 .z = draw(b, 0, 1) ? 0.01 : 0, .row0 = draw(b, 0, 9), .each = draw(b, 1, 80),
                 .given = !draw(b, 0, 3)};
    /* far: most scores are 0, in half of the cases that do not choose by scores alone */
    int biased = (int)draw(b, 0, 1), far = !r.sigmoid && (biased || !groups) && draw(b, 0, 1);
    if (far && per > 2)
        r.topk = (int)(2 * limit);     /* far above the chosen ones there are others */
    Mat none = {0}, logits = logits_of(b, rows, experts, far ? 100 : 2);
    Mat bias = biased ? input(b, 1, experts, F32, far ? 1 : 0.1) : none;
    Mat weight = output(b, rows, r.topk, F32);
    loosen(b, 4);
    Mat scores = output(b, rows, experts, F32);
    loosen(b, 4);
    int32_t *choice, *first = xcalloc((size_t)(rows * r.topk), sizeof *choice);
    for (int64_t i = 0; i < rows * r.topk && r.given; i++)
        first[i] = (int32_t)((i / r.topk * 5 + i % r.topk) % experts);
    choice = raw(b, first, (size_t)(rows * r.topk) * sizeof *choice);
    free(first);
    b->d->route_fwd(b->d, choice, weight, scores, logits, bias, &r);
    Mat dweight = input(b, rows, r.topk, F32, 1);
    Mat push = draw(b, 0, 1) ? input(b, (r.row0 + rows - 1) / r.each + 1, experts, F32, 1) : none;
    Mat dlogits = output_or(b, logits);
    for (int i = 0; i < b->n; i++)     /* dlogits is made of differences of numbers of dweight's size */
        if (b->t[i].m.p == dlogits.p)
            b->t[i].loose = 16, b->t[i].largest = 1;
    Mat stats = output(b, 3, rows, F32);
    b->t[b->n - 1].loose = 16, b->t[b->n - 1].largest = far ? 100 : 1;    /* differences of logits */
    b->d->route_stats(b->d, stats, logits, push, &r);
    b->d->route_bwd(b->d, dlogits, dweight, logits, choice, push, &r);
}

/* Ops on the rows of an expert that has no token write nothing. */
static void case_none(Bench *b)
{
    int64_t in = draw_cols(b, 40), n = draw_cols(b, 40), r = draw(b, 0, 1) * 4;
    ActKind kind = (ActKind)draw(b, 0, 5);
    Mat x = mat_rows(output(b, 4, in, b->storage), r, 0), y = mat_rows(output(b, 4, n, b->storage), r, 0);
    Mat h = mat_rows(output(b, 4, act_width(kind, n), b->storage), r, 0);
    Mat w = input(b, n, in, b->storage, 1), wh = input(b, h.cols, in, b->storage, 1), none = {0};
    Mat bias = storage_input_or_none(b, 1, n, 1), w2 = input(b, in, n, b->storage, 1);
    Mat dw = changed(b, n, in, F32, 1), db = draw(b, 0, 1) ? changed(b, 1, n, F32, 1) : none;
    Mat real = mat(NULL, 0, 1, dw.type);
    b->d->linear(b->d, y, x, w, bias);
    b->d->matmul(b->d, x, y, 0, w, 0, (int)draw(b, 0, 1));
    b->d->linear_bwd_w(b->d, dw, db, y, x, 1);
    b->d->act_fwd(b->d, y, h, kind);
    b->d->act_bwd(b->d, h, y, h, kind);
    b->d->linear_act_fwd(b->d, y, h, x, wh, none, kind);
    b->d->linear_act_bwd_x(b->d, h, y, x, w2, h, kind);
    b->d->gather_rows(b->d, y, y, NULL);
    b->d->sum_rows(b->d, y, y, NULL, 2);
    b->d->scale_rows(b->d, y, y, real);
    b->d->row_dots(b->d, real, y, y);
    Mat logits = mat(NULL, 0, 3, real.type);
    Routing rule = {.topk = 1, .scale = 1};
    b->d->route_fwd(b->d, NULL, real, logits, logits, none, &rule);
    b->d->route_bwd(b->d, logits, real, logits, NULL, none, &rule);
    b->d->route_stats(b->d, mat(NULL, 3, 0, real.type), logits, none, &rule);
}

/* BF16 logits have a BF16 gradient. */
static Dtype logits_type(Bench *b) { return b->storage == BF16 && draw(b, 0, 1) ? BF16 : F32; }

static void case_xent(Bench *b)
{
    int64_t rows = draw_size(b, 40), cols = draw_cols(b, 5100), valid = draw(b, 1, cols), v0 = draw(b, 0, 9);
    int64_t total = rows + draw(b, 0, 20), n = draw(b, 0, 1) ? rows : 1;
    RowMap map = {n, n == rows ? total - rows : 0, 1};
    Mat none = {0}, logits = input(b, rows, cols, logits_type(b), 3), parts = output(b, 2 * rows, 3, F32);
    Mat stats = output(b, rows, 3, F32);
    loosen(b, 4);
    const int32_t *label = whole(b, total, v0, v0 + valid - 1);
    float mask[64];
    for (int i = 0; i < 64; i++)
        mask[i] = (float)draw(b, 0, 2) / 2;
    int masked = (int)draw(b, 0, 1);
    const float *m = raw(b, mask, sizeof mask);
    int64_t cut = draw(b, 0, cols), left = valid < cut ? valid : cut;
    b->d->xent_stats(b->d, mat_rows(parts, 0, rows), mat_cols(logits, 0, cut), label, map, v0, left);
    b->d->xent_stats(b->d, mat_rows(parts, rows, rows), mat_cols(logits, cut, cols - cut), label, map,
                     v0 + cut, valid - left);
    b->d->xent_combine(b->d, stats, parts);
    Mat loss = changed(b, total, 1, F32, 1);
    loosen(b, 4);
    Mat dlogits = draw(b, 0, 3) ? output(b, rows, cols, b->storage) : none;
    b->d->xent_grad(b->d, loss, dlogits, logits, stats, label, masked ? m : NULL, map, v0, valid, 0.25);
}

static void case_xent_whole(Bench *b)
{
    /* rows that shared memory has whole, in part, and not at all */
    int wide = !draw(b, 0, 2);
    int64_t rows = draw_size(b, 9), cols = wide ? draw(b, 3600, 8000) * 8 : draw_cols(b, 20000);
    int64_t valid = wide ? cols - draw(b, 0, 9) : draw(b, 1, cols);
    int64_t total = rows + draw(b, 0, 20);
    RowMap map = {rows, total - rows, 1};
    Mat none = {0}, logits = input(b, rows, cols, logits_type(b), 3), stats = changed(b, rows, 3, F32, 1);
    b->t[b->n - 1].role = IN;                          /* scratch memory: not compared */
    const int32_t *label = whole(b, total, 0, valid - 1);
    float mask[64];
    for (int i = 0; i < 64; i++)
        mask[i] = (float)draw(b, 0, 2) / 2;
    const float *m = raw(b, mask, sizeof mask);
    Mat loss = changed(b, total, 1, F32, 1);
    loosen(b, 4);
    Mat dlogits = draw(b, 0, 3) ? output(b, rows, cols, b->storage) : none;
    b->d->xent(b->d, loss, dlogits, logits, stats, label, draw(b, 0, 1) ? m : NULL, map, valid, 0.25);
}

static Exact *exact(Bench *b, int64_t n)
{
    Tensor *t = tensor_add(b, EXACT, 1, n * (int64_t)sizeof(Exact) / 8, I64);
    memset(t->host, 0, t->bytes);
    tensor_put(b, t);
    return t->m.p;
}

static void case_sums(Bench *b)
{
    int64_t rows = draw_size(b, 70), cols = draw_cols(b, 1100), n = draw_size(b, 40000);
    Mat x = input(b, rows, cols, F32, 1), y = input(b, 1, n, b->storage, 1), z = input(b, 1, n, F32, 100);
    Mat sum = changed(b, 1, 1, F64, 1);
    loosen(b, 1e-3);
    b->d->sum(b->d, sum.p, x);
    Exact *e = exact(b, 1);
    b->d->squares(b->d, &(Squares){e, y.p, n}, 1, y.type);
    b->d->squares(b->d, &(Squares){e, z.p, n}, 1, z.type);
    b->d->carry(b->d, e, 1);
}

/* Lists within the entries that one launch takes, and longer ones; each entry has its own sum, or
 * neighbours share one. */
static void case_squares(Bench *b)
{
    int64_t count = draw(b, 0, 1) ? draw(b, 250, 600) : draw(b, 1, 9), n = draw_size(b, 150000),
            share = draw(b, 1, 3);
    Squares *list = xcalloc((size_t)count, sizeof *list);
    state_begin(b);
    Mat x = input(b, 1, n, draw(b, 0, 1) ? b->storage : F32, 1);
    state_end(b);
    Exact *e = exact(b, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t each = draw(b, 0, 7) ? draw(b, 1, n < 900 ? n : 900) : draw(b, 1, n),
                at = draw(b, 0, n - each);
        list[i] = (Squares){e + i / share, (char *)x.p + (size_t)at * dtype_size(x.type), each};
    }
    b->d->squares(b->d, list, count, x.type);
    b->d->carry(b->d, e, count);
    free(list);
}

/* The same lists, of arrays that start and end at any byte. The sums are compared bit for bit. */
static void case_hash(Bench *b)
{
    int64_t count = draw(b, 0, 1) ? draw(b, 250, 600) : draw(b, 1, 9), n = draw_size(b, 100000),
            share = draw(b, 1, 3);
    state_begin(b);
    const char *x = (const char *)whole(b, n, INT32_MIN, INT32_MAX);
    state_end(b);
    Hashed *list = xcalloc((size_t)count, sizeof *list);
    uint64_t *none = xcalloc((size_t)count, sizeof *none), *sum = raw(b, none, (size_t)count * sizeof *none);
    for (int64_t i = 0; i < count; i++) {
        int64_t each = draw(b, 0, 7) ? draw(b, 1, n < 900 ? n : 900) : draw(b, 1, 4 * n),
                at = draw(b, 0, 4 * n - each);
        list[i] = (Hashed){sum + i / share, x + at, each};
    }
    b->d->hash(b->d, list, count);
    free(none);
    free(list);
}

static void case_verdict(Bench *b)
{
    double sums[2] = {draw(b, 0, 4) ? (double)draw(b, 1, 900) : INFINITY, (double)draw(b, 0, 9) * 10};
    const double *s = raw(b, sums, sizeof sums);
    int64_t n = draw_size(b, 5000), bad = draw(b, 0, 4) == 0;
    double spread = bad && draw(b, 0, 1) ? INFINITY : 1;
    Mat y = input(b, 1, n, F32, spread);
    Exact *e = exact(b, 1);
    b->d->squares(b->d, &(Squares){e, y.p, n}, 1, y.type);
    b->d->carry(b->d, e, 1);
    Mat v = changed(b, 1, 5, F64, 0);                  /* copy of loss, tokens, gscale, norm, multiplier */
    loosen(b, 1e-7);
    Limits limits = {draw(b, 0, 2) ? INFINITY : 1, draw(b, 0, 2) ? INFINITY : 1, draw(b, 0, 1)};
    const Verdict before = {.go = draw(b, 0, 3) != 0, .stopped = !draw(b, 0, 3)};
    Verdict *at = raw(b, &before, sizeof before);
    b->t[b->n - 1].role = IN;
    b->d->verdict(b->d, at, s, e, (double)draw(b, 1, 50), (double)draw(b, 1, 3), draw(b, 0, 1) ? 0.5 : 0,
                  (int)draw(b, 0, 1), limits);
    /* bad, go, stopped and behind are compared bit for bit */
    void *whole_numbers = raw(b, &(int64_t[4]){0}, 32);
    b->d->copy(b->d, v, mat(at, 1, 5, F64));
    b->d->copy(b->d, mat(whole_numbers, 1, 4, F64), mat(&at->bad, 1, 4, F64));
}

static Verdict *draw_verdict(Bench *b)
{
    Verdict v = {.multiplier = 0.7, .go = draw(b, 0, 4) != 0, .behind = draw(b, 0, 1)};
    return raw(b, &v, sizeof v);
}

static void case_trust(Bench *b)
{
    int64_t n = draw(b, 1, 5), each = draw_size(b, 3000);
    Exact *e = exact(b, 2 * n);
    for (int64_t i = 0; i < 2 * n; i++) {
        if (i % 2 == 0)                /* masters */
            state_begin(b);
        Mat x = input(b, 1, each, F32, draw(b, 0, 3) ? 1 : 0);
        state_end(b);
        b->d->squares(b->d, &(Squares){e + i, x.p, each}, 1, x.type);
    }
    b->d->carry(b->d, e, 2 * n);
    Mat t = output(b, 1, n, F64);
    loosen(b, 1e-6);
    b->d->trust(b->d, t.p, e, n, (int)draw(b, 0, 1), 0.001, 0.1, draw_verdict(b));
}

/* Update of elements [from, from + n) of the arrays, with the trust ratio and weight decay of x. */
static Updated updated_part(const Updated *x, const Mat *array, int64_t from, int64_t n)
{
    const void *at[6];
    for (int i = 0; i < 6; i++)
        at[i] = mat_at(array[i], 0, from);
    return (Updated){.n = n, .w = (void *)at[0], .g = at[1], .m = (void *)at[2], .v = (void *)at[3],
                     .out = (void *)at[4], .dir = (void *)at[5], .trust = x->trust, .wd = x->wd};
}

/* One call updates neighbouring parts of one set of arrays, at any alignment; one list in four is longer
 * than a launch takes. */
static void case_update(Bench *b)
{
    int64_t count = draw(b, 0, 3) ? draw(b, 1, 5) : draw(b, 257, 560), n = count - 1 + draw_size(b, 20000),
            at = 0;
    int which = (int)draw(b, 0, 3), momentum = which != 1 || draw(b, 0, 1);
    Mat g = input(b, 1, n, F32, 1), none = {0};
    int mapped = state_begin(b);
    Mat w = changed(b, 1, n, F32, 1);
    Mat m = momentum ? changed(b, 1, n, F32, 1) : none;
    Mat v = which == 0 || which == 3 ? numbers(b, INOUT, 1, n, F32, 1, 1) : none;
    loosen(b, 4);
    state_end(b);
    Mat out = draw(b, 0, 1) ? changed(b, 1, n, b->storage, 0) : none;
    Mat dir = which == 3 ? changed(b, 1, n, F32, 0) : none;
    loosen(b, 8);
    const Mat array[] = {w, g, m, v, out, dir};
    Updated *list = xcalloc((size_t)count, sizeof *list);
    double trusts[2] = {1.7, 0.6}, *trust = raw(b, trusts, sizeof trusts);
    for (int64_t i = 0; i < count; i++) {
        int64_t left = n - at - (count - 1 - i), most = count > 5 && left > 60 ? 60 : left;
        int64_t each = i == count - 1 ? left : draw(b, 1, most);
        Updated of = {.trust = draw(b, 0, 1) ? trust + draw(b, 0, 1) : NULL, .wd = draw(b, 0, 1) ? 0.2 : 0};
        list[i] = updated_part(&of, array, at, each);
        at += each;
    }
    Update u = {.list = list, .count = count, .out_type = out.p ? out.type : F32, .mapped = mapped,
                .verdict = draw_verdict(b), .lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-5,
                .bias1 = 1 - pow(0.9, 3), .bias2 = 1 - pow(0.95, 3), .before1 = 1 - pow(0.9, 2),
                .before2 = 1 - pow(0.95, 2), .momentum = momentum ? 0.9 : 0,
                .nesterov = which == 1 && momentum && draw(b, 0, 1)};
    if (which == 0)
        b->d->adam(b->d, &u);
    else if (which == 1)
        b->d->sgd(b->d, &u);
    else if (which == 2)
        b->d->lars(b->d, &u);
    else {
        b->d->lamb_direction(b->d, &u);
        b->d->lamb_apply(b->d, &u);
    }
    free(list);
}

/* The bits are compared by test_cuda_rows. */
static void case_normals(Bench *b)
{
    int64_t n = draw_size(b, 300), cols = draw_cols(b, 300), first = draw(b, 0, 1000);
    state_begin(b);
    Mat y = output(b, n, cols, draw(b, 0, 1) ? F32 : b->storage);
    state_end(b);
    int mean = draw(b, 0, 1) ? 0 : 1;
    b->d->normals(b->d, y, (Mat){0}, mean, 0.5, 99, first, cols + draw(b, 0, 1) * draw(b, 1, 50));
}

/* state: bool: a run gives these ops state of an offloaded optimizer */
static const struct { const char *ops; void (*fn)(Bench *b); int state;
} cases[] = {
    {"copy", case_copy, 1},
    {"zero", case_zero, 1},
    {"normals", case_normals, 1},
    {"add", case_add},
    {"sum_parts", case_sum_parts},
    {"bias_bwd", case_bias_bwd},
    {"norm_fwd norm_bwd", case_norm},
    {"add_norm_fwd", case_add_norm},
    {"act_fwd act_bwd", case_act},
    {"rope", case_rope},
    {"attention_merge", case_merge},
    {"embed_fwd embed_bwd", case_embed},
    {"dropout_fwd dropout_bwd", case_dropout},
    {"gather_rows sum_rows scale_rows row_dots", case_rows},
    {"route_fwd route_bwd route_stats", case_route},
    {"(no rows)", case_none},
    {"xent_stats xent_combine xent_grad", case_xent},
    {"xent", case_xent_whole},
    {"sum carry", case_sums},
    {"squares", case_squares, 1},
    {"hash", case_hash, 1},
    {"verdict", case_verdict},
    {"trust", case_trust, 1},
    {"adam sgd lars lamb_direction lamb_apply", case_update, 1},
    {"matmul linear linear_act_fwd linear_act_bwd_x linear_bwd_w fp8_cast fp8_act fp8_norm fp8_matmul "
     "fp8_next (test_cuda_matmul, test_cuda_fp8)",
     NULL},
    {"attention_fwd attention_bwd (test_cuda_attention)", NULL},
};

static int is_word(const char *words, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = words; (p = strstr(p, name)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == 0 || p[n] == ' '))
            return 1;
    return 0;
}

/* Every row of OPS has a case. */
static void check_all(void)
{
#define X(op, params, names)                                                                                 \
    {                                                                                                        \
        int has = 0;                                                                                         \
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)                                            \
            has |= is_word(cases[i].ops, #op);                                                               \
        CHECK(has, "no case for op %s", #op);                                                                \
    }
    OPS(X)
#undef X
}

/* Gradients of a table of so many rows, or of so many tokens, that a count of each does not fit into the op's
 * memory at once. The numbers are integers: the sums are exact in every order. */
static void large_table(Device *d, int64_t rows, int64_t tokens)
{
    size_t nw = (size_t)rows * 4, ny = (size_t)tokens * 4;
    float *want = xcalloc(nw, 1), *got = xcalloc(nw, 1), *dy = xcalloc(ny, 1);
    int32_t *token = xcalloc(ny, 1);
    for (int64_t i = 0; i < tokens; i++) {
        int64_t r = (i * 7919 + i / 3) % (rows + 5);       /* the last five are of no row */
        token[i] = (int32_t)r + 9;
        dy[i] = (float)(i % 5 + 1);
        if (r < rows)
            want[r] += dy[i];
    }
    void *dw = d->take(d, nw), *y = d->take(d, ny), *t = d->take(d, ny);
    d->put(d, y, dy, ny);
    d->put(d, t, token, ny);
    d->embed_bwd(d, mat(dw, rows, 1, F32), 9, (Mat){0}, mat(y, tokens, 1, F32), t, NULL);
    d->get(d, got, dw, nw);
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; r++)
        wrong += got[r] != want[r];
    CHECK(!wrong, "embed_bwd: %lld of %lld rows wrong, %lld tokens", (long long)wrong, (long long)rows,
          (long long)tokens);
    d->give(d, dw, nw), d->give(d, y, ny), d->give(d, t, ny);
    free(want), free(got), free(dy), free(token);
}

int main(int argc, char **argv)
{
    Device oracle, gpu;
    const char *only = argc > 1 ? argv[1] : "";
    int rounds = argc > 2 ? atoi(argv[2]) : 6;
    cpu_open(&oracle, F64, test_isa(), 1);
    cuda_open(&gpu, F32, 0);
    check_all();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int before = test_failures;
        mapped_tensors = 0;
        if (strncmp(cases[i].ops, only, strlen(only)) || !cases[i].fn)
            continue;
        double start = now();
        for (int t = 0; t < 3; t++)
            for (int k = 0; k < rounds; k++)
                compare_op(cases[i].ops, cases[i].fn, &oracle, &gpu, types[t], (uint64_t)(100 * k + t),
                           k % 2);
        CHECK(!mapped_tensors == !cases[i].state, "%s: %lld tensors in mapped memory", cases[i].ops,
              (long long)mapped_tensors);
        printf("# %s: %d failed, %.2f s\n", cases[i].ops, test_failures - before, now() - start);
    }
    if (!strncmp("embed_bwd large", only, strlen(only))) {
        large_table(&gpu, 5600000, 1000);
        large_table(&gpu, 1 << 16, (1 << 20) + 7);
    }
    cuda_close(&gpu);
    cpu_close(&oracle);
    return test_end();
}
