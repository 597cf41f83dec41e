/* tuned -- the file of chosen algorithms read and written */
#include "tuned.h"
#include "base.h"
#include "file.h"
#include "json_number.h"
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define FORMAT "gridiron algorithms 1"
enum { DIGITS = 16, LARGEST = 64 << 20 };

static int read_words(const json_t *words, uint64_t *out)
{
    if (json_array_size(words) != ALGORITHM_WORDS)
        return 0;
    for (size_t i = 0; i < ALGORITHM_WORDS; i++) {
        const char *s = json_string_value(json_array_get(words, i));
        if (!s || strlen(s) != DIGITS || strspn(s, "0123456789abcdef") != DIGITS)
            return 0;
        out[i] = strtoull(s, NULL, 16);
    }
    return 1;
}

/* Adds all algorithms of j to a. Returns 0, and adds none, when one of them is malformed. */
static int parse(Algorithms *a, json_t *j)
{
    const char *format = json_string_value(json_object_get(j, "format")), *key;
    json_t *list = json_object_get(j, "algorithms"), *entry;
    Algorithms found = {0};
    int good = format && !strcmp(format, FORMAT) && json_is_object(list);
    if (good)
        json_object_foreach(list, key, entry) {
            Algorithm one = {.us = json_number_value(json_object_get(entry, "us"))};
            good = good && strlen(key) < sizeof one.key &&
                   read_words(json_object_get(entry, "words"), one.words);
            if (good) {
                memcpy(one.key, key, strlen(key) + 1);
                algorithms_add(&found, &one);
            }
        }
    for (int64_t i = 0; good && i < found.n; i++)
        algorithms_add(a, &found.list[i]);
    algorithms_close(&found);
    return good;
}

/* Returns 1 when the file was read or does not exist; 0 when it is broken or foreign, with the reason in
 * why. */
static int read_file(Algorithms *a, const char *path, char why[WHY])
{
    int64_t size;
    json_error_t e;
    if (access(path, F_OK) < 0)
        return 1;
    char *text = file_read_text(AT_FDCWD, path, 0, LARGEST, &size, why);
    if (!text)
        return 0;
    json_t *j = json_loadb(text, (size_t)size, JSON_REJECT_DUPLICATES, &e);
    int good = j && parse(a, j);
    if (!j)
        snprintf(why, WHY, "line %d: %.120s", e.line, e.text);
    else if (!good)
        snprintf(why, WHY, "it is no list of algorithms");
    json_decref(j);
    free(text);
    return good;
}

void tuned_read(Algorithms *a, const char *path)
{
    char why[WHY];
    if (!read_file(a, path, why))
        warn("%s: %s; it is not used, and left as it is; change: remove it, or name another file", path, why);
}

int64_t tuned_table(Algorithms *a, const char *path, const char *prefix, char why[WHY])
{
    Algorithms all = {0};
    int64_t taken = 0;
    if (access(path, R_OK) < 0)
        return file_errno(why, "cannot be read") - 1;
    if (!read_file(&all, path, why))
        return -1;
    for (int64_t i = 0; i < all.n; i++)
        if (!strncmp(all.list[i].key, prefix, strlen(prefix))) {
            algorithms_add(a, &all.list[i]);
            taken++;
        }
    algorithms_close(&all);
    return taken;
}

static char *write_text(const Algorithms *a)
{
    json_t *list = json_object();
    for (int64_t i = 0; i < a->n; i++) {
        json_t *words = json_array();
        for (int k = 0; k < ALGORITHM_WORDS; k++) {
            char hex[DIGITS + 1];
            snprintf(hex, sizeof hex, "%016llx", (unsigned long long)a->list[i].words[k]);
            json_array_append_new(words, json_string(hex));
        }
        json_object_set_new(list, a->list[i].key,
                            json_pack("{s:o s:o}", "words", words, "us", json_number(a->list[i].us)));
    }
    json_t *j = json_pack("{s:s s:o}", "format", FORMAT, "algorithms", list);
    char *text = j ? json_dumps(j, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    BUG_ON(!text);
    json_decref(j);
    return text;
}

void tuned_write(const Algorithms *a, const char *path)
{
    char why[WHY], *dir = file_parent(path);
    const char *slash = strrchr(path, '/');
    Algorithms all = {0};
    int fd = file_open_dir(AT_FDCWD, dir, 0, why);
    if (fd >= 0)
        flock(fd, LOCK_EX); /* without locks another rank's entries may be lost: they are timed again */
    int ours = fd >= 0 && read_file(&all, path, why);
    for (int64_t i = 0; ours && i < a->n; i++)
        algorithms_add(&all, &a->list[i]);
    char *text = write_text(&all);
    const char *name = slash ? slash + 1 : path;
    if (fd < 0 || (ours && !file_replace(fd, name, text, (int64_t)strlen(text), why)))
        warn("%s: %s; the algorithms that were found are not kept; change: a folder that can be written",
             path, why);
    free(text);
    if (fd >= 0)
        close(fd);
    algorithms_close(&all);
    free(dir);
}
