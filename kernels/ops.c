/* ops.c - what each op's operands and fields are, and the dispatch by op. */
#include "ops.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

/* ---- operands ------------------------------------------------------------------------------ */

#define READ       LS_ACCESS_READ
#define WRITE      LS_ACCESS_WRITE
#define READ_WRITE LS_ACCESS_READ_WRITE

/* An operand with a fixed access, and one whose flag turns writing into adding. */
#define FIXED(op, field, access)                                                                   \
    {                                                                                              \
#field, (uint16_t)offsetof(ls_##op##_args, field), (access), -1                            \
    }
#define ADDING(op, field, flag)                                                                    \
    {                                                                                              \
#field, (uint16_t)offsetof(ls_##op##_args, field), WRITE,                                  \
            (int16_t)offsetof(ls_##op##_args, flag)                                                \
    }

static const ls_op_info infos[LS_OP_COUNT] = {
    [LS_OP_zero] = {"zero", 1, {FIXED(zero, y, WRITE)}},
    [LS_OP_cast] = {"cast", 2, {FIXED(cast, y, WRITE), FIXED(cast, x, READ)}},
    [LS_OP_add] = {"add", 3, {FIXED(add, y, WRITE), FIXED(add, a, READ), FIXED(add, b, READ)}},
    [LS_OP_embedding_forward] = {"embedding_forward",
                                 3,
                                 {FIXED(embedding_forward, y, WRITE),
                                  FIXED(embedding_forward, w, READ),
                                  FIXED(embedding_forward, tokens, READ)}},
    [LS_OP_embedding_backward] = {"embedding_backward",
                                  3,
                                  {FIXED(embedding_backward, dw, READ_WRITE),
                                   FIXED(embedding_backward, dy, READ),
                                   FIXED(embedding_backward, tokens, READ)}},
    [LS_OP_rmsnorm_forward] = {"rmsnorm_forward",
                               4,
                               {FIXED(rmsnorm_forward, y, WRITE), FIXED(rmsnorm_forward, r, WRITE),
                                FIXED(rmsnorm_forward, x, READ), FIXED(rmsnorm_forward, w, READ)}},
    [LS_OP_rmsnorm_backward] = {"rmsnorm_backward",
                                6,
                                {ADDING(rmsnorm_backward, dx, accumulate_dx),
                                 ADDING(rmsnorm_backward, dw, accumulate_dw),
                                 FIXED(rmsnorm_backward, dy, READ),
                                 FIXED(rmsnorm_backward, x, READ), FIXED(rmsnorm_backward, w, READ),
                                 FIXED(rmsnorm_backward, r, READ)}},
    [LS_OP_rope] = {"rope",
                    4,
                    {FIXED(rope, y, WRITE), FIXED(rope, x, READ), FIXED(rope, table, READ),
                     FIXED(rope, positions, READ)}},
    [LS_OP_matmul] = {"matmul",
                      4,
                      {ADDING(matmul, c, accumulate), FIXED(matmul, a, READ),
                       FIXED(matmul, b, READ), FIXED(matmul, workspace, WRITE)}},
    [LS_OP_bias_forward] = {"bias_forward",
                            2,
                            {FIXED(bias_forward, y, WRITE), FIXED(bias_forward, b, READ)}},
    [LS_OP_bias_backward] = {"bias_backward",
                             2,
                             {ADDING(bias_backward, db, accumulate),
                              FIXED(bias_backward, dy, READ)}},
    [LS_OP_attention_forward] =
        {"attention_forward",
         8,
         {FIXED(attention_forward, o, WRITE), ADDING(attention_forward, lse, accumulate),
          ADDING(attention_forward, o_acc, accumulate), FIXED(attention_forward, q, READ),
          FIXED(attention_forward, k, READ), FIXED(attention_forward, v, READ),
          FIXED(attention_forward, doc_start, READ), FIXED(attention_forward, workspace, WRITE)}},
    [LS_OP_attention_delta] = {"attention_delta",
                               3,
                               {FIXED(attention_delta, delta, WRITE),
                                FIXED(attention_delta, d_o, READ),
                                FIXED(attention_delta, o, READ)}},
    [LS_OP_attention_backward] =
        {"attention_backward",
         11,
         {ADDING(attention_backward, dq, accumulate), FIXED(attention_backward, dk, READ_WRITE),
          FIXED(attention_backward, dv, READ_WRITE), FIXED(attention_backward, q, READ),
          FIXED(attention_backward, k, READ), FIXED(attention_backward, v, READ),
          FIXED(attention_backward, d_o, READ), FIXED(attention_backward, lse, READ),
          FIXED(attention_backward, delta, READ), FIXED(attention_backward, doc_start, READ),
          FIXED(attention_backward, workspace, WRITE)}},
    [LS_OP_swiglu_forward] = {"swiglu_forward",
                              3,
                              {FIXED(swiglu_forward, y, WRITE), FIXED(swiglu_forward, gate, READ),
                               FIXED(swiglu_forward, up, READ)}},
    [LS_OP_swiglu_backward] = {"swiglu_backward",
                               5,
                               {FIXED(swiglu_backward, dgate, WRITE),
                                FIXED(swiglu_backward, dup, WRITE),
                                FIXED(swiglu_backward, dy, READ),
                                FIXED(swiglu_backward, gate, READ),
                                FIXED(swiglu_backward, up, READ)}},
    [LS_OP_cross_entropy] = {"cross_entropy",
                             5,
                             {FIXED(cross_entropy, dlogits, WRITE),
                              FIXED(cross_entropy, nll, WRITE), FIXED(cross_entropy, logits, READ),
                              FIXED(cross_entropy, targets, READ),
                              FIXED(cross_entropy, scale, READ)}},
    [LS_OP_sumsq] = {"sumsq",
                     3,
                     {FIXED(sumsq, sum, WRITE), FIXED(sumsq, partials, WRITE),
                      FIXED(sumsq, x, READ)}},
    [LS_OP_add_sumsq] = {"add_sumsq",
                         4,
                         {ADDING(add_sumsq, y, accumulate), FIXED(add_sumsq, sum, WRITE),
                          FIXED(add_sumsq, partials, WRITE), FIXED(add_sumsq, x, READ)}},
    [LS_OP_norm_finish] = {"norm_finish",
                           2,
                           {FIXED(norm_finish, control, READ_WRITE),
                            FIXED(norm_finish, sums, READ)}},
    [LS_OP_adamw] = {"adamw",
                     8,
                     {FIXED(adamw, w, READ_WRITE), FIXED(adamw, lo, READ_WRITE),
                      FIXED(adamw, m, READ_WRITE), FIXED(adamw, v, READ_WRITE),
                      FIXED(adamw, m_scale, READ_WRITE), FIXED(adamw, v_scale, READ_WRITE),
                      FIXED(adamw, g, READ), FIXED(adamw, control, READ)}},
};

const ls_op_info *ls_op_describe(ls_op op)
{
    assert((unsigned)op < LS_OP_COUNT);
    return &infos[op];
}

ls_access ls_op_access(ls_op op, const ls_op_args *args, int slot)
{
    const ls_op_info *info = ls_op_describe(op);
    assert(slot >= 0 && slot < info->n_operands);

    const ls_operand_info *operand = &info->operands[slot];
    if (operand->flag_offset >= 0) {
        int32_t flag;
        memcpy(&flag, (const char *)args + operand->flag_offset, sizeof flag);
        if (flag) return LS_ACCESS_READ_WRITE;
    }
    return (ls_access)operand->access;
}

/* ---- fields -------------------------------------------------------------------------------- */

/* The member's own type says how it is read, so that neither can change alone. */
#define FIELD(op, field)                                                                           \
    {                                                                                              \
#field, (uint16_t)offsetof(ls_##op##_args, field),                                         \
            _Generic(((ls_##op##_args *)0)->field, int64_t                                         \
                     : LS_FIELD_I64, int32_t                                                       \
                     : LS_FIELD_I32, float                                                         \
                     : LS_FIELD_F32, ls_dtype                                                      \
                     : LS_FIELD_DTYPE)                                                             \
    }

static const ls_op_field zero_fields[] = {FIELD(zero, bytes)};
static const ls_op_field cast_fields[] = {FIELD(cast, n), FIELD(cast, y_dtype),
                                          FIELD(cast, x_dtype)};
static const ls_op_field add_fields[] = {FIELD(add, n), FIELD(add, dtype)};
static const ls_op_field embedding_forward_fields[] = {
    FIELD(embedding_forward, N), FIELD(embedding_forward, D), FIELD(embedding_forward, V),
    FIELD(embedding_forward, dtype)};
static const ls_op_field embedding_backward_fields[] = {
    FIELD(embedding_backward, N), FIELD(embedding_backward, D), FIELD(embedding_backward, V),
    FIELD(embedding_backward, dtype)};
static const ls_op_field rmsnorm_forward_fields[] = {
    FIELD(rmsnorm_forward, N), FIELD(rmsnorm_forward, D), FIELD(rmsnorm_forward, eps),
    FIELD(rmsnorm_forward, dtype)};
static const ls_op_field rmsnorm_backward_fields[] = {
    FIELD(rmsnorm_backward, N), FIELD(rmsnorm_backward, D), FIELD(rmsnorm_backward, accumulate_dx),
    FIELD(rmsnorm_backward, accumulate_dw), FIELD(rmsnorm_backward, dtype)};
static const ls_op_field rope_fields[] = {
    FIELD(rope, N),       FIELD(rope, heads),   FIELD(rope, K),      FIELD(rope, P),
    FIELD(rope, inverse), FIELD(rope, y_dtype), FIELD(rope, x_dtype)};
static const ls_op_field matmul_fields[] = {FIELD(matmul, M),        FIELD(matmul, N),
                                            FIELD(matmul, K),        FIELD(matmul, trans_a),
                                            FIELD(matmul, trans_b),  FIELD(matmul, accumulate),
                                            FIELD(matmul, ab_dtype), FIELD(matmul, c_dtype)};
static const ls_op_field bias_forward_fields[] = {FIELD(bias_forward, N), FIELD(bias_forward, D),
                                                  FIELD(bias_forward, dtype)};
static const ls_op_field bias_backward_fields[] = {FIELD(bias_backward, N), FIELD(bias_backward, D),
                                                   FIELD(bias_backward, accumulate),
                                                   FIELD(bias_backward, dtype)};
static const ls_op_field attention_forward_fields[] = {
    FIELD(attention_forward, N),         FIELD(attention_forward, M),
    FIELD(attention_forward, H),         FIELD(attention_forward, G),
    FIELD(attention_forward, K),         FIELD(attention_forward, q_start),
    FIELD(attention_forward, k_start),   FIELD(attention_forward, window),
    FIELD(attention_forward, scale),     FIELD(attention_forward, accumulate),
    FIELD(attention_forward, last),      FIELD(attention_forward, one_document),
    FIELD(attention_forward, any_order), FIELD(attention_forward, dtype)};
static const ls_op_field attention_delta_fields[] = {
    FIELD(attention_delta, N), FIELD(attention_delta, H), FIELD(attention_delta, K),
    FIELD(attention_delta, dtype)};
static const ls_op_field attention_backward_fields[] = {FIELD(attention_backward, N),
                                                        FIELD(attention_backward, M),
                                                        FIELD(attention_backward, H),
                                                        FIELD(attention_backward, G),
                                                        FIELD(attention_backward, K),
                                                        FIELD(attention_backward, q_start),
                                                        FIELD(attention_backward, k_start),
                                                        FIELD(attention_backward, window),
                                                        FIELD(attention_backward, scale),
                                                        FIELD(attention_backward, accumulate),
                                                        FIELD(attention_backward, one_document),
                                                        FIELD(attention_backward, any_order),
                                                        FIELD(attention_backward, dtype)};
static const ls_op_field swiglu_forward_fields[] = {FIELD(swiglu_forward, n),
                                                    FIELD(swiglu_forward, dtype)};
static const ls_op_field swiglu_backward_fields[] = {FIELD(swiglu_backward, n),
                                                     FIELD(swiglu_backward, dtype)};
static const ls_op_field cross_entropy_fields[] = {FIELD(cross_entropy, N), FIELD(cross_entropy, V),
                                                   FIELD(cross_entropy, dtype)};
static const ls_op_field sumsq_fields[] = {FIELD(sumsq, n), FIELD(sumsq, dtype)};
static const ls_op_field add_sumsq_fields[] = {FIELD(add_sumsq, n), FIELD(add_sumsq, accumulate),
                                               FIELD(add_sumsq, x_dtype)};
static const ls_op_field norm_finish_fields[] = {
    FIELD(norm_finish, n), FIELD(norm_finish, clip_norm), FIELD(norm_finish, beta1),
    FIELD(norm_finish, beta2)};
static const ls_op_field adamw_fields[] = {
    FIELD(adamw, n),     FIELD(adamw, stream),       FIELD(adamw, beta1),    FIELD(adamw, beta2),
    FIELD(adamw, eps),   FIELD(adamw, weight_decay), FIELD(adamw, lr_scale), FIELD(adamw, moments),
    FIELD(adamw, dtype), FIELD(adamw, g_dtype)};

const ls_op_field *ls_op_fields(ls_op op, int *n)
{
    static const struct {
        const ls_op_field *fields;
        int n;
    } lists[LS_OP_COUNT] = {
#define LIST(name) [LS_OP_##name] = {name##_fields, sizeof name##_fields / sizeof(ls_op_field)},
        LS_OP_LIST(LIST)
#undef LIST
    };
    assert((unsigned)op < LS_OP_COUNT);
    *n = lists[op].n;
    return lists[op].fields;
}

/* ---- moments ------------------------------------------------------------------------------- */

static int64_t block_of(ls_moments moments)
{
    return moments == LS_MOMENTS_Q8 ? LS_Q8_BLOCK : moments == LS_MOMENTS_Q4 ? LS_Q4_BLOCK : 0;
}

int64_t ls_moments_scales(ls_moments moments, int64_t n)
{
    const int64_t block = block_of(moments);
    return block > 0 ? (n + block - 1) / block : 0;
}

int64_t ls_moments_elements(ls_moments moments, int64_t n)
{
    if (block_of(moments) == 0) return n;
    const int64_t whole = ls_moments_scales(moments, n) * block_of(moments);
    return moments == LS_MOMENTS_Q4 ? whole / 2 : whole;
}

ls_dtype ls_moments_dtype(ls_moments moments)
{
    if (block_of(moments) > 0) return LS_DTYPE_U8;
    return moments == LS_MOMENTS_BF16 ? LS_DTYPE_BF16 : LS_DTYPE_F32;
}

/* ---- FLOPs --------------------------------------------------------------------------------- */

double ls_causal_pairs(int64_t q, int64_t N, int64_t k, int64_t M)
{
    double pairs = 0.0;
    const int64_t first = q > k ? q : k;                /* first query that sees a key */
    const int64_t full = k + M - 1 > q ? k + M - 1 : q; /* first query that sees all of them */
    const int64_t end = q + N;

    if (first < (full < end ? full : end)) {
        const double a = (double)(first - k + 1), n = (double)((full < end ? full : end) - first);
        pairs += n * a + n * (n - 1.0) / 2.0;
    }
    if (full < end) pairs += (double)(end - full) * (double)M;
    return pairs;
}

double ls_op_flops(ls_op op, const ls_op_args *args, double pairs)
{
    switch (op) {
    case LS_OP_matmul:
        return 2.0 * (double)args->matmul.M * (double)args->matmul.N * (double)args->matmul.K;
    case LS_OP_attention_forward: {
        const ls_attention_forward_args *a = &args->attention_forward;
        if (pairs <= 0.0) pairs = ls_causal_pairs(a->q_start, a->N, a->k_start, a->M);
        return 4.0 * pairs * (double)(a->H * a->K);
    }
    case LS_OP_attention_backward: {
        const ls_attention_backward_args *a = &args->attention_backward;
        if (pairs <= 0.0) pairs = ls_causal_pairs(a->q_start, a->N, a->k_start, a->M);
        return 10.0 * pairs * (double)(a->H * a->K);
    }
    default: return 0.0; /* memory-bound: counted by bytes, not FLOPs */
    }
}

/* ---- dispatch ------------------------------------------------------------------------------ */

ls_status ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args)
{
    switch (op) {
#define RUN_CASE(name)                                                                             \
    case LS_OP_##name: return ops->name(stream, &args->name);
        LS_OP_LIST(RUN_CASE)
#undef RUN_CASE
    case LS_OP_COUNT: break;
    }
    assert(0 && "not an op");
    return LS_ERR_INVALID;
}
