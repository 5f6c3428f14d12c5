/*
 * weights.c - random and loaded weights, and the RoPE table.
 *
 * Each element is a pure function of seed, parameter name and index (rng.h), so the weights do not
 * depend on the order or the number of threads in which they are made.
 */
#include "weights.h"

#include <string.h>

#include "bf16.h"
#include "rng.h"
#include "safetensors_set.h"

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

/* ---- loading ------------------------------------------------------------------------------- */

#define READ_ELEMENTS 65536

static float f16_to_f32(uint16_t value)
{
    const uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    const uint32_t exponent = (value >> 10) & 0x1fu, fraction = value & 0x3ffu;

    if (exponent == 0x1fu) return ls_f32_from_bits(sign | 0x7f800000u | (fraction << 13));
    if (exponent == 0) {
        const float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return ls_f32_from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
}

static float widen(const void *data, int64_t i, ls_dtype dtype)
{
    uint16_t half;
    float single;

    if (dtype == LS_DTYPE_F32) {
        memcpy(&single, (const char *)data + 4 * i, sizeof single);
        return single;
    }
    memcpy(&half, (const char *)data + 2 * i, sizeof half);
    return dtype == LS_DTYPE_BF16 ? ls_bf16_to_f32(half) : f16_to_f32(half);
}

/* True if the file's tensor has the parameter's shape and a dtype that holds weights. */
static ls_status check_entry(const char *directory, const ls_tensor *t,
                             const ls_safetensors_entry *entry)
{
    bool same = entry->n_dims == t->n_dims;
    for (int d = 0; same && d < t->n_dims; d++) same = entry->dims[d] == t->dims[d];
    if (!same)
        return LS_FAIL(
            LS_ERR_CORRUPT, "%s: %s has another shape than the model's %lld x %lld (config.json)",
            directory, t->name, (long long)t->dims[0], (long long)(t->n_dims > 1 ? t->dims[1] : 1));
    if (entry->dtype != LS_DTYPE_F32 && entry->dtype != LS_DTYPE_BF16 &&
        entry->dtype != LS_DTYPE_F16)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s: %s is %s; weights are F32, BF16 or F16", directory,
                       t->name, ls_dtype_name(entry->dtype));
    return LS_OK;
}

static ls_status load_param(const ls_instance *instance, const char *directory,
                            const ls_safetensors_set *set, int32_t param)
{
    const ls_tensor *t = &instance->decoder.tape.tensors[instance->decoder.params[param].weight];
    const int64_t index = ls_safetensors_set_find(set, t->name);
    char buffer[4 * READ_ELEMENTS];

    if (index < 0) return LS_FAIL(LS_ERR_CORRUPT, "%s: tensor %s is missing", directory, t->name);
    const ls_safetensors_entry *entry = ls_safetensors_set_get(set, index);
    LS_TRY(check_entry(directory, t, entry));

    const int64_t n = ls_tensor_elements(t);
    const uint64_t size = ls_dtype_bytes(entry->dtype);
    for (int64_t first = 0; first < n; first += READ_ELEMENTS) {
        const int64_t part = n - first < READ_ELEMENTS ? n - first : READ_ELEMENTS;
        LS_TRY(ls_safetensors_set_read(set, index, (uint64_t)first * size, (uint64_t)part * size,
                                       buffer));
        for (int64_t i = 0; i < part; i++) {
            const float value = widen(buffer, i, entry->dtype);
            if (!ls_master_is_finite(value))
                return LS_FAIL(LS_ERR_CORRUPT,
                               "%s: %s: element %lld is %g, which is no finite bf16 weight",
                               directory, t->name, (long long)(first + i), (double)value);
            ls_weights_store(instance, param, first + i, value);
        }
    }
    return LS_OK;
}

ls_status ls_weights_load(ls_instance *instance, const char *directory)
{
    ls_safetensors_set *set = NULL;
    ls_status status = LS_OK;

    LS_TRY(ls_safetensors_set_open(directory, "model", &set));
    for (int32_t i = 0; i < instance->decoder.n_params && status == LS_OK; i++)
        status = load_param(instance, directory, set, i);
    if (status == LS_OK && ls_safetensors_set_count(set) != instance->decoder.n_params) {
        for (int64_t e = 0; e < ls_safetensors_set_count(set) && status == LS_OK; e++) {
            const char *name = ls_safetensors_set_get(set, e)->name;
            if (ls_instance_find_param(instance, name) < 0)
                status = LS_FAIL(LS_ERR_CORRUPT, "%s: tensor %s is not part of the model",
                                 directory, name);
        }
    }
    ls_safetensors_set_close(set);
    return status == LS_OK ? ls_instance_fill_copies(instance) : status;
}
