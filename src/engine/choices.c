/*
 * choices.c - what a run file leaves open.
 *
 * On the CPU a chunk of 2,048 rows keeps the dense work near the caches; query blocks are larger,
 * because attention finds its own tiles and more rows mean more work to share between threads.
 */
#include "choices.h"

#include <fnmatch.h>
#include <math.h>

#include "choice_search.h"
#include "host_memory.h"
#include "save_search.h"
#include "text.h"

/* Calls of a tape for each chunk of a layer and each tile of logits, over all segments, and bytes
 * that tape and plan need for each (measured: 123, with biases 151, and norms of heads 176; 16;
 * 1,060). */
#define CALLS_PER_CHUNK 177.0
#define CALLS_PER_TILE  16.0
#define BYTES_PER_CALL  1100.0
#define SETS_PER_LAYER  0.25 /* bytes of the proof: of each call, which carries are known to it */
#define BYTES_PER_PAIR                                                                             \
    5000.0 /* of layers, the same: which of their carries imply which (4,700)                      \
            */
#define PLAN_BYTES_MAX 0x1p34

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Host memory of the hardware; NULL: of this machine. */
static ls_host_memory read_memory(const ls_hardware *hardware)
{
    if (hardware == NULL) return ls_host_memory_read();
    return (ls_host_memory){.available_bytes = hardware->available_bytes[LS_PLACE_HOST],
                            .limit = hardware->limit};
}

uint64_t ls_choices_room(const ls_hardware *hardware, ls_place_kind place)
{
    if (hardware != NULL) return hardware->available_bytes[place];
    return place == LS_PLACE_HOST ? ls_host_memory_read().available_bytes : 0;
}

/* "12.3 GiB" of a figure that may be larger than any memory. */
static const char *describe_bytes(char text[LS_TEXT_BYTES], double bytes)
{
    return ls_text_bytes(text, LS_TEXT_BYTES, bytes < 0x1p63 ? (uint64_t)bytes : UINT64_MAX);
}

/* Refuse what cannot fit whatever is chosen, before such a plan is built. */
static ls_status check_saved(const ls_run_config *config, const ls_model_config *model,
                             const ls_hardware *hardware, bool train)
{
    const ls_saves inputs = {.n_ranges = 0};
    const ls_host_memory memory = read_memory(hardware);
    const double device = (double)ls_choices_room(hardware, LS_PLACE_HBM);
    const double room = (double)memory.available_bytes + device;
    const double bytes =
        train ? ls_save_host_bytes(config, model, config->save_auto ? &inputs : &config->saves)
              : (double)config->sequence_tokens * (double)config->sequences *
                    (double)model->hidden_size * (double)ls_dtype_bytes(config->precision);

    char needed[LS_TEXT_BYTES], left[LS_TEXT_BYTES];

    if (bytes <= room) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "host memory: what is kept of %lld sequences of %lld tokens alone needs %s, %s "
                   "leaves %s%s; lower sequence.tokens or batch.sequences%s",
                   (long long)config->sequences, (long long)config->sequence_tokens,
                   describe_bytes(needed, bytes), memory.limit, describe_bytes(left, room),
                   device > 0.0 ? " with device memory" : "",
                   train ? ", or keep fewer inputs of layers (memory.save: x/4)" : "");
}

ls_status ls_choices_check_plan(const ls_run_config *config, const ls_model_config *model,
                                const ls_choices *choices)
{
    const double T = (double)(config->sequence_tokens * config->sequences);
    const double chunks = T / (double)choices->chunk * (double)model->num_hidden_layers;
    const double tiles = T / (double)choices->loss_rows;
    const double steps =
        (double)config->accumulate * (CALLS_PER_CHUNK * chunks + CALLS_PER_TILE * tiles);
    const double bytes =
        steps * (BYTES_PER_CALL + SETS_PER_LAYER * (double)model->num_hidden_layers);
    const double memory = (double)ls_host_memory_read().available_bytes / 4.0;
    const double room = memory < PLAN_BYTES_MAX ? memory : PLAN_BYTES_MAX;
    const double pairs = (double)model->num_hidden_layers * (double)model->num_hidden_layers;

    char needed[LS_TEXT_BYTES], left[LS_TEXT_BYTES];

    if (BYTES_PER_PAIR * pairs > room)
        return LS_FAIL(
            LS_ERR_NO_MEMORY,
            "num_hidden_layers: the plan of a model of %d layers would itself need %s of "
            "memory to be proved, %s is allowed; allowed here: at most %.0f layers",
            (int)model->num_hidden_layers, describe_bytes(needed, BYTES_PER_PAIR * pairs),
            describe_bytes(left, room), floor(sqrt(room / BYTES_PER_PAIR)));
    if (bytes <= room) return LS_OK;
    return LS_FAIL(LS_ERR_NO_MEMORY,
                   "sequence.chunk: in chunks of %lld a plan of %.0f tokens and %lld micro-batches "
                   "would have about %.3g steps and itself need %s of memory, %s is allowed; raise "
                   "sequence.chunk or lower sequence.tokens%s",
                   (long long)choices->chunk, T, (long long)config->accumulate, steps,
                   describe_bytes(needed, bytes), describe_bytes(left, room),
                   config->accumulate > 1 ? " or batch.accumulate" : "");
}

/* ---- all of them --------------------------------------------------------------------------- */

/* What the run file says of layers, if the model has them. */
static ls_status take_saves(const ls_run_config *config, const ls_model_config *model,
                            ls_saves *saves)
{
    const int64_t L = model->num_hidden_layers;

    *saves = config->saves;
    for (int32_t i = 0; i < saves->n_ranges; i++)
        if (saves->ranges[i].last >= L && saves->ranges[i].last != LS_SAVE_LAYERS_ALL)
            return LS_FAIL(LS_ERR_INVALID,
                           "memory.save[%d].layers: %d-%d, but the model has %lld layers; allowed: "
                           "0 to %lld",
                           i, saves->ranges[i].first, saves->ranges[i].last, (long long)L,
                           (long long)L - 1);
    return LS_OK;
}

static ls_status check_device_layers(const ls_run_config *config, const ls_model_config *model)
{
    const int64_t L = model->num_hidden_layers;

    if (config->device_layers <= L) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "optimizer.device_layers: %lld, but the model has %lld layers; allowed: 0 to "
                   "%lld",
                   (long long)config->device_layers, (long long)L, (long long)L);
}

/* A glob that names no tensor is a slip: nothing of what it asks for would happen. */
static ls_status check_group(const ls_run_config *config, const ls_decoder *decoder, int64_t group)
{
    const ls_tape *tape = &decoder->tape;
    const char *match = config->groups[group].match;

    for (int32_t i = 0; i < decoder->n_params; i++)
        if (fnmatch(match, tape->tensors[decoder->params[i].weight].name, 0) == 0) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "optimizer.groups[%lld].match: '%s' matches no tensor of %s; allowed: globs on "
                   "full names, such as %s or model.layers.[0-3].*",
                   (long long)group, match, config->model_path,
                   tape->tensors[decoder->params[1].weight].name);
}

static ls_status check_groups(const ls_run_config *config, const ls_model_config *model)
{
    const ls_decoder_shape shape = ls_model_config_shape(model);
    const ls_decoder_options smallest = ls_decoder_smallest(&shape);
    ls_decoder decoder;
    ls_status status = LS_OK;

    if (config->n_groups == 0) return LS_OK;
    LS_TRY(ls_decoder_build(&smallest, &decoder));
    for (int64_t g = 0; g < config->n_groups && status == LS_OK; g++)
        status = check_group(config, &decoder, g);
    ls_decoder_free(&decoder);
    return status;
}

static bool is_on_gpu(const ls_hardware *hardware)
{
    return hardware != NULL && hardware->has_device && !hardware->emulated;
}

/* Rows of a chunk and of a query block where the run file leaves them open: on the CPU few, near
 * the caches, and fewer where device memory is emulated and small; on a GPU as many as fit, for
 * each launch and each pass over weight gradients costs. */
typedef struct rows {
    int64_t chunk, query_block;
} rows;

static const rows cpu_rows[] = {{LS_CHUNK_ROWS, LS_QUERY_BLOCK_ROWS},
                                {1024, 4096},
                                {512, 2048},
                                {256, 1024},
                                {128, 512},
                                {64, 256}};
static const rows gpu_rows[] = {{LS_GPU_CHUNK_ROWS, LS_GPU_QUERY_BLOCK_ROWS},
                                {8192, 32768},
                                {4096, 16384},
                                {2048, 8192},
                                {16384, 32768},
                                {8192, 65536},
                                {8192, 16384},
                                {16384, 131072}};

enum {
    N_CPU_ROWS = sizeof cpu_rows / sizeof cpu_rows[0],
    N_GPU_ROWS = sizeof gpu_rows / sizeof gpu_rows[0],
    N_FIRST_ROWS = 4, /* of a GPU, from the largest on; the others are variations */
    CHUNKS_MAX = 32,
    CHUNKS_OF_LAYERS_MAX = 4096,
};

/* As many as leave a plan short: fewer rows are for models that an emulated device can hold. */
static int count_cpu_rows(const ls_trial *t)
{
    const int64_t T = t->config->sequence_tokens * t->config->sequences;
    int n = 1;

    while (n < N_CPU_ROWS &&
           T / cpu_rows[n].chunk * t->model->num_hidden_layers <= CHUNKS_OF_LAYERS_MAX)
        n++;
    return n;
}

int ls_choices_rows(const ls_trial *t, bool first_only)
{
    const bool open = t->config->chunk == 0 || t->config->query_block == 0;

    if (!open || t->hardware == NULL || !t->hardware->has_device) return 1;
    if (!is_on_gpu(t->hardware)) return count_cpu_rows(t);
    return first_only ? N_FIRST_ROWS : N_GPU_ROWS;
}

/* Beyond half a million tokens rows grow with them: a plan has no more steps for being longer. */
static int64_t scale_rows(int64_t T)
{
    int64_t factor = 1;

    while (T / (factor * gpu_rows[0].chunk) > CHUNKS_MAX) factor *= 2;
    return factor;
}

void ls_choices_set_rows(const ls_trial *t, int i, ls_choices *choices)
{
    const bool on_gpu = is_on_gpu(t->hardware);
    const int64_t T = t->config->sequence_tokens * t->config->sequences;
    const int64_t factor = on_gpu ? scale_rows(T) : 1;
    int64_t chunk = on_gpu ? factor * gpu_rows[i].chunk : cpu_rows[i].chunk;
    int64_t query_block = on_gpu ? factor * gpu_rows[i].query_block : cpu_rows[i].query_block;

    if (t->config->query_block > 0) query_block = t->config->query_block;
    if (t->config->chunk > 0) chunk = t->config->chunk;
    query_block = smaller(query_block, T);
    chunk = smaller(chunk, query_block);
    if (on_gpu && t->config->query_block == 0) query_block -= query_block % chunk;
    choices->chunk = chunk;
    choices->query_block = query_block;
    choices->loss_rows = ls_decoder_loss_rows(t->model->vocab_size, chunk, on_gpu);
}

/* The largest rows that fit device memory; else the smallest. */
static ls_status make_without_search(const ls_trial *t, ls_choices *made)
{
    const int n = ls_choices_rows(t, true);
    bool fits = false;

    for (int i = 0; i < n && !fits; i++) {
        ls_plan_cost cost;
        ls_choices_set_rows(t, i, made);
        LS_TRY(ls_choices_check_plan(t->config, t->model, made));
        if (n == 1)
            return ls_choices_place(t->config, t->model, t->hardware, t->train, false, made);
        LS_TRY(ls_choices_measure_as(t, NULL, made, &cost));
        fits = cost.place_bytes[LS_PLACE_HBM] <= ls_choices_room(t->hardware, LS_PLACE_HBM);
    }
    return LS_OK;
}

static ls_status make_by_search(ls_trial *trial, ls_search *search, ls_choices *made)
{
    ls_cost_model rates;

    if (trial->hardware != NULL) {
        rates = ls_cost_model_make(trial->hardware->topology, is_on_gpu(trial->hardware),
                                   trial->config->precision);
        char key[LS_CHOICES_KEY_BYTES];
        const bool lacks_nvme = !rates.knows_nvme && ls_choices_find_nvme(trial->config, key);
        if (rates.why_unknown[0] == '\0' && !lacks_nvme) trial->rates = &rates;
    }
    LS_TRY(ls_choice_search(trial, made, search));
    if (search->chosen.choices.chunk > 0) {
        *made = search->chosen.choices;
        return LS_OK;
    }
    trial->rates = NULL;
    if (trial->config->save_auto) ls_saves_set(&made->saves, (ls_save_policy){.x_stride = 1});
    return make_without_search(trial, made);
}

int ls_choices_optimizer_threads(const ls_run_config *config, const ls_hardware *hardware)
{
    const ls_topology *t = hardware != NULL ? hardware->topology : NULL;

    if (config->optimizer_threads > 0) return (int)config->optimizer_threads;
    for (int p = 0; t != NULL && p < t->n_places; p++) {
        const ls_place *place = &t->places[p];
        const bool is_ours = hardware->host_node < 0 || place->numa_node == hardware->host_node;
        if (place->kind == LS_PLACE_HOST && is_ours &&
            place->best_threads.source == LS_SOURCE_MEASURED)
            return (int)place->best_threads.value;
    }
    return 0;
}

ls_status ls_choices_make_any(const ls_run_config *config, const ls_model_config *model,
                              const ls_hardware *hardware, bool train, ls_search *search,
                              ls_choices *choices)
{
    ls_trial trial = {config, model, hardware, NULL, train};
    ls_choices made = {.compute_threads = (int)config->compute_threads,
                       .optimizer_threads = ls_choices_optimizer_threads(config, hardware)};
    ls_search local;

    LS_TRY(check_groups(config, model));
    LS_TRY(check_device_layers(config, model));
    made.layer_major = config->accumulate_order == 2 && config->accumulate > 1;
    if (train) {
        if (!config->save_auto) LS_TRY(take_saves(config, model, &made.saves));
        LS_TRY(make_by_search(&trial, search != NULL ? search : &local, &made));
    } else {
        LS_TRY(make_without_search(&trial, &made));
    }
    *choices = made;
    return LS_OK;
}

ls_status ls_choices_make(const ls_run_config *config, const ls_model_config *model,
                          const ls_hardware *hardware, bool train, ls_choices *choices)
{
    LS_TRY(check_saved(config, model, hardware, train));
    return ls_choices_make_any(config, model, hardware, train, NULL, choices);
}
