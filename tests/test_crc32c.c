/* test_crc32c.c - known sums, and instruction = tables = bit by bit, whole or in pieces. */
#include "crc32c.h"

#include "io_test.h"

static uint32_t sum_by_bits(const uint8_t *data, size_t bytes)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1u ? 0x82f63b78u : 0u);
    }
    return ~crc;
}

static void test_known(void **state)
{
    (void)state;
    uint8_t data[32]; /* RFC 3720, B.4 */
    assert_int_equal(ls_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(ls_crc32c(0, "", 0), 0);
    memset(data, 0, sizeof data);
    assert_int_equal(ls_crc32c(0, data, sizeof data), 0x8a9136aau);
    memset(data, 0xff, sizeof data);
    assert_int_equal(ls_crc32c(0, data, sizeof data), 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; i++) data[i] = i;
    assert_int_equal(ls_crc32c(0, data, sizeof data), 0x46dd794eu);
}

static void test_same_by_all(void **state)
{
    (void)state;
    uint8_t data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 37 + (i >> 3));
    for (size_t start = 0; start < 9; start++) { /* unaligned starts, every remainder */
        for (size_t bytes = 0; bytes < 280; bytes++) {
            const uint32_t wanted = sum_by_bits(data + start, bytes);
            assert_int_equal(ls_crc32c(0, data + start, bytes), wanted);
            assert_int_equal(ls_crc32c_table(0, data + start, bytes), wanted);
        }
    }
}

static void test_pieces(void **state)
{
    (void)state;
    uint8_t data[100];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 11);
    const uint32_t wanted = ls_crc32c(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++) {
        const uint32_t first = ls_crc32c(0, data, cut);
        assert_int_equal(ls_crc32c(first, data + cut, sizeof data - cut), wanted);
        assert_int_equal(ls_crc32c_table(first, data + cut, sizeof data - cut), wanted);
    }
}

static void test_kernel_name(void **state)
{
    (void)state;
    const char *name = ls_crc32c_kernel_name();
    assert_true(strcmp(name, "sse4.2") == 0 || strcmp(name, "armv8") == 0 ||
                strcmp(name, "table") == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_same_by_all),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_kernel_name),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
