/* command_topo.c - longspan topo */
#include <stdio.h>

#include "commands.h"

static const char help[] =
    "usage: longspan topo [--json] [--hardware PROFILE] [--from DIR|FILE.xml|FILE.yaml]\n"
    "\n"
    "The machine: places of memory, links, units; what was measured, what was assumed, what is\n"
    "missing and why; what to change.\n"
    "\n"
    "  --hardware PROFILE  merge a profile: auto (the default), none, a name, or a file\n"
    "  --from DIR          another machine: a folder with a copy of its /proc and /sys\n"
    "  --from FILE.xml     another machine: what 'lstopo FILE.xml' wrote there\n"
    "  --from FILE.yaml    no machine: the hardware profile alone\n"
    "  --json, --quiet, --help\n"
    "\n"
    "example: longspan topo --from gh200.xml\n";

static int run(int argc, char **argv)
{
    static arguments parsed;
    const char *from = NULL, *hardware = "auto";
    const option options[] = {
        {"from", OPTION_TEXT, &from},
        {"hardware", OPTION_TEXT, &hardware},
        {NULL, OPTION_FLAG, NULL},
    };
    const int failed = arguments_parse("topo", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_topo);
    if (parsed.n_paths > 0) return usage_error("topo", "takes no '%s'", parsed.paths[0]);
    if (parsed.run.n_sets > 0) return usage_error("topo", "--set: there is no run file here");

    signals_install(SIGNALS_EXIT);
    const int result = longspan_topo(from, hardware, parsed.json, stdout);
    return result != 0 ? report_result(&parsed, result) : EXIT_DONE;
}

const command command_topo = {"topo", "the machine: memory, links, units, settings", help, run};
