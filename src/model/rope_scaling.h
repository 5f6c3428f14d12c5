/*
 * rope_scaling.h - how the frequencies of RoPE are changed so that a model reaches further than it
 * was pretrained for.
 *
 * Pair i of a head of width K turns by theta^(-2i/K) per position.  Each type scales these K/2
 * frequencies in its own way, and yarn and longrope the rotated vectors too (attention factor).
 * The formulas and their defaults are those of Transformers' modeling_rope_utils, in double:
 *
 *   default   as they are; a larger theta alone slows all but the first
 *   linear    all / factor                                            (position interpolation)
 *   ntk       theta * (factor * tokens / original - factor + 1)^(K/(K-2)); "dynamic" in
 * config.json, where it follows each text's length; a run takes it once, at its own length yarn
 * fast ones kept, slow ones / factor, a linear ramp between (Peng et al. 2023) llama3    the same
 * idea, the ramp over wavelengths                (Llama 3.1) longrope  each / its own factor, one
 * list up to original tokens and one beyond (Ding et al. 2024)
 *
 * Layer: model (uses base).  Threads: plain data.
 */
#ifndef LS_ROPE_SCALING_H
#define LS_ROPE_SCALING_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"
#include "yaml_tree.h"

#define LS_ROPE_FREQUENCIES_MAX 2048 /* pairs of the widest head */
#define LS_ROPE_FACTORS_MAX     256  /* pairs of the widest head with longrope */
#define LS_ROPE_TEXT_BYTES      512

typedef enum ls_rope_type {
    LS_ROPE_DEFAULT = 0,
    LS_ROPE_LINEAR,
    LS_ROPE_NTK,
    LS_ROPE_YARN,
    LS_ROPE_LLAMA3,
    LS_ROPE_LONGROPE,
    LS_ROPE_TYPE_COUNT,
} ls_rope_type;

typedef struct ls_rope_factors {
    double values[LS_ROPE_FACTORS_MAX];
    int64_t n;
} ls_rope_factors;

/* A number that is 0 was not given. */
typedef struct ls_rope_scaling {
    ls_rope_type type;
    double theta; /* in a run file 0: the model's */
    double factor;
    int64_t original_tokens; /* that the unscaled model was pretrained for */
    double attention_factor; /* 0: by the type's formula */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn */
    bool no_truncate;                                    /* yarn: the ramp begins within a pair */
    double low_freq_factor, high_freq_factor;            /* llama3 */
    ls_rope_factors short_factor, long_factor;           /* longrope */
} ls_rope_scaling;

/* frequencies [head_dim/2], radians per position, for sequences of this many tokens.  The scaling
 * is complete and fits (below). */
void ls_rope_frequencies(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens,
                         double *frequencies);

/* table [n, head_dim/2, 2]: cos and sin, times the attention factor, of the positions from first
 * on. In fp64 but for the last rounding; before it, the error at position p is below 1e-15 p. */
void ls_rope_fill(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens, int64_t first,
                  int64_t n, float *table);

/* What cos and sin are multiplied by. */
double ls_rope_attention_factor(const ls_rope_scaling *rope);

/* The theta that type ntk has at this length. */
double ls_rope_ntk_theta(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens);

/* Positions that a model of this max_position_embeddings covers with the scaling. */
int64_t ls_rope_reach(const ls_rope_scaling *rope, int64_t max_position_embeddings);

/* Whether a complete scaling can be computed for heads of this width and sequences of this many
 * tokens; if not, why says what is impossible and what is allowed. */
bool ls_rope_fits(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens,
                  char why[LS_ROPE_TEXT_BYTES]);

/* The scaling that takes the model to this many tokens: its own with a larger factor, or yarn. */
ls_rope_scaling ls_rope_extend(const ls_rope_scaling *rope, int64_t max_position_embeddings,
                               int64_t tokens);

/* ---- as text (rope_scaling_text.c) -------------------------------------------------------------
 */

/*
 * The scaling of a config.json or model YAML, complete: rope_parameters (Transformers 5) or
 * rope_scaling (before), the fields beside it, and Transformers' defaults.
 *   rope  [in] theta: of the root's rope_theta or the default; [out]
 * LS_ERR_INVALID, LS_ERR_UNSUPPORTED: with the place.
 */
ls_status ls_rope_read_model(const ls_yaml_node *root, int64_t max_position_embeddings,
                             ls_rope_scaling *rope);

/* The value of rope_scaling in a run file, a map; what it does not give stays 0. */
ls_status ls_rope_read_run(const ls_yaml_node *map, ls_rope_scaling *rope);

/* As the value of rope_scaling (without theta; null for type default) or, with theta, of
 * rope_parameters in a config.json: exact, for printing only.  NULL: out of memory. */
cJSON *ls_rope_model_json(const ls_rope_scaling *rope, bool with_theta);

/* As a run file has it; fit to be compared.  NULL: out of memory. */
cJSON *ls_rope_run_json(const ls_rope_scaling *rope);

/* "{type: yarn, factor: 4, original_tokens: 4096}": the same in one line, without lists. */
const char *ls_rope_run_line(const ls_rope_scaling *rope, char text[LS_ROPE_TEXT_BYTES]);

/* JSON schema of ls_rope_read_run's map, as text. */
void ls_rope_run_schema(char *text, size_t size);

#endif
