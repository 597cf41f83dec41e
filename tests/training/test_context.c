/* test_context -- documents and windows over context ranks
 *   edges      documents and windows shorter than a chunk, as long as a sample, and of one token: layouts of
 *              this world and one rank agree
 *   documents  a packed sample beside its documents apart: the same loss and gradients. The gradient of a
 *              token with respect to another document is exactly 0 */
#include "layout_compare.h"

/* A layout of this world with these context ranks, the rest of them tensor, pipeline or data ranks. Returns 0
 * when the kind does not fit. */
static int layout_of(Layout *l, int family, int cp, int kind, uint64_t key)
{
    uint64_t last = key + 50;
    int rest = world / cp;
    do {
        layout_draw(l, ++key);
        memcpy(l->is, (int[]){1, 1, cp, 1, kind}, 5 * sizeof *l->is);
        l->is[(int[]){TP, PP, DP}[pick(key, 100, 3)]] = rest;
        if (layout_experts(world, family))
            layout_draw_experts(l, key);
        l->is[FAMILY] = family;
        if (layout_normal(l))
            return 1;
    } while (key < last);
    return 0;
}

static void edges(void)
{
    static const struct { double rate; const char *window; int family; } cases[] = {
        {0, NULL, 1},
        {1, NULL, 5},
        {0.6, NULL, 1},
        {0.1, NULL, 5},
        {0, "window_size=1", 7},
        {0.3, "window_size=1", 5},
        {0, "window_size=2", 0},
        {1, "window_size=3", 7},
        {0.3, "window_size=9", 7},
        {0, "window_size=15", 2},
        {0.6, "window_size=2", 7},
        {0.2, "window_size=16", 1},
    };
    int cp[] = {world, world / 2};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2 * (MIXED + 1); k++) {
            const char *more[] = {cases[i].window, NULL};
            Layout l;
            Words a;
            if (!layout_of(&l, cases[i].family, cp[k % 2], k / 2, (uint64_t)(1000 * i + 100 * (size_t)k)))
                continue;
            document_rate = cases[i].rate;
            layout_args(&a, &l);
            if (cases[i].window)
                set_arg(&a, cases[i].window);
            compare(&a, l.is[FAMILY], more, 0);
        }
    CHECK(layouts >= 80, "%d layouts", layouts);
}

/* ---- documents ---- */

/* A packed sample's n-th document of all as a sample of its own, at its start; tokens behind it do not
 * count. */
static void alone(Sample *x, const Config *c, int64_t n)
{
    Sample packed;
    int64_t s = 0, at = 0;
    int32_t S = (int32_t)c->seq_length, end;
    for (sample_text(&packed, c, s); n; n--) {
        while (++at < S && packed.start[at] != at)
            ;
        if (at == S)
            at = 0, sample_text(&packed, c, ++s);
    }
    for (end = (int32_t)at + 1; end < S && packed.start[end] != end; end++)
        ;
    *x = (Sample){{0}};
    for (int64_t i = at; i < end; i++) {
        x->token[i - at] = packed.token[i];
        x->label[i - at] = packed.label[i];
        x->mask[i - at] = packed.mask[i];
    }
}

static int64_t documents_of(const Config *c)
{
    int64_t n = 0;
    Sample x;
    for (int64_t s = 0; s < c->global_batch_size; s++) {
        sample_text(&x, c, s);
        for (int64_t i = 0; i < c->seq_length; i++)
            n += x.start[i] == i;
    }
    return n;
}

/* The router's z-loss counts tokens that the loss does not count, and those behind a document apart; its
 * jitter follows the sample and the position. */
static const char no_z[] = "moe_z_loss_coeff=0", no_jitter[] = "moe_input_jitter_eps=null";

static double packed_apart; /* largest difference of a gradient */

/* Compares a layout with packed samples with their documents apart on one rank. */
static void packed(const Layout *l, const char *window)
{
    static Result apart_result[ALL_FAMILIES];
    static char known[ALL_FAMILIES][32];
    Words a;
    Layout plain = *l;
    plain.is[CAPACITY] = 0;        /* it counts the tokens of a microbatch */
    layout_args(&a, &plain);
    set_arg(&a, "hidden_dropout=0");
    set_arg(&a, "attention_dropout=0");
    set_arg(&a, "reset_attention_mask=true");
    set_arg(&a, window);
    set_arg(&a, no_z);
    set_arg(&a, no_jitter);
    const Config *c = configure(&a, world);
    Whole w = whole_open(c);
    Result got = result_of(c, &w, 0), *one = &apart_result[l->is[FAMILY]];
    layouts++;
    if (rank == 0 && strcmp(known[l->is[FAMILY]], window)) {
        char running[sizeof current], batch[48];
        snprintf(known[l->is[FAMILY]], sizeof known[0], "%s", window);
        snprintf(batch, sizeof batch, "global_batch_size=%lld", (long long)documents_of(c));
        memcpy(running, current, sizeof current);
        layout_model(&a, world, l->is[FAMILY]);
        add_arg(&a, "micro_batch_size=1", NULL);
        const char *more[] = {"hidden_dropout=0", "attention_dropout=0", "reset_attention_mask=false", window,
                              batch, no_z, no_jitter};
        for (int i = 0; i < 7; i++)
            set_arg(&a, more[i]);
        text_source = alone;
        free(one->x);
        *one = result_of(configure(&a, 1), &w, 0);
        text_source = sample_text;
        memcpy(current, running, sizeof current);
    }
    if (rank == 0) {
        int number;
        double worst = furthest(&w, one->x, got.x, &number), loss = apart(one->loss[0], got.loss[0]);
        char name[96];
        param_name(c, number, name, sizeof name);
        packed_apart = fmax(packed_apart, worst);
        CHECK(worst <= 1e-12 && loss <= 1e-12 && got.loss[0] > 1,
              "%s apart by %.2g, loss by %.2g (%.17g)\n#   %s", name, worst, loss, got.loss[0], current);
    }
    free(got.x);
    free(w.at);
}

static const int32_t cut[4] = {0, 3, 10, 16}; /* starts of documents; the last is the end */

/* Three documents of tokens of their own, six each; the loss counts the second document alone. */
static void three(Sample *x, const Config *c, int64_t s)
{
    for (int32_t i = 0, d = 0; i < c->seq_length; i++) {
        d += i == cut[d + 1];
        x->token[i] = 6 * d + (int32_t)(rng_uniform(6, (uint64_t)s, (uint64_t)i) * 6);
        x->label[i] = i % 18;
        x->start[i] = cut[d];
        x->mask[i] = d == 1;
    }
}

/* The rows of the embedding of other documents' tokens have a gradient of exactly 0. */
static void leak(const Layout *l, const char *window)
{
    const char *more[] = {"hidden_dropout=0", "attention_dropout=0", "reset_attention_mask=true",
                          "untie_embeddings_and_output_weights=true", window, no_z};
    Words a;
    layout_args(&a, l);
    for (int i = 0; i < 6; i++)
        set_arg(&a, more[i]);
    const Config *c = configure(&a, world);
    Whole w = whole_open(c);
    text_source = three;
    Result got = result_of(c, &w, 0);
    text_source = sample_text;
    layouts++;
    int64_t H = c->hidden_size, other = 0, own = 0;
    for (int64_t i = 0; i < 18 * H; i++)
        *(i / H / 6 == 1 ? &own : &other) += got.x[w.at[P_WTE] + i] != 0;
    CHECK(!other && own == 6 * H, "%lld of the other documents' numbers are not 0, %lld of its own\n#   %s",
          (long long)other, (long long)own, current);
    free(got.x);
    free(w.at);
}

static void documents(void)
{
    static const int family[] = {0, 2, 3, 7, FAMILIES + 3};
    static const char *const window[] = {"window_size=0", "window_size=3"};
    for (int i = 0; i < 20; i++)
        for (int cp = 1; cp <= world; cp *= 2)
            for (int kind = 0; kind < (cp > 1 ? MIXED + 1 : 1); kind++) {
                Layout l;
                if (layout_of(&l, family[i / 2 % 5], cp, kind, (uint64_t)(3000 * i + 200 * cp + 50 * kind)))
                    (i < 10 ? packed : leak)(&l, window[i % 2]);
            }
    if (rank == 0)
        printf("# packed samples and documents apart: gradients %.2g apart at most\n", packed_apart);
    CHECK(layouts >= 100, "%d layouts", layouts);
}

int main(int argc, char **argv)
{
    double start = now();
    layouts_open();
    if (argc > 1 && !strcmp(argv[1], "edges"))
        edges();
    else if (argc > 1 && !strcmp(argv[1], "documents"))
        documents();
    else
        CHECK(0, "usage: edges | documents");
    say_apart();
    return layouts_close(start);
}
