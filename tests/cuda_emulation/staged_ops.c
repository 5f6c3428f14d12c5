/* staged_ops.c - operands to the device and back, by the shapes of ops.h. */
#include "staged_ops.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cuda_ops.h"

enum { MISALIGN = 256 }; /* an operand lies on the device as on the host, modulo this */

/* Where an operand lies. */
typedef struct stage {
    void *host, *memory, *device;
    uint64_t bytes;
} stage;

/* The bytes of each operand of op, in their order; 0: absent. */
static void find_sizes(ls_op op, const ls_op_args *args, uint64_t sizes[LS_OPERANDS_MAX])
{
#define BYTES(n, dtype) ((uint64_t)(n)*ls_dtype_bytes(dtype))
#define F32(n)          BYTES(n, LS_DTYPE_F32)
#define F64(n)          BYTES(n, LS_DTYPE_F64)
#define I32(n)          BYTES(n, LS_DTYPE_I32)
#define I64(n)          BYTES(n, LS_DTYPE_I64)
#define SIZES(...)                                                                                 \
    do {                                                                                           \
        const uint64_t list[] = {__VA_ARGS__};                                                     \
        memcpy(sizes, list, sizeof list);                                                          \
    } while (0)
#define CASE(name)                                                                                 \
    break;                                                                                         \
    case LS_OP_##name: a = (any){.name = &args->name};
    typedef union any {
#define MEMBER(name) const ls_##name##_args *name;
        LS_OP_LIST(MEMBER)
#undef MEMBER
    } any;
    any a;
#define T(name, n) BYTES(n, a.name->dtype)

    switch (op) {
        CASE(zero) SIZES((uint64_t)a.zero->bytes);
        CASE(cast) SIZES(BYTES(a.cast->n, a.cast->y_dtype), BYTES(a.cast->n, a.cast->x_dtype));
        CASE(add) SIZES(T(add, a.add->n), T(add, a.add->n), T(add, a.add->n));
        CASE(embedding_forward)
        const ls_embedding_forward_args *x = a.embedding_forward;
        SIZES(BYTES(x->N * x->D, x->dtype), BYTES(x->V * x->D, x->dtype), I32(x->N));
        CASE(embedding_backward)
        const ls_embedding_backward_args *e = a.embedding_backward;
        SIZES(F32(e->V * e->D), BYTES(e->N * e->D, e->dtype), I32(e->N));
        CASE(rmsnorm_forward)
        const ls_rmsnorm_forward_args *r = a.rmsnorm_forward;
        SIZES(BYTES(r->N * r->D, r->dtype), F32(r->N), BYTES(r->N * r->D, r->dtype),
              BYTES(r->D, r->dtype));
        CASE(rmsnorm_backward)
        const ls_rmsnorm_backward_args *b = a.rmsnorm_backward;
        SIZES(BYTES(b->N * b->D, b->dtype), F32(b->D), F32(b->N * b->D),
              BYTES(b->N * b->D, b->dtype), BYTES(b->D, b->dtype), F32(b->N));
        CASE(rope)
        const ls_rope_args *p = a.rope;
        SIZES(BYTES(p->N * p->heads * p->K, p->y_dtype), BYTES(p->N * p->heads * p->K, p->x_dtype),
              F32(p->P * p->K), I64(p->N));
        CASE(matmul)
        const ls_matmul_args *m = a.matmul;
        SIZES(BYTES(m->M * m->N, m->c_dtype), BYTES(m->M * m->K, m->ab_dtype),
              BYTES(m->K * m->N, m->ab_dtype), ls_ops_cuda.workspace_bytes(op, args));
        CASE(bias_forward)
        const ls_bias_forward_args *f = a.bias_forward;
        SIZES(BYTES(f->N * f->D, f->dtype), BYTES(f->D, f->dtype));
        CASE(bias_backward)
        const ls_bias_backward_args *g = a.bias_backward;
        SIZES(F32(g->D), BYTES(g->N * g->D, g->dtype));
        CASE(attention_forward)
        const ls_attention_forward_args *q = a.attention_forward;
        const uint64_t rows = (uint64_t)(q->N * q->H), keys = (uint64_t)(q->M * q->G * q->K);
        SIZES(q->last ? BYTES(rows * (uint64_t)q->K, q->dtype) : 0, F32(rows),
              F32(rows * (uint64_t)q->K), BYTES(rows * (uint64_t)q->K, q->dtype),
              BYTES(keys, q->dtype), BYTES(keys, q->dtype), I64(q->N),
              ls_ops_cuda.workspace_bytes(op, args));
        CASE(attention_delta)
        const ls_attention_delta_args *d = a.attention_delta;
        SIZES(F32(d->N * d->H), BYTES(d->N * d->H * d->K, d->dtype),
              BYTES(d->N * d->H * d->K, d->dtype));
        CASE(attention_backward)
        const ls_attention_backward_args *w = a.attention_backward;
        const uint64_t n_q = (uint64_t)(w->N * w->H * w->K), n_k = (uint64_t)(w->M * w->G * w->K);
        SIZES(F32(n_q), F32(n_k), F32(n_k), BYTES(n_q, w->dtype), BYTES(n_k, w->dtype),
              BYTES(n_k, w->dtype), BYTES(n_q, w->dtype), F32(w->N * w->H), F32(w->N * w->H),
              I64(w->N), ls_ops_cuda.workspace_bytes(op, args));
        CASE(swiglu_forward)
        const uint64_t forward = T(swiglu_forward, a.swiglu_forward->n);
        SIZES(forward, forward, forward);
        CASE(swiglu_backward)
        const uint64_t backward = T(swiglu_backward, a.swiglu_backward->n);
        SIZES(backward, backward, backward, backward, backward);
        CASE(cross_entropy)
        const ls_cross_entropy_args *c = a.cross_entropy;
        SIZES(BYTES(c->N * c->V, c->dtype), F32(c->N), F32(c->N * c->V), I32(c->N), F32(1));
        CASE(sumsq)
        SIZES(F64(1), F64((a.sumsq->n + 4095) / 4096), T(sumsq, a.sumsq->n));
        CASE(add_sumsq)
        const ls_add_sumsq_args *s = a.add_sumsq;
        SIZES(F32(s->n), F64(1), F64((s->n + 4095) / 4096), BYTES(s->n, s->x_dtype));
        CASE(norm_finish) SIZES(sizeof(ls_update_control), F64(a.norm_finish->n));
        CASE(adamw)
        const ls_adamw_args *u = a.adamw;
        const ls_moments moments = (ls_moments)u->moments;
        const uint64_t packed =
            BYTES(ls_moments_elements(moments, u->n), ls_moments_dtype(moments));
        const uint64_t scales = F32(ls_moments_scales(moments, u->n));
        SIZES(BYTES(u->n, u->dtype), BYTES(u->n, LS_DTYPE_I16), packed, packed, scales, scales,
              BYTES(u->n, u->g_dtype), sizeof(ls_update_control));
        break;
    case LS_OP_COUNT: assert(0 && "not an op");
    }
}

static void check(cudaError_t error)
{
    assert(error == cudaSuccess);
    (void)error;
}

/* Device memory for one operand, shared with an earlier one that is the same memory. */
static void open_stage(stage *stages, int slot, cudaStream_t stream)
{
    stage *s = &stages[slot];
    for (int i = 0; i < slot; i++)
        if (stages[i].host == s->host && stages[i].bytes >= s->bytes) {
            s->device = stages[i].device;
            return;
        }
    const uint64_t shift = (uintptr_t)s->host % MISALIGN;
    check(cudaMalloc(&s->memory, shift + s->bytes));
    s->device = (char *)s->memory + shift;
    check(cudaMemcpyAsync(s->device, s->host, s->bytes, cudaMemcpyDefault, stream));
}

static ls_status run(ls_op op, const ls_op_args *args)
{
    cudaStream_t stream;
    const ls_op_info *info = ls_op_describe(op);
    uint64_t sizes[LS_OPERANDS_MAX] = {0};
    stage stages[LS_OPERANDS_MAX];
    ls_op_args staged = *args;

    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    memset(stages, 0, sizeof stages);
    find_sizes(op, args, sizes);
    for (int i = 0; i < info->n_operands; i++) {
        stage *s = &stages[i];
        memcpy(&s->host, (const char *)args + info->operands[i].offset, sizeof s->host);
        s->bytes = s->host != NULL ? sizes[i] : 0;
        if (s->bytes > 0) open_stage(stages, i, stream);
        memcpy((char *)&staged + info->operands[i].offset, &s->device, sizeof s->device);
    }
    const ls_status status = ls_ops_run(&ls_ops_cuda, op, stream, &staged);
    for (int i = 0; i < info->n_operands; i++)
        if (stages[i].bytes > 0 && (ls_op_access(op, args, i) & LS_ACCESS_WRITE))
            check(cudaMemcpyAsync(stages[i].host, stages[i].device, stages[i].bytes,
                                  cudaMemcpyDefault, stream));
    check(cudaStreamSynchronize(stream));
    for (int i = 0; i < info->n_operands; i++) check(cudaFree(stages[i].memory));
    check(cudaStreamDestroy(stream));
    return status;
}

#define STAGED(name)                                                                               \
    static ls_status name##_staged(void *stream, const ls_##name##_args *args)                     \
    {                                                                                              \
        ls_op_args any;                                                                            \
        (void)stream;                                                                              \
        memset(&any, 0, sizeof any);                                                               \
        any.name = *args;                                                                          \
        return run(LS_OP_##name, &any);                                                            \
    }
LS_OP_LIST(STAGED)

static uint64_t workspace_bytes(ls_op op, const ls_op_args *args)
{
    return ls_ops_cuda.workspace_bytes(op, args);
}

static const char *kernel_name(ls_op op, ls_dtype dtype, int64_t K)
{
    return ls_ops_cuda.kernel_name(op, dtype, K);
}

const ls_ops ls_ops_staged = {
    .name = "cuda, staged",
#define FIELD(name) .name = name##_staged,
    LS_OP_LIST(FIELD)
#undef FIELD
        .workspace_bytes = workspace_bytes,
    .kernel_name = kernel_name,
};
