/* tokenizer -- text to token ids and back. One object a kind; encode and decode are thread-safe.
 *
 * `byte`: the 256 bytes, and 256 = <|endoftext|>; any bytes are text, round trips are exact. `none`: ids
 * only, for corpora made elsewhere: it encodes and decodes nothing, and end-of-document is the last id, as
 * in GPT-2. */
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "config.h"
#include <stdint.h>

typedef struct Tokenizer Tokenizer;
struct Tokenizer {
    const char *name;
    int32_t vocab, eod;   /* ids are [0, vocab); eod: end of document */
    int longest;          /* bytes of the longest token's text */
    /* Tokens of text[bytes] into out, room for `bytes` of them; returns how many. NULL: cannot. */
    int64_t (*encode)(const Tokenizer *t, const char *text, int64_t bytes, int32_t *out);
    /* The bytes of one token into text, room for `longest`; returns how many. NULL: cannot. */
    int64_t (*decode)(const Tokenizer *t, int32_t token, char *text);
};

/* The config's tokenizer. Dies with EXIT_DATA when its vocabulary is not vocab_size. */
const Tokenizer *tokenizer_open(const Config *cfg);

/* By name, for `train tokenize`; NULL when there is none of that name. */
const Tokenizer *tokenizer_named(const char *name);
#endif
