/*
 * weights.h - the tensors' first values: random or loaded weights, moments of zero, the RoPE table.
 * Layer: engine.  Threads: one thread owns an instance.
 */
#ifndef LS_WEIGHTS_H
#define LS_WEIGHTS_H

#include "instance.h"
#include "rope_scaling.h"
#include "safetensors_set.h"

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

/* What was loaded, for the log. */
typedef struct ls_weights_report {
    int64_t n_tensors;
    int64_t n_elements[LS_DTYPE_COUNT]; /* of each dtype of the files */
    int64_t n_rounded;                  /* weights in bf16 that are not the files' value */
    int64_t n_remainder; /* of these, how many have the rest in their fp32 master's lower half */
    int64_t n_derived;   /* tensors that were passed over: the model computes them */
} ls_weights_report;

/*
 * Read every weight by name from the safetensors of a directory (F32, BF16 or F16), several at a
 * time, straight into the instance where the dtypes agree.  The master is exactly what the files
 * say; moments stay as they are, which is 0 in an instance that has just been opened.
 *   report  [out] may be NULL
 * Tensors that follow from others are checked or passed over: lm_head.weight of a tied model, which
 * must be the embedding's bytes, and the rotary_emb.inv_freq of old files.
 * Returns LS_ERR_CORRUPT (missing or extra tensor, wrong shape, a value whose bf16 is Inf or NaN),
 * LS_ERR_UNSUPPORTED (another dtype), LS_ERR_NO_MEMORY, LS_ERR_IO.
 */
ls_status ls_weights_load(ls_instance *instance, const char *directory, ls_weights_report *report);

/*
 * Find the parameters of a decoder among the tensors of a set, by the headers alone.
 *   directory  of the set, for messages
 *   entries    [n_params] out, of the set
 *   n_derived  [out] tensors of the set that follow from others
 * Statuses of ls_weights_load().
 */
ls_status ls_weights_match(const ls_decoder *decoder, const char *directory,
                           const ls_safetensors_set *set, int64_t *entries, int64_t *n_derived);

/* The first of n values whose bf16 is Inf or NaN, and the value; -1: none. */
int64_t ls_weights_find_nonfinite(const void *data, int64_t n, ls_dtype dtype, float *value);

#define LS_WEIGHTS_TEXT_BYTES 320

/*
 * The report as a line: "272 tensors, 134.52M BF16 weights; masters are exactly these, moments are
 * 0".  Returns text.
 */
const char *ls_weights_describe(const ls_instance *instance, const ls_weights_report *report,
                                char text[LS_WEIGHTS_TEXT_BYTES]);

#endif
