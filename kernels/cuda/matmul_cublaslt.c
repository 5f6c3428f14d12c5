/*
 * matmul_cublaslt.c - matrix multiplication by cuBLASLt: bf16 or fp32 in, fp32 accumulation.
 *
 * cuBLASLt counts columns first, so C = A B of ours is its C^T = B^T A^T, with the same memory.
 * The algorithm for a shape is asked for once and kept.  Reductions in place are ruled out, since
 * their order is free; those by workspace have a fixed one.  A matrix of 2^31 elements or more is
 * cut: along M, or, where that does not help, along K, whose parts then add to C.
 * 2 M N K FLOPs; least bytes: A, B once, C once (twice if accumulated).  Bound by tensor cores.
 */
#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cublaslt.h"
#include "cuda_ops.h"

#define WORKSPACE_BYTES_MAX (UINT64_C(32) << 20) /* what NVIDIA advises for Hopper */

enum { SPLITS = 8, KEPT = 512, ALIGN_MAX = 256 };

/* What a kept algorithm was found for; compared as bytes. */
typedef struct shape {
    int64_t M, N, K;
    int32_t trans_a, trans_b, accumulate, ab_dtype, c_dtype;
    uint32_t align_a, align_b, align_c;
    uint64_t workspace_bytes;
} shape;

typedef struct kept {
    shape shape;
    cublasLtMatmulAlgo_t algorithm;
} kept;

int64_t ls_cuda_matmul_elements_max = INT32_MAX;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static ls_cublaslt lt;
static cublasLtHandle_t handle;
static kept cache[KEPT];
static int64_t n_kept;

static ls_status check(cublasStatus_t status, const char *what, const shape *s)
{
    if (status == CUBLAS_STATUS_SUCCESS) return LS_OK;
    return LS_FAIL(LS_ERR_DEVICE, "%s: %s for M %lld, N %lld, K %lld, transposed %d %d", what,
                   lt.GetStatusName(status), (long long)s->M, (long long)s->N, (long long)s->K,
                   (int)s->trans_a, (int)s->trans_b);
}

ls_status ls_cuda_matmul_open(void)
{
    ls_status status = LS_OK;

    pthread_mutex_lock(&mutex);
    if (handle == NULL) {
        status = ls_cublaslt_load(&lt);
        if (status == LS_OK && lt.Create(&handle) != CUBLAS_STATUS_SUCCESS)
            status = LS_FAIL(LS_ERR_DEVICE, "cublasLtCreate failed: is the GPU's driver as new as "
                                            "the toolkit?");
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

/* Enough for each of SPLITS parts of K to have its own C, where that is little. */
uint64_t ls_cuda_matmul_workspace_bytes(const ls_matmul_args *args)
{
    if (args->M == 0 || args->N == 0 || args->K == 0) return 0;
    const double wanted = (double)SPLITS * 4.0 * (double)args->M * (double)args->N;
    if (wanted >= (double)WORKSPACE_BYTES_MAX) return WORKSPACE_BYTES_MAX;
    return ((uint64_t)wanted + 255) / 256 * 256;
}

/* ---- one call ------------------------------------------------------------------------------- */

/* cuBLASLt's descriptions of one product: its a is our b. */
typedef struct description {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
} description;

/* The leading dimensions of our operands, which a part of a cut matrix keeps from the whole. */
typedef struct leading {
    int64_t a, b, c;
} leading;

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == LS_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasStatus_t layout(cublasLtMatrixLayout_t *made, int32_t dtype, int64_t rows,
                             int64_t cols, int64_t ld)
{
    return lt.MatrixLayoutCreate(made, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld);
}

static void close_description(const description *d)
{
    if (d->c != NULL) lt.MatrixLayoutDestroy(d->c);
    if (d->b != NULL) lt.MatrixLayoutDestroy(d->b);
    if (d->a != NULL) lt.MatrixLayoutDestroy(d->a);
    if (d->desc != NULL) lt.MatmulDescDestroy(d->desc);
}

static cublasStatus_t set_transposed(cublasLtMatmulDesc_t desc,
                                     cublasLtMatmulDescAttributes_t which, bool transposed)
{
    const int32_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    return lt.MatmulDescSetAttribute(desc, which, &op, sizeof op);
}

static ls_status describe(const shape *s, const leading *ld, description *d)
{
    const cublasStatus_t steps[] = {
        lt.MatmulDescCreate(&d->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        set_transposed(d->desc, CUBLASLT_MATMUL_DESC_TRANSA, s->trans_b != 0),
        set_transposed(d->desc, CUBLASLT_MATMUL_DESC_TRANSB, s->trans_a != 0),
        s->trans_b ? layout(&d->a, s->ab_dtype, s->K, s->N, ld->b)
                   : layout(&d->a, s->ab_dtype, s->N, s->K, ld->b),
        s->trans_a ? layout(&d->b, s->ab_dtype, s->M, s->K, ld->a)
                   : layout(&d->b, s->ab_dtype, s->K, s->M, ld->a),
        layout(&d->c, s->c_dtype, s->N, s->M, ld->c),
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        LS_TRY(check(steps[i], "description of a matmul", s));
    return LS_OK;
}

/* Sums in a fixed order alone: no reduction in place. */
static ls_status prefer(const shape *s, cublasLtMatmulPreference_t preference)
{
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &s->workspace_bytes, sizeof s->workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &s->align_b, sizeof s->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &s->align_a, sizeof s->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &s->align_c, sizeof s->align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &s->align_c, sizeof s->align_c},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++)
        LS_TRY(check(lt.MatmulPreferenceSetAttribute(preference, wishes[i].attribute,
                                                     wishes[i].value, wishes[i].bytes),
                     "preference of a matmul", s));
    return LS_OK;
}

static ls_status ask(const shape *s, const description *d, cublasLtMatmulAlgo_t *algorithm)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int n = 0;

    LS_TRY(check(lt.MatmulPreferenceCreate(&preference), "preference of a matmul", s));
    ls_status status = prefer(s, preference);
    if (status == LS_OK)
        status = check(lt.MatmulAlgoGetHeuristic(handle, d->desc, d->a, d->b, d->c, d->c,
                                                 preference, 1, &result, &n),
                       "algorithm of a matmul", s);
    lt.MatmulPreferenceDestroy(preference);
    LS_TRY(status);
    if (n == 0) return check(CUBLAS_STATUS_NOT_SUPPORTED, "algorithm of a matmul", s);
    *algorithm = result.algo;
    return LS_OK;
}

/* The algorithm for this shape, as it was found first. */
static ls_status choose(const shape *s, const description *d, cublasLtMatmulAlgo_t *algorithm)
{
    ls_status status = LS_OK;

    pthread_mutex_lock(&mutex);
    int64_t i = 0;
    while (i < n_kept && memcmp(&cache[i].shape, s, sizeof *s) != 0) i++;
    if (i < n_kept) {
        *algorithm = cache[i].algorithm;
    } else {
        status = ask(s, d, algorithm);
        if (status == LS_OK && n_kept < KEPT) /* a program has some tens of shapes */
            cache[n_kept++] = (kept){*s, *algorithm};
    }
    pthread_mutex_unlock(&mutex);
    return status;
}

static uint32_t alignment_of(const void *at, int64_t ld, ls_dtype dtype)
{
    uint32_t bytes = ALIGN_MAX;
    while ((uintptr_t)at % bytes != 0 || (uint64_t)ld * ls_dtype_bytes(dtype) % bytes != 0)
        bytes /= 2;
    return bytes;
}

static ls_status multiply(void *stream, const ls_matmul_args *args, const leading *ld)
{
    shape s;
    description d = {NULL, NULL, NULL, NULL};
    cublasLtMatmulAlgo_t algorithm;
    const float one = 1.0f, beta = args->accumulate ? 1.0f : 0.0f;

    memset(&s, 0, sizeof s); /* padding too: shapes are compared as bytes */
    s.M = args->M, s.N = args->N, s.K = args->K;
    s.trans_a = args->trans_a != 0, s.trans_b = args->trans_b != 0;
    s.accumulate = args->accumulate != 0;
    s.ab_dtype = (int32_t)args->ab_dtype, s.c_dtype = (int32_t)args->c_dtype;
    s.align_a = alignment_of(args->a, ld->a, args->ab_dtype);
    s.align_b = alignment_of(args->b, ld->b, args->ab_dtype);
    s.align_c = alignment_of(args->c, ld->c, args->c_dtype);
    s.workspace_bytes = ls_cuda_matmul_workspace_bytes(args);
    ls_status status = describe(&s, ld, &d);
    if (status == LS_OK) status = choose(&s, &d, &algorithm);
    if (status == LS_OK)
        status = check(lt.Matmul(handle, d.desc, &one, args->b, d.a, args->a, d.b, &beta, args->c,
                                 d.c, args->c, d.c, &algorithm, args->workspace,
                                 (size_t)s.workspace_bytes, (cudaStream_t)stream),
                       "matmul", &s);
    close_description(&d);
    return status;
}

/* ---- cutting -------------------------------------------------------------------------------- */

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The most of a dimension of `whole` that a matrix may have whose other one has `other`. */
static int64_t most_of(int64_t whole, int64_t other)
{
    const int64_t most = ls_cuda_matmul_elements_max / other;
    return most < 1 ? 0 : min_i64(whole, most);
}

static const void *at(const void *x, int64_t elements, ls_dtype dtype)
{
    return (const char *)x + elements * (int64_t)ls_dtype_bytes(dtype);
}

/* Rows first .. of c in parts of K.  The first part adds to c only if the caller wants it. */
static ls_status multiply_rows(void *stream, const ls_matmul_args *args, int64_t first, int64_t M,
                               int64_t K)
{
    const leading ld = {args->trans_a ? args->M : args->K, args->trans_b ? args->K : args->N,
                        args->N};
    for (int64_t k = 0; k < args->K; k += K) {
        ls_matmul_args part = *args;
        part.M = min_i64(M, args->M - first);
        part.K = min_i64(K, args->K - k);
        part.a =
            at(args->a, args->trans_a ? k * args->M + first : first * args->K + k, args->ab_dtype);
        part.b = at(args->b, args->trans_b ? k : k * args->N, args->ab_dtype);
        part.c = (char *)args->c + first * args->N * (int64_t)ls_dtype_bytes(args->c_dtype);
        part.accumulate = args->accumulate || k > 0;
        LS_TRY(multiply(stream, &part, &ld));
    }
    return LS_OK;
}

ls_status ls_cuda_matmul(void *stream, const ls_matmul_args *args)
{
    assert(args->M >= 0 && args->N >= 0 && args->K >= 0);
    assert(args->c_dtype == args->ab_dtype || args->c_dtype == LS_DTYPE_F32);
    LS_TRY(ls_cuda_matmul_open());
    if (args->M == 0 || args->N == 0) return LS_OK;
    if (args->K == 0) {
        const ls_zero_args zero = {args->c,
                                   args->M * args->N * (int64_t)ls_dtype_bytes(args->c_dtype)};
        return args->accumulate ? LS_OK : ls_cuda_zero(stream, &zero);
    }
    /* Elements are counted with the leading dimension, which the cut does not change. */
    int64_t M = most_of(args->M, args->N), K = args->K;
    if (args->trans_a)
        K = most_of(K, args->M);
    else
        M = min_i64(M, most_of(args->M, args->K));
    if (!args->trans_b) K = min_i64(K, most_of(args->K, args->N));
    const bool fits_b = !args->trans_b || most_of(args->N, args->K) == args->N;
    if (M == 0 || K == 0 || !fits_b)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "matmul of M %lld, N %lld, K %lld: a row of a matrix, or "
                       "a weight, has 2^31 elements or more",
                       (long long)args->M, (long long)args->N, (long long)args->K);
    assert(K == args->K || args->c_dtype == LS_DTYPE_F32);
    for (int64_t first = 0; first < args->M; first += M)
        LS_TRY(multiply_rows(stream, args, first, M, K));
    return LS_OK;
}
