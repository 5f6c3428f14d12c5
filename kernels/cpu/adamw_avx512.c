/* adamw_avx512.c - AdamW in AVX-512; compiled with -mavx512f and others. */
#define LS_ADAMW_KERNEL ls_adamw_kernel_avx512
#define LS_ADAMW_NAME   "avx512"
#include "adamw_loops.h"
