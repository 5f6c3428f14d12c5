/* command_eval.c - longspan eval */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

static const char help[] =
    "usage: longspan eval RUN.yaml [options]\n"
    "\n"
    "Held-out loss of a checkpoint: as a whole, by position, by distance from the start of the\n"
    "document and by data set; or, with --sample, generated text.  All held-out data is read,\n"
    "whatever eval.tokens says for the evaluations within training.  Nothing is written but "
    "stdout;\n"
    "Ctrl-C or SIGTERM ends it at once, with 128 + the signal's number.\n"
    "\n"
    "  --checkpoint DIR    a checkpoint directory (default: the newest of the run that verifies)\n"
    "  --tokens N          stop after N held-out tokens (64k, 1M), rounded up to whole sequences;\n"
    "                      of several data sets in turn, a sequence of each\n"
    "  --sample N          generate N tokens at temperature 1, seeded by the run's seed\n"
    "  --prompt TEXT       what the generated text continues (default: a newline)\n"
    "  --json, --set key.path=value, --hardware NAME|FILE, --quiet, --verbose, --help\n"
    "\n"
    "example: longspan eval configs/runs/demo.yaml --sample 300 --prompt '#ifndef '\n";

/* ---- for programs -------------------------------------------------------------------------- */

static void print_json_real(double value)
{
    if (isfinite(value))
        printf("%.9g", value);
    else
        printf("null");
}

static void print_json_bins(const char *key, const longspan_eval_bin *bins, int n)
{
    printf(",\"%s\":[", key);
    for (int i = 0; i < n; i++) {
        printf("%s{\"from\":%lld,\"to\":%lld,\"loss\":", i > 0 ? "," : "", (long long)bins[i].from,
               (long long)bins[i].to);
        print_json_real(bins[i].loss);
        printf(",\"tokens\":%lld}", (long long)bins[i].tokens);
    }
    putchar(']');
}

static void print_json_text(const char *text)
{
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c < 0x20)
            printf("\\u%04x", *c);
        else if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else
            putchar(*c);
    }
    putchar('"');
}

static void print_json(const longspan_eval_result *r)
{
    printf("{\"loss\":");
    print_json_real(r->loss);
    printf(",\"tokens\":%lld", (long long)r->tokens);
    print_json_bins("by_position", r->by_position, r->n_positions);
    print_json_bins("by_distance", r->by_distance, r->n_distances);
    printf(",\"by_source\":{");
    for (int i = 0; i < r->n_sources; i++) {
        if (i > 0) putchar(',');
        print_json_text(r->by_source[i].name);
        printf(":{\"loss\":");
        print_json_real(r->by_source[i].loss);
        printf(",\"tokens\":%lld}", (long long)r->by_source[i].tokens);
    }
    printf("}}\n");
}

/* ---- for people ---------------------------------------------------------------------------- */

#define COUNT_BYTES 32
#define BAR_COLUMNS 30

/* "1,048,576"; returns buffer. */
static const char *group_digits(char buffer[COUNT_BYTES], int64_t count)
{
    char digits[COUNT_BYTES];
    const int n = snprintf(digits, sizeof digits, "%lld", (long long)count);
    int to = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) buffer[to++] = ',';
        buffer[to++] = digits[i];
    }
    buffer[to] = '\0';
    return buffer;
}

static void print_bins(const char *title, const longspan_eval_bin *bins, int n)
{
    char from[COUNT_BYTES], to[COUNT_BYTES], tokens[COUNT_BYTES];
    double most = 0.0;

    printf("\n%s\n%25s %10s %14s\n", title, "tokens before", "loss", "labels");
    for (int i = 0; i < n; i++) most = bins[i].loss > most ? bins[i].loss : most;
    for (int i = 0; i < n; i++) {
        const bool single = bins[i].to - bins[i].from == 1;
        const double share = bins[i].loss / most; /* not a number where losses are not */
        const int bar = share > 0.0 && share <= 1.0 ? (int)(share * BAR_COLUMNS + 0.5) : 0;
        printf("%11s %s %11s %10.4f %14s  %.*s\n", single ? "" : group_digits(from, bins[i].from),
               single ? " " : "-", group_digits(to, bins[i].to - 1), bins[i].loss,
               group_digits(tokens, bins[i].tokens), bar, "##############################");
    }
}

static void print_sources(const longspan_eval_result *r)
{
    char tokens[COUNT_BYTES];
    int widest = 24;

    for (int i = 0; i < r->n_sources; i++) {
        const int width = (int)strlen(r->by_source[i].name);
        if (width > widest) widest = width;
    }
    printf("\nby source\n %-*s %10s %14s\n", widest, "data", "loss", "labels");
    for (int i = 0; i < r->n_sources; i++) {
        const longspan_eval_source *source = &r->by_source[i];
        printf(" %-*s ", widest, source->name);
        if (source->tokens > 0)
            printf("%10.4f %14s\n", source->loss, group_digits(tokens, source->tokens));
        else
            printf("%10s %14s\n", "-", "none read");
    }
}

static void print_table(const longspan_eval_result *r)
{
    char tokens[COUNT_BYTES];

    printf("held-out loss  %.4f nats per token  (perplexity %.2f, %s tokens)\n", r->loss,
           exp(r->loss), group_digits(tokens, r->tokens));
    if (r->positions_are_distances) {
        print_bins("by position, which restarts with each document", r->by_position,
                   r->n_positions);
    } else {
        print_bins("by position in the sequence", r->by_position, r->n_positions);
        print_bins("by distance from the document's start", r->by_distance, r->n_distances);
    }
    if (r->n_sources > 1) print_sources(r);
}

/* ---- the command --------------------------------------------------------------------------- */

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
    longspan_eval_result evaluated;
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
    if (result == 0) longspan_eval_free(&evaluated);
    return report_result(&parsed, result);
}

const command command_eval = {
    "eval", "held-out loss by position, distance and source; generated text", help, run};
