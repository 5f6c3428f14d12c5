/* command_bench.c - longspan bench */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan bench [links] [--json] [--save FILE.yaml] [--hardware PROFILE] [--bytes N]\n"
    "\n"
    "Measure this machine.  links: each host memory from the cores beside it (read, write, copy "
    "and\n"
    "the optimizer's read-modify-write by number of threads, latency; with and without huge "
    "pages),\n"
    "and the copies between host and device memory.  Let nothing else run meanwhile.\n"
    "\n"
    "  --save FILE.yaml    write the profile in use with the measured figures, under the file's\n"
    "                      name; elsewhere it is taken as --hardware FILE.yaml\n"
    "  --hardware PROFILE  what to start from: auto (the default), a name, or a file; an emulated\n"
    "                      profile has its throttled copies measured\n"
    "  --bytes N           of a buffer, such as 1GiB; by default four times the last-level cache\n"
    "  --json, --quiet, --help\n"
    "\n"
    "example: longspan bench links --save this-node.yaml\n";

/* What is to be measured; the contract has more than this version. */
static int check_what(const arguments *parsed)
{
    static const char *const later[] = {"ops", "optimizer", "disk", "all"};

    if (parsed->n_paths > 1) return usage_error("bench", "takes no '%s'", parsed->paths[1]);
    const char *what = parsed->n_paths == 1 ? parsed->paths[0] : "links"; /* all there is */
    if (strcmp(what, "links") == 0) return 0;
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (strcmp(what, later[i]) == 0)
            return usage_error("bench", "'%s' is not in this version; allowed now: links", what);
    return usage_error("bench", "no benchmark '%s'; allowed now: links", what);
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
    failed = check_what(&parsed);
    if (failed) return failed;
    bench.json = parsed.json;
    bench.quiet = parsed.run.quiet;

    const int result = longspan_bench_links(&bench, stdout);
    return result != 0 ? report_result(&parsed, result) : EXIT_DONE;
}

const command command_bench = {"bench", "measure this machine: memory and links", help, run};
