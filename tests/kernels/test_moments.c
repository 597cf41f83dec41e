/* test_moments -- moments of 16 and 8 bits (moments.h)
 *
 * formats  numbers of every format: their values, what is rounded to them and to their neighbours, at random
 *          and to nearest; the scales; what is stored twice keeps its value, and is a BF16 or F32 number
 * rule     updates of every optimizer beside their own with F32 moments (moment_rule.h), on each instruction
 *          set
 * decay    a second moment without a gradient falls as it does in F32: to nearest it would stay
 *
 *   test_moments [ISA]  only this instruction set */
#include "half.h"
#include "moment_rule.h"

/* The next larger magnitude's code; both are finite. */
static int has_next(Rule r, uint32_t code)
{
    return isfinite(rule_value(r, code)) && isfinite(rule_value(r, code + 1)) &&
           (!r.most || rule_value(r, code + 1) <= r.most);
}

static void one_format(MomentType type, int second)
{
    MomentFormat f = moment_format(type, second);
    Rule r = rule_of(type, second);
    uint32_t codes = r.sign ? 1u << r.sign : type == MOMENT_FP8 ? 256 : 0x8000, step = codes > 256 ? 37 : 1;
    int64_t wrong = 0, rounded_up = 0;
    for (uint32_t c = 0; c < codes; c += step) {
        double x = rule_value(r, c);
        wrong += isnan(x) ? !isnan(moment_decode(f, c)) : moment_decode(f, c) != x;
        wrong += r.sign && !isnan(x) && moment_decode(f, c | 1u << r.sign) != -x;
        if (!isfinite(x) || (r.most && x > r.most))
            continue;
        wrong += moment_encode(f, (float)x, 1, UINT32_MAX) != c || moment_encode(f, (float)x, 1, 0) != c ||
                 moment_encode(f, (float)x, 1, moment_chance(f, 0xffff)) != c;
        if (!has_next(r, c))
            continue;
        double next = rule_value(r, c + 1);
        for (int part = 1; part < 16; part++) {
            float y = (float)(x + (next - x) * part / 16);
            int64_t up = 0;
            for (uint32_t random = 5; random < 0x10000; random += 16)
                up += moment_encode(f, y, 1, moment_chance(f, random)) == c + 1;
            wrong += llabs(up - 4096 * part / 16) > (!c && second ? 4096 : 1);
            wrong += moment_encode(f, y, 1, UINT32_MAX) != rule_code(r, y, 0, -1);
            rounded_up += up;
        }
    }
    wrong += second && moment_encode(f, 1e-38F, 1, 0) == 0;
    wrong += !isnan(moment_decode(f, moment_encode(f, NAN, 1, 0xffff)));
    wrong += isfinite(moment_decode(f, moment_encode(f, INFINITY, 1, 0xffff)));
    CHECK(!wrong && rounded_up, "%s, moment %d: %lld wrong", moment_types[type], second, (long long)wrong);
}

/* Blocks of random sizes through the host's copies: the values come back, and once more. */
static void twice(MomentType type, int second)
{
    enum { N = 32 * 400 + 5 };
    static float x[N], y[N], z[N], part[N];
    static uint8_t code[2 * N], scale[N / MOMENT_BLOCK + 1];
    int64_t wrong = 0, off = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (float)(normal(1, i) * exp2(2 * normal(2, i) + 20 * normal(3, i / MOMENT_BLOCK)));
        x[i] = second ? x[i] * x[i] : x[i];
    }
    device_put_moments(NULL, code, scale, type, second, 0, x, N);
    device_get_moments(NULL, y, code, scale, type, second, 0, N);
    device_put_moments(NULL, code, scale, type, second, 0, y, N);
    device_get_moments(NULL, z, code, scale, type, second, 0, N);
    device_put_moments(NULL, code, scale, type, second, 3200, x + 3200, N - 3200);
    device_get_moments(NULL, part, code, scale, type, second, 3217, 1000);
    for (int i = 0; i < N; i++) {
        wrong += memcmp(&y[i], &z[i], 4) || (type == MOMENT_FP8 && bf16_to_f32(f32_to_bf16(y[i])) != y[i]) ||
                 (second && x[i] > 0 && y[i] <= 0) || (i < 1000 && part[i] != y[3217 + i]);
        off += fabsf(y[i] - x[i]) > fabsf(x[i]) / (type == MOMENT_FP8 ? 15.9F : 2000);
    }
    CHECK(!wrong && off < N / 20, "%s, moment %d: %lld numbers are not kept, %lld are far off",
          moment_types[type], second, (long long)wrong, (long long)off);
}

/* Mean of a second moment that gets no gradient, over 2000 steps of beta 0.999: exp(-2) of the first one. */
static void decay(Device *d, MomentType type)
{
    enum { N = 4096, STEPS = 2000 };
    static float w[N], g[N], m[N], first[N], last[N];
    static uint8_t v[2 * N], scale[N / MOMENT_BLOCK];
    double sum = 0, end = 0;
    for (int i = 0; i < N; i++)
        first[i] = (float)exp2(normal(5, i));
    for (int i = 0; i < N && type == MOMENT_BF16; i++) {
        uint16_t h = f32_to_bf16(first[i]);
        memcpy(v + 2 * i, &h, 2);
    }
    if (type != MOMENT_BF16)
        device_put_moments(NULL, v, scale, type, 1, 0, first, N);
    Updated x = {
        .n = N, .w = w, .g = g, .m = m, .v = v, .v_scale = scale, .blocks = {.key = 3, .run = INT32_MAX}};
    Update u = {.list = &x,
                .count = 1,
                .out_type = F32,
                .v_type = type,
                .beta1 = 0.9,
                .beta2 = 0.999,
                .eps = 1e-8,
                .bias1 = 1,
                .bias2 = 1,
                .before1 = 1,
                .before2 = 1,
                .verdict = &(Verdict){.multiplier = 1, .go = 1}};
    for (u.turn = 1; u.turn <= STEPS; u.turn++)
        d->adam(d, &u);
    if (type == MOMENT_BF16)
        for (int i = 0; i < N; i++)
            last[i] = bf16_to_f32(((uint16_t *)v)[i]);
    else
        device_get_moments(NULL, last, v, scale, type, 1, 0, N);
    for (int i = 0; i < N; i++)
        sum += first[i], end += last[i];
    CHECK(fabs(end / sum / pow(0.999, STEPS) - 1) < 0.03, "%s: %s: %.4f of a second moment is left, not %.4f",
          d->isa, moment_types[type], end / sum, pow(0.999, STEPS));
}

int main(int argc, char **argv)
{
    for (MomentType t = MOMENT_BF16; t <= MOMENT_FP8; t++)
        for (int second = 0; second < 2; second++) {
            one_format(t, second);
            if (moment_scaled(t))
                twice(t, second);
        }
    for (int i = 0; i < ISAS; i++) {
        Device d;
        if (!isa_wanted(i, argc, argv))
            continue;
        cpu_open(&d, F32, isa_names[i], 2);
        moments_by_rule(&d);
        for (MomentType t = MOMENT_BF16; t <= MOMENT_FP8; t++)
            decay(&d, t);
        cpu_close(&d);
    }
    return test_end();
}
