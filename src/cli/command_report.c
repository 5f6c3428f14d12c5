/* command_report.c - longspan report */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan report RUN_DIR... [--out DIR] [--export DIR] [--tensorboard DIR]\n"
    "       longspan report --validate DIR\n"
    "\n"
    "Look at runs: throughput, energy, memory, losses as a table; several runs side by side, each\n"
    "held against the first, with what is noise.  Runs that are still at work can be looked at.\n"
    "\n"
    "  --out DIR       DIR/report.html, which needs nothing from elsewhere, and its charts as "
    ".svg\n"
    "  --export DIR    a data set to publish: CSV tables, a JSON schema, a README\n"
    "  --tensorboard DIR\n"
    "                  each run's scalars as an event file, for tensorboard --logdir DIR\n"
    "  --validate DIR  check such a data set\n"
    "  --help\n"
    "\n"
    "example: longspan report runs/demo --out report && xdg-open report/report.html\n";

static int run(int argc, char **argv)
{
    static arguments parsed;
    longspan_report_options report = {.runs = NULL};
    const char *validate = NULL;
    const option options[] = {
        {"out", OPTION_TEXT, &report.out},
        {"export", OPTION_TEXT, &report.export_dir},
        {"tensorboard", OPTION_TEXT, &report.tensorboard},
        {"validate", OPTION_TEXT, &validate},
        {NULL, OPTION_FLAG, NULL},
    };
    const int failed = arguments_parse("report", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_report);
    if (parsed.run.n_sets > 0) return usage_error("report", "--set: there is no run file here");
    if (parsed.json)
        return usage_error("report", "--json: programs read record.jsonl, or --export");
    if (validate != NULL && (parsed.n_paths > 0 || report.out != NULL ||
                             report.export_dir != NULL || report.tensorboard != NULL))
        return usage_error("report", "--validate checks one data set, and takes nothing else");
    if (validate == NULL && parsed.n_paths == 0)
        return usage_error("report", "no run directory; give one or more");
    report.runs = parsed.paths;
    report.n_runs = parsed.n_paths;
    const int result = validate != NULL ? longspan_report_validate(validate, stdout)
                                        : longspan_report(&report, stdout);
    return result != 0 ? report_result(&parsed, result) : EXIT_DONE;
}

const command command_report = {"report", "look at runs: throughput, power, memory, losses", help,
                                run};
