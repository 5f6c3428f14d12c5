/* attention_avx512.c - vector attention in AVX-512; compiled for it. */
#define ATTENTION_KERNEL ls_attention_kernel_avx512
#define ATTENTION_NAME   "avx512"
#include "attention_vector.h"
