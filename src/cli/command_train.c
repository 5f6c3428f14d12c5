/* command_train.c - longspan train */
#include <stddef.h>

#include "commands.h"

static const char help[] =
    "usage: longspan train RUN.yaml [options]\n"
    "\n"
    "Train as the run file says.  Ctrl-C or SIGTERM saves a checkpoint and exits 75; a second one\n"
    "stops at once.\n"
    "\n"
    "  --resume            continue from the newest checkpoint that verifies\n"
    "  --replan            with --resume: memory, chunk and placement choices may change\n"
    "  --stop-after STEP   save and exit 75 once this step is done; at most the run file's steps\n"
    "  --deadline TIME     save and exit 75 before TIME: +2h30m, 2027-01-31T18:00 or @SECONDS\n"
    "  --dry-run           plan, print the memory table, check that it fits, stop\n"
    "  --set key.path=value, --hardware NAME|FILE, --quiet, --verbose, --help\n"
    "\n"
    "example: longspan train configs/runs/demo.yaml --set steps=50 --set output=runs/short\n";

static int run(int argc, char **argv)
{
    static arguments parsed;
    longspan_train_options train = {0};
    const option options[] = {
        {"resume", OPTION_FLAG, &train.resume},     {"replan", OPTION_FLAG, &train.replan},
        {"dry-run", OPTION_FLAG, &train.dry_run},   {"stop-after", OPTION_COUNT, &train.stop_after},
        {"deadline", OPTION_TIME, &train.deadline}, {NULL, OPTION_FLAG, NULL},
    };
    const int failed = arguments_parse("train", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_train);
    if (parsed.json) return usage_error("train", "--json: train records to record.jsonl instead");
    if (parsed.n_paths != 1) return usage_error("train", "want one RUN.yaml");
    if (train.replan && !train.resume) return usage_error("train", "--replan goes with --resume");
    parsed.run.path = parsed.paths[0];
    signals_install(train.dry_run ? SIGNALS_EXIT : SIGNALS_SAVE);
    return report_result(&parsed, longspan_train(&parsed.run, &train));
}

const command command_train = {"train", "train as a run file says", help, run};
