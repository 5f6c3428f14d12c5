/*
 * run_state.c - a run's position and choices as JSON, and back.
 *
 * The beta powers are doubles and go as hexadecimal floating point text: resume is exact.
 */
#include "run_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

#define STATE_SCHEMA 1

/* ---- build --------------------------------------------------------------------------------- */

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

static ls_status add_control(const ls_update_control *c, cJSON *state)
{
    cJSON *control = cJSON_CreateObject();
    LS_TRY(ls_json_add(state, "optimizer", control));
    LS_TRY(add_exact(control, "beta1_power", c->beta1_power));
    LS_TRY(add_exact(control, "beta2_power", c->beta2_power));
    LS_TRY(add_number(control, "updates", c->updates));
    LS_TRY(add_number(control, "skipped", c->skipped));
    return add_number(control, "skipped_in_a_row", c->skipped_in_a_row);
}

static ls_status add_choices(const ls_choices *c, cJSON *state)
{
    cJSON *choices = cJSON_CreateObject();
    LS_TRY(ls_json_add(state, "choices", choices));
    LS_TRY(add_number(choices, "chunk", c->chunk));
    LS_TRY(add_number(choices, "query_block", c->query_block));
    LS_TRY(add_number(choices, "loss_rows", c->loss_rows));
    LS_TRY(ls_json_add(choices, "layer_major", cJSON_CreateBool(c->layer_major)));
    LS_TRY(ls_json_add(choices, "save", ls_saves_to_json(&c->saves)));
    const char *weights = ls_mode_name(c->placement.classes[LS_CLASS_WEIGHTS].mode);
    LS_TRY(ls_json_add(choices, "weights", cJSON_CreateString(weights)));
    return add_number(choices, "ring_slots", c->placement.ring_slots);
}

static ls_status fill_state(const ls_trainer *t, const ls_position *position,
                            const cJSON *config_json, cJSON *state)
{
    uint64_t hash;
    char text[32];

    LS_TRY(add_number(state, "schema", STATE_SCHEMA));
    LS_TRY(add_number(state, "step", position->step));
    LS_TRY(add_number(state, "next_sequence", position->next_sequence));
    LS_TRY(add_number(state, "tokens_total", position->tokens_total));
    snprintf(text, sizeof text, "%" PRIu64, t->config->seed);
    LS_TRY(ls_json_add(state, "rng_seed", cJSON_CreateString(text)));
    LS_TRY(add_number(state, "data_identity", ls_loader_describe(t->train_data).identity));
    LS_TRY(add_control(&position->control, state));
    LS_TRY(add_choices(&t->choices, state));
    LS_TRY(ls_run_config_hash(config_json, &hash));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    LS_TRY(ls_json_add(state, "config_hash", cJSON_CreateString(text)));
    return ls_json_add(state, "config", cJSON_Duplicate(config_json, true));
}

ls_status ls_run_state_build(const ls_trainer *trainer, const ls_position *position,
                             const cJSON *config_json, cJSON **state)
{
    cJSON *built = cJSON_CreateObject();

    if (built == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "state.json");
    const ls_status status = fill_state(trainer, position, config_json, built);
    if (status != LS_OK) {
        cJSON_Delete(built);
        return status;
    }
    *state = built;
    return LS_OK;
}

/* ---- read ---------------------------------------------------------------------------------- */

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

static ls_status read_whole(const char *name, const cJSON *object, const char *key, int64_t *value)
{
    return ls_json_get_whole(name, object, key, 0, LS_JSON_WHOLE_MAX, value);
}

ls_status ls_run_state_read_control(const char *name, const cJSON *state,
                                    ls_update_control *control)
{
    const cJSON *o;

    LS_TRY(ls_json_get_object(name, state, "optimizer", &o));
    LS_TRY(read_exact(name, o, "beta1_power", &control->beta1_power));
    LS_TRY(read_exact(name, o, "beta2_power", &control->beta2_power));
    LS_TRY(read_whole(name, o, "updates", &control->updates));
    LS_TRY(read_whole(name, o, "skipped", &control->skipped));
    return read_whole(name, o, "skipped_in_a_row", &control->skipped_in_a_row);
}

ls_status ls_run_state_read_position(const char *name, const cJSON *state, uint32_t identity,
                                     ls_position *position)
{
    ls_position read = {.step = 0};
    int64_t saved_identity;

    LS_TRY(ls_run_state_read_control(name, state, &read.control));
    LS_TRY(read_whole(name, state, "step", &read.step));
    LS_TRY(read_whole(name, state, "next_sequence", &read.next_sequence));
    LS_TRY(read_whole(name, state, "tokens_total", &read.tokens_total));
    LS_TRY(ls_json_get_whole(name, state, "data_identity", 0, UINT32_MAX, &saved_identity));
    if (saved_identity != (int64_t)identity)
        return LS_FAIL(LS_ERR_INVALID,
                       "data.train: the shards are not those the checkpoint %s was trained on; "
                       "restore them, or start a new run with another output",
                       name);
    *position = read;
    return LS_OK;
}

/* Only what was free to choose; the rest of the placement follows from config and machine. */
static ls_status read_weights(const char *name, const cJSON *choices, ls_placement *placement)
{
    const char *weights;
    int mode = 0;

    LS_TRY(ls_json_get_text(name, choices, "weights", &weights));
    while (mode < LS_MODE_COUNT && strcmp(weights, ls_mode_name((ls_place_mode)mode)) != 0) mode++;
    if (mode == LS_MODE_COUNT)
        return LS_FAIL(LS_ERR_CORRUPT,
                       "%s: choices.weights is '%s'; allowed: direct, stream, "
                       "resident",
                       name, weights);
    placement->classes[LS_CLASS_WEIGHTS].mode = (ls_place_mode)mode;
    return ls_json_get_whole(name, choices, "ring_slots", 0, LS_RING_SLOTS_MAX,
                             &placement->ring_slots);
}

ls_status ls_run_state_read_choices(const char *name, const cJSON *state, ls_choices *choices)
{
    ls_choices read = {0};
    const cJSON *o;

    LS_TRY(ls_json_get_object(name, state, "choices", &o));
    LS_TRY(ls_json_get_whole(name, o, "chunk", 1, LS_JSON_WHOLE_MAX, &read.chunk));
    LS_TRY(ls_json_get_whole(name, o, "query_block", 1, LS_JSON_WHOLE_MAX, &read.query_block));
    LS_TRY(ls_json_get_whole(name, o, "loss_rows", 1, LS_JSON_WHOLE_MAX, &read.loss_rows));
    LS_TRY(ls_json_get_bool(name, o, "layer_major", &read.layer_major));
    LS_TRY(ls_saves_read_json(name, o, "save", &read.saves));
    LS_TRY(read_weights(name, o, &read.placement));
    *choices = read;
    return LS_OK;
}
