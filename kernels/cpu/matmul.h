/*
 * matmul.h - the CPU's matrix multiplications, one per instruction set, and which one runs.
 *
 * Layer: kernels, private.  Threads: each function may run at once on disjoint operands.
 */
#ifndef LS_MATMUL_H
#define LS_MATMUL_H

#include "ops.h"

typedef enum ls_matmul_variant {
    LS_MATMUL_VARIANT_AUTO = 0,
    LS_MATMUL_VARIANT_PLAIN,
    LS_MATMUL_VARIANT_AVX2,
    LS_MATMUL_VARIANT_AVX512,
    LS_MATMUL_VARIANT_ONEDNN,
    LS_MATMUL_VARIANT_AMX,
    LS_MATMUL_VARIANT_COUNT
} ls_matmul_variant;

/* One implementation. */
typedef struct ls_matmul_kernel {
    const char *name;
    /* Whether this build and this machine can run these operand types. */
    int (*usable)(ls_dtype ab_dtype, ls_dtype c_dtype);
    uint64_t (*workspace_bytes)(const ls_matmul_args *args);
    ls_status (*run)(const ls_matmul_args *args);
} ls_matmul_kernel;

extern const ls_matmul_kernel ls_matmul_kernel_onednn;
extern const ls_matmul_kernel ls_matmul_kernel_amx;

/* Force one variant for tests and benchmarks; AUTO restores the choice.  Returns 0, and changes
 * nothing, if the variant cannot run dtype here.  Not for use while ops run. */
int ls_cpu_matmul_force(ls_matmul_variant variant, ls_dtype dtype);

/* C tiles of the vector kernels: each is computed by one thread, from operands it packs itself. */
#define LS_MATMUL_TILE_ROWS 144
#define LS_MATMUL_TILE_COLS 128

/* Compute the tile whose first element is c[row][col]. */
void ls_matmul_tile_plain(const ls_matmul_args *args, int64_t row, int64_t col);
void ls_matmul_tile_avx2(const ls_matmul_args *args, int64_t row, int64_t col);
void ls_matmul_tile_avx512(const ls_matmul_args *args, int64_t row, int64_t col);

#endif
