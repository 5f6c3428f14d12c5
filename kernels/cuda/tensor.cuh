/*
 * tensor.cuh - what the tensor-core kernels ask of a warp: products of 16x8x16 bf16 tiles, loads
 * of their fragments from shared memory, asynchronous copies into it (PTX ISA: mma, ldmatrix,
 * cp.async), and the swizzle that keeps all of these free of bank conflicts.
 *
 *     a lane's part of a product d [16, 8] += a [16, 16] b [16, 8];  g = lane / 4, t = lane % 4
 *       a: rows g, g + 8, columns 2t, 2t + 1 and 2t + 8, 2t + 9
 *       b: rows 2t, 2t + 1 and 2t + 8, 2t + 9, column g
 *       d: rows g, g + 8, columns 2t, 2t + 1
 *
 * A tile in shared memory is rows of K bf16 elements; the 16-byte word w of row r lies at word
 * w ^ (r % 8).  So 8 rows of one word, which a matrix load reads at once, lie in different banks,
 * and so do 8 words of one row, which a copy writes.  Tiles begin at multiples of 256 bytes: an
 * address of word 0 of a row, with other bits set, is that of another word.
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_TENSOR_CUH
#define LS_TENSOR_CUH

#include "element.cuh"

enum { LS_WORD_BYTES = 16, LS_TILE_ALIGN = 256 };

#if defined(__CUDACC__)

typedef unsigned ls_shared_at; /* an address in shared memory */

LS_DEVICE ls_shared_at ls_shared_address(const void *shared)
{
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/* Copy 16 bytes without waiting; valid: else the destination becomes 0 and nothing is read. */
LS_DEVICE void ls_copy16_async(ls_shared_at to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

LS_DEVICE void ls_copy4_async(ls_shared_at to, const void *from, bool valid)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}

/* Close the group of this thread's copies since the last one. */
LS_DEVICE void ls_copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for all of this thread's groups; others see their copies after a barrier. */
LS_DEVICE void ls_copies_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* Four 8x8 matrices; lane i gives row i % 8 of matrix i / 8. */
LS_DEVICE void ls_load_matrices(unsigned (&r)[4], ls_shared_at row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

LS_DEVICE void ls_load_matrices_transposed(unsigned (&r)[4], ls_shared_at row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

/* d += a b; b is two registers from b on. */
LS_DEVICE void ls_mma(float (&d)[4], const unsigned (&a)[4], const unsigned *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two elements, the first in the low half; nearest, ties to even. */
LS_DEVICE unsigned ls_pack(float low, float high)
{
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

/* 2^x to 2 ulp; 0 of -inf.  One instruction. */
LS_DEVICE float ls_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else /* the emulation's words for the same */

typedef uintptr_t ls_shared_at;

#define ls_shared_address(shared) reinterpret_cast<uintptr_t>(shared)
#define ls_emulated_at(at)        reinterpret_cast<void *>(at)
#define ls_copy16_async(to, from, valid)                                                           \
    ls_emulated_copy_async(ls_emulated_at(to), (from), 16, (valid) ? 16 : 0, __FILE__, __LINE__)
#define ls_copy4_async(to, from, valid)                                                            \
    ls_emulated_copy_async(ls_emulated_at(to), (from), 4, (valid) ? 4 : 0, __FILE__, __LINE__)
#define ls_copies_commit() ls_emulated_copy_async_commit()
#define ls_copies_wait()   ls_emulated_copy_async_wait(0)
#define ls_load_matrices(r, row)                                                                   \
    ls_emulated_ldmatrix((r), 4, false, ls_emulated_at(row), __FILE__, __LINE__)
#define ls_load_matrices_transposed(r, row)                                                        \
    ls_emulated_ldmatrix((r), 4, true, ls_emulated_at(row), __FILE__, __LINE__)
#define ls_mma(d, a, b) ls_emulated_mma((d), (a), (b), __FILE__, __LINE__)

LS_DEVICE unsigned ls_pack(float low, float high)
{
    ls_bf16x halves[2];
    ls_narrow(&halves[0], low);
    ls_narrow(&halves[1], high);
    return static_cast<unsigned>(halves[1].bits) << 16 | halves[0].bits;
}

LS_DEVICE float ls_exp2(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

#endif

/* ---- tiles in shared memory ------------------------------------------------------------------
 */

/* Where a lane reads fragments from: word 0 of its row, and which word of two it begins with.
 *   rows, words:  lane i has row i % 16 and word i / 16     (a; transposed: b)
 *   words, rows:  lane i has row i % 8 + 8 (i / 16) and word i / 8 % 2     (b) */
template <int K> LS_DEVICE unsigned ls_rows_then_words(int lane)
{
    return static_cast<unsigned>(lane % 16 * (2 * K) + ((lane / 16) ^ (lane % 8)) * LS_WORD_BYTES);
}

template <int K> LS_DEVICE unsigned ls_words_then_rows(int lane)
{
    return static_cast<unsigned>((lane % 8 + lane / 16 * 8) * (2 * K) +
                                 ((lane / 8 % 2) ^ (lane % 8)) * LS_WORD_BYTES);
}

/* From such an address: the fragment 16 elements to the right, n times; and n rows down. */
LS_DEVICE ls_shared_at ls_right(ls_shared_at at, int n)
{
    return at ^ static_cast<unsigned>(n * 2 * LS_WORD_BYTES);
}

template <int K> LS_DEVICE ls_shared_at ls_down(ls_shared_at at, int rows)
{
    return at + static_cast<unsigned>(rows * 2 * K);
}

/* Begin to copy rows first .. first + ROWS of TENSORS of x and y [rows, heads, K], those of one
 * head, to as many tiles; 0 where a row is not one of begin .. end. */
template <int K, int ROWS, int THREADS, int TENSORS>
LS_DEVICE void ls_copy_tiles(ls_shared_at tile, const ls_bf16x *x, const ls_bf16x *y, int first,
                             int begin, int end, int heads, int head)
{
    enum { WORDS = 2 * K / LS_WORD_BYTES, STEP = THREADS / WORDS };
    static_assert(STEP % 8 == 0 && ROWS % STEP == 0, "a thread's rows share their swizzle");
    const int word = static_cast<int>(threadIdx.x) % WORDS;
    const int row = static_cast<int>(threadIdx.x) / WORDS;
    const ls_shared_at to =
        tile + static_cast<unsigned>(row * 2 * K + (word ^ (row % 8)) * LS_WORD_BYTES);
    int64_t at = static_cast<int64_t>(first + row) * (heads * K) + (head * K + word * LS_EIGHT);
    LS_UNROLL
    for (int i = 0; i < ROWS / STEP; i++, at += STEP * heads * K) {
        const bool valid = first + row + i * STEP >= begin && first + row + i * STEP < end;
        ls_copy16_async(ls_down<K>(to, i * STEP), x + at, valid);
        if (TENSORS == 2) ls_copy16_async(ls_down<K>(to, i * STEP + ROWS), y + at, valid);
    }
}

#endif
