/* test_tokens.c - shards written are read back; every malformed index is refused with its reason;
 * raw files, several prefixes, masks; the byte tokenizer; a failed write leaves the old shard. */
#include "tokens.h"

#include "io_test.h"
#include "tokenize.h"
#include "tokens_index.h"

/* Documents of `lengths`, ids counting up from first_id. */
static void write_shard(const char *prefix, ls_tokens_element element, const int64_t *lengths,
                        int n, int32_t first_id)
{
    const ls_tokens_writer_options options = {.element = element};
    ls_tokens_writer *writer = NULL;

    assert_ok(ls_tokens_writer_open(prefix, &options, &writer));
    for (int i = 0; i < n; i++) {
        for (int64_t j = 0; j < lengths[i]; j++) {
            assert_ok(ls_tokens_writer_append(writer, &first_id, 1));
            first_id++;
        }
        assert_ok(ls_tokens_writer_end_document(writer));
    }
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
}

static ls_status open_one(const char *prefix, ls_tokens_format format, ls_tokens **tokens)
{
    return ls_tokens_open(&prefix, 1, format, tokens);
}

static void test_round_trip(void **state)
{
    (void)state;
    static const ls_tokens_element elements[] = {LS_TOKENS_ELEMENT_U8, LS_TOKENS_ELEMENT_U16,
                                                 LS_TOKENS_ELEMENT_I32};
    static const int32_t firsts[] = {200, 65500, 100000};
    const int64_t lengths[] = {3, 0, 5, 1};

    for (int e = 0; e < 3; e++) {
        ls_tokens *tokens = NULL;
        int32_t ids[9];
        write_shard(at("trip"), elements[e], lengths, 4, firsts[e]);
        assert_ok(open_one(at("trip"), LS_TOKENS_FORMAT_MEGATRON, &tokens));
        assert_int_equal(ls_tokens_n_documents(tokens), 4);
        assert_int_equal(ls_tokens_count(tokens), 9);
        const int64_t offsets[] = {0, 3, 3, 8, 9};
        assert_memory_equal(ls_tokens_offsets(tokens), offsets, sizeof offsets);
        assert_ok(ls_tokens_read(tokens, 0, 9, ids));
        for (int i = 0; i < 9; i++) assert_int_equal(ids[i], firsts[e] + i);
        assert_ok(ls_tokens_read(tokens, 4, 2, ids));
        assert_int_equal(ids[0], firsts[e] + 4);
        assert_ok(ls_tokens_read(tokens, 9, 0, ids));
        assert_fails(ls_tokens_read(tokens, 8, 2, ids), LS_ERR_INVALID, "data set of 9");
        assert_fails(ls_tokens_read(tokens, -1, 2, ids), LS_ERR_INVALID, "at -1");
        assert_fails(ls_tokens_read(tokens, 2, INT64_MAX, ids), LS_ERR_INVALID, "at 2");
        assert_ok(ls_tokens_check_ids(tokens, firsts[e] + 9));
        assert_fails(ls_tokens_check_ids(tokens, firsts[e] + 5), LS_ERR_INVALID, "token 5 is id");
        assert_false(ls_tokens_has_mask(tokens));
        ls_tokens_close(tokens);
    }
    ls_tokens_close(NULL);
}

/* More tokens than any buffer holds, and a document longer than a sequence may be. */
static void test_large(void **state)
{
    (void)state;
    const int64_t n = 300000;
    const ls_tokens_writer_options options = {.element = LS_TOKENS_ELEMENT_U16,
                                              .sequence_tokens_max = 70};
    ls_tokens_writer *writer = NULL;
    ls_tokens *tokens = NULL;
    int32_t *ids = malloc((size_t)n * sizeof *ids);

    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 7 % 65536);
    assert_ok(ls_tokens_writer_open(at("large"), &options, &writer));
    assert_ok(ls_tokens_writer_append(writer, ids, 140)); /* two whole sequences */
    assert_ok(ls_tokens_writer_end_document(writer));
    assert_ok(ls_tokens_writer_append(writer, ids + 140, n - 140));
    assert_fails(ls_tokens_writer_commit(writer), LS_ERR_INVALID, "not ended");
    assert_ok(ls_tokens_writer_end_document(writer));
    assert_ok(ls_tokens_writer_commit(writer));
    assert_int_equal(ls_tokens_writer_count(writer), n);
    ls_tokens_writer_close(writer);
    assert_ok(open_one(at("large"), LS_TOKENS_FORMAT_MEGATRON, &tokens));
    assert_int_equal(ls_tokens_n_documents(tokens), 2);
    assert_int_equal(ls_tokens_offsets(tokens)[1], 140);
    int32_t *back = calloc((size_t)n, sizeof *back);
    assert_ok(ls_tokens_read(tokens, 1, n - 1, back));
    assert_memory_equal(back, ids + 1, (size_t)(n - 1) * sizeof *back);
    ls_tokens_close(tokens);
    free(back);
    free(ids);
}

/* An index by hand: 2 sequences of 2 and 1 uint16 tokens, 2 documents. */
typedef struct index_bytes {
    uint8_t bytes[200];
    size_t n;
} index_bytes;

static void add(index_bytes *index, uint64_t value, size_t bytes)
{
    memcpy(index->bytes + index->n, &value, bytes);
    index->n += bytes;
}

static index_bytes make_index(void)
{
    index_bytes index = {.n = 9};
    memcpy(index.bytes, "MMIDIDX\0", 9);
    add(&index, 1, 8); /* version, at 9 */
    add(&index, 8, 1); /* uint16, at 17 */
    add(&index, 2, 8); /* sequences, at 18 */
    add(&index, 3, 8); /* marks, at 26 */
    add(&index, 2, 4); /* lengths, at 34 */
    add(&index, 1, 4);
    add(&index, 0, 8); /* pointers, at 42 */
    add(&index, 4, 8);
    add(&index, 0, 8); /* marks, at 58 */
    add(&index, 1, 8);
    add(&index, 2, 8);
    return index;
}

static void test_malformed_index(void **state)
{
    (void)state;
    static const struct {
        size_t offset, bytes;
        uint64_t value;
        ls_status status;
        const char *text;
    } cases[] = {
        {0, 1, 'X', LS_ERR_CORRUPT, "MMIDIDX"},
        {8, 1, 1, LS_ERR_CORRUPT, "MMIDIDX"},
        {9, 8, 2, LS_ERR_UNSUPPORTED, "version 2"},
        {17, 1, 5, LS_ERR_UNSUPPORTED, "ids are int64"},
        {17, 1, 2, LS_ERR_UNSUPPORTED, "ids are int8"},
        {17, 1, 7, LS_ERR_UNSUPPORTED, "ids are float32"},
        {17, 1, 0, LS_ERR_CORRUPT, "element type 0"},
        {17, 1, 9, LS_ERR_CORRUPT, "element type 9"},
        {17, 1, 4, LS_ERR_CORRUPT, "need 12 bytes, but the .bin has 6"},
        {17, 1, 1, LS_ERR_CORRUPT, "need 3 bytes, but the .bin has 6"},
        {18, 8, 1, LS_ERR_CORRUPT, "the file has 82"},
        {18, 8, 3, LS_ERR_CORRUPT, "the file has 82"},
        {18, 8, UINT64_MAX, LS_ERR_CORRUPT, "the file has 82"},
        {18, 8, 0x1555555555555556u, LS_ERR_CORRUPT, "the file has 82"}, /* x 12 wraps */
        {26, 8, 2, LS_ERR_CORRUPT, "the file has 82"},
        {26, 8, 0x2000000000000003u, LS_ERR_CORRUPT, "the file has 82"}, /* x 8 wraps */
        {34, 4, 0xffffffffu, LS_ERR_CORRUPT, "length -1"},
        {34, 4, 0x7fffffffu, LS_ERR_CORRUPT, "cut short"},
        {34, 4, 3, LS_ERR_CORRUPT, "need 8 bytes"},
        {38, 4, 0, LS_ERR_CORRUPT, "need 4 bytes"},
        {42, 8, 2, LS_ERR_CORRUPT, "sequence 0 is said to start at byte 2"},
        {50, 8, 5, LS_ERR_CORRUPT, "sequence 1 is said to start at byte 5"},
        {50, 8, UINT64_MAX, LS_ERR_CORRUPT, "byte -1"},
        {58, 8, 1, LS_ERR_CORRUPT, "document mark 0 is 1"},
        {66, 8, 3, LS_ERR_CORRUPT, "document mark 1 is 3"},
        {66, 8, UINT64_MAX, LS_ERR_CORRUPT, "document mark 1 is -1"},
        {74, 8, 0, LS_ERR_CORRUPT, "document mark 2 is 0"},
        {74, 8, 1, LS_ERR_CORRUPT, "last document mark is 1 of 2"},
    };
    ls_tokens *tokens = NULL;

    put_file(at("bad.bin"), "\1\0\2\0\3", 6);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        index_bytes index = make_index();
        memcpy(index.bytes + cases[i].offset, &cases[i].value, cases[i].bytes);
        put_file(at("bad.idx"), index.bytes, index.n);
        const ls_status status = open_one(at("bad"), LS_TOKENS_FORMAT_MEGATRON, &tokens);
        if (status != cases[i].status || !strstr(ls_error(), cases[i].text)) {
            fail_msg("case %zu: status %d, '%s'", i, status, ls_error());
        }
    }
    index_bytes index = make_index();
    for (size_t n = 0; n < index.n; n++) {
        put_file(at("bad.idx"), index.bytes, n);
        assert_int_equal(open_one(at("bad"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_CORRUPT);
    }
    put_file(at("bad.idx"), index.bytes, index.n + 2);
    assert_fails(open_one(at("bad"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_UNSUPPORTED,
                 "multimodal");
    put_file(at("bad.idx"), index.bytes, index.n + 1);
    assert_fails(open_one(at("bad"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_CORRUPT, "83");
    put_file(at("bad.idx"), index.bytes, index.n);
    assert_ok(open_one(at("bad"), LS_TOKENS_FORMAT_MEGATRON, &tokens));
    int32_t ids[3];
    put_file(at("bad.bin"), "\1\0\2\0\3", 5); /* cut while open */
    assert_fails(ls_tokens_read(tokens, 0, 3, ids), LS_ERR_CORRUPT, "cut short");
    ls_tokens_close(tokens);
    for (size_t n = 0; n < 9; n++) { /* the .bin shorter or longer than the index says */
        if (n == 6) continue;
        put_file(at("bad.bin"), "\1\0\2\0\3\0\0\0\0", n);
        assert_int_equal(open_one(at("bad"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_CORRUPT);
    }
    assert_fails(open_one(at("none"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_IO, "none.bin");
    put_file(at("lone.bin"), "", 0);
    assert_fails(open_one(at("lone"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_IO, "lone.idx");
    assert_fails(ls_tokens_open(NULL, 0, LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_INVALID,
                 "at least one");
    index = make_index(); /* no mark at all */
    memset(index.bytes + 18, 0, 16);
    put_file(at("lone.idx"), index.bytes, 34);
    assert_fails(open_one(at("lone"), LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_CORRUPT, "mark");
}

static void test_raw(void **state)
{
    (void)state;
    ls_tokens *tokens = NULL;
    int32_t ids[2];

    put_file(at("raw"), "\1\0\377\377", 4); /* the prefix itself */
    assert_ok(open_one(at("raw"), LS_TOKENS_FORMAT_RAW_U16, &tokens));
    assert_int_equal(ls_tokens_n_documents(tokens), 1);
    assert_ok(ls_tokens_read(tokens, 0, 2, ids));
    assert_int_equal(ids[1], 65535);
    ls_tokens_close(tokens);
    put_file(at("raw.bin"), "\1\0\0\0\377\377\377\377", 8); /* PREFIX.bin comes first */
    assert_ok(open_one(at("raw"), LS_TOKENS_FORMAT_RAW_U32, &tokens));
    assert_int_equal(ls_tokens_count(tokens), 2);
    assert_ok(ls_tokens_read(tokens, 0, 1, ids));
    assert_fails(ls_tokens_read(tokens, 0, 2, ids), LS_ERR_CORRUPT, "2^31");
    ls_tokens_close(tokens);
    put_file(at("raw.bin"), "\1\0\0", 3);
    assert_fails(open_one(at("raw"), LS_TOKENS_FORMAT_RAW_U16, &tokens), LS_ERR_CORRUPT, "whole");
    assert_fails(open_one(at("noraw"), LS_TOKENS_FORMAT_RAW_U16, &tokens), LS_ERR_IO, "noraw");
}

static void test_several_and_masks(void **state)
{
    (void)state;
    const int64_t lengths[] = {2, 3};
    char paths[2][400];
    const char *prefixes[] = {paths[0], paths[1]};
    ls_tokens *tokens = NULL;
    int32_t ids[10];
    uint8_t mask[10];
    int64_t index = 0;

    snprintf(paths[0], sizeof paths[0], "%s", at("one"));
    snprintf(paths[1], sizeof paths[1], "%s", at("two"));
    write_shard(paths[0], LS_TOKENS_ELEMENT_U8, lengths, 2, 10);
    write_shard(paths[1], LS_TOKENS_ELEMENT_I32, lengths, 2, 1000);
    put_file(at("two.mask"), "\1\0\1\1\0", 5);
    assert_ok(ls_tokens_open(prefixes, 2, LS_TOKENS_FORMAT_MEGATRON, &tokens));
    assert_int_equal(ls_tokens_n_documents(tokens), 4);
    const int64_t offsets[] = {0, 2, 5, 7, 10};
    assert_memory_equal(ls_tokens_offsets(tokens), offsets, sizeof offsets);
    assert_ok(ls_tokens_read(tokens, 0, 10, ids));
    for (int i = 0; i < 10; i++) assert_int_equal(ids[i], i < 5 ? 10 + i : 1000 + i - 5);
    assert_ok(ls_tokens_read(tokens, 4, 2, ids)); /* across the seam */
    assert_int_equal(ids[0], 14);
    assert_int_equal(ids[1], 1000);
    assert_true(ls_tokens_has_mask(tokens));
    assert_ok(ls_tokens_read_mask(tokens, 0, 10, mask));
    assert_memory_equal(mask, "\1\1\1\1\1\1\0\1\1\0", 10);
    assert_int_equal(ls_tokens_source(tokens, 4), 0);
    assert_int_equal(ls_tokens_source(tokens, 5), 1);
    assert_non_null(strstr(ls_tokens_path(tokens, 7, &index), "two.bin"));
    assert_int_equal(index, 2);
    assert_fails(ls_tokens_check_ids(tokens, 1002), LS_ERR_INVALID, "two.bin: token 2 is id 1002");
    ls_tokens_close(tokens);
    put_file(at("two.mask"), "\1\0\1\1", 4);
    assert_fails(ls_tokens_open(prefixes, 2, LS_TOKENS_FORMAT_MEGATRON, &tokens), LS_ERR_CORRUPT,
                 "4 bytes for 5 tokens");
}

static uint32_t identify(const char *prefix)
{
    ls_tokens *tokens = NULL;
    assert_ok(open_one(prefix, LS_TOKENS_FORMAT_MEGATRON, &tokens));
    const uint32_t identity = ls_tokens_identity(tokens);
    ls_tokens_close(tokens);
    return identity;
}

static void test_identity(void **state)
{
    (void)state;
    const int64_t lengths[] = {2, 3}, others[] = {3, 2};

    write_shard(at("id"), LS_TOKENS_ELEMENT_U8, lengths, 2, 0);
    const uint32_t identity = identify(at("id"));
    write_shard(at("moved"), LS_TOKENS_ELEMENT_U8, lengths, 2, 0);
    assert_int_equal(identify(at("moved")), identity);
    put_file(at("moved.mask"), "\1\1\1\1\1", 5);
    assert_int_not_equal(identify(at("moved")), identity);
    write_shard(at("id"), LS_TOKENS_ELEMENT_U8, others, 2, 0);
    assert_int_not_equal(identify(at("id")), identity);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    ls_tokens_writer_options options = {.element = LS_TOKENS_ELEMENT_U32};
    ls_tokens_writer *writer = NULL;
    int32_t id = 256;

    assert_fails(ls_tokens_writer_open(at("no"), &options, &writer), LS_ERR_INVALID, "type 256");
    options.element = LS_TOKENS_ELEMENT_U8;
    options.sequence_tokens_max = INT64_MAX;
    assert_fails(ls_tokens_writer_open(at("no"), &options, &writer), LS_ERR_INVALID, "2^31");
    options.sequence_tokens_max = 0;
    put_file(at("no.mask"), "", 0);
    assert_fails(ls_tokens_writer_open(at("no"), &options, &writer), LS_ERR_INVALID, "no.mask");
    assert_ok(ls_disk_file_remove(at("no.mask")));
    assert_ok(ls_tokens_writer_open(at("no"), &options, &writer));
    assert_fails(ls_tokens_writer_append(writer, &id, 1), LS_ERR_INVALID, "id 256");
    id = -1;
    assert_fails(ls_tokens_writer_append(writer, &id, 1), LS_ERR_INVALID, "id -1");
    ls_tokens_writer_close(writer); /* not committed: nothing stays */
    ls_tokens_writer_close(NULL);
    assert_false(is_there(at("no.bin")));
    assert_fails(ls_tokens_writer_open(at("nowhere/x"), &options, &writer), LS_ERR_IO, "nowhere");
}

/* `id` documents of the one token `id`. */
static ls_status try_shard(const char *prefix, int32_t id)
{
    const ls_tokens_writer_options options = {.element = LS_TOKENS_ELEMENT_U16};
    ls_tokens_writer *writer = NULL;

    LS_TRY(ls_tokens_writer_open(prefix, &options, &writer));
    ls_status status = LS_OK;
    for (int32_t i = 0; i < id && status == LS_OK; i++) {
        status = ls_tokens_writer_append(writer, &id, 1);
        if (status == LS_OK) status = ls_tokens_writer_end_document(writer);
    }
    if (status == LS_OK) status = ls_tokens_writer_commit(writer);
    ls_tokens_writer_close(writer);
    return status;
}

/* Whichever call is the last before a crash, an index that is there fits its ids. */
static void test_writer_faults(void **state)
{
    (void)state;
    bool reached = true;

    assert_ok(ls_directory_make(at("crash")));
    for (int call = 0; reached; call++) {
        assert_ok(try_shard(at("crash/shard"), 1));
        arm_faults(call, true, EIO);
        const ls_status status = try_shard(at("crash/shard"), 2);
        reached = fault_calls > call;
        disarm_faults();
        assert_int_equal(status, reached ? LS_ERR_IO : LS_OK);
        if (!is_there(at("crash/shard.idx"))) continue;
        ls_tokens *tokens = NULL;
        int32_t id = 0;
        assert_ok(open_one(at("crash/shard"), LS_TOKENS_FORMAT_MEGATRON, &tokens));
        assert_ok(ls_tokens_read(tokens, 0, 1, &id));
        assert_true(id == 1 || id == 2);
        assert_int_equal(ls_tokens_n_documents(tokens), id);
        assert_true(reached || id == 2);
        ls_tokens_close(tokens);
    }
    ls_name_list list; /* once calls work again, the next run leaves the shard alone */
    assert_ok(try_shard(at("crash/shard"), 1));
    assert_ok(ls_directory_list(at("crash"), &list));
    assert_int_equal(list.n_names, 2);
    ls_name_list_free(&list);
}

/* Into text_out or another prefix; stop may be NULL. */
static ls_status tokenize(const char *const *paths, int64_t n, const char *prefix,
                          const atomic_bool *stop, ls_tokenize_report *report)
{
    const ls_tokenize_request request = {
        .paths = paths, .n_paths = n, .prefix = prefix, .stop = stop};
    return ls_tokenize_bytes(&request, report);
}

static void test_tokenize(void **state)
{
    (void)state;
    char folder[400], single[400];
    const char *paths[] = {folder, single};
    ls_tokenize_report report;
    ls_tokens *tokens = NULL;
    int32_t ids[16];

    snprintf(folder, sizeof folder, "%s", at("text"));
    snprintf(single, sizeof single, "%s", at("single.txt"));
    assert_ok(ls_directory_make(at("text/b")));
    put_file(at("text/c"), "c", 1);
    put_file(at("text/b/x"), "\xff\0x", 3);
    put_file(at("text/a"), "a", 1);
    put_file(at("text/empty"), "", 0);
    put_file(at("single.txt"), "s", 1);
    assert_int_equal(symlink(single, at("text/link")), 0);
    assert_ok(tokenize(paths, 2, at("text_out"), NULL, &report));
    assert_int_equal(report.n_files, 4);
    assert_int_equal(report.n_empty, 1);
    assert_int_equal(report.n_skipped, 1);
    assert_int_equal(report.n_tokens, 10);
    assert_ok(open_one(at("text_out"), LS_TOKENS_FORMAT_MEGATRON, &tokens));
    assert_int_equal(ls_tokens_n_documents(tokens), 4);
    assert_ok(ls_tokens_read(tokens, 0, 10, ids));
    const int32_t wanted[] = {'a', 256, 255, 0, 'x', 256, 'c', 256, 's', 256};
    assert_memory_equal(ids, wanted, sizeof wanted);
    assert_ok(ls_tokens_check_ids(tokens, LS_BYTES_VOCAB_SIZE));
    ls_tokens_close(tokens);

    char *big = malloc(100000);
    memset(big, 'q', 100000);
    put_file(single, big, 100000);
    free(big);
    assert_ok(tokenize(paths + 1, 1, at("text/out"), NULL, &report));
    assert_int_equal(report.n_tokens, 100001);
    assert_fails(tokenize(paths, 1, at("text/out"), NULL, NULL), LS_ERR_INVALID,
                 "among the inputs");
    put_file(single, "", 0);
    assert_fails(tokenize(paths + 1, 1, at("text_out"), NULL, NULL), LS_ERR_INVALID,
                 "none of the inputs");
    snprintf(single, sizeof single, "%s", at("missing"));
    assert_fails(tokenize(paths + 1, 1, at("text_out"), NULL, NULL), LS_ERR_IO, "missing");
    assert_ok(open_one(at("text_out"), LS_TOKENS_FORMAT_MEGATRON, &tokens)); /* as it was */
    assert_int_equal(ls_tokens_count(tokens), 10);
    ls_tokens_close(tokens);
    snprintf(single, sizeof single, "/dev/null");
    assert_fails(tokenize(paths + 1, 1, at("text_out"), NULL, NULL), LS_ERR_INVALID, "regular");
}

/* Nothing of the new shard is left, and the older one is as it was. */
static void test_stopped_tokenize(void **state)
{
    char folder[400];
    const char *paths[] = {folder};
    const atomic_bool stop = true, go_on = false;
    ls_tokenize_report report;
    ls_tokens *tokens = NULL;

    (void)state;
    snprintf(folder, sizeof folder, "%s", at("stop"));
    assert_ok(ls_directory_make(folder));
    put_file(at("stop/a"), "a", 1);
    assert_ok(ls_directory_make(at("out")));
    assert_ok(tokenize(paths, 1, at("out/x"), &go_on, &report));
    put_file(at("stop/b"), "b", 1);
    assert_fails(tokenize(paths, 1, at("out/x"), &stop, NULL), LS_ERR_STOPPED,
                 "nothing was written");
    assert_ok(ls_directory_make(at("stop/none")));
    snprintf(folder, sizeof folder, "%s", at("stop/none")); /* nothing to read: as it is listed */
    assert_fails(tokenize(paths, 1, at("out/x"), &stop, NULL), LS_ERR_STOPPED,
                 "nothing was written");
    snprintf(folder, sizeof folder, "%s", at("stop/b")); /* a file: as it is read */
    assert_fails(tokenize(paths, 1, at("out/x"), &stop, NULL), LS_ERR_STOPPED,
                 "nothing was written");
    assert_ok(open_one(at("out/x"), LS_TOKENS_FORMAT_MEGATRON, &tokens));
    assert_int_equal(ls_tokens_count(tokens), 2);
    ls_tokens_close(tokens);
    ls_name_list list;
    assert_ok(ls_directory_list(at("out"), &list));
    assert_int_equal(list.n_names, 2);
    ls_name_list_free(&list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_large),
        cmocka_unit_test(test_malformed_index),   cmocka_unit_test(test_raw),
        cmocka_unit_test(test_several_and_masks), cmocka_unit_test(test_identity),
        cmocka_unit_test(test_writer_refuses),    cmocka_unit_test(test_writer_faults),
        cmocka_unit_test(test_tokenize),          cmocka_unit_test(test_stopped_tokenize),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
