/*
 * decoder_builder.h - private to the decoder's files: the tape under construction.
 *
 * Emitters append one call each.  The first failure sticks in builder->status and later emitters
 * do nothing, so the code that lists calls stays a list.
 */
#ifndef LS_DECODER_BUILDER_H
#define LS_DECODER_BUILDER_H

#include <math.h>

#include "decoder.h"

/* Rows of a tensor that holds rows [base, base + dims[0]) of the token axis. */
typedef struct row_tensor {
    int32_t tensor;
    int64_t base;
} row_tensor;

/* A range of the token axis. */
typedef struct token_range {
    int64_t first, n;
} token_range;

/* Indices into params of one layer; -1: it has no such bias or norm. */
typedef struct layer_params {
    int32_t wq, wk, wv, wo, bq, bk, bv, bo, q_norm, k_norm, gate, up, down, norm1, norm2;
} layer_params;

typedef struct builder {
    ls_decoder *decoder;
    ls_tape *tape;
    const ls_decoder_options *o;
    int64_t T; /* rows of a micro-batch; blocks and chunks are counted within it */
    /* The token axis of what is kept of every micro-batch (layer by layer; else of one), and where
     * the micro-batch at work begins on it. */
    int64_t axis_rows, axis_first, micro_batch;
    /* Rows that chunks and blocks of keys never straddle; 0: they are not multiples of a chunk. */
    int64_t chunk_tiles, key_tiles;
    ls_status status;

    ls_phase phase; /* stamped on every call emitted */
    int32_t layer, chunk;
    bool recompute;
    double pairs; /* (query, key), of a call of attention; 0: of others */

    int64_t tile_rows;    /* stamped on every tensor added */
    layer_params *layers; /* [L] */
    int32_t embed, final_norm, head;
    bool *grad_written;   /* [n_params]: the next gradient of this parameter adds */
    ls_layer_save *saves; /* [L] */
    int32_t lowest;       /* layer that backward ends with; -1: the embedding */

    /* Activations: per layer where saved, else one shared by all. */
    int32_t *x;          /* [L + 1] layer inputs [T, D] */
    int32_t *q, *k, *v;  /* [L] q [block or T, H K], k and v [T, G K] */
    int32_t *attn, *lse; /* [L] O [block or T, H K], LSE [block or T, H] */
    int32_t o_acc;
    int32_t dx, dk, dv, dq, d_o, delta;
    int32_t h, r1, y, h2, r2, gate, up, act, proj; /* chunk rows */
    int32_t d_act, dgate, dup, dh, dqkv_q, dqkv_k, dqkv_v;
    int32_t q_raw, k_raw, rq, rk, dq_normed, dk_normed; /* with norms on the heads alone */
    int32_t loss_h, loss_r, logits, dlogits, loss_dh;
    int32_t sums, partials;
} builder;

/* ---- parameters ---- */
int32_t count_params(const ls_decoder_shape *s);
/* All of them: weights, and the gradients and states of those that train. */
void add_params(builder *b);
/* What gradients are made of, where they are not summed where they wait (decoder_gradients.c). */
void add_gradient_parts(builder *b);
/* Of gradients that wait for the update. */
ls_dtype waiting_dtype(const builder *b);
/* The lowest layer whose parameters are not all frozen; -1: the embedding's is not. */
int32_t find_lowest(const builder *b);

/* ---- tensors ---- */
/* The next add_tensor()s: no operand of them straddles multiples of so many rows; 0: any may. */
void cut_tensors_by(builder *b, int64_t tile_rows);
int32_t add_tensor(builder *b, ls_role role, int32_t layer, ls_dtype dtype, int64_t rows,
                   int64_t columns, const char *name);
/* m and v of one parameter, and where they are packed their scales; columns 0: a vector. */
void add_moments(builder *b, ls_param *param, int64_t rows, int64_t columns, const char *name);
ls_view rows_view(const builder *b, row_tensor rows, token_range range);
/* The rows of the micro-batch at work, of a tensor that has the whole axis. */
row_tensor axis_rows(const builder *b, int32_t tensor);
/* The same of keys or values, which do if they are saved. */
row_tensor key_rows(const builder *b, int32_t layer, int32_t tensor);
ls_view head_rows(const builder *b, int32_t tensor, int64_t n); /* rows [0, n) of a chunk tensor */
ls_view whole(const builder *b, int32_t tensor);
ls_view weight(const builder *b, int32_t param);

/* ---- emitters, one call each ---- */
void emit(builder *b, ls_op op, const ls_op_args *args, const ls_view *operands);
/* Host work that reads or writes whole tensors; those that are -1 do not exist. */
void emit_host(builder *b, ls_call_kind kind, int32_t chunk, ls_access access,
               const int32_t *tensors, int n);
/* The same on rows of the micro-batch at work, and one whole tensor (-1: none). */
void emit_host_rows(builder *b, ls_call_kind kind, int32_t chunk, ls_access access,
                    const int32_t *tensors, int n, int32_t whole_tensor);
void emit_zero(builder *b, ls_view y);
void emit_add(builder *b, ls_view y, ls_view a, ls_view other);
/* n rows, each as wide as the norm's weight: of a model, or of one head */
void emit_rmsnorm(builder *b, ls_view y, ls_view r, ls_view x, int32_t norm, int64_t n);
void emit_rope(builder *b, ls_view y, ls_view x, token_range range, int64_t heads, bool backward);
/* y [n, out] = x [n, in] w^T, w [out, in] */
void emit_linear(builder *b, ls_view y, ls_view x, int32_t param, int64_t n, ls_dtype y_dtype);
/* dx [n, in] = dy [n, out] w, or += if accumulate */
void emit_linear_dx(builder *b, ls_view dx, ls_view dy, int32_t param, int64_t n, ls_dtype dtype,
                    bool accumulate);
/* grad [out, in] += dy^T x; nothing for a frozen parameter, here and below */
void emit_linear_dw(builder *b, int32_t param, ls_view dy, ls_view x, int64_t n);
/* y [n, out] = x [n, in] w^T + bias, in the model's dtype; bias -1: none */
void emit_projection(builder *b, ls_view y, ls_view x, int32_t param, int32_t bias, int64_t n);
/* grad [out] += column sums of dy; nothing where there is none or it is frozen */
void emit_bias_backward(builder *b, int32_t param, ls_view dy, int64_t n);
void emit_rmsnorm_backward(builder *b, ls_view dx, bool accumulate, int32_t norm, ls_view dy,
                           ls_view x, ls_view r, int64_t n);

/* Keys that a block of queries can see at most, whatever the documents: not before its first row's
 * sequence or window, from a multiple of the key block on, up to the block's end. */
token_range visible_keys(const builder *b, token_range block);
/* (query, key) pairs of a block and a part of its keys, if every sequence is one document. */
double count_pairs(const builder *b, token_range block, token_range part);

/* The fields of attention(block, part of its keys) that forward and backward must agree on. */
#define ATTENTION_FIELDS(b, block, keys, part)                                                     \
    .N = (block).n, .M = (part).n, .H = (b)->o->shape.H, .G = (b)->o->shape.G,                     \
    .K = (b)->o->shape.K, .q_start = (block).first, .k_start = (part).first,                       \
    .window = (b)->o->window, .scale = 1.0f / sqrtf((float)(b)->o->shape.K),                       \
    .accumulate = (part).first > (keys).first, .any_order = (b)->o->any_order,                     \
    .dtype = (b)->o->dtype

/* Queries or keys of a layer: their parameters, and the chunk tensors of a norm on each head. */
typedef struct head_group {
    int32_t w, bias, norm;  /* params; bias, norm -1: none */
    int32_t raw, r, turned; /* with a norm: what it reads, its factors, its output's gradient */
    int64_t n_heads;
} head_group;

head_group query_heads(const builder *b, int32_t layer);
head_group key_heads(const builder *b, int32_t layer);

/* ---- parts ---- */
void emit_embedding(builder *b);
/* Layer's output from its input: all of it, or (rebuild) the dense work alone if O is saved. */
void emit_layer(builder *b, int32_t layer, bool rebuild);
void emit_attention_inputs(builder *b, int32_t layer, token_range chunk, bool with_q, bool with_kv,
                           row_tensor q);
void emit_attention(builder *b, int32_t layer, token_range block, row_tensor q, row_tensor o,
                    row_tensor lse);
/* y, h2, gate, up, act of a chunk from x and O (the dense work after attention) */
void emit_mlp_inputs(builder *b, int32_t layer, token_range chunk, row_tensor o);
void emit_loss(builder *b, bool with_gradient);
/* A layer; before the last of a group, the inputs of the group's layers. */
void emit_layer_backward(builder *b, int32_t layer);
void emit_embedding_backward(builder *b);
/* Where backward adds the gradient of a parameter up now, and where its sum of squares goes. */
ls_view gradient_sum(const builder *b, int32_t param);
ls_view square_sum(const builder *b, int32_t param);
/* The sums of a layer are done, or (-1) those of the loss, or of the embedding: they leave. */
void emit_departures(builder *b, ls_phase phase, int32_t layer);
void emit_update(builder *b);
void emit_save(builder *b);

/* The nearest layer up to this one whose input is saved. */
int32_t group_start(const builder *b, int32_t layer);

/* Where q, O and LSE of a block of layer live. */
row_tensor q_rows(const builder *b, int32_t layer, token_range block);
row_tensor o_rows(const builder *b, int32_t layer, token_range block);
row_tensor lse_rows(const builder *b, int32_t layer, token_range block);

/* The part of whole that starts at first: at most size rows. */
token_range cut_range(token_range all, int64_t first, int64_t size);

#endif
