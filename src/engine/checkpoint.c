/*
 * checkpoint.c - tensors straight from the arena to files and back.
 *
 * Two sets are written side by side, because the order of saving follows the updates: a layer's
 * weights go to one, its moments and remainders to the other.
 */
#include "checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_dir.h"
#include "json.h"
#include "parallel.h"
#include "run_state.h"
#include "safetensors_set.h"

#define SHARD_BYTES_MAX (UINT64_C(5) << 30)
#define PIECE_BYTES     (UINT64_C(2) << 20)
#define READ_THREADS    8
#define VALUE_BYTES     200        /* of a config's value in a message */
#define STATE_BYTES     (64 << 10) /* room for config.json and state.json, for the preflight */

struct ls_checkpoint_saver {
    const ls_trainer *trainer; /* no member that changes from step to step is read */
    int64_t step;
    int32_t *tensors; /* [n] in the order in which they come */
    int64_t n, next;
    cJSON *state;
    ls_checkpoint_writer *folder;
    ls_safetensors_set_writer *model, *optimizer; /* no optimizer if all parameters are frozen */
};

/* ---- tensors ------------------------------------------------------------------------------- */

/* The tensors of a checkpoint as they are saved; release with free(). */
static ls_status list_tensors(const ls_instance *instance, int32_t **tensors, int64_t *n)
{
    const ls_decoder *d = &instance->decoder;
    int32_t *listed = malloc(LS_DECODER_SAVED_MAX * (size_t)d->n_params * sizeof *listed);

    if (listed == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the list of tensors of a checkpoint");
    *n = ls_decoder_save_order(d, listed);
    *tensors = listed;
    return LS_OK;
}

/* Whether a tensor is of the set "model"; else it is of "optimizer". */
static bool is_weights(const ls_instance *instance, int32_t tensor)
{
    return instance->decoder.tape.tensors[tensor].role == LS_ROLE_WEIGHTS;
}

static ls_safetensors_tensor describe_tensor(const ls_instance *instance, int32_t tensor)
{
    const ls_tensor *t = &instance->decoder.tape.tensors[tensor];
    ls_safetensors_tensor described = {.name = t->name, .dtype = t->dtype, .n_dims = t->n_dims};
    for (int d = 0; d < t->n_dims; d++) described.dims[d] = t->dims[d];
    return described;
}

/* ---- save ---------------------------------------------------------------------------------- */

static uint64_t bytes_to_write(const ls_checkpoint_saver *saver)
{
    const ls_tape *tape = &saver->trainer->instance.decoder.tape;
    uint64_t bytes = STATE_BYTES + ls_companions_bytes(&saver->trainer->companions);

    for (int64_t i = 0; i < saver->n; i++)
        bytes += ls_tensor_bytes(&tape->tensors[saver->tensors[i]]);
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

static ls_status register_file(void *context, const char *name, uint64_t bytes, uint32_t crc)
{
    return ls_checkpoint_add(context, name, bytes, crc);
}

static ls_status open_set(const ls_checkpoint_saver *saver, const char *base, bool weights,
                          ls_safetensors_set_writer **set)
{
    const ls_instance *instance = &saver->trainer->instance;
    const ls_safetensors_set_options options = {.directory = ls_checkpoint_folder(saver->folder),
                                                .base = base,
                                                .shard_bytes_max = SHARD_BYTES_MAX,
                                                .on_file = register_file,
                                                .context = saver->folder};
    ls_safetensors_tensor *described = malloc((size_t)saver->n * sizeof *described);
    int64_t n = 0;

    if (described == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the list of tensors to save");
    for (int64_t i = 0; i < saver->n; i++) {
        if (is_weights(instance, saver->tensors[i]) == weights)
            described[n++] = describe_tensor(instance, saver->tensors[i]);
    }
    const ls_status status =
        n > 0 ? ls_safetensors_set_writer_open(&options, described, n, set) : LS_OK;
    free(described);
    return status;
}

static ls_status fill_saver(ls_checkpoint_saver *saver, const ls_position *position,
                            const cJSON *config_json)
{
    const ls_trainer *t = saver->trainer;

    LS_TRY(list_tensors(&t->instance, &saver->tensors, &saver->n));
    LS_TRY(ls_run_state_build(t, position, config_json, &saver->state));
    LS_TRY(ls_checkpoint_begin(t->config->output, position->step, bytes_to_write(saver),
                               &saver->folder));
    LS_TRY(write_model_config(t, saver->folder));
    LS_TRY(ls_companions_write(&t->companions, saver->folder));
    LS_TRY(open_set(saver, "model", true, &saver->model));
    return open_set(saver, "optimizer", false, &saver->optimizer);
}

ls_status ls_checkpoint_save_begin(const ls_trainer *trainer, const ls_position *position,
                                   const cJSON *config_json, ls_checkpoint_saver **saver)
{
    ls_checkpoint_saver *begun = calloc(1, sizeof *begun);

    if (begun == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a checkpoint");
    begun->trainer = trainer;
    begun->step = position->step;
    const ls_status status = fill_saver(begun, position, config_json);
    if (status != LS_OK) {
        ls_checkpoint_save_abort(begun);
        return status;
    }
    *saver = begun;
    return LS_OK;
}

ls_status ls_checkpoint_save_tensor(ls_checkpoint_saver *saver, int32_t tensor)
{
    const ls_instance *instance = &saver->trainer->instance;

    assert(saver->next < saver->n && saver->tensors[saver->next] == tensor);
    saver->next++;
    return ls_safetensors_set_writer_append(is_weights(instance, tensor) ? saver->model
                                                                         : saver->optimizer,
                                            ls_instance_tensor(instance, tensor));
}

static ls_status complete(ls_checkpoint_saver *saver)
{
    const ls_run_config *config = saver->trainer->config;
    ls_checkpoint_writer *folder = saver->folder;

    LS_TRY(ls_safetensors_set_writer_finish(saver->model));
    if (saver->optimizer != NULL) LS_TRY(ls_safetensors_set_writer_finish(saver->optimizer));
    saver->folder = NULL; /* released by the commit in any case */
    LS_TRY(ls_checkpoint_commit(folder, saver->state));
    return ls_checkpoint_rotate(config->output, config->checkpoint_keep, saver->step);
}

ls_status ls_checkpoint_save_end(ls_checkpoint_saver *saver)
{
    const ls_status status = complete(saver);
    ls_checkpoint_save_abort(saver); /* keeps what has been committed */
    return status;
}

void ls_checkpoint_save_abort(ls_checkpoint_saver *saver)
{
    if (saver == NULL) return;
    ls_safetensors_set_writer_close(saver->model);
    ls_safetensors_set_writer_close(saver->optimizer);
    ls_checkpoint_abort(saver->folder);
    cJSON_Delete(saver->state);
    free(saver->tensors);
    free(saver);
}

/* ---- load ---------------------------------------------------------------------------------- */

/* Part of a tensor: one request to the disk. */
typedef struct piece {
    int32_t tensor;
    int64_t entry; /* of the set */
    uint64_t offset, bytes;
} piece;

typedef struct reading {
    const ls_instance *instance;
    const char *directory;
    ls_safetensors_set *set;
    int32_t *tensors; /* [n] of the set */
    int64_t n;
    piece *pieces;
    int64_t n_pieces;
} reading;

static ls_status list_set(reading *r, bool weights)
{
    int64_t n = 0;

    LS_TRY(list_tensors(r->instance, &r->tensors, &n));
    for (int64_t i = 0; i < n; i++)
        if (is_weights(r->instance, r->tensors[i]) == weights) r->tensors[r->n++] = r->tensors[i];
    return LS_OK;
}

static ls_status find_tensor(const reading *r, int32_t tensor, int64_t *index)
{
    const ls_safetensors_tensor wanted = describe_tensor(r->instance, tensor);
    const int64_t found = ls_safetensors_set_find(r->set, wanted.name);
    const ls_safetensors_entry *entry = found >= 0 ? ls_safetensors_set_get(r->set, found) : NULL;
    bool same = entry != NULL && entry->dtype == wanted.dtype && entry->n_dims == wanted.n_dims;

    for (int d = 0; same && d < wanted.n_dims; d++) same = entry->dims[d] == wanted.dims[d];
    if (!same)
        return LS_FAIL(LS_ERR_CORRUPT, "%s: %s is missing, or has another shape or dtype",
                       r->directory, wanted.name);
    *index = found;
    return LS_OK;
}

static ls_status cut_pieces(reading *r)
{
    const ls_tape *tape = &r->instance->decoder.tape;
    int64_t n = 0, index;

    for (int64_t i = 0; i < r->n; i++)
        n += (int64_t)(ls_tensor_bytes(&tape->tensors[r->tensors[i]]) / PIECE_BYTES) + 1;
    r->pieces = malloc((size_t)n * sizeof *r->pieces);
    if (r->pieces == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a list of %lld reads", (long long)n);
    for (int64_t i = 0; i < r->n; i++) {
        const uint64_t bytes = ls_tensor_bytes(&tape->tensors[r->tensors[i]]);
        LS_TRY(find_tensor(r, r->tensors[i], &index));
        for (uint64_t offset = 0; offset < bytes; offset += PIECE_BYTES) {
            const uint64_t rest = bytes - offset;
            r->pieces[r->n_pieces++] =
                (piece){r->tensors[i], index, offset, rest < PIECE_BYTES ? rest : PIECE_BYTES};
        }
    }
    return LS_OK;
}

static ls_status read_piece(void *context, int64_t index)
{
    const reading *r = context;
    const piece *p = &r->pieces[index];
    char *to = ls_instance_tensor(r->instance, p->tensor);

    return ls_safetensors_set_read(r->set, p->entry, p->offset, p->bytes, to + p->offset);
}

static ls_status read_tensors(reading *r, bool weights)
{
    LS_TRY(list_set(r, weights));
    if (r->n == 0) return LS_OK; /* a set that would hold no tensor is not there */
    LS_TRY(ls_safetensors_set_open(r->directory, weights ? "model" : "optimizer", &r->set));
    LS_TRY(cut_pieces(r));
    return ls_parallel_run(r->n_pieces, READ_THREADS, read_piece, r);
}

/* Several requests at a time, straight into the arena. */
static ls_status read_set(const ls_instance *instance, const char *directory, bool weights)
{
    reading r = {.instance = instance, .directory = directory};
    const ls_status status = read_tensors(&r, weights);

    ls_safetensors_set_close(r.set);
    free(r.tensors);
    free(r.pieces);
    return status;
}

static ls_status read_optimizer(ls_trainer *t, const char *directory, const cJSON *state)
{
    ls_position position;

    LS_TRY(read_set(&t->instance, directory, false));
    LS_TRY(ls_run_state_read_position(directory, state, ls_loader_describe(t->train_data).identity,
                                      &position));
    t->step = position.step;
    t->next_sequence = position.next_sequence;
    t->tokens_total = position.tokens_total;
    *t->control = position.control;
    return LS_OK;
}

ls_status ls_checkpoint_load(ls_trainer *trainer, const char *directory)
{
    cJSON *state = NULL;

    LS_TRY(read_set(&trainer->instance, directory, true));
    LS_TRY(ls_checkpoint_state_read(directory, &state));
    const ls_status status =
        trainer->options.train
            ? read_optimizer(trainer, directory, state)
            : ls_json_get_whole(directory, state, "step", 0, LS_JSON_WHOLE_MAX, &trainer->step);
    cJSON_Delete(state);
    return status == LS_OK ? ls_instance_fill_copies(&trainer->instance) : status;
}

/* ---- a stage after another ----------------------------------------------------------------- */

static ls_status fail_carry(const char *directory, const char *why)
{
    return LS_FAIL(LS_ERR_INVALID,
                   "init: pretrained+optimizer, but model %s is no checkpoint of a run: %s; "
                   "allowed: a folder step-NNNNNNNN of a run, or init: pretrained",
                   directory, why);
}

/* The states of one kind are no states of another. */
static ls_status compare_kinds(const char *directory, const cJSON *before, const cJSON *now)
{
    static const char *const keys[] = {"precision", "optimizer.moments"};
    char is[VALUE_BYTES], was[VALUE_BYTES];

    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        ls_run_config_show(now, keys[k], is, sizeof is);
        ls_run_config_show(before, keys[k], was, sizeof was);
        if (strcmp(is, was) != 0)
            return LS_FAIL(LS_ERR_INVALID,
                           "%s: %s, but the optimizer in %s was run with %s; allowed: %s, or init: "
                           "pretrained for the weights alone",
                           keys[k], is, directory, was, was);
    }
    return LS_OK;
}

static ls_status check_kind(const ls_trainer *t, const char *directory, const cJSON *state)
{
    const cJSON *before;
    cJSON *now = NULL;

    LS_TRY(ls_json_get_object(directory, state, "config", &before));
    LS_TRY(ls_run_config_to_json(t->config, &now));
    const ls_status status = compare_kinds(directory, before, now);
    cJSON_Delete(now);
    return status;
}

static ls_status carry(ls_trainer *t, const char *directory, const cJSON *state)
{
    ls_update_control control;

    if (cJSON_GetObjectItemCaseSensitive(state, "optimizer") == NULL)
        return fail_carry(directory, "its state.json has no optimizer");
    LS_TRY(check_kind(t, directory, state));
    LS_TRY(ls_run_state_read_control(directory, state, &control));
    LS_TRY(read_set(&t->instance, directory, true));
    LS_TRY(read_set(&t->instance, directory, false));
    t->control->beta1_power = control.beta1_power;
    t->control->beta2_power = control.beta2_power;
    t->control->updates = control.updates;
    return ls_instance_fill_copies(&t->instance);
}

ls_status ls_checkpoint_carry(ls_trainer *trainer, const char *directory)
{
    bool is_checkpoint = false;
    cJSON *state = NULL;

    LS_TRY(ls_checkpoint_verify_if_any(directory, &is_checkpoint));
    if (!is_checkpoint) return fail_carry(directory, "it has no state.json");
    LS_TRY(ls_checkpoint_state_read(directory, &state));
    const ls_status status = carry(trainer, directory, state);
    cJSON_Delete(state);
    return status;
}

ls_status ls_checkpoint_read_choices(const char *directory, ls_choices *choices,
                                     cJSON **config_json)
{
    const cJSON *config;
    cJSON *state = NULL, *copy = NULL;
    ls_choices read;

    LS_TRY(ls_checkpoint_state_read(directory, &state));
    ls_status status = ls_run_state_read_choices(directory, state, &read);
    if (status == LS_OK) status = ls_json_get_object(directory, state, "config", &config);
    if (status == LS_OK) {
        copy = cJSON_Duplicate(config, true);
        if (copy == NULL) status = LS_FAIL(LS_ERR_NO_MEMORY, "the checkpoint's config");
    }
    cJSON_Delete(state);
    if (status != LS_OK) return status;
    *choices = read;
    *config_json = copy;
    return LS_OK;
}
