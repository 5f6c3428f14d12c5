/*
 * plan_maximize.c - guess the longest sequence, then prove it.
 *
 * Under one placement the bytes of a place grow along a straight line, once there are a few query
 * blocks.  Two short plans for each placement that would be tried give the lines, these the guess;
 * the plan of that length then fits and that of the next one does not, which is the proof.  A wrong
 * guess costs a few plans more: steps that double until there is a bound on either side, then
 * halves.
 */
#include <assert.h>
#include <string.h>

#include "choices.h"
#include "json.h"
#include "plan_job.h"
#include "run_warning.h"
#include "text.h"

enum { SHORT_BLOCKS = 4, LONGER_BLOCKS = 6 }; /* lengths that give the lines */

static const char *const policies[] = {"x+qkv+o", "x+o", "o+x/4", "x", "x/4"};

enum { N_POLICIES = sizeof policies / sizeof policies[0] };

/* A length that has been looked at. */
typedef struct probe {
    int64_t tokens; /* of a sequence; 0: none */
    uint64_t place_bytes[LS_PLACE_COUNT];
    ls_place_mode weights;
    bool fits;
    bool is_bound_by_plan; /* a longer one's plan would be too large itself */
} probe;

typedef struct maximum {
    const ls_run_config *config;
    const ls_model_config *model;
    const ls_hardware *hardware;
    int64_t chunk, query_block;
    ls_choices choices;        /* of the policy at work */
    probe longest[N_POLICIES]; /* 0 tokens: not even a query block fits */
} maximum;

/* ---- looking at a length ------------------------------------------------------------------- */

static bool has_room(const ls_hardware *hardware, const uint64_t place_bytes[LS_PLACE_COUNT])
{
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (place_bytes[p] > ls_choices_room(hardware, (ls_place_kind)p)) return false;
    return true;
}

/* The run with this policy and length: a view of the config, nothing of it is released. */
static ls_run_config make_config(const maximum *m, ls_save_policy save, int64_t blocks)
{
    ls_run_config config = *m->config;

    config.save_auto = false;
    ls_saves_set(&config.saves, save);
    config.chunk = m->chunk;
    config.query_block = m->query_block;
    config.sequence_tokens = blocks * m->query_block;
    return config;
}

/* What the plan takes that training would follow at this length. */
static ls_status look(maximum *m, ls_save_policy save, int64_t blocks, probe *length)
{
    const ls_run_config config = make_config(m, save, blocks);
    ls_plan_cost cost;

    LS_TRY(ls_choices_check_plan(&config, m->model, &m->choices));
    LS_TRY(ls_choices_measure(&config, m->model, m->hardware, &m->choices, &cost));
    *length = (probe){.tokens = config.sequence_tokens,
                      .weights = m->choices.placement.classes[LS_CLASS_WEIGHTS].mode,
                      .fits = has_room(m->hardware, cost.place_bytes)};
    memcpy(length->place_bytes, cost.place_bytes, sizeof length->place_bytes);
    return LS_OK;
}

/* ---- the guess ----------------------------------------------------------------------------- */

/* What two short plans take under each placement. */
typedef struct lines {
    ls_plan_cost shorter[LS_CHOICES_ATTEMPTS], longer[LS_CHOICES_ATTEMPTS];
} lines;

static uint64_t read_line(const lines *l, int attempt, int place, int64_t blocks)
{
    const double from = (double)l->shorter[attempt].place_bytes[place];
    const double to = (double)l->longer[attempt].place_bytes[place];
    const double slope = (to - from) / (LONGER_BLOCKS - SHORT_BLOCKS);
    const double bytes = from + slope * (double)(blocks - SHORT_BLOCKS);

    return bytes > 0.0 ? (uint64_t)bytes : 0;
}

/* Whether it would fit by the lines: under the first placement with room on the device, or the
 * last. */
static bool would_fit(const maximum *m, const lines *l, int64_t blocks)
{
    uint64_t bytes[LS_PLACE_COUNT];
    int a = 0;

    while (a + 1 < LS_CHOICES_ATTEMPTS &&
           read_line(l, a, LS_PLACE_HBM, blocks) > ls_choices_room(m->hardware, LS_PLACE_HBM))
        a++;
    for (int p = 0; p < LS_PLACE_COUNT; p++) bytes[p] = read_line(l, a, p, blocks);
    return has_room(m->hardware, bytes);
}

static ls_status guess_longest(const maximum *m, ls_save_policy save, int64_t most, int64_t *blocks)
{
    const ls_run_config shorter = make_config(m, save, SHORT_BLOCKS);
    const ls_run_config longer = make_config(m, save, LONGER_BLOCKS);
    int64_t least = 0, end = most + 1; /* would fit; would not */
    lines l;

    LS_TRY(ls_choices_measure_each(&shorter, m->model, m->hardware, &m->choices, l.shorter));
    LS_TRY(ls_choices_measure_each(&longer, m->model, m->hardware, &m->choices, l.longer));
    while (end - least > 1) {
        const int64_t middle = least + (end - least) / 2;
        if (would_fit(m, &l, middle))
            least = middle;
        else
            end = middle;
    }
    *blocks = least;
    return LS_OK;
}

/* ---- the proof ----------------------------------------------------------------------------- */

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* The most query blocks whose plan may be made at all; at least one. */
static int64_t find_plan_bound(const maximum *m, ls_save_policy save, int64_t most)
{
    int64_t least = 1, end = most + 1; /* may; may not */

    while (end - least > 1) {
        const int64_t middle = least + (end - least) / 2;
        const ls_run_config config = make_config(m, save, middle);
        if (ls_choices_check_plan(&config, m->model, &m->choices) == LS_OK)
            least = middle;
        else
            end = middle;
    }
    return least;
}

static ls_status find_longest(maximum *m, ls_save_policy save, probe *longest)
{
    const int64_t tokens_bound = INT32_MAX / m->config->sequences / m->query_block;
    const ls_run_config one = make_config(m, save, 1);
    int64_t guess, step = 1;
    probe found = {0}, next;

    /* All but the placement is the same for every length. */
    LS_TRY(ls_choices_make_any(&one, m->model, m->hardware, true, NULL, &m->choices));
    LS_TRY(ls_choices_check_plan(&one, m->model, &m->choices));
    const int64_t most = find_plan_bound(m, save, tokens_bound);
    int64_t least = 0, end = most + 1; /* blocks that fit; that do not */
    guess = most;
    if (most > LONGER_BLOCKS) LS_TRY(guess_longest(m, save, most, &guess));
    for (guess = clamp(guess, 1, most); end - least > 1; step *= 2) {
        LS_TRY(look(m, save, guess, &next));
        if (next.fits) {
            found = next;
            least = guess;
        } else {
            end = guess;
        }
        guess = next.fits ? guess + step : guess - step;
        if (guess <= least || guess >= end) guess = least + (end - least) / 2;
    }
    found.is_bound_by_plan = found.fits && least == most && most < tokens_bound;
    *longest = found;
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
            ls_text_count(chunk, sizeof chunk, m->choices.chunk));
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
        fputs(longest->is_bound_by_plan ? "; longer with a greater sequence.chunk\n" : "\n", file);
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
    LS_TRY(ls_json_add(object, "bound_by",
                       cJSON_CreateString(longest->is_bound_by_plan ? "plan" : "memory")));
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
    LS_TRY(add_number(json, "chunk", (double)m->choices.chunk));
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
    bool computes_on_gpu;

    LS_TRY(ls_hardware_open(config->hardware, false, &hardware));
    ls_hardware_expect_kernels(config->fast, &hardware);
    computes_on_gpu = hardware.has_device && !hardware.emulated;
    m.chunk = config->chunk > 0 ? config->chunk : computes_on_gpu ? m.query_block : LS_CHUNK_ROWS;
    if (!options->quiet) ls_run_warnings_print(config, model, &hardware);
    ls_status status = find_all(&m);
    if (status == LS_OK) status = print_maximum(&m, json, file);
    ls_hardware_close(&hardware);
    return status;
}
