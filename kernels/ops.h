/*
 * ops.h - every tensor operation, its shapes, and the table each backend fills.
 *
 * An op is a pure function of pointers: it allocates nothing, waits for nothing and knows nothing
 * of layers, slots, places or policy.  Its args struct is the only place where its shapes are
 * written down; ls_op_info tells the planner which fields are operands and how they are accessed.
 *
 *   N  rows: tokens of a chunk or block       D  model width         F  feed-forward width
 *   H  query heads     G  key/value heads     K  width of one head   V  vocabulary
 *
 * Tensors are dense and row-major; [N, D] has D contiguous.  Dimensions are int64_t, because
 * 512k tokens x 4096 channels is already 2^31 elements.  Sums are kept in fp32 or wider, in an
 * order that depends on shapes only, never on the number of threads.  "dtype" is F32 or BF16.
 * Outputs never overlap inputs unless the field says "may alias".
 *
 * Layer: kernels (uses base).  Threads: ops may run at once on disjoint operands.
 */
#ifndef LS_OPS_H
#define LS_OPS_H

#include <stdint.h>

#include "dtype.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- data movement ------------------------------------------------------------------------- */

/* y = 0 */
typedef struct ls_zero_args {
    void *y; /* [bytes] out */
    int64_t bytes;
} ls_zero_args;

/* y = x, converted */
typedef struct ls_cast_args {
    void *y;       /* [n] y_dtype out */
    const void *x; /* [n] x_dtype */
    int64_t n;
    ls_dtype y_dtype, x_dtype;
} ls_cast_args;

/* y = a + b */
typedef struct ls_add_args {
    void *y;       /* [n] dtype out; may alias a or b */
    const void *a; /* [n] dtype */
    const void *b; /* [n] dtype */
    int64_t n;
    ls_dtype dtype;
} ls_add_args;

/* ---- embedding ----------------------------------------------------------------------------- */

/* y[n] = w[tokens[n]]; the caller guarantees 0 <= tokens[n] < V */
typedef struct ls_embedding_forward_args {
    void *y;               /* [N, D] dtype out */
    const void *w;         /* [V, D] dtype */
    const int32_t *tokens; /* [N] */
    int64_t N, D, V;
    ls_dtype dtype;
} ls_embedding_forward_args;

/* dw[tokens[n]] += dy[n], rows in ascending n */
typedef struct ls_embedding_backward_args {
    float *dw;             /* [V, D] added to */
    const void *dy;        /* [N, D] dtype */
    const int32_t *tokens; /* [N] */
    int64_t N, D, V;
    ls_dtype dtype;
} ls_embedding_backward_args;

/* ---- RMSNorm (Zhang, Sennrich 2019) -------------------------------------------------------- */

/* y = x * r * w,   r = 1 / sqrt(mean_d(x^2) + eps) */
typedef struct ls_rmsnorm_forward_args {
    void *y;       /* [N, D] dtype out */
    float *r;      /* [N] out, kept for backward */
    const void *x; /* [N, D] dtype */
    const void *w; /* [D] dtype */
    int64_t N, D;
    float eps;
    ls_dtype dtype;
} ls_rmsnorm_forward_args;

/*
 * g = dy * w;   dx += r * (g - x * r^2 * mean_d(g * x))   (accumulate_dx, else =)
 * dw += sum_n dy * x * r                                  (accumulate_dw, else =)
 */
typedef struct ls_rmsnorm_backward_args {
    void *dx;        /* [N, D] dtype */
    float *dw;       /* [D]; NULL: not wanted */
    const float *dy; /* [N, D] */
    const void *x;   /* [N, D] dtype */
    const void *w;   /* [D] dtype */
    const float *r;  /* [N] */
    int64_t N, D;
    int32_t accumulate_dx, accumulate_dw;
    ls_dtype dtype;
} ls_rmsnorm_backward_args;

/* ---- rotary position embedding (Su et al. 2021), rotate-half pairs (i, i + K/2) ------------ */

/*
 * y = x rotated by the angle of its position; inverse rotates back (the backward of forward).
 * table[p][i] = {cos, sin} of position p and pair i, already scaled by any attention factor.
 */
typedef struct ls_rope_args {
    void *y;                  /* [N, heads, K] y_dtype out; may alias x if the dtypes are equal */
    const void *x;            /* [N, heads, K] x_dtype */
    const float *table;       /* [P, K/2, 2] */
    const int64_t *positions; /* [N], each in [0, P) */
    int64_t N, heads, K, P;
    int32_t inverse;
    ls_dtype y_dtype, x_dtype;
} ls_rope_args;

/* ---- matrix multiplication ----------------------------------------------------------------- */

/*
 * c = op(a) op(b)   (accumulate: c += ...), fp32 accumulation.
 * trans_a: a is stored [K, M], else [M, K].  trans_b: b is stored [N, K], else [K, N].
 */
typedef struct ls_matmul_args {
    void *c;         /* [M, N] c_dtype */
    const void *a;   /* [M, K] or [K, M] ab_dtype */
    const void *b;   /* [K, N] or [N, K] ab_dtype */
    void *workspace; /* ls_ops.workspace_bytes(); NULL if that is 0 */
    int64_t M, N, K;
    int32_t trans_a, trans_b, accumulate;
    ls_dtype ab_dtype, c_dtype; /* c_dtype is ab_dtype or F32 */
} ls_matmul_args;

/* ---- bias ---------------------------------------------------------------------------------- */

/* y[n] = b, which a matmul then adds to: one rounding, as if it had the bias itself */
typedef struct ls_bias_forward_args {
    void *y;       /* [N, D] dtype out */
    const void *b; /* [D] dtype */
    int64_t N, D;
    ls_dtype dtype;
} ls_bias_forward_args;

/* db = sum_n dy[n]   (accumulate: db += ...), rows in ascending n, sums in fp64 */
typedef struct ls_bias_backward_args {
    float *db;      /* [D] */
    const void *dy; /* [N, D] dtype */
    int64_t N, D;
    int32_t accumulate;
    ls_dtype dtype;
} ls_bias_backward_args;

/* ---- attention(query block, key block) ----------------------------------------------------- */

/*
 * Queries are rows q_start .. q_start + N of the token axis, keys are rows k_start .. k_start + M.
 * The query at position p sees the keys j with  doc_start[p] <= j <= p  and, if window > 0,
 * j > p - window.  Those are contiguous, so blocks outside are skipped, not masked.
 * s = scale * q k;  head h reads key/value head h / (H / G).
 *
 * Forward merges this key block into the running result: o_acc and lse are read if accumulate,
 * else they start empty (o 0, lse -inf).  If last, o = o_acc in dtype is written too.  A row that
 * sees no key at all ends as o = 0, lse = -inf.  (Online softmax: Milakov, Gimelshein 2018; Dao
 * et al. 2022.)
 *
 * Two promises of the caller let more kernels take a call, forward and backward, and change nothing
 * else: one_document, that no doc_start of these rows lies behind k_start; any_order, that sums may
 * be taken in an order that is another one at each call.
 */
typedef struct ls_attention_forward_args {
    void *o;                  /* [N, H, K] dtype out, written if last */
    float *lse;               /* [N, H] running log-sum-exp (natural log) */
    float *o_acc;             /* [N, H, K] running o; may be NULL if last and not accumulate */
    const void *q;            /* [N, H, K] dtype */
    const void *k;            /* [M, G, K] dtype */
    const void *v;            /* [M, G, K] dtype */
    const int64_t *doc_start; /* [N] of the query rows, positions on the token axis */
    void *workspace;          /* ls_ops.workspace_bytes(); NULL if that is 0 */
    int64_t N, M, H, G, K;
    int64_t q_start, k_start, window; /* window 0: none */
    float scale;
    int32_t accumulate, last;
    int32_t one_document, any_order;
    ls_dtype dtype;
} ls_attention_forward_args;

/* delta[n, h] = sum_k d_o[n, h, k] * o[n, h, k] */
typedef struct ls_attention_delta_args {
    float *delta;    /* [N, H] out */
    const void *d_o; /* [N, H, K] dtype */
    const void *o;   /* [N, H, K] dtype */
    int64_t N, H, K;
    ls_dtype dtype;
} ls_attention_delta_args;

/*
 * With p = exp(s - lse) of the GLOBAL lse:  ds = p * (d_o v - delta) * scale
 * dv += p^T d_o;  dk += ds^T q;  dq += ds k  (dq starts from 0 unless accumulate).
 * A row whose lse is -inf contributes nothing.
 */
typedef struct ls_attention_backward_args {
    float *dq;                /* [N, H, K] */
    float *dk;                /* [M, G, K] added to */
    float *dv;                /* [M, G, K] added to */
    const void *q;            /* [N, H, K] dtype */
    const void *k;            /* [M, G, K] dtype */
    const void *v;            /* [M, G, K] dtype */
    const void *d_o;          /* [N, H, K] dtype */
    const float *lse;         /* [N, H] */
    const float *delta;       /* [N, H] */
    const int64_t *doc_start; /* [N] */
    void *workspace;          /* ls_ops.workspace_bytes(); NULL if that is 0 */
    int64_t N, M, H, G, K;
    int64_t q_start, k_start, window;
    float scale;
    int32_t accumulate;
    int32_t one_document, any_order;
    ls_dtype dtype;
} ls_attention_backward_args;

/* ---- SwiGLU (Shazeer 2020) ----------------------------------------------------------------- */

/* y = silu(gate) * up,   silu(x) = x / (1 + exp(-x)) */
typedef struct ls_swiglu_forward_args {
    void *y;          /* [n] dtype out */
    const void *gate; /* [n] dtype */
    const void *up;   /* [n] dtype */
    int64_t n;
    ls_dtype dtype;
} ls_swiglu_forward_args;

typedef struct ls_swiglu_backward_args {
    void *dgate;      /* [n] dtype out; may alias gate */
    void *dup;        /* [n] dtype out; may alias up */
    const void *dy;   /* [n] dtype */
    const void *gate; /* [n] dtype */
    const void *up;   /* [n] dtype */
    int64_t n;
    ls_dtype dtype;
} ls_swiglu_backward_args;

/* ---- loss ---------------------------------------------------------------------------------- */

#define LS_TARGET_IGNORE (-100)

/*
 * nll[n] = logsumexp(logits[n]) - logits[n, targets[n]];  dlogits = (softmax - onehot) * scale[0].
 * A row whose target is LS_TARGET_IGNORE has nll 0 and dlogits 0.
 */
typedef struct ls_cross_entropy_args {
    void *dlogits;          /* [N, V] dtype out; NULL for evaluation */
    float *nll;             /* [N] out */
    const float *logits;    /* [N, V] */
    const int32_t *targets; /* [N], each in [0, V) or LS_TARGET_IGNORE */
    const float *scale;     /* [1]: 1 / labels of the whole optimizer step; NULL for evaluation */
    int64_t N, V;
    ls_dtype dtype;
} ls_cross_entropy_args;

/* ---- optimizer ----------------------------------------------------------------------------- */

/* What a step's updates share; one per run, in memory the host and the ops both see. */
typedef struct ls_update_control {
    double grad_norm;         /* out of norm_finish, before clipping */
    double beta1_power;       /* beta1^updates by repeated multiplication; 1 before the first */
    double beta2_power;       /* beta2^updates */
    double lr;                /* in: this step's rate */
    int64_t updates;          /* steps that really updated */
    int64_t skipped;          /* steps skipped since the run began */
    int64_t skipped_in_a_row; /* consecutive skipped steps up to now */
    float coefficient;        /* out of norm_finish: gradients are multiplied by it */
    int32_t skip;             /* out of norm_finish: 1 = this step changes nothing */
} ls_update_control;

/*
 * sum[0] = sum x^2 in fp64: 4096-element blocks, 16 virtual lanes within a block (lane i sums the
 * elements = i mod 16 in order, lanes then added in order), blocks added in order.
 */
typedef struct ls_sumsq_args {
    double *sum;      /* [1] out */
    double *partials; /* [ceil(n / 4096)] scratch */
    const void *x;    /* [n] dtype */
    int64_t n;
    ls_dtype dtype;
} ls_sumsq_args;

/*
 * y = x, or y += x if accumulate, in fp32; and in the same pass the sum of squares of what y then
 * is, as sumsq has it.  For a gradient that comes in parts: 12 bytes per element of an fp32 part,
 * 10 of a bf16 one.
 */
typedef struct ls_add_sumsq_args {
    float *y;         /* [n] */
    double *sum;      /* [1] out; NULL: not wanted */
    double *partials; /* [ceil(n / 4096)] scratch; NULL without sum */
    const void *x;    /* [n] x_dtype */
    int64_t n;
    int32_t accumulate;
    ls_dtype x_dtype;
} ls_add_sumsq_args;

/*
 * grad_norm = sqrt(sum of sums, in order).  Not finite or beyond 2^62: skip = 1, counters move,
 * nothing else does.  Otherwise coefficient = clip_norm / grad_norm if clip_norm > 0 and
 * grad_norm > clip_norm, else 1; the beta powers and updates advance.
 */
typedef struct ls_norm_finish_args {
    ls_update_control *control; /* [1] read and written */
    const double *sums;         /* [n] */
    int64_t n;
    float clip_norm; /* 0: off */
    float beta1, beta2;
} ls_norm_finish_args;

/* How m and v are stored: kernels/cpu/adamw_moments.h.  All but F32 lose something. */
typedef enum ls_moments {
    LS_MOMENTS_F32 = 0,
    LS_MOMENTS_BF16,
    LS_MOMENTS_Q8, /* blocks of LS_Q8_BLOCK bytes, a scale for each */
    LS_MOMENTS_Q4, /* blocks of LS_Q4_BLOCK elements in half as many bytes, a scale for each */
    LS_MOMENTS_COUNT
} ls_moments;

enum { LS_Q8_BLOCK = 256, LS_Q4_BLOCK = 128 };

/* Scales that m (or v) of n elements needs: one for each block, the last of which may be short. */
int64_t ls_moments_scales(ls_moments moments, int64_t n);

/* The elements of the tensor that holds m (or v) of n elements, and their type: blocks are whole.
 */
int64_t ls_moments_elements(ls_moments moments, int64_t n);
ls_dtype ls_moments_dtype(ls_moments moments);

/*
 * AdamW (Loshchilov, Hutter 2019), decoupled decay, all in fp32, each line rounded once for every
 * operation but those in fma():
 *   g *= coefficient;  w = fma(-lr lr_scale weight_decay, w, w);
 *   m = fma(1 - beta1, g - m, m);  v = fma((1 - beta2) g, g, beta2 v);  below 2^-126: 0
 *   w = fma(-lr lr_scale / (1 - beta1^t),  m / fma(sqrt(v), 1 / sqrt(1 - beta2^t), eps),  w)
 * control->skip leaves every byte unchanged.
 */
typedef struct ls_adamw_args {
    void *w;        /* [n] dtype: BF16 = the upper half of a split master, F32 = the master */
    int16_t *lo;    /* [n] the lower half; NULL if dtype is F32 */
    void *m;        /* [ls_moments_elements()] of ls_moments_dtype() */
    void *v;        /* the same */
    float *m_scale; /* [ls_moments_scales()]; NULL if there are none */
    float *v_scale; /* the same */
    const void *g;  /* [n] g_dtype */
    const ls_update_control *control; /* [1] */
    int64_t n;
    int64_t stream; /* of random numbers, for stochastic rounding: one of its own for each tensor */
    float beta1, beta2, eps, weight_decay, lr_scale;
    int32_t moments; /* ls_moments */
    ls_dtype dtype, g_dtype;
} ls_adamw_args;

/* ---- the list ------------------------------------------------------------------------------ */

/* X(name): op `name` has args `ls_name_args`, CPU function `ls_cpu_name`, enum LS_OP_name. */
#define LS_OP_LIST(X)                                                                              \
    X(zero)                                                                                        \
    X(cast)                                                                                        \
    X(add)                                                                                         \
    X(embedding_forward)                                                                           \
    X(embedding_backward)                                                                          \
    X(rmsnorm_forward)                                                                             \
    X(rmsnorm_backward)                                                                            \
    X(rope)                                                                                        \
    X(matmul)                                                                                      \
    X(bias_forward)                                                                                \
    X(bias_backward)                                                                               \
    X(attention_forward)                                                                           \
    X(attention_delta)                                                                             \
    X(attention_backward)                                                                          \
    X(swiglu_forward)                                                                              \
    X(swiglu_backward)                                                                             \
    X(cross_entropy)                                                                               \
    X(sumsq)                                                                                       \
    X(add_sumsq)                                                                                   \
    X(norm_finish)                                                                                 \
    X(adamw)

typedef enum ls_op {
#define LS_OP_ENUM(name) LS_OP_##name,
    LS_OP_LIST(LS_OP_ENUM)
#undef LS_OP_ENUM
        LS_OP_COUNT
} ls_op;

/* The args of any op; the op says which member. */
typedef union ls_op_args {
#define LS_OP_MEMBER(name) ls_##name##_args name;
    LS_OP_LIST(LS_OP_MEMBER)
#undef LS_OP_MEMBER
} ls_op_args;

/* ---- what the planner knows of an op ------------------------------------------------------- */

#define LS_OPERANDS_MAX 12

typedef enum ls_access {
    LS_ACCESS_NONE = 0,
    LS_ACCESS_READ = 1,
    LS_ACCESS_WRITE = 2,
    LS_ACCESS_READ_WRITE = 3,
} ls_access;

typedef struct ls_operand_info {
    const char *name;    /* the field's name in the args struct */
    uint16_t offset;     /* where its pointer lies in ls_op_args */
    uint8_t access;      /* ls_access when the flag below is clear or absent */
    int16_t flag_offset; /* an int32_t of the args: nonzero = READ_WRITE; -1: no such flag */
} ls_operand_info;

typedef struct ls_op_info {
    const char *name;
    int n_operands;
    ls_operand_info operands[LS_OPERANDS_MAX];
} ls_op_info;

/* The description of op; never NULL for a valid op. */
const ls_op_info *ls_op_describe(ls_op op);

typedef enum ls_field_type {
    LS_FIELD_I64 = 0, /* int64_t */
    LS_FIELD_I32,     /* int32_t */
    LS_FIELD_F32,     /* float */
    LS_FIELD_DTYPE,   /* ls_dtype */
} ls_field_type;

/* A scalar of an args struct.  Operands and fields together are the whole struct. */
typedef struct ls_op_field {
    const char *name;
    uint16_t offset; /* in ls_op_args */
    uint8_t type;    /* ls_field_type */
} ls_op_field;

/* The scalars of op's args in their order there; n is how many. */
const ls_op_field *ls_op_fields(ls_op op, int *n);

/* How op with these args touches operand slot. */
ls_access ls_op_access(ls_op op, const ls_op_args *args, int slot);

/* Pairs of the causal triangle where queries [q, q + N) meet keys [k, k + M); q may be negative. */
double ls_causal_pairs(int64_t q, int64_t N, int64_t k, int64_t M);

/* FLOPs of one call: 2 per multiply-add, attention by the pairs its mask lets through as
 * counted by the caller (pass pairs <= 0 to count the causal triangle of the blocks). */
double ls_op_flops(ls_op op, const ls_op_args *args, double pairs);

/* ---- backends ------------------------------------------------------------------------------ */

/* The operations of one backend.  stream is the backend's own; NULL on the CPU. */
typedef struct ls_ops {
    const char *name;
#define LS_OP_POINTER(name) ls_status (*name)(void *stream, const ls_##name##_args *args);
    LS_OP_LIST(LS_OP_POINTER)
#undef LS_OP_POINTER
    /* Bytes that args->workspace must hold; 0 for most ops.  Depends on shapes only. */
    uint64_t (*workspace_bytes)(ls_op op, const ls_op_args *args);
    /* The kernel that will run for op on this machine: "onednn amx-bf16", "plain", ...  K: the
     * width of a head where op is attention; 0: a usual one. */
    const char *(*kernel_name)(ls_op op, ls_dtype dtype, int64_t K);
    /* Those that calls of op have gone to since this was last asked, where each call finds its own:
     * "cudnn+mma"; "" if kernel_name tells it all, or there was no call.  NULL: always "". */
    const char *(*kernels_ran)(ls_op op);
    /* A vendor's attention: its version and what of it is used, or why there is none; lives until
     * the next call.  NULL: the backend has no use for one. */
    const char *(*vendor_note)(void);
} ls_ops;

/* Call the backend's function for op. */
ls_status ls_ops_run(const ls_ops *ops, ls_op op, void *stream, const ls_op_args *args);

extern const ls_ops ls_ops_cpu;

/* Implementations: kernels/cpu/OP.c.  Sizes are asserted; the status reports library failures. */
#define LS_OP_PROTOTYPE(name) ls_status ls_cpu_##name(void *stream, const ls_##name##_args *args);
LS_OP_LIST(LS_OP_PROTOTYPE)
#undef LS_OP_PROTOTYPE

/* Set how many OpenMP threads ops started from the calling thread use; 0 = the default. */
void ls_cpu_threads_set(int n_threads);

/* Threads that an op started from the calling thread will use; 1 without OpenMP. */
int ls_cpu_threads(void);

uint64_t ls_cpu_attention_workspace_bytes(ls_op op, const ls_op_args *args);
uint64_t ls_cpu_matmul_workspace_bytes(const ls_matmul_args *args);
const char *ls_cpu_attention_kernel_name(ls_dtype dtype, int64_t K);
const char *ls_cpu_matmul_kernel_name(ls_dtype dtype);
const char *ls_cpu_adamw_kernel_name(void);

/* The loads and stores of ls_cpu_adamw() by the same threads without its arithmetic: what its speed
 * is compared with.  Leaves nonsense in w, lo, m and v; needs fp32 moments. */
void ls_cpu_adamw_traffic(const ls_adamw_args *args);

#ifdef __cplusplus
}
#endif

#endif
