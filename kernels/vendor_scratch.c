/*
 * vendor_scratch.c - what of attention a vendor's library can be asked for, and the scratch it then
 * needs.
 *
 * cuDNN knows no documents, and masks by the diagonal of its last row and key alone.  So it takes
 * blocks whose keys all rows may see but for causality and window, with keys up to the block's end
 * or wholly before it.  Lengths are multiples of 128: a shorter last tile of keys has given NaN in
 * dq where log-sum-exps are below -88, in every version looked at.
 */
#include "vendor_scratch.h"

#include <assert.h>
#include <string.h>

enum { LENGTH_MULTIPLE = 128 };

/* ---- shapes --------------------------------------------------------------------------------- */

/* What forward and backward have in common. */
typedef struct block {
    int64_t N, M, H, G, K, q_start, k_start, window;
    float scale;
    bool backward;
    ls_dtype dtype;
} block;

#define BLOCK_OF(args, is_backward)                                                                \
    {                                                                                              \
        (args)->N, (args)->M, (args)->H, (args)->G, (args)->K, (args)->q_start, (args)->k_start,   \
            (args)->window, (args)->scale, (is_backward), (args)->dtype                            \
    }

static block block_of(ls_op op, const ls_op_args *args)
{
    if (op == LS_OP_attention_backward) return (block)BLOCK_OF(&args->attention_backward, true);
    assert(op == LS_OP_attention_forward);
    return (block)BLOCK_OF(&args->attention_forward, false);
}

/*
 * The shape that cuDNN is to be asked for: keys behind the last row are left out.  False: its masks
 * can not say what this block's is.
 */
static bool mask_of(const block *b, ls_cudnn_shape *shape)
{
    const int64_t seen =
        b->q_start + b->N - b->k_start; /* keys from k_start to the last row's own */
    const bool causal = b->M >= seen;
    const bool windowed = b->window > 0 && b->window < seen;

    memset(shape, 0, sizeof *shape);
    *shape = (ls_cudnn_shape){.N = b->N,
                              .M = causal ? seen : b->M,
                              .H = b->H,
                              .G = b->G,
                              .K = b->K,
                              .window = windowed ? b->window : 0,
                              .scale = b->scale,
                              .causal = causal,
                              .backward = b->backward};
    if (b->N == 0 || b->q_start < b->k_start) return false; /* rows that see nothing */
    if (causal) return true;
    return !windowed && b->k_start + b->M <= b->q_start + 1;
}

bool ls_vendor_shape_find(ls_op op, const ls_op_args *args, ls_cudnn_shape *shape)
{
    const block b = block_of(op, args);

    if (b.dtype != LS_DTYPE_BF16 || (b.K != 64 && b.K != 128)) return false;
    if (!mask_of(&b, shape)) return false;
    return shape->N % LENGTH_MULTIPLE == 0 && shape->M % LENGTH_MULTIPLE == 0;
}

/* ---- scratch -------------------------------------------------------------------------------- */

static uint64_t times(int64_t a, int64_t b, int64_t c, uint64_t bytes)
{
    return (uint64_t)a * (uint64_t)b * (uint64_t)c * bytes;
}

uint64_t ls_cudnn_workspace_most(const ls_cudnn_shape *s)
{
    if (!s->backward) return LS_CUDNN_SLACK_BYTES;
    const uint64_t heads = s->G < s->H ? 2 * times(s->M, s->H, s->K, sizeof(uint16_t)) : 0;
    return times(s->N, s->H, s->K, sizeof(float)) + times(s->N, s->H, 1, sizeof(float)) + heads +
           LS_CUDNN_SLACK_BYTES;
}

static uint64_t add_part(ls_vendor_scratch *s, uint64_t bytes)
{
    const uint64_t at = s->bytes;
    s->bytes +=
        (bytes + LS_VENDOR_SCRATCH_ALIGN - 1) / LS_VENDOR_SCRATCH_ALIGN * LS_VENDOR_SCRATCH_ALIGN;
    return at;
}

ls_vendor_scratch ls_vendor_scratch_lay_out(const ls_cudnn_shape *shape)
{
    const uint64_t queries = times(shape->N, shape->H, shape->K, sizeof(uint16_t));
    const uint64_t keys = times(shape->M, shape->G, shape->K, sizeof(uint16_t));
    ls_vendor_scratch s = {.bytes = 0};

    s.lse = add_part(&s, times(shape->N, shape->H, 1, sizeof(float)));
    s.o = add_part(&s, queries);
    if (shape->backward) {
        s.dq = add_part(&s, queries);
        s.dk = add_part(&s, keys);
        s.dv = add_part(&s, keys);
    }
    s.library = add_part(&s, ls_cudnn_workspace_most(shape));
    return s;
}

uint64_t ls_vendor_scratch_bytes(ls_op op, const ls_op_args *args)
{
    ls_cudnn_shape shape;

    if (!ls_vendor_shape_find(op, args, &shape)) return 0;
    return ls_vendor_scratch_lay_out(&shape).bytes + LS_VENDOR_SCRATCH_ALIGN;
}
