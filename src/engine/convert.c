/*
 * convert.c - tensor by tensor through one buffer, as large as the largest of them.
 *
 * Bound by reading and writing the weights once (a checkpoint twice: its checksums come first).
 */
#include "convert.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_dir.h"
#include "companions.h"
#include "decoder.h"
#include "disk_file.h"
#include "json.h"
#include "model_config.h"
#include "safetensors_set.h"
#include "weights.h"

#define SHARD_BYTES_MAX  (UINT64_C(5) << 30)
#define CONFIG_BYTES_MAX (UINT64_C(16) << 20)
#define STATE_BYTES      (64 << 10) /* room for state.json and the index, for the preflight */

typedef struct conversion {
    const ls_convert_request *request;
    ls_convert_report report;
    char *config; /* the text of config.json */
    uint64_t config_bytes;
    ls_companions companions;
    ls_decoder decoder; /* for its parameters alone */
    ls_safetensors_set *set;
    int64_t *entries; /* [n_params] of the set */
    void *buffer;
    ls_checkpoint_writer *folder;
    ls_safetensors_set_writer *tensors;
} conversion;

/* ---- the source ---------------------------------------------------------------------------- */

static ls_status read_config(conversion *c)
{
    char *path = ls_path_join(c->request->source, "config.json");

    if (path == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a path");
    const ls_status status =
        ls_disk_file_read_all(path, CONFIG_BYTES_MAX, &c->config, &c->config_bytes);
    free(path);
    return status;
}

/* The parameters that config.json describes: a decoder of the smallest batch. */
static ls_status build_decoder(conversion *c)
{
    ls_model_config m;

    LS_TRY(ls_model_config_read(c->request->source, &m));
    const ls_decoder_shape shape = ls_model_config_shape(&m);
    const ls_decoder_options options = ls_decoder_smallest(&shape);
    c->report.n_parameters = ls_model_config_parameters(&m);
    return ls_decoder_build(&options, &c->decoder);
}

static ls_status open_source(conversion *c)
{
    const char *source = c->request->source;
    bool is_checkpoint;
    uint64_t largest = 1;

    LS_TRY(ls_checkpoint_verify_if_any(source, &is_checkpoint));
    c->report.to_checkpoint = !is_checkpoint;
    LS_TRY(read_config(c));
    LS_TRY(build_decoder(c));
    LS_TRY(ls_companions_read(source, &c->companions));
    LS_TRY(ls_safetensors_set_open(source, "model", &c->set));
    c->entries = malloc((size_t)c->decoder.n_params * sizeof *c->entries);
    if (c->entries == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a list of tensors");
    LS_TRY(ls_weights_match(&c->decoder, source, c->set, c->entries, &c->report.n_derived));
    for (int32_t i = 0; i < c->decoder.n_params; i++) {
        const uint64_t bytes = ls_safetensors_set_get(c->set, c->entries[i])->size_bytes;
        c->report.bytes += bytes;
        if (bytes > largest) largest = bytes;
    }
    c->report.n_tensors = c->decoder.n_params;
    c->buffer = malloc((size_t)largest);
    return c->buffer != NULL ? LS_OK
                             : LS_FAIL(LS_ERR_NO_MEMORY, "a buffer of %llu bytes for a tensor",
                                       (unsigned long long)largest);
}

/* ---- the target ---------------------------------------------------------------------------- */

static ls_status register_file(void *context, const char *name, uint64_t bytes, uint32_t crc)
{
    return ls_checkpoint_add(context, name, bytes, crc);
}

static ls_status open_target(conversion *c)
{
    const int32_t n = c->decoder.n_params;
    const uint64_t small = c->config_bytes + ls_companions_bytes(&c->companions) + STATE_BYTES;
    ls_safetensors_set_options options = {
        .base = "model", .shard_bytes_max = SHARD_BYTES_MAX, .on_file = register_file};

    LS_TRY(ls_checkpoint_begin_folder(c->request->target, c->report.bytes + small, &c->folder));
    LS_TRY(ls_checkpoint_write(c->folder, "config.json", c->config, c->config_bytes));
    LS_TRY(ls_companions_write(&c->companions, c->folder));
    options.directory = ls_checkpoint_folder(c->folder);
    options.context = c->folder;
    ls_safetensors_tensor *described = calloc((size_t)n, sizeof *described);
    if (described == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a list of tensors");
    for (int32_t i = 0; i < n; i++) {
        const ls_safetensors_entry *entry = ls_safetensors_set_get(c->set, c->entries[i]);
        described[i] = (ls_safetensors_tensor){
            .name = entry->name, .dtype = entry->dtype, .n_dims = entry->n_dims};
        memcpy(described[i].dims, entry->dims, sizeof entry->dims);
    }
    const ls_status status = ls_safetensors_set_writer_open(&options, described, n, &c->tensors);
    free(described);
    return status;
}

static ls_status copy_tensor(conversion *c, int64_t index)
{
    const ls_safetensors_entry *entry = ls_safetensors_set_get(c->set, index);
    const int64_t n = (int64_t)(entry->size_bytes / ls_dtype_bytes(entry->dtype));
    float value;

    if (c->request->stop != NULL && atomic_load(c->request->stop))
        return LS_FAIL(LS_ERR_STOPPED, "stopped; nothing is left of %s", c->request->target);
    LS_TRY(ls_safetensors_set_read(c->set, index, 0, entry->size_bytes, c->buffer));
    const int64_t bad = ls_weights_find_nonfinite(c->buffer, n, entry->dtype, &value);
    if (bad >= 0)
        return LS_FAIL(LS_ERR_CORRUPT, "%s: %s: element %lld is %g, which is no finite bf16 weight",
                       ls_safetensors_path(ls_safetensors_set_file(c->set, index)), entry->name,
                       (long long)bad, (double)value);
    return ls_safetensors_set_writer_append(c->tensors, c->buffer);
}

/* What a checkpoint of step 0 says; moments are 0 because there are none. */
static ls_status build_state(const conversion *c, cJSON **state)
{
    cJSON *built = cJSON_CreateObject();
    ls_status status = ls_json_add(built, "schema", cJSON_CreateNumber(1));

    if (status == LS_OK) status = ls_json_add(built, "step", cJSON_CreateNumber(0));
    if (status == LS_OK) status = ls_json_add(built, "fresh", cJSON_CreateTrue());
    if (status == LS_OK)
        status = ls_json_add(built, "source", cJSON_CreateString(c->request->source));
    if (status != LS_OK) {
        cJSON_Delete(built);
        return status;
    }
    *state = built;
    return LS_OK;
}

static ls_status commit(conversion *c)
{
    ls_checkpoint_writer *folder = c->folder;
    cJSON *state = NULL;

    LS_TRY(ls_safetensors_set_writer_finish(c->tensors));
    if (c->report.to_checkpoint) LS_TRY(build_state(c, &state));
    c->folder = NULL; /* released by the commit in any case */
    const ls_status status = ls_checkpoint_commit(folder, state);
    cJSON_Delete(state);
    return status;
}

static ls_status convert(conversion *c)
{
    LS_TRY(open_source(c));
    LS_TRY(open_target(c));
    for (int32_t i = 0; i < c->decoder.n_params; i++) LS_TRY(copy_tensor(c, c->entries[i]));
    return commit(c);
}

ls_status ls_job_convert(const ls_convert_request *request, ls_convert_report *report)
{
    conversion c = {.request = request};
    const ls_status status = convert(&c);

    ls_safetensors_set_writer_close(c.tensors);
    ls_checkpoint_abort(c.folder);
    ls_safetensors_set_close(c.set);
    ls_decoder_free(&c.decoder);
    ls_companions_free(&c.companions);
    free(c.entries);
    free(c.buffer);
    free(c.config);
    if (status == LS_OK) *report = c.report;
    return status;
}
