/*
 * plan_maximize.c - a bisection that guesses.
 *
 * The bytes of a place grow along straight lines, but where the placement changes.  So the line
 * through the last two lengths that fit says where to look next, and its guess is mostly right at
 * once: then the next longer one is looked at, which does not fit, and that is the proof.  Once
 * there is an upper bound, every second look halves what is left, so a bad guess costs little.
 */
#include <assert.h>
#include <string.h>

#include "choices.h"
#include "json.h"
#include "plan_job.h"
#include "run_warning.h"
#include "text.h"

#define GROWTH_MAX 4 /* of a guess over what is known to fit: lines of short sequences mislead */

static const char *const policies[] = {"x+qkv+o", "x+o", "o+x/4", "x", "x/4"};

enum { N_POLICIES = sizeof policies / sizeof policies[0] };

/* A length that has been looked at. */
typedef struct probe {
    int64_t tokens; /* of a sequence; 0: none */
    uint64_t place_bytes[LS_PLACE_COUNT];
    ls_place_mode weights;
    bool fits;
} probe;

typedef struct maximum {
    const ls_run_config *config;
    const ls_model_config *model;
    const ls_hardware *hardware;
    int64_t chunk, query_block;
    probe longest[N_POLICIES]; /* 0 tokens: not even a query block fits */
} maximum;

/* ---- looking at a length ------------------------------------------------------------------- */

static bool has_room(const ls_hardware *hardware, const probe *length)
{
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (length->place_bytes[p] > ls_choices_room(hardware, (ls_place_kind)p)) return false;
    return true;
}

/* What the plan takes that training would follow at this length. */
static ls_status look(maximum *m, ls_save_policy save, int64_t blocks, probe *length)
{
    ls_run_config config = *m->config; /* a view of it: nothing of it is released */
    ls_choices choices;
    ls_plan_cost cost;

    config.save_auto = false;
    ls_saves_set(&config.saves, save);
    config.sequence_tokens = blocks * m->query_block;
    LS_TRY(ls_choices_make_any(&config, m->model, m->hardware, true, &choices));
    LS_TRY(ls_choices_measure(&config, m->model, m->hardware, &choices, &cost));
    *length = (probe){.tokens = config.sequence_tokens,
                      .weights = choices.placement.classes[LS_CLASS_WEIGHTS].mode};
    memcpy(length->place_bytes, cost.place_bytes, sizeof length->place_bytes);
    length->fits = has_room(m->hardware, length);
    m->chunk = choices.chunk;
    return LS_OK;
}

/* ---- the search ---------------------------------------------------------------------------- */

/* Where the line through two lengths leaves the room of the first place to be full. */
static int64_t extrapolate(const maximum *m, const probe *shorter, const probe *longer)
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

static ls_status find_longest(maximum *m, ls_save_policy save, probe *longest)
{
    const int64_t most = INT32_MAX / m->config->sequences / m->query_block;
    probe before = {0}, now = {0}, next;
    int64_t least = 0, end = most + 1; /* blocks that fit; that do not */

    for (int n = 0; end - least > 1; n++) {
        int64_t guess = least == 0 ? 1 : extrapolate(m, &before, &now);
        const bool halve = end <= most && n % 2 == 0;
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

static ls_status find_all(maximum *m)
{
    for (int p = 0; p < N_POLICIES; p++) {
        ls_save_policy policy;
        const bool known = ls_save_policy_parse(policies[p], &policy);
        assert(known);
        LS_TRY(find_longest(m, policy, &m->longest[p]));
    }
    return LS_OK;
}

/* ---- what is said of it -------------------------------------------------------------------- */

static void print_table(const maximum *m, FILE *file)
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
    for (int p = 0; p < N_POLICIES; p++) {
        const probe *longest = &m->longest[p];
        if (longest->tokens == 0) {
            fprintf(file, "  %-10s %12s\n", policies[p], "none");
            continue;
        }
        fprintf(file, "  %-10s %12s %12s %12s   %s", policies[p],
                ls_text_count(tokens, sizeof tokens, longest->tokens),
                ls_text_bytes(hbm, sizeof hbm, longest->place_bytes[LS_PLACE_HBM]),
                ls_text_bytes(host, sizeof host, longest->place_bytes[LS_PLACE_HOST]),
                ls_mode_name(longest->weights));
        if (longest->place_bytes[LS_PLACE_NVME] > 0)
            fprintf(file, "; nvme %s of %s",
                    ls_text_bytes(hbm, sizeof hbm, longest->place_bytes[LS_PLACE_NVME]),
                    ls_text_bytes(host, sizeof host, m->hardware->available_bytes[LS_PLACE_NVME]));
        fputc('\n', file);
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

static ls_status add_longest(const char *save, const probe *longest, cJSON *list)
{
    const bool fits = longest->tokens > 0;
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_append(list, object));
    LS_TRY(ls_json_add(object, "save", cJSON_CreateString(save)));
    LS_TRY(add_number(object, "tokens", (double)longest->tokens));
    LS_TRY(ls_json_add(object, "weights",
                       fits ? cJSON_CreateString(ls_mode_name(longest->weights))
                            : cJSON_CreateNull()));
    return add_places(object, "peak_bytes", fits ? longest->place_bytes : NULL);
}

static ls_status fill(const maximum *m, cJSON *json)
{
    cJSON *list = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "maximize", list));
    for (int p = 0; p < N_POLICIES; p++) LS_TRY(add_longest(policies[p], &m->longest[p], list));
    LS_TRY(ls_json_add(json, "profile", cJSON_CreateString(m->hardware->profile)));
    LS_TRY(ls_json_add(json, "model", cJSON_CreateString(m->config->model_path)));
    LS_TRY(add_number(json, "sequences", (double)m->config->sequences));
    LS_TRY(add_number(json, "chunk", (double)m->chunk));
    LS_TRY(add_number(json, "query_block", (double)m->query_block));
    return add_places(json, "available_bytes", m->hardware->available_bytes);
}

static ls_status make_document(const maximum *m, cJSON **json)
{
    cJSON *made = cJSON_CreateObject();

    if (made == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the document of the longest sequences");
    const ls_status status = fill(m, made);
    if (status == LS_OK)
        *json = made;
    else
        cJSON_Delete(made);
    return status;
}

static ls_status give_verdict(const maximum *m)
{
    for (int p = 0; p < N_POLICIES; p++)
        if (m->longest[p].tokens > 0) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "%lld sequences of one query block of %lld tokens do not fit %s, whatever is "
                   "saved; lower sequence.query_block or batch.sequences, or take a smaller model",
                   (long long)m->config->sequences, (long long)m->query_block,
                   m->hardware->profile);
}

static ls_status print_maximum(const maximum *m, bool json, FILE *file)
{
    cJSON *document = NULL;

    if (!json) {
        print_table(m, file);
    } else {
        LS_TRY(make_document(m, &document));
        const ls_status status = ls_plan_print_json(document, file);
        cJSON_Delete(document);
        LS_TRY(status);
    }
    LS_TRY(ls_plan_flush(file));
    return give_verdict(m);
}

ls_status ls_job_maximize(const ls_run_config *config, const ls_model_config *model, bool json,
                          FILE *file, const ls_job_options *options)
{
    ls_hardware hardware;
    maximum m = {.config = config,
                 .model = model,
                 .hardware = &hardware,
                 .query_block =
                     config->query_block > 0 ? config->query_block : LS_QUERY_BLOCK_ROWS};

    LS_TRY(ls_hardware_open(config->hardware, false, &hardware));
    if (!options->quiet) ls_run_warnings_print(config, model, &hardware);
    ls_status status = find_all(&m);
    if (status == LS_OK) status = print_maximum(&m, json, file);
    ls_hardware_close(&hardware);
    return status;
}
