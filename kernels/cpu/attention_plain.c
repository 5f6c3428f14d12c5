/* attention_plain.c - vector attention in the build's baseline instruction set. */
#define ATTENTION_KERNEL ls_attention_kernel_plain
#define ATTENTION_NAME   "plain"
#include "attention_vector.h"
