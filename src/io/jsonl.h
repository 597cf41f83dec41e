/* jsonl -- one string out of one line of JSON, checked to the letter (RFC 8259) and fast: no tree, no
 * allocation. */
#ifndef JSONL_H
#define JSONL_H
#include <stdint.h>

/* line[bytes] is one JSON object. Puts the text of its string field `key`, escapes resolved, UTF-8, into out
 * (room for `bytes`) and returns its length, >= 0. -1 and *what when the line is not an object in valid JSON
 * and UTF-8, when the field is missing, twice there or not a string; what: static text. */
int64_t jsonl_text(const char *line, int64_t bytes, const char *key, char *out, const char **what);
#endif
