/* jsonl -- one string field of one line of JSON; checks the whole line (RFC 8259), allocates nothing */
#ifndef JSONL_H
#define JSONL_H
#include <stdint.h>

/* Extracts the text of a string field, in UTF-8 with escapes resolved.
 *
 *   line  in   [bytes]  one JSON object
 *   key   in            name of the field
 *   out   out  [bytes]  the text; it is never longer than the line
 *   what  out           static text: what is wrong, set if -1 is returned
 *
 * Returns the length of the text in bytes. Returns -1 if the line is no object in valid JSON and UTF-8,
 * or if the field is missing, stands there twice or is no string. */
int64_t jsonl_text(const char *line, int64_t bytes, const char *key, char *out, const char **what);
#endif
