/*
 * test_documents.c - documents in a sequence, end to end: the loss of every token and the gradient
 * of every tensor against a plain model in double precision with a dense mask, for every mode of
 * sequence.documents, with and without a window, for documents that are longer than a sequence, of
 * one token, and with padding behind them.
 *
 * The plain model knows the documents by their lengths alone; what the engine works on comes from
 * a shard by the loader.  Gradients are compared along two directions for each tensor, one of them
 * the engine's own gradient, with differences of the plain model's loss.
 */
#include "io_test.h"
#include "model_test.h"

#include "loader.h"

enum { S = 24, SEQUENCES = 2, T = S * SEQUENCES, DOCUMENTS_MOST = 48 };
enum { V = 29, D = 16, F = 24, L = 2, H = 2, G = 1, K = 8 };

#define THETA 100.0 /* turns every pair within a sequence */

typedef struct layout {
    const char *name;
    int64_t lengths[DOCUMENTS_MOST]; /* up to the first 0 */
} layout;

static const layout layouts[] = {
    {"one document longer than a sequence", {T}},
    {"many documents", {5, 7, 9, 11, 3, 13}},
    {"documents of one token", {1, 1, 8, 1, 1, 1, 1, 12, 1, 1, 1, 17, 1, 1}},
    {"an empty tail", {19, 11}},
};

/* ---- the rows, by the lengths of the documents ------------------------------------------------
 */

typedef struct row {
    int64_t document, index; /* -1: padding; the index is that in its sequence */
    int32_t token, target;
    int64_t position;
} row;

static int32_t token_of(int64_t document, int64_t index)
{
    return (int32_t)ls_rng_below(11, (uint64_t)document, (uint64_t)index, V);
}

static void list_rows(const layout *of, ls_documents mode, row rows[T])
{
    int64_t document = 0, token = 0, begun = 0; /* where in its sequence the document begins */

    for (int64_t n = 0; n < T; n++) {
        const bool padding = document == DOCUMENTS_MOST || of->lengths[document] == 0;
        rows[n] = (row){.document = -1, .target = LS_TARGET_IGNORE};
        if (padding) continue;
        if (token == 0 || n % S == 0) begun = n % S;
        rows[n].document = document;
        rows[n].token = token_of(document, token);
        rows[n].position = mode == LS_DOCUMENTS_ISOLATE ? n % S - begun : n % S;
        if (++token < of->lengths[document] && (n + 1) % S != 0)
            rows[n].target = token_of(document, token);
        if (token < of->lengths[document]) continue;
        document++;
        token = 0;
    }
}

static bool is_seen(const row rows[T], ls_documents mode, int64_t window, int64_t n, int64_t m)
{
    if (m > n || m / S != n / S || rows[m].document < 0) return false;
    if (window > 0 && n - m >= window) return false;
    return mode == LS_DOCUMENTS_JOIN || rows[m].document == rows[n].document;
}

/* ---- the plain model --------------------------------------------------------------------------
 */

typedef struct plain_layer {
    const double *norm, *q, *k, *v, *o, *mlp_norm, *gate, *up, *down;
} plain_layer;

typedef struct plain {
    const row *rows;
    bool seen[T][T];
    const double *embedding, *norm, *head;
    plain_layer layers[L];
    double nll[T];
    int64_t labels;
} plain;

/* y = x w^T for one row; w [n_out, n_in] */
static void multiply(double *y, const double *x, const double *w, int n_out, int n_in)
{
    for (int o = 0; o < n_out; o++) {
        y[o] = 0.0;
        for (int i = 0; i < n_in; i++) y[o] += w[o * n_in + i] * x[i];
    }
}

static void normalize(double *y, const double *x, const double *w)
{
    double sum = 0.0;
    for (int i = 0; i < D; i++) sum += x[i] * x[i];
    for (int i = 0; i < D; i++) y[i] = w[i] * x[i] / sqrt(sum / D + 1e-5);
}

/* Heads of K, the second half of each beside the first. */
static void rotate(double *x, int heads, int64_t position)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < K / 2; i++) {
            const double angle = (double)position * pow(THETA, -2.0 * i / K);
            double *a = x + h * K + i, *b = a + K / 2, old = *a;
            *a = old * cos(angle) - *b * sin(angle);
            *b = *b * cos(angle) + old * sin(angle);
        }
}

static void attend(double *o, const double *q, double (*k)[G * K], double (*v)[G * K],
                   const bool *seen)
{
    for (int h = 0; h < H; h++) {
        const int g = h / (H / G);
        double sum = 0.0, *oh = o + h * K;
        for (int i = 0; i < K; i++) oh[i] = 0.0;
        for (int m = 0; m < T; m++) {
            double s = 0.0;
            if (!seen[m]) continue;
            for (int i = 0; i < K; i++) s += q[h * K + i] * k[m][g * K + i];
            s = exp(s / sqrt(K)); /* scores are small here */
            sum += s;
            for (int i = 0; i < K; i++) oh[i] += s * v[m][g * K + i];
        }
        for (int i = 0; i < K; i++) oh[i] = sum > 0.0 ? oh[i] / sum : 0.0;
    }
}

static void run_layer(const plain *p, const plain_layer *w, double (*x)[D])
{
    static double q[T][H * K], k[T][G * K], v[T][G * K];
    double h[D], o[H * K], y[D], gate[F], up[F];

    for (int n = 0; n < T; n++) {
        normalize(h, x[n], w->norm);
        multiply(q[n], h, w->q, H * K, D);
        multiply(k[n], h, w->k, G * K, D);
        multiply(v[n], h, w->v, G * K, D);
        rotate(q[n], H, p->rows[n].position);
        rotate(k[n], G, p->rows[n].position);
    }
    for (int n = 0; n < T; n++) {
        attend(o, q[n], k, v, p->seen[n]);
        multiply(y, o, w->o, D, H * K);
        for (int i = 0; i < D; i++) x[n][i] += y[i];
        normalize(h, x[n], w->mlp_norm);
        multiply(gate, h, w->gate, F, D);
        multiply(up, h, w->up, F, D);
        for (int i = 0; i < F; i++) gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        multiply(y, gate, w->down, D, F);
        for (int i = 0; i < D; i++) x[n][i] += y[i];
    }
}

static double lose(const double *x, const plain *p, int32_t target)
{
    double h[D], logits[V], sum = 0.0;

    normalize(h, x, p->norm);
    multiply(logits, h, p->head, V, D);
    for (int i = 0; i < V; i++) sum += exp(logits[i]);
    return log(sum) - logits[target];
}

/* Fill nll; the mean loss. */
static double run_plain(plain *p)
{
    static double x[T][D];
    double sum = 0.0;

    for (int n = 0; n < T; n++) memcpy(x[n], p->embedding + p->rows[n].token * D, sizeof x[n]);
    for (int l = 0; l < L; l++) run_layer(p, &p->layers[l], x);
    for (int n = 0; n < T; n++) {
        const int32_t target = p->rows[n].target;
        p->nll[n] = target == LS_TARGET_IGNORE ? 0.0 : lose(x[n], p, target);
        sum += p->nll[n];
    }
    return sum / (double)p->labels;
}

/* ---- its weights are the engine's -------------------------------------------------------------
 */

enum { PARAMS_MOST = 32 };

static double *params[PARAMS_MOST]; /* as the engine numbers them */

static void copy_params(const model *m)
{
    const ls_decoder *d = &m->instance.decoder;

    assert_in_range(d->n_params, 1, PARAMS_MOST);
    for (int32_t i = 0; i < d->n_params; i++) {
        const int64_t n = ls_tensor_elements(&d->tape.tensors[d->params[i].weight]);
        free(params[i]);
        params[i] = malloc((size_t)n * sizeof *params[i]);
        assert_non_null(params[i]);
        for (int64_t e = 0; e < n; e++)
            params[i][e] = (double)ls_weights_master(&m->instance, i, e);
    }
}

static const double *param(const model *m, int layer, const char *name)
{
    char full[128];

    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s", layer, name);
    const int32_t i = ls_instance_find_param(&m->instance, full);
    assert_true(i >= 0);
    return params[i];
}

static plain make_plain(const model *m, const row rows[T], ls_documents mode, int64_t window)
{
    plain p = {.rows = rows,
               .embedding = param(m, -1, "model.embed_tokens.weight"),
               .norm = param(m, -1, "model.norm.weight"),
               .head = param(m, -1, "lm_head.weight")};

    for (int l = 0; l < L; l++)
        p.layers[l] = (plain_layer){.norm = param(m, l, "input_layernorm.weight"),
                                    .q = param(m, l, "self_attn.q_proj.weight"),
                                    .k = param(m, l, "self_attn.k_proj.weight"),
                                    .v = param(m, l, "self_attn.v_proj.weight"),
                                    .o = param(m, l, "self_attn.o_proj.weight"),
                                    .mlp_norm = param(m, l, "post_attention_layernorm.weight"),
                                    .gate = param(m, l, "mlp.gate_proj.weight"),
                                    .up = param(m, l, "mlp.up_proj.weight"),
                                    .down = param(m, l, "mlp.down_proj.weight")};
    for (int64_t n = 0; n < T; n++) {
        p.labels += rows[n].target != LS_TARGET_IGNORE;
        for (int64_t k = 0; k < T; k++) p.seen[n][k] = is_seen(rows, mode, window, n, k);
    }
    return p;
}

/* ---- the engine -------------------------------------------------------------------------------
 */

static int32_t tokens[T], targets[T];
static int64_t positions[T], doc_start[T];
static const model_batch batch = {T, tokens, targets, positions, doc_start};

/* The layout as a shard, and the rows that the loader makes of it. */
static void load_rows(const layout *of, ls_documents mode)
{
    const ls_tokens_writer_options writing = {.element = LS_TOKENS_ELEMENT_U8};
    const ls_loader_range range = {0, SEQUENCES, 0};
    const char *prefix = at("shard");
    ls_tokens_writer *writer = NULL;
    ls_loader *loader = NULL;

    assert_ok(ls_tokens_writer_open(prefix, &writing, &writer));
    for (int64_t d = 0; d < DOCUMENTS_MOST && of->lengths[d] > 0; d++) {
        for (int64_t i = 0; i < of->lengths[d]; i++) {
            const int32_t id = token_of(d, i);
            assert_ok(ls_tokens_writer_append(writer, &id, 1));
        }
        assert_ok(ls_tokens_writer_end_document(writer));
    }
    assert_ok(ls_tokens_writer_commit(writer));
    ls_tokens_writer_close(writer);
    const ls_loader_options options = {.prefixes = &prefix,
                                       .n_prefixes = 1,
                                       .sequence_tokens = S,
                                       .documents = mode,
                                       .vocab_size = V};
    assert_ok(ls_loader_open(&options, &loader));
    assert_int_equal(ls_loader_describe(loader).sequences_per_epoch, SEQUENCES);
    assert_ok(ls_loader_fill(
        loader, &range, &(ls_loader_batch){tokens, targets, positions, doc_start, NULL}, NULL));
    ls_loader_close(loader);
}

typedef struct blocks {
    int64_t chunk, query_block, key_block;
} blocks;

static void open_blocks(model *m, const blocks *cut, int64_t window)
{
    const ls_decoder_options options = {
        .shape = {.V = V, .D = D, .F = F, .L = L, .H = H, .G = G, .K = K, .eps = 1e-5f},
        .dtype = LS_DTYPE_F32,
        .S = S,
        .sequences = SEQUENCES,
        .accumulate = 1,
        .chunk = cut->chunk,
        .query_block = cut->query_block,
        .key_block = cut->key_block,
        .loss_rows = cut->chunk,
        .window = window,
        .train = true,
        .save_o = true,
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .adam_eps = 1e-8f};
    open_model_threads(m, &options, &batch, THETA, 1);
    ls_weights_random(&m->instance, 5, 0.15);
}

/* ---- the comparison ---------------------------------------------------------------------------
 */

static double loss_beside(plain *p, double *weight, const double *direction, int64_t n, double step)
{
    for (int64_t e = 0; e < n; e++) weight[e] += step * direction[e];
    const double loss = run_plain(p);
    for (int64_t e = 0; e < n; e++) weight[e] -= step * direction[e];
    return loss;
}

/* The engine's gradient of a tensor along a direction against the plain loss's. */
static void check_direction(plain *p, const model *m, int32_t i, const double *direction)
{
    const double step = 1e-5;
    double slope = 0.0, gradient_norm = 0.0, norm = 0.0;
    int64_t n;
    const float *gradient = model_gradient(m, i, &n);

    for (int64_t e = 0; e < n; e++) {
        slope += (double)gradient[e] * direction[e];
        gradient_norm += (double)gradient[e] * (double)gradient[e];
        norm += direction[e] * direction[e];
    }
    const double expected = (loss_beside(p, params[i], direction, n, step) -
                             loss_beside(p, params[i], direction, n, -step)) /
                            (2 * step);
    const double allowed = 1e-5 * sqrt(gradient_norm * norm) + 1e-9 * sqrt(norm);
    if (!(fabs(slope - expected) <= allowed))
        fail_msg("%s: %.9g along a direction, not %.9g", model_param_name(m, i), slope, expected);
}

static void check_gradients(plain *p, const model *m)
{
    for (int32_t i = 0; i < m->instance.decoder.n_params; i++) {
        int64_t n;
        const float *gradient = model_gradient(m, i, &n);
        double *direction = malloc((size_t)n * sizeof *direction);
        assert_non_null(direction);
        for (int64_t e = 0; e < n; e++)
            direction[e] = ls_rng_uniform(9, (uint64_t)i, (uint64_t)e) - 0.5;
        check_direction(p, m, i, direction);
        double norm = 1e-30;
        for (int64_t e = 0; e < n; e++) norm += (double)gradient[e] * (double)gradient[e];
        for (int64_t e = 0; e < n; e++) direction[e] = (double)gradient[e] / sqrt(norm);
        check_direction(p, m, i, direction);
        free(direction);
    }
}

static void check_losses(const plain *p, const model *m)
{
    const float *nll = ls_instance_tensor(&m->instance, m->instance.decoder.inputs.nll);

    for (int64_t n = 0; n < T; n++)
        if (!(fabs((double)nll[n] - p->nll[n]) <= 2e-5))
            fail_msg("token %d loses %.7f, not %.7f", (int)n, (double)nll[n], p->nll[n]);
}

static void check_rows(const row rows[T])
{
    for (int64_t n = 0; n < T; n++) {
        assert_int_equal(targets[n], rows[n].target);
        if (rows[n].document < 0) continue;
        assert_int_equal(tokens[n], rows[n].token);
        assert_int_equal(positions[n], rows[n].position);
    }
}

static void check_layout(const layout *of, ls_documents mode, int64_t window)
{
    static const blocks cuts[] = {{T, T, 0}, {7, 14, 5}, {S / 3, S, S / 3}, {3, 6, 4}, {10, T, 20}};
    row rows[T];
    model whole, cut;

    list_rows(of, mode, rows);
    load_rows(of, mode);
    check_rows(rows);
    open_blocks(&whole, &cuts[0], window);
    copy_params(&whole);
    plain p = make_plain(&whole, rows, mode, window);
    assert_true(p.labels > 10);
    const double loss = step_model(&whole, 0.0), expected = run_plain(&p);
    assert_true(fabs(loss - expected) <= 1e-6 * expected);
    check_losses(&p, &whole);
    check_gradients(&p, &whole);
    for (size_t i = 1; i < sizeof cuts / sizeof cuts[0]; i++) {
        open_blocks(&cut, &cuts[i], window);
        assert_true(fabs(step_model(&cut, 0.0) - loss) <= 5e-6 * loss);
        check_losses(&p, &cut);
        const double worst = compare_gradients(&cut, &whole);
        if (!(worst <= 5e-6)) fail_msg("blocks %d: gradients off by %.2e", (int)i, worst);
        close_model(&cut);
    }
    close_model(&whole);
}

static void check_mode(ls_documents mode)
{
    static const int64_t windows[] = {0, 6};

    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
            print_message("           %s, window %d\n", layouts[i].name, (int)windows[w]);
            check_layout(&layouts[i], mode, windows[w]);
        }
}

static void isolated_documents_are_as_the_dense_mask_says(void **state)
{
    (void)state;
    check_mode(LS_DOCUMENTS_ISOLATE);
}

static void joined_documents_are_as_the_dense_mask_says(void **state)
{
    (void)state;
    check_mode(LS_DOCUMENTS_JOIN);
}

static void isolated_running_documents_are_as_the_dense_mask_says(void **state)
{
    (void)state;
    check_mode(LS_DOCUMENTS_ISOLATE_RUNNING);
}

static int remove_all(void **state)
{
    for (int i = 0; i < PARAMS_MOST; i++) free(params[i]);
    return remove_test_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(isolated_documents_are_as_the_dense_mask_says),
        cmocka_unit_test(joined_documents_are_as_the_dense_mask_says),
        cmocka_unit_test(isolated_running_documents_are_as_the_dense_mask_says),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_all);
}
