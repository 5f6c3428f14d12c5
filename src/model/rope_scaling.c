/*
 * rope_scaling.c - frequencies and attention factor of each type.
 *
 * All in double.  An error of one unit in the last place of a frequency turns position 4,194,303 by
 * less than 5e-10 rad, a hundredth of what rounding cos and sin to fp32 costs; so no wider
 * arithmetic is needed, and none that differs between machines is used.
 */
#include "rope_scaling.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#define THETA_MAX 1e12 /* as large as a config.json may say */

static const double pi = 3.14159265358979323846;

double ls_rope_ntk_theta(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens)
{
    const double original = (double)rope->original_tokens, K = (double)head_dim;
    const double longest = fmax((double)tokens, original);
    const double stretch = rope->factor * longest / original - (rope->factor - 1.0);

    return rope->theta * pow(stretch, K / (K - 2.0));
}

/* ---- yarn -----------------------------------------------------------------------------------
 */

/* The pair, as a real, that turns this many times within the original length. */
static double yarn_pair(const ls_rope_scaling *rope, int64_t head_dim, double turns)
{
    return ((double)head_dim * log((double)rope->original_tokens / (turns * 2.0 * pi))) /
           (2.0 * log(rope->theta));
}

/* How far pair i is interpolated: 0 not at all, 1 wholly. */
static double yarn_ramp(const ls_rope_scaling *rope, int64_t head_dim, int64_t i)
{
    const double beta_fast = rope->beta_fast > 0 ? rope->beta_fast : 32.0;
    const double beta_slow = rope->beta_slow > 0 ? rope->beta_slow : 1.0;
    double low = yarn_pair(rope, head_dim, beta_fast), high = yarn_pair(rope, head_dim, beta_slow);

    if (!rope->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)head_dim - 1.0);
    if (!(low < high) && !(low > high)) high += 0.001;
    return fmin(fmax(((double)i - low) / (high - low), 0.0), 1.0);
}

static double yarn_scale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double yarn_attention_factor(const ls_rope_scaling *rope)
{
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return yarn_scale(rope->factor, rope->mscale) /
               yarn_scale(rope->factor, rope->mscale_all_dim);
    return yarn_scale(rope->factor, 1.0);
}

/* ---- llama3 ---------------------------------------------------------------------------------
 */

/* What the frequency is multiplied by: 1 for short waves, 1 / factor for long ones. */
static double llama3_scale(const ls_rope_scaling *rope, double frequency)
{
    const double turns = (double)rope->original_tokens * frequency / (2.0 * pi);
    const double low = rope->low_freq_factor, high = rope->high_freq_factor;
    double kept;

    if (turns > high) return 1.0;
    if (turns < low) return 1.0 / rope->factor;
    kept = (turns - low) / (high - low);
    return (1.0 - kept) / rope->factor + kept;
}

/* ---- all of them ----------------------------------------------------------------------------
 */

static double scale_of(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens, int64_t i,
                       double frequency)
{
    double ramp;

    switch (rope->type) {
    case LS_ROPE_LINEAR: return 1.0 / rope->factor;
    case LS_ROPE_YARN:
        ramp = yarn_ramp(rope, head_dim, i);
        return ramp / rope->factor + (1.0 - ramp);
    case LS_ROPE_LLAMA3: return llama3_scale(rope, frequency);
    case LS_ROPE_LONGROPE:
        return 1.0 / (tokens > rope->original_tokens ? rope->long_factor.values[i]
                                                     : rope->short_factor.values[i]);
    case LS_ROPE_DEFAULT:
    case LS_ROPE_NTK:
    case LS_ROPE_TYPE_COUNT: break;
    }
    return 1.0;
}

void ls_rope_frequencies(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens,
                         double *frequencies)
{
    const double theta =
        rope->type == LS_ROPE_NTK ? ls_rope_ntk_theta(rope, head_dim, tokens) : rope->theta;

    assert(head_dim > 0 && head_dim % 2 == 0 && head_dim / 2 <= LS_ROPE_FREQUENCIES_MAX);
    for (int64_t i = 0; i < head_dim / 2; i++) {
        const double frequency = pow(theta, -2.0 * (double)i / (double)head_dim);
        frequencies[i] = frequency * scale_of(rope, head_dim, tokens, i, frequency);
    }
}

double ls_rope_attention_factor(const ls_rope_scaling *rope)
{
    if (rope->attention_factor > 0) return rope->attention_factor;
    if (rope->type == LS_ROPE_YARN) return yarn_attention_factor(rope);
    if (rope->type == LS_ROPE_LONGROPE && rope->factor > 1.0)
        return sqrt(1.0 + log(rope->factor) / log((double)rope->original_tokens));
    return 1.0;
}

void ls_rope_fill(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens, int64_t first,
                  int64_t n, float *table)
{
    const int64_t half = head_dim / 2;
    const double factor = ls_rope_attention_factor(rope);
    double frequencies[LS_ROPE_FREQUENCIES_MAX];

    ls_rope_frequencies(rope, head_dim, tokens, frequencies);
    for (int64_t p = 0; p < n; p++)
        for (int64_t i = 0; i < half; i++) {
            const double angle = (double)(first + p) * frequencies[i];
            table[(p * half + i) * 2] = (float)(cos(angle) * factor);
            table[(p * half + i) * 2 + 1] = (float)(sin(angle) * factor);
        }
}

int64_t ls_rope_reach(const ls_rope_scaling *rope, int64_t max_position_embeddings)
{
    double reach;

    if (rope->type == LS_ROPE_DEFAULT) return max_position_embeddings;
    if (rope->type == LS_ROPE_NTK) return INT64_MAX; /* theta follows the length */
    reach = floor((double)rope->original_tokens * rope->factor);
    return reach > (double)max_position_embeddings ? (int64_t)reach : max_position_embeddings;
}

bool ls_rope_fits(const ls_rope_scaling *rope, int64_t head_dim, int64_t tokens,
                  char why[LS_ROPE_TEXT_BYTES])
{
    const long long pairs = head_dim / 2, n_short = rope->short_factor.n;
    const long long n_long = rope->long_factor.n;

    why[0] = '\0';
    if (rope->type == LS_ROPE_YARN && rope->theta <= 1.0)
        snprintf(why, LS_ROPE_TEXT_BYTES,
                 "type yarn has no ramp at a rope_theta of %g; allowed: more than 1", rope->theta);
    if (rope->type == LS_ROPE_LONGROPE && (n_short != pairs || n_long != pairs))
        snprintf(why, LS_ROPE_TEXT_BYTES,
                 "short_factor has %lld numbers and long_factor %lld; allowed: head_dim / 2 = %lld "
                 "each, at most %d",
                 n_short, n_long, pairs, LS_ROPE_FACTORS_MAX);
    if (rope->type == LS_ROPE_LONGROPE && rope->original_tokens < 2)
        snprintf(why, LS_ROPE_TEXT_BYTES,
                 "type longrope cannot start from 1 original token; allowed: 2 and more");
    if (rope->type == LS_ROPE_NTK && head_dim == 2)
        snprintf(why, LS_ROPE_TEXT_BYTES, "type ntk needs heads wider than 2; allowed: linear");
    else if (rope->type == LS_ROPE_NTK && ls_rope_ntk_theta(rope, head_dim, tokens) > THETA_MAX)
        snprintf(why, LS_ROPE_TEXT_BYTES,
                 "type ntk at %lld tokens makes rope_theta %g; allowed: at most %g",
                 (long long)tokens, ls_rope_ntk_theta(rope, head_dim, tokens), THETA_MAX);
    return why[0] == '\0';
}

ls_rope_scaling ls_rope_extend(const ls_rope_scaling *rope, int64_t max_position_embeddings,
                               int64_t tokens)
{
    const bool keeps =
        rope->type == LS_ROPE_LINEAR || rope->type == LS_ROPE_YARN || rope->type == LS_ROPE_LLAMA3;
    ls_rope_scaling extended = {.type = LS_ROPE_YARN};

    if (keeps) extended = *rope;
    if (rope->type == LS_ROPE_DEFAULT)
        extended.original_tokens = max_position_embeddings;
    else
        extended.original_tokens = rope->original_tokens;
    extended.theta = 0; /* as the model says */
    extended.attention_factor = 0;
    extended.factor = ceil((double)tokens / (double)extended.original_tokens);
    return extended;
}
