/* command_plan.c - longspan plan */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan plan RUN.yaml [options]\n"
    "\n"
    "What training would do, before it does: builds the plan of the run, checks it, and says "
    "where\n"
    "every byte lies and whether this machine has room for them (exit 3: it has not).  No data "
    "and\n"
    "no weights are read.\n"
    "\n"
    "  --json              one JSON document; what is not known is null\n"
    "  --print             the plan itself, a line for each tensor and step, to read and to "
    "compare\n"
    "  --trace FILE        the simulated step as a trace for Perfetto, lanes as threads\n"
    "  --compare PROFILE,PROFILE...  a line for each hardware profile (exit 3: it fits none); "
    "with\n"
    "                      --json an array of their documents\n"
    "  --maximize tokens   the longest sequence.tokens that have room, for each memory.save\n"
    "  --verbose           also how long the search, building and checking took (stderr)\n"
    "  --set key.path=value, --hardware NAME|FILE, --quiet, --help\n"
    "\n"
    "example: longspan plan configs/runs/demo.yaml --set sequence.tokens=32k\n";

static int run(int argc, char **argv)
{
    static arguments parsed;
    const char *compare = NULL, *maximize = NULL, *trace = NULL;
    bool print = false;
    const option options[] = {{"print", OPTION_FLAG, &print},
                              {"compare", OPTION_TEXT, &compare},
                              {"maximize", OPTION_TEXT, &maximize},
                              {"trace", OPTION_TEXT, &trace},
                              {NULL, OPTION_FLAG, NULL}};
    const int failed = arguments_parse("plan", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_plan);
    if (parsed.n_paths != 1) return usage_error("plan", "want one RUN.yaml");
    if (print && parsed.json) return usage_error("plan", "--print or --json, not both");
    if (print + (compare != NULL) + (maximize != NULL) > 1)
        return usage_error("plan", "--print, --compare or --maximize, not two of them");
    if (trace != NULL && (compare != NULL || maximize != NULL))
        return usage_error("plan", "--trace is of one plan: not with --compare or --maximize");
    if (maximize != NULL && strcmp(maximize, "tokens") != 0)
        return usage_error("plan", "--maximize %s: allowed: tokens", maximize);
    parsed.run.path = parsed.paths[0];
    signals_install(SIGNALS_EXIT);
    if (compare != NULL)
        return report_result(&parsed,
                             longspan_plan_compare(&parsed.run, compare, parsed.json, stdout));
    if (maximize != NULL)
        return report_result(&parsed, longspan_plan_maximize(&parsed.run, parsed.json, stdout));
    const longspan_plan_format format = print         ? LONGSPAN_PLAN_TEXT
                                        : parsed.json ? LONGSPAN_PLAN_JSON
                                                      : LONGSPAN_PLAN_TABLES;
    return report_result(&parsed, longspan_plan_trace(&parsed.run, format, trace, stdout));
}

const command command_plan = {"plan", "where every byte lies, and whether it fits", help, run};
