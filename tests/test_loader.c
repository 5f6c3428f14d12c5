/* test_loader.c - the laws of packing, against a plain reimplementation: every token once per
 * epoch, every label once, no target across documents, counts equal to brute force, an order that
 * depends on the seed alone. */
#include "loader.h"

#include "io_test.h"

#define S 8

/* Document d has `lengths[d]` tokens; token i of it is 100 * d + i, so an id tells its place. */
static const int64_t lengths[] = {5, 0, 17, 1, 8, 2, 30, 3, 16, 9, 1, 12};
#define N_DOCUMENTS ((int)(sizeof lengths / sizeof *lengths))
#define N_TOKENS    104
#define VOCAB       1300

static char prefix_path[400];
static const char *prefixes[] = {prefix_path};

static int make_data(void **state)
{
    const ls_tokens_writer_options options = {.element = LS_TOKENS_ELEMENT_U16};
    ls_tokens_writer *writer = NULL;

    if (make_test_folder(state) != 0) return -1;
    snprintf(prefix_path, sizeof prefix_path, "%s", at("data"));
    assert_ok(ls_tokens_writer_open(prefix_path, &options, &writer));
    for (int d = 0; d < N_DOCUMENTS; d++) {
        for (int64_t i = 0; i < lengths[d]; i++) {
            const int32_t id = (int32_t)(100 * d + i);
            assert_ok(ls_tokens_writer_append(writer, &id, 1));
        }
        assert_ok(ls_tokens_writer_end_document(writer));
    }
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
    return 0;
}

static ls_loader_options base_options(void)
{
    return (ls_loader_options){.prefixes = prefixes,
                               .n_prefixes = 1,
                               .sequence_tokens = S,
                               .seed = 7,
                               .shuffle = true,
                               .vocab_size = VOCAB};
}

static ls_loader *open_loader(const ls_loader_options *options)
{
    ls_loader *loader = NULL;
    assert_ok(ls_loader_open(options, &loader));
    return loader;
}

#define ROWS_MAX 1024
typedef struct rows {
    int32_t tokens[ROWS_MAX], targets[ROWS_MAX], sources[ROWS_MAX];
    int64_t positions[ROWS_MAX], doc_start[ROWS_MAX];
    ls_loader_counts counts;
} rows;

static void fill(ls_loader *loader, int64_t first, int64_t n, int64_t window, rows *out)
{
    const ls_loader_range range = {first, n, window};
    const ls_loader_batch batch = {out->tokens, out->targets, out->positions, out->doc_start,
                                   out->sources};
    ls_loader_counts counted;

    memset(out, 0x5a, sizeof *out);
    assert_ok(ls_loader_fill(loader, &range, &batch, &out->counts));
    assert_ok(ls_loader_count(loader, &range, &counted));
    assert_memory_equal(&counted, &out->counts, sizeof counted);
}

/* Counts of the filled rows, by brute force.  Padding rows have source -1. */
static ls_loader_counts count_rows(const rows *in, int64_t n_rows, int64_t window)
{
    ls_loader_counts counts = {0, 0, 0};
    for (int64_t p = 0; p < n_rows; p++) {
        if (in->sources[p] < 0) continue;
        counts.tokens++;
        counts.labels += in->targets[p] != -100;
        for (int64_t j = in->doc_start[p]; j <= p; j++) {
            counts.pairs += window == 0 || j > p - window;
        }
    }
    return counts;
}

/* Check every row of a range of sequences, mode by mode. */
static void check_rows(const rows *in, int64_t n_rows, ls_documents documents)
{
    for (int64_t p = 0; p < n_rows; p++) {
        const int64_t sequence_start = p / S * S;
        const bool first = p == sequence_start, last = p == sequence_start + S - 1;
        if (in->sources[p] < 0) {
            assert_int_equal(in->tokens[p], 0);
            assert_int_equal(in->targets[p], -100);
            assert_int_equal(in->doc_start[p], p);
            assert_int_equal(in->positions[p], 0);
            assert_true(last || in->sources[p + 1] < 0); /* padding is at the end */
            continue;
        }
        const int32_t id = in->tokens[p];
        const bool begins = first || in->tokens[p - 1] / 100 != id / 100;
        const int64_t piece = begins ? p : in->doc_start[p - 1];
        if (!begins) assert_int_equal(in->tokens[p - 1], id - 1); /* documents stay in order */
        if (documents == LS_DOCUMENTS_JOIN) {
            assert_int_equal(in->doc_start[p], sequence_start);
        } else {
            assert_int_equal(in->doc_start[p], piece);
        }
        assert_int_equal(in->positions[p],
                         documents == LS_DOCUMENTS_ISOLATE ? p - piece : p - sequence_start);
        const bool ends = last || in->sources[p + 1] < 0 || in->tokens[p + 1] / 100 != id / 100;
        assert_int_equal(in->targets[p], ends ? -100 : id + 1);
    }
}

/* Every mode, window, seed and epoch: rows right, counts right, each token once per epoch. */
static void test_laws(void **state)
{
    (void)state;
    static rows out;

    for (int documents = 0; documents < 3; documents++) {
        for (int64_t window = 0; window < 10; window += 3) {
            ls_loader_options options = base_options();
            options.documents = (ls_documents)documents;
            options.seed = (uint64_t)window;
            ls_loader *loader = open_loader(&options);
            const ls_loader_info info = ls_loader_describe(loader);
            assert_int_equal(info.n_documents, 11); /* the empty one is left out */
            assert_int_equal(info.n_tokens, N_TOKENS);
            assert_int_equal(info.sequences_per_epoch, (N_TOKENS + S - 1) / S);
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                const int64_t n = info.sequences_per_epoch;
                int seen[VOCAB] = {0};
                fill(loader, epoch * n, n, window, &out);
                check_rows(&out, n * S, options.documents);
                const ls_loader_counts counts = count_rows(&out, n * S, window);
                assert_memory_equal(&counts, &out.counts, sizeof counts);
                assert_int_equal(counts.tokens, N_TOKENS);
                for (int64_t p = 0; p < n * S; p++) seen[out.tokens[p]] += out.sources[p] == 0;
                for (int d = 0; d < N_DOCUMENTS; d++) {
                    for (int64_t i = 0; i < lengths[d]; i++) assert_int_equal(seen[100 * d + i], 1);
                }
            }
            ls_loader_close(loader);
        }
    }
    ls_loader_close(NULL);
}

/* With sequences as long as an epoch, each token but a document's first is a label exactly once. */
static void test_labels_once(void **state)
{
    (void)state;
    static rows out;
    ls_loader_options options = base_options();
    options.sequence_tokens = N_TOKENS + 3;
    ls_loader *loader = open_loader(&options);
    int seen[VOCAB] = {0};

    assert_int_equal(ls_loader_describe(loader).sequences_per_epoch, 1);
    fill(loader, 5, 1, 0, &out);
    for (int p = 0; p < N_TOKENS + 3; p++) {
        if (out.targets[p] != -100) seen[out.targets[p]]++;
    }
    for (int d = 0; d < N_DOCUMENTS; d++) {
        for (int64_t i = 0; i < lengths[d]; i++) assert_int_equal(seen[100 * d + i], i > 0);
    }
    assert_int_equal(out.counts.labels, N_TOKENS - 11);
    ls_loader_close(loader);
}

/* A range is what its sequences are one by one, in any order, also across an epoch's end. */
static void test_any_order(void **state)
{
    (void)state;
    static rows whole, one;
    const ls_loader_options options = base_options();
    ls_loader *loader = open_loader(&options);
    const int64_t first = 9, n = 12; /* 13 sequences per epoch */

    fill(loader, first, n, 0, &whole);
    for (int64_t i = n - 1; i >= 0; i--) {
        fill(loader, first + i, 1, 0, &one);
        assert_memory_equal(one.tokens, whole.tokens + i * S, S * sizeof *one.tokens);
        assert_memory_equal(one.targets, whole.targets + i * S, S * sizeof *one.targets);
        assert_memory_equal(one.positions, whole.positions + i * S, S * sizeof *one.positions);
        for (int p = 0; p < S; p++) {
            assert_int_equal(one.doc_start[p] + i * S, whole.doc_start[i * S + p]);
        }
    }
    ls_loader_close(loader);
}

static void read_order(uint64_t seed, bool shuffle, int64_t epoch, int32_t ids[ROWS_MAX])
{
    static rows out;
    ls_loader_options options = base_options();
    options.seed = seed;
    options.shuffle = shuffle;
    ls_loader *loader = open_loader(&options);
    const int64_t n = ls_loader_describe(loader).sequences_per_epoch;
    fill(loader, epoch * n, n, 0, &out);
    memcpy(ids, out.tokens, sizeof out.tokens);
    ls_loader_close(loader);
}

static void test_order(void **state)
{
    (void)state;
    static int32_t a[ROWS_MAX], b[ROWS_MAX];
    const size_t bytes = N_TOKENS * sizeof *a;

    read_order(1, true, 0, a);
    read_order(1, true, 0, b);
    assert_memory_equal(a, b, bytes);
    read_order(2, true, 0, b);
    assert_memory_not_equal(a, b, bytes);
    read_order(1, true, 1, b);
    assert_memory_not_equal(a, b, bytes);
    read_order(1, false, 0, a); /* file order, in every epoch, whatever the seed */
    for (int p = 1; p < N_TOKENS; p++) assert_true(a[p] > a[p - 1]);
    read_order(2, false, 3, b);
    assert_memory_equal(a, b, bytes);
}

/* Each order of three documents comes about equally often: 600 epochs, 100 expected. */
static void test_shuffle_is_fair(void **state)
{
    (void)state;
    static rows out;
    const ls_tokens_writer_options writing = {.element = LS_TOKENS_ELEMENT_U8};
    ls_tokens_writer *writer = NULL;
    char path[400];
    const char *fair[] = {path};
    int n[27] = {0};

    snprintf(path, sizeof path, "%s", at("fair"));
    assert_ok(ls_tokens_writer_open(path, &writing, &writer));
    for (int32_t id = 0; id < 3; id++) {
        assert_ok(ls_tokens_writer_append(writer, &id, 1));
        assert_ok(ls_tokens_writer_end_document(writer));
    }
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
    ls_loader_options options = base_options();
    options.prefixes = fair;
    options.sequence_tokens = 3;
    ls_loader *loader = open_loader(&options);
    for (int epoch = 0; epoch < 600; epoch++) {
        fill(loader, epoch, 1, 0, &out);
        n[out.tokens[0] * 9 + out.tokens[1] * 3 + out.tokens[2]]++;
    }
    static const int orders[] = {5, 7, 11, 15, 19, 21}; /* 012 021 102 120 201 210 in base 3 */
    int total = 0;
    for (int i = 0; i < 6; i++) {
        assert_in_range(n[orders[i]], 60, 140); /* 4 standard deviations */
        total += n[orders[i]];
    }
    assert_int_equal(total, 600);
    ls_loader_close(loader);
}

/* The parts of a long document do not follow each other: one document of 400 sequences. */
static void test_cuts_are_shuffled(void **state)
{
    (void)state;
    enum { CUTS = 400, TOKENS = 8 };
    static rows out;
    const ls_tokens_writer_options writing = {.element = LS_TOKENS_ELEMENT_U16};
    ls_tokens_writer *writer = NULL;
    char path[400];
    const char *long_document[] = {path};
    int32_t previous = -TOKENS;
    int in_a_row = 0;

    snprintf(path, sizeof path, "%s", at("long"));
    assert_ok(ls_tokens_writer_open(path, &writing, &writer));
    for (int32_t id = 0; id < CUTS * TOKENS; id++)
        assert_ok(ls_tokens_writer_append(writer, &id, 1));
    assert_ok(ls_tokens_writer_end_document(writer));
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
    ls_loader_options options = base_options();
    options.prefixes = long_document;
    options.sequence_tokens = TOKENS;
    options.vocab_size = CUTS * TOKENS;
    ls_loader *loader = open_loader(&options);
    for (int64_t g = 0; g < CUTS; g++) {
        fill(loader, g, 1, 0, &out);
        in_a_row += out.tokens[0] == previous + TOKENS;
        previous = out.tokens[0];
    }
    assert_in_range(in_a_row, 0, 8); /* 1 expected */
    ls_loader_close(loader);
}

static void test_masks(void **state)
{
    (void)state;
    static rows plain, masked;
    uint8_t mask[N_TOKENS];
    ls_loader_options options = base_options();
    options.shuffle = false;
    ls_loader *loader = open_loader(&options);
    int64_t n = ls_loader_describe(loader).sequences_per_epoch;

    fill(loader, 0, n, 0, &plain);
    ls_loader_close(loader);
    for (int i = 0; i < N_TOKENS; i++) mask[i] = i % 3 != 0;
    put_file(at("data.mask"), mask, sizeof mask);
    loader = open_loader(&options);
    fill(loader, 0, n, 0, &masked);
    ls_loader_close(loader);
    assert_ok(ls_disk_file_remove(at("data.mask")));
    int64_t labels = 0;
    for (int p = 0; p < N_TOKENS; p++) { /* in file order token p + 1 is row p + 1 */
        const bool kept = plain.targets[p] != -100 && (p + 1) % 3 != 0;
        assert_int_equal(masked.targets[p], kept ? plain.targets[p] : -100);
        labels += kept;
    }
    assert_int_equal(masked.counts.labels, labels);
    assert_int_equal(masked.counts.tokens, plain.counts.tokens); /* masked tokens are tokens */
    assert_int_equal(masked.counts.pairs, plain.counts.pairs);
}

static void mark_documents(const ls_loader_options *options, bool *used)
{
    static rows out;
    ls_loader *loader = open_loader(options);
    const int64_t n = ls_loader_describe(loader).sequences_per_epoch;
    fill(loader, 0, n, 0, &out);
    for (int64_t p = 0; p < n * S; p++) {
        if (out.sources[p] >= 0) used[out.tokens[p] / 100] = true;
    }
    ls_loader_close(loader);
}

static void test_split(void **state)
{
    (void)state;
    bool train[N_DOCUMENTS] = {0}, valid[N_DOCUMENTS] = {0}, again[N_DOCUMENTS] = {0};
    ls_loader_options options = base_options();
    int n_valid = 0;

    options.valid_fraction = 0.2; /* of 11: 2.2, so 3 */
    options.part = LS_LOADER_PART_TRAIN;
    mark_documents(&options, train);
    options.part = LS_LOADER_PART_VALID;
    mark_documents(&options, valid);
    options.seed = 99; /* held out is the same under every seed */
    options.shuffle = false;
    mark_documents(&options, again);
    for (int d = 0; d < N_DOCUMENTS; d++) {
        assert_int_equal(train[d] + valid[d], lengths[d] > 0);
        assert_int_equal(valid[d], again[d]);
        n_valid += valid[d];
    }
    assert_int_equal(n_valid, 3);
    ls_loader *loader = NULL;
    options.valid_fraction = 0;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "none for validation");
    options.valid_fraction = 0.99;
    options.part = LS_LOADER_PART_TRAIN;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "none for training");
    options.part = LS_LOADER_PART_ALL;
    loader = open_loader(&options);
    assert_int_equal(ls_loader_describe(loader).n_documents, 11);
    ls_loader_close(loader);
}

static void test_short_documents(void **state)
{
    (void)state;
    ls_loader_options options = base_options();
    options.document_tokens_min = 9;
    ls_loader *loader = open_loader(&options);
    const ls_loader_info info = ls_loader_describe(loader);

    assert_int_equal(info.n_documents, 5);
    assert_int_equal(info.n_tokens, 17 + 30 + 16 + 9 + 12);
    ls_loader_close(loader);
    options.document_tokens_min = 31;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID,
                 "data.min_document: 31, but the longest");
}

static void test_two_sources(void **state)
{
    (void)state;
    static rows out;
    const char *both[] = {prefix_path, prefix_path};
    ls_loader_options options = base_options();
    options.prefixes = both;
    options.n_prefixes = 2;
    options.shuffle = false;
    ls_loader *loader = open_loader(&options);

    assert_int_equal(ls_loader_describe(loader).n_tokens, 2 * N_TOKENS);
    fill(loader, 0, 2 * N_TOKENS / S, 0, &out);
    for (int p = 0; p < 2 * N_TOKENS; p++) assert_int_equal(out.sources[p], p / N_TOKENS);
    ls_loader_close(loader);
}

static void test_refuses(void **state)
{
    (void)state;
    static rows out;
    const ls_loader_batch batch = {out.tokens, out.targets, out.positions, out.doc_start, NULL};
    ls_loader_options options = base_options();
    ls_loader *loader = NULL;

    options.sequence_tokens = 0;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "sequence of 0");
    options = base_options();
    options.pad_token = VOCAB;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "padding id");
    options = base_options();
    options.vocab_size = 0;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "padding id");
    options = base_options();
    options.valid_fraction = 1;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "valid_fraction");
    options = base_options();
    options.vocab_size = 1111; /* document 11 begins with token 92 of the file, id 1100 */
    options.check_ids = true;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "token 103 is id 1111");
    options.check_ids = false; /* then when it is used */
    options.shuffle = false;
    loader = open_loader(&options);
    ls_loader_range range = {0, 12, 0};
    assert_ok(ls_loader_fill(loader, &range, &batch, NULL));
    range.n_sequences = 13;
    assert_fails(ls_loader_fill(loader, &range, &batch, NULL), LS_ERR_INVALID,
                 "token 103 is id 1111, but the vocabulary has 1111");
    ls_loader_counts counts;
    range.first_sequence = -1;
    assert_fails(ls_loader_count(loader, &range, &counts), LS_ERR_INVALID, "sequences -1");
    range = (ls_loader_range){INT64_MAX, 1, 0};
    assert_fails(ls_loader_count(loader, &range, &counts), LS_ERR_INVALID, "none may be");
    range = (ls_loader_range){INT64_MAX / 2, 3, 0}; /* numbers are not bounded by an epoch */
    assert_ok(ls_loader_count(loader, &range, &counts));
    assert_int_equal(counts.tokens, 3 * S);
    ls_loader_close(loader);
}

static ssize_t fail_pread(int fd, void *data, size_t bytes, off_t offset)
{
    (void)fd, (void)data, (void)bytes, (void)offset;
    errno = EIO;
    return -1;
}

/* Counting reads nothing; loading reports a broken disk. */
static void test_reads(void **state)
{
    (void)state;
    static rows out;
    const ls_loader_batch batch = {out.tokens, out.targets, out.positions, out.doc_start, NULL};
    const ls_loader_options options = base_options();
    const ls_loader_range range = {0, 4, 0};
    ls_loader *loader = open_loader(&options);
    ls_loader_counts counts;
    ls_file_ops ops = *ls_file_ops_libc();

    ops.pread = fail_pread;
    ls_file_ops_replace(&ops);
    assert_ok(ls_loader_count(loader, &range, &counts));
    assert_int_equal(counts.tokens, 4 * S);
    assert_fails(ls_loader_fill(loader, &range, &batch, &counts), LS_ERR_IO, "data.bin");
    ls_file_ops_replace(NULL);
    ls_loader_close(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_laws),
        cmocka_unit_test(test_labels_once),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_shuffle_is_fair),
        cmocka_unit_test(test_cuts_are_shuffled),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_short_documents),
        cmocka_unit_test(test_two_sources),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_reads),
    };
    return cmocka_run_group_tests(tests, make_data, remove_test_folder);
}
