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

static ls_status add_null(cJSON *object, const char *key)
{
    return ls_json_add(object, key, cJSON_CreateNull());
}

/* bytes NULL: not known. */
static ls_status add_places(cJSON *json, const char *key, const uint64_t bytes[LS_PLACE_COUNT])
{
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_add(json, key, object));
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        LS_TRY(ls_json_add(object, ls_place_name((ls_place_kind)p),
                           bytes != NULL ? ls_json_create_exact((double)bytes[p])
                                         : cJSON_CreateNull()));
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

static ls_status add_classes(const ls_plan_report *r, cJSON *json)
{
    cJSON *classes = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "classes", classes));
    for (ls_role role = 0; role < LS_ROLE_COUNT; role++)
        for (int p = 0; p < LS_PLACE_COUNT; p++)
            LS_TRY(add_class(r, role, (ls_place_kind)p, classes));
    return LS_OK;
}

static ls_status add_nearest(const ls_plan_report *r, cJSON *json)
{
    const ls_save_nearest *nearest = &r->nearest;
    char name[LS_SAVE_NAME_BYTES];
    cJSON *object;

    if (!nearest->found) return add_null(json, "nearest");
    object = cJSON_CreateObject();
    LS_TRY(ls_json_add(json, "nearest", object));
    LS_TRY(add_text(object, "save", ls_saves_name(&nearest->saves, name)));
    LS_TRY(add_places(object, "peak_bytes", nearest->cost.place_bytes));
    return add_number(object, "extra_flops_fraction", nearest->extra_flops_fraction);
}

static ls_status add_memory(const ls_plan_report *r, cJSON *json)
{
    const bool built = r->plan != NULL;
    uint64_t peak[LS_PLACE_COUNT];

    for (int p = 0; built && p < LS_PLACE_COUNT; p++)
        peak[p] = ls_plan_place_bytes(r->plan, (ls_place_kind)p);
    LS_TRY(built ? add_classes(r, json) : add_null(json, "classes"));
    LS_TRY(built ? add_number(json, "state_bytes_per_parameter", r->state_bytes_per_parameter)
                 : add_null(json, "state_bytes_per_parameter"));
    LS_TRY(add_places(json, "peak_bytes", built ? peak : NULL));
    LS_TRY(add_places(json, "shared_bytes", built ? r->shared_bytes : NULL));
    LS_TRY(add_places(json, "available_bytes", r->available.place_bytes));
    if (r->fits) return LS_OK;
    LS_TRY(add_places(json, "short_bytes", built ? r->short_bytes : NULL));
    return add_nearest(r, json);
}

static ls_status add_threads(cJSON *object, const char *key, int n)
{
    return add_number(object, key, (double)(n > 0 ? n : ls_cpu_threads()));
}

/* 0: not known. */
static ls_status add_rows(cJSON *object, const char *key, int64_t rows)
{
    return rows > 0 ? add_number(object, key, (double)rows) : add_null(object, key);
}

static ls_status add_choices(const ls_plan_report *r, cJSON *json)
{
    const bool save_known = r->plan != NULL || !r->config->save_auto;
    const ls_choices *c = &r->choices;
    const ls_place_mode weights = c->placement.classes[LS_CLASS_WEIGHTS].mode;
    cJSON *object = cJSON_CreateObject(), *threads = cJSON_CreateObject();
    char save[LS_SAVE_NAME_BYTES];

    LS_TRY(ls_json_add(json, "choices", object));
    LS_TRY(add_rows(object, "chunk", c->chunk));
    LS_TRY(add_rows(object, "query_block", c->query_block));
    LS_TRY(r->plan != NULL ? add_text(object, "weights", ls_mode_name(weights))
                           : add_null(object, "weights"));
    LS_TRY(r->plan != NULL && weights == LS_MODE_STREAM
               ? add_number(object, "ring_slots", (double)c->placement.ring_slots)
               : add_null(object, "ring_slots"));
    LS_TRY(save_known ? add_text(object, "save", ls_saves_name(&c->saves, save))
                      : add_null(object, "save"));
    LS_TRY(ls_json_add(object, "save_layers", ls_saves_ranges_to_json(&c->saves)));
    LS_TRY(add_text(object, "accumulate_order", c->layer_major ? "layer" : "sequence"));
    LS_TRY(ls_json_add(object, "threads", threads));
    LS_TRY(add_threads(threads, "compute", c->compute_threads));
    LS_TRY(add_threads(threads, "optimizer", c->optimizer_threads));
    return add_null(threads, "copy");
}

/* A plan that was tried: what it chose, what it takes, how long. */
static ls_status add_candidate(const ls_candidate *c, const char *why, const char *key, cJSON *json)
{
    const bool simulated = c->step_s > 0, bounded = c->cost.lower_bound_s > 0;
    cJSON *object = cJSON_CreateObject();
    char save[LS_SAVES_TEXT_BYTES];

    LS_TRY(ls_json_add(json, key, object));
    LS_TRY(add_number(object, "chunk", (double)c->choices.chunk));
    LS_TRY(add_number(object, "query_block", (double)c->choices.query_block));
    LS_TRY(add_text(object, "save", ls_saves_describe(&c->choices.saves, save)));
    LS_TRY(add_text(object, "weights",
                    ls_mode_name(c->choices.placement.classes[LS_CLASS_WEIGHTS].mode)));
    LS_TRY(add_number(object, "ring_slots", (double)c->choices.placement.ring_slots));
    LS_TRY(add_text(object, "accumulate_order", c->choices.layer_major ? "layer" : "sequence"));
    LS_TRY(add_places(object, "peak_bytes", c->cost.place_bytes));
    LS_TRY(add_number(object, "flops", c->cost.flops));
    LS_TRY(bounded ? add_number(object, "lower_bound_s", c->cost.lower_bound_s)
                   : add_null(object, "lower_bound_s"));
    LS_TRY(simulated ? add_number(object, "step_s", c->step_s) : add_null(object, "step_s"));
    return add_text(object, "why", why);
}

static ls_status add_search(const ls_plan_report *r, cJSON *json)
{
    const ls_search *s = r->search;
    cJSON *object;

    if (s == NULL || s->chosen.choices.chunk == 0) return add_null(json, "search");
    object = cJSON_CreateObject();
    LS_TRY(ls_json_add(json, "search", object));
    LS_TRY(add_number(object, "measured", (double)s->n_measured));
    LS_TRY(add_number(object, "simulated", (double)s->n_simulated));
    LS_TRY(add_number(object, "pruned", (double)s->n_pruned));
    LS_TRY(add_candidate(&s->chosen, "the fastest that fits", "chosen", object));
    LS_TRY(s->has_runner_up ? add_candidate(&s->runner_up, s->why, "runner_up", object)
                            : add_null(object, "runner_up"));
    LS_TRY(s->has_refused ? add_candidate(&s->refused, s->why_refused, "no_room", object)
                          : add_null(object, "no_room"));
    return add_text(object, "accumulate_order", s->why_order);
}

static ls_status add_changes(const ls_plan_changes *changes, cJSON *json)
{
    cJSON *list = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "changes", list));
    for (int i = 0; i < changes->n; i++) {
        const ls_plan_change *c = &changes->changes[i];
        cJSON *object = cJSON_CreateObject();
        LS_TRY(ls_json_append(list, object));
        LS_TRY(add_text(object, "kind", ls_change_kind_name(c->kind)));
        LS_TRY(add_text(object, "change", c->words));
        LS_TRY(add_number(object, "step_s", c->step_s));
        LS_TRY(add_number(object, "tokens_per_s", c->tokens_per_s));
        LS_TRY(add_number(object, "gain_fraction", c->gain_fraction));
    }
    return LS_OK;
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
    for (int lane = 0; lane < ls_plan_lanes(r->plan); lane++)
        LS_TRY(add_number(lanes, ls_lane_name((ls_lane)lane), (double)totals.lane_steps[lane]));
    LS_TRY(add_number(object, "waits", (double)totals.waits));
    LS_TRY(add_number(object, "carries", (double)totals.carries));
    LS_TRY(add_number(object, "flops", totals.flops));
    LS_TRY(add_number(object, "bytes", totals.bytes));
    LS_TRY(add_number(object, "copy_in_bytes", totals.copy_in_bytes));
    return add_number(object, "copy_out_bytes", totals.copy_out_bytes);
}

static ls_status add_segments(const ls_plan_report *r, cJSON *json)
{
    cJSON *segments = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, "segments", segments));
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) LS_TRY(add_segment(r, (ls_segment_kind)s, segments));
    return LS_OK;
}

/* What keeps a time from being known; NULL: it is known. */
static const char *find_why_unknown(const ls_plan_report *r)
{
    if (r->plan == NULL) return "the plan was not built";
    return r->times.why_unknown[0] != '\0' ? r->times.why_unknown : NULL;
}

/* Without comm: a plan that uses it has no time. */
static ls_status add_lanes(const double seconds[LS_LANE_COUNT], cJSON *json)
{
    cJSON *lanes = cJSON_CreateObject();

    LS_TRY(ls_json_add(json, "lane_busy_s", lanes));
    for (int lane = 0; lane < LS_LANE_COMM; lane++)
        LS_TRY(add_number(lanes, ls_lane_name((ls_lane)lane), seconds[lane]));
    return LS_OK;
}

static ls_status add_known_times(const ls_plan_times *t, cJSON *json)
{
    const ls_simulation *s = &t->simulation;

    LS_TRY(add_number(json, "step_s", s->step_s));
    LS_TRY(add_number(json, "lower_bound_s", s->lower_bound_s));
    LS_TRY(add_text(json, "bound_by", s->bound_by));
    LS_TRY(add_number(json, "tokens_per_s", t->tokens_per_s));
    LS_TRY(add_number(json, "mfu_causal", t->mfu_causal));
    LS_TRY(add_number(json, "mfu_megatron", t->mfu_megatron));
    LS_TRY(add_number(json, "tflops_alst", t->tflops_alst));
    LS_TRY(add_lanes(s->lane_busy_s, json));
    return add_null(json, "time_unknown");
}

static ls_status add_joules(const ls_simulation *s, cJSON *json)
{
    cJSON *joules = cJSON_CreateObject();

    LS_TRY(ls_json_add(json, "energy_j", joules));
    LS_TRY(add_number(joules, "gpu", s->gpu_j));
    LS_TRY(add_number(joules, "cpu", s->cpu_j));
    return add_number(joules, "total", s->gpu_j + s->cpu_j);
}

static ls_status add_energy(const ls_plan_times *t, const char *why_no_time, cJSON *json)
{
    static const char *const keys[] = {"energy_j", "watts_average", "watts_peak",
                                       "kwh_per_million_tokens", "capped_s"};
    const ls_simulation *s = &t->simulation;
    const char *why = why_no_time != NULL ? why_no_time : t->why_no_energy;

    if (why[0] != '\0') {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) LS_TRY(add_null(json, keys[i]));
        return add_text(json, "energy_unknown", why);
    }
    LS_TRY(add_joules(s, json));
    LS_TRY(add_number(json, "watts_average", t->watts_average));
    LS_TRY(add_number(json, "watts_peak", s->watts_peak));
    LS_TRY(add_number(json, "kwh_per_million_tokens", t->kwh_per_million_tokens));
    LS_TRY(add_number(json, "capped_s", s->capped_s));
    return add_null(json, "energy_unknown");
}

static ls_status add_times(const ls_plan_report *r, cJSON *json)
{
    static const char *const keys[] = {"step_s",     "lower_bound_s", "bound_by",    "tokens_per_s",
                                       "mfu_causal", "mfu_megatron",  "tflops_alst", "lane_busy_s"};
    const char *why = find_why_unknown(r);

    if (why == NULL) {
        LS_TRY(add_known_times(&r->times, json));
    } else {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) LS_TRY(add_null(json, keys[i]));
        LS_TRY(add_text(json, "time_unknown", why));
    }
    return add_energy(&r->times, why, json);
}

static ls_status fill(const ls_plan_report *r, cJSON *json)
{
    LS_TRY(ls_json_add(json, "fits", cJSON_CreateBool(r->fits)));
    LS_TRY(r->fits ? add_null(json, "why") : add_text(json, "why", r->why));
    LS_TRY(add_text(json, "profile", r->hardware->profile));
    LS_TRY(add_text(json, "model", r->config->model_path));
    LS_TRY(add_number(json, "parameters", (double)r->parameters));
    LS_TRY(add_number(json, "tokens", (double)r->tokens));
    LS_TRY(add_number(json, "pairs", r->pairs));
    LS_TRY(add_number(json, "flops_model", r->flops_model));
    LS_TRY(add_times(r, json));
    LS_TRY(add_memory(r, json));
    LS_TRY(add_choices(r, json));
    LS_TRY(add_search(r, json));
    LS_TRY(add_changes(&r->changes, json));
    if (r->plan != NULL) {
        LS_TRY(add_number(json, "n_steps", (double)r->plan->segment_steps[LS_SEGMENT_STEP]));
        LS_TRY(add_segments(r, json));
    } else {
        LS_TRY(add_null(json, "n_steps"));
        LS_TRY(add_null(json, "segments"));
    }
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
