/* plan_report.c - the figures of a plan, and the tables people read. */
#include "plan_report.h"

#include <string.h>

#include "choices.h"
#include "clock.h"
#include "text.h"

#define NEAREST_BYTES 256

/* ---- figures ------------------------------------------------------------------------------- */

/* Pairs of a document of n tokens; window 0: none. */
static double count_pairs(double n, double window)
{
    if (window <= 0.0 || window >= n) return n * (n + 1.0) / 2.0;
    return window * (window + 1.0) / 2.0 + (n - window) * window;
}

static void count_model(const ls_run_config *c, const ls_decoder_options *o, ls_plan_report *report)
{
    const ls_decoder_shape *s = &o->shape;
    const int64_t n_sequences = c->sequences * c->accumulate;

    report->parameters = ls_decoder_params(s);
    report->tokens = n_sequences * c->sequence_tokens;
    report->pairs =
        (double)n_sequences * count_pairs((double)c->sequence_tokens, (double)o->window);
    report->flops_model = 6.0 * (double)ls_decoder_matmul_params(s) * (double)report->tokens +
                          12.0 * (double)(s->H * s->K * s->L) * report->pairs;
}

static void read_available(ls_plan_report *report)
{
    report->limit = report->hardware->limit;
    memcpy(report->available.place_bytes, report->hardware->available_bytes,
           sizeof report->available.place_bytes);
}

static ls_status count_places(const ls_plan *plan, ls_plan_report *report)
{
    read_available(report);
    report->fits = true;
    for (int p = 0; p < LS_PLACE_COUNT; p++) {
        const uint64_t needed = ls_plan_place_bytes(plan, (ls_place_kind)p);
        const uint64_t available = report->available.place_bytes[p];
        LS_TRY(ls_plan_shared_bytes(plan, (ls_place_kind)p, &report->shared_bytes[p]));
        if (needed <= available) continue;
        report->short_bytes[p] = needed - available;
        report->fits = false;
    }
    return LS_OK;
}

/* Bytes that stay the same however short the sequences are. */
static uint64_t count_states(const ls_plan_report *r, ls_place_kind place)
{
    uint64_t bytes = 0;
    for (ls_role role = LS_ROLE_WEIGHTS; role <= LS_ROLE_GRAD; role++)
        bytes += ls_plan_role_bytes(r->plan, place, role);
    return bytes;
}

/* Why the first place that is short is, and the remedy. */
static void describe_shortage(ls_plan_report *r)
{
    int p = 0;

    while (p < LS_PLACE_COUNT && r->short_bytes[p] == 0) p++;
    if (p == LS_PLACE_COUNT) return;
    const ls_place_kind place = (ls_place_kind)p;
    const uint64_t states = count_states(r, place);
    char is_short[LS_TEXT_BYTES], needed[LS_TEXT_BYTES], available[LS_TEXT_BYTES];

    ls_text_bytes(is_short, sizeof is_short, r->short_bytes[p]);
    ls_text_bytes(available, sizeof available, r->available.place_bytes[p]);
    if (place == LS_PLACE_NVME) {
        snprintf(r->why, sizeof r->why,
                 "nvme: the plan is short by %s: it needs a file of %s, %s has room for %s; free "
                 "space there, name another folder as nvme.path of the hardware profile (or a "
                 "larger capacity), or place less on nvme (memory.place, memory.save)",
                 is_short,
                 ls_text_bytes(needed, sizeof needed, ls_plan_place_bytes(r->plan, place)),
                 r->hardware->nvme_path, available);
        return;
    }
    const int n = snprintf(r->why, sizeof r->why,
                           "%s memory: the plan is short by %s: ", ls_place_name(place), is_short);
    if (states > r->available.place_bytes[p])
        snprintf(r->why + n, sizeof r->why - (size_t)n,
                 "weights, moments and gradients alone need %s, %s are available; take a smaller "
                 "model or a machine with more memory",
                 ls_text_bytes(needed, sizeof needed, states), available);
    else
        snprintf(r->why + n, sizeof r->why - (size_t)n,
                 "it needs %s, %s are available; lower %ssequence.tokens or batch.sequences, or "
                 "save less (memory.save)",
                 ls_text_bytes(needed, sizeof needed, ls_plan_place_bytes(r->plan, place)),
                 available, place == LS_PLACE_HBM ? "sequence.chunk, sequence.query_block, " : "");
}

bool ls_plan_report_may_save_less(const ls_plan_report *r)
{
    return !r->fits && r->plan != NULL &&
           count_states(r, LS_PLACE_HOST) <= r->available.place_bytes[LS_PLACE_HOST];
}

/* "memory.save: x/4 fits: host 12.3 GiB, for 8.1% more arithmetic" */
static const char *describe_nearest(const ls_save_nearest *nearest, char words[NEAREST_BYTES])
{
    const double percent = 100.0 * nearest->extra_flops_fraction;
    char name[LS_SAVE_NAME_BYTES], bytes[LS_TEXT_BYTES];
    size_t n;

    snprintf(words, NEAREST_BYTES, "memory.save: %s fits:", ls_saves_name(&nearest->saves, name));
    for (int p = 0; p < LS_PLACE_COUNT; p++) {
        if (nearest->cost.place_bytes[p] == 0) continue;
        n = strlen(words);
        snprintf(words + n, NEAREST_BYTES - n, " %s %s,", ls_place_name((ls_place_kind)p),
                 ls_text_bytes(bytes, sizeof bytes, nearest->cost.place_bytes[p]));
    }
    n = strlen(words);
    snprintf(words + n, NEAREST_BYTES - n, " for %.1f%% %s arithmetic",
             percent < 0.0 ? -percent : percent, percent < 0.0 ? "less" : "more");
    return words;
}

void ls_plan_report_set_nearest(const ls_save_nearest *nearest, ls_plan_report *r)
{
    const size_t n = strlen(r->why);
    char words[NEAREST_BYTES];

    r->nearest = *nearest;
    snprintf(r->why + n, sizeof r->why - n, "; %s",
             nearest->found ? describe_nearest(nearest, words) : "no policy of memory.save fits");
}

/* Of what lies in its place between steps, not of copies and slots. */
static double count_state_bytes(const ls_decoder *decoder)
{
    double bytes = 0.0;

    for (int32_t t = 0; t < decoder->tape.n_tensors; t++)
        if (decoder->tape.tensors[t].role <= LS_ROLE_V)
            bytes += (double)ls_tensor_bytes(&decoder->tape.tensors[t]);
    return bytes;
}

ls_status ls_plan_report_make(const ls_run_config *config, const ls_hardware *hardware,
                              const ls_choices *choices, const ls_decoder *decoder,
                              const ls_plan *plan, ls_plan_report *report)
{
    ls_plan_report made = {
        .config = config, .hardware = hardware, .plan = plan, .choices = *choices};

    count_model(config, &decoder->options, &made);
    made.state_bytes_per_parameter = count_state_bytes(decoder) / (double)made.parameters;
    LS_TRY(count_places(plan, &made));
    describe_shortage(&made);
    const double before = ls_clock_processor_seconds();
    LS_TRY(ls_plan_check(plan, made.fits ? &made.available : NULL));
    made.check_s = ls_clock_processor_seconds() - before;
    made.checked = true;
    LS_TRY(ls_plan_times_make(&made, &decoder->options, &made.times));
    *report = made;
    return LS_OK;
}

void ls_plan_report_refuse(const ls_run_config *config, const ls_hardware *hardware,
                           const ls_decoder_options *options, const char *why,
                           ls_plan_report *report)
{
    *report = (ls_plan_report){.config = config,
                               .hardware = hardware,
                               .choices = {.chunk = config->chunk,
                                           .query_block = config->query_block,
                                           .saves = config->saves,
                                           .compute_threads = (int)config->compute_threads,
                                           .optimizer_threads = (int)config->optimizer_threads}};
    report->choices.saves.n_layers = (int32_t)options->shape.L;
    count_model(config, options, report);
    read_available(report);
    snprintf(report->why, sizeof report->why, "%s", why);
}

ls_segment_totals ls_plan_report_segment(const ls_plan_report *report, ls_segment_kind segment)
{
    const ls_plan *plan = report->plan;
    const int64_t first = plan->segment_first[segment];
    ls_segment_totals totals = {.steps = plan->segment_steps[segment]};

    for (int64_t s = first; s < first + totals.steps; s++) {
        const ls_step *step = &plan->steps[s];
        totals.lane_steps[step->lane]++;
        totals.flops += step->flops;
        totals.bytes += (double)step->bytes;
        /* A copy reads and writes as much; the compute lane's bring batches in. */
        double *way =
            step->lane == LS_LANE_COPY_OUT ? &totals.copy_out_bytes : &totals.copy_in_bytes;
        if (step->kind == LS_CALL_COPY && step->lane != LS_LANE_COMM)
            *way += (double)(step->bytes / 2);
        for (int32_t w = 0; w < step->n_waits; w++)
            if (ls_wait_is_carry(plan->waits[step->first_wait + w]))
                totals.carries++;
            else
                totals.waits++;
    }
    return totals;
}

/* O, and q, k, v, are a block's or a layer's at work unless some layer keeps them: those move only
 * where their class is cut into blocks. */
static bool is_at_work(const ls_choices *c, ls_role role)
{
    bool is_kept = (role != LS_ROLE_O && role != LS_ROLE_KV) || c->placement.tiled[role];

    for (int32_t i = 0; i < c->saves.n_ranges && !is_kept; i++) {
        const ls_save_policy policy = c->saves.ranges[i].policy;
        is_kept = role == LS_ROLE_O ? policy.o : policy.qkv;
    }
    return !is_kept;
}

/* Whether memory.save puts what some layers keep on a place that is not their class's. */
static bool has_layers(const ls_placement *p, ls_role role, ls_place_kind place)
{
    const bool kept = role == LS_ROLE_X || role == LS_ROLE_O || role == LS_ROLE_KV;

    for (int32_t i = 0; i < p->n_layers && kept; i++)
        if (p->layers[i].place == place && place != p->classes[role].place) return true;
    return false;
}

ls_class_row ls_plan_report_class(const ls_plan_report *r, ls_role role, ls_place_kind place)
{
    const ls_class_placement *class = &r->choices.placement.classes[role];
    const char *const direct = ls_mode_name(LS_MODE_DIRECT), *const mode =
                                                                 ls_mode_name(class->mode);
    const uint64_t bytes = ls_plan_role_bytes(r->plan, place, role);

    if (is_at_work(&r->choices, role))
        return (ls_class_row){bytes, direct,
                              role == LS_ROLE_O ? "recomputed block by block" : "of one layer"};
    if (has_layers(&r->choices.placement, role, place))
        return (ls_class_row){bytes, mode,
                              "of the layers that memory.save puts here, and of others"};
    if (place == class->place) return (ls_class_row){bytes, mode, class->reason};
    if (place == LS_PLACE_HBM && role >= LS_ROLE_LO && role <= LS_ROLE_V)
        return (ls_class_row){bytes, ls_mode_name(LS_MODE_RESIDENT),
                              "of the layers that optimizer.device_layers updates here"};
    if (place == LS_PLACE_HBM && role == LS_ROLE_WEIGHTS && class->mode != LS_MODE_RESIDENT &&
        r->choices.placement.device_layers > 0)
        return (ls_class_row){bytes, mode, "those of optimizer.device_layers stay, others pass"};
    if (class->mode == LS_MODE_STREAM)
        return (ls_class_row){bytes, mode, "slots to pass through, and what is at work"};
    if (class->mode == LS_MODE_RESIDENT)
        return (ls_class_row){bytes, mode, "the copy that kernels read"};
    return (ls_class_row){bytes, direct, class->reason};
}

/* ---- tables -------------------------------------------------------------------------------- */

static void print_row(FILE *file, const char *name, const char *bytes, const char *note)
{
    fprintf(file, "  %-10s %12s%s%s\n", name, bytes, *note != '\0' ? "   " : "", note);
}

static void print_bytes(FILE *file, const char *name, uint64_t bytes, const char *note)
{
    char text[LS_TEXT_BYTES];
    print_row(file, name, ls_text_bytes(text, sizeof text, bytes), note);
}

/* The classes, what they save by sharing, and what the place has. */
static void print_place(const ls_plan_report *r, ls_place_kind place, FILE *file)
{
    const uint64_t total = ls_plan_place_bytes(r->plan, place), shared = r->shared_bytes[place];
    uint64_t sum = 0;
    char text[LS_TEXT_BYTES], saved[LS_TEXT_BYTES + 1];

    fprintf(file, "memory: %s\n", ls_place_name(place));
    for (ls_role role = 0; role < LS_ROLE_COUNT; role++) {
        const ls_class_row row = ls_plan_report_class(r, role, place);
        char note[2 * LS_PLACEMENT_REASON_BYTES];
        sum += row.bytes;
        snprintf(note, sizeof note, "%-8s  %s", row.mode, row.reason);
        if (row.bytes > 0) print_bytes(file, ls_role_name(role), row.bytes, note);
    }
    snprintf(saved, sizeof saved, "-%s", ls_text_bytes(text, sizeof text, shared));
    if (shared > 0) print_row(file, "shared", saved, "saved: lives that do not overlap");
    print_bytes(file, "padding", total + shared - sum, "to the alignment of spans");
    print_bytes(file, "total", total, "");
    print_bytes(file, "available", r->available.place_bytes[place],
                place == LS_PLACE_HOST   ? r->limit
                : place == LS_PLACE_NVME ? r->hardware->nvme_path
                                         : "");
}

/* The lanes that have steps in some segment. */
static bool is_used(const ls_segment_totals totals[LS_SEGMENT_COUNT], int lane)
{
    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        if (totals[s].lane_steps[lane] > 0) return true;
    return false;
}

static void print_segments(const ls_plan_report *r, FILE *file)
{
    ls_segment_totals totals[LS_SEGMENT_COUNT];

    for (int s = 0; s < LS_SEGMENT_COUNT; s++)
        totals[s] = ls_plan_report_segment(r, (ls_segment_kind)s);
    fprintf(file, "\n%-10s %9s", "segment", "steps");
    for (int lane = 0; lane < LS_LANE_COUNT; lane++)
        if (is_used(totals, lane)) fprintf(file, " %9s", ls_lane_name((ls_lane)lane));
    fprintf(file, " %7s %8s %11s %11s\n", "waits", "carries", "TFLOP", "GB moved");
    for (int s = 0; s < LS_SEGMENT_COUNT; s++) {
        const ls_segment_totals *t = &totals[s];
        if (t->steps == 0) continue;
        fprintf(file, "%-10s %9lld", ls_segment_name((ls_segment_kind)s), (long long)t->steps);
        for (int lane = 0; lane < LS_LANE_COUNT; lane++)
            if (is_used(totals, lane)) fprintf(file, " %9lld", (long long)t->lane_steps[lane]);
        fprintf(file, " %7lld %8lld %11.4g %11.4g\n", (long long)t->waits, (long long)t->carries,
                1e-12 * t->flops, 1e-9 * t->bytes);
    }
}

/* "8", or "all" for 0. */
static const char *print_threads(char *buffer, size_t size, int n)
{
    if (n > 0)
        snprintf(buffer, size, "%d", n);
    else
        snprintf(buffer, size, "all");
    return buffer;
}

/* What else was tried; nothing, where the run file leaves nothing open or nothing fits. */
static void print_search(const ls_search *s, FILE *file)
{
    if (s == NULL || s->chosen.choices.chunk == 0) return;
    fprintf(file, "accumulation: %s\n", s->why_order);
    fprintf(file, "search: %d plans measured, %d simulated, %d ruled out before\n", s->n_measured,
            s->n_simulated, s->n_pruned);
    if (s->has_runner_up) fprintf(file, "  runner-up: %s\n", s->why);
    if (s->has_refused) fprintf(file, "  no room: %s\n", s->why_refused);
}

static void print_changes(const ls_plan_changes *changes, FILE *file)
{
    if (changes->n > 0)
        fprintf(file, "faster, each simulated%s:\n",
                changes->is_partial ? " (of a plan this long no other is searched for)" : "");
    for (int i = 0; i < changes->n; i++) {
        const ls_plan_change *c = &changes->changes[i];
        fprintf(file, "  %+6.1f%%  %.4g s  %s: %s\n", 100.0 * c->gain_fraction, c->step_s,
                ls_change_kind_name(c->kind), c->words);
    }
}

static void print_choices(const ls_plan_report *r, FILE *file)
{
    const ls_choices *c = &r->choices;
    const ls_class_placement *weights = &c->placement.classes[LS_CLASS_WEIGHTS];
    static const char *const moments[LS_MOMENTS_COUNT] = {"fp32", "bf16", "q8", "q4"};
    char compute[16], optimizer[16], save[LS_SAVES_TEXT_BYTES];

    fprintf(file, "choices: chunk %lld, query block %lld, save %s, weights %s", (long long)c->chunk,
            (long long)c->query_block, ls_saves_describe(&c->saves, save),
            ls_mode_name(weights->mode));
    if (weights->mode == LS_MODE_STREAM)
        fprintf(file, " through %lld layers' slots", (long long)c->placement.ring_slots);
    fputc('\n', file);
    print_search(r->search, file);
    fprintf(file, "state: %.4g bytes per parameter, moments %s%s\n", r->state_bytes_per_parameter,
            moments[r->config->moments], r->config->moments != LS_MOMENTS_F32 ? " (lossy)" : "");
    fprintf(file, "threads: compute %s, optimizer %s\n",
            print_threads(compute, sizeof compute, c->compute_threads),
            print_threads(optimizer, sizeof optimizer, c->optimizer_threads));
}

static void print_verdict(const ls_plan_report *r, FILE *file)
{
    char text[LS_TEXT_BYTES];

    fputs(r->checked ? "checked: contents, lifetimes, order; no wait is spare\n" : "", file);
    if (r->fits) fputs("verdict: fits\n", file);
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (r->short_bytes[p] > 0)
            fprintf(file, "verdict: does not fit: %s short by %s\n",
                    ls_place_name((ls_place_kind)p),
                    ls_text_bytes(text, sizeof text, r->short_bytes[p]));
    if (r->nearest.found) {
        char words[NEAREST_BYTES];
        fprintf(file, "nearest: %s\n", describe_nearest(&r->nearest, words));
    }
}

void ls_plan_report_print(const ls_plan_report *r, FILE *file)
{
    char tokens[LS_TEXT_BYTES], length[LS_TEXT_BYTES];

    fprintf(file, "model: %s, %.4gM parameters\nhardware: %s%s%s\n", r->config->model_path,
            1e-6 * (double)r->parameters, r->hardware->profile,
            r->hardware->topology->profile_reason[0] != '\0' ? ": " : "",
            r->hardware->topology->profile_reason);
    fprintf(file, "step: %s tokens, %lld x %lld sequences of %s; %.4g model TFLOP\n\n",
            ls_text_count(tokens, sizeof tokens, r->tokens), (long long)r->config->accumulate,
            (long long)r->config->sequences,
            ls_text_count(length, sizeof length, r->config->sequence_tokens),
            1e-12 * r->flops_model);
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        if (ls_plan_place_bytes(r->plan, (ls_place_kind)p) > 0)
            print_place(r, (ls_place_kind)p, file);
    print_segments(r, file);
    fputc('\n', file);
    ls_plan_times_print(r, file);
    print_choices(r, file);
    print_changes(&r->changes, file);
    print_verdict(r, file);
}

ls_status ls_plan_report_verdict(const ls_plan_report *r)
{
    return r->fits ? LS_OK : LS_FAIL(LS_ERR_NO_MEMORY, "%s", r->why);
}
