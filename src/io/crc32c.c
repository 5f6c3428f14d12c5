/*
 * crc32c.c - CRC-32C by instruction or by eight tables.
 *
 * The tables are the "slicing by 8" of Kounavis and Berry (2005): eight bytes per round, each
 * looked up in the table of its distance to the end.  The instruction path is bound by the
 * instruction's latency; it still outruns the disks that checkpoints go to.
 */
#include "crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#define POLYNOMIAL_REFLECTED 0x82f63b78u

static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void build_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = (crc >> 1) ^ (crc & 1u ? POLYNOMIAL_REFLECTED : 0u);
        }
        tables[0][byte] = crc;
    }
    for (int slice = 1; slice < 8; slice++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            const uint32_t before = tables[slice - 1][byte];
            tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xffu];
        }
    }
}

uint32_t ls_crc32c_table(uint32_t crc, const void *data, uint64_t bytes)
{
    const uint8_t *at = data;

    pthread_once(&tables_once, build_tables);
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low, high;
        memcpy(&low, at, 4);
        memcpy(&high, at + 4, 4);
        low ^= crc;
        crc = tables[7][low & 0xffu] ^ tables[6][(low >> 8) & 0xffu] ^
              tables[5][(low >> 16) & 0xffu] ^ tables[4][low >> 24] ^ tables[3][high & 0xffu] ^
              tables[2][(high >> 8) & 0xffu] ^ tables[1][(high >> 16) & 0xffu] ^
              tables[0][high >> 24];
    }
    for (; bytes > 0; bytes--, at++) crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 0xffu];
    return ~crc;
}

#if defined(__x86_64__)

#define KERNEL_NAME "sse4.2"

static bool find_instruction(void)
{
    return __builtin_cpu_supports("sse4.2") != 0;
}

__attribute__((target("sse4.2"))) static uint32_t
sum_by_instruction(uint32_t crc, const uint8_t *at, uint64_t bytes)
{
    uint64_t wide = ~crc;

    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    crc = (uint32_t)wide;
    for (; bytes > 0; bytes--, at++) crc = _mm_crc32_u8(crc, *at);
    return ~crc;
}

#elif defined(__aarch64__)

#define KERNEL_NAME "armv8"

static bool find_instruction(void)
{
    const unsigned long hwcap_crc32 = 1ul << 7; /* HWCAP_CRC32 of the aarch64 Linux ABI */
    return (getauxval(AT_HWCAP) & hwcap_crc32) != 0;
}

/* By assembler text: the intrinsics of gcc and of clang need different flags. */
static uint32_t sum_by_instruction(uint32_t crc, const uint8_t *at, uint64_t bytes)
{
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; bytes > 0; bytes--, at++) {
        const uint32_t byte = *at;
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    }
    return ~crc;
}

#else

#define KERNEL_NAME "table"

static bool find_instruction(void)
{
    return false;
}

static uint32_t sum_by_instruction(uint32_t crc, const uint8_t *at, uint64_t bytes)
{
    return ls_crc32c_table(crc, at, bytes);
}

#endif

uint32_t ls_crc32c(uint32_t crc, const void *data, uint64_t bytes)
{
    return find_instruction() ? sum_by_instruction(crc, data, bytes)
                              : ls_crc32c_table(crc, data, bytes);
}

const char *ls_crc32c_kernel_name(void)
{
    return find_instruction() ? KERNEL_NAME : "table";
}
