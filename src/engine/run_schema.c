/*
 * run_schema.c - the table of a run file's keys.
 *
 * One row says all there is to know about a key; reading (run_values.c), writing, comparing and the
 * JSON schema (run_json.c) follow it.
 */
#include "run_schema.h"

#include <string.h>

#define AT(member)   .offset = offsetof(ls_run_config, member)
#define WORDS(array) .words = (array), .n_words = sizeof(array) / sizeof((array)[0])
#define REALS(...)   .range = {__VA_ARGS__}

#define TOKENS_MAX ((int64_t)1 << 30)
#define STEPS_MAX  INT32_MAX
#define BETA_MAX   0.9999999 /* still below 1 as fp32 */

static const char *const inits[] = {"random", "pretrained", "pretrained+optimizer"};
static const char *const precisions[] = {"bf16", "fp32"};
static const int precision_dtypes[] = {LS_DTYPE_BF16, LS_DTYPE_F32};
static const char *const determinisms[] = {"exact", "fast"};
static const char *const formats[] = {"megatron", "raw-u16", "raw-u32"};
static const int format_values[] = {LS_TOKENS_FORMAT_MEGATRON, LS_TOKENS_FORMAT_RAW_U16,
                                    LS_TOKENS_FORMAT_RAW_U32};
static const char *const documents[] = {"isolate", "join", "isolate-running"};
static const int documents_values[] = {LS_DOCUMENTS_ISOLATE, LS_DOCUMENTS_JOIN,
                                       LS_DOCUMENTS_ISOLATE_RUNNING};
static const char *const orders[] = {"auto", "sequence", "layer"};
static const char *const schedules[] = {"cosine", "linear", "constant", "wsd"};
static const int schedule_values[] = {LS_SCHEDULE_COSINE, LS_SCHEDULE_LINEAR, LS_SCHEDULE_CONSTANT,
                                      LS_SCHEDULE_WSD};
static const char *const moments[] = {"fp32", "bf16", "q8", "q4"};
static const char *const gradients[] = {"fp32", "bf16"};
static const int gradient_dtypes[] = {LS_DTYPE_F32, LS_DTYPE_BF16};
static const char *const updates[] = {"overlap", "serial"};
static const char *const weights_modes[] = {"auto", "resident", "direct", "stream"};
static const char *const powers[] = {"off", "auto"};

static const ls_run_field fields[] = {
    {"model", LS_RUN_TEXT, AT(model_path), .required = true,
     .about = "a model YAML, or a Hugging Face directory"},
    {"init", LS_RUN_WORD, AT(init), "random", WORDS(inits),
     .about = "where the first weights come from; with optimizer: its state too, of a checkpoint, "
              "while steps, schedule and data begin anew"},
    {"hardware", LS_RUN_TEXT, AT(hardware), "auto", .resume = LS_RUN_MAY_REPLAN,
     .about = "auto, a profile of configs/hardware by name, or a file"},
    {"precision", LS_RUN_WORD, AT(precision), "bf16", WORDS(precisions), .values = precision_dtypes,
     .about = "of weights and activations; sums are fp32 or wider"},
    {"determinism", LS_RUN_SWITCH, AT(fast), "exact", WORDS(determinisms),
     .about = "exact: the same bits every time"},
    {"rope_scaling", LS_RUN_ROPE, 0, "null",
     .about = "another reach of RoPE, in place of the model's own; null: as the model says"},

    {"data.train", LS_RUN_PATHS, AT(train), .required = true,
     .about = "PREFIX of .bin and .idx; a list is concatenated"},
    {"data.valid", LS_RUN_PATHS, AT(valid), .about = "held-out data"},
    {"data.valid_fraction", LS_RUN_REAL, AT(valid_fraction),
     REALS(.above = true, .most = 1, .below = true),
     .about = "of the training documents, held out; instead of data.valid"},
    {"data.format", LS_RUN_WORD, AT(format), "megatron", WORDS(formats), .values = format_values,
     .about = "of the token files"},
    {"data.min_document", LS_RUN_COUNT, AT(min_document), "0", .most = TOKENS_MAX,
     .about = "documents of fewer tokens are left out"},

    {"sequence.tokens", LS_RUN_COUNT, AT(sequence_tokens), "2k", .least = 2, .most = TOKENS_MAX,
     .about = "per sequence"},
    {"sequence.chunk", LS_RUN_COUNT_AUTO, AT(chunk), "auto", .resume = LS_RUN_MAY_REPLAN,
     .least = 1, .most = TOKENS_MAX, .about = "tokens that the dense layers take at a time"},
    {"sequence.query_block", LS_RUN_COUNT_AUTO, AT(query_block), "auto",
     .resume = LS_RUN_MAY_REPLAN, .least = 1, .most = TOKENS_MAX,
     .about = "queries that attention takes at a time"},
    {"sequence.documents", LS_RUN_WORD, AT(documents), "isolate", WORDS(documents),
     .values = documents_values, .about = "attention across documents, and their positions"},
    {"sequence.window", LS_RUN_COUNT_NULL, AT(window), "null", .least = 1, .most = TOKENS_MAX,
     .about = "tokens of sliding-window attention; null: as the model says"},

    {"batch.sequences", LS_RUN_WHOLE, AT(sequences), "4", .least = 1, .most = 1 << 20,
     .about = "per micro-batch"},
    {"batch.accumulate", LS_RUN_WHOLE, AT(accumulate), "1", .least = 1, .most = 1 << 20,
     .about = "micro-batches per optimizer step"},
    {"batch.accumulate_order", LS_RUN_WORD, AT(accumulate_order), "auto", WORDS(orders),
     .resume = LS_RUN_MAY_REPLAN, .about = "which loop is the outer one"},

    {"optimizer.lr", LS_RUN_REAL, AT(schedule.lr), "3e-3", REALS(.above = true, .most = 100),
     .about = "learning rate after warm-up"},
    {"optimizer.schedule", LS_RUN_WORD, AT(schedule.kind), "cosine", WORDS(schedules),
     .values = schedule_values, .about = "how the rate falls; wsd needs decay_steps"},
    {"optimizer.warmup_steps", LS_RUN_WHOLE, AT(schedule.warmup_steps), "20", .most = STEPS_MAX,
     .about = "linear rise to lr"},
    {"optimizer.decay_steps", LS_RUN_WHOLE, AT(schedule.decay_steps), .least = 1, .most = STEPS_MAX,
     .about = "length of the final decay of schedule wsd"},
    {"optimizer.lr_min", LS_RUN_REAL, AT(schedule.lr_min), "3e-4", REALS(.most = 100),
     .about = "rate at the last step"},
    {"optimizer.beta1", LS_RUN_REAL, AT(beta1), "0.9", REALS(.most = BETA_MAX),
     .about = "decay of the first moment"},
    {"optimizer.beta2", LS_RUN_REAL, AT(beta2), "0.95", REALS(.most = BETA_MAX),
     .about = "decay of the second moment"},
    {"optimizer.eps", LS_RUN_REAL, AT(eps), "1e-8", REALS(.least = 1e-30, .most = 1),
     .about = "added to the root of the second moment"},
    {"optimizer.weight_decay", LS_RUN_REAL, AT(weight_decay), "0.1", REALS(.most = 100),
     .about = "of matrices; norms are never decayed"},
    {"optimizer.clip_norm", LS_RUN_REAL, AT(clip_norm), "1.0", REALS(.most = 1e9),
     .about = "largest global gradient norm; 0: off"},
    {"optimizer.moments", LS_RUN_WORD, AT(moments), "fp32", WORDS(moments),
     .about = "storage of the moments; q8 and q4 are packed by blocks and lossy, bf16 is rounded"},
    {"optimizer.gradients", LS_RUN_WORD, AT(gradients), "fp32", WORDS(gradients),
     .values = gradient_dtypes,
     .about = "storage of gradients that leave and wait for the update; bf16 is rounded"},
    {"optimizer.updates", LS_RUN_SWITCH, AT(serial_updates), "overlap", WORDS(updates),
     .resume = LS_RUN_MAY_REPLAN,
     .about =
         "overlap: forward starts on each layer as it is updated; serial: after the last update"},
    {"optimizer.device_layers", LS_RUN_WHOLE, AT(device_layers), "0", .resume = LS_RUN_MAY_REPLAN,
     .most = 1 << 20,
     .about = "the first so many layers keep their optimizer states in device memory and are "
              "updated there"},
    {"optimizer.groups", LS_RUN_GROUPS, 0, "[]",
     .about = "tensors by name (globs) with a rate of their own, or frozen"},
    {"optimizer.skip_nonfinite_max", LS_RUN_WHOLE, AT(skip_nonfinite_max), "10", .most = 1 << 20,
     .about = "consecutive skipped steps before training stops"},

    {"memory.weights", LS_RUN_WORD, AT(weights), "auto", WORDS(weights_modes),
     .resume = LS_RUN_MAY_REPLAN, .about = "where weights are while they are used"},
    {"memory.ring_slots", LS_RUN_COUNT_AUTO, AT(ring_slots), "auto", .resume = LS_RUN_MAY_REPLAN,
     .least = LS_RING_SLOTS_MIN, .most = LS_RING_SLOTS_MAX,
     .about = "layers of weights on the device at once"},
    {"memory.save", LS_RUN_SAVE, 0, "auto", .resume = LS_RUN_MAY_REPLAN,
     .about = "what forward keeps for backward, of all layers or by ranges"},
    {"memory.place", LS_RUN_PLACE, 0, "{}", .resume = LS_RUN_MAY_REPLAN,
     .about = "places of tensor classes: {x: hbm, ...}"},
    {"memory.threads", LS_RUN_THREADS, 0, "auto", .resume = LS_RUN_MAY_CHANGE, .least = 1,
     .most = 4096, .about = "auto, or threads of each lane"},

    {"steps", LS_RUN_WHOLE, AT(steps), "300", .resume = LS_RUN_MAY_CHANGE, .least = 1,
     .most = STEPS_MAX, .about = "optimizer steps of the whole run"},
    {"seed", LS_RUN_WHOLE, AT(seed), "1", .most = (int64_t)1 << 48,
     .about = "of initial weights and data order"},

    {"eval.every_steps", LS_RUN_WHOLE, AT(eval_every_steps), "100", .resume = LS_RUN_MAY_CHANGE,
     .most = STEPS_MAX, .about = "0: never"},
    {"eval.tokens", LS_RUN_COUNT, AT(eval_tokens), "64k", .resume = LS_RUN_MAY_CHANGE, .least = 1,
     .most = (int64_t)1 << 40, .about = "held-out tokens of one evaluation"},
    {"eval.position_bins", LS_RUN_BINS, 0, "log2", .resume = LS_RUN_MAY_CHANGE, .least = 1,
     .most = 256, .about = "loss by position: log2, linear:N, or null for none"},

    {"checkpoint.every_steps", LS_RUN_WHOLE, AT(checkpoint_every_steps), "100",
     .resume = LS_RUN_MAY_CHANGE, .most = STEPS_MAX, .about = "0: only when the run ends or stops"},
    {"checkpoint.keep", LS_RUN_WHOLE, AT(checkpoint_keep), "2", .resume = LS_RUN_MAY_CHANGE,
     .least = 1, .most = 1 << 20, .about = "newest checkpoints that stay"},

    {"record.power", LS_RUN_SWITCH, AT(record_power), "auto", .resume = LS_RUN_MAY_CHANGE,
     WORDS(powers), .about = "auto: every sensor there is"},
    {"record.trace_steps", LS_RUN_STEP_LIST, 0, "[10, 11]", .resume = LS_RUN_MAY_CHANGE, .least = 1,
     .most = STEPS_MAX, .about = "steps whose lanes are traced"},
    {"record.samples_hz", LS_RUN_WHOLE, AT(samples_hz), "10", .resume = LS_RUN_MAY_CHANGE,
     .least = 1, .most = 1000, .about = "power samples a second"},
    {"record.idle_s", LS_RUN_WHOLE, AT(idle_s), "0", .resume = LS_RUN_MAY_CHANGE, .most = 3600,
     .about = "seconds of rest before the first step, for the power of an idle machine"},
    {"record.prometheus", LS_RUN_TEXT_NULL, AT(prometheus), "null", .resume = LS_RUN_MAY_CHANGE,
     .about = "file for Prometheus with the latest figures, NAME.prom; null: none"},

    {"output", LS_RUN_TEXT, AT(output), .required = true, .resume = LS_RUN_MAY_CHANGE,
     .about = "the run directory"},
};

const ls_run_field *ls_run_fields(size_t *n_fields)
{
    *n_fields = sizeof fields / sizeof fields[0];
    return fields;
}

const char *ls_run_field_split(const char *path, char section[LS_YAML_KEY_BYTES_MAX + 1])
{
    const char *dot = strchr(path, '.');
    const size_t n = dot == NULL ? 0 : (size_t)(dot - path);

    memcpy(section, path, n);
    section[n] = '\0';
    return dot == NULL ? path : dot + 1;
}
