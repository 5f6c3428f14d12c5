/*
 * decoder_backward.c - gradients of the layers.
 *
 * dx [T, D] enters as the gradient of the layer's output and leaves as that of its input.  Layer l:
 *   the inputs of its group's layers, if it is the last of a group (unless saved)
 *   keys and values of the whole layer from x (unless saved)
 *   for each query block, LAST first:
 *     q, attention forward of the block (unless saved)
 *     each chunk   recompute the MLP from x and O; its gradients; d_o = dy Wo; dx = dy
 *     attention    backward of the block against keys 0 .. end of block, adding to dk, dv
 *     each chunk   rope back, norms of heads back; dh = dq Wq + dk Wk + dv Wv; weight gradients; dx
 * += norm'(dh) Only blocks >= b touch dk, dv of block b, so they are final when block b reaches its
 * last stage. Sums over several paths (dh) and over tokens (weight gradients, dq, dk, dv) are fp32.
 */
#include "decoder_builder.h"

static void emit_swiglu_backward(builder *b, int64_t n)
{
    const ls_op_args args = {.swiglu_backward = {.n = n * b->o->shape.F, .dtype = b->o->dtype}};
    emit(b, LS_OP_swiglu_backward, &args,
         (ls_view[]){head_rows(b, b->dgate, n), head_rows(b, b->dup, n), head_rows(b, b->d_act, n),
                     head_rows(b, b->gate, n), head_rows(b, b->up, n)});
}

/* From dx = d(layer output) of the chunk to dx = d(attention residual), d_o and delta. */
static void emit_mlp_backward(builder *b, int32_t layer, token_range chunk, token_range block,
                              row_tensor o)
{
    const layer_params *p = &b->layers[layer];
    const ls_decoder_shape *s = &b->o->shape;
    const int64_t n = chunk.n;
    const ls_view dx = rows_view(b, axis_rows(b, b->dx), chunk);
    const ls_view act = head_rows(b, b->act, n), h2 = head_rows(b, b->h2, n);
    const ls_view d_act = head_rows(b, b->d_act, n), dh = head_rows(b, b->dh, n);
    const ls_view dgate = head_rows(b, b->dgate, n), dup = head_rows(b, b->dup, n);
    const ls_view d_o = rows_view(b, (row_tensor){b->d_o, block.first}, chunk);
    const ls_view o_chunk = rows_view(b, o, chunk);

    b->recompute = true;
    emit_mlp_inputs(b, layer, chunk, o);
    b->recompute = false;

    emit_linear_dx(b, d_act, dx, p->down, n, b->o->dtype, false);
    emit_linear_dw(b, p->down, dx, act, n);
    emit_swiglu_backward(b, n);
    emit_linear_dx(b, dh, dgate, p->gate, n, LS_DTYPE_F32, false);
    emit_linear_dx(b, dh, dup, p->up, n, LS_DTYPE_F32, true);
    emit_linear_dw(b, p->gate, dgate, h2, n);
    emit_linear_dw(b, p->up, dup, h2, n);
    emit_rmsnorm_backward(b, dx, true, p->norm2, dh, head_rows(b, b->y, n), head_rows(b, b->r2, n),
                          n);

    emit_linear_dx(b, d_o, dx, p->wo, n, b->o->dtype, false);
    emit_linear_dw(b, p->wo, dx, o_chunk, n);
    emit_bias_backward(b, p->bo, dx, n);
    const ls_op_args args = {
        .attention_delta = {.N = n, .H = s->H, .K = s->K, .dtype = b->o->dtype}};
    emit(b, LS_OP_attention_delta, &args,
         (ls_view[]){rows_view(b, (row_tensor){b->delta, block.first}, chunk), d_o, o_chunk});
}

/* Blocks of queries come last to first: the keys that the one before this did not see. */
static int64_t seen_before(const builder *b, token_range block)
{
    const int64_t end = block.first + block.n;
    if (end == b->T) return end;
    const int64_t first =
        visible_keys(b, cut_range((token_range){0, b->T}, end, b->o->query_block)).first;
    return first < end ? first : end;
}

static void emit_zero_gradients(builder *b, token_range part, int64_t stop)
{
    const int64_t end = part.first + part.n < stop ? part.first + part.n : stop;
    const token_range keys = {part.first, end - part.first};

    if (keys.n <= 0) return;
    emit_zero(b, rows_view(b, (row_tensor){b->dk, 0}, keys));
    emit_zero(b, rows_view(b, (row_tensor){b->dv, 0}, keys));
}

static void emit_attention_backward(builder *b, int32_t layer, token_range block)
{
    const token_range keys = visible_keys(b, block);
    const int64_t size = b->o->key_block > 0 ? b->o->key_block : keys.n,
                  end = block.first + block.n;
    const int64_t seen = seen_before(b, block);

    if (b->status != LS_OK) return;
    for (int64_t first = keys.first; first < end; first += size) {
        const token_range part = cut_range(keys, first, size);
        emit_zero_gradients(b, part, seen);
        const ls_op_args args = {.attention_backward = {ATTENTION_FIELDS(b, block, keys, part)}};
        b->pairs = count_pairs(b, block, part);
        emit(b, LS_OP_attention_backward, &args,
             (ls_view[]){head_rows(b, b->dq, block.n), rows_view(b, (row_tensor){b->dk, 0}, part),
                         rows_view(b, (row_tensor){b->dv, 0}, part),
                         rows_view(b, q_rows(b, layer, block), block),
                         rows_view(b, key_rows(b, layer, b->k[layer]), part),
                         rows_view(b, key_rows(b, layer, b->v[layer]), part),
                         rows_view(b, (row_tensor){b->d_o, block.first}, block),
                         rows_view(b, lse_rows(b, layer, block), block),
                         rows_view(b, (row_tensor){b->delta, block.first}, block),
                         rows_view(b, axis_rows(b, b->decoder->inputs.doc_start), block),
                         ls_view_none()});
        b->pairs = 0;
    }
}

/* d_rows = gradient of a projection's output, from d_turned, that of what attention read. */
static void emit_heads_backward(builder *b, ls_view d_rows, ls_view d_turned, token_range chunk,
                                const head_group *a)
{
    const int64_t n = chunk.n;

    if (a->norm < 0) {
        emit_rope(b, d_rows, d_turned, chunk, a->n_heads, true);
        return;
    }
    const ls_view dy = head_rows(b, a->turned, n), raw = head_rows(b, a->raw, n);
    const ls_view r = head_rows(b, a->r, n);

    b->recompute = true;
    emit_projection(b, raw, head_rows(b, b->h, n), a->w, a->bias, n);
    emit_rmsnorm(b, d_rows, r, raw, a->norm, n * a->n_heads); /* for r: d_rows is written anew */
    b->recompute = false;
    emit_rope(b, dy, d_turned, chunk, a->n_heads, true);
    emit_rmsnorm_backward(b, d_rows, false, a->norm, dy, raw, r, n * a->n_heads);
}

/* dq, dk, dv of the chunk are final: through rope, the projections and the norm into dx. */
static void emit_qkv_backward(builder *b, int32_t layer, token_range chunk, token_range block)
{
    const layer_params *p = &b->layers[layer];
    const ls_decoder_shape *s = &b->o->shape;
    const int64_t n = chunk.n;
    const ls_view x = rows_view(b, axis_rows(b, b->x[layer]), chunk);
    const ls_view h = head_rows(b, b->h, n), r1 = head_rows(b, b->r1, n);
    const ls_view dq = head_rows(b, b->dqkv_q, n), dk = head_rows(b, b->dqkv_k, n);
    const ls_view dv = head_rows(b, b->dqkv_v, n), dh = head_rows(b, b->dh, n);
    const head_group queries = query_heads(b, layer), keys = key_heads(b, layer);

    b->recompute = true;
    emit_rmsnorm(b, h, r1, x, p->norm1, n);
    b->recompute = false;
    emit_heads_backward(b, dq, rows_view(b, (row_tensor){b->dq, block.first}, chunk), chunk,
                        &queries);
    emit_heads_backward(b, dk, rows_view(b, (row_tensor){b->dk, 0}, chunk), chunk, &keys);
    const ls_op_args args = {
        .cast = {.n = n * s->G * s->K, .y_dtype = b->o->dtype, .x_dtype = LS_DTYPE_F32}};
    emit(b, LS_OP_cast, &args, (ls_view[]){dv, rows_view(b, (row_tensor){b->dv, 0}, chunk)});

    emit_linear_dx(b, dh, dq, p->wq, n, LS_DTYPE_F32, false);
    emit_linear_dx(b, dh, dk, p->wk, n, LS_DTYPE_F32, true);
    emit_linear_dx(b, dh, dv, p->wv, n, LS_DTYPE_F32, true);
    emit_linear_dw(b, p->wq, dq, h, n);
    emit_bias_backward(b, p->bq, dq, n);
    emit_linear_dw(b, p->wk, dk, h, n);
    emit_bias_backward(b, p->bk, dk, n);
    emit_linear_dw(b, p->wv, dv, h, n);
    emit_bias_backward(b, p->bv, dv, n);
    emit_rmsnorm_backward(b, rows_view(b, axis_rows(b, b->dx), chunk), true, p->norm1, dh, x, r1,
                          n);
}

static void emit_block_backward(builder *b, int32_t layer, token_range block)
{
    const row_tensor q = q_rows(b, layer, block), o = o_rows(b, layer, block);
    const int64_t size = b->o->chunk;

    b->recompute = true;
    for (int64_t c = block.first; c < block.first + block.n && !b->saves[layer].qkv; c += size)
        emit_attention_inputs(b, layer, cut_range(block, c, size), true, false, q);
    if (!b->saves[layer].o) emit_attention(b, layer, block, q, o, lse_rows(b, layer, block));
    b->recompute = false;

    for (int64_t c = block.first; c < block.first + block.n; c += size) {
        b->chunk = (int32_t)(c / size);
        emit_mlp_backward(b, layer, cut_range(block, c, size), block, o);
    }
    emit_attention_backward(b, layer, block);
    for (int64_t c = block.first; c < block.first + block.n; c += size) {
        b->chunk = (int32_t)(c / size);
        emit_qkv_backward(b, layer, cut_range(block, c, size), block);
    }
}

/* In the chunks of forward: a product of other rows may have other bits. */
static void emit_keys(builder *b, int32_t layer, token_range block)
{
    const int64_t size = b->o->chunk;

    for (int64_t c = block.first; c < block.first + block.n; c += size)
        emit_attention_inputs(b, layer, cut_range(block, c, size), false, true,
                              (row_tensor){-1, 0});
}

static void emit_blocks_backward(builder *b, int32_t layer)
{
    const token_range all = {0, b->T};
    const int64_t size = b->o->query_block;

    b->layer = layer;
    b->recompute = true;
    for (int64_t q0 = 0; q0 < b->T && !b->saves[layer].qkv; q0 += size)
        emit_keys(b, layer, cut_range(all, q0, size));
    b->recompute = false;
    for (int64_t q0 = (b->T - 1) / size * size; q0 >= 0; q0 -= size)
        emit_block_backward(b, layer, cut_range(all, q0, size));
    b->layer = b->chunk = -1;
}

void emit_embedding_backward(builder *b)
{
    const ls_decoder_shape *s = &b->o->shape;
    const ls_param *embed = &b->decoder->params[b->embed];

    if (b->status != LS_OK || embed->frozen) return;
    const ls_view grad = gradient_sum(b, b->embed);
    if (!b->grad_written[b->embed]) emit_zero(b, grad);
    for (int64_t c = 0; c < b->T; c += b->o->chunk) {
        const token_range chunk = cut_range((token_range){0, b->T}, c, b->o->chunk);
        const ls_op_args args = {
            .embedding_backward = {.N = chunk.n, .D = s->D, .V = s->V, .dtype = b->o->dtype}};
        emit(b, LS_OP_embedding_backward, &args,
             (ls_view[]){grad, rows_view(b, axis_rows(b, b->dx), chunk),
                         rows_view(b, axis_rows(b, b->decoder->inputs.tokens), chunk)});
    }
    b->grad_written[b->embed] = true;
}

/* The inputs of a group's layers, before the last of them runs backward. */
static void emit_rebuild(builder *b, int32_t last)
{
    for (int32_t layer = group_start(b, last); layer < last; layer++) emit_layer(b, layer, true);
}

void emit_layer_backward(builder *b, int32_t layer)
{
    const int32_t top = (int32_t)b->o->shape.L - 1;

    b->phase = LS_PHASE_BACKWARD;
    if (layer < top && b->saves[layer + 1].x) emit_rebuild(b, layer);
    emit_blocks_backward(b, layer);
}
