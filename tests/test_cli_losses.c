/*
 * test_cli_losses.c - what longspan eval and the record say of losses by position, by distance and
 * by source: exact counts by the lengths of the documents alone; parts that sum to the whole; a
 * source as if it were the only one; the same numbers however the sequences are cut into blocks.
 */
#include "cli_test.h"

#include <cjson/cJSON.h>
#include <math.h>

enum { S = 64, BINS = 7, SOURCES = 3 }; /* bins: 0, 1, 2-3, ..., 32-63 */

static const char *const folders[SOURCES] = {"text-valid", "text-train", "text-more"};
static const char *const prefixes[SOURCES] = {"data/valid", "data/train", "data/more"};

#define ALL                 "data.valid=[data/valid, data/train, data/more]"
#define EVAL(...)           RUN(0, "eval", "run.yaml", "--quiet", __VA_ARGS__)
#define EVAL_JSON(...)      parse(EVAL("--json", __VA_ARGS__)->out)
#define EVAL_SETS_JSON(...) parse(EVAL("--json", "--set", ALL, __VA_ARGS__)->out)

static cJSON *parse(const char *text)
{
    cJSON *json = cJSON_Parse(text);
    if (json == NULL) fail_msg("no JSON: %s", text);
    return json;
}

static const cJSON *need(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (item == NULL) fail_msg("no key '%s'", key);
    return item;
}

static double number(const cJSON *object, const char *key)
{
    const cJSON *item = need(object, key);
    if (!cJSON_IsNumber(item)) fail_msg("'%s' is no number", key);
    return item->valuedouble;
}

/* ---- counts, by the lengths of the documents --------------------------------------------------
 */

typedef struct counts {
    int64_t by_position[BINS], by_distance[BINS], labels;
} counts;

static int bin_of(int64_t at)
{
    int bin = 0;
    while (at >= (int64_t)1 << bin) bin++;
    return bin;
}

/* Tokens of document d of a folder: its bytes and the end; 0: there is none. */
static int64_t length_of(const char *folder, int d)
{
    size_t bytes = 0;
    char *text = get_bytes(at("%s/%02d.txt", folder, d), &bytes);
    free(text);
    return text != NULL ? (int64_t)bytes + 1 : 0;
}

/* Documents laid end to end and cut every S tokens; the last token of a piece predicts nothing. */
static counts count_labels(const char *folder, bool restart)
{
    counts c = {.labels = 0};
    int64_t row = 0, left;

    for (int d = 0; (left = length_of(folder, d)) > 0; d++)
        while (left > 0) {
            const int64_t room = S - row % S, n = left < room ? left : room;
            for (int64_t i = 0; i < n - 1; i++) {
                c.by_position[bin_of(restart ? i : (row + i) % S)]++;
                c.by_distance[bin_of(i)]++;
                c.labels++;
            }
            row += n;
            left -= n;
        }
    return c;
}

/* The labels of each bin, those without are not there; their losses sum to the mean. */
static void check_bins(const cJSON *bins, const int64_t expected[BINS], double loss)
{
    const cJSON *bin = bins->child;
    double sum = 0.0, labels = 0.0;

    for (int b = 0; b < BINS; b++) {
        if (expected[b] == 0) continue;
        assert_non_null(bin);
        assert_true(number(bin, "from") == (b == 0 ? 0 : 1 << (b - 1)));
        assert_true(number(bin, "to") == 1 << b);
        assert_true(number(bin, "tokens") == (double)expected[b]);
        sum += number(bin, "loss") * (double)expected[b];
        labels += (double)expected[b];
        bin = bin->next;
    }
    assert_null(bin);
    assert_true(fabs(sum / labels - loss) <= 1e-8 * loss);
}

static void test_counts_are_those_of_the_documents(void **state)
{
    static const char *const modes[] = {"sequence.documents=isolate", "sequence.documents=join",
                                        "sequence.documents=isolate-running"};

    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        counts all = {.labels = 0};
        cJSON *json = EVAL_SETS_JSON("--set", modes[mode]);
        const double loss = number(json, "loss");
        double sum = 0.0;
        for (int s = 0; s < SOURCES; s++) {
            const counts c = count_labels(folders[s], mode == 0);
            const cJSON *source = need(need(json, "by_source"), prefixes[s]);
            assert_true(number(source, "tokens") == (double)c.labels);
            sum += number(source, "loss") * (double)c.labels;
            for (int b = 0; b < BINS; b++) all.by_position[b] += c.by_position[b];
            for (int b = 0; b < BINS; b++) all.by_distance[b] += c.by_distance[b];
            all.labels += c.labels;
        }
        assert_true(all.labels > 1000 && number(json, "tokens") == (double)all.labels);
        assert_true(fabs(sum / (double)all.labels - loss) <= 1e-8 * loss);
        assert_int_equal(cJSON_GetArraySize(need(json, "by_source")), SOURCES);
        check_bins(need(json, "by_position"), all.by_position, loss);
        check_bins(need(json, "by_distance"), all.by_distance, loss);
        /* positions that restart are distances; others are not */
        const bool same = cJSON_Compare(need(json, "by_position"), need(json, "by_distance"), 1);
        assert_int_equal(same, mode == 0);
        cJSON_Delete(json);
    }
}

static void test_linear_bins(void **state)
{
    (void)state;
    cJSON *json = EVAL_JSON("--set", "eval.position_bins=linear:4", "--set",
                            "sequence.documents=isolate-running");
    static const char *const keys[] = {"by_position", "by_distance"};

    for (int k = 0; k < 2; k++) {
        const cJSON *bin;
        double sum = 0.0, labels = 0.0, end = 0.0;
        cJSON_ArrayForEach(bin, need(json, keys[k]))
        {
            assert_true(number(bin, "from") == end && number(bin, "to") == end + 16);
            sum += number(bin, "loss") * number(bin, "tokens");
            labels += number(bin, "tokens");
            end += 16;
        }
        assert_true(end == S && labels == number(json, "tokens"));
        assert_true(fabs(sum / labels - number(json, "loss")) <= 1e-8 * number(json, "loss"));
    }
    cJSON_Delete(json);
}

/* ---- sources ------------------------------------------------------------------------------- */

/* In every mode: no source sees another, and none moves another's documents. */
static void test_a_source_is_as_if_it_were_alone(void **state)
{
    static const char *const modes[] = {"sequence.documents=isolate", "sequence.documents=join",
                                        "sequence.documents=isolate-running"};
    char set[64];

    (void)state;
    for (int mode = 0; mode < 3; mode++) {
        cJSON *json = EVAL_SETS_JSON("--set", modes[mode]);
        for (int s = 0; s < SOURCES; s++) {
            const cJSON *source = need(need(json, "by_source"), prefixes[s]);
            snprintf(set, sizeof set, "data.valid=%s", prefixes[s]);
            cJSON *alone = EVAL_JSON("--set", set, "--set", modes[mode]);
            assert_true(number(alone, "tokens") == number(source, "tokens"));
            assert_true(fabs(number(alone, "loss") - number(source, "loss")) <= 1e-6);
            assert_true(number(need(need(alone, "by_source"), prefixes[s]), "loss") ==
                        number(alone, "loss"));
            cJSON_Delete(alone);
        }
        cJSON_Delete(json);
    }
}

/* Two sequences of three sources: what was not read says so, in both forms. */
static void test_sources_take_turns(void **state)
{
    (void)state;
    cJSON *json = EVAL_SETS_JSON("--tokens", "128");
    const cJSON *sources = need(json, "by_source");

    assert_true(number(need(sources, "data/valid"), "tokens") > 32);
    assert_true(number(need(sources, "data/train"), "tokens") > 32);
    assert_true(number(need(sources, "data/more"), "tokens") == 0);
    assert_true(cJSON_IsNull(need(need(sources, "data/more"), "loss")));
    cJSON_Delete(json);
    const outcome *done = EVAL("--set", ALL, "--tokens", "128");
    assert_says(done->out, "by position, which restarts with each document\n");
    assert_says(done->out, "\n data/valid ");
    assert_says(done->out, "none read\n");
    assert_null(strstr(done->out, "by distance"));
    done = EVAL("--set", "sequence.documents=join");
    assert_says(done->out, "by position in the sequence\n");
    assert_says(done->out, "by distance from the document's start\n");
    assert_null(strstr(done->out, "by source"));
}

/* One name, one entry, however often it stands there. */
static void test_a_name_given_twice_is_one_source(void **state)
{
    (void)state;
    cJSON *once = EVAL_JSON("--set", "data.valid=[data/more]");
    cJSON *twice = EVAL_JSON("--set", "data.valid=[data/more, data/more]");

    assert_int_equal(cJSON_GetArraySize(need(twice, "by_source")), 1);
    assert_true(number(twice, "tokens") == 2 * number(once, "tokens"));
    assert_true(fabs(number(twice, "loss") - number(once, "loss")) <= 1e-6);
    cJSON_Delete(once);
    cJSON_Delete(twice);
}

/* ---- blocks -------------------------------------------------------------------------------- */

static void assert_near_bins(const cJSON *a, const cJSON *b)
{
    assert_int_equal(cJSON_GetArraySize(a), cJSON_GetArraySize(b));
    for (a = a->child, b = b->child; a != NULL; a = a->next, b = b->next) {
        if (cJSON_IsObject(a)) { /* a bin, or a source */
            assert_true(number(a, "tokens") == number(b, "tokens"));
            assert_true(fabs(number(a, "loss") - number(b, "loss")) <= 5e-6);
        } else { /* [from, to, loss] */
            for (int i = 0; i < 2; i++)
                assert_true(cJSON_GetArrayItem(a, i)->valuedouble ==
                            cJSON_GetArrayItem(b, i)->valuedouble);
            assert_true(fabs(cJSON_GetArrayItem(a, 2)->valuedouble -
                             cJSON_GetArrayItem(b, 2)->valuedouble) <= 5e-6);
        }
    }
}

/* 64 tokens are a multiple of none of these blocks. */
#define BLOCKS(chunk, query_block)                                                                 \
    "--set", "sequence.chunk=" chunk, "--set", "sequence.query_block=" query_block

static const char *const cuts[][10] = {
    {BLOCKS("24", "40"), "--set", "batch.sequences=1"},
    {BLOCKS("7", "21"), "--set", "batch.sequences=3"},
    {BLOCKS("1", "63"), "--set", "batch.sequences=5"},
    {BLOCKS("10", "20"), "--set", "memory.weights=stream", "--set", "memory.place={x: host}",
     "--hardware", "emulated-gh200"},
};

static void test_blocks_change_nothing(void **state)
{
    static const char *const keys[] = {"by_position", "by_distance", "by_source"};

    (void)state;
    cJSON *whole = EVAL_SETS_JSON("--set", "sequence.documents=join");
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        const char *argv[24] = {PROGRAM,  "eval",    "run.yaml",
                                "--json", "--quiet", "--set",
                                ALL,      "--set",   "sequence.documents=join"};
        for (int a = 0; a < 10 && cuts[i][a] != NULL; a++) argv[9 + a] = cuts[i][a];
        cJSON *cut = parse(finish_as(0, start(argv))->out);
        assert_true(number(cut, "tokens") == number(whole, "tokens"));
        assert_true(fabs(number(cut, "loss") - number(whole, "loss")) <= 5e-6);
        for (int k = 0; k < 3; k++) assert_near_bins(need(cut, keys[k]), need(whole, keys[k]));
        cJSON_Delete(cut);
    }
    cJSON_Delete(whole);
}

/* ---- training ------------------------------------------------------------------------------ */

/* Line n (from 0) of a record; the caller deletes it. */
static cJSON *read_line(const char *output, int n)
{
    char *text = need_bytes(at("%s/record.jsonl", output), NULL), *line = text;

    for (; n > 0 && line != NULL; n--) line = strchr(line, '\n') + 1;
    assert_non_null(line);
    line[strcspn(line, "\n")] = '\0';
    cJSON *json = parse(line);
    free(text);
    return json;
}

#define TRAIN(output, ...)                                                                         \
    RUN(0, "train", "run.yaml", "--quiet", "--set", "output=" output, "--set",                     \
        "data.train=[data/train, data/more, data/train]", "--set", "batch.sequences=4", "--set",   \
        "steps=4", "--set", "eval.every_steps=4", "--set", ALL, "--set", "eval.tokens=200",        \
        __VA_ARGS__)

/* A step's sources are those of its own batch, and sum to its loss.  Returns how many there are. */
static int check_step(const cJSON *line)
{
    const cJSON *source, *sources = need(line, "loss_by_source");
    double sum = 0.0, labels = 0.0;

    cJSON_ArrayForEach(source, sources)
    {
        assert_true(strcmp(source->string, "data/train") == 0 ||
                    strcmp(source->string, "data/more") == 0);
        sum += number(source, "loss") * number(source, "tokens");
        labels += number(source, "tokens");
    }
    assert_true(labels > 200 && labels < number(line, "tokens"));
    assert_true(fabs(sum / labels - number(line, "loss")) <= 1e-12 * number(line, "loss"));
    return cJSON_GetArraySize(sources);
}

static void test_steps_have_the_same_kinds(void **state)
{
    static const char *const keys[] = {"loss_by_position", "loss_by_distance", "loss_by_source"};

    int n_differ = 0, n_both = 0; /* steps in which documents begin, and with both sources */

    (void)state;
    TRAIN("steps", "--set", "sequence.documents=join");
    for (int n = 0; n < 4; n++) {
        cJSON *line = read_line("steps", n);
        n_both += check_step(line) == 2;
        assert_true(cJSON_GetArraySize(need(line, "loss_by_position")) == BINS);
        n_differ +=
            !cJSON_Compare(need(line, "loss_by_position"), need(line, "loss_by_distance"), 1);
        cJSON_Delete(line);
    }
    assert_true(n_differ > 0 && n_both > 0);
    /* the first step again, in other blocks and micro-batches */
    TRAIN("blocks", "--set", "sequence.documents=join", BLOCKS("24", "40"), "--set",
          "batch={sequences: 1, accumulate: 4, accumulate_order: layer}");
    cJSON *whole = read_line("steps", 0), *cut = read_line("blocks", 0);
    for (int k = 0; k < 3; k++) assert_near_bins(need(cut, keys[k]), need(whole, keys[k]));
    cJSON_Delete(whole);
    cJSON_Delete(cut);
}

/* The evaluation within training is that of longspan eval with as many tokens. */
static void test_evaluations_have_the_same_kinds(void **state)
{
    static const char *const keys[][2] = {{"eval_loss_by_position", "by_position"},
                                          {"eval_loss_by_distance", "by_distance"},
                                          {"eval_loss_by_source", "by_source"}};

    (void)state;
    TRAIN("evals", "--set", "sequence.documents=join");
    cJSON *line = read_line("evals", 4);
    cJSON *json = EVAL_SETS_JSON("--tokens", "200", "--set", "output=evals", "--set",
                                 "sequence.documents=join");
    assert_true(number(line, "eval_tokens") == number(json, "tokens"));
    for (int k = 0; k < 3; k++) {
        const cJSON *a = need(line, keys[k][0])->child, *b = need(json, keys[k][1])->child;
        for (; a != NULL; a = a->next, b = b->next) {
            assert_non_null(b);
            const double loss = k < 2 ? cJSON_GetArrayItem(a, 2)->valuedouble : number(a, "loss");
            assert_true(fabs(loss - number(b, "loss")) <= 1e-8 * loss); /* nine digits */
            if (k == 2) assert_true(number(a, "tokens") == number(b, "tokens"));
            if (k == 2) assert_string_equal(a->string, b->string);
        }
        assert_null(b);
    }
    cJSON_Delete(line);
    cJSON_Delete(json);
    TRAIN("plain", "--set", "eval.position_bins=null"); /* no bins; sources all the same */
    line = read_line("plain", 0);
    assert_int_equal(cJSON_GetArraySize(need(line, "loss_by_position")), 0);
    assert_int_equal(cJSON_GetArraySize(need(line, "loss_by_distance")), 0);
    check_step(line);
    cJSON_Delete(line);
}

/* ---- nothing to predict, nothing long enough ------------------------------------------------ */

static void test_short_documents(void **state)
{
    static const unsigned char one[2] = {65, 0};

    (void)state;
    put_bytes(at("data/one.bin"), one, sizeof one); /* a document of one token */
    const outcome *done =
        RUN(2, "eval", "run.yaml", "--set", "data.valid=data/one", "--set", "data.format=raw-u16");
    assert_says(done->err, "data.valid: no document of data/one has two tokens, so there is none "
                           "to predict");
    assert_ok(ls_directory_make(at("text-short")));
    put_text(at("text-short/a.txt"), "int x;");
    put_text(at("text-short/b.txt"), "double x = 3.0;");
    RUN(0, "tokenize", "--out", "data/short", "text-short");
    done = RUN(2, "train", "run.yaml", "--set", "output=none", "--set", "data.train=data/short",
               "--set", "data.min_document=64");
    assert_says(done->err, "data.min_document: 64, but the longest of the 2 documents of "
                           "data/short.bin has 16 tokens; allowed: 0 to 16, or name longer");
    done = RUN(2, "train", "run.yaml", "--set", "output=none", "--set", "data.min_document=65");
    assert_says(done->err, "data.min_document: 65 is more than sequence.tokens = 64");
    assert_false(is_there(at("none")));
    RUN(0, "train", "run.yaml", "--dry-run", "--set", "data.train=[data/short, data/train]",
        "--set", "data.min_document=64");
}

/* All that was read is masked: there is no loss, and no number for it. */
static void test_everything_masked(void **state)
{
    size_t bytes = 0;

    (void)state;
    free(need_bytes(at("data/short.bin"), &bytes)); /* u16 */
    char *mask = calloc(1, bytes / 2);
    assert_non_null(mask);
    put_bytes(at("data/short.mask"), mask, bytes / 2);
    free(mask);
    const outcome *done = RUN(2, "eval", "run.yaml", "--set", "data.valid=data/short");
    assert_says(done->err, "data.valid: of the 64 held-out tokens that were read none is to be");
    assert_string_equal(done->out, "");
}

/* How often a text occurs. */
static int count(const char *text, const char *part)
{
    int n = 0;
    for (text = strstr(text, part); text != NULL; text = strstr(text + 1, part)) n++;
    return n;
}

/* The same in training: null, not 0, and a word of it. */
static void test_training_without_labels(void **state)
{
    (void)state;
#define MASKED(set)                                                                                \
    RUN(0, "train", "run.yaml", "--set", "output=masked", "--set", "steps=2", "--set",             \
        "eval.every_steps=1", "--set", set)
    const outcome *done = MASKED("data.valid=data/short");
    assert_int_equal(count(done->err, "no held-out loss: none of the 64 tokens that were read is"),
                     2);
    char *record = need_bytes(at("masked/record.jsonl"), NULL);
    assert_int_equal(count(record, "\"eval_loss\":null,\"eval_tokens\":0,"), 2);
    assert_int_equal(count(record, "\"loss\":null"), 0);
    free(record);
    assert_ok(ls_directory_remove(at("masked")));

    done = MASKED("data.train=data/short");
    assert_int_equal(count(done->err, "warning: step 1: none of its "), 1);
    assert_int_equal(count(done->err, " tokens is to be predicted, so it has no loss"), 1);
    assert_says(done->err, "step 1/2  loss none ");
    record = need_bytes(at("masked/record.jsonl"), NULL);
    assert_int_equal(count(record, "\"loss\":null,"), 2);
    assert_int_equal(count(record, "\"eval_loss\":null,"), 0);
    free(record);
    char *beat = need_bytes(at("masked/heartbeat.json"), NULL);
    assert_says(beat, "\"loss\": null");
    free(beat);
#undef MASKED
}

static int make_run(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_corpus("text-more", 5, 3);
    RUN(0, "tokenize", "--out", "data/more", "text-more");
    put_changed(at("run.yaml"), run_yaml, "precision: bf16", "precision: fp32");
    RUN(0, "train", "run.yaml", "--set", "steps=10", "--set", "eval.every_steps=0");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_those_of_the_documents),
        cmocka_unit_test(test_linear_bins),
        cmocka_unit_test(test_a_source_is_as_if_it_were_alone),
        cmocka_unit_test(test_sources_take_turns),
        cmocka_unit_test(test_a_name_given_twice_is_one_source),
        cmocka_unit_test(test_blocks_change_nothing),
        cmocka_unit_test(test_steps_have_the_same_kinds),
        cmocka_unit_test(test_evaluations_have_the_same_kinds),
        cmocka_unit_test(test_short_documents),
        cmocka_unit_test(test_everything_masked),
        cmocka_unit_test(test_training_without_labels),
    };
    return cmocka_run_group_tests(tests, make_run, remove_scratch);
}
