/* adamw_neon.c - AdamW in NEON, which every aarch64 has. */
#define LS_ADAMW_KERNEL ls_adamw_kernel_neon
#define LS_ADAMW_NAME   "neon"
#include "adamw_loops.h"
