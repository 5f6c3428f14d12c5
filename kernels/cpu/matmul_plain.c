/* matmul_plain.c - matrix multiplication in the build's baseline instruction set. */
#define MATMUL_VECTORS ls_matmul_vectors_plain
#include "matmul_tile.h"
