/*
 * plan_maximize.c - a bisection that guesses.
 *
 * The bytes of a place grow along straight lines, but where the placement changes.  So the line
 * through the last two lengths that fit says where to look next, and its guess is mostly right at
 * once: then the next longer one is looked at, which does not fit, and that is the proof.  Once
 * there is an upper bound, every second look halves what is left, so a bad guess costs little.
 */
#include "plan_maximize.h"

#include <string.h>

#include "json.h"
#include "text.h"

#define GROWTH_MAX 8 /* of a guess over what is known to fit: lines of short sequences mislead */

static const struct {
    const char *name;
    ls_save_policy save;
} policies[LS_MAXIMIZE_POLICIES] = {
    {"x+qkv+o", LS_SAVE_X_QKV_O}, {"x+o", LS_SAVE_X_O}, {"x", LS_SAVE_X}};

/* ---- looking at a length ------------------------------------------------------------------- */

static bool has_room(const ls_hardware *hardware, const ls_length *length)
{
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (length->place_bytes[p] > hardware->available_bytes[p]) return false;
    return true;
}

static ls_status measure(const ls_decoder_options *options, const ls_choices *choices,
                         ls_length *length)
{
    ls_decoder decoder;
    ls_plan plan;

    LS_TRY(ls_decoder_build(options, &decoder));
    const ls_status status = ls_plan_lower(&decoder.tape, &choices->placement, &ls_ops_cpu, &plan);
    if (status == LS_OK) {
        for (int p = 0; p < LS_PLACE_COUNT; p++)
            length->place_bytes[p] = ls_plan_place_bytes(&plan, (ls_place_kind)p);
        ls_plan_free(&plan);
    }
    ls_decoder_free(&decoder);
    return status;
}

/* Make the choices that training would make, and build its plan. */
static ls_status look(ls_maximum *m, ls_save_policy save, int64_t blocks, ls_length *length)
{
    ls_run_config config = *m->config; /* a view of it: nothing of it is released */
    ls_choices choices;

    config.save = save;
    config.sequence_tokens = blocks * m->query_block;
    LS_TRY(ls_choices_make_any(&config, m->model, m->hardware, true, &choices));
    const ls_decoder_options options = ls_choices_decoder(&config, m->model, &choices, true);
    *length = (ls_length){.tokens = config.sequence_tokens,
                          .weights = choices.placement.classes[LS_CLASS_WEIGHTS].mode};
    LS_TRY(measure(&options, &choices, length));
    length->fits = has_room(m->hardware, length);
    m->chunk = choices.chunk;
    m->n_looks++;
    return LS_OK;
}

/* ---- the search ---------------------------------------------------------------------------- */

/* Where the line through two lengths leaves the room of the first place to be full. */
static int64_t extrapolate(const ls_maximum *m, const ls_length *shorter, const ls_length *longer)
{
    double tokens = (double)longer->tokens * GROWTH_MAX;

    for (int p = 0; p < LS_PLACE_COUNT && shorter->tokens > 0; p++) {
        const double room =
            (double)m->hardware->available_bytes[p] - (double)longer->place_bytes[p];
        const double slope = ((double)longer->place_bytes[p] - (double)shorter->place_bytes[p]) /
                             (double)(longer->tokens - shorter->tokens);
        if (slope > 0 && (double)longer->tokens + room / slope < tokens)
            tokens = (double)longer->tokens + room / slope;
    }
    return (int64_t)(tokens / (double)m->query_block);
}

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static ls_status find_longest(ls_maximum *m, ls_save_policy save, ls_length *longest)
{
    const int64_t most = INT32_MAX / m->config->sequences / m->query_block;
    ls_length before = {0}, now = {0}, next;
    int64_t least = 0, end = most + 1; /* blocks that fit; that do not */

    while (end - least > 1) {
        int64_t guess = least == 0 ? 1 : extrapolate(m, &before, &now);
        const bool halve = end <= most && m->n_looks % 2 == 0;
        if (halve) guess = least + (end - least) / 2;
        guess = clamp(guess, least + 1, end - 1);
        LS_TRY(look(m, save, guess, &next));
        if (next.fits) {
            before = now;
            now = next;
            least = guess;
        } else {
            end = guess;
        }
    }
    *longest = now;
    return LS_OK;
}

ls_status ls_maximum_find(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, ls_maximum *maximum)
{
    ls_maximum m = {.config = config, .model = model, .hardware = hardware};

    m.query_block = config->query_block > 0 ? config->query_block : LS_QUERY_BLOCK_ROWS;
    for (int p = 0; p < LS_MAXIMIZE_POLICIES; p++) {
        m.longest[p].save = policies[p].name;
        LS_TRY(find_longest(&m, policies[p].save, &m.longest[p].length));
    }
    *maximum = m;
    return LS_OK;
}

/* ---- what is said of it -------------------------------------------------------------------- */

void ls_maximum_print(const ls_maximum *m, FILE *file)
{
    char block[LS_TEXT_BYTES], chunk[LS_TEXT_BYTES], tokens[LS_TEXT_BYTES];
    char hbm[LS_TEXT_BYTES], host[LS_TEXT_BYTES];

    fprintf(file,
            "model: %s\nhardware: %s\nlongest sequence.tokens that fit, %lld at once: whole query "
            "blocks of %s, in chunks of %s\n\n",
            m->config->model_path, m->hardware->profile, (long long)m->config->sequences,
            ls_text_count(block, sizeof block, m->query_block),
            ls_text_count(chunk, sizeof chunk, m->chunk));
    fprintf(file, "  %-10s %12s %12s %12s   %s\n", "save", "tokens", "hbm", "host", "weights");
    for (int p = 0; p < LS_MAXIMIZE_POLICIES; p++) {
        const ls_longest *longest = &m->longest[p];
        const ls_length *length = &longest->length;
        if (length->tokens == 0) {
            fprintf(file, "  %-10s %12s\n", longest->save, "none");
            continue;
        }
        fprintf(file, "  %-10s %12s %12s %12s   %s\n", longest->save,
                ls_text_count(tokens, sizeof tokens, length->tokens),
                ls_text_bytes(hbm, sizeof hbm, length->place_bytes[LS_PLACE_HBM]),
                ls_text_bytes(host, sizeof host, length->place_bytes[LS_PLACE_HOST]),
                ls_mode_name(length->weights));
    }
    fprintf(file, "  %-10s %12s %12s %12s\n", "available", "",
            ls_text_bytes(hbm, sizeof hbm, m->hardware->available_bytes[LS_PLACE_HBM]),
            ls_text_bytes(host, sizeof host, m->hardware->available_bytes[LS_PLACE_HOST]));
}

static ls_status add_number(cJSON *object, const char *key, double value)
{
    return ls_json_add(object, key, ls_json_create_exact(value));
}

/* bytes NULL: of nothing. */
static ls_status add_places(cJSON *object, const char *key, const uint64_t *bytes)
{
    if (bytes == NULL) return ls_json_add(object, key, cJSON_CreateNull());
    cJSON *places = cJSON_CreateObject();
    LS_TRY(ls_json_add(object, key, places));
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        LS_TRY(add_number(places, ls_place_name((ls_place_kind)p), (double)bytes[p]));
    return LS_OK;
}

static ls_status add_longest(const ls_longest *longest, cJSON *list)
{
    const ls_length *length = &longest->length;
    const bool fits = length->tokens > 0;
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_append(list, object));
    LS_TRY(ls_json_add(object, "save", cJSON_CreateString(longest->save)));
    LS_TRY(add_number(object, "tokens", (double)length->tokens));
    LS_TRY(
        ls_json_add(object, "weights",
                    fits ? cJSON_CreateString(ls_mode_name(length->weights)) : cJSON_CreateNull()));
    return add_places(object, "peak_bytes", fits ? length->place_bytes : NULL);
}

static ls_status fill(const ls_maximum *m, cJSON *json)
{
    cJSON *list = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "maximize", list));
    for (int p = 0; p < LS_MAXIMIZE_POLICIES; p++) LS_TRY(add_longest(&m->longest[p], list));
    LS_TRY(ls_json_add(json, "profile", cJSON_CreateString(m->hardware->profile)));
    LS_TRY(ls_json_add(json, "model", cJSON_CreateString(m->config->model_path)));
    LS_TRY(add_number(json, "sequences", (double)m->config->sequences));
    LS_TRY(add_number(json, "chunk", (double)m->chunk));
    LS_TRY(add_number(json, "query_block", (double)m->query_block));
    return add_places(json, "available_bytes", m->hardware->available_bytes);
}

ls_status ls_maximum_to_json(const ls_maximum *maximum, cJSON **json)
{
    cJSON *made = cJSON_CreateObject();

    if (made == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the document of the longest sequences");
    const ls_status status = fill(maximum, made);
    if (status == LS_OK)
        *json = made;
    else
        cJSON_Delete(made);
    return status;
}

ls_status ls_maximum_verdict(const ls_maximum *m)
{
    for (int p = 0; p < LS_MAXIMIZE_POLICIES; p++)
        if (m->longest[p].length.tokens > 0) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "%lld sequences of one query block of %lld tokens do not fit %s, whatever is "
                   "saved; lower sequence.query_block or batch.sequences, or take a smaller model",
                   (long long)m->config->sequences, (long long)m->query_block,
                   m->hardware->profile);
}
