/* corpus_scan -- tokens of a whole corpus: range of ids, fingerprint, `train inspect` */
#define _GNU_SOURCE
#include "corpus.h"
#include "base.h"
#include "json_number.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CHUNK 32768   /* tokens a read: 128 KiB, which fit the second-level cache */

/* Finds the sequence of a megatron corpus that contains token `token`; *offset: its place in the
 * sequence. */
static int locate(const Corpus *c, int64_t token, int64_t *sequence, int64_t *offset, char **why)
{
    Window w;
    if (!window_open(&w, c, 0, 1, why))
        return 0;
    int64_t i = 0;
    for (; i < w.count && token >= w.length[i]; i++)
        token -= w.length[i];
    *sequence = i;
    *offset = token;
    window_close(&w);
    return 1;
}

static int bad_token(const Corpus *c, int file, int64_t token, int32_t id, int64_t vocab, char **why)
{
    int64_t sequence = 0, offset = token;
    if (c->sequences && !locate(c, token, &sequence, &offset, why))
        return 0;
    char *where = c->sequences ? xasprintf("%s %ld, token %ld", corpus_sequence_name(c), sequence, offset)
                               : xasprintf("token %ld", token);
    *why = xasprintf("%s: %s is id %ld, the vocabulary has %ld; change: vocab_size, or the tokenizer that "
                     "made the corpus", c->file[file].path, where,
                     c->file[file].type == TOKEN_U32 ? (int64_t)(uint32_t)id : (int64_t)id, vocab);
    free(where);
    return 0;
}

int corpus_scan(const Corpus *c, int64_t vocab, TokenRange *range, char **why)
{
    int32_t *x = xcalloc((size_t)(c->tokens < CHUNK ? c->tokens : CHUNK), 4), least = INT32_MAX,
            most = INT32_MIN;
    int ok = 1;
    for (int f = 0; ok && f < c->files; f++)
        for (int64_t t = 0, n; ok && t < c->file[f].tokens; t += n) {
            n = c->file[f].tokens - t < CHUNK ? c->file[f].tokens - t : CHUNK;
            if (!(ok = corpus_read(c, f, t, n, x, why)))
                break;
            for (int64_t i = 0; i < n; i++) {
                least = x[i] < least ? x[i] : least;
                most = x[i] > most ? x[i] : most;
            }
            if (vocab > 0 && (least < 0 || most >= vocab)) {
                int64_t i = 0;
                while (x[i] >= 0 && x[i] < vocab)
                    i++;
                ok = bad_token(c, f, t + i, x[i], vocab, why);
            }
        }
    *range = (TokenRange){least, most};
    free(x);
    return ok;
}

int corpus_fingerprint(const Corpus *c, uint64_t *print, char **why)
{
    int64_t edge = c->tokens < 1 << 18 ? c->tokens : 1 << 18;
    int32_t *x = xcalloc((size_t)edge, 4);
    int64_t counts[] = {c->sequences, c->documents, c->tokens, c->files};
    *print = XXH3_64bits(counts, sizeof counts);
    int ok = 1;
    for (int f = 0; ok && f < c->files; f++) {
        int64_t n = c->file[f].tokens < edge ? c->file[f].tokens : edge;
        for (int end = 0; ok && end < 2; end++) {
            ok = corpus_read(c, f, end ? c->file[f].tokens - n : 0, n, x, why);
            *print = XXH3_64bits_withSeed(x, 4 * (size_t)n, *print + (uint64_t)c->file[f].size);
        }
    }
    free(x);
    return ok;
}

static json_t *describe(const char *spec, const Corpus *c, const TokenRange *range, const char *why)
{
    json_t *o = json_object();
    json_object_set_new(o, "kind", json_string("corpus"));
    json_object_set_new(o, "path", json_text(spec));
    if (c) {
        json_object_set_new(o, "format", json_string(c->kind));
        json_object_set_new(o, "files", json_integer(c->files));
        json_object_set_new(o, "dtype", json_string(corpus_type_name(c->file[0].type)));
        json_object_set_new(o, "documents", json_integer(c->documents));
        json_object_set_new(o, "sequences", json_integer(c->sequences));
        json_object_set_new(o, "tokens", json_integer(c->tokens));
        json_object_set_new(o, "longest", json_integer(c->longest));
        if (!why) {
            json_object_set_new(o, "least_token", json_integer(range->least));
            json_object_set_new(o, "greatest_token", json_integer(range->most));
        }
    }
    json_object_set_new(o, "whole", json_boolean(!why));
    json_object_set_new(o, "why", why ? json_text(why) : json_null());
    return o;
}

int corpus_inspect(const char *spec, FILE *out, int json)
{
    char *why = NULL;
    TokenRange range = {0};
    Corpus *c = corpus_open(1, &spec, &why);
    /* no trainer has ids above 2^31 - 1: a larger one is damage */
    int whole = c && corpus_scan(c, INT32_MAX, &range, &why);
    if (json) {
        json_print(out, describe(spec, c, &range, whole ? NULL : why), JSON_INDENT(2));
    } else {
        char *name = text_shown(spec);
        if (!whole)
            text_plain(why, strlen(why), "");
        fprintf(out, "%s\n  kind        corpus%s%s\n", name, c ? ", " : "", c ? c->kind : "");
        free(name);
        if (c) {
            fprintf(out, "  documents   %ld%s\n  tokens      %ld of %s in %d file%s\n", c->documents,
                    c->sequences ? "" : " (one a file)", c->tokens, corpus_type_name(c->file[0].type),
                    c->files, c->files > 1 ? "s" : "");
            fprintf(out, "  longest     %ld tokens\n", c->longest);
        }
        if (whole)
            fprintf(out, "  token ids   %ld to %ld\n  whole       yes\n", range.least, range.most);
        else
            fprintf(out, "  whole       no: %s\n", why);
    }
    if (c)
        corpus_close(c);
    free(why);
    return !whole;
}
