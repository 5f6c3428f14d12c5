/* adamw_sve.c - AdamW in SVE of any vector length; compiled with -march=armv8.2-a+sve. */
#define LS_ADAMW_KERNEL ls_adamw_kernel_sve
#define LS_ADAMW_NAME   "sve"
#include "adamw_loops.h"
