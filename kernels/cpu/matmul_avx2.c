/* matmul_avx2.c - the matrix multiplication tile in AVX2 and FMA; compiled with -mavx2 -mfma. */
#define MATMUL_TILE ls_matmul_tile_avx2
#include "matmul_tile.h"
