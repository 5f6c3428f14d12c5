/*
 * cli_test.h - what tests of the program share: a scratch folder with a tiny model, a run file and
 * data; the program run there with its output caught; records and checkpoints compared.
 */
#ifndef LS_CLI_TEST_H
#define LS_CLI_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "directory.h"
#include "record_schema.h"
#include "status.h"

#ifndef PROGRAM
#define PROGRAM LS_BINARY_DIR "/longspan"
#endif

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

static const char model_yaml[] = "model_type: llama\n"
                                 "vocab_size: 272\n"
                                 "hidden_size: 32\n"
                                 "intermediate_size: 64\n"
                                 "num_hidden_layers: 2\n"
                                 "num_attention_heads: 4\n"
                                 "num_key_value_heads: 2\n"
                                 "head_dim: 8\n"
                                 "max_position_embeddings: 1073741824\n"
                                 "rms_norm_eps: 1.0e-5\n"
                                 "rope_theta: 10000.0\n"
                                 "initializer_range: 0.02\n"
                                 "tie_word_embeddings: false\n"
                                 "eos_token_id: 256\n";

static const char run_yaml[] = "model: model.yaml\n"
                               "precision: bf16\n"
                               "data: {train: data/train, valid: data/valid}\n"
                               "sequence: {tokens: 64}\n"
                               "batch: {sequences: 2, accumulate: 1}\n"
                               "optimizer: {lr: 3e-3, warmup_steps: 2}\n"
                               "memory: {threads: {compute: 2, optimizer: 2}}\n"
                               "steps: 30\n"
                               "seed: 7\n"
                               "eval: {every_steps: 10, tokens: 256}\n"
                               "checkpoint: {every_steps: 10, keep: 2}\n"
                               "output: run\n";

static char scratch[256];    /* the folder; the program runs in it */
static int64_t train_tokens; /* of data/train */

/* ---- files --------------------------------------------------------------------------------- */

/* A path in the scratch folder; eight results live at a time. */
static inline const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline const char *at(const char *format, ...)
{
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    const int n = snprintf(path, sizeof paths[0], "%s/", scratch);
    va_list args;

    va_start(args, format);
    vsnprintf(path + n, sizeof paths[0] - (size_t)n, format, args);
    va_end(args);
    return path;
}

static inline void put_bytes(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) fail_msg("%s: %s", path, strerror(errno));
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void put_text(const char *path, const char *text)
{
    put_bytes(path, text, strlen(text));
}

/* The whole file and a NUL, allocated; NULL if it cannot be opened. */
static inline char *get_bytes(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    size_t capacity = 4096, n = 0, got;
    char *data = malloc(capacity);

    assert_non_null(data);
    if (file == NULL) {
        free(data);
        return NULL;
    }
    while ((got = fread(data + n, 1, capacity - n - 1, file)) > 0) {
        n += got;
        if (n + 1 < capacity) continue;
        capacity *= 2;
        data = realloc(data, capacity);
        assert_non_null(data);
    }
    fclose(file);
    data[n] = '\0';
    if (bytes != NULL) *bytes = n;
    return data;
}

static inline char *need_bytes(const char *path, size_t *bytes)
{
    char *data = get_bytes(path, bytes);
    if (data == NULL) fail_msg("%s: %s", path, strerror(errno));
    return data;
}

static inline bool is_there(const char *path)
{
    ls_path_kind kind;
    assert_ok(ls_path_describe_link(path, &kind));
    return kind != LS_PATH_ABSENT;
}

/* text with its only `from` replaced by `to`, written to a file; returns the line it stands on. */
static inline int put_changed(const char *path, const char *text, const char *from, const char *to)
{
    char changed[2048];
    const char *place = strstr(text, from);
    int line = 1;

    assert_non_null(place);
    for (const char *c = text; c < place; c++) line += *c == '\n';
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(place - text), text, to,
             place + strlen(from));
    put_text(path, changed);
    return line;
}

/* Flip bits of one byte, in the middle of the file. */
static inline void damage(const char *path)
{
    size_t bytes = 0;
    char *data = need_bytes(path, &bytes);
    assert_true(bytes > 2);
    data[bytes / 2] = (char)(data[bytes / 2] ^ 0x10);
    put_bytes(path, data, bytes);
    free(data);
}

/* ---- the program --------------------------------------------------------------------------- */

typedef struct outcome {
    int code;        /* exit code; 1000 + number: killed by a signal */
    char *out, *err; /* valid until the next finish() */
    size_t n_out;
} outcome;

/* Start the program in the scratch folder; argv[0] is its path. */
static inline pid_t start(const char *const *argv)
{
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid > 0) return pid;
    const int out = open(at("stdout.txt"), O_CREAT | O_TRUNC | O_WRONLY, 0666);
    const int err = open(at("stderr.txt"), O_CREAT | O_TRUNC | O_WRONLY, 0666);
    if (out < 0 || err < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 || chdir(scratch) != 0)
        _exit(126);
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

static inline outcome *finish(pid_t pid)
{
    static outcome done;
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    free(done.out);
    free(done.err);
    done.out = need_bytes(at("stdout.txt"), &done.n_out);
    done.err = need_bytes(at("stderr.txt"), NULL);
    done.code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    return &done;
}

static inline outcome *finish_as(int code, pid_t pid)
{
    outcome *done = finish(pid);
    if (done->code != code) fail_msg("exit code %d, not %d: %s", done->code, code, done->err);
    return done;
}

#define START(...) start((const char *const[]){PROGRAM, __VA_ARGS__, NULL})

/* Run the program with these arguments; it must exit with this code. */
#define RUN(code, ...) finish_as((code), START(__VA_ARGS__))

static inline void assert_says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' lacks '%s'", text, part);
}

static inline void sleep_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

/* ---- the scratch folder -------------------------------------------------------------------- */

/* Documents of words, of uneven length, some shorter and some longer than a sequence. */
static inline void put_corpus(const char *folder, int n_documents, uint32_t seed)
{
    static const char *const words[] = {"struct ", "int ", "return ", "x = y;\n", "while (n) ",
                                        "#if ",    "0x1f", "\t",      "const ",   "/* why */\n"};

    assert_ok(ls_directory_make(at("%s", folder)));
    for (int d = 0; d < n_documents; d++) {
        char text[4096] = "";
        for (int w = 0; w < 4 + 13 * d; w++) {
            seed = seed * 1664525u + 1013904223u;
            strcat(text, words[(seed >> 16) % 10]);
        }
        put_text(at("%s/%02d.txt", folder, d), text);
    }
}

static inline int make_scratch(void **state)
{
    (void)state;
    snprintf(scratch, sizeof scratch, "%s/cli-XXXXXX", LS_BINARY_DIR);
    if (mkdtemp(scratch) == NULL) return -1;
    put_text(at("model.yaml"), model_yaml);
    put_text(at("run.yaml"), run_yaml);
    put_corpus("text-train", 9, 1);
    put_corpus("text-valid", 3, 2);
    RUN(0, "tokenize", "--out", "data/valid", "text-valid");
    const outcome *done = RUN(0, "tokenize", "--out", "data/train", "text-train", "--json");
    const char *tokens = strstr(done->out, "\"tokens\":");
    assert_non_null(tokens);
    train_tokens = strtoll(tokens + 9, NULL, 10);
    assert_true(train_tokens > 1000);
    return 0;
}

static inline int remove_scratch(void **state)
{
    (void)state;
    const int bad = check_records(scratch); /* of every run that is still there */
    const ls_status removed = ls_directory_remove(scratch);
    if (bad > 0) exit(EXIT_FAILURE); /* cmocka does not count what a teardown finds */
    return removed == LS_OK ? 0 : -1;
}

/* ---- records and checkpoints --------------------------------------------------------------- */

/* For each step the last of its lines, as text without what a clock measured. */
typedef struct history {
    char **steps; /* [n + 1], from step 1; NULL: no line */
    int64_t n;    /* the last step */
} history;

/* What of a step line must repeat: from tokens to lr, and the losses by position. */
static inline char *keep_results(const char *line)
{
    const char *from = strstr(line, "\"tokens\":"), *end = strstr(line, ",\"step_s\"");
    const char *bins = strstr(line, "\"loss_by_position\":");
    char *kept = malloc(strlen(line) + 1);

    assert_non_null(kept);
    if (from == NULL || end == NULL || bins == NULL) fail_msg("not a step line: %s", line);
    sprintf(kept, "%.*s %s", (int)(end - from), from, bins);
    return kept;
}

static inline history read_history(const char *output)
{
    char *text = need_bytes(at("%s/record.jsonl", output), NULL), *next;
    history h = {calloc(1, sizeof *h.steps), 0};

    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        const int64_t step = strncmp(line, "{\"step\":", 8) == 0 ? atoll(line + 8) : 0;
        assert_true(step >= 1);
        if (strstr(line, "\"eval_loss\"") != NULL) continue;
        for (; h.n < step; h.n++) {
            h.steps = realloc(h.steps, (size_t)(h.n + 2) * sizeof *h.steps);
            assert_non_null(h.steps);
            h.steps[h.n + 1] = NULL;
        }
        free(h.steps[step]);
        h.steps[step] = keep_results(line);
    }
    free(text);
    return h;
}

static inline void free_history(history *h)
{
    for (int64_t step = 1; step <= h->n; step++) free(h->steps[step]);
    free(h->steps);
}

static inline int64_t last_step(const char *output)
{
    history h = read_history(output);
    const int64_t n = h.n;
    free_history(&h);
    return n;
}

static inline void assert_same_file(const char *path, const char *other)
{
    size_t n = 0, n_other = 0;
    char *data = need_bytes(path, &n), *data_other = need_bytes(other, &n_other);
    if (n != n_other || memcmp(data, data_other, n) != 0)
        fail_msg("%s differs from %s", path, other);
    free(data);
    free(data_other);
}

/* Both runs have the same results at each of the steps and the same checkpoint after the last. */
static inline void assert_same_run(const char *output, const char *other, int64_t steps)
{
    static const char *const files[] = {"model-00001-of-00001.safetensors",
                                        "optimizer-00001-of-00001.safetensors", "config.json"};
    history h = read_history(output), h_other = read_history(other);

    assert_int_equal(h.n, steps);
    assert_int_equal(h_other.n, steps);
    for (int64_t step = 1; step <= steps; step++) {
        assert_non_null(h.steps[step]);
        assert_non_null(h_other.steps[step]);
        if (strcmp(h.steps[step], h_other.steps[step]) != 0)
            fail_msg("step %lld of %s:\n%s\nof %s:\n%s", (long long)step, output, h.steps[step],
                     other, h_other.steps[step]);
    }
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++)
        assert_same_file(at("%s/checkpoints/step-%08lld/%s", output, (long long)steps, files[f]),
                         at("%s/checkpoints/step-%08lld/%s", other, (long long)steps, files[f]));
    free_history(&h);
    free_history(&h_other);
}

#endif
