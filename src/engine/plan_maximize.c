/*
 * plan_maximize.c - guess the longest sequence, then prove it.
 *
 * Under one placement the bytes of a place grow along a straight line, once there are a few query
 * blocks.  Two short plans for each placement that would be tried give the lines, these the guess;
 * the plan of that length then fits and that of the next one does not, which is the proof.  A wrong
 * guess costs a few plans more: steps that double until there is a bound on either side, then
 * halves.
 *
 * Policies that keep least are tried once more with the inputs and outputs of the last layers in
 * device memory for good, as many as host memory lacks room for: from the longest on that fits
 * without.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "choices.h"
#include "json.h"
#include "plan_job.h"
#include "run_warning.h"
#include "text.h"

enum { SHORT_BLOCKS = 4, LONGER_BLOCKS = 6 }; /* lengths that give the lines */

static const char *const policies[] = {"x+qkv+o", "x+o", "o+x/4", "x", "x/4"};
static const char *const held[] = {"o+x/4", "x/4"}; /* its last layers in device memory */

enum { N_POLICIES = sizeof policies / sizeof policies[0], N_HELD = sizeof held / sizeof held[0] };

#define CORRECTIONS 4 /* layers more, or groups of them, than a division says */

/* A length that has been looked at. */
typedef struct probe {
    int64_t tokens; /* of a sequence; 0: none */
    uint64_t place_bytes[LS_PLACE_COUNT];
    ls_place_mode weights;
    int32_t n_held; /* last layers whose saves stay in device memory */
    bool fits;
    bool is_bound_by_plan; /* a longer one's plan would be too large itself */
} probe;

typedef struct maximum {
    const ls_run_config *config;
    const ls_model_config *model;
    const ls_hardware *hardware;
    int64_t chunk, query_block;
    ls_choices choices;         /* of the policy at work */
    probe longest[N_POLICIES];  /* 0 tokens: not even a query block fits */
    probe longest_held[N_HELD]; /* n_held 0: none fits that is longer */
} maximum;

/* ---- looking at a length ------------------------------------------------------------------- */

static bool has_room(const ls_hardware *hardware, const uint64_t place_bytes[LS_PLACE_COUNT])
{
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (place_bytes[p] > ls_choices_room(hardware, (ls_place_kind)p)) return false;
    return true;
}

/* The run with this policy and length: a view of the config, nothing of it is released. */
static ls_run_config make_config(const maximum *m, ls_save_policy save, int32_t n_held,
                                 int64_t blocks)
{
    const int32_t n_layers = (int32_t)m->model->num_hidden_layers;
    ls_run_config config = *m->config;

    config.save_auto = false;
    ls_saves_set(&config.saves, save);
    if (n_held > 0) {
        const ls_save_range range = {0, n_layers - n_held - 1, save, 0};
        const ls_save_range last = {n_layers - n_held, n_layers - 1, save, 1 + LS_PLACE_HBM};
        config.saves = (ls_saves){.n_layers = n_layers};
        if (n_held < n_layers) config.saves.ranges[config.saves.n_ranges++] = range;
        config.saves.ranges[config.saves.n_ranges++] = last;
    }
    config.chunk = m->chunk;
    config.query_block = m->query_block;
    config.sequence_tokens = blocks * m->query_block;
    return config;
}

/* What the plan takes that training would follow at this length. */
static ls_status look(maximum *m, ls_save_policy save, int32_t n_held, int64_t blocks,
                      probe *length)
{
    const ls_run_config config = make_config(m, save, n_held, blocks);
    ls_plan_cost cost;

    m->choices.saves = config.saves;
    LS_TRY(ls_choices_check_plan(&config, m->model, &m->choices));
    LS_TRY(ls_choices_measure(&config, m->model, m->hardware, &m->choices, &cost));
    *length = (probe){.tokens = config.sequence_tokens,
                      .weights = m->choices.placement.classes[LS_CLASS_WEIGHTS].mode,
                      .n_held = n_held,
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
    const ls_run_config shorter = make_config(m, save, 0, SHORT_BLOCKS);
    const ls_run_config longer = make_config(m, save, 0, LONGER_BLOCKS);
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
        const ls_run_config config = make_config(m, save, 0, middle);
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
    const ls_run_config one = make_config(m, save, 0, 1);
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
        LS_TRY(look(m, save, 0, guess, &next));
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

/* ---- last layers in device memory ---------------------------------------------------------- */

static bool lacks(const maximum *m, const probe *length, ls_place_kind place)
{
    return length->place_bytes[place] > ls_choices_room(m->hardware, place);
}

/* Fewer than what a division says may do, or alone have room in device memory. */
static ls_status look_fewer(maximum *m, ls_save_policy save, int64_t blocks, probe *length)
{
    const int32_t group = save.x_stride > 0 ? save.x_stride : 1;
    probe next;

    for (int32_t n = (length->n_held - 1) / group * group; n > 0; n -= group) {
        LS_TRY(look(m, save, n, blocks, &next));
        if (lacks(m, &next, LS_PLACE_HOST)) return LS_OK;
        if (next.fits || !length->fits) *length = next;
    }
    return LS_OK;
}

/* As many as host memory lacks room for, in whole groups; fits: with them it does. */
static ls_status look_held(maximum *m, ls_save_policy save, int64_t blocks, probe *length)
{
    const int32_t n_layers = (int32_t)m->model->num_hidden_layers;
    const int32_t group = save.x_stride > 0 ? save.x_stride : 1;

    LS_TRY(look(m, save, 0, blocks, length));
    if (length->fits || !lacks(m, length, LS_PLACE_HOST)) return LS_OK;
    const ls_run_config config = make_config(m, save, 0, blocks);
    const double group_bytes =
        ls_save_host_bytes(&config, m->model, &config.saves) / (double)n_layers * group;
    if (group_bytes <= 0) return LS_OK; /* nothing is kept that could be held */
    const double missing =
        (double)(length->place_bytes[LS_PLACE_HOST] - ls_choices_room(m->hardware, LS_PLACE_HOST));
    int64_t n_held = (int64_t)ceil(missing / group_bytes) * group;
    for (int i = 0; i < CORRECTIONS; i++, n_held += group) {
        if (n_held > n_layers) n_held = n_layers; /* the last group may be short */
        LS_TRY(look(m, save, (int32_t)n_held, blocks, length));
        if (length->fits || lacks(m, length, LS_PLACE_HBM) || n_held == n_layers) break;
    }
    return look_fewer(m, save, blocks, length);
}

/* Longer than what fits without, by steps that double until one does not, then halves. */
static ls_status find_longest_held(maximum *m, ls_save_policy save, const probe *without,
                                   probe *longest)
{
    const ls_run_config one = make_config(m, save, 0, 1);
    const int64_t tokens_bound = INT32_MAX / m->config->sequences / m->query_block;
    int64_t least = without->tokens / m->query_block, end, step = 1;
    bool has_end = false; /* a length that does not fit; else what a plan may have */
    probe next;

    *longest = *without;
    LS_TRY(ls_choices_make_any(&one, m->model, m->hardware, true, NULL, &m->choices));
    end = find_plan_bound(m, save, tokens_bound) + 1;
    while (end - least > 1) {
        const int64_t guess =
            !has_end && step < end - least ? least + step : least + (end - least) / 2;
        LS_TRY(look_held(m, save, guess, &next));
        if (next.fits) {
            *longest = next;
            least = guess;
            step *= 2;
        } else {
            end = guess;
            has_end = true;
        }
    }
    return LS_OK;
}

static ls_status find_all_held(maximum *m)
{
    for (int h = 0; h < N_HELD; h++) {
        ls_save_policy policy;
        int p = 0;
        while (strcmp(policies[p], held[h]) != 0) p++;
        const bool known = ls_save_policy_parse(held[h], &policy);
        assert(known);
        LS_TRY(find_longest_held(m, policy, &m->longest[p], &m->longest_held[h]));
    }
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
    return m->hardware->has_device ? find_all_held(m) : LS_OK;
}

/* ---- what is said of it -------------------------------------------------------------------- */

static void print_longest(const maximum *m, const char *save, const probe *longest, FILE *file)
{
    char tokens[LS_TEXT_BYTES], hbm[LS_TEXT_BYTES], host[LS_TEXT_BYTES];

    if (longest->tokens == 0) {
        fprintf(file, "  %-10s %12s\n", save, "none");
        return;
    }
    fprintf(file, "  %-10s %12s %12s %12s   %s", save,
            ls_text_count(tokens, sizeof tokens, longest->tokens),
            ls_text_bytes(hbm, sizeof hbm, longest->place_bytes[LS_PLACE_HBM]),
            ls_text_bytes(host, sizeof host, longest->place_bytes[LS_PLACE_HOST]),
            ls_mode_name(longest->weights));
    if (longest->n_held > 0) fprintf(file, "; the last %d layers' in hbm", (int)longest->n_held);
    if (longest->place_bytes[LS_PLACE_NVME] > 0)
        fprintf(file, "; nvme %s of %s",
                ls_text_bytes(hbm, sizeof hbm, longest->place_bytes[LS_PLACE_NVME]),
                ls_text_bytes(host, sizeof host, m->hardware->available_bytes[LS_PLACE_NVME]));
    fputs(longest->is_bound_by_plan ? "; longer with a greater sequence.chunk\n" : "\n", file);
}

static void print_table(const maximum *m, FILE *file)
{
    char block[LS_TEXT_BYTES], chunk[LS_TEXT_BYTES];
    char hbm[LS_TEXT_BYTES], host[LS_TEXT_BYTES];

    fprintf(file,
            "model: %s\nhardware: %s\nlongest sequence.tokens that fit, %lld at once: whole query "
            "blocks of %s, in chunks of %s\n\n",
            m->config->model_path, m->hardware->profile, (long long)m->config->sequences,
            ls_text_count(block, sizeof block, m->query_block),
            ls_text_count(chunk, sizeof chunk, m->choices.chunk));
    fprintf(file, "  %-10s %12s %12s %12s   %s\n", "save", "tokens", "hbm", "host", "weights");
    for (int p = 0; p < N_POLICIES; p++) print_longest(m, policies[p], &m->longest[p], file);
    for (int h = 0; h < N_HELD; h++)
        if (m->longest_held[h].n_held > 0) print_longest(m, held[h], &m->longest_held[h], file);
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
    LS_TRY(add_number(object, "hbm_layers", (double)longest->n_held));
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
    for (int h = 0; h < N_HELD; h++)
        if (m->longest_held[h].n_held > 0) LS_TRY(add_longest(held[h], &m->longest_held[h], list));
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

/* Where the run file leaves them open: those of a run of half a million tokens. */
static void set_rows(maximum *m)
{
    const ls_run_config *c = m->config;
    const bool on_gpu = m->hardware->has_device && !m->hardware->emulated;
    const int64_t block = on_gpu ? LS_GPU_QUERY_BLOCK_ROWS : LS_QUERY_BLOCK_ROWS;
    const int64_t chunk = on_gpu ? LS_GPU_CHUNK_ROWS : LS_CHUNK_ROWS;

    m->query_block = c->query_block > 0 ? c->query_block : block;
    m->chunk = c->chunk > 0 ? c->chunk : chunk < m->query_block ? chunk : m->query_block;
}

ls_status ls_job_maximize(const ls_run_config *config, const ls_model_config *model, bool json,
                          FILE *file, const ls_job_options *options)
{
    ls_hardware hardware;
    maximum m = {.config = config, .model = model, .hardware = &hardware};

    LS_TRY(ls_hardware_open(config->hardware, false, &hardware));
    ls_hardware_expect_kernels(config->fast, &hardware);
    set_rows(&m);
    if (!options->quiet) ls_run_warnings_print(config, &hardware);
    ls_status status = find_all(&m);
    if (status == LS_OK) status = print_maximum(&m, json, file);
    ls_hardware_close(&hardware);
    return status;
}
