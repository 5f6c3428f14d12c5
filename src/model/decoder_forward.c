/*
 * decoder_forward.c - embedding, layers, loss.
 *
 * Layer l, for each query block in order:
 *   each chunk of it   h = norm(x); q, k, v = h W^T (+ bias); norm on each head of q and k if the
 *                      model has one; rope on q and k; k, v appended for the layer
 *   attention          of the block's queries against keys 0 .. end of block, by key blocks
 *   each chunk of it   y = x + O Wo^T (+ bias); h2 = norm(y); x' = y + (silu(h2 Wg^T) * h2 Wu^T)
 * Wd^T
 */
#include <stddef.h>

#include "decoder_builder.h"

row_tensor q_rows(const builder *b, int32_t layer, token_range block)
{
    return (row_tensor){b->q[layer], b->saves[layer].qkv ? -b->axis_first : block.first};
}

row_tensor o_rows(const builder *b, int32_t layer, token_range block)
{
    return (row_tensor){b->attn[layer], b->saves[layer].o ? -b->axis_first : block.first};
}

row_tensor lse_rows(const builder *b, int32_t layer, token_range block)
{
    return (row_tensor){b->lse[layer], b->saves[layer].o ? -b->axis_first : block.first};
}

/* Queries or keys of a chunk: projected, normed by head if raw is given, turned. */
static void emit_heads(builder *b, ls_view y, ls_view h, token_range chunk, const head_group *a)
{
    const bool normed = a->norm >= 0;
    const ls_view raw = normed ? head_rows(b, a->raw, chunk.n) : y;

    emit_projection(b, raw, h, a->w, a->bias, chunk.n);
    if (normed) emit_rmsnorm(b, y, head_rows(b, a->r, chunk.n), raw, a->norm, chunk.n * a->n_heads);
    emit_rope(b, y, y, chunk, a->n_heads, false);
}

head_group query_heads(const builder *b, int32_t layer)
{
    const layer_params *p = &b->layers[layer];
    return (head_group){.w = p->wq,
                        .bias = p->bq,
                        .norm = p->q_norm,
                        .raw = b->q_raw,
                        .r = b->rq,
                        .turned = b->dq_normed,
                        .n_heads = b->o->shape.H};
}

head_group key_heads(const builder *b, int32_t layer)
{
    const layer_params *p = &b->layers[layer];
    return (head_group){.w = p->wk,
                        .bias = p->bk,
                        .norm = p->k_norm,
                        .raw = b->k_raw,
                        .r = b->rk,
                        .turned = b->dk_normed,
                        .n_heads = b->o->shape.G};
}

void emit_attention_inputs(builder *b, int32_t layer, token_range chunk, bool with_q, bool with_kv,
                           row_tensor q)
{
    const layer_params *p = &b->layers[layer];
    const ls_view x = rows_view(b, axis_rows(b, b->x[layer]), chunk);
    const ls_view h = head_rows(b, b->h, chunk.n);
    const head_group queries = query_heads(b, layer), keys = key_heads(b, layer);

    emit_rmsnorm(b, h, head_rows(b, b->r1, chunk.n), x, p->norm1, chunk.n);
    if (with_q) emit_heads(b, rows_view(b, q, chunk), h, chunk, &queries);
    if (with_kv) {
        const ls_view v = rows_view(b, key_rows(b, layer, b->v[layer]), chunk);
        emit_heads(b, rows_view(b, key_rows(b, layer, b->k[layer]), chunk), h, chunk, &keys);
        emit_projection(b, v, h, p->wv, p->bv, chunk.n);
    }
}

void emit_attention(builder *b, int32_t layer, token_range block, row_tensor q, row_tensor o,
                    row_tensor lse)
{
    const token_range keys = visible_keys(b, block);
    const int64_t size = b->o->key_block > 0 ? b->o->key_block : keys.n,
                  end = block.first + block.n;

    if (b->status != LS_OK) return;
    for (int64_t first = keys.first; first < end; first += size) {
        const token_range part = cut_range(keys, first, size);
        const ls_op_args args = {.attention_forward = {ATTENTION_FIELDS(b, block, keys, part),
                                                       .last = first + part.n == end}};
        const bool one_part = part.n == keys.n;
        b->pairs = count_pairs(b, block, part);
        emit(b, LS_OP_attention_forward, &args,
             (ls_view[]){
                 rows_view(b, o, block), rows_view(b, lse, block),
                 one_part ? ls_view_none() : head_rows(b, b->o_acc, block.n),
                 rows_view(b, q, block), rows_view(b, key_rows(b, layer, b->k[layer]), part),
                 rows_view(b, key_rows(b, layer, b->v[layer]), part),
                 rows_view(b, axis_rows(b, b->decoder->inputs.doc_start), block), ls_view_none()});
    }
    b->pairs = 0;
}

void emit_mlp_inputs(builder *b, int32_t layer, token_range chunk, row_tensor o)
{
    const layer_params *p = &b->layers[layer];
    const int64_t n = chunk.n;
    const ls_view x = rows_view(b, axis_rows(b, b->x[layer]), chunk);
    const ls_view proj = head_rows(b, b->proj, n), y = head_rows(b, b->y, n);
    const ls_view h2 = head_rows(b, b->h2, n);
    const ls_view gate = head_rows(b, b->gate, n), up = head_rows(b, b->up, n);

    emit_projection(b, proj, rows_view(b, o, chunk), p->wo, p->bo, n);
    emit_add(b, y, x, proj);
    emit_rmsnorm(b, h2, head_rows(b, b->r2, n), y, p->norm2, n);
    emit_linear(b, gate, h2, p->gate, n, b->o->dtype);
    emit_linear(b, up, h2, p->up, n, b->o->dtype);

    const ls_op_args args = {.swiglu_forward = {.n = n * b->o->shape.F, .dtype = b->o->dtype}};
    emit(b, LS_OP_swiglu_forward, &args, (ls_view[]){head_rows(b, b->act, n), gate, up});
}

int32_t group_start(const builder *b, int32_t layer)
{
    while (!b->saves[layer].x) layer--;
    return layer;
}

void emit_layer(builder *b, int32_t layer, bool rebuild)
{
    const token_range all = {0, b->T};
    const bool attend = !(rebuild && b->saves[layer].o);

    b->phase = rebuild ? LS_PHASE_BACKWARD : LS_PHASE_FORWARD;
    b->layer = layer;
    b->recompute = rebuild;
    for (int64_t q0 = 0; q0 < b->T; q0 += b->o->query_block) {
        const token_range block = cut_range(all, q0, b->o->query_block);
        const row_tensor q = q_rows(b, layer, block), o = o_rows(b, layer, block);

        for (int64_t c = q0; c < q0 + block.n && attend; c += b->o->chunk) {
            b->chunk = (int32_t)(c / b->o->chunk);
            emit_attention_inputs(b, layer, cut_range(block, c, b->o->chunk), true, true, q);
        }
        if (attend) emit_attention(b, layer, block, q, o, lse_rows(b, layer, block));
        for (int64_t c = q0; c < q0 + block.n; c += b->o->chunk) {
            const token_range chunk = cut_range(block, c, b->o->chunk);
            const ls_view proj = head_rows(b, b->proj, chunk.n);

            b->chunk = (int32_t)(c / b->o->chunk);
            emit_mlp_inputs(b, layer, chunk, o);
            emit_linear(b, proj, head_rows(b, b->act, chunk.n), b->layers[layer].down, chunk.n,
                        b->o->dtype);
            emit_add(b, rows_view(b, axis_rows(b, b->x[layer + 1]), chunk),
                     head_rows(b, b->y, chunk.n), proj);
        }
    }
    b->layer = b->chunk = -1;
    b->recompute = false;
}

void emit_embedding(builder *b)
{
    const ls_decoder_shape *s = &b->o->shape;
    const token_range all = {0, b->T};

    b->phase = LS_PHASE_FORWARD;
    for (int64_t c = 0; c < b->T; c += b->o->chunk) {
        const token_range chunk = cut_range(all, c, b->o->chunk);
        const ls_op_args args = {
            .embedding_forward = {.N = chunk.n, .D = s->D, .V = s->V, .dtype = b->o->dtype}};
        emit(b, LS_OP_embedding_forward, &args,
             (ls_view[]){rows_view(b, axis_rows(b, b->x[0]), chunk), weight(b, b->embed),
                         rows_view(b, axis_rows(b, b->decoder->inputs.tokens), chunk)});
    }
}

/* Rows [first, first + loss_rows), but no more than its chunk has. */
static token_range cut_tile(const builder *b, int64_t first)
{
    const int64_t start = first / b->o->chunk * b->o->chunk;
    const token_range chunk = cut_range((token_range){0, b->T}, start, b->o->chunk);
    return cut_range(chunk, first, b->o->loss_rows);
}

void emit_loss(builder *b, bool with_gradient)
{
    const ls_decoder_shape *s = &b->o->shape;
    const ls_decoder_inputs *in = &b->decoder->inputs;
    int32_t n_tiles = 0;

    b->phase = LS_PHASE_LOSS;
    for (int64_t first = 0; first < b->T;) {
        const token_range tile = cut_tile(b, first);
        const int64_t n = tile.n;
        const ls_view x = rows_view(b, axis_rows(b, b->x[s->L]), tile);
        const ls_view h = head_rows(b, b->loss_h, n), r = head_rows(b, b->loss_r, n);
        const ls_view logits = head_rows(b, b->logits, n);
        const ls_view dlogits = with_gradient ? head_rows(b, b->dlogits, n) : ls_view_none();

        b->chunk = n_tiles++;
        first += n;
        emit_rmsnorm(b, h, r, x, b->final_norm, n);
        emit_linear(b, logits, h, b->head, n, LS_DTYPE_F32);
        const ls_op_args args = {.cross_entropy = {.N = n, .V = s->V, .dtype = b->o->dtype}};
        emit(b, LS_OP_cross_entropy, &args,
             (ls_view[]){dlogits, rows_view(b, axis_rows(b, in->nll), tile), logits,
                         rows_view(b, axis_rows(b, in->targets), tile),
                         with_gradient ? whole(b, b->decoder->inputs.loss_scale) : ls_view_none()});
        if (!with_gradient) continue;

        const ls_view dh = head_rows(b, b->loss_dh, n);
        emit_linear_dx(b, dh, dlogits, b->head, n, LS_DTYPE_F32, false);
        emit_linear_dw(b, b->head, dlogits, h, n);
        emit_rmsnorm_backward(b, rows_view(b, axis_rows(b, b->dx), tile), false, b->final_norm, dh,
                              x, r, n);
    }
    b->chunk = -1;
}
