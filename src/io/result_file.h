/* result_file -- a text file that a command writes for its user. */
#ifndef RESULT_FILE_H
#define RESULT_FILE_H
#include <stdio.h>

/* Whether what is written to `path` gets another name first, and this one at the end: where there is nothing
 * yet, or a regular file. Links, FIFOs and devices are written to where they are. */
int result_renamed(const char *path);

/* Opens a file for writing; one that exists keeps its text until result_close. Dies where it cannot be
 * opened. */
FILE *result_open(const char *path);

/* Closes it, and puts it in place of one that exists. Dies where it could not be written whole: a stream
 * keeps a failure that is past. */
void result_close(FILE *f, const char *path);
#endif
