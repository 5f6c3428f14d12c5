/*
 * test_attention_golden.c - attention and its gradients by every kernel against PyTorch's SDPA in
 * bf16 on the same inputs: within what bf16 costs either (scripts/golden_attention.py).
 */
#include "attention_test.h"

#include "safetensors.h"

#if defined(LS_TEST_CUDA)
#include "attention_variants.h"
#include "attention_vendor.h"
#endif

/* PyTorch's own is up to 4e-3 from its fp64, ours too. */
#define TOLERANCE 8e-3

enum { EVERY = 8, Q = 1, KEYS, VALUES, D_O }; /* rows kept; seeds */

typedef struct golden_case {
    const char *name;
    int64_t N, M, H, G, K, window;
    int size; /* of q */
} golden_case;

static const golden_case cases[] = {
    {"causal", 128, 128, 4, 2, 64, 0, 2}, {"keys", 128, 384, 2, 1, 64, 0, 2},
    {"wide", 128, 256, 2, 1, 128, 0, 2},  {"window", 128, 256, 4, 1, 64, 100, 2},
    {"large", 128, 128, 1, 1, 64, 0, 16},
};

static ls_safetensors *golden;

static int open_golden(void **state)
{
    (void)state;
    return ls_safetensors_open(LS_SOURCE_DIR "/tests/golden/attention.safetensors", &golden) ==
                   LS_OK
               ? 0
               : -1;
}

static int close_golden(void **state)
{
    (void)state;
    ls_safetensors_close(golden);
    return 0;
}

/* As the script has it. */
static void *make_values(int64_t n, uint32_t seed, int size)
{
    void *data = make_buffer(n, LS_DTYPE_BF16);
    for (int64_t i = 0; i < n; i++) {
        uint32_t x = (uint32_t)i * 2654435761u + seed * 97531u;
        x ^= x >> 15;
        x *= 2246822519u;
        x ^= x >> 13;
        put(data, i, LS_DTYPE_BF16, ((double)(x >> 24) - 128.0) / 128.0 * size);
    }
    return data;
}

/* The distance from the kept rows of NAME.PART, relative. */
static void assert_golden(const golden_case *c, const char *part, const char *kernel,
                          const void *data, ls_dtype dtype, int64_t heads)
{
    char name[32];
    double distance = 0.0, norm = 0.0;

    snprintf(name, sizeof name, "%s.%s", c->name, part);
    const ls_safetensors_entry *entry = ls_safetensors_find(golden, name);
    assert_non_null(entry);
    const int64_t row = heads * c->K, n_rows = entry->dims[0];
    assert_int_equal(entry->dims[1] * entry->dims[2], row);
    ls_bf16 *expected = make_buffer(n_rows * row, LS_DTYPE_BF16);
    assert_int_equal(ls_safetensors_read(golden, entry, 0, entry->size_bytes, expected), LS_OK);
    for (int64_t i = 0; i < n_rows * row; i++) {
        const double x = get(expected, i, LS_DTYPE_BF16);
        const double y = get(data, i / row * EVERY * row + i % row, dtype);
        distance += (x - y) * (x - y);
        norm += x * x;
    }
    if (!(sqrt(distance / norm) <= TOLERANCE))
        fail_msg("%s by %s: %.2g from PyTorch's", name, kernel, sqrt(distance / norm));
    free_buffer(expected);
}

/* The whole chain: forward, delta, backward, with these promises. */
static void check_case(const golden_case *c, int promised, const char *kernel)
{
    const int64_t n_q = c->N * c->H * c->K, n_k = c->M * c->G * c->K, rows = c->N * c->H;
    void *q = make_values(n_q, Q, c->size), *k = make_values(n_k, KEYS, 2);
    void *v = make_values(n_k, VALUES, 1), *d_o = make_values(n_q, D_O, 1);
    void *o = make_buffer(n_q, LS_DTYPE_BF16);
    float *lse = make_buffer(rows, LS_DTYPE_F32), *delta = make_buffer(rows, LS_DTYPE_F32);
    float *dq = make_buffer(n_q, LS_DTYPE_F32);
    float *dk = make_buffer(n_k, LS_DTYPE_F32), *dv = make_buffer(n_k, LS_DTYPE_F32);
    int64_t *doc_start = make_buffer(c->N, LS_DTYPE_I64);

    for (int64_t n = 0; n < c->N; n++) doc_start[n] = 0;
    for (int64_t i = 0; i < n_k; i++) dk[i] = dv[i] = 0.0f;
#define FIELDS                                                                                     \
    .q = q, .k = k, .v = v, .doc_start = doc_start, .N = c->N, .M = c->M, .H = c->H, .G = c->G,    \
    .K = c->K, .q_start = c->M - c->N, .window = c->window, .scale = 1.0f / sqrtf((float)c->K),    \
    .one_document = promised, .any_order = promised, .dtype = LS_DTYPE_BF16
    ls_op_args forward = {.attention_forward = {FIELDS, .o = o, .lse = lse, .last = 1}};
    ls_op_args backward = {.attention_backward = {FIELDS, .d_o = d_o, .lse = lse, .delta = delta,
                                                  .dq = dq, .dk = dk, .dv = dv}};
#undef FIELDS
    run_op(LS_OP_attention_forward, &forward, &forward.attention_forward.workspace);
    RUN_OP(attention_delta, .delta = delta, .d_o = d_o, .o = o, .N = c->N, .H = c->H, .K = c->K,
           .dtype = LS_DTYPE_BF16);
    run_op(LS_OP_attention_backward, &backward, &backward.attention_backward.workspace);
    assert_golden(c, "o", kernel, o, LS_DTYPE_BF16, c->H);
    assert_golden(c, "dq", kernel, dq, LS_DTYPE_F32, c->H);
    assert_golden(c, "dk", kernel, dk, LS_DTYPE_F32, c->G);
    assert_golden(c, "dv", kernel, dv, LS_DTYPE_F32, c->G);
    void *all[] = {q, k, v, d_o, o, lse, delta, dq, dk, dv, doc_start};
    for (int64_t i = 0; i < COUNT_OF(all); i++) free_buffer(all[i]);
}

#if defined(LS_TEST_CUDA)

static void every_kernel_agrees_with_pytorch(void **state)
{
    const ls_cuda_attention_variant *variant;

    (void)state;
#if !defined(LS_TEST_DEVICE)
    ls_cuda_attention_vendor_close();
    ls_emulation_cudnn(&(ls_emulated_cudnn){.version = 91900});
#endif
    for (int n = 0; (variant = ls_cuda_attention_variant_at(n)) != NULL; n++) {
        const bool is_vendor = strcmp(variant->name, "cudnn") == 0;
        if (is_vendor && strncmp(ls_cuda_attention_vendor_note(), "none", 4) == 0) continue;
        ls_cuda_attention_force(n);
        for (int64_t i = 0; i < COUNT_OF(cases); i++) {
            check_case(&cases[i], is_vendor, variant->name);
            assert_string_equal(ls_cuda_attention_kernels_ran(LS_OP_attention_forward),
                                variant->name);
            assert_string_equal(ls_cuda_attention_kernels_ran(LS_OP_attention_backward),
                                variant->name);
        }
    }
    ls_cuda_attention_force(-1);
#if !defined(LS_TEST_DEVICE)
    ls_cuda_attention_vendor_close();
    ls_emulation_cudnn(&(ls_emulated_cudnn){.version = 0});
#endif
}

#else

static void every_kernel_agrees_with_pytorch(void **state)
{
    (void)state;
    for (int variant = LS_ATTENTION_VARIANT_PLAIN; variant < LS_ATTENTION_VARIANT_COUNT;
         variant++) {
        if (!ls_cpu_attention_force((ls_attention_variant)variant)) continue;
        for (int64_t i = 0; i < COUNT_OF(cases); i++)
            check_case(&cases[i], 0, ls_cpu_attention_kernel_name(LS_DTYPE_BF16, cases[i].K));
    }
    ls_cpu_attention_force(LS_ATTENTION_VARIANT_AUTO);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_agrees_with_pytorch)};
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
