/* moment_rule -- moments of fewer bits beside the rule of moments.h, worked out in F64: an update of a device
 * stores what its own update with F32 moments has, rounded with the random bits that are written down there,
 * byte for byte; and the masters of the two are the same. */
#ifndef MOMENT_RULE_H
#define MOMENT_RULE_H
#include "ops.h"

/* A format in numbers: bits of the fraction, exponent of the smallest normal number, largest number (0: no
 * scales), code of NaN, place of the sign (0: none). */
typedef struct {
    int bits, emin;
    double most;
    uint32_t nan;
    int sign;
} Rule;

static Rule rule_of(MomentType type, int second)
{
    Rule r = type == MOMENT_BF16   ? (Rule){7, -126, 0, 0x7fc0, 15}
             : type == MOMENT_FP16 ? (Rule){10, -14, 65504, 0x7fff, 15}
             : second              ? (Rule){3, -14, 114688, 0xff, 0}
                                   : (Rule){3, -6, 448, 0x7f, 7};
    r.sign = second ? 0 : r.sign;
    return r;
}

/* The value of a code, without its scale. */
static double rule_value(Rule r, uint32_t code)
{
    uint32_t sign = r.sign ? code >> r.sign & 1 : 0, c = r.sign ? code & ((1u << r.sign) - 1) : code;
    double x = c < 1u << r.bits ? ldexp(c, r.emin - r.bits)
                                : ldexp((c & ((1u << r.bits) - 1)) + (1 << r.bits),
                                        (int)(c >> r.bits) - 1 + r.emin - r.bits);
    if (r.most ? c == r.nan : c > 0x7f80)
        return NAN;
    x = !r.most && c == 0x7f80 ? INFINITY : x;
    return sign ? -x : x;
}

/* The exponent of a block's scale: the smallest with which its finite numbers fit. INT_MIN: all are 0. */
static int rule_exponent(Rule r, const float *x, int64_t n)
{
    double amax = 0;
    int e = -102;
    for (int64_t i = 0; i < n; i++)
        amax = isfinite(x[i]) ? fmax(amax, fabs((double)x[i])) : amax;
    if (amax == 0)
        return -1000;
    while (r.most && amax > ldexp(r.most, e))
        e++;
    return r.most ? e : 0;
}

/* The code of x in a block with exponent e.
 *   random  in  16 bits; -1: to nearest even */
static uint32_t rule_code(Rule r, float x, int e, int64_t random)
{
    int shift = 23 - r.bits, E, second = !r.sign;
    double y = fabs((double)x), unit, lost, chance;
    if (!isfinite(x))
        return (r.most || isnan(x) ? r.nan : 0x7f80) | (uint32_t)(r.sign && signbit(x)) << r.sign;
    y = r.most ? ldexp(y, -e) : y;
    if (y == 0 || e == -1000)
        return (uint32_t)(r.sign && signbit(x)) << r.sign;
    frexp(y, &E);
    unit = ldexp(1, (E - 1 < r.emin ? r.emin : E - 1) - r.bits);
    uint64_t units = (uint64_t)floor(y / unit);
    lost = nearbyint((y / unit - (double)units) * ldexp(1, shift)); /* of 2^shift */
    chance = random < 0    ? ldexp(1, shift - 1) - 1 + (double)(units & 1)
             : shift >= 16 ? ldexp((double)random, shift - 16) + (shift > 16 ? ldexp(1, shift - 17) : 0)
                           : floor(ldexp((double)random, shift - 16));
    units += lost + chance >= ldexp(1, shift);
    uint32_t code = (uint32_t)units + (uint32_t)((E - 1 < r.emin ? 0 : E - 1 - r.emin) << r.bits);
    code = second && !code ? 1 : code;
    return code | (uint32_t)(r.sign && signbit(x)) << r.sign;
}

/* ---- an update beside the rule ---- */

enum {
    ENTRIES = 5,
    SPAN = 9216,
    ELEMENTS = ENTRIES * SPAN,
    BLOCKS = ELEMENTS / MOMENT_BLOCK,
    OPTIMIZERS = 6
};
static const char *const optimizers[OPTIMIZERS] = {"adam",           "sgd", "nesterov", "lars",
                                                   "lamb_direction", "lamb"};
static const char *const moment_types[] = {"fp32", "bf16", "fp16", "fp8"};
static const int64_t lengths[ENTRIES] = {SPAN, 8192, 8191, 33, 7};

static void run_optimizer(Device *d, int which, Update u)
{
    u.nesterov = which == 2;
    if (which == 0)
        d->adam(d, &u);
    else if (which < 3)
        d->sgd(d, &u);
    else if (which == 3)
        d->lars(d, &u);
    else
        d->lamb_direction(d, &u);
    if (which == 5)
        d->lamb_apply(d, &u);
}

static void *on_device(Device *d, const void *src, size_t bytes)
{
    void *p = d->take(d, bytes);
    d->put(d, p, src, bytes);
    return p;
}

/* Both forms of the state on the host: moments in F32, and their codes, whose values the F32 ones are. */
typedef struct {
    float w[ELEMENTS], g[ELEMENTS], f32[2][ELEMENTS];
    uint16_t short_g[ELEMENTS], out[ELEMENTS];
    uint8_t code[2][4 * ELEMENTS], scale[2][BLOCKS];
} Moments;

static uint32_t code_of(const uint8_t *code, int64_t i, int bytes)
{
    uint16_t h;
    if (bytes == 1)
        return code[i];
    memcpy(&h, code + 2 * i, 2);
    return h;
}
static void put_code(uint8_t *code, int64_t i, int bytes, uint32_t c)
{
    uint16_t h = (uint16_t)c;
    if (bytes == 1)
        code[i] = (uint8_t)c;
    else
        memcpy(code + 2 * i, &h, 2);
}

/* Stores n elements of moment k from f32 as the rule says, and sets f32 to what was stored.
 *   random  in  [n] bits; NULL: to nearest even */
static void store_by_rule(Moments *s, int k, MomentType type, int64_t at, int64_t n, const uint16_t *random)
{
    Rule r = rule_of(type, k);
    int size = moment_size(type);
    for (int64_t b = 0; b < n; b += MOMENT_BLOCK) {
        int64_t part = n - b < MOMENT_BLOCK ? n - b : MOMENT_BLOCK;
        float *x = s->f32[k] + at + b;
        int e = rule_exponent(r, x, part);
        s->scale[k][(at + b) / MOMENT_BLOCK] = r.most && e > -1000 ? (uint8_t)(e + 127) : 0;
        for (int64_t i = 0; i < part; i++) {
            uint32_t c = rule_code(r, x[i], e, random ? random[b + i] : -1);
            put_code(s->code[k], at + b + i, size, c);
            x[i] = (float)(r.most ? ldexp(rule_value(r, c), e == -1000 ? 0 : e) : rule_value(r, c));
        }
    }
}

/* Magnitudes of many sizes within a block, zeros, blocks of zeros, and in one block what is not finite. */
static void fill(Moments *s, MomentType m, MomentType v, int wild)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < ELEMENTS; i++) {
        double size = exp2(3 * normal(9, i) - (i / 64 % 5 == 0 ? 40 : 4));
        s->w[i] = (float)(normal(1, i) * (i % 3 ? 1 : 1e-3));
        s->short_g[i] = f32_to_bf16((float)(i % 7 && i / 32 % 11 ? normal(4, i) * size : 0));
        s->g[i] = bf16_to_f32(s->short_g[i]);
        s->f32[0][i] = (float)(i % 5 && i / 32 % 11 ? normal(2, i) * size : 0);
        s->f32[1][i] = (float)(i % 6 && i / 32 % 11 ? fabs(normal(3, i)) * size * size : 0);
    }
    if (wild)
        s->g[40] = 1e25F, s->g[SPAN + 8190] = -1e38F; /* a square that F32 does not hold */
    for (int k = 0; k < 2; k++)
        if (k ? v : m)
            store_by_rule(s, k, k ? v : m, 0, ELEMENTS, NULL);
        else
            memcpy(s->code[k], s->f32[k], sizeof s->f32[k]);
}

static BlockNumbers numbers_of(int entry)
{
    BlockNumbers b = {.key = 77 + (uint64_t)entry,
                      .first = entry == 1 ? ((int64_t)1 << 29) - 3 : entry * 1000,
                      .at = entry,
                      .run = entry == 2 ? 3 : INT32_MAX,
                      .step = 17};
    return b;
}

/* The bits of element i of an entry, drawn as moments.h says. */
static uint16_t random_of(int entry, int64_t i, int second, int64_t turn)
{
    BlockNumbers n = numbers_of(entry);
    int64_t b = i / MOMENT_BLOCK + n.at, number = n.first + b / n.run * n.step + b % n.run,
            j = i % MOMENT_BLOCK;
    uint32_t word = philox(n.key, (uint64_t)(number * 8 + j / 4), (uint64_t)turn).v[j % 4];
    return (uint16_t)(word >> (second ? 16 : 0));
}

/* The device's arrays of one form. */
typedef struct {
    float *w, *g, *dir;
    void *m, *v;
    uint8_t *scale[2];
    uint16_t *short_g, *out;
} Arrays;

static Arrays place(Device *d, const Moments *s, int narrow)
{
    Arrays a = {on_device(d, s->w, sizeof s->w),
                on_device(d, s->g, sizeof s->g),
                on_device(d, s->w, sizeof s->w),
                on_device(d, narrow ? (const void *)s->code[0] : s->f32[0], sizeof s->code[0]),
                on_device(d, narrow ? (const void *)s->code[1] : s->f32[1], sizeof s->code[1]),
                {on_device(d, s->scale[0], BLOCKS), on_device(d, s->scale[1], BLOCKS)},
                on_device(d, s->short_g, sizeof s->short_g),
                on_device(d, s->out, sizeof s->out)};
    return a;
}

static void take_back(Device *d, Arrays *a, Moments *s, int narrow)
{
    d->get(d, s->w, a->w, sizeof s->w);
    d->get(d, s->out, a->out, sizeof s->out);
    d->get(d, narrow ? (void *)s->code[0] : s->f32[0], a->m, sizeof s->code[0]);
    d->get(d, narrow ? (void *)s->code[1] : s->f32[1], a->v, sizeof s->code[1]);
    for (int k = 0; k < 2; k++) {
        d->get(d, s->scale[k], a->scale[k], BLOCKS);
        d->give(d, a->scale[k], BLOCKS);
    }
    d->give(d, a->w, sizeof s->w), d->give(d, a->g, sizeof s->g), d->give(d, a->dir, sizeof s->w);
    d->give(d, a->m, sizeof s->code[0]), d->give(d, a->v, sizeof s->code[1]);
    d->give(d, a->short_g, sizeof s->short_g), d->give(d, a->out, sizeof s->out);
}

/* bf16_g: gradients of 16 bits, and masters in two halves, whose remainders are in w. */
static void update_arrays(Device *d, int which, const Arrays *a, MomentType m, MomentType v, int bf16_g,
                          const Verdict *verdict, const double *trust)
{
    Updated list[ENTRIES];
    for (int i = 0; i < ENTRIES; i++) {
        int64_t at = (int64_t)i * SPAN;
        list[i] = (Updated){.n = lengths[i],
                            .w = bf16_g ? NULL : a->w + at,
                            .rest = bf16_g ? (int16_t *)a->w + at : NULL,
                            .g = bf16_g ? (void *)(a->short_g + at) : (void *)(a->g + at),
                            .dir = a->dir + at,
                            .m = (char *)a->m + at * moment_size(m),
                            .v = (char *)a->v + at * moment_size(v),
                            .m_scale = a->scale[0] + at / MOMENT_BLOCK,
                            .v_scale = a->scale[1] + at / MOMENT_BLOCK,
                            .out = a->out + at,
                            .blocks = numbers_of(i),
                            .trust = i % 2 ? trust : NULL,
                            .wd = 0.1};
    }
    run_optimizer(d, which,
                  (Update){.list = list,
                           .count = ENTRIES,
                           .out_type = BF16,
                           .bf16_g = bf16_g,
                           .m_type = m,
                           .v_type = v,
                           .turn = 5,
                           .verdict = verdict,
                           .lr = 0.01,
                           .beta1 = 0.9,
                           .beta2 = 0.999,
                           .eps = 1e-8,
                           .bias1 = 0.1,
                           .bias2 = 0.001,
                           .before1 = 0.2,
                           .before2 = 0.002,
                           .momentum = 0.9});
}

/* Numbers of moment k that are not what the rule makes of F32 ones; NaN has any sign. */
static int64_t wrong_codes(Moments *narrow, Moments *f32, int k, MomentType type, int64_t turn)
{
    static uint16_t random[SPAN];
    int size = moment_size(type);
    int64_t wrong = 0;
    for (int e = 0; e < ENTRIES; e++) {
        int64_t at = (int64_t)e * SPAN;
        for (int64_t i = 0; i < lengths[e]; i++)
            random[i] = random_of(e, i, k, turn);
        store_by_rule(f32, k, type, at, lengths[e], random);
        for (int64_t i = 0; i < lengths[e]; i++) {
            uint32_t a = code_of(narrow->code[k], at + i, size), b = code_of(f32->code[k], at + i, size);
            wrong +=
                a != b && !(isnan(rule_value(rule_of(type, k), a)) && isnan(rule_value(rule_of(type, k), b)));
        }
        for (int64_t b = at / MOMENT_BLOCK; b * MOMENT_BLOCK < at + lengths[e]; b++)
            wrong += moment_scaled(type) && narrow->scale[k][b] != f32->scale[k][b];
    }
    return wrong;
}

static void beside_f32(Device *d, int which, MomentType m, MomentType v, int bf16_g, Verdict said, int wild)
{
    static Moments narrow, f32, before;
    double trust = 1.3;
    Verdict *verdict = on_device(d, &said, sizeof said);
    double *ratio = on_device(d, &trust, sizeof trust);
    fill(&narrow, m, v, wild);
    before = f32 = narrow;
    Arrays a = place(d, &narrow, 1), b = place(d, &f32, 0);
    update_arrays(d, which, &a, m, v, bf16_g, verdict, ratio);
    update_arrays(d, which, &b, MOMENT_FP32, MOMENT_FP32, bf16_g, verdict, ratio);
    take_back(d, &a, &narrow, 1);
    take_back(d, &b, &f32, 0);
    d->give(d, verdict, sizeof said);
    d->give(d, ratio, sizeof trust);
    const char *name = optimizers[which];
    int same = !memcmp(narrow.w, f32.w, sizeof f32.w) && !memcmp(narrow.out, f32.out, sizeof f32.out);
    CHECK(same, "%s %s %s: other masters than with F32 moments", name, moment_types[m], moment_types[v]);
    if (!said.go) {
        CHECK(!memcmp(&narrow, &before, sizeof before), "%s %s %s: a stopped step wrote", name,
              moment_types[m], moment_types[v]);
        return;
    }
    for (int k = 0; k < 2; k++) {
        MomentType type = k ? v : m;
        if (!type || (k && which > 0 && which < 4)) {
            CHECK(!memcmp(narrow.code[k],
                          k && which > 0 && which < 4 ? (void *)before.code[k] : (void *)f32.f32[k],
                          sizeof f32.f32[k]),
                  "%s %s %s: moment %d", name, moment_types[m], moment_types[v], k);
            continue;
        }
        int64_t wrong = wrong_codes(&narrow, &f32, k, type, 5 - said.behind);
        CHECK(!wrong, "%s %s %s%s: %lld numbers or scales of moment %d differ from the rule", name,
              moment_types[m], moment_types[v], bf16_g ? ", bf16 gradients" : "", (long long)wrong, k);
    }
}

/* All optimizers with all types. */
static void moments_by_rule(Device *d)
{
    const Verdict go = {.multiplier = 0.3, .go = 1}, behind = {.multiplier = 0.3, .go = 1, .behind = 1},
                  stop = {.multiplier = 0.3};
    for (int which = 0; which < OPTIMIZERS; which++)
        for (MomentType m = MOMENT_FP32; m <= MOMENT_FP8; m++)
            for (MomentType v = MOMENT_FP32; v <= MOMENT_FP8; v++) {
                int second = which == 0 || which > 3;
                if ((!m && !v) || (!second && v) || (second && which && m != v))
                    continue;
                beside_f32(d, which, m, v, 0, go, 0);
                if (which < 4)
                    beside_f32(d, which, m, v, 1, m == v ? behind : go, 0);
                if (m == v || !second)
                    beside_f32(d, which, m, v, 0, stop, 0);
                if (which == 0 && m == v)
                    beside_f32(d, which, m, v, 0, go, 1);
            }
}
#endif
