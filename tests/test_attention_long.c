/*
 * test_attention_long.c - attention over a long sequence, block by block exactly as the model's
 * tape has it, against rows recomputed in double: O and dq of sampled queries, dk and dv of sampled
 * keys.
 *
 *   test_attention_long        500 and 1,200 tokens, every row
 *   test_attention_long far    32,768 tokens in fp32 and 131,072 in bf16, sampled rows
 *
 * A row of O or dq needs its own keys alone.  A row of dk or dv needs LSE and delta of all queries
 * from its own on: in double for all rows, or for the last ones; keys before those then take LSE
 * and delta from the kernels, whose sampled rows were compared before.
 */
#include <stdbool.h>

#include "ops_test.h"

#include "cpu/vec.h"
#include "decoder.h"

typedef struct setting {
    ls_dtype dtype;
    int64_t S, H, query_block, key_block, chunk;
    int64_t solved;  /* rows from this one on have LSE and delta in double */
    int64_t samples; /* 0: every row */
    double o_error, gradient_error;
} setting;

enum { K = 64 };

typedef struct bench {
    setting s;
    ls_decoder decoder;
    void *q, *k, *v, *d_o, *o;                  /* [S, H, K], [S, K], [S, K], [S, H, K] x 2 */
    float *lse, *delta, *o_acc, *dq, *dk, *dv;  /* [S, H] x 2, [S, H, K] x 2, [S, K] x 2 */
    int64_t *doc_start;                         /* [S] */
    double *keys_turned, *values_turned;        /* [K, S] in double */
    double *lse_solved, *delta_solved, *scores; /* [S, H] x 2, [S] */
} bench;

/* ---- the tape's calls on these operands ------------------------------------------------------ */

static ls_decoder_options make_options(const setting *s)
{
    return (ls_decoder_options){
        .shape = {.V = 4, .D = 2, .F = 2, .L = 1, .H = s->H, .G = 1, .K = K, .eps = 1e-5f},
        .dtype = s->dtype,
        .S = s->S,
        .sequences = 1,
        .accumulate = 1,
        .chunk = s->chunk,
        .query_block = s->query_block,
        .key_block = s->key_block,
        .loss_rows = s->chunk,
        .train = true,
        .save_o = true};
}

/* Where a tensor of the tape lies; a block's rows begin at the row `first` of the sequence. */
static char *find_tensor(const bench *b, const ls_tensor *t, int64_t first)
{
    const struct {
        const char *name;
        void *data;
        bool of_block;
    } tensors[] = {
        {"q", b->q, true},     {"k", b->k, false},        {"v", b->v, false},
        {"o.0", b->o, false},  {"lse.0", b->lse, false},  {"o_acc", b->o_acc, true},
        {"dq", b->dq, true},   {"dk", b->dk, false},      {"dv", b->dv, false},
        {"d_o", b->d_o, true}, {"delta", b->delta, true}, {"doc_start", b->doc_start, false}};

    for (int64_t i = 0; i < COUNT_OF(tensors); i++) {
        if (strcmp(tensors[i].name, t->name) != 0) continue;
        const uint64_t row_bytes = ls_tensor_bytes(t) / (uint64_t)t->dims[0];
        return (char *)tensors[i].data + (tensors[i].of_block ? (uint64_t)first * row_bytes : 0);
    }
    return NULL;
}

/* The query row at which the block of a call begins; -1: it is no call of attention. */
static int64_t find_block(const bench *b, const ls_call *call)
{
    if (call->kind != LS_CALL_OP || call->recompute) return -1;
    switch (call->op) {
    case LS_OP_attention_forward: return call->args.attention_forward.q_start;
    case LS_OP_attention_backward: return call->args.attention_backward.q_start;
    case LS_OP_attention_delta:
        return call->chunk * b->s.chunk / b->s.query_block * b->s.query_block;
    case LS_OP_zero:
        return find_tensor(b, &b->decoder.tape.tensors[call->operands[0].tensor], 0) ? 0 : -1;
    default: return -1;
    }
}

static void run_call(const bench *b, const ls_call *call, int64_t first)
{
    const ls_op_info *info = ls_op_describe(call->op);
    const uint64_t bytes = tested_ops->workspace_bytes(call->op, &call->args);
    void *workspace = bytes > 0 ? malloc(bytes) : NULL;
    ls_op_args args = call->args;

    for (int i = 0; i < call->n_operands; i++) {
        const ls_view *view = &call->operands[i];
        char *at = strcmp(info->operands[i].name, "workspace") == 0 ? workspace : NULL;
        if (view->tensor >= 0) {
            at = find_tensor(b, &b->decoder.tape.tensors[view->tensor], first);
            assert_non_null(at);
            at += view->offset;
        }
        memcpy((char *)&args + info->operands[i].offset, &at, sizeof at);
    }
    assert_int_equal(ls_ops_run(tested_ops, call->op, NULL, &args), LS_OK);
    free(workspace);
}

/* Forward, then backward, as a training step has them. */
static void run_attention(const bench *b)
{
    const ls_tape *tape = &b->decoder.tape;

    for (int64_t c = 0; c < tape->segment_calls[LS_SEGMENT_STEP]; c++) {
        const ls_call *call = &tape->calls[tape->segment_first[LS_SEGMENT_STEP] + c];
        const int64_t first = find_block(b, call);
        if (first >= 0) run_call(b, call, first);
    }
}

/* ---- the same in double ---------------------------------------------------------------------- */

static double element(const void *x, int64_t row, int64_t d, ls_dtype dtype)
{
    return get(x, row * K + d, dtype);
}

LS_INLINE double add_up(const double *a, const double *b, int64_t n)
{
    double lanes[LS_LANES] = {0.0};
    const int64_t whole = n - n % LS_LANES;

    for (int64_t i = 0; i < whole; i += LS_LANES)
        for (int l = 0; l < LS_LANES; l++) lanes[l] += a[i + l] * b[i + l];
    for (int64_t i = whole; i < n; i++) lanes[i - whole] += a[i] * b[i];
    return ls_lanes_add(lanes);
}

/* sums[j] = x . y[j] for keys [0, n), y as [K, S] */
LS_SIMD_CLONES static void multiply_keys(double *sums, const double *x, const double *turned,
                                         int64_t S, int64_t n)
{
    enum { AT_ONCE = 1024 };

    for (int64_t begin = 0; begin < n; begin += AT_ONCE) {
        const int64_t end = begin + AT_ONCE < n ? begin + AT_ONCE : n;
        for (int64_t j = begin; j < end; j++) sums[j] = 0.0;
        for (int64_t d = 0; d < K; d++)
            for (int64_t j = begin; j < end; j++) sums[j] += x[d] * turned[d * S + j];
    }
}

/* x[d] = weights . y[d] over keys [0, n), y as [K, S] */
LS_SIMD_CLONES static void weigh_keys(double x[K], const double *weights, const double *turned,
                                      int64_t S, int64_t n)
{
    for (int64_t d = 0; d < K; d++) x[d] = add_up(weights, turned + d * S, n);
}

/* Row (n, h) of x in double, times a factor. */
static void read_row(double row[K], const bench *b, const void *x, int64_t at, double factor)
{
    for (int64_t d = 0; d < K; d++) row[d] = factor * element(x, at, d, b->s.dtype);
}

/* O of a row (n H + h), its LSE, and the probabilities of its keys in scores. */
static double solve_row(const bench *b, int64_t row, double o[K])
{
    const int64_t n_keys = row / b->s.H + 1;
    double q[K], most = -INFINITY, sum = 0.0;

    read_row(q, b, b->q, row, (double)(1.0f / sqrtf((float)K)));
    multiply_keys(b->scores, q, b->keys_turned, b->s.S, n_keys);
    for (int64_t j = 0; j < n_keys; j++) most = b->scores[j] > most ? b->scores[j] : most;
    for (int64_t j = 0; j < n_keys; j++) sum += b->scores[j] = exp(b->scores[j] - most);
    for (int64_t j = 0; j < n_keys; j++) b->scores[j] /= sum;
    weigh_keys(o, b->scores, b->values_turned, b->s.S, n_keys);
    return most + log(sum);
}

static double find_delta(const bench *b, int64_t row, const double o[K])
{
    double sum = 0.0;
    for (int64_t d = 0; d < K; d++) sum += o[d] * element(b->d_o, row, d, b->s.dtype);
    return sum;
}

/* dq of a row whose probabilities are in scores. */
static void solve_dq(const bench *b, int64_t row, const double o[K], double dq[K])
{
    const int64_t n_keys = row / b->s.H + 1, S = b->s.S;
    const double scale = (double)(1.0f / sqrtf((float)K)), delta = find_delta(b, row, o);
    double *products = malloc((size_t)n_keys * sizeof *products), d_o[K];

    assert_non_null(products);
    read_row(d_o, b, b->d_o, row, 1.0);
    multiply_keys(products, d_o, b->values_turned, S, n_keys);
    for (int64_t j = 0; j < n_keys; j++) products[j] = b->scores[j] * (products[j] - delta) * scale;
    weigh_keys(dq, products, b->keys_turned, S, n_keys);
    free(products);
}

/* dk and dv of a key, from LSE and delta of the rows behind it. */
static void solve_key(const bench *b, int64_t key, double dk[K], double dv[K])
{
    const double scale = (double)(1.0f / sqrtf((float)K));
    const bool solved = key >= b->s.solved;
    double k[K], v[K], q[K], d_o[K];

    read_row(k, b, b->k, key, 1.0);
    read_row(v, b, b->v, key, 1.0);
    for (int64_t d = 0; d < K; d++) dk[d] = dv[d] = 0.0;
    for (int64_t row = key * b->s.H; row < b->s.S * b->s.H; row++) {
        const double lse = solved ? b->lse_solved[row] : (double)b->lse[row];
        const double delta = solved ? b->delta_solved[row] : (double)b->delta[row];
        double score = 0.0, product = 0.0;
        read_row(q, b, b->q, row, 1.0);
        read_row(d_o, b, b->d_o, row, 1.0);
        for (int64_t d = 0; d < K; d++) {
            score += q[d] * k[d];
            product += d_o[d] * v[d];
        }
        const double p = exp(scale * score - lse), ds = p * (product - delta) * scale;
        for (int64_t d = 0; d < K; d++) {
            dk[d] += ds * q[d];
            dv[d] += p * d_o[d];
        }
    }
}

/* ---- operands -------------------------------------------------------------------------------- */

static double *make_turned(const void *x, int64_t S, ls_dtype dtype)
{
    double *turned = make_doubles(S * K);
    for (int64_t j = 0; j < S; j++)
        for (int64_t d = 0; d < K; d++) turned[d * S + j] = element(x, j, d, dtype);
    return turned;
}

static void open_bench(bench *b, const setting *s)
{
    const int64_t n = s->S * s->H * K;
    const ls_decoder_options options = make_options(s);

    *b = (bench){.s = *s};
    assert_int_equal(ls_decoder_build(&options, &b->decoder), LS_OK);
    b->q = make_noise(n, s->dtype, 1, 2.0);
    b->k = make_noise(s->S * K, s->dtype, 2, 2.0);
    b->v = make_noise(s->S * K, s->dtype, 3, 1.0);
    b->d_o = make_noise(n, s->dtype, 4, 1.0);
    b->o = make_buffer(n, s->dtype);
    b->lse = make_buffer(s->S * s->H, LS_DTYPE_F32);
    b->delta = make_buffer(s->S * s->H, LS_DTYPE_F32);
    b->o_acc = make_buffer(n, LS_DTYPE_F32);
    b->dq = make_buffer(n, LS_DTYPE_F32);
    b->dk = make_buffer(s->S * K, LS_DTYPE_F32);
    b->dv = make_buffer(s->S * K, LS_DTYPE_F32);
    b->doc_start = make_buffer(s->S, LS_DTYPE_I64);
    memset(b->doc_start, 0, (size_t)s->S * sizeof *b->doc_start);
    b->keys_turned = make_turned(b->k, s->S, s->dtype);
    b->values_turned = make_turned(b->v, s->S, s->dtype);
    b->lse_solved = make_doubles(s->S * s->H);
    b->delta_solved = make_doubles(s->S * s->H);
    b->scores = make_doubles(s->S);
}

static void close_bench(bench *b)
{
    void *all[] = {b->q,          b->k,           b->v,      b->d_o,         b->o,
                   b->lse,        b->dq,          b->dk,     b->dv,          b->delta,
                   b->o_acc,      b->doc_start,   b->scores, b->keys_turned, b->values_turned,
                   b->lse_solved, b->delta_solved};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
    ls_decoder_free(&b->decoder);
}

/* ---- comparison ------------------------------------------------------------------------------ */

/* Sums of squares over rows whose distance to the nearer end of the sequence has one number of
 * bits: the norm of a row falls with the keys it sees, or the queries that see it. */
enum { OCTAVES = 64, LEAST_BITS = 7 };

typedef struct comparison {
    double distance[OCTAVES], norm[OCTAVES];
} comparison;

static int find_octave(int64_t S, int64_t n)
{
    const bool late = n >= S / 2;
    int bits = 0;
    for (int64_t left = late ? S - n : n + 1; left > 0; left /= 2) bits++;
    return 2 * (bits > LEAST_BITS ? bits : LEAST_BITS) + late;
}

static void compare_row(comparison *c, int octave, const void *actual, int64_t row, ls_dtype dtype,
                        const double expected[K])
{
    for (int64_t d = 0; d < K; d++) {
        const double difference = element(actual, row, d, dtype) - expected[d];
        c->distance[octave] += difference * difference;
        c->norm[octave] += expected[d] * expected[d];
    }
}

/* The worst relative error of an octave. */
static void report(const char *what, const comparison *c, double allowed)
{
    double worst = 0.0;

    for (int i = 0; i < OCTAVES; i++) {
        const double error = c->norm[i] > 0.0 ? sqrt(c->distance[i] / c->norm[i]) : 0.0;
        if (!(error <= worst)) worst = error;
    }
    print_message("  %-3s off by %.1e at most\n", what, worst);
    if (!(worst <= allowed)) fail_msg("%s is off by %.2e, allowed %.1e", what, worst, allowed);
}

/* The i-th row to look at: both sides of every edge of a block or chunk, then any. */
static int64_t sample(const setting *s, int64_t i)
{
    if (s->samples == 0) return i;
    const int64_t edges = 2 * (s->S / s->chunk);
    if (i < edges) return i / 2 * s->chunk + (i % 2 ? s->chunk - 1 : 0);
    return (int64_t)ls_rng_below(5, 0, (uint64_t)i, (uint64_t)s->S);
}

static int64_t count_samples(const setting *s)
{
    return s->samples == 0 ? s->S : s->samples;
}

static void compare_queries(const bench *b)
{
    comparison of_o = {0}, of_dq = {0};
    double o[K], dq[K], lse_worst = 0.0;

    for (int64_t i = 0; i < count_samples(&b->s) * b->s.H; i++) {
        const int64_t n = sample(&b->s, i / b->s.H), row = n * b->s.H + i % b->s.H;
        const double lse_error = fabs((double)b->lse[row] - solve_row(b, row, o));
        solve_dq(b, row, o, dq);
        compare_row(&of_o, find_octave(b->s.S, n), b->o, row, b->s.dtype, o);
        compare_row(&of_dq, find_octave(b->s.S, n), b->dq, row, LS_DTYPE_F32, dq);
        if (!(lse_error <= lse_worst)) lse_worst = lse_error;
    }
    print_message("  LSE off by %.1e at most\n", lse_worst);
    assert_true(lse_worst <= 2e-5); /* it is 5 to 13, and rounded for every key block */
    report("O", &of_o, b->s.o_error);
    report("dq", &of_dq, b->s.gradient_error);
}

static void compare_keys(const bench *b)
{
    const int64_t solved = b->s.S - b->s.solved, late = solved < 16 ? solved : 16;
    comparison of_dk = {0}, of_dv = {0};
    double dk[K], dv[K], o[K];

    for (int64_t row = b->s.solved * b->s.H; row < b->s.S * b->s.H; row++) {
        b->lse_solved[row] = solve_row(b, row, o);
        b->delta_solved[row] = find_delta(b, row, o);
    }
    for (int64_t i = 0; i < count_samples(&b->s) + late; i++) {
        const int64_t key =
            i < late ? b->s.solved + (2 * i + 1) * solved / (2 * late) : sample(&b->s, i - late);
        solve_key(b, key, dk, dv);
        compare_row(&of_dk, find_octave(b->s.S, key), b->dk, key, LS_DTYPE_F32, dk);
        compare_row(&of_dv, find_octave(b->s.S, key), b->dv, key, LS_DTYPE_F32, dv);
    }
    report("dk", &of_dk, b->s.gradient_error);
    report("dv", &of_dv, b->s.gradient_error);
}

static void check(const setting *s)
{
    bench b;

    open_bench(&b, s);
    print_message("%lld tokens, %lld heads of %d, %s, query blocks of %lld, key blocks of %lld\n",
                  (long long)s->S, (long long)s->H, K, ls_dtype_name(s->dtype),
                  (long long)s->query_block, (long long)s->key_block);
    run_attention(&b);
    compare_queries(&b);
    compare_keys(&b);
    close_bench(&b);
}

static const setting near_settings[] = {
    {LS_DTYPE_F32, 500, 2, 192, 96, 64, 0, 0, 5e-6, 5e-6},
    {LS_DTYPE_BF16, 500, 1, 128, 256, 64, 0, 0, 4e-3, 8e-3},
    {LS_DTYPE_F32, 1200, 1, 1200, 1200, 600, 0, 0, 5e-6, 5e-6}, /* five key tiles in a call */
};

static const setting far_settings[] = {
    {LS_DTYPE_F32, 32768, 2, 8192, 4096, 4096, 0, 64, 1e-5, 1e-5},
    {LS_DTYPE_BF16, 131072, 1, 8192, 8192, 4096, 131072 - 512, 128, 4e-3, 8e-3},
};

static bool far;

static void rows_agree_with_double_precision(void **state)
{
    (void)state;
    const setting *settings = far ? far_settings : near_settings;
    const int64_t n = far ? COUNT_OF(far_settings) : COUNT_OF(near_settings);
    for (int64_t i = 0; i < n; i++) check(&settings[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_agree_with_double_precision),
    };
    far = argc > 1 && strcmp(argv[1], "far") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
