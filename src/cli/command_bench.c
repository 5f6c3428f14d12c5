/* command_bench.c - longspan bench */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan bench [links|optimizer] [--json] [--save FILE.yaml] [--hardware PROFILE]\n"
    "                      [--bytes N]\n"
    "\n"
    "Measure this machine.  Let nothing else run meanwhile.\n"
    "\n"
    "  links               each host memory from the cores beside it (read, write, copy and the\n"
    "                      optimizer's read-modify-write by number of threads, latency; with and\n"
    "                      without huge pages), and the copies between host and device memory\n"
    "  optimizer           the AdamW update against a loop with the same traffic and no "
    "arithmetic\n"
    "\n"
    "  --save FILE.yaml    links: write the profile in use with the measured figures, under the\n"
    "                      file's name; elsewhere it is taken as --hardware FILE.yaml\n"
    "  --hardware PROFILE  links: what to start from: auto (the default), a name, or a file; an\n"
    "                      emulated profile has its throttled copies measured\n"
    "  --bytes N           of a buffer, such as 1GiB; by default four times the last-level cache,\n"
    "                      or 16 for each of 256M parameters\n"
    "  --json, --quiet, --help\n"
    "\n"
    "example: longspan bench links --save this-node.yaml\n";

typedef int bench_function(const longspan_bench_options *options, FILE *file);

/* What is to be measured; NULL after a message.  The contract has more than this version. */
static bench_function *choose_bench(const arguments *parsed, const longspan_bench_options *bench)
{
    static const char *const later[] = {"ops", "disk", "all"};
    const char *what = parsed->n_paths > 0 ? parsed->paths[0] : "links";

    if (parsed->n_paths > 1) {
        usage_error("bench", "takes no '%s'", parsed->paths[1]);
        return NULL;
    }
    if (strcmp(what, "links") == 0) return longspan_bench_links;
    if (strcmp(what, "optimizer") == 0) {
        const char *unused = bench->save != NULL                    ? "--save"
                             : strcmp(bench->hardware, "auto") != 0 ? "--hardware"
                                                                    : NULL;
        if (unused == NULL) return longspan_bench_optimizer;
        usage_error("bench", "%s: only links has a profile", unused);
        return NULL;
    }
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (strcmp(what, later[i]) == 0) {
            usage_error("bench", "'%s' is not in this version; allowed now: links, optimizer",
                        what);
            return NULL;
        }
    usage_error("bench", "no benchmark '%s'; allowed now: links, optimizer", what);
    return NULL;
}

static int run(int argc, char **argv)
{
    static arguments parsed;
    longspan_bench_options bench = {.hardware = "auto"};
    const option options[] = {
        {"save", OPTION_TEXT, &bench.save},
        {"bytes", OPTION_TEXT, &bench.bytes},
        {"hardware", OPTION_TEXT, &bench.hardware},
        {NULL, OPTION_FLAG, NULL},
    };
    int failed = arguments_parse("bench", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_bench);
    if (parsed.run.n_sets > 0) return usage_error("bench", "--set: there is no run file here");
    bench_function *measure = choose_bench(&parsed, &bench);
    if (measure == NULL) return EXIT_USAGE;
    bench.json = parsed.json;
    bench.quiet = parsed.run.quiet;

    const int result = measure(&bench, stdout);
    return result != 0 ? report_result(&parsed, result) : EXIT_DONE;
}

const command command_bench = {"bench", "measure this machine: memory, links, the optimizer", help,
                               run};
