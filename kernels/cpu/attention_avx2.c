/* attention_avx2.c - vector attention in AVX2 and FMA; compiled with -mavx2 -mfma. */
#define ATTENTION_KERNEL ls_attention_kernel_avx2
#define ATTENTION_NAME   "avx2"
#include "attention_vector.h"
