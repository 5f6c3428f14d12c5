/*
 * checkpoint.c - tensors straight from the arena to files and back; the position as JSON.
 *
 * The beta powers are doubles and go as hexadecimal floating point text: resume is exact.
 */
#include "checkpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_dir.h"
#include "clock.h"
#include "json.h"
#include "safetensors_set.h"

#define STATE_SCHEMA    1
#define SHARD_BYTES_MAX (UINT64_C(5) << 30)
#define STATE_BYTES     (64 << 10) /* room for config.json and state.json, for the preflight */

/* ---- tensors ------------------------------------------------------------------------------- */

static ls_safetensors_tensor describe_tensor(const ls_instance *instance, int32_t index)
{
    const ls_tensor *t = &instance->decoder.tape.tensors[index];
    ls_safetensors_tensor described = {.name = t->name,
                                       .dtype = t->dtype,
                                       .n_dims = t->n_dims,
                                       .data = ls_instance_tensor(instance, index)};
    for (int d = 0; d < t->n_dims; d++) described.dims[d] = t->dims[d];
    return described;
}

/* The tensors of the optimizer's files: lo, m, v of each parameter that has them. */
static int64_t list_optimizer(const ls_instance *instance, ls_safetensors_tensor *tensors)
{
    int64_t n = 0;
    for (int32_t i = 0; i < instance->decoder.n_params; i++) {
        const ls_param *p = &instance->decoder.params[i];
        const int32_t states[] = {p->lo, p->m, p->v};
        for (int s = 0; s < 3; s++)
            if (states[s] >= 0) tensors[n++] = describe_tensor(instance, states[s]);
    }
    return n;
}

static int64_t list_model(const ls_instance *instance, ls_safetensors_tensor *tensors)
{
    for (int32_t i = 0; i < instance->decoder.n_params; i++)
        tensors[i] = describe_tensor(instance, instance->decoder.params[i].weight);
    return instance->decoder.n_params;
}

static ls_status register_file(void *context, const char *name, uint64_t bytes, uint32_t crc)
{
    return ls_checkpoint_add(context, name, bytes, crc);
}

static ls_status write_set(const ls_instance *instance, ls_checkpoint_writer *writer,
                           const char *base)
{
    const bool model = strcmp(base, "model") == 0;
    ls_safetensors_tensor *tensors =
        malloc(3 * (size_t)instance->decoder.n_params * sizeof *tensors);
    const ls_safetensors_set_options options = {.directory = ls_checkpoint_folder(writer),
                                                .base = base,
                                                .shard_bytes_max = SHARD_BYTES_MAX,
                                                .on_file = register_file,
                                                .context = writer};
    if (tensors == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the list of tensors to save");
    const int64_t n = model ? list_model(instance, tensors) : list_optimizer(instance, tensors);
    const ls_status status =
        n > 0 ? ls_safetensors_set_write(&options, tensors, n) : LS_OK; /* all frozen: no states */
    free(tensors);
    return status;
}

static ls_status read_set(const ls_instance *instance, const char *directory, const char *base)
{
    const bool model = strcmp(base, "model") == 0;
    ls_safetensors_set *set = NULL;
    ls_safetensors_tensor *tensors =
        malloc(3 * (size_t)instance->decoder.n_params * sizeof *tensors);
    if (tensors == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the list of tensors to load");

    const int64_t n = model ? list_model(instance, tensors) : list_optimizer(instance, tensors);
    ls_status status = n > 0 ? ls_safetensors_set_open(directory, base, &set) : LS_OK;
    for (int64_t i = 0; i < n && status == LS_OK; i++) {
        const ls_safetensors_tensor *t = &tensors[i];
        const int64_t index = ls_safetensors_set_find(set, t->name);
        const ls_safetensors_entry *entry = index >= 0 ? ls_safetensors_set_get(set, index) : NULL;
        bool same = entry != NULL && entry->dtype == t->dtype && entry->n_dims == t->n_dims;
        for (int d = 0; same && d < t->n_dims; d++) same = entry->dims[d] == t->dims[d];
        if (!same)
            status = LS_FAIL(LS_ERR_CORRUPT, "%s: %s is missing, or has another shape or dtype",
                             directory, t->name);
        else
            status = ls_safetensors_set_read(set, index, 0, entry->size_bytes, (void *)t->data);
    }
    ls_safetensors_set_close(set);
    free(tensors);
    return status;
}

/* ---- state.json ---------------------------------------------------------------------------- */

static ls_status add_number(cJSON *object, const char *key, int64_t value)
{
    return ls_json_add(object, key, cJSON_CreateNumber((double)value));
}

static ls_status add_exact(cJSON *object, const char *key, double value)
{
    char text[64];
    snprintf(text, sizeof text, "%a", value);
    return ls_json_add(object, key, cJSON_CreateString(text));
}

static ls_status add_control(const ls_trainer *t, cJSON *state)
{
    cJSON *control = cJSON_CreateObject();
    LS_TRY(ls_json_add(state, "optimizer", control));
    LS_TRY(add_exact(control, "beta1_power", t->control->beta1_power));
    LS_TRY(add_exact(control, "beta2_power", t->control->beta2_power));
    LS_TRY(add_number(control, "updates", t->control->updates));
    LS_TRY(add_number(control, "skipped", t->control->skipped));
    return add_number(control, "skipped_in_a_row", t->control->skipped_in_a_row);
}

static ls_status add_choices(const ls_trainer *t, cJSON *state)
{
    cJSON *choices = cJSON_CreateObject();
    LS_TRY(ls_json_add(state, "choices", choices));
    LS_TRY(add_number(choices, "chunk", t->choices.chunk));
    LS_TRY(add_number(choices, "query_block", t->choices.query_block));
    LS_TRY(add_number(choices, "loss_rows", t->choices.loss_rows));
    LS_TRY(ls_json_add(choices, "save_o", cJSON_CreateBool(t->choices.save_o)));
    return ls_json_add(choices, "save_qkv", cJSON_CreateBool(t->choices.save_qkv));
}

static ls_status build_state(const ls_trainer *t, const cJSON *config_json, cJSON *state)
{
    uint64_t hash;
    char text[32];

    LS_TRY(add_number(state, "schema", STATE_SCHEMA));
    LS_TRY(add_number(state, "step", t->step));
    LS_TRY(add_number(state, "next_sequence", t->next_sequence));
    LS_TRY(add_number(state, "tokens_total", t->tokens_total));
    snprintf(text, sizeof text, "%" PRIu64, t->config->seed);
    LS_TRY(ls_json_add(state, "rng_seed", cJSON_CreateString(text)));
    LS_TRY(add_number(state, "data_identity", ls_loader_describe(t->train_data).identity));
    LS_TRY(add_control(t, state));
    LS_TRY(add_choices(t, state));
    LS_TRY(ls_run_config_hash(config_json, &hash));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    LS_TRY(ls_json_add(state, "config_hash", cJSON_CreateString(text)));
    return ls_json_add(state, "config", cJSON_Duplicate(config_json, true));
}

static ls_status read_exact(const char *name, const cJSON *object, const char *key, double *value)
{
    const char *text;
    char *end;
    LS_TRY(ls_json_get_text(name, object, key, &text));
    *value = strtod(text, &end);
    if (end == text || *end != '\0' || !(*value >= 0.0 && *value <= 1.0))
        return LS_FAIL(LS_ERR_CORRUPT, "%s: %s is '%s', not a power of beta", name, key, text);
    return LS_OK;
}

static ls_status read_control(const char *name, const cJSON *state, ls_update_control *control)
{
    const cJSON *o;
    ls_update_control c = {.reserved = 0};

    LS_TRY(ls_json_get_object(name, state, "optimizer", &o));
    LS_TRY(read_exact(name, o, "beta1_power", &c.beta1_power));
    LS_TRY(read_exact(name, o, "beta2_power", &c.beta2_power));
    LS_TRY(ls_json_get_whole(name, o, "updates", 0, LS_JSON_WHOLE_MAX, &c.updates));
    LS_TRY(ls_json_get_whole(name, o, "skipped", 0, LS_JSON_WHOLE_MAX, &c.skipped));
    LS_TRY(
        ls_json_get_whole(name, o, "skipped_in_a_row", 0, LS_JSON_WHOLE_MAX, &c.skipped_in_a_row));
    *control = c;
    return LS_OK;
}

static ls_status read_position(const char *name, const cJSON *state, ls_trainer *t)
{
    int64_t identity;
    ls_update_control control;

    LS_TRY(read_control(name, state, &control));
    LS_TRY(ls_json_get_whole(name, state, "step", 0, LS_JSON_WHOLE_MAX, &t->step));
    LS_TRY(
        ls_json_get_whole(name, state, "next_sequence", 0, LS_JSON_WHOLE_MAX, &t->next_sequence));
    LS_TRY(ls_json_get_whole(name, state, "tokens_total", 0, LS_JSON_WHOLE_MAX, &t->tokens_total));
    LS_TRY(ls_json_get_whole(name, state, "data_identity", 0, UINT32_MAX, &identity));
    if (identity != (int64_t)ls_loader_describe(t->train_data).identity)
        return LS_FAIL(LS_ERR_INVALID,
                       "data.train: the shards are not those the checkpoint %s was trained on; "
                       "restore them, or start a new run with another output",
                       name);
    *t->control = control;
    return LS_OK;
}

ls_status ls_checkpoint_read_choices(const char *directory, ls_choices *choices,
                                     cJSON **config_json)
{
    cJSON *state = NULL;
    const cJSON *object, *config;
    ls_choices read = {0};

    LS_TRY(ls_checkpoint_state_read(directory, &state));
    ls_status status = ls_json_get_object(directory, state, "choices", &object);
    if (status == LS_OK)
        status = ls_json_get_whole(directory, object, "chunk", 1, LS_JSON_WHOLE_MAX, &read.chunk);
    if (status == LS_OK)
        status = ls_json_get_whole(directory, object, "query_block", 1, LS_JSON_WHOLE_MAX,
                                   &read.query_block);
    if (status == LS_OK)
        status = ls_json_get_whole(directory, object, "loss_rows", 1, LS_JSON_WHOLE_MAX,
                                   &read.loss_rows);
    if (status == LS_OK) status = ls_json_get_bool(directory, object, "save_o", &read.save_o);
    if (status == LS_OK) status = ls_json_get_bool(directory, object, "save_qkv", &read.save_qkv);
    if (status == LS_OK) status = ls_json_get_object(directory, state, "config", &config);
    if (status == LS_OK) {
        *config_json = cJSON_Duplicate(config, true);
        if (*config_json == NULL) status = LS_FAIL(LS_ERR_NO_MEMORY, "the checkpoint's config");
    }
    cJSON_Delete(state);
    if (status == LS_OK) *choices = read;
    return status;
}

/* ---- save, load ---------------------------------------------------------------------------- */

static uint64_t bytes_to_write(const ls_instance *instance)
{
    uint64_t bytes = STATE_BYTES;
    for (int32_t i = 0; i < instance->decoder.n_params; i++) {
        const ls_param *p = &instance->decoder.params[i];
        const int32_t tensors[] = {p->weight, p->lo, p->m, p->v};
        for (int s = 0; s < 4; s++)
            if (tensors[s] >= 0)
                bytes += ls_tensor_bytes(&instance->decoder.tape.tensors[tensors[s]]);
    }
    return bytes;
}

static ls_status write_model_config(const ls_trainer *t, ls_checkpoint_writer *writer)
{
    cJSON *json = NULL;
    LS_TRY(ls_model_config_to_json(t->model, t->config->precision, &json));
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "config.json");
    const ls_status status = ls_checkpoint_write(writer, "config.json", text, strlen(text));
    free(text);
    return status;
}

static ls_status write_all(const ls_trainer *t, const cJSON *config_json,
                           ls_checkpoint_writer *writer, cJSON *state)
{
    LS_TRY(build_state(t, config_json, state));
    LS_TRY(write_model_config(t, writer));
    LS_TRY(write_set(&t->instance, writer, "model"));
    return write_set(&t->instance, writer, "optimizer");
}

ls_status ls_checkpoint_save(ls_trainer *trainer, const cJSON *config_json)
{
    const uint64_t start_ns = ls_clock_ns();
    ls_checkpoint_writer *writer = NULL;
    cJSON *state = cJSON_CreateObject();

    if (state == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "state.json");
    ls_status status = ls_checkpoint_begin(trainer->config->output, trainer->step,
                                           bytes_to_write(&trainer->instance), &writer);
    if (status == LS_OK) {
        status = write_all(trainer, config_json, writer, state);
        if (status == LS_OK)
            status = ls_checkpoint_commit(writer, state);
        else
            ls_checkpoint_abort(writer);
    }
    cJSON_Delete(state);
    LS_TRY(status);
    trainer->save_seconds = 1e-9 * (double)(ls_clock_ns() - start_ns);
    return ls_checkpoint_rotate(trainer->config->output, trainer->config->checkpoint_keep);
}

ls_status ls_checkpoint_load(ls_trainer *trainer, const char *directory)
{
    cJSON *state = NULL;

    LS_TRY(read_set(&trainer->instance, directory, "model"));
    LS_TRY(ls_checkpoint_state_read(directory, &state));
    ls_status status = LS_OK;
    if (trainer->options.train) {
        status = read_set(&trainer->instance, directory, "optimizer");
        if (status == LS_OK) status = read_position(directory, state, trainer);
    } else {
        status = ls_json_get_whole(directory, state, "step", 0, LS_JSON_WHOLE_MAX, &trainer->step);
    }
    cJSON_Delete(state);
    return status;
}
