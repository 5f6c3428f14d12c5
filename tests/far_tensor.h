/*
 * far_tensor.h - tensors of more than 2^31 elements in a few megabytes of memory.
 *
 *   | no access | own | filler | filler | filler | own | filler | .. | filler | own | no access |
 *               ^ data                            rows at an edge                   ^ data + n
 *
 * All of the filler is the same FILLER_BYTES of one file, mapped again and again, and holds one
 * value; rows where an index might wrap, and the tensor's ends, have pages of their own.  An op
 * thus walks every element at the speed of a cache, and what it reads or writes there can be told
 * apart from what it reads or writes elsewhere.  An index of 32 bits with a sign lands in front of
 * data, where nothing may be touched: the program ends by a signal.
 *
 * An op may write to the filler if it writes one value to all of it; threads then store the same
 * value to the same bytes, which the hardware allows.  (What the kernel calls the resident set
 * counts the filler as often as it is mapped.)
 *
 * Layer: tests.  Header only; Linux (memfd_create).  Include before any other header.
 */
#ifndef LS_FAR_TENSOR_H
#define LS_FAR_TENSOR_H

#define _GNU_SOURCE /* NOLINT: the libc's name; for memfd_create */
#include <sys/mman.h>
#include <unistd.h>

#include "ops_test.h"

enum { FILLER_BYTES = 4 << 20, EDGE_ROWS_MAX = 512 };

typedef struct far_tensor {
    char *data;
    int64_t n;
    ls_dtype dtype;
    double filler; /* what it is made with */
    char *base;    /* of the reserved addresses */
    size_t reserved;
    char *once; /* the filler's bytes, mapped once more */
} far_tensor;

static inline size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static inline size_t round_to_pages(size_t bytes)
{
    return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

static inline void *map_or_abort(void *at, size_t bytes, int access, int flags, int file)
{
    void *mapped = mmap(at, bytes, access, flags, file, 0);
    if (mapped != MAP_FAILED) return mapped;
    perror("mmap of a far tensor");
    abort();
}

/* A file whose first `bytes`, or all, are `filler`. */
static inline int make_filler(far_tensor *t, size_t bytes)
{
    const int file = memfd_create("filler", MFD_CLOEXEC);
    const size_t size = ls_dtype_bytes(t->dtype);

    if (file < 0 || ftruncate(file, FILLER_BYTES) != 0) {
        perror("memfd_create of a far tensor");
        abort();
    }
    t->once = map_or_abort(NULL, FILLER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file);
    const int64_t n = (int64_t)((bytes < FILLER_BYTES ? bytes : FILLER_BYTES) / size);
    for (int64_t i = 0; i < n; i++) put(t->once, i, t->dtype, t->filler);
    return file;
}

/* n elements of one value; release with free_far(). */
static inline far_tensor make_far(int64_t n, ls_dtype dtype, double filler)
{
    far_tensor t = {.n = n, .dtype = dtype, .filler = filler};
    const size_t bytes = round_to_pages((size_t)n * ls_dtype_bytes(dtype));
    const size_t before = round_to_pages(bytes + FILLER_BYTES), behind = before;
    const int file = make_filler(&t, bytes);

    t.reserved = before + bytes + behind;
    t.base =
        map_or_abort(NULL, t.reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    t.data = t.base + before;
    for (size_t at = 0; at < bytes; at += FILLER_BYTES)
        map_or_abort(t.data + at, bytes - at < FILLER_BYTES ? bytes - at : FILLER_BYTES,
                     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, file);
    close(file);
    return t;
}

/* Give elements [first, first + n) pages of their own, which hold the filler's value; what the
 * pages held before is lost. */
static inline void own_elements(far_tensor *t, int64_t first, int64_t n)
{
    const size_t size = ls_dtype_bytes(t->dtype), page = page_bytes();
    const size_t begin = (size_t)first * size / page * page;
    const size_t end = round_to_pages((size_t)(first + n) * size);

    map_or_abort(t->data + begin, end - begin, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
    for (size_t i = begin / size; i < end / size; i++)
        put(t->data, (int64_t)i, t->dtype, t->filler);
}

static inline void free_far(far_tensor *t)
{
    munmap(t->base, t->reserved);
    munmap(t->once, FILLER_BYTES);
}

static inline void free_fars(far_tensor *const *tensors, int64_t n)
{
    for (int64_t i = 0; i < n; i++) free_far(tensors[i]);
}

/* ---- rows at an edge ------------------------------------------------------------------------- */

/* Rows of a tensor [N, D] near which an index may wrap, ascending. */
typedef struct edge_rows {
    int64_t rows[EDGE_ROWS_MAX], n, N, D;
} edge_rows;

static inline void add_edge(edge_rows *e, int64_t centre, int64_t radius)
{
    for (int64_t row = centre - radius; row < centre + radius; row++) {
        if (row < 0 || row >= e->N || (e->n > 0 && row <= e->rows[e->n - 1])) continue;
        assert_true(e->n < EDGE_ROWS_MAX);
        e->rows[e->n++] = row;
    }
}

/* The first and the last rows; those at row 2^16; those at element 2^16, 2^31 (and, in bytes of 2
 * and 4, at 2^30, 2^29, ...). */
static inline edge_rows find_edges(int64_t N, int64_t D)
{
    edge_rows e = {.N = N, .D = D};
    const int64_t radius = D >= 8 ? 2 : 16;
    int64_t centres[32], n = 0;

    centres[n++] = 0;
    centres[n++] = (int64_t)1 << 16;
    centres[n++] = N;
    for (int bits = 14; bits <= 31; bits++)
        if (bits <= 16 || bits >= 29) centres[n++] = ((int64_t)1 << bits) / D;
    for (int64_t done = -1; n > 0;) { /* in ascending order */
        int64_t least = 0;
        for (int64_t i = 1; i < n; i++)
            if (centres[i] < centres[least]) least = i;
        if (centres[least] > done) add_edge(&e, done = centres[least], radius);
        centres[least] = centres[--n];
    }
    return e;
}

/* A tensor [N, D] of one value whose edge rows are its own. */
static inline far_tensor make_far_rows(const edge_rows *e, ls_dtype dtype, double filler)
{
    far_tensor t = make_far(e->N * e->D, dtype, filler);
    for (int64_t i = 0; i < e->n; i++) own_elements(&t, e->rows[i] * e->D, e->D);
    own_elements(&t, (e->N - 1) * e->D, e->D); /* what lies behind is looked at */
    return t;
}

static inline void expect_at(const far_tensor *t, int64_t at, double value, const char *what)
{
    const double actual = get(t->data, at, t->dtype);
    if (actual != value && !(isnan(actual) && isnan(value)))
        fail_msg("%s: element %lld of %lld is %.9g, not %.9g", what, (long long)at, (long long)t->n,
                 actual, value);
}

/* What is no edge row holds this value, and behind the tensor its last page what it was made with.
 * (A tensor of several fillers is looked at through the file.) */
static inline void assert_rest(const far_tensor *t, const edge_rows *e, double value)
{
    const int64_t size = (int64_t)ls_dtype_bytes(t->dtype), in_filler = FILLER_BYTES / size;
    const int64_t end = (int64_t)round_to_pages((size_t)(t->n * size)) / size;
    int64_t edge = 0;

    if (t->n > 4 * in_filler) {
        const far_tensor file = {.data = t->once, .n = in_filler, .dtype = t->dtype};
        for (int64_t i = 0; i < in_filler; i++) expect_at(&file, i, value, "all the rest");
    } else {
        for (int64_t row = 0; row < e->N; row++) {
            if (edge < e->n && e->rows[edge] == row) {
                edge++;
                continue;
            }
            for (int64_t d = 0; d < e->D; d++) expect_at(t, row * e->D + d, value, "the rest");
        }
    }
    for (int64_t i = t->n; i < end; i++) expect_at(t, i, t->filler, "behind the end");
}

/* An integer in [-limit, limit] for each element of the edge rows. */
static inline void fill_edges(far_tensor *t, const edge_rows *e, uint64_t seed, int limit)
{
    for (int64_t i = 0; i < e->n * e->D; i++) {
        const int64_t at = e->rows[i / e->D] * e->D + i % e->D;
        put(t->data, at, t->dtype,
            (double)ls_rng_below(seed, 79, (uint64_t)at, 2 * (uint64_t)limit + 1) - limit);
    }
}

#endif
