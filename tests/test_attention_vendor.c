/*
 * test_attention_vendor.c - attention by cuDNN behind the op, with an emulated cuDNN that computes
 * in double precision: results against the dense softmax, key blocks merged and added, graphs,
 * failures.  Which calls it is given, tests/test_attention_choice.c has.
 */
#include "attention_test.h"

#include <cuda_runtime_api.h>

#include "attention_variants.h"
#include "attention_vendor.h"

enum { VERSION = 91900, MOST_CUTS = 4 };

static const problem cases[] = {
    /* N    M    H  G  K   q_start    k_start window document logits */
    {128, 128, 2, 1, 64, 0, 0, 0, 0, 1.0, 0},
    {256, 256, 2, 2, 64, 0, 0, 0, 0, 1.0, 0},     /* as many heads of keys */
    {128, 384, 4, 1, 64, 256, 0, 0, 0, 1.0, 0},   /* keys far longer than queries */
    {128, 256, 7, 1, 64, 128, 0, 0, 0, 1.0, 0},   /* groups of 7 */
    {128, 256, 2, 1, 128, 133, 5, 0, 0, 1.0, 0},  /* the diagonal at no multiple of anything */
    {128, 384, 2, 1, 64, 256, 0, 100, 0, 1.0, 0}, /* a window */
    {128, 384, 1, 1, 64, 256, 0, 1, 0, 1.0, 0},   /* each row sees itself alone */
    {128, 384, 1, 1, 64, 256, 0, 384, 0, 1.0, 0}, /* a window that hides nothing */
    {128, 300, 2, 1, 64, 128, 0, 0, 0, 1.0, 0},   /* keys in the future, left out */
    {128, 256, 1, 1, 64, 300, 0, 0, 0, 1.0, 0},   /* keys of the past alone */
    {128, 256, 2, 1, 64, FAR + 128, FAR, 0, 0, 1.0, 0}, /* beyond 2^31 */
    {128, 256, 1, 1, 64, 128, 0, 0, 0, 20.0, 0},        /* a few keys take all */
};

static bench all[COUNT_OF(cases)];

static void set_cudnn(const ls_emulated_cudnn *cudnn)
{
    ls_cuda_attention_vendor_close();
    assert_int_equal(ls_emulation_cudnn_graphs_alive(), 0);
    ls_emulation_cudnn(cudnn);
}

static int start_test(void **state)
{
    (void)state;
    set_cudnn(&(ls_emulated_cudnn){.version = VERSION});
    (void)ls_cuda_attention_kernels_ran(LS_OP_attention_forward);
    (void)ls_cuda_attention_kernels_ran(LS_OP_attention_backward);
    return 0;
}

static int make_all(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(cases); i++) all[i] = make_bench(&cases[i], LS_DTYPE_BF16, 0);
    return 0;
}

static int free_all(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(cases); i++) free_bench(&all[i]);
    set_cudnn(&(ls_emulated_cudnn){.version = 0});
    return 0;
}

/* ---- calls ---------------------------------------------------------------------------------- */

static ls_op_args forward_args(const bench *b, cut c)
{
    return (ls_op_args){
        .attention_forward = {BENCH_FIELDS(b, c), .one_document = 1, .any_order = 1, .last = 1}};
}

static ls_op_args backward_args(const bench *b, cut c)
{
    return (ls_op_args){
        .attention_backward = {BENCH_FIELDS(b, c), .one_document = 1, .any_order = 1}};
}

static void assert_ran(ls_op op, const char *expected)
{
    assert_string_equal(ls_cuda_attention_kernels_ran(op), expected);
}

/* The keys in blocks as they end at `ends`, the last one being all. */
static int64_t cut_at(const bench *b, const int64_t *ends, int64_t n, cut cuts[MOST_CUTS])
{
    int64_t first = 0;
    for (int64_t i = 0; i <= n; i++) {
        const int64_t end = i < n ? ends[i] : b->p.M;
        cuts[i] = (cut){0, b->p.N, first, end - first};
        first = end;
    }
    return n + 1;
}

typedef struct outputs {
    void *o;
    float *lse, *o_acc;
} outputs;

static outputs make_outputs(const bench *b, int with_acc)
{
    return (outputs){make_buffer(n_queries(b), LS_DTYPE_BF16), make_buffer(n_rows(b), LS_DTYPE_F32),
                     with_acc ? make_buffer(n_queries(b), LS_DTYPE_F32) : NULL};
}

static void free_outputs(const outputs *to)
{
    free_buffer(to->o);
    free_buffer(to->lse);
    free_buffer(to->o_acc);
}

static void run_forward(const bench *b, const cut *cuts, int64_t n, const outputs *to)
{
    for (int64_t i = 0; i < n; i++) {
        ls_op_args args = forward_args(b, cuts[i]);
        args.attention_forward.o = to->o;
        args.attention_forward.lse = to->lse;
        args.attention_forward.o_acc = to->o_acc;
        args.attention_forward.accumulate = i > 0;
        args.attention_forward.last = i + 1 == n;
        run_op(LS_OP_attention_forward, &args, &args.attention_forward.workspace);
    }
}

static void assert_outputs(const bench *b, const outputs *to)
{
    assert_tensor(b, to->o, LS_DTYPE_BF16, b->o, n_queries(b), 4e-3);
    if (to->o_acc != NULL) assert_tensor(b, to->o_acc, LS_DTYPE_F32, b->o, n_queries(b), 4e-3);
    for (int64_t i = 0; i < n_rows(b); i++)
        assert_true(fabs((double)to->lse[i] - b->lse[i]) <= 2e-6 + 5e-7 * fabs(b->lse[i]));
}

typedef struct gradients {
    float *lse, *delta, *dq, *dk, *dv;
} gradients;

static float *make_floats_of(const double *from, int64_t n)
{
    float *to = make_buffer(n, LS_DTYPE_F32);
    for (int64_t i = 0; i < n; i++) to[i] = (float)from[i];
    return to;
}

/* dk and dv are added to what is there: noise. */
static gradients make_gradients(const bench *b)
{
    return (gradients){make_floats_of(b->lse, n_rows(b)), make_floats_of(b->delta, n_rows(b)),
                       make_buffer(n_queries(b), LS_DTYPE_F32),
                       make_noise(n_keys(b), LS_DTYPE_F32, 9, 0.25),
                       make_noise(n_keys(b), LS_DTYPE_F32, 9, 0.25)};
}

static void free_gradients(const gradients *to)
{
    void *const buffers[] = {to->lse, to->delta, to->dq, to->dk, to->dv};
    for (int64_t i = 0; i < COUNT_OF(buffers); i++) free_buffer(buffers[i]);
}

static void run_backward(const bench *b, const cut *cuts, int64_t n, const gradients *to)
{
    for (int64_t i = 0; i < n; i++) {
        ls_op_args args = backward_args(b, cuts[i]);
        args.attention_backward.dq = to->dq;
        args.attention_backward.dk = to->dk + key_at(b, cuts[i]);
        args.attention_backward.dv = to->dv + key_at(b, cuts[i]);
        args.attention_backward.d_o = b->d_o;
        args.attention_backward.lse = to->lse;
        args.attention_backward.delta = to->delta;
        args.attention_backward.accumulate = i > 0;
        run_op(LS_OP_attention_backward, &args, &args.attention_backward.workspace);
    }
}

static void assert_gradients(const bench *b, const gradients *to)
{
    float *start = make_noise(n_keys(b), LS_DTYPE_F32, 9, 0.25);
    for (int64_t i = 0; i < n_keys(b); i++) {
        to->dk[i] -= start[i];
        to->dv[i] -= start[i];
    }
    free_buffer(start);
    assert_tensor(b, to->dq, LS_DTYPE_F32, b->dq, n_queries(b), 6e-3);
    assert_tensor(b, to->dk, LS_DTYPE_F32, b->dk, n_keys(b), 6e-3);
    assert_tensor(b, to->dv, LS_DTYPE_F32, b->dv, n_keys(b), 6e-3);
}

/* ---- results -------------------------------------------------------------------------------- */

static void forward_matches_the_dense_softmax(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(cases); i++)
        for (int with_acc = 0; with_acc < 2; with_acc++) {
            const cut c = whole(&all[i]);
            const outputs to = make_outputs(&all[i], with_acc);
            run_forward(&all[i], &c, 1, &to);
            assert_ran(LS_OP_attention_forward, "cudnn");
            assert_outputs(&all[i], &to);
            free_outputs(&to);
        }
}

static void backward_matches_the_dense_gradient(void **state)
{
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(cases); i++) {
        const cut c = whole(&all[i]);
        const gradients to = make_gradients(&all[i]);
        run_backward(&all[i], &c, 1, &to);
        assert_ran(LS_OP_attention_backward, "cudnn");
        assert_gradients(&all[i], &to);
        free_gradients(&to);
    }
}

/* Two blocks of the past and the diagonal one; one of the past and a longer diagonal one. */
static void key_blocks_are_merged_and_added(void **state)
{
    static const int64_t thirds[] = {128, 256}, half[] = {128};
    cut cuts[MOST_CUTS];
    const bench *b = &all[2];

    (void)state;
    for (int split = 0; split < 2; split++) {
        const int64_t n = split == 0 ? cut_at(b, thirds, 2, cuts) : cut_at(b, half, 1, cuts);
        const outputs to = make_outputs(b, 1);
        const gradients gradient = make_gradients(b);
        run_forward(b, cuts, n, &to);
        run_backward(b, cuts, n, &gradient);
        assert_ran(LS_OP_attention_forward, "cudnn");
        assert_ran(LS_OP_attention_backward, "cudnn");
        assert_outputs(b, &to);
        assert_gradients(b, &gradient);
        free_outputs(&to);
        free_gradients(&gradient);
    }
}

/* A block of keys of ours, then one of cuDNN's: one running state. */
static void variants_share_the_running_state(void **state)
{
    static const int64_t ends[] = {128};
    cut cuts[MOST_CUTS];
    const bench *b = &all[9];
    const int64_t n = cut_at(b, ends, 1, cuts);
    const outputs to = make_outputs(b, 1);

    (void)state;
    for (int64_t i = 0; i < n; i++) {
        ls_op_args args = forward_args(b, cuts[i]);
        args.attention_forward.o = to.o;
        args.attention_forward.lse = to.lse;
        args.attention_forward.o_acc = to.o_acc;
        args.attention_forward.accumulate = i > 0;
        args.attention_forward.last = i + 1 == n;
        args.attention_forward.one_document = i > 0;
        run_op(LS_OP_attention_forward, &args, &args.attention_forward.workspace);
    }
    assert_ran(LS_OP_attention_forward, "cudnn+mma");
    assert_outputs(b, &to);
    free_outputs(&to);
}

static void check(cudaError_t error)
{
    assert_int_equal(error, cudaSuccess);
}

static void *to_device(cudaStream_t stream, const void *host, size_t bytes)
{
    void *device;
    check(cudaMalloc(&device, bytes));
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, stream));
    return device;
}

enum { STAND_IN_ROWS = 6, STAND_IN_K = 64 };

static void run_stand_in(ls_bf16 *o, const ls_bf16 *d_o, const float *delta)
{
    const size_t bytes = STAND_IN_ROWS * STAND_IN_K * sizeof *o;
    cudaStream_t stream;

    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    void *device_o = to_device(stream, o, bytes), *device_d_o = to_device(stream, d_o, bytes);
    float *device_delta = to_device(stream, delta, STAND_IN_ROWS * sizeof *delta);
    assert_int_equal(ls_cuda_attention_stand_in(stream, device_o, device_d_o, device_delta,
                                                STAND_IN_ROWS, STAND_IN_K),
                     LS_OK);
    check(cudaMemcpyAsync(o, device_o, bytes, cudaMemcpyDefault, stream));
    check(cudaStreamSynchronize(stream));
    check(cudaFree(device_o));
    check(cudaFree(device_d_o));
    check(cudaFree(device_delta));
    check(cudaStreamDestroy(stream));
}

/* Gradients of any size, and rows without any: the stand-in for o keeps delta. */
static void the_stand_in_keeps_delta(void **state)
{
    static const double sizes[] = {1e-30, 1e-12, 1.0, 1e12};

    (void)state;
    for (int64_t i = 0; i < COUNT_OF(sizes); i++) {
        const int64_t n = STAND_IN_ROWS * STAND_IN_K;
        ls_bf16 *d_o = make_noise(n, LS_DTYPE_BF16, 3, sizes[i]),
                *o = make_buffer(n, LS_DTYPE_BF16);
        float *delta = make_noise(STAND_IN_ROWS, LS_DTYPE_F32, 4, 2.0 * sizes[i]);
        for (int64_t k = 0; k < STAND_IN_K; k++) put(d_o, k, LS_DTYPE_BF16, 0.0);
        delta[0] = 0.0f;
        run_stand_in(o, d_o, delta);
        for (int64_t row = 0; row < STAND_IN_ROWS; row++) {
            double sum = 0.0;
            for (int64_t k = row * STAND_IN_K; k < (row + 1) * STAND_IN_K; k++)
                sum += get(o, k, LS_DTYPE_BF16) * get(d_o, k, LS_DTYPE_BF16);
            assert_true(fabs(sum - (double)delta[row]) <= fabs((double)delta[row]) / 512.0);
        }
        free_buffer(d_o);
        free_buffer(o);
        free_buffer(delta);
    }
}

/* ---- graphs and failures -------------------------------------------------------------------- */

static void graphs_are_kept_by_shape(void **state)
{
    const cut c = whole(&all[0]);

    (void)state;
    for (int round = 0; round < 3; round++) {
        const outputs to = make_outputs(&all[0], 0);
        run_forward(&all[0], &c, 1, &to);
        free_outputs(&to);
        assert_int_equal(ls_emulation_cudnn_graphs(), 1);
    }
    /* The same shape at other positions. */
    bench moved = all[0];
    moved.p.q_start = moved.p.k_start = 128;
    const outputs to = make_outputs(&moved, 0);
    run_forward(&moved, &c, 1, &to);
    free_outputs(&to);
    assert_int_equal(ls_emulation_cudnn_graphs(), 1);
    const gradients gradient = make_gradients(&all[0]);
    run_backward(&all[0], &c, 1, &gradient);
    free_gradients(&gradient);
    assert_int_equal(ls_emulation_cudnn_graphs(), 2);
    ls_cuda_attention_vendor_close();
    assert_int_equal(ls_emulation_cudnn_graphs_alive(), 0);
}

/* More shapes than there is room for at first. */
static void many_shapes_are_kept(void **state)
{
    enum { N_SHAPES = 20 };
    const bench *b = &all[2];
    const outputs to = make_outputs(b, 0);

    (void)state;
    for (int round = 0; round < 2; round++)
        for (int64_t window = 1; window <= N_SHAPES; window++) {
            bench windowed = *b;
            windowed.p.window = window;
            windowed.p.H = windowed.p.G = 1;
            const cut c = whole(&windowed);
            run_forward(&windowed, &c, 1, &to);
        }
    assert_int_equal(ls_emulation_cudnn_graphs(), N_SHAPES);
    free_outputs(&to);
}

/* The status and text of a backward call of cases[0]. */
static ls_status try_backward(void)
{
    const bench *b = &all[0];
    const gradients to = make_gradients(b);
    ls_op_args args = backward_args(b, whole(b));
    void *workspace = make_bytes(tested_ops->workspace_bytes(LS_OP_attention_backward, &args));

    args.attention_backward.dq = to.dq;
    args.attention_backward.dk = to.dk;
    args.attention_backward.dv = to.dv;
    args.attention_backward.d_o = b->d_o;
    args.attention_backward.lse = to.lse;
    args.attention_backward.delta = to.delta;
    args.attention_backward.workspace = workspace;
    const ls_status status = ls_ops_run(tested_ops, LS_OP_attention_backward, NULL, &args);
    free_buffer(workspace);
    free_gradients(&to);
    return status;
}

static void failures_name_the_shape(void **state)
{
    (void)state;
    set_cudnn(&(ls_emulated_cudnn){.version = VERSION, .run_fails = true});
    assert_int_equal(try_backward(), LS_ERR_DEVICE);
    assert_non_null(strstr(ls_error(), "N 128, M 128"));

    /* Within the bound, and one byte beyond it. */
    const uint64_t slack = LS_CUDNN_SLACK_BYTES - 256;
    set_cudnn(&(ls_emulated_cudnn){.version = VERSION, .more_bytes = slack});
    assert_int_equal(try_backward(), LS_OK);
    set_cudnn(&(ls_emulated_cudnn){.version = VERSION, .more_bytes = slack + 1});
    assert_int_equal(try_backward(), LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ls_error(), "N 128, M 128"));
    assert_int_equal(ls_emulation_cudnn_graphs(), 0); /* nothing is kept of it */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, start_test)
    const struct CMUnitTest tests[] = {
        TEST(forward_matches_the_dense_softmax),
        TEST(backward_matches_the_dense_gradient),
        TEST(key_blocks_are_merged_and_added),
        TEST(variants_share_the_running_state),
        TEST(the_stand_in_keeps_delta),
        TEST(graphs_are_kept_by_shape),
        TEST(many_shapes_are_kept),
        TEST(failures_name_the_shape),
    };
    return cmocka_run_group_tests(tests, make_all, free_all);
}
