/*
 * test_trainer_documents.c - whether a block of attention is within one document is told before a
 * batch is read exactly as the batch will have it: for every block of rows and first key, each mode
 * of sequence.documents, one micro-batch and several, padding and short batches.
 */
#include "io_test.h"

#include "trainer.h"

enum { S = 12, SEQUENCES = 2, T = S * SEQUENCES, BLOCK = 4, MICRO_BATCHES_MOST = 2 };

typedef struct layout {
    const char *name;
    int64_t lengths[24]; /* up to the first 0 */
} layout;

static const layout layouts[] = {
    {"one document longer than all", {4 * T}},
    {"documents as long as sequences", {S, S, S, S, S, S, S, S}},
    {"many documents", {5, 7, 9, 11, 3, 13, 8, 2, 6, 4, 12, 16}},
    {"documents of one token", {1, 1, 1, 8, 1, 1, 1, 1, 1, 8, 1, 23}},
    {"an empty tail", {19, 11}},
};

static ls_loader *open_loader(const layout *of, ls_documents documents)
{
    const ls_tokens_writer_options writing = {.element = LS_TOKENS_ELEMENT_U8};
    const char *const prefix = at("documents");
    const ls_loader_options options = {.prefixes = &prefix,
                                       .n_prefixes = 1,
                                       .sequence_tokens = S,
                                       .documents = documents,
                                       .vocab_size = 8};
    ls_tokens_writer *writer = NULL;
    ls_loader *loader = NULL;

    assert_ok(ls_tokens_writer_open(prefix, &writing, &writer));
    for (int d = 0; of->lengths[d] > 0; d++) {
        for (int64_t i = 0; i < of->lengths[d]; i++) {
            const int32_t id = (int32_t)(i % 8);
            assert_ok(ls_tokens_writer_append(writer, &id, 1));
        }
        assert_ok(ls_tokens_writer_end_document(writer));
    }
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
    assert_ok(ls_loader_open(&options, &loader));
    return loader;
}

/* doc_start as training's batches will have it; rows behind a short batch are documents. */
static void fill(ls_loader *loader, const ls_trainer_job *job, int64_t micro_batch,
                 int64_t doc_start[T])
{
    static int32_t tokens[T], targets[T];
    static int64_t positions[T];
    const ls_loader_range range = ls_trainer_batch_range(job, micro_batch);
    const ls_loader_batch batch = {
        .tokens = tokens, .targets = targets, .positions = positions, .doc_start = doc_start};

    assert_ok(ls_loader_fill(loader, &range, &batch, NULL));
    for (int64_t n = range.n_sequences * S; n < T; n++) doc_start[n] = n;
}

static void check_blocks(ls_trainer_job *job, int64_t n_micro_batches, const layout *of)
{
    static int64_t doc_start[MICRO_BATCHES_MOST][T];

    for (int64_t m = 0; m < n_micro_batches; m++) fill(job->source, job, m, doc_start[m]);
    for (int64_t row = 0; row < T; row += BLOCK)
        for (int64_t key = 0; key <= row; key++) {
            bool expected = true;
            for (int64_t m = 0; m < n_micro_batches; m++)
                for (int64_t n = row; n < row + BLOCK; n++)
                    expected = expected && doc_start[m][n] <= key;
            if (ls_trainer_holds_one_document(job, row + BLOCK - 1, key) != expected)
                fail_msg("%s: rows %d .. %d, keys from %d: not %d", of->name, (int)row,
                         (int)(row + BLOCK - 1), (int)key, expected);
        }
}

static void check_mode(const layout *of, ls_documents documents)
{
    ls_run_config config = {.documents = documents};
    ls_model_config model = {.sliding_window = 0};
    ls_trainer *t = calloc(1, sizeof *t);
    ls_loader *loader = open_loader(of, documents);
    const int64_t n_sequences = ls_loader_describe(loader).sequences_per_epoch;

    assert_non_null(t);
    t->config = &config;
    t->model = &model;
    t->instance.decoder.options =
        (ls_decoder_options){.S = S, .sequences = SEQUENCES, .accumulate = MICRO_BATCHES_MOST};
    for (int64_t first = 0; first < n_sequences; first += SEQUENCES) {
        ls_trainer_job job = {
            .trainer = t, .source = loader, .first_sequence = first, .sequences_left = INT64_MAX};
        t->train_data = loader;
        check_blocks(&job, MICRO_BATCHES_MOST, of);
        t->train_data = NULL; /* an evaluation's: one batch, its last one short */
        job.sequences_left = n_sequences - first;
        check_blocks(&job, 1, of);
    }
    ls_loader_close(loader);
    free(t);
}

static void blocks_of_one_document_are_known(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (ls_documents mode = LS_DOCUMENTS_ISOLATE; mode <= LS_DOCUMENTS_ISOLATE_RUNNING;
             mode = (ls_documents)(mode + 1))
            check_mode(&layouts[i], mode);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_of_one_document_are_known)};
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
