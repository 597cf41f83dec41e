/* tokenizer -- text to token ids and back. There is one object a kind; encode and decode are
 * thread-safe.
 *
 *   byte  the 256 bytes, and 256 = <|endoftext|>; any bytes are text, a round trip is exact
 *   none  for a corpus of ids made elsewhere: it neither encodes nor decodes; end-of-document is
 *         null_tokenizer_eod_id, or the last id, as in GPT-2 */
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "config.h"
#include <stdint.h>

typedef struct Tokenizer Tokenizer;
struct Tokenizer {
    const char *name;
    int32_t vocab, eod;   /* token ids are [0, vocab); eod: id of end-of-document */
    int longest;          /* bytes of the longest token's text */
    /* Writes the tokens of text[bytes] to out[bytes]; returns their number. NULL: the kind cannot
     * encode. */
    int64_t (*encode)(const Tokenizer *t, const char *text, int64_t bytes, int32_t *out);
    /* Writes the bytes of one token to text[longest]; returns their number. NULL: the kind cannot
     * decode. */
    int64_t (*decode)(const Tokenizer *t, int32_t token, char *text);
};

/* Returns the configuration's tokenizer. Dies with EXIT_DATA if its vocabulary is not vocab_size. */
const Tokenizer *tokenizer_open(const Config *cfg);

/* Returns a tokenizer by its name, for `train tokenize`; NULL: there is none of that name. */
const Tokenizer *tokenizer_named(const char *name);
#endif
