/* test_safetensors.c - files written are read back; every kind of malformed file is refused with
 * its reason; a failed write leaves nothing. */
#include "safetensors.h"

#include <math.h>

#include "io_test.h"
#include "safetensors_test.h"

/* A whole file from tensors in memory. */
static ls_status write_file(const char *path, const ls_safetensors_tensor *tensors,
                            const void *const *data, int64_t n, uint32_t *crc)
{
    ls_safetensors_writer *writer = NULL;

    LS_TRY(ls_safetensors_writer_open(path, tensors, n, &writer));
    ls_status status = LS_OK;
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        uint64_t bytes = 0;
        assert_ok(ls_safetensors_tensor_bytes(&tensors[i], &bytes));
        status = ls_safetensors_writer_append(writer, data[i], bytes);
    }
    if (status == LS_OK) status = ls_safetensors_writer_finish(writer, NULL, crc);
    ls_safetensors_writer_close(writer);
    return status;
}

static void test_round_trip(void **state)
{
    (void)state;
    static const uint8_t narrow[3] = {1, 2, 3};
    static const float wide[6] = {0.5f, 1, 2, 3, 4, 5};
    static const double scalar = 2.5;
    const ls_safetensors_tensor tensors[] = {
        {.name = "scalar", .dtype = LS_DTYPE_F64, .n_dims = 0},
        {.name = "model.wide", .dtype = LS_DTYPE_F32, .n_dims = 2, .dims = {2, 3}},
        {.name = "empty", .dtype = LS_DTYPE_BF16, .n_dims = 2, .dims = {0, 7}},
        {.name = "narrow \"\\ \n\xc3\xa9", .dtype = LS_DTYPE_U8, .n_dims = 1, .dims = {3}},
    };
    const void *const data[] = {&scalar, wide, NULL, narrow};
    ls_safetensors *file = NULL;
    uint32_t crc = 0;

    assert_ok(write_file(at("trip"), tensors, data, 4, &crc));
    assert_int_equal(file_crc(at("trip"), NULL), crc);
    assert_ok(ls_safetensors_open(at("trip"), &file));
    assert_int_equal(ls_safetensors_count(file), 4);
    assert_string_equal(ls_safetensors_metadata(file, "format"), "pt");
    assert_null(ls_safetensors_metadata(file, "absent"));
    assert_null(ls_safetensors_find(file, "absent"));
    for (int i = 0; i < 4; i++) {
        const ls_safetensors_entry *entry = ls_safetensors_find(file, tensors[i].name);
        uint8_t back[64];
        assert_non_null(entry);
        assert_int_equal(entry->dtype, tensors[i].dtype);
        assert_int_equal(entry->n_dims, tensors[i].n_dims);
        assert_memory_equal(entry->dims, tensors[i].dims, sizeof entry->dims);
        assert_int_equal(entry->offset_bytes % ls_dtype_bytes(entry->dtype), 0);
        assert_ok(ls_safetensors_read(file, entry, 0, entry->size_bytes, back));
        if (entry->size_bytes) assert_memory_equal(back, data[i], entry->size_bytes);
    }
    const ls_safetensors_entry *entry = ls_safetensors_find(file, "model.wide");
    float middle[2];
    assert_ok(ls_safetensors_read(file, entry, 8, 8, middle));
    assert_true(middle[0] == 2.0f && middle[1] == 3.0f);
    assert_fails(ls_safetensors_read(file, entry, 20, 8, middle), LS_ERR_INVALID, "24 bytes");
    assert_fails(ls_safetensors_read(file, entry, UINT64_MAX, 2, middle), LS_ERR_INVALID, "24");
    assert_null(ls_safetensors_get(file, 4));
    assert_null(ls_safetensors_get(file, -1));
    assert_int_equal((ls_safetensors_get(file, 0)->offset_bytes) % 8, 0);
    ls_safetensors_close(file);
    ls_safetensors_close(NULL);
}

static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        ls_status status;
        const char *text;
    } cases[] = {
        {"", 0, LS_ERR_CORRUPT, "claims 0 bytes"},
        {"[]", 0, LS_ERR_CORRUPT, "not a JSON object"},
        {" {}", 0, LS_ERR_CORRUPT, "not a JSON object"},
        {"{", 0, LS_ERR_CORRUPT, "claims 1 bytes"},
        {"{ ", 0, LS_ERR_CORRUPT, "not a JSON object"},
        {"{} x", 0, LS_ERR_CORRUPT, "not a JSON object"},
        {"{}{}", 0, LS_ERR_CORRUPT, "not a JSON object"},
        {"{}", 1, LS_ERR_CORRUPT, "belong to none"},
        {"{\"a\":1}", 0, LS_ERR_CORRUPT, "is not {dtype"},
        {"{\"a\":{}}", 0, LS_ERR_CORRUPT, "is not {dtype"},
        {"{\"a\":[]}", 0, LS_ERR_CORRUPT, "is not {dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, LS_ERR_CORRUPT, "is not {dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"x\":1}}", 1,
         LS_ERR_CORRUPT, "is not {dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         LS_ERR_CORRUPT, "is not {dtype"},
        {"{\"a\":{\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, LS_ERR_CORRUPT,
         "is not {dtype"},
        {"{" T("a", "Q7", "[1]", "[0,1]") "}", 1, LS_ERR_UNSUPPORTED, "dtype 'Q7'"},
        {"{" T("a", "F8_E4M3", "[1]", "[0,1]") "}", 1, LS_ERR_UNSUPPORTED, "convert"},
        {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, LS_ERR_CORRUPT,
         "dtype is not a string"},
        {"{" T("a", "U8", "1", "[0,1]") "}", 1, LS_ERR_CORRUPT, "shape is not a list"},
        {"{" T("a", "U8", "[-1]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "not a length"},
        {"{" T("a", "U8", "[1.5]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "not a length"},
        {"{" T("a", "U8", "[\"1\"]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "not a length"},
        {"{" T("a", "U8", "[1e400]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "not a length"},
        {"{" T("a", "U8", "[18446744073709551616]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "length"},
        {"{" T("a", "U8", "[9007199254740993]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "length"},
        {"{" T("a", "F64", "[4294967296,4294967296]", "[0,0]") "}", 0, LS_ERR_CORRUPT, "overflows"},
        {"{" T("a", "F64", "[4503599627370496,512]", "[0,0]") "}", 0, LS_ERR_CORRUPT, "overflows"},
        {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "8 dimensions"},
        {"{" T("a", "U8", "[2]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "needs 2 bytes"},
        {"{" T("a", "F32", "[1]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "needs 4 bytes"},
        {"{" T("a", "U8", "[1]", "[0]") "}", 1, LS_ERR_CORRUPT, "[begin, end]"},
        {"{" T("a", "U8", "[1]", "[0,1,1]") "}", 1, LS_ERR_CORRUPT, "[begin, end]"},
        {"{" T("a", "U8", "[1]", "[1,0]") "}", 1, LS_ERR_CORRUPT, "[begin, end]"},
        {"{" T("a", "U8", "[1]", "[-1,0]") "}", 1, LS_ERR_CORRUPT, "[begin, end]"},
        {"{" T("a", "U8", "[1]", "{}") "}", 1, LS_ERR_CORRUPT, "[begin, end]"},
        {"{" T("a", "U8", "[2]", "[0,2]") "}", 1, LS_ERR_CORRUPT, "cut short"},
        {"{" T("a", "U8", "[1]", "[9007199254740990,9007199254740991]") "}", 1, LS_ERR_CORRUPT,
         "cut short"},
        {"{" T("a", "U8", "[1]", "[1,2]") "}", 2, LS_ERR_CORRUPT, "gap"},
        {"{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}", 3, LS_ERR_CORRUPT,
         "'b': there is a gap"},
        {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, LS_ERR_CORRUPT,
         "overlaps"},
        {"{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[0,1]") "}", 1, LS_ERR_CORRUPT,
         "overlaps"},
        {"{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[1,2]") "}", 2, LS_ERR_CORRUPT,
         "twice"},
        {"{" T("a", "U8", "[1]", "[0,1]") "}", 2, LS_ERR_CORRUPT, "1 bytes behind"},
        {"{" T("", "U8", "[1]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "empty"},
        {"{" T("a\\u0000b", "U8", "[1]", "[0,1]") "}", 1, LS_ERR_CORRUPT, "NUL"},
        {"{\"__metadata__\":1}", 0, LS_ERR_CORRUPT, "not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, LS_ERR_CORRUPT, "not a string"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, LS_ERR_CORRUPT, "twice"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_safetensors *file = NULL;
        const char *path = put_header("bad", cases[i].header, cases[i].n_data);
        const ls_status status = ls_safetensors_open(path, &file);
        if (status != cases[i].status || !strstr(ls_error(), cases[i].text)) {
            fail_msg("case %zu %s: status %d, '%s'", i, cases[i].header, status, ls_error());
        }
        assert_null(file);
    }
}

static void test_wellformed(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        int64_t n;
    } cases[] = {
        {"{}", 0, 0},
        {"{}      ", 0, 0},
        {"{\"__metadata__\":{\"x\":\"y\"}}", 0, 0},
        {"{" T("b", "U8", "[1]", "[1,2]") "," T("a", "U8", "[1]", "[0,1]") "}", 2, 2},
        {"{" T("e", "F32", "[0]", "[1,1]") "," T("a", "U8", "[1]", "[0,1]") "}", 1, 2},
        {"{" T("e", "F32", "[0]", "[0,0]") "," T("f", "U8", "[0]", "[0,0]") "}", 0, 2},
        {"{" T("s", "I64", "[]", "[0,8]") "}", 8, 1},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_safetensors *file = NULL;
        assert_ok(ls_safetensors_open(put_header("good", cases[i].header, cases[i].n_data), &file));
        assert_int_equal(ls_safetensors_count(file), cases[i].n);
        ls_safetensors_close(file);
    }
}

/* A header size beyond the file or the limit, and a file cut at every byte. */
static void test_cut_short(void **state)
{
    (void)state;
    uint8_t whole[200] = {0};
    const char header[] = "{" T("a", "U8", "[4]", "[0,4]") "}";
    const size_t length = sizeof header - 1, total = 8 + length + 4;
    ls_safetensors *file = NULL;

    whole[0] = (uint8_t)length;
    memcpy(whole + 8, header, length);
    for (size_t n = 0; n < total; n++) {
        put_file(at("cut"), whole, n);
        assert_int_equal(ls_safetensors_open(at("cut"), &file), LS_ERR_CORRUPT);
    }
    put_file(at("cut"), whole, total);
    assert_ok(ls_safetensors_open(at("cut"), &file));
    char back[4];
    put_file(at("cut"), whole, total - 1); /* cut while open */
    assert_fails(ls_safetensors_read(file, ls_safetensors_get(file, 0), 0, 4, back), LS_ERR_CORRUPT,
                 "cut short");
    ls_safetensors_close(file);
    memset(whole, 0xff, 8);
    put_file(at("cut"), whole, total);
    assert_fails(ls_safetensors_open(at("cut"), &file), LS_ERR_CORRUPT,
                 "claims 18446744073709551615");
    assert_fails(ls_safetensors_open(at("absent"), &file), LS_ERR_IO, "absent");
}

static void test_writer_refuses(void **state)
{
    (void)state;
    static char long_name[400];
    static const float one = 1;
    const void *const data[] = {&one, &one};
    ls_safetensors_writer *writer = NULL;
    ls_safetensors_tensor tensors[2] = {
        {.name = "a", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {1}},
        {.name = "b", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {1}},
    };
    const struct {
        const char *name;
        int n_dims;
        int64_t dim;
        const char *text;
    } cases[] = {
        {"a", 1, 1, "two tensors"},    {"", 1, 1, "1 to 256"},
        {long_name, 1, 1, "1 to 256"}, {"__metadata__", 1, 1, "1 to"},
        {"b", 9, 1, "9 dim"},          {"b", -1, 1, "-1 dim"},
        {"b", 1, -1, "too large"},     {"b", 1, INT64_MAX, "too large"},
    };

    memset(long_name, 'x', 257);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tensors[1].name = cases[i].name;
        tensors[1].n_dims = cases[i].n_dims;
        tensors[1].dims[0] = cases[i].dim;
        assert_fails(ls_safetensors_writer_open(at("refused"), tensors, 2, &writer), LS_ERR_INVALID,
                     cases[i].text);
        assert_false(is_there(at("refused")));
    }
    long_name[256] = '\0'; /* the longest allowed */
    tensors[1].name = long_name;
    tensors[1].n_dims = 1;
    tensors[1].dims[0] = 1;
    assert_ok(write_file(at("longest"), tensors, data, 2, NULL));
    ls_safetensors *file = NULL;
    assert_ok(ls_safetensors_open(at("longest"), &file));
    assert_non_null(ls_safetensors_find(file, long_name));
    ls_safetensors_close(file);
}

static void test_streamed_writer(void **state)
{
    (void)state;
    const float data[2] = {1, 2};
    const uint8_t bytes[3] = {7, 8, 9};
    ls_safetensors_tensor tensors[] = {
        {.name = "bytes", .dtype = LS_DTYPE_U8, .n_dims = 1, .dims = {3}},
        {.name = "floats", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {2}},
    };
    ls_safetensors_writer *writer = NULL;

    assert_fails(ls_safetensors_writer_open(at("stream"), tensors, 2, &writer), LS_ERR_INVALID,
                 "wide types first");
    const ls_safetensors_tensor held = tensors[0];
    tensors[0] = tensors[1];
    tensors[1] = held;
    assert_ok(ls_safetensors_writer_open(at("stream"), tensors, 2, &writer));
    assert_ok(ls_safetensors_writer_append(writer, data, 3)); /* pieces of any size */
    assert_ok(ls_safetensors_writer_append(writer, (const char *)data + 3, 5));
    assert_ok(ls_safetensors_writer_append(writer, bytes, 2));
    assert_fails(ls_safetensors_writer_finish(writer, NULL, NULL), LS_ERR_INVALID, "1 bytes fewer");
    assert_fails(ls_safetensors_writer_append(writer, bytes, 2), LS_ERR_INVALID, "1 bytes more");
    assert_ok(ls_safetensors_writer_append(writer, bytes + 2, 1));
    uint64_t size = 0, file_size = 0;
    uint32_t crc = 0;
    assert_ok(ls_safetensors_writer_finish(writer, &size, &crc));
    ls_safetensors_writer_close(writer);
    assert_int_equal(file_crc(at("stream"), &file_size), crc);
    assert_int_equal(file_size, size);
    const void *const whole[] = {data, bytes};
    assert_ok(write_file(at("whole"), tensors, whole, 2, NULL));
    assert_int_equal(file_crc(at("whole"), NULL), crc);
    assert_ok(ls_safetensors_writer_open(at("stream"), tensors, 2, &writer));
    ls_safetensors_writer_close(writer); /* not finished: removed */
    assert_false(is_there(at("stream")));
    ls_safetensors_writer_close(NULL);
}

/* Whichever call fails, the writer reports it and leaves no file. */
static void test_write_faults(void **state)
{
    (void)state;
    static const float values[4] = {1, 2, 3, 4};
    const void *const data[] = {values};
    const ls_safetensors_tensor tensor = {
        .name = "a", .dtype = LS_DTYPE_F32, .n_dims = 1, .dims = {4}};

    for (int call = 0;; call++) {
        arm_faults(call, false, ENOSPC);
        const ls_status status = write_file(at("fault"), &tensor, data, 1, NULL);
        const bool reached = fault_calls > call;
        disarm_faults();
        if (!reached) {
            assert_ok(status);
            assert_true(call >= 4);
            break;
        }
        assert_int_equal(status, LS_ERR_IO);
        assert_non_null(strstr(ls_error(), "disk is full"));
        assert_false(is_there(at("fault")));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_wellformed),     cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_writer_refuses), cmocka_unit_test(test_streamed_writer),
        cmocka_unit_test(test_write_faults),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
