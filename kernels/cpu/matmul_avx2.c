/* matmul_avx2.c - matrix multiplication in AVX2 and FMA; compiled with -mavx2 -mfma. */
#define MATMUL_VECTORS ls_matmul_vectors_avx2
#include "matmul_tile.h"
