/* command_eval.c - longspan eval */
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan eval RUN.yaml [options]\n"
    "\n"
    "Held-out loss of a checkpoint, and loss by position; or, with --sample, generated text.  All\n"
    "held-out data is read, whatever eval.tokens says for the evaluations within training.  "
    "Nothing\n"
    "is written but stdout; Ctrl-C or SIGTERM ends it at once, with 128 + the signal's number.\n"
    "\n"
    "  --checkpoint DIR    a checkpoint directory (default: the newest of the run that verifies)\n"
    "  --tokens N          stop after N held-out tokens (64k, 1M), rounded up to whole sequences\n"
    "  --sample N          generate N tokens at temperature 1, seeded by the run's seed\n"
    "  --prompt TEXT       what the generated text continues (default: a newline)\n"
    "  --json, --set key.path=value, --hardware NAME|FILE, --quiet, --verbose, --help\n"
    "\n"
    "example: longspan eval configs/runs/demo.yaml --sample 300 --prompt '#ifndef '\n";

static void print_json(const longspan_eval_result *r)
{
    printf("{\"loss\":%.9g,\"tokens\":%lld,\"by_position\":[", r->loss, (long long)r->tokens);
    for (int i = 0; i < r->n_bins; i++)
        printf("%s{\"from\":%lld,\"to\":%lld,\"loss\":%.9g,\"tokens\":%lld}", i > 0 ? "," : "",
               (long long)r->bins[i].from, (long long)r->bins[i].to, r->bins[i].loss,
               (long long)r->bins[i].tokens);
    printf("],\"by_source\":{}}\n");
}

static void print_table(const longspan_eval_result *r)
{
    printf("held-out loss  %.4f nats per token  (%lld tokens)\n\n", r->loss, (long long)r->tokens);
    printf("%12s %12s %10s %12s\n", "from", "to", "loss", "tokens");
    for (int i = 0; i < r->n_bins; i++)
        printf("%12lld %12lld %10.4f %12lld\n", (long long)r->bins[i].from,
               (long long)r->bins[i].to, r->bins[i].loss, (long long)r->bins[i].tokens);
}

static void print_bytes(void *context, const void *bytes, size_t n_bytes)
{
    (void)context;
    fwrite(bytes, 1, n_bytes, stdout);
    fflush(stdout);
}

static int sample(const arguments *parsed, const char *checkpoint, const char *prompt, int64_t n)
{
    if (parsed->json) return usage_error("eval", "--sample prints bytes: no --json");
    const int result = longspan_sample(&parsed->run, checkpoint, prompt, n, print_bytes, NULL);
    if (result == 0) putchar('\n');
    return report_result(parsed, result);
}

static int run(int argc, char **argv)
{
    static arguments parsed;
    static longspan_eval_result evaluated;
    longspan_eval_options eval = {.checkpoint = NULL};
    const char *prompt = NULL;
    int64_t n_sample = 0;
    const option options[] = {
        {"checkpoint", OPTION_TEXT, &eval.checkpoint},
        {"prompt", OPTION_TEXT, &prompt},
        {"sample", OPTION_COUNT, &n_sample},
        {"tokens", OPTION_TOKENS, &eval.tokens},
        {NULL, OPTION_FLAG, NULL},
    };
    const int failed = arguments_parse("eval", argc, argv, options, &parsed);

    if (failed) return failed;
    if (parsed.help) return print_help(&command_eval);
    if (parsed.n_paths != 1) return usage_error("eval", "want one RUN.yaml");
    if (prompt != NULL && n_sample == 0) return usage_error("eval", "--prompt goes with --sample");
    if (eval.tokens > 0 && n_sample > 0)
        return usage_error("eval", "--tokens limits held-out data: not with --sample");
    parsed.run.path = parsed.paths[0];
    signals_install(SIGNALS_EXIT);
    if (n_sample > 0)
        return sample(&parsed, eval.checkpoint, prompt != NULL ? prompt : "", n_sample);

    const int result = longspan_eval(&parsed.run, &eval, &evaluated);
    if (result == 0 && parsed.json) print_json(&evaluated);
    if (result == 0 && !parsed.json) print_table(&evaluated);
    return report_result(&parsed, result);
}

const command command_eval = {"eval", "held-out loss by position; generated text", help, run};
