/* matmul_plain.c - the matrix multiplication tile in the build's baseline instruction set. */
#define MATMUL_TILE ls_matmul_tile_plain
#include "matmul_tile.h"
