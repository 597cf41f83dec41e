/* fuzz_safetensors -- a safetensors file, of a checkpoint or of Hugging Face
 *
 *   byte 0     bit 0: the rest is the whole file; else it is the header's text, the length before it is
 *              right, and the data have as many bytes as bytes 1 and 2 say */
#include "fuzz.h"
#include "safetensors.h"
#include <stdlib.h>

enum { ROOM = 1 << 17 };

static void read_all(const StFile *f)
{
    static char data[ROOM];
    char why[WHY];
    for (int i = 0; i < f->n; i++) {
        const StTensor *t = &f->tensor[i];
        if (!st_find(f, t->name))
            fuzz_found("tensor %s is in the list but is not found", t->name);
        if (t->type >= 0 && st_elements(t) * (int64_t)dtype_size((Dtype)t->type) != t->bytes)
            fuzz_found("tensor %s has %ld bytes for %ld elements", t->name, t->bytes, st_elements(t));
        if (!st_read(f, t, 0, data, t->bytes, why))
            fuzz_found("tensor %s cannot be read: %s", t->name, why);
    }
    st_meta(f, "iteration");
}

static void run(const uint8_t *p, size_t n)
{
    static uint8_t whole[ROOM];
    int raw = (int)fuzz_take(&p, &n, 1) & 1;
    size_t data = fuzz_take(&p, &n, 2);
    StFile f;
    char why[WHY];
    if (!raw && n < ROOM - 8 - (1 << 16)) {
        for (int i = 0; i < 8; i++)
            whole[i] = (uint8_t)((uint64_t)n >> (8 * i));
        if (n)
            memcpy(whole + 8, p, n);
        p = whole;
        n += 8 + data;
    }
    fuzz_file("x.safetensors", p, n);
    if (st_open(&f, -1, "x.safetensors", 0, why))
        read_all(&f);
    st_close(&f);
}

static void seed(int data, const char *text)
{
    size_t n = strlen(text);
    uint8_t *p = xcalloc(1, 16 + n + (size_t)data);
    p[1] = (uint8_t)data;
    memcpy(p + 3, text, n);
    fuzz_seed(p, 3 + n);
    p[0] = 1;
    p[3] = (uint8_t)n;
    p[4] = (uint8_t)(n >> 8);
    memset(p + 5, 0, 6);
    memcpy(p + 11, text, n);
    memset(p + 11 + n, 0, (size_t)data);
    fuzz_seed(p, 11 + n + (size_t)data);
    free(p);
}

static void seeds(void)
{
    seed(0, "{}");
    seed(0, "{\"__metadata__\":{\"format\":\"pt\",\"iteration\":\"7\"}}");
    seed(24, "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},\"b\":{\"dtype\":\"BF16\","
             "\"shape\":[4],\"data_offsets\":[16,24]}}  ");
    seed(13, "{\"__metadata__\":{},\"s\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[0,8]},\"e\":{"
             "\"dtype\":\"I64\",\"shape\":[0,3],\"data_offsets\":[8,8]},\"u\":{\"dtype\":\"U8\",\"shape\":"
             "[5,1,1],\"data_offsets\":[8,13]}}");
    seed(4, "{\"q\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}}");
}

static const char *const words[] = {"\"dtype\":",
                                    "\"shape\":",
                                    "\"data_offsets\":",
                                    "\"__metadata__\":",
                                    "F64",
                                    "F32",
                                    "BF16",
                                    "F16",
                                    "I32",
                                    "I64",
                                    "BOOL",
                                    "F8_E4M3",
                                    "F6_E2M3",
                                    "F4",
                                    "C64",
                                    "9223372036854775807",
                                    "4611686018427387904",
                                    "-1",
                                    "1e3",
                                    "\\u0000",
                                    NULL};

const FuzzTarget fuzz_safetensors = {"safetensors", run, seeds, NULL, {0}, words};
