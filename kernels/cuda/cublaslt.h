/*
 * cublaslt.h - the functions of cuBLASLt that the matmul calls, found when the first one needs
 * them: the library is half a gigabyte, and a machine without a GPU may not have it.
 *
 * Layer: kernels, private to kernels/cuda.
 */
#ifndef LS_CUBLASLT_H
#define LS_CUBLASLT_H

#include <cublasLt.h>

#include "status.h"

#define LS_CUBLASLT_LIST(X)                                                                        \
    X(Create)                                                                                      \
    X(GetStatusName)                                                                               \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(Matmul)

typedef struct ls_cublaslt {
#define LS_CUBLASLT_POINTER(name) __typeof__(cublasLt##name) *name;
    LS_CUBLASLT_LIST(LS_CUBLASLT_POINTER)
#undef LS_CUBLASLT_POINTER
} ls_cublaslt;

/* Find them.  LS_ERR_UNSUPPORTED: the text says what was looked for and what is missing. */
ls_status ls_cublaslt_load(ls_cublaslt *functions);

#endif
