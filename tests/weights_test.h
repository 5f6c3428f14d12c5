/*
 * weights_test.h - a tiny model, and Hugging Face folders with its weights in any dtype: whole,
 * sharded, or damaged in one place.
 */
#ifndef LS_WEIGHTS_TEST_H
#define LS_WEIGHTS_TEST_H

#include "io_test.h"

#include "bf16.h"
#include "instance.h"
#include "safetensors_set.h"
#include "weights.h"

#define N_TENSORS_MAX 64

/* The tensors of a folder, in the order in which they are written. */
typedef struct tensors {
    ls_safetensors_tensor list[N_TENSORS_MAX];
    char names[N_TENSORS_MAX][96];
    uint64_t bytes[N_TENSORS_MAX];
    uint8_t *data[N_TENSORS_MAX];
    int64_t n;
} tensors;

static inline ls_decoder_options tiny_options(ls_dtype dtype, bool train)
{
    return (ls_decoder_options){
        .shape = {.V = 23, .D = 8, .F = 12, .L = 2, .H = 3, .G = 1, .K = 6, .eps = 1e-5f},
        .dtype = dtype,
        .S = 4,
        .sequences = 1,
        .accumulate = 1,
        .chunk = 4,
        .query_block = 4,
        .loss_rows = 4,
        .train = train};
}

static inline void open_tiny(const ls_decoder_options *options, ls_instance *instance)
{
    const ls_instance_options how = {.compute_threads = 1, .optimizer_threads = 1};
    memset(instance, 0, sizeof *instance);
    assert_ok(ls_instance_open(options, &how, instance));
}

static inline int64_t count_elements(const ls_safetensors_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) n *= t->dims[d];
    return n;
}

/* Halves of all exponents that are finite in F16, BF16 and F32 alike; of F32 all bits are in use.
 */
static inline uint32_t make_bits(int64_t tensor, int64_t element, ls_dtype dtype)
{
    const uint32_t hash = (uint32_t)(tensor * 7919 + element * 104729 + 1) * 2654435761u;

    if (dtype == LS_DTYPE_F16)
        return (hash >> 16) & 0xfbffu; /* exponent below 31; subnormals too */
    const uint32_t f32 = (hash & 0x80ffffffu) | ((100u + (hash >> 24 & 31u)) << 23);
    return dtype == LS_DTYPE_F32 ? f32 : f32 >> 16;
}

static inline void add_tensor(tensors *t, const char *name, ls_dtype dtype, const int64_t *dims,
                              int n_dims)
{
    const int64_t i = t->n++;
    ls_safetensors_tensor *tensor = &t->list[i];

    assert_true(i < N_TENSORS_MAX);
    snprintf(t->names[i], sizeof t->names[i], "%s", name);
    *tensor = (ls_safetensors_tensor){.name = t->names[i], .dtype = dtype, .n_dims = n_dims};
    memcpy(tensor->dims, dims, (size_t)n_dims * sizeof *dims);
    const uint64_t size = ls_dtype_bytes(dtype);
    t->bytes[i] = (uint64_t)count_elements(tensor) * size;
    t->data[i] = malloc(t->bytes[i] + 1);
    assert_non_null(t->data[i]);
    for (int64_t e = 0; e < count_elements(tensor); e++) {
        const uint32_t bits = make_bits(i, e, dtype);
        const uint16_t half = (uint16_t)bits;
        memcpy(t->data[i] + (uint64_t)e * size, size == 4 ? (const void *)&bits : &half,
               size < 4 ? size : 4);
    }
}

/* Those of the model, all of one dtype. */
static inline void make_tensors(const ls_decoder *d, ls_dtype dtype, tensors *t)
{
    memset(t, 0, sizeof *t);
    for (int32_t i = 0; i < d->n_params; i++) {
        const ls_tensor *weight = &d->tape.tensors[d->params[i].weight];
        add_tensor(t, weight->name, dtype, weight->dims, weight->n_dims);
    }
}

static inline void free_tensors(tensors *t)
{
    for (int64_t i = 0; i < t->n; i++) free(t->data[i]);
}

static inline int64_t find_tensor(const tensors *t, const char *name)
{
    for (int64_t i = 0; i < t->n; i++)
        if (strcmp(t->list[i].name, name) == 0) return i;
    fail_msg("no tensor %s", name);
    return -1;
}

static inline void remove_tensor(tensors *t, int64_t i)
{
    free(t->data[i]);
    for (int64_t j = i; j + 1 < t->n; j++) {
        t->list[j] = t->list[j + 1];
        memcpy(t->names[j], t->names[j + 1], sizeof t->names[j]);
        t->list[j].name = t->names[j];
        t->bytes[j] = t->bytes[j + 1];
        t->data[j] = t->data[j + 1];
    }
    t->n--;
}

/* One file; the folder is made anew. */
static inline void put_single(const char *folder, const tensors *t)
{
    ls_safetensors_writer *writer = NULL;
    char path[600];

    assert_ok(ls_directory_remove(folder));
    assert_ok(ls_directory_make(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(ls_safetensors_writer_open(path, t->list, t->n, &writer));
    for (int64_t i = 0; i < t->n; i++)
        assert_ok(ls_safetensors_writer_append(writer, t->data[i], t->bytes[i]));
    assert_ok(ls_safetensors_writer_finish(writer, NULL, NULL));
    ls_safetensors_writer_close(writer);
}

/* Shards of at most so many bytes, and their index; the folder is made anew. */
static inline void put_shards(const char *folder, const tensors *t, uint64_t shard_bytes)
{
    const ls_safetensors_set_options options = {
        .directory = folder, .base = "model", .shard_bytes_max = shard_bytes};
    ls_safetensors_set_writer *writer = NULL;

    assert_ok(ls_directory_remove(folder));
    assert_ok(ls_directory_make(folder));
    assert_ok(ls_safetensors_set_writer_open(&options, t->list, t->n, &writer));
    for (int64_t i = 0; i < t->n; i++)
        assert_ok(ls_safetensors_set_writer_append(writer, t->data[i]));
    assert_ok(ls_safetensors_set_writer_finish(writer));
    ls_safetensors_set_writer_close(writer);
}

#endif
