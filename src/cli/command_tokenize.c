/* command_tokenize.c - longspan tokenize */
#include <stdio.h>

#include "commands.h"

static const char help[] =
    "usage: longspan tokenize --out PREFIX [--tokenizer bytes] PATH...\n"
    "\n"
    "Text files, or all files below folders in sorted order, to PREFIX.bin + PREFIX.idx (Megatron\n"
    "format), one document for each file.  Ctrl-C or SIGTERM removes what was begun and exits 128 "
    "+\n"
    "the signal's number.\n"
    "\n"
    "  --out PREFIX        where to write; folders are made\n"
    "  --tokenizer bytes   ids 0-255 are bytes, 256 ends each document (the default)\n"
    "  --json, --quiet, --help\n"
    "\n"
    "example: longspan tokenize --out data/train texts/\n";

static int run(int argc, char **argv)
{
    static arguments parsed;
    const char *prefix = NULL, *tokenizer = "bytes";
    longspan_tokenize_result made;
    const option options[] = {
        {"out", OPTION_TEXT, &prefix},
        {"tokenizer", OPTION_TEXT, &tokenizer},
        {NULL, OPTION_FLAG, NULL},
    };
    const int failed = arguments_parse("tokenize", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_tokenize);
    if (prefix == NULL) return usage_error("tokenize", "want --out PREFIX");
    if (parsed.n_paths == 0) return usage_error("tokenize", "want files or folders");

    signals_install(SIGNALS_TIDY);
    const int result = longspan_tokenize(prefix, tokenizer, parsed.paths, parsed.n_paths, &made);
    if (result == LONGSPAN_ERROR_STOPPED) {
        report_result(&parsed, result);
        return signals_exit_code();
    }
    if (result != 0) return report_result(&parsed, result);
    if (parsed.json)
        printf("{\"documents\":%lld,\"tokens\":%lld,\"empty_files\":%lld}\n",
               (long long)made.documents, (long long)made.tokens, (long long)made.empty_files);
    else if (!parsed.run.quiet)
        printf("%s: %lld documents, %lld tokens%s\n", prefix, (long long)made.documents,
               (long long)made.tokens, made.empty_files > 0 ? " (empty files left out)" : "");
    return EXIT_DONE;
}

const command command_tokenize = {"tokenize", "text files to token shards", help, run};
