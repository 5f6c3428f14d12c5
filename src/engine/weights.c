/*
 * weights.c - single weights, random weights, and the RoPE table.
 *
 * Each element is a pure function of seed, parameter name and index (rng.h), so the weights do not
 * depend on the order or the number of threads in which they are made.
 */
#include "weights.h"

#include <string.h>

#include "bf16.h"
#include "rng.h"

static void *tensor(const ls_instance *instance, int32_t index)
{
    return index < 0 ? NULL : ls_instance_tensor(instance, index);
}

void ls_weights_store(const ls_instance *instance, int32_t param, int64_t element, float value)
{
    const ls_param *p = &instance->decoder.params[param];

    if (instance->decoder.options.dtype == LS_DTYPE_F32) {
        ((float *)tensor(instance, p->weight))[element] = value;
        return;
    }
    ((ls_bf16 *)tensor(instance, p->weight))[element] = ls_master_hi(value);
    if (p->lo >= 0) ((int16_t *)tensor(instance, p->lo))[element] = ls_master_lo(value);
}

float ls_weights_master(const ls_instance *instance, int32_t param, int64_t element)
{
    const ls_param *p = &instance->decoder.params[param];

    if (instance->decoder.options.dtype == LS_DTYPE_F32)
        return ((const float *)tensor(instance, p->weight))[element];
    const ls_bf16 hi = ((const ls_bf16 *)tensor(instance, p->weight))[element];
    return p->lo >= 0 ? ls_master_join(hi, ((const int16_t *)tensor(instance, p->lo))[element])
                      : ls_bf16_to_f32(hi);
}

/* FNV-1a: a stream number for a parameter's name. */
static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    return hash;
}

void ls_weights_random(const ls_instance *instance, uint64_t seed, double std)
{
    const ls_decoder *d = &instance->decoder;

    for (int32_t i = 0; i < d->n_params; i++) {
        const ls_tensor *t = &d->tape.tensors[d->params[i].weight];
        const int64_t n = ls_tensor_elements(t);
        const uint64_t stream = hash_name(t->name);
        const double constant = d->params[i].bias ? 0.0 : 1.0; /* of vectors */
        for (int64_t e = 0; e < n; e++) {
            const double value =
                t->n_dims == 1 ? constant : std * ls_rng_normal(seed, stream, (uint64_t)e);
            ls_weights_store(instance, i, e, (float)value);
        }
    }
}

void ls_weights_rope_table(const ls_instance *instance, const ls_rope_scaling *rope, int64_t tokens)
{
    const ls_decoder_options *o = &instance->decoder.options;
    float *table = ls_instance_tensor(instance, instance->decoder.inputs.rope_table);

    ls_rope_fill(rope, o->shape.K, tokens, 0, o->S, table);
}
