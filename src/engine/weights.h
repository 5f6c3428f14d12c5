/*
 * weights.h - the tensors' first values: random or loaded weights, moments of zero, the RoPE table.
 * Layer: engine.  Threads: one thread owns an instance.
 */
#ifndef LS_WEIGHTS_H
#define LS_WEIGHTS_H

#include "instance.h"
#include "rope_scaling.h"

/* How an fp32 value becomes a weight in the instance's dtype (hi and lo, or fp32). */
void ls_weights_store(const ls_instance *instance, int32_t param, int64_t element, float value);

/* The exact fp32 master of an element (bf16 widened where the instance holds no remainder). */
float ls_weights_master(const ls_instance *instance, int32_t param, int64_t element);

/* Matrices and embedding: normal(0, std), seeded by parameter name; norms: 1; biases: 0. */
void ls_weights_random(const ls_instance *instance, uint64_t seed, double std);

/* For all positions of the instance, with the frequencies that sequences of this many tokens have
 * (ls_rope_fill). */
void ls_weights_rope_table(const ls_instance *instance, const ls_rope_scaling *rope,
                           int64_t tokens);

/*
 * Read every weight by name from the safetensors of a directory (F32, BF16 or F16); moments zero.
 * Returns LS_ERR_CORRUPT (missing or extra tensor, wrong shape, a value whose bf16 is Inf or NaN),
 * LS_ERR_IO.
 */
ls_status ls_weights_load(ls_instance *instance, const char *directory);

#endif
