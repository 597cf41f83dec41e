/* tensorboard -- event files for TensorBoard. A record is, little-endian: u64 length, masked CRC-32C of
 * the length, a protocol buffer `Event`, masked CRC-32C of the buffer. Fields used:
 *   Event    1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log
 *   Summary  1 value
 *   Value    1 tag, 2 simple_value, 8 tensor, 9 metadata
 * No error in this module ends the run: a write that fails is counted, and the file is cut back to its
 * last whole record. */
#ifndef TENSORBOARD_H
#define TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int fd;                    /* -1: not open */
    int64_t lost;              /* records that could not be written */
    int64_t size;              /* bytes of whole records */
    char path[4096];
} EventFile;

typedef struct { const char *tag; double value; } Scalar;

/* Creates dir/events.out.tfevents.TIME.HOST.PID.0. first_step > 0: the file continues a run; TensorBoard
 * drops the events from that step on in earlier files of the directory. Returns 0, or -1 with errno. */
int event_open(EventFile *f, const char *dir, double wall_time, int64_t first_step);

/* Writes one event with n scalars (at most 64). Values are stored as float; NAN are left out. */
void event_scalars(EventFile *f, double wall_time, int64_t step, const Scalar *s, int n);

/* Writes a page of text (Markdown) for TensorBoard's Text tab. Allocates. */
void event_text(EventFile *f, double wall_time, const char *tag, const char *text);

void event_close(EventFile *f);

/* CRC-32C (Castagnoli): tensorboard_crc32c("123456789") = 0xe3069283. */
uint32_t tensorboard_crc32c(const void *p, size_t n);
#endif
