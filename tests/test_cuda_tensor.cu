/*
 * test_cuda_tensor.cu - the warp's instructions of tensor.cuh against the fragment tables of the
 * PTX ISA: where each element of mma's operands lies, what ldmatrix gives to whom, when cp.async's
 * data are there; and that the swizzled tiles meet no bank twice.
 *
 * The emulated GPU is what runs here, so the tests of the attention kernels are worth what it is.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "emulation.h"
#include "rng.h"
#include "tensor.cuh"

enum { WARP = 32, SEEDS = 5 };

/* ---- running -------------------------------------------------------------------------------- */

/* Host memory that a kernel works on as its only operand. */
template <typename... A>
static void run(void (*kernel)(unsigned *, A...), unsigned *data, size_t words, size_t shared_bytes,
                unsigned threads, A... args)
{
    void *device;
    cudaStream_t stream;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMalloc(&device, words * sizeof *data), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(device, data, words * sizeof *data, cudaMemcpyDefault, stream),
                     cudaSuccess);
    assert_int_equal(ls_launch("test", kernel, dim3(1), dim3(threads), shared_bytes, stream,
                               static_cast<unsigned *>(device), args...),
                     LS_OK);
    assert_int_equal(cudaMemcpyAsync(data, device, words * sizeof *data, cudaMemcpyDefault, stream),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
}

/* ---- mma: "Matrix Fragments for mma.m16n8k16 with floating point type" -----------------------
 */

struct place {
    int row, column;
};

/* Element i of a lane's fragment of A: .bf16, a0 .. a7. */
static place place_in_a(int lane, int i)
{
    const int group = lane >> 2, in_group = lane % 4;
    return {(0 <= i && i < 2) || (4 <= i && i < 6) ? group : group + 8,
            i < 4 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8};
}

/* b0 .. b3 */
static place place_in_b(int lane, int i)
{
    const int group = lane >> 2, in_group = lane % 4;
    return {i < 2 ? in_group * 2 + (i & 1) : in_group * 2 + (i & 1) + 8, group};
}

/* c0 .. c3 */
static place place_in_c(int lane, int i)
{
    const int group = lane >> 2, in_group = lane % 4;
    return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}

/* An integer as bf16, which holds it exactly. */
static unsigned bf16_of(int value)
{
    const float x = static_cast<float>(value);
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 16;
}

__global__ void multiply(unsigned *data) /* [32][4 of a, 2 of b, 4 of d] */
{
    unsigned *mine = data + 10 * threadIdx.x;
    unsigned a[4], b[2];
    float d[4];
    for (int i = 0; i < 4; i++) a[i] = mine[i];
    for (int i = 0; i < 2; i++) b[i] = mine[4 + i];
    for (int i = 0; i < 4; i++) d[i] = __uint_as_float(mine[6 + i]);
    ls_mma(d, a, b);
    for (int i = 0; i < 4; i++) mine[6 + i] = __float_as_uint(d[i]);
}

static void mma_multiplies_the_tables(void **)
{
    int a[16][16], b[16][8], c[16][8];
    unsigned data[WARP][10];
    for (uint64_t i = 0; i < 256; i++)
        (&a[0][0])[i] = static_cast<int>(ls_rng_below(1, 1, i, 61)) - 30;
    for (uint64_t i = 0; i < 128; i++)
        (&b[0][0])[i] = static_cast<int>(ls_rng_below(1, 2, i, 61)) - 30;
    for (uint64_t i = 0; i < 128; i++)
        (&c[0][0])[i] = static_cast<int>(ls_rng_below(1, 3, i, 2001)) - 1000;
    memset(data, 0, sizeof data);
    for (int lane = 0; lane < WARP; lane++) {
        for (int i = 0; i < 8; i++) {
            const place at = place_in_a(lane, i);
            data[lane][i / 2] |= bf16_of(a[at.row][at.column]) << 16 * (i % 2);
        }
        for (int i = 0; i < 4; i++) {
            const place at = place_in_b(lane, i);
            data[lane][4 + i / 2] |= bf16_of(b[at.row][at.column]) << 16 * (i % 2);
        }
        for (int i = 0; i < 4; i++) {
            const place at = place_in_c(lane, i);
            const float value = static_cast<float>(c[at.row][at.column]);
            memcpy(&data[lane][6 + i], &value, sizeof value);
        }
    }
    run(multiply, &data[0][0], sizeof data / 4, 0, WARP);
    for (int lane = 0; lane < WARP; lane++)
        for (int i = 0; i < 4; i++) {
            const place at = place_in_c(lane, i);
            int sum = c[at.row][at.column];
            float value;
            for (int k = 0; k < 16; k++) sum += a[at.row][k] * b[k][at.column];
            memcpy(&value, &data[lane][6 + i], sizeof value);
            assert_int_equal(static_cast<int>(value), sum);
        }
}

/* ---- ldmatrix -------------------------------------------------------------------------------- */

enum { MATRICES = 4, ROWS_SHARED = 32 /* of 16 bytes */ };

/* Which row of shared memory a lane's address names: no order that would hide a mistake. */
LS_DEVICE unsigned row_of_lane(unsigned lane)
{
    return (lane * 11 + 5) % ROWS_SHARED;
}

/* Element c of row r of shared memory is 8 r + c. */
LS_DEVICE void fill_rows(unsigned char *shared)
{
    for (unsigned i = threadIdx.x; i < ROWS_SHARED * 4; i += WARP)
        reinterpret_cast<unsigned *>(shared)[i] = (2 * i + 1) << 16 | 2 * i;
    __syncthreads();
}

__global__ void load_four(unsigned *data, bool transposed) /* [32][4] */
{
    LS_SHARED(unsigned char, shared);
    fill_rows(shared);
    const ls_shared_at row = ls_shared_address(shared) + row_of_lane(threadIdx.x) * 16;
    unsigned r[4];
    if (transposed)
        ls_load_matrices_transposed(r, row);
    else
        ls_load_matrices(r, row);
    for (int i = 0; i < 4; i++) data[4 * threadIdx.x + static_cast<unsigned>(i)] = r[i];
}

/* "Each row of matrix m is given by the address of lane 8 m + row; lane i receives elements
 * 2 (i % 4) and 2 (i % 4) + 1 of row i / 4", or, transposed, of column i / 4. */
static void check_matrices(const unsigned *data, int n, bool transposed)
{
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned m = 0; m < static_cast<unsigned>(n); m++)
            for (unsigned half = 0; half < 2; half++) {
                const unsigned along = 2 * (lane % 4) + half;
                const unsigned row = transposed ? along : lane / 4;
                const unsigned column = transposed ? lane / 4 : along;
                const unsigned value = data[lane * MATRICES + m] >> 16 * half & 0xffff;
                assert_int_equal(value, row_of_lane(8 * m + row) * 8 + column);
            }
}

static void ldmatrix_gives_rows_and_columns(void **)
{
    unsigned data[WARP * MATRICES];
    for (int transposed = 0; transposed < 2; transposed++) {
        memset(data, 0xff, sizeof data);
        run(load_four, data, WARP * MATRICES, ROWS_SHARED * 16, WARP, transposed != 0);
        check_matrices(data, 4, transposed != 0);
    }
}

/* x1 and x2 read the addresses of the first 8 and 16 lanes; those of the others mean nothing. */
__global__ void load_fewer(unsigned *data, int n, bool transposed)
{
    LS_SHARED(unsigned char, shared);
    fill_rows(shared);
    const bool has_row = threadIdx.x < static_cast<unsigned>(8 * n);
    unsigned r[2] = {0, 0};
    ls_emulated_ldmatrix(r, n, transposed,
                         has_row ? shared + row_of_lane(threadIdx.x) * 16 : nullptr, __FILE__,
                         __LINE__);
    for (int i = 0; i < n; i++) data[4 * threadIdx.x + static_cast<unsigned>(i)] = r[i];
}

static void ldmatrix_of_one_or_two(void **)
{
    unsigned data[WARP * MATRICES];
    for (int n = 1; n <= 2; n++)
        for (int transposed = 0; transposed < 2; transposed++) {
            memset(data, 0xff, sizeof data);
            run(load_fewer, data, WARP * MATRICES, ROWS_SHARED * 16, WARP, n, transposed != 0);
            check_matrices(data, n, transposed != 0);
        }
}

/* ---- cp.async -------------------------------------------------------------------------------- */

enum { COPY_WORDS = 64, NAN_BITS = 0xffffffff };

/* Three groups of one 16-byte copy; what shared memory holds after each wait.
 * data: [0, 16) the source; [16, 64) shared memory before a wait, with one group left, at the end
 */
__global__ void copy_groups(unsigned *data)
{
    LS_SHARED(unsigned, shared);
    for (int i = 0; i < 16; i++) shared[i] = 7;
    for (int group = 0; group < 3; group++) {
        ls_emulated_copy_async(shared + 4 * group, data + 4 * group, 16, group == 1 ? 8 : 16,
                               __FILE__, __LINE__);
        ls_emulated_copy_async_commit();
    }
    ls_emulated_copy_async(shared + 12, data + 12, 4, 4, __FILE__, __LINE__); /* of no group */
    for (int i = 0; i < 16; i++) data[16 + i] = shared[i];
    ls_emulated_copy_async_wait(1);
    for (int i = 0; i < 16; i++) data[32 + i] = shared[i];
    ls_copies_wait();
    for (int i = 0; i < 16; i++) data[48 + i] = shared[i];
}

static void copies_arrive_with_their_groups(void **)
{
    unsigned data[COPY_WORDS];
    for (unsigned i = 0; i < COPY_WORDS; i++) data[i] = 100 + i;
    run(copy_groups, data, COPY_WORDS, 64, 1);
    for (unsigned i = 0; i < 13; i++) {
        const unsigned value = i / 4 == 1 && i % 4 >= 2 ? 0 : 100 + i; /* the rest is zeroed */
        assert_int_equal(data[16 + i], NAN_BITS);
        assert_int_equal(data[32 + i], i < 8 ? value : NAN_BITS);
        assert_int_equal(data[48 + i], i < 12 ? value : NAN_BITS);
    }
    for (unsigned i = 13; i < 16; i++) assert_int_equal(data[48 + i], 7);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

enum { TILE_ROWS = 64, TILE_THREADS = 128, HEADS = 3, HEAD = 1 };

/* Copies a tile of [TILE_ROWS + 1, HEADS, K], rows 1 .. 64 of one head without row 40, and reads it
 * by both patterns.  data: x, then for each pattern, 16 rows and 16 columns, [32][4]. */
template <int K> __global__ void read_tile(unsigned *data)
{
    LS_SHARED(unsigned char, shared);
    const ls_shared_at tile = ls_shared_address(shared);
    const int lane = static_cast<int>(threadIdx.x) % WARP;
    const int words = (TILE_ROWS + 1) * HEADS * K / 2;
    ls_copy_tiles<K, TILE_ROWS, TILE_THREADS, 1>(tile, reinterpret_cast<const ls_bf16x *>(data),
                                                 nullptr, 1, 0, 40, HEADS, HEAD);
    ls_copies_commit();
    ls_copies_wait();
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    unsigned *to = data + words + 4 * lane;
    for (int row = 0; row < TILE_ROWS; row += 16)
        for (int i = 0; i < K / 16; i++, to += 3 * 4 * WARP) {
            unsigned r[3][4];
            ls_load_matrices(r[0],
                             ls_right(ls_down<K>(tile + ls_rows_then_words<K>(lane), row), i));
            ls_load_matrices(r[1],
                             ls_right(ls_down<K>(tile + ls_words_then_rows<K>(lane), row), i));
            ls_load_matrices_transposed(
                r[2], ls_right(ls_down<K>(tile + ls_rows_then_words<K>(lane), row), i));
            for (int j = 0; j < 12; j++) to[j / 4 * 4 * WARP + j % 4] = r[j / 4][j % 4];
        }
}

/* The bits of element (row, column) of the tile. */
template <int K> static unsigned tile_element(const unsigned *data, int row, int column)
{
    if (1 + row >= 40) return 0; /* beyond the end */
    const int at = ((1 + row) * HEADS + HEAD) * K + column;
    return data[at / 2] >> 16 * (at % 2) & 0xffff;
}

/* As fragments of a: row and column as the table says.  As fragments of b of a tile whose rows are
 * b's columns: two tiles of 8 of them.  As fragments of b whose rows are the tile's. */
template <int K> static void check_tile(const unsigned *data, const unsigned *read)
{
    for (int row = 0; row < TILE_ROWS; row += 16)
        for (int column = 0; column < K; column += 16, read += 3 * 4 * WARP)
            for (int lane = 0; lane < WARP; lane++)
                for (int i = 0; i < 8; i++) {
                    const auto value = [&](int pattern) {
                        return read[(pattern * WARP + lane) * 4 + i / 2] >> 16 * (i % 2) & 0xffff;
                    };
                    const place a = place_in_a(lane, i), b = place_in_b(lane, i % 4);
                    assert_int_equal(value(0),
                                     (tile_element<K>(data, row + a.row, column + a.column)));
                    assert_int_equal(value(1), (tile_element<K>(data, row + i / 4 * 8 + b.column,
                                                                column + b.row)));
                    assert_int_equal(value(2), (tile_element<K>(data, row + b.row,
                                                                column + i / 4 * 8 + b.column)));
                }
}

template <int K> static void check_width()
{
    const size_t words = (TILE_ROWS + 1) * HEADS * K / 2;
    const size_t read = TILE_ROWS / 16 * (K / 16) * 3 * 4 * WARP;
    unsigned *data = static_cast<unsigned *>(malloc((words + read) * sizeof *data));
    assert_non_null(data);
    for (uint64_t i = 0; i < words; i++)
        data[i] = static_cast<unsigned>(ls_rng_below(3, K, i, 1u << 31));
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        ls_emulation_seed(seed);
        memset(data + words, 0xff, read * sizeof *data);
        run(read_tile<K>, data, words + read, TILE_ROWS * 2 * K, TILE_THREADS);
        check_tile<K>(data, data + words);
    }
    free(data);
}

static void tiles_give_fragments_without_conflicts(void **)
{
    const ls_emulation_counts before = ls_emulation_count();
    check_width<64>();
    check_width<128>();
    const ls_emulation_counts after = ls_emulation_count();
    assert_true(after.matrix_loads > before.matrix_loads);
    assert_int_equal(after.matrix_conflicts, before.matrix_conflicts);
}

/* Rows of 128 bytes as they come: the word of all 8 lies in the same banks. */
__global__ void load_unswizzled(unsigned *data)
{
    LS_SHARED(unsigned char, shared);
    unsigned r[4];
    memset(shared + 128 * threadIdx.x, 0, 128);
    __syncwarp();
    ls_load_matrices(r, ls_shared_address(shared) + 128 * threadIdx.x);
    data[threadIdx.x] = r[0];
}

static void conflicts_are_counted(void **)
{
    unsigned data[WARP];
    const ls_emulation_counts before = ls_emulation_count();
    memset(data, 0xff, sizeof data);
    run(load_unswizzled, data, WARP, 128 * WARP, WARP);
    assert_int_equal(ls_emulation_count().matrix_conflicts - before.matrix_conflicts, 4 * 7);
}

/* ---- what the hardware refuses --------------------------------------------------------------- */

enum misuse {
    ROW_NOT_ALIGNED,
    ROW_ELSEWHERE,
    COPY_NOT_ALIGNED,
    COPY_OF_12,
    COPY_ELSEWHERE,
    N_MISUSES
};

__global__ void misuse_memory(unsigned *data, int how)
{
    LS_SHARED(unsigned char, shared);
    unsigned r[4] = {0, 0, 0, 0};
    switch (how) {
    case ROW_NOT_ALIGNED: ls_load_matrices(r, ls_shared_address(shared) + 8); break;
    case ROW_ELSEWHERE: ls_load_matrices(r, ls_shared_address(data)); break;
    case COPY_NOT_ALIGNED: ls_copy16_async(ls_shared_address(shared), data + 1, true); break;
    case COPY_OF_12: ls_emulated_copy_async(shared, data, 12, 12, __FILE__, __LINE__); break;
    default: ls_copy4_async(ls_shared_address(data), data, true); break;
    }
    data[threadIdx.x] = r[0];
}

static void misuse_ends_the_program(void **)
{
    for (int how = 0; how < N_MISUSES; how++) {
        const pid_t child = fork();
        if (child == 0) {
            unsigned data[WARP] = {0};
            (void)!freopen("/dev/null", "w", stderr);
            signal(SIGABRT, SIG_DFL);
            run(misuse_memory, data, WARP, 128, WARP, how);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mma_multiplies_the_tables),
        cmocka_unit_test(ldmatrix_gives_rows_and_columns),
        cmocka_unit_test(ldmatrix_of_one_or_two),
        cmocka_unit_test(copies_arrive_with_their_groups),
        cmocka_unit_test(tiles_give_fragments_without_conflicts),
        cmocka_unit_test(conflicts_are_counted),
        cmocka_unit_test(misuse_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
