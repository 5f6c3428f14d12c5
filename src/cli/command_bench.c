/* command_bench.c - longspan bench */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan bench [links|ops|optimizer] [--json] [--save FILE.yaml]\n"
    "                      [--hardware PROFILE] [--bytes N]\n"
    "\n"
    "Measure this machine.  Let nothing else run meanwhile.\n"
    "\n"
    "  links               each host memory from the cores beside it (read, write, copy and the\n"
    "                      optimizer's read-modify-write by number of threads, latency; with and\n"
    "                      without huge pages), and the copies between host and device memory\n"
    "  ops                 matrix products, attention and other kernels by shape, which is what\n"
    "                      plans for this machine are timed by\n"
    "  optimizer           the AdamW update against a loop with the same traffic and no "
    "arithmetic\n"
    "\n"
    "  --save FILE.yaml    links, ops: write the profile in use with the measured figures, under "
    "the\n"
    "                      file's name; elsewhere it is taken as --hardware FILE.yaml\n"
    "  --hardware PROFILE  links, ops: what to start from: auto (the default), a name, or a file; "
    "an\n"
    "                      emulated profile has its throttled copies measured\n"
    "  --bytes N           of a buffer, such as 1GiB; by default four times the last-level cache,\n"
    "                      or 16 for each of 256M parameters\n"
    "  --json, --quiet, --help\n"
    "\n"
    "example: longspan bench links --save this-node.yaml\n";

typedef int benchmark(const longspan_bench_options *options, FILE *file);

/* What is to be measured; the contract has more than this version. */
static int find_benchmark(const arguments *parsed, benchmark **found)
{
    static const struct {
        const char *name;
        benchmark *function;
    } known[] = {{"links", longspan_bench_links},
                 {"ops", longspan_bench_ops},
                 {"optimizer", longspan_bench_optimizer}};
    static const char *const later[] = {"disk", "all"};

    if (parsed->n_paths > 1) return usage_error("bench", "takes no '%s'", parsed->paths[1]);
    const char *what = parsed->n_paths == 1 ? parsed->paths[0] : "links";
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(what, known[i].name) == 0) {
            *found = known[i].function;
            return 0;
        }
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++)
        if (strcmp(what, later[i]) == 0)
            return usage_error(
                "bench", "'%s' is not in this version; allowed now: links, ops, optimizer", what);
    return usage_error("bench", "no benchmark '%s'; allowed now: links, ops, optimizer", what);
}

static int run(int argc, char **argv)
{
    static arguments parsed;
    longspan_bench_options bench = {.hardware = "auto"};
    benchmark *measure = NULL;
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
    failed = find_benchmark(&parsed, &measure);
    if (failed) return failed;
    bench.json = parsed.json;
    bench.quiet = parsed.run.quiet;

    if (measure == longspan_bench_ops && bench.bytes != NULL)
        return usage_error("bench", "--bytes: 'ops' has the sizes of its shapes");
    if (measure == longspan_bench_optimizer &&
        (bench.save != NULL || strcmp(bench.hardware, "auto") != 0))
        return usage_error("bench", "%s: 'optimizer' has no profile",
                           bench.save != NULL ? "--save" : "--hardware");
    const int result = measure(&bench, stdout);
    return result != 0 ? report_result(&parsed, result) : EXIT_DONE;
}

const command command_bench = {"bench", "measure this machine: memory, links, kernels", help, run};
