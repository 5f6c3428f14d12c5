/* matmul_avx512.c - the matrix multiplication tile in AVX-512; compiled for it. */
#define MATMUL_TILE ls_matmul_tile_avx512
#include "matmul_tile.h"
