/* longspan.c - the public API on top of the engine: reads the run file, runs the job. */
#include "longspan.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "bench_ops.h"
#include "bench_optimizer.h"
#include "convert.h"
#include "device.h"
#include "hardware.h"
#include "job.h"
#include "profile.h"
#include "report.h"
#include "run_model.h"
#include "text.h"
#include "tokenize.h"
#include "topology_report.h"

#define STRINGIFY(x) #x
#define TEXT(x)      STRINGIFY(x)
#define VERSION                                                                                    \
    TEXT(LONGSPAN_VERSION_MAJOR) "." TEXT(LONGSPAN_VERSION_MINOR) "." TEXT(LONGSPAN_VERSION_PATCH)

static_assert(LONGSPAN_ERROR_INVALID == LS_ERR_INVALID, "public codes are the engine's");
static_assert(LONGSPAN_ERROR_NO_MEMORY == LS_ERR_NO_MEMORY, "public codes are the engine's");
static_assert(LONGSPAN_ERROR_IO == LS_ERR_IO, "public codes are the engine's");
static_assert(LONGSPAN_ERROR_DEVICE == LS_ERR_DEVICE, "public codes are the engine's");
static_assert(LONGSPAN_ERROR_UNSUPPORTED == LS_ERR_UNSUPPORTED, "public codes are the engine's");
static_assert(LONGSPAN_ERROR_CORRUPT == LS_ERR_CORRUPT, "public codes are the engine's");
static_assert(LONGSPAN_ERROR_STOPPED == LS_ERR_STOPPED, "public codes are the engine's");
static_assert((int)LONGSPAN_PLAN_TABLES == (int)LS_PLAN_TABLES, "public formats are the engine's");
static_assert((int)LONGSPAN_PLAN_JSON == (int)LS_PLAN_JSON, "public formats are the engine's");
static_assert((int)LONGSPAN_PLAN_TEXT == (int)LS_PLAN_TEXT, "public formats are the engine's");

static atomic_bool stop_requested;

const char *longspan_version(void)
{
    return VERSION;
}

const char *longspan_error(void)
{
    return ls_error();
}

const char *longspan_error_origin(void)
{
    return ls_error_origin();
}

void longspan_request_stop(void)
{
    atomic_store(&stop_requested, true);
}

void longspan_describe_build(char *text, size_t text_bytes)
{
    const ls_ops *ops = &ls_ops_cpu;
    bool has_gpu = false;
    char cuda[128] = "no";
#if LS_HAVE_CUDNN
    const char *cudnn = "yes (looked for where there is a GPU)";
#else
    const char *cudnn = "no";
#endif
#if LS_HAVE_CUDA
    ls_device_opener *opener;
    const ls_ops *gpu_ops;
    has_gpu = ls_hardware_find_gpu(&opener, &gpu_ops) == LS_OK;
    if (has_gpu) cudnn = gpu_ops->vendor_note();
    snprintf(cuda, sizeof cuda, "yes%s%s", has_gpu ? "" : ", but ", has_gpu ? "" : ls_error());
#endif
    snprintf(text, text_bytes,
             "longspan %s\n"
             "built with        %s\n"
             "devices           %s\n"
             "OpenMP            %s\n"
             "oneDNN            %s\n"
             "hwloc             %s\n"
             "libnuma           %s\n"
             "cuda              %s\n"
             "cudnn             %s\n"
             "matmul bf16       %s\n"
             "matmul fp32       %s\n"
             "attention bf16    %s\n"
             "attention fp32    %s\n"
             "optimizer         adamw %s\n",
             VERSION, LS_COMPILER, has_gpu ? "cpu, cuda" : "cpu",
#if LS_HAVE_OPENMP
             "yes",
#else
             "no (one thread)",
#endif
#if LS_HAVE_ONEDNN
             "yes",
#else
             "no",
#endif
#if LS_HAVE_HWLOC
             "yes",
#else
             "no (longspan topo counts CPUs by sysfs and reads no XML)",
#endif
#if LS_HAVE_NUMA
             "yes",
#else
             "no",
#endif
             cuda, cudnn, ops->kernel_name(LS_OP_matmul, LS_DTYPE_BF16, 0),
             ops->kernel_name(LS_OP_matmul, LS_DTYPE_F32, 0),
             ops->kernel_name(LS_OP_attention_forward, LS_DTYPE_BF16, 0),
             ops->kernel_name(LS_OP_attention_forward, LS_DTYPE_F32, 0),
             ops->kernel_name(LS_OP_adamw, LS_DTYPE_F32, 0));
}

/* ---- jobs ---------------------------------------------------------------------------------- */

/* The run file and its model, read. */
typedef struct inputs {
    ls_run_config config;
    ls_model_config model;
    ls_job_options options;
} inputs;

/* With where the key stands that a job's message is about. */
static ls_status close_inputs(inputs *in, ls_status status)
{
    status = ls_run_config_locate(&in->config, status);
    ls_run_config_free(&in->config);
    return status;
}

static ls_status read_inputs(const longspan_run *run, inputs *in)
{
    memset(in, 0, sizeof *in);
    in->options = (ls_job_options){
        .version = VERSION, .stop = &stop_requested, .quiet = run->quiet, .verbose = run->verbose};
    LS_TRY(ls_run_config_read(run->path, run->sets, (size_t)run->n_sets, &in->config));
    const ls_status status = ls_run_model_read(&in->config, &in->model);
    return status == LS_OK ? LS_OK : close_inputs(in, status);
}

int longspan_topo(const char *from, const char *hardware, bool json, FILE *file)
{
    ls_topology *topology;

    LS_TRY(ls_machine_open(from, hardware, &topology));
    if (from == NULL) ls_topology_read_nccl(topology);
    const ls_status status = ls_topology_write(topology, json, file);
    ls_topology_free(topology);
    return status;
}

static ls_status read_bytes(const longspan_bench_options *options, uint64_t *bytes)
{
    static const char allowed[] = "allowed: 1MiB or more, such as 512MiB or 1GiB";

    if (options->bytes == NULL) return LS_OK;
    if (ls_text_parse_bytes(options->bytes, bytes) != LS_OK)
        return LS_FAIL(LS_ERR_INVALID, "--bytes: %s; %s", ls_error(), allowed);
    if (*bytes < LS_BUFFER_BYTES_MIN)
        return LS_FAIL(LS_ERR_INVALID, "--bytes %s: too few; %s", options->bytes, allowed);
    return LS_OK;
}

int longspan_bench_links(const longspan_bench_options *options, FILE *file)
{
    ls_bench_options bench = {.hardware = options->hardware,
                              .save = options->save,
                              .json = options->json,
                              .quiet = options->quiet};

    LS_TRY(read_bytes(options, &bench.bytes));
    return ls_job_bench_links(&bench, file);
}

int longspan_bench_ops(const longspan_bench_options *options, FILE *file)
{
    const ls_bench_options bench = {.hardware = options->hardware,
                                    .save = options->save,
                                    .json = options->json,
                                    .quiet = options->quiet};
    return ls_job_bench_ops(&bench, file);
}

int longspan_bench_optimizer(const longspan_bench_options *options, FILE *file)
{
    ls_bench_optimizer_options bench = {.json = options->json, .quiet = options->quiet};

    LS_TRY(read_bytes(options, &bench.bytes));
    return ls_job_bench_optimizer(&bench, file);
}

int longspan_plan_trace(const longspan_run *run, longspan_plan_format format, const char *trace,
                        FILE *file)
{
    inputs in;

    LS_TRY(read_inputs(run, &in));
    const ls_status status =
        ls_job_plan(&in.config, &in.model, (ls_plan_format)format, trace, file, &in.options);
    return close_inputs(&in, status);
}

int longspan_plan(const longspan_run *run, longspan_plan_format format, FILE *file)
{
    return longspan_plan_trace(run, format, NULL, file);
}

int longspan_plan_compare(const longspan_run *run, const char *profiles, bool json, FILE *file)
{
    inputs in;

    LS_TRY(read_inputs(run, &in));
    const ls_status status =
        ls_job_compare(&in.config, &in.model, profiles, json, file, &in.options);
    return close_inputs(&in, status);
}

int longspan_plan_maximize(const longspan_run *run, bool json, FILE *file)
{
    inputs in;

    LS_TRY(read_inputs(run, &in));
    const ls_status status = ls_job_maximize(&in.config, &in.model, json, file, &in.options);
    return close_inputs(&in, status);
}

int longspan_train(const longspan_run *run, const longspan_train_options *options)
{
    const ls_train_options train = {.resume = options->resume,
                                    .replan = options->replan,
                                    .dry_run = options->dry_run,
                                    .stop_after = options->stop_after,
                                    .deadline = options->deadline};
    inputs in;

    LS_TRY(read_inputs(run, &in));
    const ls_status status = ls_job_train(&in.config, &in.model, &train, &in.options);
    return close_inputs(&in, status);
}

/* NULL: out of memory. */
static longspan_eval_bin *copy_bins(const ls_loss_bin *from, int n_from, int *n)
{
    longspan_eval_bin *bins = calloc((size_t)n_from, sizeof *bins);

    *n = 0;
    for (int b = 0; b < n_from && bins != NULL; b++)
        if (from[b].labels > 0)
            bins[(*n)++] = (longspan_eval_bin){
                from[b].from, from[b].to, from[b].sum / (double)from[b].labels, from[b].labels};
    return bins;
}

static longspan_eval_source *copy_sources(const ls_loss_stats *losses, int *n)
{
    longspan_eval_source *sources = calloc((size_t)losses->n_sources + 1, sizeof *sources);

    *n = 0;
    for (int64_t s = 0; s < losses->n_sources && sources != NULL; s++) {
        const ls_loss_source *from = &losses->by_source[s];
        const double loss = from->labels > 0 ? from->sum / (double)from->labels : (double)NAN;
        char *name = strdup(from->name);
        if (name == NULL) return sources; /* too few: the caller sees it */
        sources[(*n)++] = (longspan_eval_source){name, loss, from->labels};
    }
    return sources;
}

static ls_status copy_result(const inputs *in, const ls_loss_stats *losses,
                             longspan_eval_result *result)
{
    longspan_eval_result copy = {.loss = ls_loss_stats_mean(losses),
                                 .tokens = losses->labels,
                                 .positions_are_distances =
                                     in->config.documents == LS_DOCUMENTS_ISOLATE};

    copy.by_position = copy_bins(losses->by_position, losses->n_bins, &copy.n_positions);
    copy.by_distance = copy_bins(losses->by_distance, losses->n_bins, &copy.n_distances);
    copy.by_source = copy_sources(losses, &copy.n_sources);
    if (copy.by_position == NULL || copy.by_distance == NULL || copy.by_source == NULL ||
        copy.n_sources < losses->n_sources) {
        longspan_eval_free(&copy);
        return LS_FAIL(LS_ERR_NO_MEMORY, "the losses");
    }
    *result = copy;
    return LS_OK;
}

int longspan_eval(const longspan_run *run, const longspan_eval_options *options,
                  longspan_eval_result *result)
{
    ls_eval_request request = {.tokens = INT64_MAX};
    ls_loss_stats losses;
    inputs in;

    if (options != NULL) request.checkpoint = options->checkpoint;
    if (options != NULL && options->tokens > 0) request.tokens = options->tokens;
    LS_TRY(read_inputs(run, &in));
    ls_status status = ls_trainer_losses_open(&in.config, true, &losses);
    if (status == LS_OK) {
        status = ls_job_eval(&in.config, &in.model, &request, &in.options, &losses);
        if (status == LS_OK) status = copy_result(&in, &losses, result);
        ls_loss_stats_close(&losses);
    }
    return close_inputs(&in, status);
}

void longspan_eval_free(longspan_eval_result *result)
{
    if (result == NULL) return;
    for (int s = 0; s < result->n_sources; s++) free(result->by_source[s].name);
    free(result->by_position);
    free(result->by_distance);
    free(result->by_source);
    memset(result, 0, sizeof *result);
}

typedef struct byte_sink {
    longspan_sample_sink *sink;
    void *context;
} byte_sink;

static void pass_byte(void *context, int32_t token)
{
    const byte_sink *to = context;
    const unsigned char byte = (unsigned char)token;
    if (token < LS_BYTES_END_OF_DOCUMENT)
        to->sink(to->context, &byte, 1); /* padding ids: nothing */
}

static ls_status sample_bytes(const inputs *in, ls_sample_request *request, const char *prompt)
{
    const char *text = *prompt != '\0' ? prompt : "\n";
    const size_t n = strlen(text);
    int32_t *tokens = malloc(n * sizeof *tokens);

    if (tokens == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the prompt");
    for (size_t i = 0; i < n; i++) tokens[i] = (unsigned char)text[i];
    request->prompt = tokens;
    request->n_prompt = (int64_t)n;
    const ls_status status = ls_job_sample(&in->config, &in->model, request, &in->options);
    free(tokens);
    return status;
}

int longspan_sample(const longspan_run *run, const char *checkpoint, const char *prompt,
                    int64_t n_tokens, longspan_sample_sink *sink, void *context)
{
    byte_sink to = {sink, context};
    ls_sample_request request = {.checkpoint = checkpoint,
                                 .n_tokens = n_tokens,
                                 .end_token = LS_BYTES_END_OF_DOCUMENT,
                                 .sink = pass_byte,
                                 .context = &to};
    inputs in;

    LS_TRY(read_inputs(run, &in));
    const ls_status status = sample_bytes(&in, &request, prompt);
    return close_inputs(&in, status);
}

int longspan_convert(const char *source, const char *target, longspan_convert_result *result)
{
    const ls_convert_request request = {
        .source = source, .target = target, .stop = &stop_requested};
    ls_convert_report report;

    LS_TRY(ls_job_convert(&request, &report));
    *result = (longspan_convert_result){.to_checkpoint = report.to_checkpoint,
                                        .tensors = report.n_tensors,
                                        .parameters = report.n_parameters,
                                        .bytes = report.bytes};
    return 0;
}

int longspan_tokenize(const char *prefix, const char *tokenizer, const char *const *paths,
                      int n_paths, longspan_tokenize_result *result)
{
    const ls_tokenize_request request = {
        .paths = paths, .n_paths = n_paths, .prefix = prefix, .stop = &stop_requested};
    ls_tokenize_report report;

    if (strcmp(tokenizer, "bytes") != 0)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "--tokenizer %s: this version has 'bytes'; other tokenizers' shards can be "
                       "made elsewhere and read (Megatron .bin/.idx)",
                       tokenizer);
    LS_TRY(ls_tokenize_bytes(&request, &report));
    *result = (longspan_tokenize_result){
        .documents = report.n_files, .tokens = report.n_tokens, .empty_files = report.n_empty};
    return 0;
}

int longspan_report(const longspan_report_options *options, FILE *file)
{
    const ls_report_options report = {.runs = options->runs,
                                      .n_runs = options->n_runs,
                                      .out = options->out,
                                      .export_dir = options->export_dir,
                                      .tensorboard = options->tensorboard,
                                      .version = longspan_version()};
    return ls_report(&report, file);
}

int longspan_report_validate(const char *directory, FILE *file)
{
    return ls_report_validate(directory, file);
}
