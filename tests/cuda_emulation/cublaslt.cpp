/*
 * cublaslt.cpp - cuBLASLt as plain loops: column-major, D = alpha op(A) op(B) + beta C.
 *
 * Only what the matmuls use, but that to the letter: shapes must agree, leading dimensions reach,
 * pointers be as aligned as the preference promised, and the workspace be there.
 */
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cublasLt.h>

#include "internal.h"

int64_t ls_emulated_matrix_elements = INT32_MAX;

void ls_emulation_matrix_elements(int64_t n)
{
    ls_emulated_matrix_elements = n;
}

namespace
{

struct matmul_desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    int32_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
};

struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct preference {
    uint64_t workspace_bytes = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};
    uint32_t reductions = 0xffffffffu;
};

/* What the heuristic hands out: its promise, to be held to at the call. */
struct algorithm {
    uint64_t workspace_bytes;
    uint32_t alignment[4];
};

template <typename T, typename H> T *as(H handle)
{
    return reinterpret_cast<T *>(handle);
}

float load(const void *at, int64_t i, cudaDataType_t type)
{
    if (type == CUDA_R_32F) return static_cast<const float *>(at)[i];
    const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t *>(at)[i]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

void store(void *at, int64_t i, float value, cudaDataType_t type)
{
    if (type == CUDA_R_32F) {
        static_cast<float *>(at)[i] = value;
        return;
    }
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    static_cast<uint16_t *>(at)[i] =
        static_cast<uint16_t>(nan ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

bool agree(const matmul_desc *d, const layout *a, const layout *b, const layout *c, const layout *o)
{
    const uint64_t m = d->op_a == CUBLAS_OP_N ? a->rows : a->cols;
    const uint64_t k = d->op_a == CUBLAS_OP_N ? a->cols : a->rows;
    const uint64_t n = d->op_b == CUBLAS_OP_N ? b->cols : b->rows;
    const uint64_t k_b = d->op_b == CUBLAS_OP_N ? b->rows : b->cols;
    return k == k_b && o->rows == m && o->cols == n && c->rows == m && c->cols == n && m > 0 &&
           n > 0 && k > 0;
}

bool supported(const matmul_desc *d, const layout *a, const layout *b, const layout *o)
{
    if (d->compute != CUBLAS_COMPUTE_32F || d->scale != CUDA_R_32F || a->type != b->type)
        return false;
    for (const layout *l : {a, b, o}) {
        if (l->type != CUDA_R_32F && l->type != CUDA_R_16BF) return false;
        if (l->ld < static_cast<int64_t>(l->rows)) return false;
        if (l->ld * static_cast<int64_t>(l->cols) > ls_emulated_matrix_elements) return false;
    }
    return o->type == CUDA_R_32F || o->type == a->type;
}

struct call {
    matmul_desc desc;
    layout a, b, c, d;
    const void *at_a, *at_b, *at_c;
    void *at_d, *workspace;
    uint64_t workspace_bytes;
    float alpha, beta;
};

/* Sums in ascending k, in fp32 as the compute type says. */
void multiply(const call &x)
{
    const bool flip_a = x.desc.op_a != CUBLAS_OP_N, flip_b = x.desc.op_b != CUBLAS_OP_N;
    const int64_t m = static_cast<int64_t>(x.d.rows), n = static_cast<int64_t>(x.d.cols);
    const int64_t k = static_cast<int64_t>(flip_a ? x.a.rows : x.a.cols);
    std::vector<float> left(static_cast<size_t>(m * k)), sums(static_cast<size_t>(m));

    if (x.workspace_bytes > 0) std::memset(x.workspace, 0xff, x.workspace_bytes);
    for (int64_t l = 0; l < k; l++)
        for (int64_t i = 0; i < m; i++)
            left[static_cast<size_t>(l * m + i)] =
                load(x.at_a, flip_a ? l + i * x.a.ld : i + l * x.a.ld, x.a.type);
    for (int64_t j = 0; j < n; j++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (int64_t l = 0; l < k; l++) {
            const float y = load(x.at_b, flip_b ? j + l * x.b.ld : l + j * x.b.ld, x.b.type);
            const float *column = &left[static_cast<size_t>(l * m)];
            for (int64_t i = 0; i < m; i++) sums[static_cast<size_t>(i)] += column[i] * y;
        }
        for (int64_t i = 0; i < m; i++) {
            float value = x.alpha * sums[static_cast<size_t>(i)];
            if (x.beta != 0.0f) value += x.beta * load(x.at_c, i + j * x.c.ld, x.c.type);
            store(x.at_d, i + j * x.d.ld, value, x.d.type);
        }
    }
}

bool is_aligned(const void *at, uint32_t bytes)
{
    return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

} // namespace

extern "C" {

size_t cublasLtGetVersion(void)
{
    return 130100;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = reinterpret_cast<cublasLtHandle_t>(new char);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete reinterpret_cast<char *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new matmul_desc{compute, scale});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete as<matmul_desc>(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    if (bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA)
        std::memcpy(&as<matmul_desc>(desc)->op_a, value, bytes);
    else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB)
        std::memcpy(&as<matmul_desc>(desc)->op_b, value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    *made = reinterpret_cast<cublasLtMatrixLayout_t>(new layout{type, rows, cols, ld});
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t made)
{
    delete as<layout>(made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made)
{
    *made = reinterpret_cast<cublasLtMatmulPreference_t>(new preference);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t made)
{
    delete as<preference>(made);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes)
{
    preference *p = as<preference>(made);
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        if (bytes != sizeof p->workspace_bytes) return CUBLAS_STATUS_INVALID_VALUE;
        std::memcpy(&p->workspace_bytes, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        std::memcpy(&p->reductions, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
        std::memcpy(&p->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                    bytes);
        return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_INVALID_VALUE;
    }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preferred, int,
                                              cublasLtMatmulHeuristicResult_t *results, int *n)
{
    const preference *p = as<preference>(preferred);
    *n = 0;
    if (!agree(as<matmul_desc>(desc), as<layout>(a), as<layout>(b), as<layout>(c), as<layout>(d)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(as<matmul_desc>(desc), as<layout>(a), as<layout>(b), as<layout>(d)))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        ls_emulated_abort("a matmul whose sums may have no fixed order: in-place reduction");
    algorithm promise = {p->workspace_bytes, {}};
    std::memcpy(promise.alignment, p->alignment, sizeof promise.alignment);
    std::memset(&results[0], 0, sizeof results[0]);
    std::memcpy(&results[0].algo, &promise, sizeof promise);
    results[0].workspaceSize = p->workspace_bytes;
    results[0].state = CUBLAS_STATUS_SUCCESS;
    *n = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    algorithm promise;
    std::memcpy(&promise, algo, sizeof promise);
    const call x = {*as<matmul_desc>(desc),
                    *as<layout>(a_layout),
                    *as<layout>(b_layout),
                    *as<layout>(c_layout),
                    *as<layout>(d_layout),
                    a,
                    b,
                    c,
                    d,
                    workspace,
                    workspace_bytes,
                    *static_cast<const float *>(alpha),
                    *static_cast<const float *>(beta)};
    if (!agree(&x.desc, &x.a, &x.b, &x.c, &x.d)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!supported(&x.desc, &x.a, &x.b, &x.d)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_bytes < promise.workspace_bytes || !is_aligned(workspace, 16))
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *pointers[] = {a, b, c, d};
    for (int i = 0; i < 4; i++)
        if (!is_aligned(pointers[i], promise.alignment[i])) return CUBLAS_STATUS_INVALID_VALUE;
    ls_emulated_counts.matmuls++;
    return ls_emulated_enqueue(stream, [x] { multiply(x); }) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
