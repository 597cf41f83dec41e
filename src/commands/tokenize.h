/* tokenize -- `train tokenize IN... -o PREFIX`: text into a Megatron corpus, PREFIX.bin and PREFIX.idx. */
#ifndef TOKENIZE_H
#define TOKENIZE_H

/* The arguments behind the command's name, as in commands.h. A file ending in .jsonl or .json holds one JSON
 * object a line and a document in its field "text"; any other file is one document; a folder stands for the
 * regular files in it and below, by name, hidden ones left out. The end-of-document token follows each
 * document; empty documents are left out.
 *
 *   -o PREFIX          required        --tokenizer NAME   byte
 *   --json-key KEY     text            --no-append-eod    leave out the end-of-document tokens
 *   --threads N        the CPUs this process may use
 *
 * The pair appears when it is complete (a temporary name, flushed, renamed); one of that name is replaced.
 * Writes u16 ids when the vocabulary is below 65500, else i32. Dies with EXIT_CONFIG on wrong usage,
 * EXIT_DATA with file and line on input that cannot be read, EXIT_RESOURCE when writing fails. Returns
 * EXIT_DONE. */
int command_tokenize(int argc, char **argv);
#endif
