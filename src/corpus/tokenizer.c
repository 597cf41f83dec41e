/* tokenizer -- the kinds `byte` and `none` */
#include "tokenizer.h"
#include "base.h"
#include <string.h>

static int64_t byte_encode(const Tokenizer *t, const char *text, int64_t bytes, int32_t *out)
{
    (void)t;
    for (int64_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)text[i];
    return bytes;
}

#define EOD_TEXT "<|endoftext|>"

static int64_t byte_decode(const Tokenizer *t, int32_t token, char *text)
{
    BUG_ON(token < 0 || token >= t->vocab);
    if (token != t->eod) {
        text[0] = (char)token;
        return 1;
    }
    memcpy(text, EOD_TEXT, sizeof EOD_TEXT - 1);
    return sizeof EOD_TEXT - 1;
}

static const Tokenizer byte = {"byte", 257, 256, sizeof EOD_TEXT - 1, byte_encode, byte_decode};

const Tokenizer *tokenizer_named(const char *name) { return strcmp(name, byte.name) ? NULL : &byte; }

const Tokenizer *tokenizer_open(const Config *cfg)
{
    if (cfg->tokenizer_type == TOKENIZER_TYPE_NONE) {
        static Tokenizer none;             /* a process has one vocabulary */
        int64_t eod = cfg->null_tokenizer_eod_id, vocab = cfg->vocab_size;
        none = (Tokenizer){.name = "none", .vocab = (int32_t)vocab,
                           .eod = (int32_t)(eod == CFG_ABSENT ? vocab - 1 : eod)};
        return &none;
    }
    if (cfg->vocab_size != byte.vocab)
        die(EXIT_DATA, "tokenizer", "the byte tokenizer has %d ids, vocab_size is %ld; change: leave "
            "vocab_size out, or tokenizer_type: none for a corpus of other ids", byte.vocab, cfg->vocab_size);
    return &byte;
}
