/*
 * matmul_vectors.c - matrix multiplication in vectors: how it is cut, and shared among threads.
 *
 * C is cut into tiles, each computed by one thread from operands it packs itself: one core reads
 * what another has just written far more slowly than it converts it.  If the terms fit one strip,
 * a thread takes a few rows at a time, and the B it has packed serves until the columns change.
 * Longer sums are kept in fp32 beside the packed strips until they are complete.
 *
 * 2 M N K FLOPs; least bytes those of a, b and c.
 */
#include "matmul.h"

#include "cpu_features.h"
#include "vec.h"

enum {
    ROWS_MULTIPLE = 4,     /* fewer left-over rows take as long */
    THREADS_PER_GROUP = 8, /* more threads than these would spend their time packing the same B */
};

#define FLOPS_LEAST 1e6 /* below, other threads would wake for too little */

/* n cut evenly into pieces of at most `most`, both in whole units. */
static int64_t cut_evenly(int64_t n, int64_t most, int64_t unit)
{
    const int64_t units = ls_blocks(n, unit);
    return ls_blocks(units, ls_blocks(units, most / unit)) * unit;
}

/* The whole sum in one strip: B stays packed, so that few rows make a tile. */
static ls_matmul_cut cut_short(const ls_matmul_args *args, int64_t panel_cols)
{
    const int64_t sharing = ls_blocks(ls_cpu_threads(), THREADS_PER_GROUP);
    const int64_t share = ls_blocks(ls_blocks(args->N, sharing), panel_cols) * panel_cols;
    const int64_t most = ls_min_i64(LS_MATMUL_B_FLOATS / args->K, share);

    return (ls_matmul_cut){.args = args,
                           .n_rows = LS_MATMUL_ROWS,
                           .n_cols = cut_evenly(args->N, most, panel_cols),
                           .n_terms = args->K};
}

static ls_matmul_cut cut_long(const ls_matmul_args *args, int64_t panel_cols)
{
    return (ls_matmul_cut){.args = args,
                           .n_rows = LS_MATMUL_TILE_ROWS,
                           .n_cols = cut_evenly(args->N, LS_MATMUL_TILE_COLS, panel_cols),
                           .n_terms = LS_MATMUL_TILE_STRIP};
}

/* Fewer rows to a tile, so that every thread gets as many tiles. */
static void cut_for_threads(ls_matmul_cut *cut)
{
    const int64_t M = cut->args->M, groups = ls_blocks(cut->args->N, cut->n_cols);
    const int64_t threads = ls_cpu_threads(), tiles = ls_blocks(M, cut->n_rows) * groups;
    const int64_t blocks = ls_blocks(ls_blocks(tiles, threads) * threads, groups);
    const int64_t rows = ls_blocks(ls_blocks(M, blocks), ROWS_MULTIPLE) * ROWS_MULTIPLE;

    cut->n_rows = ls_min_i64(cut->n_rows, rows);
}

static ls_status run(const ls_matmul_args *args, const ls_matmul_vectors *vectors)
{
    ls_matmul_cut cut = args->K <= LS_MATMUL_STRIP ? cut_short(args, vectors->panel_cols)
                                                   : cut_long(args, vectors->panel_cols);
    cut_for_threads(&cut);
    const int64_t blocks = ls_blocks(args->M, cut.n_rows), groups = ls_blocks(args->N, cut.n_cols);
    const double flops = 2.0 * (double)args->M * (double)args->N * (double)args->K;

    (void)flops;
    LS_OMP(omp parallel if (flops >= FLOPS_LEAST))
    {
        _Alignas(64) ls_matmul_packed packed;
        packed.b_col = -1;
        LS_OMP(omp for schedule(dynamic, 1) nowait)
        for (int64_t i = 0; i < groups * blocks; i++)
            vectors->multiply(&cut, &packed, i % blocks * cut.n_rows, i / blocks * cut.n_cols);
    }
    return LS_OK;
}

/* ---- one kernel for each instruction set --------------------------------------------------- */

static uint64_t workspace_bytes(const ls_matmul_args *args)
{
    (void)args;
    return 0;
}

/* A kernel that runs on machines where `where` holds. */
#define VECTOR_KERNEL(variant, where)                                                              \
    static int usable_##variant(ls_dtype ab_dtype, ls_dtype c_dtype)                               \
    {                                                                                              \
        (void)ab_dtype;                                                                            \
        (void)c_dtype;                                                                             \
        return where;                                                                              \
    }                                                                                              \
    static ls_status run_##variant(const ls_matmul_args *args)                                     \
    {                                                                                              \
        return run(args, &ls_matmul_vectors_##variant);                                            \
    }                                                                                              \
    const ls_matmul_kernel ls_matmul_kernel_##variant = {#variant, usable_##variant,               \
                                                         workspace_bytes, run_##variant}

VECTOR_KERNEL(plain, 1);
#if defined(LS_HAVE_X86_KERNELS)
VECTOR_KERNEL(avx2, ls_cpu_features_discover()->avx2);
VECTOR_KERNEL(avx512, ls_cpu_features_discover()->avx512);
#endif
