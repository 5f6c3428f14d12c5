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

/* ---- vector kernels ------------------------------------------------------------------------ */

enum {
    LS_MATMUL_STRIP = 1024,     /* most terms that are packed at once, if they are all, */
    LS_MATMUL_ROWS = 48,        /* and most rows beside them; so many pass a panel of B together */
    LS_MATMUL_TILE_STRIP = 128, /* most terms of a strip if there are several, */
    LS_MATMUL_TILE_ROWS = 144,  /* and most rows and columns of the tile that waits for them */
    LS_MATMUL_TILE_COLS = 256,
    LS_MATMUL_A_FLOATS = LS_MATMUL_STRIP * LS_MATMUL_ROWS,
    LS_MATMUL_B_FLOATS = 256 << 10, /* half of a usual second-level cache */
};

_Static_assert(LS_MATMUL_TILE_ROWS *LS_MATMUL_TILE_STRIP <= LS_MATMUL_A_FLOATS, "A has room");
_Static_assert(LS_MATMUL_TILE_COLS *LS_MATMUL_TILE_STRIP <= LS_MATMUL_B_FLOATS, "B has room");

/* How C is cut into tiles, in strips of terms.  Any cut gives the same bits. */
typedef struct ls_matmul_cut {
    const ls_matmul_args *args;
    int64_t n_rows, n_cols, n_terms; /* of a whole tile and a whole strip */
} ls_matmul_cut;

/* What a thread packs, on its stack: 1.3 MiB; aligned to cache lines. */
typedef struct ls_matmul_packed {
    float a[LS_MATMUL_A_FLOATS];
    float b[LS_MATMUL_B_FLOATS];
    float c[LS_MATMUL_TILE_ROWS * LS_MATMUL_TILE_COLS];
    int64_t b_col, b_term; /* where the strip and the group in b start; b_col -1: nothing yet */
} ls_matmul_packed;

/* What differs between instruction sets. */
typedef struct ls_matmul_vectors {
    int64_t panel_cols; /* columns of B that are packed side by side */
    /* Compute the tile whose first element is c[row][col]. */
    void (*multiply)(const ls_matmul_cut *cut, ls_matmul_packed *packed, int64_t row, int64_t col);
} ls_matmul_vectors;

extern const ls_matmul_vectors ls_matmul_vectors_plain;
extern const ls_matmul_vectors ls_matmul_vectors_avx2;
extern const ls_matmul_vectors ls_matmul_vectors_avx512;

extern const ls_matmul_kernel ls_matmul_kernel_plain;
extern const ls_matmul_kernel ls_matmul_kernel_avx2;
extern const ls_matmul_kernel ls_matmul_kernel_avx512;

#endif
