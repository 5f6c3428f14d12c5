/*
 * crc32c.h - CRC-32C (Castagnoli, polynomial 0x1edc6f41 reflected), as iSCSI and ext4 use it.
 *
 * The processor's instruction where there is one (SSE4.2, found at run time; ARMv8 CRC, found at
 * run time), else tables; the result is the same.  About 8 bytes per 3 cycles by instruction, 8
 * bytes per 10 cycles by table.
 *
 * Layer: io.  Threads: pure functions.
 */
#ifndef LS_CRC32C_H
#define LS_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/*
 * The checksum of what came before followed by data.  `crc` is 0 at the start; the checksum of
 * "123456789" is 0xe3069283.
 */
uint32_t ls_crc32c(uint32_t crc, const void *data, uint64_t bytes);

/* The same by tables alone, whatever the processor offers. */
uint32_t ls_crc32c_table(uint32_t crc, const void *data, uint64_t bytes);

/* "sse4.2", "armv8" or "table": what ls_crc32c() uses on this machine. */
const char *ls_crc32c_kernel_name(void);

#endif
