/* tensorboard -- an event file that TensorBoard reads: records of u64 length, masked CRC-32C of the length,
 * a protocol buffer `Event`, masked CRC-32C of that; little-endian. Fields used: Event {1 wall_time, 2 step,
 * 3 file_version, 5 summary, 7 session_log}, Summary {1 value}, Value {1 tag, 2 simple_value, 8 tensor, 9
 * metadata}. Nothing here ends the run: a write that fails is counted, and the file is cut back to its last
 * whole record. */
#ifndef TENSORBOARD_H
#define TENSORBOARD_H
#include <stddef.h>
#include <stdint.h>

typedef struct {
    int fd;
    int64_t lost;              /* records that could not be written */
    int64_t size;              /* bytes written whole */
    char path[4096];
} EventFile;

typedef struct { const char *tag; double value; } Scalar;

/* Makes dir/events.out.tfevents.TIME.HOST.PID.0. Returns 0, or -1 with errno. With first_step > 0 the file
 * continues a run: TensorBoard drops what earlier files of the directory hold from that step on. */
int event_open(EventFile *f, const char *dir, double wall_time, int64_t first_step);

/* One event with n scalars (at most 64). Values are stored as float; those that are NAN are left out. */
void event_scalars(EventFile *f, double wall_time, int64_t step, const Scalar *s, int n);

/* A page of text (Markdown) under TensorBoard's Text tab. Allocates. */
void event_text(EventFile *f, double wall_time, const char *tag, const char *text);

void event_close(EventFile *f);

/* CRC-32C (Castagnoli): tensorboard_crc32c("123456789") = 0xe3069283. */
uint32_t tensorboard_crc32c(const void *p, size_t n);
#endif
