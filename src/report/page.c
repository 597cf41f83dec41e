/* page -- the pages that the program writes */
#include "page.h"
#include "base.h"
#include <stdlib.h>
#include <string.h>

void page_open(FILE *f, const char *title)
{
    html_put(f, "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<meta name='viewport' "
             "content='width=device-width, initial-scale=1'>\n<meta http-equiv='Content-Security-Policy' "
             "content='%s'>\n<title>%s \302\267 gridiron</title>\n<style>\n", "default-src 'none'; style-src "
             "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:", title);
    fprintf(f, "%s%s</style>\n</head>\n<body>\n<main>\n<noscript><p>The page's script does not run: the "
            "pictures are missing, words and numbers are whole.</p></noscript>\n", svg_css, page_css);
}

void page_close(FILE *f) { fprintf(f, "</main>\n<script>\n%s</script>\n</body>\n</html>\n", page_js); }

void card_open(FILE *f, const char *kind, const char *title, const char *unit)
{
    html_put(f, "<section class='card%s'><h2>%s</h2><span class='unit'>%s</span>\n", kind, title, unit);
}

void card_close(FILE *f) { fputs("</section>\n", f); }

void view_open(FILE *f, const char *name, int i, const char *label)
{
    html_put(f, "<input type='radio' name='%s' id='%s%d'%s><label for='%s%d'>%s</label>\n<div class='view'>",
             name, name, i, i == 1 ? " checked" : "", name, i, label);
}

void view_close(FILE *f) { fputs("</div>\n", f); }

void html_table(FILE *f, const char *css, char *text)
{
    char *rest = text, *line, *cell;
    const char *tag = "th";
    html_put(f, "<table class='%s'><thead>", css);
    while ((line = strsep(&rest, "\n")) && *line) {
        html_put(f, "<tr>");
        for (int i = 0; (cell = strsep(&line, "\t")); i++)
            html_put(f, i ? "<%s class='n'>%s</%s>" : "<%s>%s</%s>", tag, cell, tag);
        html_put(f, tag[1] == 'h' ? "</tr></thead><tbody>\n" : "</tr>\n");
        tag = "td";
    }
    html_put(f, "</tbody></table>\n");
    free(text);
}
