/* tensorboard -- event files for TensorBoard */
#define _GNU_SOURCE
#include "tensorboard.h"
#include "base.h"
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Half a byte at a time: a table of 16 entries is enough for the few hundred bytes of a step. */
uint32_t tensorboard_crc32c(const void *p, size_t n)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
        0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    uint32_t c = ~0u;
    for (const uint8_t *b = p; n--; b++) {
        c = table[(c ^ *b) & 15] ^ c >> 4;
        c = table[(c ^ *b >> 4) & 15] ^ c >> 4;
    }
    return ~c;
}

/* The CRC masked as records store it. */
static uint32_t crc32c_masked(const void *p, size_t n)
{
    uint32_t c = tensorboard_crc32c(p, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* ---- Protocol buffers: the few encodings that events need ---- */

typedef struct { uint8_t *p; size_t n, max; } Buf;     /* n of max bytes are filled */

enum { WIRE_VARINT = 0, WIRE_F64 = 1, WIRE_BYTES = 2, WIRE_F32 = 5 };

static void put(Buf *b, const void *p, size_t n)
{
    BUG_ON(b->n + n > b->max);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

static void put_varint(Buf *b, uint64_t v)
{
    do {
        uint8_t byte = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
        put(b, &byte, 1);
    } while (v >>= 7);
}

static void put_key(Buf *b, int field, int wire) { put_varint(b, (uint64_t)(field << 3 | wire)); }

static void put_bytes(Buf *b, int field, const void *p, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    put(b, p, n);
}

static void put_string(Buf *b, int field, const char *s) { put_bytes(b, field, s, strlen(s)); }

static void put_head(Buf *b, double wall_time, int64_t step)
{
    put_key(b, 1, WIRE_F64);
    put(b, &wall_time, 8);
    if (step) {
        put_key(b, 2, WIRE_VARINT);
        put_varint(b, (uint64_t)step);
    }
}

/* Writes a record. event: the Event at bytes [16, n); the record's head goes to bytes [4, 16). */
static void put_record(EventFile *f, Buf *event)
{
    uint64_t len = event->n - 16;
    uint32_t crc = crc32c_masked(&len, 8), data_crc = crc32c_masked(event->p + 16, len);
    memcpy(event->p + 4, &len, 8);
    memcpy(event->p + 12, &crc, 4);
    put(event, &data_crc, 4);
    if (f->fd >= 0 && file_append(f->fd, event->p + 4, event->n - 4)) {
        f->size += (int64_t)event->n - 4;
        return;
    }
    /* A torn record would hide all later records from the reader. */
    f->lost++;
    if (f->fd >= 0 && ftruncate(f->fd, f->size))
        f->fd = (close(f->fd), -1);
}

int event_open(EventFile *f, const char *dir, double wall_time, int64_t first_step)
{
    uint8_t bytes[128];
    char host[65] = "";
    *f = (EventFile){.fd = -1};
    if (gethostname(host, sizeof host - 1) || !*host)
        strcpy(host, "localhost");
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '-';
    /* The last number of the name makes files of one process and one second differ. */
    for (int uid = 0; uid < 1000 && f->fd < 0; uid++) {
        int n = snprintf(f->path, sizeof f->path, "%s/events.out.tfevents.%010lld.%s.%d.%d", dir,
                         (long long)wall_time, host, (int)getpid(), uid);
        if (n >= (int)sizeof f->path)
            return errno = ENAMETOOLONG, -1;
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (f->fd < 0 && errno != EEXIST)
            return -1;
    }
    if (f->fd < 0)
        return -1;
    Buf b = {bytes, 16, sizeof bytes};
    put_head(&b, wall_time, 0);
    put_string(&b, 3, "brain.Event:2");
    put_record(f, &b);
    static const uint8_t start[] = {1 << 3 | WIRE_VARINT, 1};      /* SessionLog {1: status = START} */
    b.n = 16;
    put_head(&b, wall_time, first_step);
    put_bytes(&b, 7, start, sizeof start);
    put_record(f, &b);
    return 0;
}

void event_scalars(EventFile *f, double wall_time, int64_t step, const Scalar *s, int n)
{
    uint8_t bytes[64 * 96 + 128], value_bytes[96], summary_bytes[64 * 96];
    Buf event = {bytes, 16, sizeof bytes}, summary = {summary_bytes, 0, sizeof summary_bytes};
    BUG_ON(n > 64);
    for (int i = 0; i < n; i++) {
        Buf value = {value_bytes, 0, sizeof value_bytes};
        float x = (float)s[i].value;
        if (isnan(s[i].value))
            continue;
        put_string(&value, 1, s[i].tag);
        put_key(&value, 2, WIRE_F32);
        put(&value, &x, 4);
        put_bytes(&summary, 1, value.p, value.n);
    }
    put_head(&event, wall_time, step);
    put_bytes(&event, 5, summary.p, summary.n);
    put_record(f, &event);
}

void event_text(EventFile *f, double wall_time, const char *tag, const char *text)
{
    /* TensorShape {2 dim: {1 size: 1}} */
    static const uint8_t shape[] = {2 << 3 | WIRE_BYTES, 2, 1 << 3 | WIRE_VARINT, 1};
    size_t room = strlen(tag) + strlen(text) + 256;
    uint8_t *heap = xcalloc(3, room), plugin_bytes[32], metadata_bytes[64];
    Buf plugin = {plugin_bytes, 0, sizeof plugin_bytes},
        metadata = {metadata_bytes, 0, sizeof metadata_bytes};
    Buf tensor = {heap, 0, room}, value = {heap + room, 0, room}, event = {heap + 2 * room, 16, room};

    put_key(&tensor, 1, WIRE_VARINT);
    put_varint(&tensor, 7);                                        /* DT_STRING */
    put_bytes(&tensor, 2, shape, sizeof shape);
    put_string(&tensor, 8, text);
    put_string(&plugin, 1, "text");
    put_bytes(&metadata, 1, plugin.p, plugin.n);
    put_string(&value, 1, tag);
    put_bytes(&value, 8, tensor.p, tensor.n);
    put_bytes(&value, 9, metadata.p, metadata.n);
    put_head(&event, wall_time, 0);
    tensor.n = 0;                              /* copied into value: the buffer now takes the summary */
    put_bytes(&tensor, 1, value.p, value.n);
    put_bytes(&event, 5, tensor.p, tensor.n);
    put_record(f, &event);
    free(heap);
}

void event_close(EventFile *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}
