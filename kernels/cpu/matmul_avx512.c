/* matmul_avx512.c - matrix multiplication in AVX-512; compiled for it. */
#define MATMUL_VECTORS ls_matmul_vectors_avx512
#include "matmul_tile.h"
