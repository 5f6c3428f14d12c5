/*
 * weights_load.c - weights of a Hugging Face folder into an instance.
 *
 * Everything that headers can tell (names, shapes, dtypes) is checked before the first read.  Then
 * tensors are cut into pieces that several threads read side by side: one disk request each, into
 * the arena itself where the file's dtype is the instance's, else through a buffer of one piece. So
 * the time is the disk's, and memory is the plan's.  Reads are pread(): a mapped file that another
 * process cuts short would end this one with SIGBUS instead of an error.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bf16.h"
#include "parallel.h"
#include "safetensors_set.h"
#include "weights.h"

#define PIECE_ELEMENTS (INT64_C(1) << 19)
#define COMPARE_BYTES  65536
#define READ_THREADS   4 /* at least: they wait for the disk, not for a core */
#define HEAD           "lm_head.weight"
#define EMBEDDING      "model.embed_tokens.weight"
#define ROTARY_SUFFIX  ".rotary_emb.inv_freq"

typedef struct piece {
    int32_t param;
    int64_t first, n; /* elements */
} piece;

typedef struct loading {
    ls_instance *instance;
    const char *directory;
    ls_safetensors_set *set;
    int64_t *entries; /* [n_params] of the set */
    piece *pieces;
    int64_t n_pieces;
    _Atomic(int64_t) n_rounded, n_remainder;
    ls_weights_report report;
} loading;

/* ---- values -------------------------------------------------------------------------------- */

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
    if (dtype == LS_DTYPE_F32) return ((const float *)data)[i];
    const uint16_t half = ((const uint16_t *)data)[i];
    return dtype == LS_DTYPE_BF16 ? ls_bf16_to_f32(half) : f16_to_f32(half);
}

int64_t ls_weights_find_nonfinite(const void *data, int64_t n, ls_dtype dtype, float *value)
{
    for (int64_t i = 0; i < n; i++) {
        *value = widen(data, i, dtype);
        if (!ls_master_is_finite(*value)) return i;
    }
    return -1;
}

/* ---- what must be there -------------------------------------------------------------------- */

typedef struct matching {
    const ls_decoder *decoder;
    const char *directory; /* for messages */
    const ls_safetensors_set *set;
} matching;

static const ls_tensor *weight_of(const ls_decoder *decoder, int32_t param)
{
    return &decoder->tape.tensors[decoder->params[param].weight];
}

static const char *path_of(const ls_safetensors_set *set, int64_t entry)
{
    return ls_safetensors_path(ls_safetensors_set_file(set, entry));
}

static void print_shape(const int64_t *dims, int n_dims, char *text, size_t bytes)
{
    size_t n = 0;

    text[0] = '\0';
    for (int d = 0; d < n_dims && n < bytes; d++)
        n += (size_t)snprintf(text + n, bytes - n, d > 0 ? " x %lld" : "%lld", (long long)dims[d]);
}

/* The file's tensor has the parameter's shape and a dtype that holds weights. */
static ls_status check_entry(const matching *m, int32_t param, int64_t index)
{
    const ls_tensor *t = weight_of(m->decoder, param);
    const ls_safetensors_entry *entry = ls_safetensors_set_get(m->set, index);
    char is[128], wanted[64];

    bool same = entry->n_dims == t->n_dims;
    for (int d = 0; same && d < t->n_dims; d++) same = entry->dims[d] == t->dims[d];
    print_shape(entry->dims, entry->n_dims, is, sizeof is);
    print_shape(t->dims, t->n_dims, wanted, sizeof wanted);
    if (!same)
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: %s is %s, but the model's config.json says %s; is it of this model?",
                       path_of(m->set, index), t->name, is, wanted);
    if (entry->dtype != LS_DTYPE_F32 && entry->dtype != LS_DTYPE_BF16 &&
        entry->dtype != LS_DTYPE_F16)
        return LS_FAIL(LS_ERR_UNSUPPORTED, "%s: %s is %s; weights are F32, BF16 or F16",
                       path_of(m->set, index), t->name, ls_dtype_name(entry->dtype));
    return LS_OK;
}

static ls_status find_entry(const matching *m, int32_t param, int64_t *index)
{
    const char *name = weight_of(m->decoder, param)->name;

    *index = ls_safetensors_set_find(m->set, name);
    if (*index < 0)
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: tensor %s is missing; the files hold %lld tensors, the model of "
                       "config.json has %d",
                       m->directory, name, (long long)ls_safetensors_set_count(m->set),
                       m->decoder->n_params);
    return check_entry(m, param, *index);
}

/* ---- what may be there too ----------------------------------------------------------------- */

static bool ends_with(const char *text, const char *suffix)
{
    const size_t n = strlen(text), n_suffix = strlen(suffix);
    return n >= n_suffix && strcmp(text + n - n_suffix, suffix) == 0;
}

/* A tied head that is saved all the same must be the embedding, or one of the two is not the
 * model. */
static ls_status check_tied_head(const matching *m, int64_t head)
{
    const int64_t embedding = ls_safetensors_set_find(m->set, EMBEDDING);
    const ls_safetensors_entry *a = ls_safetensors_set_get(m->set, head);
    const ls_safetensors_entry *b = ls_safetensors_set_get(m->set, embedding);
    char bytes_a[COMPARE_BYTES], bytes_b[COMPARE_BYTES];
    bool same = a->dtype == b->dtype && a->size_bytes == b->size_bytes;

    for (uint64_t at = 0; same && at < a->size_bytes; at += COMPARE_BYTES) {
        const uint64_t rest = a->size_bytes - at, n = rest < COMPARE_BYTES ? rest : COMPARE_BYTES;
        LS_TRY(ls_safetensors_set_read(m->set, head, at, n, bytes_a));
        LS_TRY(ls_safetensors_set_read(m->set, embedding, at, n, bytes_b));
        same = memcmp(bytes_a, bytes_b, n) == 0;
    }
    if (same) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT,
                   "%s: " HEAD " differs from " EMBEDDING ", but config.json ties them "
                   "(tie_word_embeddings); allowed: the same tensor, or tie_word_embeddings: false",
                   m->directory);
}

static ls_status check_extra(const matching *m, int64_t entry)
{
    const char *name = ls_safetensors_set_get(m->set, entry)->name;

    if (m->decoder->options.shape.tied && strcmp(name, HEAD) == 0) return check_tied_head(m, entry);
    if (ends_with(name, ROTARY_SUFFIX)) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT,
                   "%s: tensor %s is not part of the model that config.json describes",
                   path_of(m->set, entry), name);
}

static bool is_param(const ls_decoder *decoder, const char *name)
{
    for (int32_t i = 0; i < decoder->n_params; i++)
        if (strcmp(weight_of(decoder, i)->name, name) == 0) return true;
    return false;
}

ls_status ls_weights_match(const ls_decoder *decoder, const char *directory,
                           const ls_safetensors_set *set, int64_t *entries, int64_t *n_derived)
{
    const matching m = {decoder, directory, set};
    const int64_t n = ls_safetensors_set_count(set);

    for (int32_t i = 0; i < decoder->n_params; i++) LS_TRY(find_entry(&m, i, &entries[i]));
    *n_derived = n - decoder->n_params;
    for (int64_t e = 0; e<n && * n_derived> 0; e++)
        if (!is_param(decoder, ls_safetensors_set_get(set, e)->name)) LS_TRY(check_extra(&m, e));
    return LS_OK;
}

/* ---- reading ------------------------------------------------------------------------------- */

static ls_status cut_pieces(loading *l)
{
    const int32_t n_params = l->instance->decoder.n_params;
    int64_t n = 0;

    for (int32_t i = 0; i < n_params; i++)
        n += (ls_tensor_elements(weight_of(&l->instance->decoder, i)) + PIECE_ELEMENTS - 1) /
             PIECE_ELEMENTS;
    l->pieces = malloc((size_t)n * sizeof *l->pieces);
    if (l->pieces == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a list of %lld reads", (long long)n);
    for (int32_t i = 0; i < n_params; i++) {
        const int64_t end = ls_tensor_elements(weight_of(&l->instance->decoder, i));
        for (int64_t first = 0; first < end; first += PIECE_ELEMENTS) {
            const int64_t rest = end - first;
            l->pieces[l->n_pieces++] =
                (piece){i, first, rest < PIECE_ELEMENTS ? rest : PIECE_ELEMENTS};
        }
    }
    assert(l->n_pieces == n);
    return LS_OK;
}

static ls_status check_values(const loading *l, const piece *p, const void *data, ls_dtype dtype)
{
    float value;
    const int64_t i = ls_weights_find_nonfinite(data, p->n, dtype, &value);

    if (i < 0) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: %s: element %lld is %g, which is no finite bf16 weight",
                   path_of(l->set, l->entries[p->param]),
                   weight_of(&l->instance->decoder, p->param)->name, (long long)(p->first + i),
                   (double)value);
}

static ls_status read_piece(const loading *l, const piece *p, void *data)
{
    const int64_t entry = l->entries[p->param];
    const uint64_t size = ls_dtype_bytes(ls_safetensors_set_get(l->set, entry)->dtype);
    return ls_safetensors_set_read(l->set, entry, (uint64_t)p->first * size, (uint64_t)p->n * size,
                                   data);
}

/* Values as they are: F32 in an fp32 instance, BF16 in one of bf16, whose remainders are 0. */
static ls_status load_same(loading *l, const piece *p, ls_dtype dtype)
{
    const ls_param *param = &l->instance->decoder.params[p->param];
    const uint64_t size = ls_dtype_bytes(dtype);
    char *to = (char *)ls_instance_tensor(l->instance, param->weight) + (uint64_t)p->first * size;

    LS_TRY(read_piece(l, p, to));
    if (param->lo >= 0)
        memset((int16_t *)ls_instance_tensor(l->instance, param->lo) + p->first, 0,
               (size_t)p->n * sizeof(int16_t));
    return check_values(l, p, to, dtype);
}

static ls_status load_other(loading *l, const piece *p, ls_dtype dtype)
{
    const bool rounds = l->instance->decoder.options.dtype == LS_DTYPE_BF16;
    const bool has_lo = l->instance->decoder.params[p->param].lo >= 0;
    void *data = malloc((size_t)p->n * ls_dtype_bytes(dtype));
    int64_t n_rounded = 0;

    if (data == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a read of %lld weights", (long long)p->n);
    ls_status status = read_piece(l, p, data);
    if (status == LS_OK) status = check_values(l, p, data, dtype);
    for (int64_t i = 0; i < p->n && status == LS_OK; i++) {
        const float value = widen(data, i, dtype);
        ls_weights_store(l->instance, p->param, p->first + i, value);
        n_rounded += rounds && ls_master_lo(value) != 0;
    }
    free(data);
    atomic_fetch_add(&l->n_rounded, n_rounded);
    if (has_lo) atomic_fetch_add(&l->n_remainder, n_rounded);
    return status;
}

static ls_status load_piece(void *context, int64_t index)
{
    loading *l = context;
    const piece *p = &l->pieces[index];
    const ls_dtype dtype = ls_safetensors_set_get(l->set, l->entries[p->param])->dtype;

    return dtype == l->instance->decoder.options.dtype ? load_same(l, p, dtype)
                                                       : load_other(l, p, dtype);
}

static ls_status load_all(loading *l)
{
    const int32_t n_params = l->instance->decoder.n_params;
    const int cores = ls_cpu_threads();

    l->entries = malloc((size_t)n_params * sizeof *l->entries);
    if (l->entries == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a list of %d tensors", n_params);
    LS_TRY(ls_safetensors_set_open(l->directory, "model", &l->set));
    LS_TRY(ls_weights_match(&l->instance->decoder, l->directory, l->set, l->entries,
                            &l->report.n_derived));
    LS_TRY(cut_pieces(l));
    LS_TRY(
        ls_parallel_run(l->n_pieces, cores > READ_THREADS ? cores : READ_THREADS, load_piece, l));
    for (int32_t i = 0; i < n_params; i++)
        l->report.n_elements[ls_safetensors_set_get(l->set, l->entries[i])->dtype] +=
            ls_tensor_elements(weight_of(&l->instance->decoder, i));
    l->report.n_tensors = n_params;
    l->report.n_rounded = atomic_load(&l->n_rounded);
    l->report.n_remainder = atomic_load(&l->n_remainder);
    return ls_instance_fill_copies(l->instance);
}

ls_status ls_weights_load(ls_instance *instance, const char *directory, ls_weights_report *report)
{
    loading l = {.instance = instance, .directory = directory};
    const ls_status status = load_all(&l);

    if (status == LS_OK && report != NULL) *report = l.report;
    ls_safetensors_set_close(l.set);
    free(l.entries);
    free(l.pieces);
    return status;
}

/* ---- the log ------------------------------------------------------------------------------- */

static size_t add_dtypes(const ls_weights_report *report, char *text, size_t bytes)
{
    size_t n = 0;

    for (int dtype = 0; dtype < LS_DTYPE_COUNT && n < bytes; dtype++)
        if (report->n_elements[dtype] > 0)
            n += (size_t)snprintf(text + n, bytes - n, "%s%.2fM %s", n > 0 ? " and " : "",
                                  1e-6 * (double)report->n_elements[dtype],
                                  ls_dtype_name((ls_dtype)dtype));
    return n;
}

const char *ls_weights_describe(const ls_instance *instance, const ls_weights_report *report,
                                char text[LS_WEIGHTS_TEXT_BYTES])
{
    const size_t bytes = LS_WEIGHTS_TEXT_BYTES;
    const bool trains = instance->decoder.options.train;
    const int64_t lost = report->n_rounded - report->n_remainder;
    size_t n = (size_t)snprintf(text, bytes, "%lld tensors, ", (long long)report->n_tensors);

    n += add_dtypes(report, text + n, bytes - n);
    n += (size_t)snprintf(text + n, bytes - n, " weights");
    if (report->n_derived > 0)
        n += (size_t)snprintf(text + n, bytes - n, ", %lld derived ones passed over",
                              (long long)report->n_derived);
    if (report->n_rounded > 0)
        n += (size_t)snprintf(text + n, bytes - n, "; %lld rounded to bf16",
                              (long long)report->n_rounded);
    if (report->n_remainder > 0)
        n += (size_t)snprintf(text + n, bytes - n, ", %lld of them exact in their fp32 master",
                              (long long)report->n_remainder);
    else if (trains && lost == 0)
        n += (size_t)snprintf(text + n, bytes - n, "; masters are exactly these");
    if (trains) snprintf(text + n, bytes - n, "; moments start at 0");
    return text;
}
