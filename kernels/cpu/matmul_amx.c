/*
 * matmul_amx.c - bf16 matrix multiplication on AMX tiles.
 *
 * C is cut into blocks of 32 x 32: four result tiles, fed by two tiles of A and two of B per 32
 * terms, so products (64 cycles) hide the loads (32).  B is packed once per call, into panels of
 * 32 columns.  A thread takes up to 2 row blocks times all panels and a strip of 256 terms at a
 * time: those rows of A stay in the first-level cache while B streams from the second.  A is read
 * where it lies; if it is stored transposed or its edges are ragged, the strip is packed first.
 *
 * Long sums into fp32 are cut into slices of 2,048 terms and B into groups of at most 512 columns,
 * which keeps B in that cache and bounds the workspace.  A block's sum is a function of shapes
 * alone, whoever computes it.
 *
 * 2 M N K FLOPs; least bytes 2 (M K + K N) + c.  For the shapes of small models the traffic of A
 * and c beyond the second-level cache costs as much time as the products.
 */
#include "matmul.h"

#include <string.h>

#include "amx.h"
#include "cpu_features.h"

enum {
    BLOCK = 32,         /* rows and columns of a C block */
    TASK_BLOCKS = 2,    /* most row blocks of a task */
    STRIP = 11,         /* most products of 32 terms between two stores of a block */
    SLICE_TERMS = 1024, /* of a sum into fp32 */
    GROUP_PANELS = 16,  /* most column panels of B packed at a time */
    GROUP_PANELS_LEAST = 6,
    GROUP_BYTES = 3 << 19, /* of B that fit the second-level cache beside the rest */
    STEP_BYTES = 2048,     /* two tiles: 32 lines of 32 terms */
};

/* One slice of terms and one group of columns. */
typedef struct part {
    const ls_matmul_args *args;
    int64_t term, col; /* where the slice and the group start */
    int64_t n_steps;   /* products along the slice */
    int64_t strip;     /* products of a strip */
    int64_t n_blocks;  /* row blocks of C */
    int64_t n_panels;  /* column panels of the group */
    int64_t per_task;  /* row blocks of a task */
    int accumulate;
    char *b; /* [n_panels][n_steps][STEP_BYTES] */
} part;

static int64_t cut(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Whether a row block of A must be packed, rather than read in place. */
static int is_a_packed(const ls_matmul_args *args, int64_t block)
{
    return args->trans_a || args->K % TILE_TERMS != 0 || (block + 1) * BLOCK > args->M;
}

/* ---- workspace ----------------------------------------------------------------------------- */

static int64_t slice_terms(const ls_matmul_args *args)
{
    return args->c_dtype == LS_DTYPE_F32 && args->K > SLICE_TERMS ? SLICE_TERMS : args->K;
}

static int64_t group_cols(const ls_matmul_args *args)
{
    const int64_t fits = GROUP_BYTES / (cut(slice_terms(args), TILE_TERMS) * STEP_BYTES);
    const int64_t most = fits < GROUP_PANELS_LEAST ? GROUP_PANELS_LEAST
                         : fits > GROUP_PANELS     ? GROUP_PANELS
                                                   : fits;
    const int64_t panels = cut(args->N, BLOCK);
    return cut(panels, cut(panels, most)) * BLOCK; /* groups of even size */
}

static uint64_t workspace_bytes(const ls_matmul_args *args)
{
    const int64_t panels = group_cols(args) / BLOCK;
    const int64_t bytes = panels * cut(slice_terms(args), TILE_TERMS) * STEP_BYTES;
    return (uint64_t)bytes + 64; /* to start on a cache line */
}

/* ---- packing ------------------------------------------------------------------------------- */

/* The 32 terms of one step, for one column panel of B. */
static void panel_pack(const part *p, int64_t panel, int64_t step)
{
    const ls_matmul_args *args = p->args;
    const int64_t col = p->col + panel * BLOCK, n_cols = args->N - col;
    const int64_t term = p->term + step * TILE_TERMS, n_terms = args->K - term;
    char *to = p->b + (panel * p->n_steps + step) * STEP_BYTES;

    if (!args->trans_b) {
        tiles_pack_interleaved(to, (const uint16_t *)args->b + term * args->N + col, args->N,
                               n_cols, n_terms);
        return;
    }
    const uint16_t *from = (const uint16_t *)args->b + col * args->K + term;
    const int64_t right = n_cols > TILE_SIDE ? TILE_SIDE * args->K : 0;
    tile_pack_transposed(to, from, args->K, n_cols, n_terms);
    tile_pack_transposed(to + TILE_BYTES, from + right, args->K, n_cols - TILE_SIDE, n_terms);
}

/*
 * Pack B in the order in which it lies in memory: panel by panel where columns are stored along
 * the terms, else step by step across the panels.
 */
static void b_pack(const part *p)
{
    const int64_t across = p->args->trans_b ? 1 : p->n_panels;

#if defined(_OPENMP)
#pragma omp for schedule(static)
#endif
    for (int64_t i = 0; i < p->n_panels / across * p->n_steps; i++)
        for (int64_t j = 0; j < across; j++)
            panel_pack(p, i / p->n_steps * across + j, i % p->n_steps);
}

/* Pack the strip steps[0] .. steps[1] of the row blocks of a task: to[block][step][STEP_BYTES]. */
static void a_pack(const part *p, char *to, const int64_t blocks[2], const int64_t steps[2])
{
    const ls_matmul_args *args = p->args;
    const uint16_t *a = args->a;

    for (int64_t step = steps[0]; step < steps[1]; step++)
        for (int64_t block = blocks[0]; block < blocks[1]; block++) {
            char *at = to + ((block - blocks[0]) * STRIP + step - steps[0]) * STEP_BYTES;
            const int64_t row = block * BLOCK, n_rows = args->M - row;
            const int64_t term = p->term + step * TILE_TERMS, n_terms = args->K - term;
            if (!is_a_packed(args, block)) continue;
            if (args->trans_a) {
                tiles_pack_turned(at, a + term * args->M + row, args->M, n_rows, n_terms);
                continue;
            }
            for (int64_t i = 0; i < BLOCK; i++) {
                const __mmask32 terms = i < n_rows ? mask_first32(n_terms) : 0;
                const int64_t line = i < n_rows ? row + i : row;
                _mm512_storeu_si512(at + 64 * i,
                                    _mm512_maskz_loadu_epi16(terms, a + line * args->K + term));
            }
        }
}

/* Where the terms of a 32-row block of A lie, from the strip's first step on. */
typedef struct block_source {
    const char *at;
    int64_t row_bytes, step_bytes, tile_bytes;
} block_source;

static block_source block_find(const part *p, int64_t block, int64_t step, const char *packed)
{
    const ls_matmul_args *args = p->args;
    const int64_t at = block * BLOCK * args->K + p->term + step * TILE_TERMS;
    if (is_a_packed(args, block)) return (block_source){packed, 64, STEP_BYTES, TILE_BYTES};
    return (block_source){(const char *)args->a + 2 * at, 2 * args->K, 64, 2 * TILE_SIDE * args->K};
}

/* ---- products ------------------------------------------------------------------------------ */

/* c[32][32] (+)= n_steps products. */
static void block_multiply(float *c, int64_t c_bytes, int starts_empty, const block_source *a,
                           const char *b, int64_t n_steps)
{
    char *top = (char *)c, *bottom = top + TILE_SIDE * c_bytes;
    const char *a_at = a->at;

    if (starts_empty) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    } else {
        TILE_LOAD(0, top, c_bytes);
        TILE_LOAD(1, top + 64, c_bytes);
        TILE_LOAD(2, bottom, c_bytes);
        TILE_LOAD(3, bottom + 64, c_bytes);
    }
    for (int64_t i = 0; i < n_steps; i++) {
        TILE_LOAD(4, a_at, a->row_bytes);
        TILE_LOAD(6, b, 64);
        TILE_MULTIPLY(0, 4, 6);
        TILE_LOAD(7, b + TILE_BYTES, 64);
        TILE_MULTIPLY(1, 4, 7);
        TILE_LOAD(5, a_at + a->tile_bytes, a->row_bytes);
        TILE_MULTIPLY(2, 5, 6);
        TILE_MULTIPLY(3, 5, 7);
        a_at += a->step_bytes;
        b += STEP_BYTES;
    }
    TILE_STORE(0, top, c_bytes);
    TILE_STORE(1, top + 64, c_bytes);
    TILE_STORE(2, bottom, c_bytes);
    TILE_STORE(3, bottom + 64, c_bytes);
}

/* Write a finished block to c, converted and cut at its edges. */
static void block_write(const part *p, const float *from, int64_t row, int64_t col)
{
    const ls_matmul_args *args = p->args;
    const int64_t n_rows = args->M - row < BLOCK ? args->M - row : BLOCK;
    const __mmask32 mask = mask_first32(args->N - col);
    const __mmask16 left = (__mmask16)mask, right = (__mmask16)(mask >> 16);

    for (int64_t i = 0; i < n_rows; i++, from += BLOCK) {
        __m512 x = _mm512_loadu_ps(from), y = _mm512_loadu_ps(from + 16);
        const int64_t at = (row + i) * args->N + col;
        if (args->c_dtype == LS_DTYPE_F32) {
            float *to = (float *)args->c + at;
            if (p->accumulate) {
                x = _mm512_add_ps(_mm512_maskz_loadu_ps(left, to), x);
                y = _mm512_add_ps(_mm512_maskz_loadu_ps(right, to + 16), y);
            }
            _mm512_mask_storeu_ps(to, left, x);
            _mm512_mask_storeu_ps(to + 16, right, y);
        } else {
            uint16_t *to = (uint16_t *)args->c + at;
            if (p->accumulate) {
                const __m512i old = _mm512_maskz_loadu_epi16(mask, to);
                const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(old));
                const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(old, 1));
                x = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), x);
                y = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(high, 16)), y);
            }
            _mm512_mask_storeu_epi16(to, mask, (__m512i)_mm512_cvtne2ps_pbh(y, x));
        }
    }
}

/* One strip of row block i times every panel; sums holds the blocks that are not summed in c. */
static void strip_run(const part *p, int64_t i, const int64_t steps[2], const block_source *a,
                      float (*sums)[BLOCK * BLOCK])
{
    const ls_matmul_args *args = p->args;
    const int64_t row = i * BLOCK, n_steps = steps[1] - steps[0];
    const int is_whole = args->c_dtype == LS_DTYPE_F32 && args->M - row >= BLOCK;

    for (int64_t j = 0; j < p->n_panels; j++) {
        const char *b = p->b + (j * p->n_steps + steps[0]) * STEP_BYTES;
        const int64_t col = p->col + j * BLOCK;
        if (is_whole && args->N - col >= BLOCK) {
            float *c = (float *)args->c + row * args->N + col;
            block_multiply(c, 4 * args->N, steps[0] == 0 && !p->accumulate, a, b, n_steps);
            continue;
        }
        block_multiply(sums[j], 4 * BLOCK, steps[0] == 0, a, b, n_steps);
        if (steps[1] == p->n_steps) block_write(p, sums[j], row, col);
    }
}

/* Row blocks blocks[0] .. blocks[1] times every panel. */
static void task_run(const part *p, const int64_t blocks[2])
{
    _Alignas(64) float sums[TASK_BLOCKS][GROUP_PANELS][BLOCK * BLOCK];
    _Alignas(64) char packed[TASK_BLOCKS][STRIP * STEP_BYTES];

    for (int64_t step = 0; step < p->n_steps; step += p->strip) {
        const int64_t end = step + p->strip;
        const int64_t steps[2] = {step, end < p->n_steps ? end : p->n_steps};
        a_pack(p, packed[0], blocks, steps);
        for (int64_t i = blocks[0]; i < blocks[1]; i++) {
            const block_source a = block_find(p, i, step, packed[i - blocks[0]]);
            strip_run(p, i, steps, &a, sums[i - blocks[0]]);
        }
    }
}

/* ---- threads ------------------------------------------------------------------------------- */

/* Called by every thread of the team, or by the only one. */
static void part_run(const part *p)
{
    b_pack(p);
#if defined(_OPENMP)
#pragma omp for schedule(static) nowait
#endif
    for (int64_t i = 0; i < p->n_blocks; i += p->per_task) {
        const int64_t end = i + p->per_task;
        task_run(p, (int64_t[2]){i, end < p->n_blocks ? end : p->n_blocks});
    }
}

static part part_cut(const ls_matmul_args *args, int64_t term, int64_t col)
{
    const uintptr_t unaligned = (uintptr_t)args->workspace;
    const int64_t terms = slice_terms(args), cols = group_cols(args);
    const int64_t n_terms = args->K - term < terms ? args->K - term : terms;
    const int64_t n_cols = args->N - col < cols ? args->N - col : cols;
    const int64_t n_blocks = cut(args->M, BLOCK), n_steps = cut(n_terms, TILE_TERMS);

    return (part){
        .args = args,
        .term = term,
        .col = col,
        .n_steps = n_steps,
        .strip = cut(n_steps, cut(n_steps, STRIP)), /* of even length */
        .n_blocks = n_blocks,
        .n_panels = cut(n_cols, BLOCK),
        .per_task = n_blocks >= TASK_BLOCKS * (int64_t)ls_cpu_threads() ? TASK_BLOCKS : 1,
        .accumulate = args->accumulate || term > 0,
        .b = (char *)args->workspace + (64 - unaligned % 64) % 64,
    };
}

static ls_status run(const ls_matmul_args *args)
{
#if defined(_OPENMP)
#pragma omp parallel
#endif
    {
        tiles_configure();
        for (int64_t term = 0; term < args->K; term += slice_terms(args))
            for (int64_t col = 0; col < args->N; col += group_cols(args)) {
                const part p = part_cut(args, term, col);
#if defined(_OPENMP)
                if (term > 0 || col > 0) {
#pragma omp barrier /* the part before is still reading its B */
                }
#endif
                part_run(&p);
            }
        tiles_release();
    }
    return LS_OK;
}

static int usable(ls_dtype ab_dtype, ls_dtype c_dtype)
{
    (void)c_dtype;
    return ab_dtype == LS_DTYPE_BF16 && ls_cpu_features_discover()->amx_bf16;
}

const ls_matmul_kernel ls_matmul_kernel_amx = {"amx-bf16", usable, workspace_bytes, run};
