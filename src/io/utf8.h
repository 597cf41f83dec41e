/* utf8 -- where a text is UTF-8 (Unicode 15, table 3-7) */
#ifndef UTF8_H
#define UTF8_H
#include <stddef.h>

/* Returns the bytes of the character at p, p < end; 0: it is not UTF-8. */
static inline int utf8_length(const unsigned char *p, const unsigned char *end)
{
    int n = *p < 0x80                  ? 1
            : *p >= 0xc2 && *p <= 0xdf ? 2
            : *p >= 0xe0 && *p <= 0xef ? 3
            : *p >= 0xf0 && *p <= 0xf4 ? 4 : 0;
    if (n < 2 || end - p < n)
        return n == 1;
    unsigned char low = *p == 0xe0 ? 0xa0 : *p == 0xf0 ? 0x90 : 0x80;
    unsigned char top = *p == 0xed ? 0x9f : *p == 0xf4 ? 0x8f : 0xbf;
    if (p[1] < low || p[1] > top)
        return 0;
    for (int i = 2; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

/* Returns the offset of the first byte that is not UTF-8; `size`: all are. */
static inline size_t utf8_end(const char *text, size_t size)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    for (int n; i < size && (n = utf8_length(p + i, p + size)); i += (size_t)n)
        ;
    return i;
}
#endif
