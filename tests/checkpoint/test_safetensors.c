/* test_safetensors -- the safetensors reader and writer: round trip, each rule of the format, random
 * damage */
#define _GNU_SOURCE
#include "safetensors.h"
#include "test.h"
#include <fcntl.h>
#include <unistd.h>

static char folder[] = "/tmp/test_safetensors.XXXXXX";
static char why[WHY];

static const char *at(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void round_trip(void)
{
    double a[6] = {1, 2, 3, 4, 5, -0.0};
    uint16_t b[3] = {0x3f80, 0x7fff, 1};
    int64_t scalar = -7;
    StTensor t[] = {{.name = "z.bf16", .type = BF16, .ndim = 1, .shape = {3}},
                    {.name = "a", .type = F64, .ndim = 2, .shape = {2, 3}},
                    {.name = "none", .type = F32, .ndim = 2, .shape = {0, 9}},
                    {.name = "scalar", .type = I64}};
    const char *meta[] = {"format", "pt", "note", "quote \" and \\", NULL};
    StWriter w;
    StFile f;
    int ok = st_create(&w, AT_FDCWD, at("a.safetensors"), 1, t, 4, meta, why);
    CHECK(ok, "%s", why);
    CHECK(st_put(&w, 0, 0, b, sizeof b, why), "%s", why);
    CHECK(st_put(&w, 1, 16, a + 2, 32, why) && st_put(&w, 1, 0, a, 16, why), "%s", why);
    CHECK(st_put(&w, 3, 0, &scalar, 8, why), "%s", why);
    CHECK(w.data % 8 == 0, "data at %lld", (long long)w.data);
    CHECK(st_finish(&w, why), "%s", why);
    CHECK(!st_create(&w, AT_FDCWD, at("a.safetensors"), 1, t, 4, meta, why) && strstr(why, "exists"), "%s",
          why);

    CHECK(st_open(&f, AT_FDCWD, at("a.safetensors"), 1, why), "%s", why);
    const StTensor *ta = st_find(&f, "a"), *tb = st_find(&f, "z.bf16"), *ts = st_find(&f, "scalar");
    CHECK(f.n == 4 && ta && tb && ts && st_find(&f, "none") && !st_find(&f, "b"), "%d tensors", f.n);
    CHECK(ta->type == F64 && ta->ndim == 2 && ta->shape[0] == 2 && ta->shape[1] == 3 && st_elements(ta) == 6,
          "a");
    double a2[6];
    uint16_t b2[3];
    int64_t s2;
    CHECK(st_read(&f, ta, 0, a2, sizeof a2, why) && !memcmp(a, a2, sizeof a), "a %s", why);
    CHECK(st_read(&f, tb, 0, b2, sizeof b2, why) && !memcmp(b, b2, sizeof b), "b %s", why);
    CHECK(st_read(&f, ts, 0, &s2, 8, why) && s2 == scalar, "scalar %s", why);
    CHECK(!strcmp(st_meta(&f, "note"), "quote \" and \\") && !st_meta(&f, "x"), "metadata");
    st_close(&f);
}

/* Whether a file of the header `text` and `data` zero bytes opens. */
static int parses(const char *text, int64_t data)
{
    StFile f = {.fd = -1};
    int64_t n = (int64_t)strlen(text);
    int ok = st_parse(&f, text, n, 8 + n + data, why);
    st_close(&f);
    return ok;
}

#define T(name, dtype, shape, at)                                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" at "}"

static void rules(void)
{
    static const struct { const char *text; int64_t data; const char *reason;
    } bad[] = {
        {"[]", 0, "'{'"},
        {" {}", 0, "'{'"},
        {"{", 0, "JSON"},
        {"{}x", 0, "JSON"},
        {"{}", 1, "holds 1"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 5, "holds 5"},
        {"{" T("a", "F32", "[1]", "[0,4]") "}", 3, "holds 3"},
        {"{" T("a", "F32", "[1]", "[1,5]") "}", 5, "starts at data byte 1"},
        {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12,
         "starts at data byte 8"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8, "starts at data byte 4"},
        {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "begin <= end"},
        {"{" T("a", "F32", "[1]", "[0,-4]") "}", 4, "begin <= end"},
        {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "must have"},
        {"{" T("a", "F32", "[1]", "[0.0,4.0]") "}", 4, "begin <= end"},
        {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "needs 8 bytes"},
        {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "dimension 0"},
        {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "dimension 0"},
        {"{" T("a", "F32", "1", "[0,4]") "}", 4, "must have"},
        {"{" T("a", "Q8", "[1]", "[0,4]") "}", 4, "unknown dtype"},
        {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "needs 2 bytes"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "overflow"},
        {"{" T("a", "U8", "[9223372036854775807]", "[0,9223372036854775807]") "}", 0, "overflow"},
        {"{" T("a", "F32", "[99999999999999999999]", "[0,4]") "}", 4, "JSON"},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "9 dimensions"},
        {"{\"__metadata__\":[]}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "not a text"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "must have"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "nothing else"},
        {"{\"a\":3}", 0, "must have"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int ok = parses(bad[i].text, bad[i].data);
        CHECK(!ok && strstr(why, bad[i].reason), "%s: %s", bad[i].text, ok ? "accepted" : why);
    }
    CHECK(parses("{}", 0), "%s", why);
    CHECK(parses("{" T("a", "F32", "[0]", "[0,0]") "," T("b", "U8", "[]", "[0,1]") "}   ", 1), "%s", why);
    CHECK(parses("{" T("b", "F4", "[4]", "[2,4]") "," T("a", "BOOL", "[2]", "[0,2]") "}", 4), "%s", why);
    CHECK(parses("{" T("a", "U8", "[1,1,1,1,1,1,1,1]", "[0,1]") "}", 1), "%s", why);
}

/* Files that are too short for a length, have a length beyond the file or the limit, are not regular, or
 * links. */
static void files(void)
{
    StFile f;
    for (int64_t n = 0; n < 16; n++) {
        uint8_t bytes[16] = {n < 10 ? 0xff : 8, 0, 0, n < 12 ? 0 : 0x7f, 0, 0, 0, n == 15 ? 0x80 : 0, '{'};
        int fd = file_create(AT_FDCWD, at("short"), 0, why);
        CHECK(file_write_at(fd, "short", bytes, n, 0, why), "%s", why);
        close(fd);
        int ok = st_open(&f, AT_FDCWD, at("short"), 0, why);
        CHECK(!ok && (strstr(why, "fewer than") || strstr(why, "does not fit")), "%lld bytes: %s",
              (long long)n, why);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n";
    int fd = file_create(AT_FDCWD, at("pointer"), 0, why);
    CHECK(file_write_at(fd, "pointer", pointer, sizeof pointer - 1, 0, why), "%s", why);
    close(fd);
    CHECK(!st_open(&f, AT_FDCWD, at("pointer"), 0, why) && strstr(why, "Git LFS"), "%s", why);
    CHECK(!st_open(&f, AT_FDCWD, folder, 0, why) && strstr(why, "regular"), "%s", why);
    CHECK(!st_open(&f, AT_FDCWD, at("absent"), 0, why) && strstr(why, "No such"), "%s", why);
    CHECK(symlink("a.safetensors", at("link")) == 0, "symlink");
    CHECK(!st_open(&f, AT_FDCWD, at("link"), 1, why) && strstr(why, "symbolic"), "%s", why);
    CHECK(st_open(&f, AT_FDCWD, at("link"), 0, why), "%s", why);
    st_close(&f);
}

/* Random damage to a legal header: none may crash the reader, and a header that is accepted must keep
 * every rule of the format. */
static void fuzz(int runs)
{
    static const char seed[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," T("w.0", "F32", "[3,5]", "[0,60]") "," T(
            "w.1", "BF16", "[7]", "[60,74]") "," T("b", "U8", "[]", "[74,75]") "," T("e", "I64", "[0,4]",
                                                                                     "[75,75]") "}  ";
    static const char *const words[] = {"-1",
                                        "0",
                                        "9223372036854775807",
                                        "18446744073709551616",
                                        "[",
                                        "]",
                                        "{",
                                        "}",
                                        "\"",
                                        "F64",
                                        "1e9",
                                        "null",
                                        "[0,60]",
                                        "\\u0000",
                                        "4294967296",
                                        ",",
                                        "\"w.0\":",
                                        "[3,5]"};
    int accepted = 0;
    for (int run = 0; run < runs; run++) {
        char text[512];
        size_t n = sizeof seed - 1;
        memcpy(text, seed, n);
        int64_t data = 75;
        int edits = 1 + (int)(rng_uniform(1, 0, (uint64_t)run) * 3);
        for (int e = 0; e < edits; e++) {
            Philox r = philox(2, (uint64_t)run, (uint64_t)e);
            size_t p = r.v[0] % n;
            const char *w = words[r.v[2] % (sizeof words / sizeof *words)];
            size_t wn = strlen(w), cut = r.v[3] % 6;
            switch (r.v[1] % 5) {
            case 0: text[p] = (char)(text[p] ^ (1 << r.v[2] % 8)); break;
            case 1: text[p] = (char)('0' + r.v[2] % 10); break;
            case 2: data = (int64_t)(r.v[2] % 200); break;
            case 3: n = p ? p : 1; break;
            default:
                cut = cut < n - p ? cut : n - p;
                if (n - cut + wn < sizeof text) {
                    memmove(text + p + wn, text + p + cut, n - p - cut);
                    memcpy(text + p, w, wn);
                    n += wn - cut;
                }
            }
        }
        StFile f = {.fd = -1};
        if (st_parse(&f, text, (int64_t)n, 8 + (int64_t)n + data, why)) {
            int64_t sum = 0;
            accepted++;
            for (int i = 0; i < f.n; i++) {
                sum += f.tensor[i].bytes;
                CHECK(f.tensor[i].at >= f.data && f.tensor[i].at + f.tensor[i].bytes <= f.size &&
                          (f.tensor[i].type < 0 ||
                           st_elements(&f.tensor[i]) * (int64_t)dtype_size((Dtype)f.tensor[i].type) ==
                               f.tensor[i].bytes),
                      "run %d: %.*s", run, (int)n, text);
            }
            CHECK(sum == data, "run %d: %.*s", run, (int)n, text);
        }
        st_close(&f);
    }
    printf("# fuzz: %d of %d accepted\n", accepted, runs);
    CHECK(accepted > runs / 200 && accepted < runs, "the mutations are either all harmless or all fatal");
}

int main(int argc, char **argv)
{
    if (!mkdtemp(folder))
        return 1;
    round_trip();
    rules();
    files();
    fuzz(argc > 1 ? atoi(argv[1]) : 50000);
    return file_remove_dir(AT_FDCWD, folder, why) ? test_end() : 1;
}
