/*
 * test_loader_parts.c - held-out data: what is held out does not depend on what training leaves
 * out, each source is cut as if it were alone and all take turns; and the pieces that a visitor is
 * told are those of the rows.
 */
#include <pthread.h>

#include "loader.h"

#include "io_test.h"

enum { S = 8, VOCAB = 4000, ROWS_MAX = 1024 };

/* Token i of document d of source s is 1000 s + 40 d + i: an id tells its place. */
static const int64_t lengths[3][8] = {
    {5, 0, 17, 1, 8, 2, 30, 3}, {16, 9}, {1, 12, 1, 1, 1, 7, 20, 4}};
static char paths[3][400];
static const char *const prefixes[3] = {paths[0], paths[1], paths[2]};

static void put_source(int s)
{
    const ls_tokens_writer_options options = {.element = LS_TOKENS_ELEMENT_U16};
    char name[16];
    ls_tokens_writer *writer = NULL;

    snprintf(name, sizeof name, "data%d", s);
    snprintf(paths[s], sizeof paths[s], "%s", at(name));
    assert_ok(ls_tokens_writer_open(paths[s], &options, &writer));
    for (int d = 0; d < 8; d++) {
        for (int64_t i = 0; i < lengths[s][d]; i++) {
            const int32_t id = (int32_t)(1000 * s + 40 * d + i);
            assert_ok(ls_tokens_writer_append(writer, &id, 1));
        }
        assert_ok(ls_tokens_writer_end_document(writer));
    }
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
}

static int make_data(void **state)
{
    if (make_test_folder(state) != 0) return -1;
    for (int s = 0; s < 3; s++) put_source(s);
    return 0;
}

/* Sources first .. first + n, held out. */
static ls_loader_options held_out(int first, int n)
{
    return (ls_loader_options){.prefixes = prefixes + first,
                               .n_prefixes = n,
                               .sequence_tokens = S,
                               .vocab_size = VOCAB,
                               .separate_sources = true};
}

static ls_loader *open_loader(const ls_loader_options *options)
{
    ls_loader *loader = NULL;
    assert_ok(ls_loader_open(options, &loader));
    return loader;
}

typedef struct rows {
    int32_t tokens[ROWS_MAX], targets[ROWS_MAX], sources[ROWS_MAX];
    int64_t positions[ROWS_MAX], doc_start[ROWS_MAX];
} rows;

static void fill(ls_loader *loader, int64_t first, int64_t n, rows *out)
{
    const ls_loader_range range = {first, n, 0};
    const ls_loader_batch batch = {out->tokens, out->targets, out->positions, out->doc_start,
                                   out->sources};
    assert_true(n * S <= ROWS_MAX);
    memset(out, 0x5a, sizeof *out);
    assert_ok(ls_loader_fill(loader, &range, &batch, NULL));
}

/* ---- sources ------------------------------------------------------------------------------- */

/* Two rows of S that hold the same but for the source's number. */
static void assert_same_sequence(const rows *a, int64_t at_a, const rows *b, int64_t at_b)
{
    for (int64_t i = 0; i < S; i++) {
        assert_int_equal(a->tokens[at_a + i], b->tokens[at_b + i]);
        assert_int_equal(a->targets[at_a + i], b->targets[at_b + i]);
        assert_int_equal(a->positions[at_a + i], b->positions[at_b + i]);
        assert_int_equal(a->doc_start[at_a + i] - at_a, b->doc_start[at_b + i] - at_b);
        assert_int_equal(a->sources[at_a + i] < 0, b->sources[at_b + i] < 0); /* padding */
    }
}

/* Every sequence of all is the next one of its source alone; a round takes one of each that has
 * any left. */
static void test_sources_are_cut_alone_and_take_turns(void **state)
{
    static rows all, alone[3];
    int64_t n_alone[3], next[3] = {0}, n_all = 0;

    (void)state;
    for (int documents = 0; documents < 3; documents++) {
        for (int s = 0; s < 3; s++) {
            ls_loader_options options = held_out(s, 1);
            options.documents = (ls_documents)documents;
            ls_loader *loader = open_loader(&options);
            n_alone[s] = ls_loader_describe(loader).sequences_per_epoch;
            fill(loader, 0, n_alone[s], &alone[s]);
            ls_loader_close(loader);
            next[s] = 0;
        }
        assert_true(n_alone[0] == 9 && n_alone[1] == 4 && n_alone[2] == 6);
        ls_loader_options options = held_out(0, 3);
        options.documents = (ls_documents)documents;
        ls_loader *loader = open_loader(&options);
        n_all = ls_loader_describe(loader).sequences_per_epoch;
        assert_int_equal(n_all, 9 + 4 + 6);
        fill(loader, n_all, n_all, &all); /* the second epoch is as the first */
        int64_t round = 0, turn = 0;
        for (int64_t g = 0; g < n_all; g++, turn++) {
            while (turn == 3 || n_alone[turn] <= round) {
                if (turn < 3) turn++;
                if (turn == 3) turn = 0, round++;
            }
            assert_int_equal(all.sources[g * S], turn);
            assert_same_sequence(&all, g * S, &alone[turn], next[turn]++ * S);
        }
        for (int s = 0; s < 3; s++) assert_int_equal(next[s], n_alone[s]);
        ls_loader_close(loader);
    }
}

/* One source is the same data whether it is separate from others or not. */
static void test_one_source_is_as_before(void **state)
{
    static rows a, b;
    ls_loader_options options = held_out(0, 1);

    (void)state;
    for (int separate = 0; separate < 2; separate++) {
        options.separate_sources = separate;
        ls_loader *loader = open_loader(&options);
        fill(loader, 0, 9, separate ? &a : &b);
        ls_loader_close(loader);
    }
    assert_memory_equal(&a, &b, sizeof a);
}

/* A source that the split leaves nothing of takes no turn. */
static void test_split_and_separate(void **state)
{
    static rows out;
    ls_loader_options options = held_out(0, 3);

    (void)state;
    options.valid_fraction = 0.06; /* 2 documents of 17 */
    options.part = LS_LOADER_PART_VALID;
    ls_loader *loader = open_loader(&options);
    const ls_loader_info info = ls_loader_describe(loader);
    assert_int_equal(info.n_documents, 2);
    fill(loader, 0, info.sequences_per_epoch, &out);
    int64_t n = 0;
    for (int64_t p = 0; p < info.sequences_per_epoch * S; p++) {
        if (out.sources[p] < 0) continue;
        assert_int_equal(out.sources[p], out.tokens[p] / 1000);
        assert_int_equal(out.sources[p], out.sources[p / S * S]); /* one in a sequence */
        n++;
    }
    assert_int_equal(n, info.n_tokens);
    ls_loader_close(loader);
}

/* ---- short documents ----------------------------------------------------------------------- */

static void mark_documents(const ls_loader_options *options, bool *used)
{
    static rows out;
    ls_loader *loader = open_loader(options);
    const int64_t n = ls_loader_describe(loader).sequences_per_epoch;

    fill(loader, 0, n, &out);
    for (int64_t p = 0; p < n * S; p++)
        if (out.sources[p] >= 0) used[out.tokens[p] / 40] = true;
    ls_loader_close(loader);
}

/* What training takes and what is held out never meet, however short a document it takes. */
static void test_held_out_documents_stay_out_of_training(void **state)
{
    bool valid[VOCAB / 40] = {false};
    ls_loader_options options = held_out(0, 3);

    (void)state;
    options.valid_fraction = 0.3;
    options.part = LS_LOADER_PART_VALID;
    mark_documents(&options, valid);
    options.separate_sources = false;
    options.part = LS_LOADER_PART_TRAIN;
    for (int64_t least = 0; least < 10; least++) {
        bool train[VOCAB / 40] = {false};
        options.document_tokens_min = least;
        mark_documents(&options, train);
        for (int s = 0; s < 3; s++)
            for (int d = 0; d < 8; d++) {
                const int id = s * 25 + d;
                const bool is_long = lengths[s][d] >= (least > 1 ? least : 1);
                assert_int_equal(train[id], is_long && !valid[id]);
            }
    }
}

static void test_no_document_is_long_enough(void **state)
{
    ls_loader_options options = held_out(0, 2);
    ls_loader *loader = NULL;

    (void)state;
    options.document_tokens_min = 30;
    loader = open_loader(&options);
    assert_int_equal(ls_loader_describe(loader).n_documents, 1);
    ls_loader_close(loader);
    options.document_tokens_min = 31;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID,
                 "data.min_document: 31, but the longest of the 9 documents of ");
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID,
                 "data0.bin, ... has 30 tokens; allowed: 0 to 30, or name longer documents");
    options.shuffle = true;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID, "separate_sources");
}

static void test_no_document_has_a_token(void **state)
{
    const ls_tokens_writer_options writing = {.element = LS_TOKENS_ELEMENT_U16};
    ls_loader_options options = held_out(0, 1);
    char path[400];
    const char *empty[] = {path};
    ls_tokens_writer *writer = NULL;
    ls_loader *loader = NULL;

    (void)state;
    snprintf(path, sizeof path, "%s", at("empty"));
    assert_ok(ls_tokens_writer_open(path, &writing, &writer));
    assert_ok(ls_tokens_writer_end_document(writer));
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
    options.prefixes = empty;
    assert_fails(ls_loader_open(&options, &loader), LS_ERR_INVALID,
                 "empty.bin: no document has a token");
}

/* ---- pieces -------------------------------------------------------------------------------- */

/* The pieces told so far against the rows they are of. */
typedef struct told {
    const rows *of;
    int64_t row; /* the next one */
    int n_padded, n_joined;
} told;

static void check_piece(void *context, const ls_loader_piece *piece)
{
    told *t = context;
    const rows *of = t->of;

    assert_int_equal(piece->row, t->row);
    assert_true(piece->n >= 1 && piece->row / S == (piece->row + piece->n - 1) / S);
    for (int64_t i = piece->row; i < piece->row + piece->n; i++) {
        assert_int_equal(of->sources[i], piece->source);
        if (piece->source < 0 || i == piece->row) continue;
        assert_int_equal(of->tokens[i], of->tokens[i - 1] + 1); /* one document */
    }
    const int64_t end = piece->row + piece->n;
    if (piece->source >= 0 && end % S != 0 && of->sources[end] >= 0) /* and all of it */
        assert_int_not_equal(of->tokens[end] / 40, of->tokens[end - 1] / 40);
    t->n_padded += piece->source < 0;
    t->n_joined += of->doc_start[piece->row] < piece->row;
    t->row = end;
}

static ssize_t fail_pread(int fd, void *data, size_t bytes, off_t offset)
{
    (void)fd, (void)data, (void)bytes, (void)offset;
    errno = EIO;
    return -1;
}

static void test_visitors_are_told_the_pieces(void **state)
{
    static rows out;
    ls_file_ops ops = *ls_file_ops_libc();

    (void)state;
    ops.pread = fail_pread;
    for (int documents = 0; documents < 3; documents++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            ls_loader_options options = held_out(0, 3);
            options.documents = (ls_documents)documents;
            options.shuffle = shuffle;
            options.separate_sources = !shuffle;
            ls_loader *loader = open_loader(&options);
            const int64_t n = ls_loader_describe(loader).sequences_per_epoch;
            const ls_loader_range range = {n - 2, n, 0}; /* across an epoch's end */
            told t = {.of = &out};
            fill(loader, n - 2, n, &out);
            ls_file_ops_replace(&ops); /* nothing is read */
            assert_ok(ls_loader_visit(loader, &range, &(ls_loader_visitor){check_piece, &t}));
            ls_file_ops_replace(NULL);
            assert_int_equal(t.row, n * S);
            assert_int_equal(t.n_padded, shuffle ? 1 : 3);
            assert_int_equal(t.n_joined > 0, documents == LS_DOCUMENTS_JOIN);
            assert_fails(ls_loader_visit(loader, &(ls_loader_range){-1, 1, 0},
                                         &(ls_loader_visitor){check_piece, &t}),
                         LS_ERR_INVALID, "none may be");
            ls_loader_close(loader);
        }
}

/* ---- threads ------------------------------------------------------------------------------- */

static void count_rows(void *context, const ls_loader_piece *piece)
{
    *(int64_t *)context += piece->n * (piece->source + 2) * (piece->row + 1);
}

/* Visit epoch after epoch; each has its own order to build. */
static void *visit_epochs(void *context)
{
    ls_loader *loader = context;
    const int64_t n = ls_loader_describe(loader).sequences_per_epoch;
    static _Thread_local int64_t sum;

    sum = 0;
    for (int64_t epoch = 0; epoch < 200; epoch++) {
        const ls_loader_range range = {epoch * n, n, 0};
        if (ls_loader_visit(loader, &range, &(ls_loader_visitor){count_rows, &sum}) != LS_OK)
            return NULL;
    }
    int64_t *result = malloc(sizeof *result);
    if (result != NULL) *result = sum;
    return result;
}

/* Another thread loads meanwhile, from other epochs: both get what they would get alone. */
static void test_threads_take_turns(void **state)
{
    static rows first, again;
    ls_loader_options options = held_out(0, 3);
    pthread_t thread;
    void *together;

    (void)state;
    options.separate_sources = false;
    options.shuffle = true;
    ls_loader *loader = open_loader(&options);
    const int64_t n = ls_loader_describe(loader).sequences_per_epoch;
    int64_t *alone = visit_epochs(loader);
    fill(loader, 777 * n, n, &first);
    assert_int_equal(pthread_create(&thread, NULL, visit_epochs, loader), 0);
    for (int i = 0; i < 200; i++) {
        fill(loader, (777 + i % 7) * n, n, &again);
        if (i % 7 == 0) assert_memory_equal(&again, &first, sizeof first);
    }
    assert_int_equal(pthread_join(thread, &together), 0);
    assert_non_null(alone);
    assert_non_null(together);
    assert_int_equal(*alone, *(int64_t *)together);
    free(alone);
    free(together);
    ls_loader_close(loader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources_are_cut_alone_and_take_turns),
        cmocka_unit_test(test_one_source_is_as_before),
        cmocka_unit_test(test_split_and_separate),
        cmocka_unit_test(test_held_out_documents_stay_out_of_training),
        cmocka_unit_test(test_no_document_is_long_enough),
        cmocka_unit_test(test_no_document_has_a_token),
        cmocka_unit_test(test_visitors_are_told_the_pieces),
        cmocka_unit_test(test_threads_take_turns),
    };
    return cmocka_run_group_tests(tests, make_data, remove_test_folder);
}
