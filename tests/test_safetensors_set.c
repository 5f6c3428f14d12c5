/* test_safetensors_set.c - sets written tensor by tensor are read back; shards are cut where they
 * must be and nowhere else; index and shards agree; a failed write leaves no set. */
#include "safetensors_set.h"

#include <cjson/cJSON.h>

#include "io_test.h"
#include "safetensors_test.h"

#define TENSORS_MAX 8

typedef struct file_log {
    char names[8][64];
    uint64_t bytes[8];
    uint32_t crcs[8];
    int n;
} file_log;

static ls_status log_file(void *context, const char *name, uint64_t bytes, uint32_t crc)
{
    file_log *log = context;
    snprintf(log->names[log->n], sizeof log->names[0], "%s", name);
    log->bytes[log->n] = bytes;
    log->crcs[log->n++] = crc;
    return LS_OK;
}

/* Takes as many files as the context says. */
static ls_status refuse_file(void *context, const char *name, uint64_t bytes, uint32_t crc)
{
    int *left = context;
    (void)bytes, (void)crc;
    return (*left)-- > 0 ? LS_OK : LS_FAIL(LS_ERR_STOPPED, "not %s", name);
}

/* Append all and finish; after a failure nothing but close is possible, and close removes all. */
static ls_status write_set(const ls_safetensors_set_options *options,
                           const ls_safetensors_tensor *tensors, const void *const *data, int64_t n)
{
    ls_safetensors_set_writer *writer = NULL;
    ls_status status = LS_OK;

    LS_TRY(ls_safetensors_set_writer_open(options, tensors, n, &writer));
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        status = ls_safetensors_set_writer_append(writer, data[i]);
    }
    const bool appended = status == LS_OK;
    if (appended) status = ls_safetensors_set_writer_finish(writer);
    if (!appended) {
        char reason[1000];
        snprintf(reason, sizeof reason, "%s", ls_error());
        assert_fails(ls_safetensors_set_writer_append(writer, data[0]), LS_ERR_INVALID,
                     "after a failed write");
        assert_fails(ls_safetensors_set_writer_finish(writer), LS_ERR_INVALID, "were written");
        ls_error_adopt(reason, "write_set");
    }
    ls_safetensors_set_writer_close(writer);
    return status;
}

static int64_t count_files(const char *folder)
{
    ls_name_list list;
    assert_ok(ls_directory_list(folder, &list));
    const int64_t n = list.n_names;
    ls_name_list_free(&list);
    return n;
}

static void make_empty(const char *folder)
{
    assert_ok(ls_directory_remove(folder));
    assert_ok(ls_directory_make(folder));
}

/* ---- a plain set --------------------------------------------------------------------------- */

static float set_values[4][4];
static const void *const set_data[] = {set_values[0], set_values[1], set_values[2], set_values[3]};

static void make_tensors(ls_safetensors_tensor tensors[4])
{
    static const char *const names[] = {"d", "b", "a", "c"};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) set_values[i][j] = (float)(10 * i + j);
        tensors[i] = (ls_safetensors_tensor){
            .name = names[i], .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {i == 2 ? 4 : 2}};
    }
}

static void check_set(const char *folder)
{
    ls_safetensors_tensor tensors[4];
    ls_safetensors_set *set = NULL;

    make_tensors(tensors);
    assert_ok(ls_safetensors_set_open(folder, "model", &set));
    assert_int_equal(ls_safetensors_set_count(set), 4);
    assert_string_equal(ls_safetensors_set_get(set, 0)->name, "a");
    assert_null(ls_safetensors_set_get(set, 4));
    assert_int_equal(ls_safetensors_set_find(set, "e"), -1);
    for (int i = 0; i < 4; i++) {
        float back[4] = {0};
        const int64_t index = ls_safetensors_set_find(set, tensors[i].name);
        assert_true(index >= 0);
        assert_non_null(ls_safetensors_set_file(set, index));
        const uint64_t bytes = ls_safetensors_set_get(set, index)->size_bytes;
        assert_ok(ls_safetensors_set_read(set, index, 0, bytes, back));
        assert_memory_equal(back, set_values[i], bytes);
    }
    float back;
    assert_fails(ls_safetensors_set_read(set, 4, 0, 4, &back), LS_ERR_INVALID, "4 of 4");
    ls_safetensors_set_close(set);
}

static void test_whole_set(void **state)
{
    (void)state;
    ls_safetensors_tensor tensors[4];
    file_log log = {.n = 0};
    ls_safetensors_set_options options = {.directory = at("set"),
                                          .base = "model",
                                          .shard_bytes_max = 15, /* less than "a" alone */
                                          .on_file = log_file,
                                          .context = &log};

    make_tensors(tensors);
    assert_ok(ls_directory_make(at("set")));
    assert_ok(write_set(&options, tensors, set_data, 4));
    assert_int_equal(log.n, 5);
    assert_string_equal(log.names[0], "model-00001-of-00004.safetensors");
    assert_string_equal(log.names[4], "model.safetensors.index.json");
    for (int i = 0; i < log.n; i++) {
        char path[400];
        uint64_t bytes = 0;
        snprintf(path, sizeof path, "%s/%s", at("set"), log.names[i]);
        assert_int_equal(file_crc(path, &bytes), log.crcs[i]);
        assert_int_equal(bytes, log.bytes[i]);
    }
    check_set(at("set"));
    assert_ok(ls_disk_file_remove(at("set/model.safetensors.index.json")));
    check_set(at("set")); /* by the names of the shards */
    ls_safetensors_set *set = NULL;
    assert_ok(ls_disk_file_rename(at("set/model-00002-of-00004.safetensors"), at("set/held")));
    assert_fails(ls_safetensors_set_open(at("set"), "model", &set), LS_ERR_CORRUPT, "follow");
    assert_ok(ls_disk_file_rename(at("set/held"), at("set/model-00002-of-00004.safetensors")));
    assert_ok(ls_disk_file_remove(at("set/model-00004-of-00004.safetensors")));
    assert_fails(ls_safetensors_set_open(at("set"), "model", &set), LS_ERR_CORRUPT, "4 of 4 is");
    assert_fails(ls_safetensors_set_open(at("set"), "other", &set), LS_ERR_IO, "holds no other");

    options.shard_bytes_max = 0; /* one file */
    options.directory = at("single");
    options.on_file = NULL;
    assert_ok(ls_directory_make(at("single")));
    assert_ok(write_set(&options, tensors, set_data, 4));
    check_set(at("single"));
    assert_ok(ls_disk_file_remove(at("single/model.safetensors.index.json")));
    assert_ok(ls_disk_file_rename(at("single/model-00001-of-00001.safetensors"),
                                  at("single/model.safetensors")));
    check_set(at("single"));
}

static void test_writer_refuses(void **state)
{
    (void)state;
    static char long_base[202];
    ls_safetensors_tensor tensors[4];
    ls_safetensors_set_writer *writer = NULL;
    ls_safetensors_set_options options = {
        .directory = at("refuse"), .base = "model", .shard_bytes_max = 8};

    make_tensors(tensors);
    make_empty(at("refuse"));
    assert_fails(ls_safetensors_set_writer_open(&options, tensors, 0, &writer), LS_ERR_INVALID,
                 "0 tensors");
    memset(long_base, 'x', 201);
    options.base = long_base;
    assert_fails(ls_safetensors_set_writer_open(&options, tensors, 4, &writer), LS_ERR_INVALID,
                 "4 tensors to write as 'xxx");
    long_base[200] = '\0';
    assert_ok(write_set(&options, tensors, set_data, 4));
    assert_int_equal(count_files(at("refuse")), 5);
    options.base = "model";
    tensors[3].dims[0] = -1;
    assert_fails(ls_safetensors_set_writer_open(&options, tensors, 4, &writer), LS_ERR_INVALID,
                 "too large");
    tensors[3].dims[0] = 2;
    tensors[3].name = "d"; /* in another shard than its twin */
    assert_fails(ls_safetensors_set_writer_open(&options, tensors, 4, &writer), LS_ERR_INVALID,
                 "two tensors");
    assert_null(writer);
    assert_int_equal(count_files(at("refuse")), 5);
}

/* Too few and too many tensors; what open was given need not live on; close removes a torso. */
static void test_incomplete(void **state)
{
    (void)state;
    ls_safetensors_tensor tensors[4];
    char base[8] = "model", directory[512], names[4][2];
    ls_safetensors_set_writer *writer = NULL;
    const ls_safetensors_set_options options = {
        .directory = directory, .base = base, .shard_bytes_max = 16};

    snprintf(directory, sizeof directory, "%s", at("incomplete"));
    make_empty(directory);
    for (int n_appended = 0; n_appended <= 5; n_appended++) {
        make_tensors(tensors);
        for (int i = 0; i < 4; i++) {
            memcpy(names[i], tensors[i].name, 2);
            tensors[i].name = names[i];
        }
        snprintf(base, sizeof base, "model");
        snprintf(directory, sizeof directory, "%s", at("incomplete"));
        assert_ok(ls_safetensors_set_writer_open(&options, tensors, 4, &writer));
        assert_int_equal(count_files(at("incomplete")), 0);
        memset(tensors, 0xff, sizeof tensors);
        memset(names, 'x', sizeof names);
        base[0] = directory[0] = 'x';
        for (int i = 0; i < n_appended && i < 4; i++) {
            assert_ok(ls_safetensors_set_writer_append(writer, set_data[i]));
        }
        if (n_appended < 4) {
            char text[32];
            snprintf(text, sizeof text, "%d of 4 tensors", n_appended);
            assert_fails(ls_safetensors_set_writer_finish(writer), LS_ERR_INVALID, text);
            ls_safetensors_set_writer_close(writer);
            assert_int_equal(count_files(at("incomplete")), 0);
            continue;
        }
        if (n_appended == 5) {
            assert_fails(ls_safetensors_set_writer_append(writer, set_data[3]), LS_ERR_INVALID,
                         "after the last of the set");
        }
        assert_ok(ls_safetensors_set_writer_finish(writer)); /* one too many has done no harm */
        ls_safetensors_set_writer_close(writer);
        check_set(at("incomplete"));
        make_empty(at("incomplete"));
    }
    ls_safetensors_set_writer_close(NULL);
}

/* ---- where shards are cut ------------------------------------------------------------------ */

typedef struct cut_case {
    const char *types;      /* a letter each: D F64, F F32, S I16, B U8 */
    int64_t n[TENSORS_MAX]; /* elements of each */
    uint64_t shard_bytes_max;
    int n_shards;
    int sizes[TENSORS_MAX]; /* tensors in each shard */
} cut_case;

static uint8_t cut_values[TENSORS_MAX][64];

/* Names that do not sort in the order of the list. */
static int make_cut_tensors(const cut_case *c, ls_safetensors_tensor *tensors)
{
    static const char *const names[TENSORS_MAX] = {"q", "z", "b", "y", "a", "x", "c", "m"};
    const int n = (int)strlen(c->types);

    for (int i = 0; i < n; i++) {
        const ls_dtype dtype = c->types[i] == 'D'   ? LS_DTYPE_F64
                               : c->types[i] == 'F' ? LS_DTYPE_F32
                               : c->types[i] == 'S' ? LS_DTYPE_I16
                                                    : LS_DTYPE_U8;
        tensors[i] = (ls_safetensors_tensor){
            .name = names[i], .dtype = dtype, .n_dims = 1, .dims = {c->n[i]}};
        memset(cut_values[i], 'A' + i, sizeof cut_values[i]);
    }
    return n;
}

/* A shard holds its run of the list, in order, aligned, with its own bytes. */
static void check_shard(const char *path, const ls_safetensors_tensor *tensors, int first, int n)
{
    ls_safetensors *file = NULL;

    assert_ok(ls_safetensors_open(path, &file));
    assert_int_equal(ls_safetensors_count(file), n);
    for (int i = 0; i < n; i++) {
        const ls_safetensors_entry *entry = ls_safetensors_get(file, i);
        uint8_t back[64];
        assert_string_equal(entry->name, tensors[first + i].name);
        assert_int_equal(entry->dtype, tensors[first + i].dtype);
        assert_int_equal(entry->dims[0], tensors[first + i].dims[0]);
        assert_int_equal(entry->offset_bytes % ls_dtype_bytes(entry->dtype), 0);
        assert_ok(ls_safetensors_read(file, entry, 0, entry->size_bytes, back));
        assert_memory_equal(back, cut_values[first + i], entry->size_bytes);
    }
    ls_safetensors_close(file);
}

static void check_total_size(const char *folder, const ls_safetensors_tensor *tensors, int n)
{
    char path[600], *text = NULL;
    uint64_t total = 0;

    for (int i = 0; i < n; i++) {
        total += (uint64_t)tensors[i].dims[0] * ls_dtype_bytes(tensors[i].dtype);
    }
    snprintf(path, sizeof path, "%s/cut.safetensors.index.json", folder);
    assert_ok(ls_disk_file_read_all(path, 100000, &text, NULL));
    cJSON *index = cJSON_Parse(text);
    const cJSON *size = cJSON_GetObjectItemCaseSensitive(
        cJSON_GetObjectItemCaseSensitive(index, "metadata"), "total_size");
    assert_true(cJSON_GetNumberValue(size) == (double)total);
    cJSON_Delete(index);
    free(text);
}

/* Every tensor by name, from the shard that holds it. */
static void check_index(const char *folder, const ls_safetensors_tensor *tensors, int n)
{
    ls_safetensors_set *set = NULL;

    assert_ok(ls_safetensors_set_open(folder, "cut", &set));
    assert_int_equal(ls_safetensors_set_count(set), n);
    for (int i = 0; i < n; i++) {
        const int64_t index = ls_safetensors_set_find(set, tensors[i].name);
        uint8_t back[64];
        assert_true(index >= 0);
        const uint64_t bytes = ls_safetensors_set_get(set, index)->size_bytes;
        assert_ok(ls_safetensors_set_read(set, index, 0, bytes, back));
        assert_memory_equal(back, cut_values[i], bytes);
    }
    ls_safetensors_set_close(set);
}

static void check_cut(const cut_case *c)
{
    ls_safetensors_tensor tensors[TENSORS_MAX];
    const int n = make_cut_tensors(c, tensors);
    file_log log = {.n = 0};
    const char *folder = at("cut");
    const ls_safetensors_set_options options = {.directory = folder,
                                                .base = "cut",
                                                .shard_bytes_max = c->shard_bytes_max,
                                                .on_file = log_file,
                                                .context = &log};
    ls_safetensors_set_writer *writer = NULL;
    int at_tensor = 0;

    make_empty(folder);
    assert_ok(ls_safetensors_set_writer_open(&options, tensors, n, &writer));
    for (int shard = 0; shard < c->n_shards; shard++) {
        char name[64], path[600];
        snprintf(name, sizeof name, "cut-%05d-of-%05d.safetensors", shard + 1, c->n_shards);
        snprintf(path, sizeof path, "%s/%s", folder, name);
        for (int i = 0; i < c->sizes[shard]; i++) {
            assert_int_equal(log.n, shard); /* told with the last tensor, not before */
            assert_int_equal(is_there(path), i > 0);
            assert_ok(ls_safetensors_set_writer_append(writer, cut_values[at_tensor + i]));
        }
        assert_int_equal(log.n, shard + 1);
        assert_string_equal(log.names[shard], name);
        check_shard(path, tensors, at_tensor, c->sizes[shard]);
        at_tensor += c->sizes[shard];
    }
    assert_int_equal(at_tensor, n);
    assert_ok(ls_safetensors_set_writer_finish(writer));
    ls_safetensors_set_writer_close(writer);
    assert_int_equal(count_files(folder), c->n_shards + 1);
    check_total_size(folder, tensors, n);
    check_index(folder, tensors, n);
}

static void test_cuts(void **state)
{
    (void)state;
    static const cut_case cases[] = {
        {"F", {1}, 0, 1, {1}},
        {"FF", {2, 2}, 16, 1, {2}}, /* exactly full */
        {"FF", {2, 2}, 15, 2, {1, 1}},
        {"FFF", {2, 8, 2}, 16, 3, {1, 1, 1}}, /* one larger than a shard may be */
        {"FF", {8, 1}, 16, 2, {1, 1}},
        {"FFFFF", {1, 1, 1, 1, 1}, 8, 3, {2, 2, 1}},
        {"SF", {3, 2}, 0, 2, {1, 1}}, /* 6 bytes: no start for an F32 */
        {"SF", {2, 2}, 0, 1, {2}},
        {"SSF", {1, 3, 1}, 0, 1, {3}}, /* odd and odd is even */
        {"FSD", {1, 2, 1}, 0, 1, {3}},
        {"SD", {2, 1}, 0, 2, {1, 1}},             /* aligned for an F32, not for an F64 */
        {"FBSSF", {1, 1, 1, 1, 1}, 0, 2, {2, 3}}, /* the cut aligns what follows anew */
        {"FBBBBB", {1, 1, 1, 1, 1, 1}, 0, 1, {6}},
        {"FFSFFS", {3, 3, 3, 1, 1, 1}, 0, 2, {3, 3}}, /* moments and remainders, layer by layer */
        {"FFSFFS", {3, 3, 2, 1, 1, 1}, 0, 1, {6}},
        {"FFSFFS", {3, 3, 3, 1, 1, 1}, 24, 3, {2, 1, 3}}, /* both reasons */
        {"FSF", {1, 0, 1}, 0, 1, {3}},                    /* empty ones take no room, */
        {"BF", {1, 0}, 0, 2, {1, 1}},                     /* but have a start */
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_cut(&cases[i]);
}

/* ---- opening what others wrote --------------------------------------------------------------- */

static void test_set_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        ls_status status;
        const char *text;
    } cases[] = {
        {"", LS_ERR_CORRUPT, "not JSON"},
        {"[]", LS_ERR_CORRUPT, "not JSON"},
        {"{\"weight_map\":[]}", LS_ERR_CORRUPT, "weight_map"},
        {"{\"weight_map\":{\"a\":1}}", LS_ERR_CORRUPT, "not a file name"},
        {"{\"weight_map\":{\"a\":\"../set_bad_x.safetensors\"}}", LS_ERR_CORRUPT, "file name"},
        {"{\"weight_map\":{\"a\":\"..safetensors\"}}", LS_ERR_CORRUPT, "file name"},
        {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", LS_ERR_CORRUPT, "file name"},
        {"{\"weight_map\":{\"a\":\"x.bin\"}}", LS_ERR_CORRUPT, "file name"},
        {"{\"weight_map\":{\"a\":\"gone.safetensors\"}}", LS_ERR_IO, "gone.safetensors"},
        {"{\"weight_map\":{\"b\":\"x.safetensors\"}}", LS_ERR_CORRUPT, "'b' is not in its shard"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", LS_ERR_CORRUPT,
         "twice"},
    };

    assert_ok(ls_directory_make(at("set_bad")));
    put_header("set_bad/x.safetensors", "{" T("a", "U8", "[1]", "[0,1]") "}", 1);
    put_header("set_bad/y.safetensors", "{" T("a", "U8", "[1]", "[0,1]") "}", 1);
    put_header("set_bad_x.safetensors", "{" T("a", "U8", "[1]", "[0,1]") "}", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_safetensors_set *set = NULL;
        put_file(at("set_bad/model.safetensors.index.json"), cases[i].index,
                 strlen(cases[i].index));
        const ls_status status = ls_safetensors_set_open(at("set_bad"), "model", &set);
        if (status != cases[i].status || !strstr(ls_error(), cases[i].text)) {
            fail_msg("case %zu: status %d, '%s'", i, status, ls_error());
        }
        assert_null(set);
    }
    /* Without an index, a tensor in two shards. */
    assert_ok(ls_disk_file_remove(at("set_bad/model.safetensors.index.json")));
    put_header("set_bad/model-1-of-2.safetensors", "{" T("a", "U8", "[1]", "[0,1]") "}", 1);
    put_header("set_bad/model-2-of-2.safetensors", "{" T("a", "U8", "[1]", "[0,1]") "}", 1);
    ls_safetensors_set *set = NULL;
    assert_fails(ls_safetensors_set_open(at("set_bad"), "model", &set), LS_ERR_CORRUPT, "twice");
}

/* ---- faults -------------------------------------------------------------------------------- */

/* Whichever call fails, the writer reports it and leaves nothing. */
static void test_write_faults(void **state)
{
    (void)state;
    ls_safetensors_tensor tensors[4];
    const char *folder = at("fault");
    const ls_safetensors_set_options options = {
        .directory = folder, .base = "model", .shard_bytes_max = 16};

    make_tensors(tensors);
    for (int call = 0;; call++) {
        assert_true(call < 100);
        make_empty(folder);
        arm_faults(call, false, ENOSPC);
        const ls_status status = write_set(&options, tensors, set_data, 4);
        const bool reached = fault_calls > call;
        disarm_faults();
        if (!reached) {
            assert_ok(status);
            assert_true(call >= 3 * 4); /* create, write, write, sync: of three shards */
            break;
        }
        assert_int_equal(status, LS_ERR_IO);
        assert_non_null(strstr(ls_error(), "disk is full"));
        assert_int_equal(count_files(folder), 0);
    }
    check_set(folder);
}

/* After a crash, when nothing can be removed: no set, or, once all shards are durable, all of it.
 */
static void test_crash(void **state)
{
    (void)state;
    ls_safetensors_tensor tensors[4];
    ls_safetensors_set *set = NULL;
    const char *folder = at("crash");
    const ls_safetensors_set_options options = {
        .directory = folder, .base = "model", .shard_bytes_max = 16};
    int n_refused = 0, n_whole = 0;

    make_tensors(tensors);
    for (int call = 0;; call++) {
        assert_true(call < 100);
        make_empty(folder);
        arm_faults(call, true, EIO);
        const ls_status status = write_set(&options, tensors, set_data, 4);
        disarm_faults();
        if (status == LS_OK) break;
        if (ls_safetensors_set_open(folder, "model", &set) == LS_OK) {
            ls_safetensors_set_close(set);
            check_set(folder);
            n_whole++;
        } else {
            assert_int_equal(n_whole, 0);
            n_refused++;
        }
    }
    assert_true(n_refused >= 3 * 3 && n_whole > 0);
}

/* Interrupted and short writes are continued. */
static void test_short_writes(void **state)
{
    (void)state;
    ls_safetensors_tensor tensors[4];
    file_log log = {.n = 0};
    const ls_safetensors_set_options options = {.directory = at("short"),
                                                .base = "model",
                                                .shard_bytes_max = 16,
                                                .on_file = log_file,
                                                .context = &log};

    make_tensors(tensors);
    make_empty(at("short"));
    arm_faults(-1, false, EIO);
    fault_chunk = 5;
    assert_ok(write_set(&options, tensors, set_data, 4));
    disarm_faults();
    check_set(at("short"));
    for (int i = 0; i < log.n; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", at("short"), log.names[i]);
        assert_int_equal(file_crc(path, NULL), log.crcs[i]);
    }
}

/* A file that is not wanted ends the set, whichever it is. */
static void test_refused_file(void **state)
{
    (void)state;
    ls_safetensors_tensor tensors[4];
    const char *folder = at("unwanted");

    make_tensors(tensors);
    make_empty(folder);
    for (int allowed = 0; allowed < 4; allowed++) {
        int left = allowed;
        const ls_safetensors_set_options options = {.directory = folder,
                                                    .base = "model",
                                                    .shard_bytes_max = 16,
                                                    .on_file = refuse_file,
                                                    .context = &left};
        assert_fails(write_set(&options, tensors, set_data, 4), LS_ERR_STOPPED,
                     allowed < 3 ? "not model-0" : "not model.safetensors.index.json");
        assert_int_equal(count_files(folder), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_set),     cmocka_unit_test(test_writer_refuses),
        cmocka_unit_test(test_incomplete),    cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_set_malformed), cmocka_unit_test(test_write_faults),
        cmocka_unit_test(test_crash),         cmocka_unit_test(test_short_writes),
        cmocka_unit_test(test_refused_file),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
