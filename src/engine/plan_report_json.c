/* plan_report_json.c - the document of `longspan plan --json`, one function for each part. */
#include "choices.h"
#include "json.h"
#include "plan_report.h"

static ls_status add_text(cJSON *object, const char *key, const char *text)
{
    return ls_json_add(object, key, cJSON_CreateString(text));
}

static ls_status add_number(cJSON *object, const char *key, double value)
{
    return ls_json_add(object, key, ls_json_create_exact(value));
}

/* What this version does not know. */
static ls_status add_nulls(cJSON *object, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++) LS_TRY(ls_json_add(object, keys[i], cJSON_CreateNull()));
    return LS_OK;
}

static ls_status add_places(cJSON *json, const char *key, const uint64_t bytes[LS_PLACE_COUNT])
{
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_add(json, key, object));
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        LS_TRY(add_number(object, ls_place_name((ls_place_kind)p), (double)bytes[p]));
    return LS_OK;
}

static ls_status add_class(const ls_plan_report *r, ls_role role, ls_place_kind place,
                           cJSON *classes)
{
    const ls_class_row row = ls_plan_report_class(r, role, place);
    cJSON *object;

    if (row.bytes == 0) return LS_OK;
    object = cJSON_CreateObject();
    LS_TRY(ls_json_append(classes, object));
    LS_TRY(add_text(object, "class", ls_role_name(role)));
    LS_TRY(add_text(object, "place", ls_place_name(place)));
    LS_TRY(add_text(object, "mode", row.mode));
    LS_TRY(add_number(object, "bytes", (double)row.bytes));
    return add_text(object, "reason", row.reason);
}

static ls_status add_memory(const ls_plan_report *r, cJSON *json)
{
    uint64_t peak[LS_PLACE_COUNT];
    cJSON *classes = cJSON_CreateArray();

    for (int p = 0; p < LS_PLACE_COUNT; p++)
        peak[p] = ls_plan_place_bytes(r->plan, (ls_place_kind)p);
    LS_TRY(ls_json_add(json, "classes", classes));
    for (ls_role role = 0; role < LS_ROLE_COUNT; role++)
        for (int p = 0; p < LS_PLACE_COUNT; p++)
            LS_TRY(add_class(r, role, (ls_place_kind)p, classes));
    LS_TRY(add_places(json, "peak_bytes", peak));
    LS_TRY(add_places(json, "shared_bytes", r->shared_bytes));
    LS_TRY(add_places(json, "available_bytes", r->available.place_bytes));
    if (r->fits) return LS_OK;
    LS_TRY(add_places(json, "short_bytes", r->short_bytes));
    return ls_json_add(json, "nearest", cJSON_CreateNull());
}

static ls_status add_threads(cJSON *object, const char *key, int n)
{
    return add_number(object, key, (double)(n > 0 ? n : ls_cpu_threads()));
}

static ls_status add_choices(const ls_plan_report *r, cJSON *json)
{
    const ls_choices *c = &r->choices;
    const ls_place_mode weights = c->placement.classes[LS_CLASS_WEIGHTS].mode;
    cJSON *object = cJSON_CreateObject(), *threads = cJSON_CreateObject();

    LS_TRY(ls_json_add(json, "choices", object));
    LS_TRY(add_number(object, "chunk", (double)c->chunk));
    LS_TRY(add_number(object, "query_block", (double)c->query_block));
    LS_TRY(add_text(object, "weights", ls_mode_name(weights)));
    LS_TRY(ls_json_add(object, "ring_slots",
                       weights == LS_MODE_STREAM
                           ? ls_json_create_exact((double)c->placement.ring_slots)
                           : cJSON_CreateNull()));
    LS_TRY(add_text(object, "save", ls_choices_save_name(c)));
    LS_TRY(add_text(object, "accumulate_order", "sequence"));
    LS_TRY(ls_json_add(object, "threads", threads));
    LS_TRY(add_threads(threads, "compute", c->compute_threads));
    LS_TRY(add_threads(threads, "optimizer", c->optimizer_threads));
    return ls_json_add(threads, "copy", cJSON_CreateNull());
}

static ls_status add_segment(const ls_plan_report *r, ls_segment_kind segment, cJSON *segments)
{
    const ls_segment_totals totals = ls_plan_report_segment(r, segment);
    cJSON *object, *lanes;

    if (totals.steps == 0) return LS_OK;
    object = cJSON_CreateObject();
    LS_TRY(ls_json_append(segments, object));
    LS_TRY(add_text(object, "segment", ls_segment_name(segment)));
    LS_TRY(add_number(object, "steps", (double)totals.steps));
    lanes = cJSON_CreateObject();
    LS_TRY(ls_json_add(object, "lane_steps", lanes));
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        LS_TRY(add_number(lanes, ls_lane_name((ls_lane)lane), (double)totals.lane_steps[lane]));
    LS_TRY(add_number(object, "waits", (double)totals.waits));
    LS_TRY(add_number(object, "carries", (double)totals.carries));
    LS_TRY(add_number(object, "flops", totals.flops));
    return add_number(object, "bytes", totals.bytes);
}

static ls_status add_segments(const ls_plan_report *r, cJSON *json)
{
    cJSON *segments = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "segments", segments));
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) LS_TRY(add_segment(r, (ls_segment_kind)s, segments));
    return LS_OK;
}

static ls_status fill(const ls_plan_report *r, cJSON *json)
{
    static const char *const times[] = {"step_s",       "lower_bound_s", "bound_by",
                                        "tokens_per_s", "mfu_causal",    "mfu_megatron",
                                        "tflops_alst",  "lane_busy_s",   "energy_j"};

    LS_TRY(ls_json_add(json, "fits", cJSON_CreateBool(r->fits)));
    LS_TRY(add_text(json, "profile", r->hardware->profile));
    LS_TRY(add_text(json, "model", r->config->model_path));
    LS_TRY(add_number(json, "parameters", (double)r->parameters));
    LS_TRY(add_number(json, "tokens", (double)r->tokens));
    LS_TRY(add_number(json, "pairs", r->pairs));
    LS_TRY(add_number(json, "flops_model", r->flops_model));
    LS_TRY(add_nulls(json, times, sizeof times / sizeof times[0]));
    LS_TRY(add_memory(r, json));
    LS_TRY(add_choices(r, json));
    LS_TRY(add_number(json, "n_steps", (double)r->plan->segment_steps[LS_SEGMENT_STEP]));
    LS_TRY(add_segments(r, json));
    return ls_json_add(json, "checked", cJSON_CreateBool(r->checked));
}

ls_status ls_plan_report_to_json(const ls_plan_report *report, cJSON **json)
{
    cJSON *made = cJSON_CreateObject();

    if (made == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the plan's document");
    const ls_status status = fill(report, made);
    if (status == LS_OK)
        *json = made;
    else
        cJSON_Delete(made);
    return status;
}
