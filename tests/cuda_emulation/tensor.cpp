/*
 * tensor.cpp - ldmatrix, mma and cp.async as the PTX ISA words them, for one warp at a time.
 *
 * A matrix load counts the rows that meet a bank which another row of the same 8x8 matrix has
 * taken: each costs another turn of shared memory.  A copy does not arrive before a wait for its
 * group; until then its destination holds NaN, so that what reads too early, or has not read yet
 * what the copy overwrites, is seen.
 */
#include <deque>

#include "cuda_emulation.h"
#include "internal.h"

namespace
{

enum { THREADS_MAX = 1024, WARP = 32, ROWS = 8, ROW_BYTES = 16, POISON = 0xff };

struct copy {
    char *to;
    const char *from;
    int bytes, from_global;
};

struct copies {
    std::deque<std::deque<copy>> groups; /* committed, the oldest first */
    std::deque<copy> open;
};

copies in_flight[THREADS_MAX];

const char *row_of(const ls_emulated_words *lanes, int matrix, int row)
{
    return reinterpret_cast<const char *>(lanes[matrix * ROWS + row].word[0]);
}

uint16_t element(const ls_emulated_words *lanes, int matrix, int row, int column)
{
    uint16_t value;
    std::memcpy(&value, row_of(lanes, matrix, row) + 2 * column, sizeof value);
    return value;
}

/* Eight rows of 16 bytes cross all 32 banks at once if no two of them share four banks. */
void count_conflicts(const ls_emulated_words *lanes, int matrix)
{
    unsigned taken = 0;
    for (int row = 0; row < ROWS; row++) {
        const unsigned banks = 1u << (lanes[matrix * ROWS + row].word[0] / ROW_BYTES % ROWS);
        ls_emulated_counts.matrix_conflicts += (taken & banks) != 0;
        taken |= banks;
    }
    ls_emulated_counts.matrix_loads++;
}

void check_rows(const ls_emulated_words *lanes, int n, const char *file, int line)
{
    for (int i = 0; i < n * ROWS; i++) {
        const void *row = row_of(lanes, i / ROWS, i % ROWS);
        if (lanes[i].word[0] % ROW_BYTES != 0 || !ls_emulated_in_shared(row, ROW_BYTES))
            ls_emulated_abort("%s:%d: the row of lane %d is not 16 aligned bytes of shared memory",
                              file, line, i);
    }
}

/* The elements k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of a row of a or a column of b, which the lane
 * with that t holds in two of its registers. */
void widen(float *x, unsigned low, unsigned high)
{
    x[0] = __uint_as_float(low << 16);
    x[1] = __uint_as_float(low & 0xffff0000u);
    x[2] = __uint_as_float(high << 16);
    x[3] = __uint_as_float(high & 0xffff0000u);
}

/* What lanes 4 row + t and 4 column + t, for one t, add to a lane's four elements of d: rows
 * `row` and 8 more, two columns from `column` on. */
void add_products(float *d, const ls_emulated_words *lanes, unsigned row, unsigned column,
                  unsigned t)
{
    float a[2][4], b[2][4];
    unsigned of_a[4], of_b[2];
    std::memcpy(of_a, lanes[row * 4 + t].word, sizeof of_a);
    for (unsigned half = 0; half < 2; half++) {
        widen(a[half], of_a[half], of_a[half + 2]);
        std::memcpy(of_b, &lanes[(column + half) * 4 + t].word[2], sizeof of_b);
        widen(b[half], of_b[0], of_b[1]);
    }
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++) d[i] += a[i / 2][k] * b[i % 2][k];
}

void land(const copy &c)
{
    std::memcpy(c.to, c.from, static_cast<size_t>(c.from_global));
    std::memset(c.to + c.from_global, 0, static_cast<size_t>(c.bytes - c.from_global));
}

} // namespace

void ls_emulated_ldmatrix(unsigned *registers, int n, bool transposed, const void *row,
                          const char *file, int line)
{
    const unsigned lane = ls_emulated_lane(~0u, file, line);
    const ls_emulated_words *lanes =
        ls_emulated_exchange(~0u, {{reinterpret_cast<uintptr_t>(row), 0, 0}}, file, line);
    if (lane == 0) check_rows(lanes, n, file, line);
    for (int m = 0; m < n; m++) {
        const int at = static_cast<int>(lane / 4), pair = static_cast<int>(lane % 4) * 2;
        const unsigned low = transposed ? element(lanes, m, pair, at) : element(lanes, m, at, pair);
        const unsigned high =
            transposed ? element(lanes, m, pair + 1, at) : element(lanes, m, at, pair + 1);
        registers[m] = high << 16 | low;
        if (lane == 0) count_conflicts(lanes, m);
    }
}

/* Products are exact; the order of the sum is the hardware's own. */
void ls_emulated_mma(float *d, const unsigned *a, const unsigned *b, const char *file, int line)
{
    const unsigned lane = ls_emulated_lane(~0u, file, line);
    ls_emulated_words mine;
    std::memcpy(mine.word, a, 16);
    std::memcpy(mine.word + 2, b, 8);
    const ls_emulated_words *lanes = ls_emulated_exchange(~0u, mine, file, line);
    for (unsigned t = 0; t < 4; t++) add_products(d, lanes, lane / 4, lane % 4 * 2, t);
    ls_emulated_counts.mmas += lane == 0;
}

/* ---- asynchronous copies ---------------------------------------------------------------------
 */

void ls_emulated_copies_reset(unsigned n_threads)
{
    for (unsigned i = 0; i < n_threads; i++) {
        in_flight[i].groups.clear();
        in_flight[i].open.clear();
    }
}

void ls_emulated_copy_async(void *shared, const void *global, int bytes, int from_global,
                            const char *file, int line)
{
    const uintptr_t size = static_cast<uintptr_t>(bytes);
    if ((bytes != 4 && bytes != 8 && bytes != 16) || from_global < 0 || from_global > bytes)
        ls_emulated_abort("%s:%d: a copy of %d bytes, %d of them from global memory", file, line,
                          bytes, from_global);
    if (reinterpret_cast<uintptr_t>(shared) % size != 0 ||
        reinterpret_cast<uintptr_t>(global) % size != 0)
        ls_emulated_abort("%s:%d: a copy of %d bytes between addresses aligned to less", file, line,
                          bytes);
    if (!ls_emulated_in_shared(shared, size))
        ls_emulated_abort("%s:%d: a copy to what is not shared memory", file, line);
    std::memset(shared, POISON, size);
    in_flight[ls_emulated_thread_number()].open.push_back(
        {static_cast<char *>(shared), static_cast<const char *>(global), bytes, from_global});
    ls_emulated_counts.copies_async++;
}

void ls_emulated_copy_async_commit()
{
    copies &c = in_flight[ls_emulated_thread_number()];
    c.groups.push_back(std::move(c.open));
    c.open.clear();
}

void ls_emulated_copy_async_wait(int groups_left)
{
    copies &c = in_flight[ls_emulated_thread_number()];
    while (c.groups.size() > static_cast<size_t>(groups_left)) {
        for (const copy &one : c.groups.front()) land(one);
        c.groups.pop_front();
    }
}
