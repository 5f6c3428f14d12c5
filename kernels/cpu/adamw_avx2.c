/* adamw_avx2.c - AdamW in AVX2 and FMA; compiled with -mavx2 -mfma. */
#define LS_ADAMW_KERNEL ls_adamw_kernel_avx2
#define LS_ADAMW_NAME   "avx2"
#include "adamw_loops.h"
