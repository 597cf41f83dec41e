/* The report's style sheet and script go into the executable as they stand: the page may ask no network for
 * them. */
#define EMBED(symbol, file)                                                                                  \
    __asm__(".section .rodata\n.global " #symbol "\n" #symbol ": .incbin \"" file "\"\n.byte 0\n.previous\n")

EMBED(report_css, "src/report/report.css");
EMBED(report_js, "src/report/report.js");
