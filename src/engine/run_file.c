/* run_file.c - the parts of run.json, one function each. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for sched_getaffinity's CPU_COUNT */
#include "run_file.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "choices.h"
#include "json.h"
#include "run_warning.h"

#define TEXT_BYTES 512

static ls_status add_text(cJSON *object, const char *key, const char *text)
{
    return ls_json_add(object, key, cJSON_CreateString(text));
}

static ls_status add_number(cJSON *object, const char *key, double value)
{
    return ls_json_add(object, key, cJSON_CreateNumber(value));
}

static void read_cpu_name(char *name, size_t name_bytes)
{
    char line[TEXT_BYTES];
    FILE *file = fopen("/proc/cpuinfo", "re");

    snprintf(name, name_bytes, "unknown");
    if (file == NULL) return;
    while (fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(name, name_bytes, "%s", colon + 2);
        break;
    }
    fclose(file);
}

static ls_status add_machine(cJSON *run)
{
    cJSON *machine = cJSON_CreateObject();
    struct utsname system;
    cpu_set_t cpus;
    char cpu[TEXT_BYTES];

    LS_TRY(ls_json_add(run, "machine", machine));
    read_cpu_name(cpu, sizeof cpu);
    LS_TRY(add_text(machine, "cpu", cpu));
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        LS_TRY(add_number(machine, "cores", CPU_COUNT(&cpus)));
    LS_TRY(add_number(machine, "memory_bytes",
                      (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE)));
    LS_TRY(add_number(machine, "page_bytes", (double)sysconf(_SC_PAGESIZE)));
    if (uname(&system) != 0) return LS_OK;
    LS_TRY(add_text(machine, "system", system.sysname));
    LS_TRY(add_text(machine, "release", system.release));
    return add_text(machine, "architecture", system.machine);
}

/* What was really reserved. */
static ls_status add_arena(const ls_arena *arena, cJSON *arenas)
{
    const ls_arena_info info = ls_arena_describe(arena);
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_append(arenas, object));
    LS_TRY(add_text(object, "place", ls_place_name(info.place)));
    LS_TRY(add_number(object, "bytes", (double)info.size_bytes));
    LS_TRY(add_text(object, "huge_pages", ls_huge_pages_name(info.huge_pages)));
    LS_TRY(add_number(object, "huge_page_bytes", (double)info.huge_page_bytes));
    LS_TRY(add_number(object, "huge_backed_bytes", (double)info.huge_backed_bytes));
    LS_TRY(
        ls_json_add(object, "numa_node",
                    info.numa_node >= 0 ? cJSON_CreateNumber(info.numa_node) : cJSON_CreateNull()));
    LS_TRY(add_number(object, "pages_checked", info.pages_checked));
    LS_TRY(add_number(object, "pages_wrong", info.pages_wrong));
    return add_text(object, "note", info.note);
}

static ls_status add_arenas(const ls_instance *instance, cJSON *plan)
{
    cJSON *arenas = cJSON_CreateArray();

    LS_TRY(ls_json_add(plan, "arenas", arenas));
    for (int a = 0; a < LS_PLACE_COUNT; a++)
        if (instance->arenas[a] != NULL) LS_TRY(add_arena(instance->arenas[a], arenas));
    return LS_OK;
}

/* Where each class lives, and how it is used there. */
static ls_status add_placement(const ls_placement *placement, cJSON *plan)
{
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_add(plan, "placement", object));
    for (int c = 0; c < LS_CLASS_COUNT; c++) {
        const ls_class_placement *class = &placement->classes[c];
        cJSON *where = cJSON_CreateObject();
        LS_TRY(ls_json_add(object, ls_class_name((ls_tensor_class)c), where));
        LS_TRY(add_text(where, "place", ls_place_name(class->place)));
        LS_TRY(add_text(where, "mode", ls_mode_name(class->mode)));
    }
    if (!placement->has_device) return LS_OK;
    return add_number(plan, "ring_slots", (double)placement->ring_slots);
}

/* Bytes of each class in a place. */
static ls_status add_classes(const ls_plan *plan, ls_place_kind place, const char *key,
                             cJSON *object)
{
    cJSON *classes = cJSON_CreateObject();

    LS_TRY(ls_json_add(object, key, classes));
    for (ls_role role = 0; role < LS_ROLE_COUNT; role++)
        LS_TRY(
            add_number(classes, ls_role_name(role), (double)ls_plan_role_bytes(plan, place, role)));
    return LS_OK;
}

static ls_status add_plan(const ls_trainer *t, cJSON *run)
{
    const ls_plan *plan = &t->instance.plan;
    cJSON *object = cJSON_CreateObject();
    char save[LS_SAVE_NAME_BYTES];

    LS_TRY(ls_json_add(run, "plan", object));
    LS_TRY(add_number(object, "n_steps", (double)plan->segment_steps[LS_SEGMENT_STEP]));
    LS_TRY(add_number(object, "hbm_bytes", (double)ls_plan_place_bytes(plan, LS_PLACE_HBM)));
    LS_TRY(add_number(object, "host_bytes", (double)ls_plan_place_bytes(plan, LS_PLACE_HOST)));
    LS_TRY(add_number(object, "nvme_bytes", (double)ls_plan_place_bytes(plan, LS_PLACE_NVME)));
    LS_TRY(add_classes(plan, LS_PLACE_HOST, "classes", object));
    if (ls_plan_place_bytes(plan, LS_PLACE_NVME) > 0)
        LS_TRY(add_classes(plan, LS_PLACE_NVME, "nvme_classes", object));
    LS_TRY(add_number(object, "chunk", (double)t->choices.chunk));
    LS_TRY(add_number(object, "query_block", (double)t->choices.query_block));
    LS_TRY(add_placement(&t->choices.placement, object));
    LS_TRY(add_arenas(&t->instance, object));
    LS_TRY(add_text(object, "save", ls_saves_name(&t->choices.saves, save)));
    return ls_json_add(object, "save_layers", ls_saves_ranges_to_json(&t->choices.saves));
}

/* What the profile says of the link to device memory, to hold the record's copies against. */
static ls_status add_link(const ls_trainer *t, cJSON *run)
{
    const ls_hardware *hardware = t->options.hardware;
    const ls_topology *machine = hardware != NULL ? hardware->topology : NULL;
    const ls_place *memory = machine != NULL ? ls_topology_find_device_memory(machine) : NULL;

    for (int l = 0; memory != NULL && l < machine->n_links; l++) {
        const ls_link *link = &machine->links[l];
        if (strcmp(link->to, memory->name) != 0 || link->remote) continue;
        cJSON *object = cJSON_CreateObject();
        LS_TRY(ls_json_add(run, "link", object));
        if (ls_known(link->bytes_per_s))
            LS_TRY(add_number(object, "copy_in_bytes_per_s", link->bytes_per_s.value));
        if (ls_known(link->reverse_bytes_per_s))
            LS_TRY(add_number(object, "copy_out_bytes_per_s", link->reverse_bytes_per_s.value));
        return LS_OK;
    }
    return LS_OK;
}

static ls_status add_model(const ls_trainer *t, cJSON *run)
{
    const ls_decoder_shape *shape = &t->instance.decoder.options.shape;
    cJSON *config = NULL, *model;

    LS_TRY(ls_model_config_to_json(t->model, t->config->precision, &config));
    model = cJSON_CreateObject();
    ls_status status = ls_json_add(model, "config", config);
    if (status == LS_OK) status = add_number(model, "parameters", (double)ls_decoder_params(shape));
    if (status != LS_OK) {
        cJSON_Delete(model);
        return status;
    }
    return ls_json_add(run, "model", model);
}

/* The lines that stderr was given too, unless --quiet; most often none. */
static ls_status add_warnings(const ls_trainer *t, cJSON *run)
{
    const ls_hardware *hardware = t->options.hardware;
    cJSON *warnings = cJSON_CreateArray();
    char text[LS_RUN_WARNING_BYTES];

    LS_TRY(ls_json_add(run, "warnings", warnings));
    if (hardware != NULL && hardware->note[0] != '\0')
        LS_TRY(ls_json_append(warnings, cJSON_CreateString(hardware->note)));
    if (hardware != NULL && ls_run_warning_nvme(t->config, hardware, text))
        return ls_json_append(warnings, cJSON_CreateString(text));
    return LS_OK;
}

static ls_status add_missing_times(const ls_prediction *p, cJSON *missing)
{
    static const char no_peak[] = "the profile states no peak FLOP/s of the unit that computes";

    if (p->why_unknown[0] != '\0') LS_TRY(add_text(missing, "predicted_step_s", p->why_unknown));
    if (p->peak_flops_per_s > 0) return LS_OK;
    LS_TRY(add_text(missing, "mfu_causal", no_peak));
    return add_text(missing, "mfu_megatron", no_peak);
}

/* Why a key of the record is null. */
static ls_status add_missing(const ls_trainer *t, const ls_run_file_options *options, cJSON *run)
{
    static const char *const reasons[][2] = {
        {"bytes.disk_in", "bytes read from files are not counted"},
        {"bytes.disk_out", "bytes written to files are not counted"},
    };
    static const char *const without_device[][2] = {
        {"bytes.copy_in", "the cpu device computes in place: no copy lanes are used"},
        {"bytes.copy_out", "the cpu device computes in place: no copy lanes are used"},
        {"peak_bytes.hbm", "no device memory on the cpu device"},
    };
    cJSON *missing = cJSON_CreateObject();

    LS_TRY(ls_json_add(run, "missing", missing));
    LS_TRY(ls_run_meters_describe(options->meters, options->final, run, missing));
    for (size_t i = 0; i < sizeof reasons / sizeof reasons[0]; i++)
        LS_TRY(add_text(missing, reasons[i][0], reasons[i][1]));
    if (ls_plan_place_bytes(&t->instance.plan, LS_PLACE_NVME) == 0)
        LS_TRY(add_text(missing, "peak_bytes.nvme", "no tensor is placed on nvme"));
    LS_TRY(add_missing_times(options->prediction, missing));
    if (t->choices.placement.has_device) return LS_OK;
    for (size_t i = 0; i < sizeof without_device / sizeof without_device[0]; i++)
        LS_TRY(add_text(missing, without_device[i][0], without_device[i][1]));
    return LS_OK;
}

static ls_status build_run(const ls_trainer *t, const ls_run_file_options *options, cJSON *run)
{
    const ls_ops *ops = ls_device_ops(t->instance.device);
    char started[64];
    struct tm utc;

    gmtime_r(&options->started, &utc);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", &utc);
    LS_TRY(add_number(run, "schema", LS_RUN_SCHEMA));
    LS_TRY(add_text(run, "version", options->version));
    LS_TRY(add_text(run, "command", "train"));
    LS_TRY(add_number(run, "attempt", options->attempt));
    LS_TRY(add_text(run, "started", started));
    LS_TRY(add_text(run, "hardware",
                    t->options.hardware != NULL ? t->options.hardware->profile : "cpu"));
    LS_TRY(ls_json_add(run, "config", cJSON_Duplicate(options->config_json, true)));
    LS_TRY(add_model(t, run));
    LS_TRY(add_machine(run));
    LS_TRY(add_plan(t, run));
    LS_TRY(add_link(t, run));
    cJSON *build = cJSON_CreateObject();
    LS_TRY(ls_json_add(run, "build", build));
    LS_TRY(add_text(build, "compiler", LS_COMPILER));
    LS_TRY(add_text(build, "matmul", ops->kernel_name(LS_OP_matmul, t->config->precision, 0)));
    LS_TRY(add_text(
        build, "attention",
        ops->kernel_name(LS_OP_attention_forward, t->config->precision, t->model->head_dim)));
    if (ops->vendor_note != NULL) LS_TRY(add_text(build, "cudnn", ops->vendor_note()));
    LS_TRY(add_warnings(t, run));
    return add_missing(t, options, run);
}

ls_status ls_run_file_write(const ls_trainer *trainer, const ls_run_file_options *options)
{
    char path[4096];
    cJSON *run = cJSON_CreateObject();

    if (run == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "run.json");
    ls_status status = build_run(trainer, options, run);
    snprintf(path, sizeof path, "%s/run.json", trainer->config->output);
    if (status == LS_OK) status = ls_json_write(path, run);
    cJSON_Delete(run);
    return status;
}
