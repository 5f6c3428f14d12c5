/* adamw_scalar.c - AdamW one element at a time; compiled without vectorization: what others equal.
 */
#define LS_ADAMW_KERNEL ls_adamw_kernel_scalar
#define LS_ADAMW_NAME   "scalar"
#include "adamw_loops.h"
