/*
 * test_choice_search.c - what `auto` chooses: the same each time, what is given stands, what fits
 * is within the budget, and nothing that was tried or might have been asked for is faster.
 *
 * Machines are a GPU of made-up rates beside host memory of a few MiB, a model of six layers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "choice_search.h"
#include "save_search.h"
#include "simulate.h"

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

#define MIB (INT64_C(1) << 20)

#ifdef LS_SANITIZED /* many times slower: one link, and every fourth policy */
enum { LINKS = 1, POLICY_STEP = 4 };
#else
enum { LINKS = 2, POLICY_STEP = 2 };
#endif

/* ---- machines and runs --------------------------------------------------------------------- */

static ls_quantity figure(double value)
{
    return ls_quantity_make(value, LS_SOURCE_PUBLISHED, "test");
}

static void add_efficiency(ls_unit *unit, const char *op, double fraction)
{
    ls_efficiency *e = &unit->efficiencies[unit->n_efficiencies++];
    snprintf(e->op, sizeof e->op, "%s", op);
    snprintf(e->shape, sizeof e->shape, "large");
    e->fraction = figure(fraction);
}

typedef struct machine {
    ls_topology *topology;
    ls_hardware hardware;
    ls_cost_model rates;
} machine;

/* A GPU of 50 TFLOP/s, HBM of 500 GB/s, host memory of 50, a link of so many GB/s. */
static machine make_machine(double link, int64_t hbm_bytes, int64_t host_bytes)
{
    ls_topology *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->n_places = 2;
    t->places[0] =
        (ls_place){.kind = LS_PLACE_HBM, .name = "hbm0", .read_bytes_per_s = figure(500e9)};
    t->places[1] = (ls_place){
        .kind = LS_PLACE_HOST, .name = "host0", .numa_node = 0, .read_bytes_per_s = figure(50e9)};
    t->n_links = 1;
    t->links[0] = (ls_link){.from = "host0",
                            .to = "hbm0",
                            .bytes_per_s = figure(1e9 * link),
                            .reverse_bytes_per_s = figure(0.8e9 * link),
                            .coherent = figure(1),
                            .latency_ns = figure(1000)};
    t->n_units = 2;
    t->units[0] = (ls_unit){.kind = LS_UNIT_GPU,
                            .name = "gpu0",
                            .place = 0,
                            .host_node = figure(0),
                            .bf16_flops_per_s = figure(50e12),
                            .fp32_flops_per_s = figure(5e12)};
    t->units[1] =
        (ls_unit){.kind = LS_UNIT_CPU, .name = "cpu0", .place = 1, .host_node = figure(0)};
    add_efficiency(&t->units[0], "matmul", 0.5);
    add_efficiency(&t->units[0], "attention_forward", 0.2);
    add_efficiency(&t->units[0], "attention_backward", 0.2);

    machine m = {.topology = t, .rates = ls_cost_model_make(t, true, LS_DTYPE_BF16)};
    assert_string_equal(m.rates.why_unknown, "");
    m.hardware = (ls_hardware){.topology = t,
                               .profile = "made-up",
                               .has_device = true,
                               .ops = &ls_ops_cpu,
                               .is_elsewhere = true,
                               .limit = "made-up",
                               .host_node = -1};
    for (int p = 0; p < LS_PLACE_COUNT; p++) m.hardware.available_bytes[p] = 0;
    m.hardware.available_bytes[LS_PLACE_HBM] = (uint64_t)hbm_bytes;
    m.hardware.available_bytes[LS_PLACE_HOST] = (uint64_t)host_bytes;
    return m;
}

static const ls_model_config model = {.vocab_size = 272,
                                      .hidden_size = 64,
                                      .intermediate_size = 128,
                                      .num_hidden_layers = 6,
                                      .num_attention_heads = 4,
                                      .num_key_value_heads = 2,
                                      .head_dim = 16,
                                      .max_position_embeddings = 65536,
                                      .rms_norm_eps = 1e-5};

static ls_run_config make_run(int64_t tokens, int64_t accumulate)
{
    return (ls_run_config){.precision = LS_DTYPE_BF16,
                           .sequence_tokens = tokens,
                           .sequences = 1,
                           .accumulate = accumulate,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .clip_norm = 1.0,
                           .save_auto = true,
                           .steps = 1};
}

/* The search as training would have it. */
static ls_choices choose(const machine *m, const ls_run_config *run, ls_search *search)
{
    ls_choices choices;
    assert_ok(ls_choices_make_any(run, &model, &m->hardware, true, search, &choices));
    return choices;
}

/* The plan of some choices, in full. */
static ls_simulation simulate(const machine *m, const ls_run_config *run, const ls_choices *choices,
                              uint64_t place_bytes[LS_PLACE_COUNT])
{
    const ls_decoder_options options = ls_choices_decoder(run, &model, choices, true);
    ls_simulation simulation;
    ls_decoder decoder;
    ls_plan plan;

    assert_ok(ls_decoder_build(&options, &decoder));
    assert_ok(ls_plan_lower(&decoder.tape, &choices->placement, &ls_ops_cpu, &plan));
    assert_ok(ls_simulate(&plan, &m->rates, NULL, NULL, &simulation));
    for (int p = 0; p < LS_PLACE_COUNT; p++)
        place_bytes[p] = ls_plan_place_bytes(&plan, (ls_place_kind)p);
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
    return simulation;
}

/* Bytes of the plan with a policy for all layers and lots of room. */
static uint64_t host_bytes_of(const ls_run_config *run, const char *policy)
{
    machine m = make_machine(10, 4096 * MIB, 4096 * MIB);
    ls_run_config given = *run;
    ls_save_policy parsed;
    uint64_t bytes[LS_PLACE_COUNT];

    assert_true(ls_save_policy_parse(policy, &parsed));
    given.save_auto = false;
    ls_saves_set(&given.saves, parsed);
    const ls_choices choices = choose(&m, &given, NULL);
    simulate(&m, &given, &choices, bytes);
    free(m.topology);
    return bytes[LS_PLACE_HOST];
}

/* Room of which 15 sixteenths hold so many bytes. */
static int64_t room_for(uint64_t bytes)
{
    return (int64_t)(bytes + bytes / 15 + 16);
}

/* ---- laws ---------------------------------------------------------------------------------- */

/* What is said of the chosen plan is so, it is within the budget, and none that was tried beats it.
 */
static void assert_lawful(const machine *m, const ls_run_config *run, const ls_choices *choices,
                          const ls_search *s)
{
    uint64_t bytes[LS_PLACE_COUNT];
    const ls_simulation simulation = simulate(m, run, choices, bytes);
    const uint64_t room = m->hardware.available_bytes[LS_PLACE_HOST];

    assert_true(s->times_known && s->n_measured > 0);
    assert_memory_equal(&s->chosen.choices, choices, sizeof *choices);
    assert_memory_equal(bytes, s->chosen.cost.place_bytes, sizeof bytes);
    assert_true(bytes[LS_PLACE_HBM] <= m->hardware.available_bytes[LS_PLACE_HBM]);
    assert_true(bytes[LS_PLACE_HOST] <= room - room / 16);
    assert_true(simulation.lower_bound_s == s->chosen.cost.lower_bound_s);
    assert_string_equal(simulation.bound_by, s->chosen.cost.bound_by);
    if (s->chosen.step_s > 0) assert_true(simulation.step_s == s->chosen.step_s);
    if (!s->has_runner_up) return;
    assert_true(s->why[0] != '\0');
    if (s->runner_up.step_s > 0) {
        assert_true(s->chosen.step_s <= s->runner_up.step_s);
        simulate(m, run, &s->runner_up.choices, bytes);
        assert_memory_equal(bytes, s->runner_up.cost.place_bytes, sizeof bytes);
    }
}

static void the_chosen_is_lawful_and_the_same_again(void **state)
{
    static const double links[] = {0.5, 200};
    const ls_run_config run = make_run(8192, 1);
    const uint64_t richest = host_bytes_of(&run, "x+qkv+o"), poorest = host_bytes_of(&run, "x");

    (void)state;
    for (int l = 0; l < LINKS; l++)
        for (int room = 0; room <= 2; room++) {
            const uint64_t host = poorest + (richest - poorest) * (uint64_t)room / 2;
            for (int64_t hbm = 12; hbm <= 48; hbm *= 4) {
                machine m = make_machine(links[l], hbm * MIB, room_for(host));
                ls_search search, again;
                const ls_choices choices = choose(&m, &run, &search);
                if (search.chosen.choices.chunk > 0) assert_lawful(&m, &run, &choices, &search);
                const ls_choices same = choose(&m, &run, &again);
                assert_memory_equal(&choices, &same, sizeof same);
                assert_memory_equal(&search, &again, sizeof again);
                free(m.topology);
            }
        }
}

/* ---- what is given stands ------------------------------------------------------------------ */

static void what_is_given_stands(void **state)
{
    static const ls_weights_mode modes[] = {LS_WEIGHTS_RESIDENT, LS_WEIGHTS_DIRECT,
                                            LS_WEIGHTS_STREAM};
    static const ls_place_mode placed[] = {LS_MODE_RESIDENT, LS_MODE_DIRECT, LS_MODE_STREAM};
    machine m = make_machine(10, 256 * MIB, 1024 * MIB);
    ls_choices c;

    (void)state;
    for (int64_t chunk = 512; chunk <= 4096; chunk *= 2) {
        ls_run_config run = make_run(8192, 1);
        run.chunk = chunk;
        assert_true(choose(&m, &run, NULL).chunk == chunk);
        run.query_block = 2 * chunk;
        c = choose(&m, &run, NULL);
        assert_true(c.chunk == chunk && c.query_block == 2 * chunk);
        run.chunk = 0;
        assert_true(choose(&m, &run, NULL).query_block == 2 * chunk);
    }
    for (int w = 0; w < 3; w++) {
        ls_run_config run = make_run(8192, 1);
        run.weights = modes[w];
        assert_int_equal(choose(&m, &run, NULL).placement.classes[LS_CLASS_WEIGHTS].mode,
                         placed[w]);
        run.weights = LS_WEIGHTS_STREAM;
        run.ring_slots = 2 + w;
        c = choose(&m, &run, NULL);
        assert_int_equal(c.placement.classes[LS_CLASS_WEIGHTS].mode, LS_MODE_STREAM);
        assert_true(c.placement.ring_slots == 2 + w);
    }
    for (int p = 0; p < LS_SAVE_POLICIES; p++) {
        ls_run_config run = make_run(8192, 1);
        run.save_auto = false;
        ls_saves_set(&run.saves, ls_save_ladder[p]);
        c = choose(&m, &run, NULL);
        assert_memory_equal(&c.saves.ranges[0], &run.saves.ranges[0], sizeof run.saves.ranges[0]);
        assert_int_equal(c.saves.n_ranges, 1);
    }
    for (int order = 1; order <= 2; order++) {
        ls_run_config run = make_run(4096, 3);
        run.accumulate_order = order;
        assert_int_equal(choose(&m, &run, NULL).layer_major, order == 2);
    }
    ls_run_config run = make_run(8192, 1);
    run.places[LS_CLASS_X] = 1 + LS_PLACE_HBM;
    assert_int_equal(choose(&m, &run, NULL).placement.classes[LS_CLASS_X].place, LS_PLACE_HBM);
    free(m.topology);
}

/* ---- nothing that may be asked for is faster --------------------------------------------------
 */

static bool has_room(const machine *m, const uint64_t bytes[LS_PLACE_COUNT])
{
    const uint64_t host = m->hardware.available_bytes[LS_PLACE_HOST];
    return bytes[LS_PLACE_HBM] <= m->hardware.available_bytes[LS_PLACE_HBM] &&
           bytes[LS_PLACE_HOST] <= host - host / 16;
}

/* Policies with each mode of weights and each chunk, all given: the search, which walks
 * from bounds of time and simulates but the best few, is within 5% of the best of them, or better.
 */
static void assert_none_is_faster(const machine *m, const ls_run_config *run)
{
    static const ls_weights_mode modes[] = {LS_WEIGHTS_RESIDENT, LS_WEIGHTS_STREAM};
    ls_search search;
    uint64_t bytes[LS_PLACE_COUNT];
    const ls_choices chosen = choose(m, run, &search);
    const double step_s = simulate(m, run, &chosen, bytes).step_s;
    int n_fitting = 0;

    for (int p = 0; p < LS_SAVE_POLICIES; p += POLICY_STEP)
        for (int w = 0; w < 2; w++)
            for (int64_t chunk = 2048; chunk <= 4096; chunk *= 2) {
                ls_run_config given = *run;
                given.save_auto = false;
                ls_saves_set(&given.saves, ls_save_ladder[p]);
                given.weights = modes[w];
                given.ring_slots = w == 1 ? 3 : 0;
                given.chunk = chunk;
                given.query_block = 2 * chunk;
                const ls_choices choices = choose(m, &given, NULL);
                const ls_simulation other = simulate(m, &given, &choices, bytes);
                if (!has_room(m, bytes)) continue;
                n_fitting++;
                if (other.step_s < 0.95 * step_s) {
                    char name[LS_SAVE_NAME_BYTES], is[LS_CANDIDATE_NAME_BYTES];
                    fail_msg("%s, weights %d, chunk %lld: %g s, but the search took %g s (%s)",
                             ls_save_policy_name(ls_save_ladder[p], name), w, (long long)chunk,
                             other.step_s, step_s, ls_candidate_name(&search.chosen, is));
                }
            }
    if (n_fitting > 0) assert_true(search.chosen.choices.chunk > 0);
}

static void none_that_is_given_is_faster(void **state)
{
    static const double links[] = {0.5, 200};
    const ls_run_config run = make_run(8192, 1);
    const uint64_t most = host_bytes_of(&run, "x+o"), least = host_bytes_of(&run, "x/4");

    (void)state;
    for (int l = 0; l < LINKS; l++)
        for (int room = 0; room < 2; room++) {
            machine m =
                make_machine(links[l], 32 * MIB, room_for(least + (most - least) * (uint64_t)room));
            assert_none_is_faster(&m, &run);
            free(m.topology);
        }
}

/* ---- mixtures ------------------------------------------------------------------------------ */

/* Host memory between two policies: layers take one and the other, no layer more has room, and the
 * step is between theirs. */
static void layers_are_mixed_where_a_policy_has_no_room(void **state)
{
    ls_run_config run = make_run(16384, 1);
    const uint64_t rich = host_bytes_of(&run, "o+x/8"), lean = host_bytes_of(&run, "x/4");
    machine m = make_machine(200, 24 * MIB, room_for((rich + lean) / 2));
    ls_search search;
    const ls_choices choices = choose(&m, &run, &search);
    uint64_t bytes[LS_PLACE_COUNT];

    (void)state;
    assert_true(choices.saves.n_ranges >= 2);
    assert_lawful(&m, &run, &choices, &search);
    assert_true(search.has_refused && strstr(search.why_refused, "short of ") != NULL);
    ls_run_config given = run;
    given.save_auto = false;
    ls_saves_set(&given.saves, (ls_save_policy){.x_stride = 1});
    ls_choices uniform = choose(&m, &given, NULL);
    assert_true(simulate(&m, &run, &choices, bytes).step_s <=
                simulate(&m, &given, &uniform, bytes).step_s);
    free(m.topology);
}

/* The host lacks two layers' inputs.  With the first rows both places together lack room, which is
 * known without trying; with fewer the last layers find it in device memory. */
static void layers_are_held_with_fewer_rows(void **state)
{
    const ls_run_config run = make_run(32768, 1);
    const int64_t x = 2 * run.sequence_tokens * model.hidden_size;
    machine m = make_machine(200, 11 * x, room_for(host_bytes_of(&run, "x") - (uint64_t)(2 * x)));
    const ls_trial trial = {&run, &model, &m.hardware, &m.rates, true};
    ls_choices first_rows;
    ls_search search;
    const ls_choices choices = choose(&m, &run, &search);

    (void)state;
    ls_choices_set_rows(&trial, 0, &first_rows);
    assert_true(choices.chunk < first_rows.chunk);
    assert_true(choices.saves.n_ranges == 2 && choices.saves.ranges[1].policy.x_stride == 1);
    assert_int_equal(choices.saves.ranges[1].place, 1 + LS_PLACE_HBM);
    assert_lawful(&m, &run, &choices, &search);
    free(m.topology);
}

/* Without rates it is arithmetic that is saved, and nothing is simulated. */
static void without_rates_arithmetic_counts(void **state)
{
    ls_run_config run = make_run(8192, 1);
    const uint64_t rich = host_bytes_of(&run, "x+qkv+o"), lean = host_bytes_of(&run, "x+o");
    ls_search search;

    (void)state;
    for (int room = 0; room < 2; room++) {
        machine m = make_machine(10, 1024 * MIB, room_for(room == 0 ? rich : (rich + lean) / 2));
        m.topology->units[0].n_efficiencies = 0;
        const ls_choices choices = choose(&m, &run, &search);
        assert_false(search.times_known);
        assert_int_equal(search.n_simulated, 0);
        assert_true(search.chosen.fits && search.chosen.step_s == 0);
        if (room == 0) {
            assert_int_equal(choices.saves.n_ranges, 1);
            assert_true(choices.saves.ranges[0].policy.qkv);
            free(m.topology);
            continue;
        }
        ls_run_config given = run;
        ls_plan_cost cost;
        given.save_auto = false;
        ls_saves_set(&given.saves, (ls_save_policy){.o = true, .x_stride = 1});
        ls_choices uniform = choose(&m, &given, NULL);
        assert_ok(ls_choices_measure(&given, &model, &m.hardware, &uniform, &cost));
        assert_true(choices.saves.n_ranges == 2);
        assert_true(search.chosen.cost.flops < cost.flops);
        free(m.topology);
    }
}

/* ---- the order of accumulation ----------------------------------------------------------------
 */

/* By simulated time where both fit; what fits where one does not; the reason says which. */
static void the_order_is_the_faster_that_fits(void **state)
{
    static const double links[] = {0.2, 400};
    int n_layer = 0, n_sequence = 0;

    (void)state;
    /* resident weights, then streamed ones: these come once for all micro-batches layer by layer */
    for (int l = 0; l < 4; l++)
        for (int64_t host = 16; host <= 256; host *= 4) {
            ls_run_config run = make_run(l < 2 ? 2048 : 64, 4);
            if (l >= 2) run.weights = LS_WEIGHTS_STREAM;
            double step_s[2] = {0, 0};
            ls_search search;
            machine m = make_machine(links[l % 2], 16 * MIB, host * MIB);
            const ls_choices choices = choose(&m, &run, &search);
            if (search.chosen.choices.chunk == 0) {
                free(m.topology);
                continue;
            }
            assert_lawful(&m, &run, &choices, &search);
            for (int order = 0; order < 2; order++) {
                ls_run_config given = run;
                ls_search one;
                uint64_t bytes[LS_PLACE_COUNT];
                given.accumulate_order = 1 + order;
                const ls_choices ordered = choose(&m, &given, &one);
                if (one.chosen.choices.chunk > 0)
                    step_s[order] = simulate(&m, &given, &ordered, bytes).step_s;
                assert_string_equal(
                    one.chosen.choices.chunk > 0 ? one.why_order : "",
                    one.chosen.choices.chunk > 0 ? "batch.accumulate_order asks for it" : "");
            }
            const bool is_layer = choices.layer_major;
            n_layer += is_layer;
            n_sequence += !is_layer;
            assert_true(step_s[is_layer] > 0);
            if (step_s[!is_layer] > 0) assert_true(step_s[is_layer] <= 1.005 * step_s[!is_layer]);
            assert_non_null(strstr(search.why_order, is_layer ? "layer: " : "sequence: "));
            assert_true((strstr(search.why_order, "does not fit") != NULL) ==
                        (step_s[!is_layer] == 0));
            free(m.topology);
        }
    assert_true(n_layer > 0);
    assert_true(n_sequence > 0);
}

/* A bound is never held against a simulated time, which would look slower than what lost. */
static void bounds_are_compared_with_bounds(void **state)
{
    const ls_run_config run = make_run(8192, 2);
    const ls_trial trial = {.config = &run, .model = &model, .train = true};
    const uint64_t limit[LS_PLACE_COUNT] = {0};
    ls_search s = {.times_known = true, .has_runner_up = true};

    (void)state;
    s.chosen.cost = (ls_plan_cost){.flops = 2, .lower_bound_s = 9000, .bound_by = "compute"};
    s.chosen.step_s = 9630;
    s.runner_up = s.chosen;
    s.runner_up.cost.lower_bound_s = 9372;
    s.runner_up.step_s = 0;
    ls_search_explain(&trial, &s.runner_up, limit, &s);
    assert_non_null(strstr(s.why, ": not simulated: 9372 s at best (compute), the chosen 9000 s at "
                                  "best; 0% more arithmetic"));
    assert_string_equal(s.why_order, "sequence: 9000 s a step at best, layer, not simulated, 9372 "
                                     "s at best");
    s.runner_up.step_s = 9700;
    ls_search_explain(&trial, &s.runner_up, limit, &s);
    assert_non_null(strstr(s.why, ": 9700 s, 0.727% more: +372 s on its busiest (compute), -302 s "
                                  "of waits"));
    assert_string_equal(s.why_order, "sequence: 9630 s a step, layer 9700 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_chosen_is_lawful_and_the_same_again),
        cmocka_unit_test(what_is_given_stands),
        cmocka_unit_test(none_that_is_given_is_faster),
        cmocka_unit_test(layers_are_held_with_fewer_rows),
        cmocka_unit_test(layers_are_mixed_where_a_policy_has_no_room),
        cmocka_unit_test(without_rates_arithmetic_counts),
        cmocka_unit_test(the_order_is_the_faster_that_fits),
        cmocka_unit_test(bounds_are_compared_with_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
