/* page -- the pages that the program writes: words, numbers and tables as HTML, and data as JSON, from which
 * the page's one script (report.js) draws the pictures. A page loads nothing. */
#ifndef PAGE_H
#define PAGE_H
#include "svg.h"

/* Begins and ends a self-contained page. */
void page_open(FILE *f, const char *title);
void page_close(FILE *f);
/* Begins a card of the page. kind: "" half the width of the page, " wide" the whole width. */
void card_open(FILE *f, const char *kind, const char *title, const char *unit);
void card_close(FILE *f);
/* Begins view i of several, of which the reader sees one at a time. Views follow each other in an
 * element of class "views". name: the same for all of them. i: from 1; view 1 is shown first. */
void view_open(FILE *f, const char *name, int i, const char *label);
void view_close(FILE *f);
/* Prints a table. text: on the heap, freed; cells with tabs between, a line a row, the first line the
 * head; the first column is text, others are numbers. */
void html_table(FILE *f, const char *css, char *text);
#endif
