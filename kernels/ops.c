/* ops.c - what each op's operands are, and the dispatch by op. */
#include "ops.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

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
    [LS_OP_norm_finish] = {"norm_finish",
                           2,
                           {FIXED(norm_finish, control, READ_WRITE),
                            FIXED(norm_finish, sums, READ)}},
    [LS_OP_adamw] = {"adamw",
                     6,
                     {FIXED(adamw, w, READ_WRITE), FIXED(adamw, lo, READ_WRITE),
                      FIXED(adamw, m, READ_WRITE), FIXED(adamw, v, READ_WRITE),
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

/* Pairs of the causal triangle where queries [q, q + N) meet keys [k, k + M). */
static double causal_pairs(int64_t q, int64_t N, int64_t k, int64_t M)
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
        if (pairs <= 0.0) pairs = causal_pairs(a->q_start, a->N, a->k_start, a->M);
        return 4.0 * pairs * (double)(a->H * a->K);
    }
    case LS_OP_attention_backward: {
        const ls_attention_backward_args *a = &args->attention_backward;
        if (pairs <= 0.0) pairs = causal_pairs(a->q_start, a->N, a->k_start, a->M);
        return 10.0 * pairs * (double)(a->H * a->K);
    }
    default: return 0.0; /* memory-bound: counted by bytes, not FLOPs */
    }
}

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
