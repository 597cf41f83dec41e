/* jsonl -- files with a line of JSON for each record */
#ifndef JSONL_H
#define JSONL_H
#include <jansson.h>
#include <stdint.h>

/* Reads a regular file that holds one JSON value. Returns it, or NULL: the file is not there, or holds
 * none. */
json_t *json_of_file(const char *path);

/* Calls each(ctx, line) for every line of a file; a line that is no JSON is NULL. Returns the last byte of
 * the file, 0 if it is empty, -1 if it cannot be read. */
typedef void JsonlEach(void *ctx, const json_t *line);
int jsonl_each(const char *path, JsonlEach *each, void *ctx);

/* Extracts the text of a string field, in UTF-8 with escapes resolved. Checks the whole line (RFC 8259) and
 * allocates nothing.
 *
 *   line  in   [bytes]  one JSON object
 *   key   in            name of the field
 *   out   out  [bytes]  the text; it is never longer than the line
 *   what  out           static text: what is wrong, set if -1 is returned
 *
 * Returns the length of the text in bytes. Returns -1 if the line is no object in valid JSON and UTF-8,
 * or if the field is missing, stands there twice or is no string. */
int64_t jsonl_text(const char *line, int64_t bytes, const char *key, char *out, const char **what);

/* Reads numbers of one JSON object. Checks the whole line, as jsonl_text, and builds no tree, which takes
 * several times as long.
 *
 *   line   in   [bytes]  one JSON object
 *   key    in   [n]      names of fields, found where they are written without escapes
 *   value  out  [n]      their numbers, of a name that stands there twice the last; NAN where a field is
 *                        missing or is no number
 *
 * Returns 0 if the line is no object in valid JSON and UTF-8. */
int jsonl_numbers(const char *line, int64_t bytes, int n, const char *const *key, double *value);
#endif
