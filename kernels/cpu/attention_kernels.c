/* attention_kernels.c - which attention kernel runs, and the keys a query tile sees. */
#include "attention_tile.h"

#include <assert.h>
#include <stddef.h>

#include "cpu_features.h"

#if defined(LS_HAVE_AMX_KERNELS)
static int amx_usable(ls_dtype dtype, int64_t K)
{
    return dtype == LS_DTYPE_BF16 && K % 32 == 0 && K <= 128 &&
           ls_cpu_features_discover()->amx_bf16;
}

static const ls_attention_kernel kernel_amx = {
    .name = "amx-bf16",
    .usable = amx_usable,
    .forward_workspace_bytes = ls_attention_amx_forward_bytes,
    .forward_prepare = ls_attention_amx_forward_prepare,
    .forward = ls_attention_amx_forward,
    .forward_tasks = 1,
    .backward = ls_attention_amx_backward,
};
#endif

static const ls_attention_kernel *const kernels[LS_ATTENTION_VARIANT_COUNT] = {
    [LS_ATTENTION_VARIANT_REFERENCE] = &ls_attention_kernel_reference,
    [LS_ATTENTION_VARIANT_PLAIN] = &ls_attention_kernel_plain,
#if defined(LS_HAVE_X86_KERNELS)
    [LS_ATTENTION_VARIANT_AVX2] = &ls_attention_kernel_avx2,
    [LS_ATTENTION_VARIANT_AVX512] = &ls_attention_kernel_avx512,
#endif
#if defined(LS_HAVE_AMX_KERNELS)
    [LS_ATTENTION_VARIANT_AMX] = &kernel_amx,
#endif
};

static ls_attention_variant forced = LS_ATTENTION_VARIANT_AUTO;

/* Whether the kernel is in this build, and may run on this machine on these operands. */
static int is_usable(int variant, ls_dtype dtype, int64_t K)
{
    const ls_cpu_features *features = ls_cpu_features_discover();
    if (kernels[variant] == NULL || !kernels[variant]->usable(dtype, K)) return 0;
    if (variant == LS_ATTENTION_VARIANT_AVX2) return features->avx2;
    if (variant == LS_ATTENTION_VARIANT_AVX512) return features->avx512;
    return 1;
}

/* The last usable variant of the enum is the fastest; the reference runs anything. */
const ls_attention_kernel *ls_attention_kernel_choose(ls_dtype dtype, int64_t K)
{
    int variant =
        forced != LS_ATTENTION_VARIANT_AUTO ? (int)forced : LS_ATTENTION_VARIANT_COUNT - 1;
    while (!is_usable(variant, dtype, K)) {
        variant--;
        assert(variant > LS_ATTENTION_VARIANT_AUTO);
    }
    return kernels[variant];
}

int ls_cpu_attention_force(ls_attention_variant variant)
{
    const int64_t width = 64; /* every variant runs it in bf16 */
    if (variant != LS_ATTENTION_VARIANT_AUTO && !is_usable((int)variant, LS_DTYPE_BF16, width))
        return 0;
    forced = variant;
    return 1;
}

const char *ls_cpu_attention_kernel_name(ls_dtype dtype, int64_t K)
{
    const int64_t usual_width = 64;
    return ls_attention_kernel_choose(dtype, K > 0 ? K : usual_width)->name;
}

uint64_t ls_cpu_attention_workspace_bytes(ls_op op, const ls_op_args *args)
{
    switch (op) {
    case LS_OP_attention_forward: return ls_attention_forward_bytes(&args->attention_forward);
    case LS_OP_attention_backward: return ls_attention_backward_bytes(&args->attention_backward);
    default: return 0;
    }
}

void ls_attention_rows_read(ls_attention_rows *rows, const ls_attention_shape *shape, int64_t row)
{
    const int64_t left = shape->N - row;
    const int32_t end = (int32_t)shape->M;

    *rows = (ls_attention_rows){
        .n_rows = left < LS_ATTENTION_QUERY_TILE ? (int)left : LS_ATTENTION_QUERY_TILE,
        .first_min = end,
        .last_max = -1,
        .first_max = 0,
        .last_min = end - 1,
    };
    for (int i = 0; i < LS_ATTENTION_QUERY_TILE; i++) {
        rows->first[i] = 0;
        rows->last[i] = end - 1;
        if (i >= rows->n_rows) continue;

        const int64_t position = shape->q_start + row + i;
        int64_t first = shape->doc_start[row + i];
        if (shape->window > 0 && first < position - shape->window + 1)
            first = position - shape->window + 1;
        first -= shape->k_start;
        int64_t last = position - shape->k_start;
        first = first < 0 ? 0 : first > end ? end : first;
        last = last < -1 ? -1 : last > end - 1 ? end - 1 : last;
        rows->first[i] = (int32_t)first;
        rows->last[i] = (int32_t)last;
        if (first > rows->first_max) rows->first_max = (int32_t)first;
        if (last < rows->last_min) rows->last_min = (int32_t)last;
        if (first > last) continue;
        if (first < rows->first_min) rows->first_min = (int32_t)first;
        if (last > rows->last_max) rows->last_max = (int32_t)last;
    }
}

ls_attention_rows ls_attention_rows_span(const ls_attention_shape *shape)
{
    ls_attention_rows span = {.first_min = (int32_t)shape->M, .last_max = -1};

    if (shape->k_start >= shape->q_start + shape->N) return span; /* all in the future */
    for (int64_t row = 0; row < shape->N; row += LS_ATTENTION_QUERY_TILE) {
        ls_attention_rows rows;
        ls_attention_rows_read(&rows, shape, row);
        if (rows.first_min < span.first_min) span.first_min = rows.first_min;
        if (rows.last_max > span.last_max) span.last_max = rows.last_max;
    }
    return span;
}
