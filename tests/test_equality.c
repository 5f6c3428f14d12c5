/*
 * test_equality.c - a training step does not depend on how it is cut, kept, placed or ordered: loss
 * and every gradient of blocks of 7, 64, S/3 and S against one block with everything kept, and at
 * equal blocks the same bits under every save policy, with keys and values in device memory or
 * streamed through it, through any ring, in each order of micro-batches (which differ by rounding);
 * for one document, many, documents of one token, and a tail of padding.
 *
 *   test_equality         every combination with one layout of documents and one block
 *   test_equality all     everything with everything
 */
#include "model_test.h"
#include "placement_test.h"

enum { S = 65, MICRO_BATCHES = 2, ROWS = S * MICRO_BATCHES, V = 19 };

static int32_t tokens[ROWS], targets[ROWS];
static int64_t positions[ROWS], doc_start[ROWS];
static const model_batch batch = {ROWS, tokens, targets, positions, doc_start};

/* ---- document layouts ------------------------------------------------------------------------ */

typedef enum layout { ONE = 0, MANY, SINGLE_TOKENS, PADDED_TAIL, LAYOUTS } layout;

static const char *const layout_names[LAYOUTS] = {"one document", "many documents",
                                                  "documents of one token", "a padded tail"};

/* One row of the first micro-batch, half of the second. */
static bool is_padding(layout how, int64_t n)
{
    return how == PADDED_TAIL && n % S >= (n < S ? S - 1 : S / 2);
}

static bool begins_document(layout how, int64_t n)
{
    if (n % S == 0 || is_padding(how, n)) return true; /* a row of padding sees itself */
    return how == SINGLE_TOKENS || (how == MANY && ls_rng_below(3, 1, (uint64_t)n, 9) == 0);
}

static void fill_batch(layout how)
{
    for (int64_t n = 0; n < ROWS; n++) {
        const bool labelled = !is_padding(how, n) && n % 7 != 5;
        tokens[n] = (int32_t)ls_rng_below(7, 1, (uint64_t)n, V);
        targets[n] = labelled ? (int32_t)ls_rng_below(7, 2, (uint64_t)n, V) : LS_TARGET_IGNORE;
        doc_start[n] = begins_document(how, n) ? n : doc_start[n - 1];
        positions[n] = n - doc_start[n];
    }
}

/* ---- what must not matter -------------------------------------------------------------------- */

static const struct policy {
    bool o, qkv;
    int64_t x_stride;
    const char *name;
} policies[] = {{true, true, 1, "x+qkv+o"}, {false, false, 1, "x"},    {true, false, 1, "x+o"},
                {true, false, 2, "o+x/2"},  {true, false, 3, "o+x/3"}, {false, false, 2, "x/2"},
                {false, false, 3, "x/3"}};

/* Where what grows with the sequence lies. */
typedef enum residency { HOST_ALONE = 0, RESIDENT, KEYS_STREAMED, ALL_STREAMED } residency;

static const struct where {
    residency of;
    ls_place_mode weights;
    int64_t ring_slots;
    const char *name;
} places[] = {{HOST_ALONE, LS_MODE_DIRECT, 0, "host memory"},
              {RESIDENT, LS_MODE_STREAM, 2, "device, ring of 2"},
              {RESIDENT, LS_MODE_STREAM, 1, "device, a single slot"},
              {RESIDENT, LS_MODE_STREAM, 5, "device, ring of 5"},
              {RESIDENT, LS_MODE_RESIDENT, 2, "device, weights resident"},
              {KEYS_STREAMED, LS_MODE_STREAM, 2, "keys streamed, ring of 2"},
              {KEYS_STREAMED, LS_MODE_STREAM, 3, "keys streamed, ring of 3"},
              {ALL_STREAMED, LS_MODE_STREAM, 3, "all streamed, ring of 3"},
              {ALL_STREAMED, LS_MODE_DIRECT, 2, "all streamed, weights direct"}};

/* Query blocks, the chunks that they are cut into, and key blocks. */
static const struct cut {
    int64_t query_block, chunk, key_block;
} cuts[] = {{7, 7, 7}, {64, 16, 32}, {S / 3, S / 9, (int64_t)2 * (S / 3)}, {S, S, S}};

enum {
    POLICIES = sizeof policies / sizeof policies[0],
    PLACES = sizeof places / sizeof places[0],
    CUTS = sizeof cuts / sizeof cuts[0],
    COMBINATIONS = POLICIES * PLACES * 2,
    CELLS = LAYOUTS * CUTS,
#if defined(LS_SANITIZED)
    SHARE = 3 * CELLS, /* slow, and there is nothing that only one combination touches */
#else
    SHARE = CELLS, /* one combination in so many */
#endif
};

static bool run_all;
static int64_t layers; /* of the model at hand */

static ls_decoder_options make_options(const struct cut *cut, const struct policy *keep,
                                       bool layer_major, bool tied)
{
    return (ls_decoder_options){.shape = {.V = V,
                                          .D = 16,
                                          .F = 24,
                                          .L = layers,
                                          .H = 2,
                                          .G = 1,
                                          .K = 8,
                                          .eps = 1e-5f,
                                          .tied = tied},
                                .dtype = LS_DTYPE_F32,
                                .S = S,
                                .sequences = 1,
                                .accumulate = MICRO_BATCHES,
                                .layer_major = layer_major,
                                .chunk = cut->chunk,
                                .query_block = cut->query_block,
                                .key_block = cut->key_block,
                                .loss_rows = cut->chunk,
                                .train = true,
                                .save_o = keep->o,
                                .save_qkv = keep->qkv,
                                .x_stride = keep->x_stride,
                                .beta1 = 0.9f,
                                .beta2 = 0.95f,
                                .adam_eps = 1e-8f,
                                .clip_norm = 1.0f};
}

static void place(const struct where *where, ls_placement *placement)
{
    static const ls_tensor_class cut[] = {LS_CLASS_KV, LS_CLASS_DKV, LS_CLASS_X, LS_CLASS_O};
    const size_t n = where->of == ALL_STREAMED ? 4 : where->of == KEYS_STREAMED ? 2 : 0;
    const ls_placement_wish wish = {
        .weights_given = true, .weights = where->weights, .ring_slots = where->ring_slots};

    decide_placement(where->ring_slots % 2 == 0, &wish, placement);
    for (size_t c = 0; c < n; c++) {
        placement->classes[cut[c]].place = LS_PLACE_HOST;
        placement->classes[cut[c]].mode = LS_MODE_STREAM;
        placement->tiled[cut[c]] = true;
        placement->tiles[cut[c]] = 1;
    }
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* One step of the batch; close_model() after. */
static double run(model *m, const struct cut *cut, int combination, bool tied)
{
    const struct policy *keep = &policies[combination % POLICIES];
    const struct where *where = &places[combination / POLICIES % PLACES];
    const ls_decoder_options options =
        make_options(cut, keep, combination / (POLICIES * PLACES) != 0, tied);
    ls_placement placement;
    const ls_instance_options how = {.compute_threads = 1,
                                     .optimizer_threads = 1,
                                     .placement = where->of == HOST_ALONE ? NULL : &placement};

    if (where->of != HOST_ALONE) place(where, &placement);
    open_model_as(m, &options, &batch, 10000.0, &how);
    ls_weights_random(&m->instance, 5, 0.1);
    assert_int_equal(ls_instance_fill_copies(&m->instance), LS_OK);
    return step_model(m, 0.0);
}

static void fail_combination(layout how, const struct cut *cut, int combination, const char *what)
{
    fail_msg("%s, blocks of %lld, %s, %s, %s: %s", layout_names[how], (long long)cut->query_block,
             policies[combination % POLICIES].name, places[combination / POLICIES % PLACES].name,
             combination / (POLICIES * PLACES) != 0 ? "layer by layer" : "one by one", what);
}

static bool same_gradients(const model *a, const model *b)
{
    for (int32_t i = 0; i < a->instance.decoder.n_params; i++) {
        int64_t n;
        const float *x = model_gradient(a, i, &n), *y = model_gradient(b, i, &n);
        if (memcmp(x, y, (size_t)n * sizeof *x) != 0) return false;
    }
    return true;
}

/* A query that sees itself alone attends to it whatever the scores: the gradients of both are 0 but
 * for rounding, which no two ways of rounding share. */
static bool vanishes(layout how, const model *m, int32_t param)
{
    const char *name = model_param_name(m, param);
    return how == SINGLE_TOKENS &&
           (strstr(name, "q_proj") != NULL || strstr(name, "k_proj") != NULL);
}

static double gradient_norm(const model *m, int32_t param)
{
    int64_t n;
    double difference, norm;
    const float *x = model_gradient(m, param, &n);
    measure_difference(x, x, n, &difference, &norm);
    return norm;
}

/* The largest relative error of a gradient; of one that vanishes, 5e-6 if it is 1e-6 of all. */
static double compare_all(layout how, const model *a, const model *b)
{
    double whole = 0.0, worst = 0.0;

    for (int32_t i = 0; i < a->instance.decoder.n_params; i++)
        whole = hypot(whole, gradient_norm(b, i));
    for (int32_t i = 0; i < a->instance.decoder.n_params; i++) {
        int64_t n;
        double difference, norm;
        const float *x = model_gradient(a, i, &n), *y = model_gradient(b, i, &n);
        measure_difference(x, y, n, &difference, &norm);
        double error = difference / (norm > 1e-6 * whole ? norm : 1e-6 * whole);
        if (vanishes(how, b, i)) error = 5e-6 * (norm + difference) / (1e-6 * whole);
        if (!(error <= worst)) worst = error;
    }
    return worst;
}

static void check_combination(layout how, const struct cut *cut, int combination, const model *base,
                              double loss)
{
    model m;

    const double again = run(&m, cut, combination, base->instance.decoder.options.shape.tied);
    if (again != loss) fail_combination(how, cut, combination, "another loss");
    if (!same_gradients(&m, base)) fail_combination(how, cut, combination, "other gradients");
    close_model(&m);
}

/* The combinations [first, first + POLICIES * PLACES), which have one order of micro-batches: the
 * first against the dense model, the others, or those that no other cell runs, against the first.
 */
static void check_order(layout how, int b, int first, const model *dense, double dense_loss)
{
    const int cell = (int)how * CUTS + b;
    model base;

    const double loss = run(&base, &cuts[b], first, dense->instance.decoder.options.shape.tied);
    const double error = compare_all(how, &base, dense);
    if (!(fabs(loss - dense_loss) <= 5e-6 * dense_loss) || !(error <= 5e-6))
        fail_msg("%s, blocks of %lld: loss %.9g, dense %.9g; gradients off by %.2e",
                 layout_names[how], (long long)cuts[b].query_block, loss, dense_loss, error);
    for (int c = first + 1; c < first + POLICIES * PLACES; c++)
        if (run_all || (c + cell) % SHARE == 0) check_combination(how, &cuts[b], c, &base, loss);
    close_model(&base);
}

static void check_cell(layout how, int b, const model *dense, double dense_loss)
{
    for (int first = 0; first < COMBINATIONS; first += POLICIES * PLACES)
        check_order(how, b, first, dense, dense_loss);
}

static void check_layout(layout how)
{
    model dense;

    fill_batch(how);
    layers = how == MANY ? 6 : 3; /* two groups of three, the first is rebuilt */
    const double loss = run(&dense, &cuts[CUTS - 1], 0, how % 2 != 0);
    for (int b = 0; b < CUTS; b++) check_cell(how, b, &dense, loss);
    close_model(&dense);
}

static void one_document(void **state)
{
    (void)state;
    check_layout(ONE);
}

static void many_documents(void **state)
{
    (void)state;
    check_layout(MANY);
}

static void documents_of_one_token(void **state)
{
    (void)state;
    check_layout(SINGLE_TOKENS);
}

static void a_padded_tail(void **state)
{
    (void)state;
    check_layout(PADDED_TAIL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_document),
        cmocka_unit_test(many_documents),
        cmocka_unit_test(documents_of_one_token),
        cmocka_unit_test(a_padded_tail),
    };
    run_all = argc > 1 && strcmp(argv[1], "all") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
