/* decoder_emit.c - one call each: the shapes of the decoder's ops, written down once. */
#include <assert.h>
#include <stdio.h>

#include "decoder_builder.h"

void cut_tensors_by(builder *b, int64_t tile_rows)
{
    b->tile_rows = tile_rows;
}

int32_t add_tensor(builder *b, ls_role role, int32_t layer, ls_dtype dtype, int64_t rows,
                   int64_t columns, const char *name)
{
    ls_tensor t = {.n_dims = columns > 0 ? 2 : 1,
                   .dims = {rows, columns},
                   .dtype = dtype,
                   .role = role,
                   .tile_rows = b->tile_rows,
                   .layer = layer,
                   .param = -1,
                   .persistent = role <= LS_ROLE_V};
    int32_t index = -1;

    if (b->status != LS_OK) return -1;
    snprintf(t.name, sizeof t.name, "%s", name);
    b->status = ls_tape_add_tensor(b->tape, &t, &index);
    return index;
}

ls_view rows_view(const builder *b, row_tensor rows, token_range range)
{
    if (b->status != LS_OK) return ls_view_none();
    return ls_view_rows(b->tape, rows.tensor, range.first - rows.base, range.n);
}

row_tensor axis_rows(const builder *b, int32_t tensor)
{
    return (row_tensor){tensor, -b->axis_first};
}

row_tensor key_rows(const builder *b, int32_t layer, int32_t tensor)
{
    return (row_tensor){tensor, b->saves[layer].qkv ? -b->axis_first : 0};
}

ls_view head_rows(const builder *b, int32_t tensor, int64_t n)
{
    return rows_view(b, (row_tensor){tensor, 0}, (token_range){0, n});
}

ls_view whole(const builder *b, int32_t tensor)
{
    if (b->status != LS_OK) return ls_view_none();
    return ls_view_whole(b->tape, tensor);
}

ls_view weight(const builder *b, int32_t param)
{
    if (b->status != LS_OK) return ls_view_none();
    return whole(b, b->decoder->params[param].weight);
}

void emit(builder *b, ls_op op, const ls_op_args *args, const ls_view *operands)
{
    ls_call call = {.kind = LS_CALL_OP,
                    .op = op,
                    .phase = b->phase,
                    .layer = b->layer,
                    .chunk = b->chunk,
                    .commit = b->phase == LS_PHASE_UPDATE,
                    .recompute = b->recompute,
                    .pairs = b->pairs,
                    .args = *args,
                    .n_operands = ls_op_describe(op)->n_operands};

    if (b->status != LS_OK) return;
    for (int i = 0; i < call.n_operands; i++) {
        call.operands[i] = operands[i];
        call.access[i] = (uint8_t)ls_op_access(op, args, i);
    }
    b->status = ls_tape_add_call(b->tape, &call);
}

void emit_host(builder *b, ls_call_kind kind, int32_t chunk, ls_access access,
               const int32_t *tensors, int n)
{
    ls_call call = {.kind = kind,
                    .phase = b->phase,
                    .layer = b->layer,
                    .chunk = chunk,
                    .commit = b->phase == LS_PHASE_UPDATE};

    for (int i = 0; i < n; i++) {
        if (tensors[i] < 0) continue;
        call.operands[call.n_operands] = whole(b, tensors[i]);
        call.access[call.n_operands++] = (uint8_t)access;
    }
    if (b->status == LS_OK) b->status = ls_tape_add_call(b->tape, &call);
}

void emit_host_rows(builder *b, ls_call_kind kind, int32_t chunk, ls_access access,
                    const int32_t *tensors, int n, int32_t whole_tensor)
{
    const token_range all = {0, b->T};
    ls_call call = {.kind = kind,
                    .phase = b->phase,
                    .layer = b->layer,
                    .chunk = chunk,
                    .commit = b->phase == LS_PHASE_UPDATE};

    for (int i = 0; i < n; i++) {
        call.operands[call.n_operands] = rows_view(b, axis_rows(b, tensors[i]), all);
        call.access[call.n_operands++] = (uint8_t)access;
    }
    if (whole_tensor >= 0) {
        call.operands[call.n_operands] = whole(b, whole_tensor);
        call.access[call.n_operands++] = (uint8_t)access;
    }
    if (b->status == LS_OK) b->status = ls_tape_add_call(b->tape, &call);
}

static int64_t elements(const builder *b, ls_view view)
{
    if (b->status != LS_OK) return 0;
    return (int64_t)(view.bytes / ls_dtype_bytes(b->tape->tensors[view.tensor].dtype));
}

void emit_zero(builder *b, ls_view y)
{
    const ls_op_args args = {.zero = {.bytes = (int64_t)y.bytes}};
    emit(b, LS_OP_zero, &args, &y);
}

void emit_add(builder *b, ls_view y, ls_view a, ls_view other)
{
    const ls_op_args args = {.add = {.n = elements(b, y), .dtype = b->o->dtype}};
    emit(b, LS_OP_add, &args, (ls_view[]){y, a, other});
}

/* Elements of a parameter that is a vector. */
static int64_t vector_length(const builder *b, int32_t param)
{
    return b->tape->tensors[b->decoder->params[param].weight].dims[0];
}

void emit_rmsnorm(builder *b, ls_view y, ls_view r, ls_view x, int32_t norm, int64_t n)
{
    if (b->status != LS_OK) return;
    const ls_op_args args = {
        .rmsnorm_forward = {
            .N = n, .D = vector_length(b, norm), .eps = b->o->shape.eps, .dtype = b->o->dtype}};
    emit(b, LS_OP_rmsnorm_forward, &args, (ls_view[]){y, r, x, weight(b, norm)});
}

void emit_rope(builder *b, ls_view y, ls_view x, token_range range, int64_t heads, bool backward)
{
    if (b->status != LS_OK) return;
    const ls_op_args args = {.rope = {.N = range.n,
                                      .heads = heads,
                                      .K = b->o->shape.K,
                                      .P = b->o->S,
                                      .inverse = backward,
                                      .y_dtype = b->tape->tensors[y.tensor].dtype,
                                      .x_dtype = b->tape->tensors[x.tensor].dtype}};
    const ls_decoder_inputs *in = &b->decoder->inputs;
    emit(b, LS_OP_rope, &args,
         (ls_view[]){y, x, whole(b, in->rope_table),
                     rows_view(b, axis_rows(b, in->positions), range)});
}

/* [out, in] of a weight matrix */
static void matrix_dims(const builder *b, int32_t param, int64_t *out, int64_t *in)
{
    const ls_tensor *t = &b->tape->tensors[b->decoder->params[param].weight];
    *out = t->dims[0];
    *in = t->dims[1];
}

static void emit_product(builder *b, ls_view y, ls_view x, int32_t param, int64_t n,
                         ls_dtype y_dtype, bool accumulate)
{
    int64_t out, in;
    if (b->status != LS_OK) return;
    matrix_dims(b, param, &out, &in);
    const ls_op_args args = {.matmul = {.M = n,
                                        .N = out,
                                        .K = in,
                                        .trans_b = 1,
                                        .accumulate = accumulate,
                                        .ab_dtype = b->o->dtype,
                                        .c_dtype = y_dtype}};
    emit(b, LS_OP_matmul, &args, (ls_view[]){y, x, weight(b, param), ls_view_none()});
}

void emit_linear(builder *b, ls_view y, ls_view x, int32_t param, int64_t n, ls_dtype y_dtype)
{
    emit_product(b, y, x, param, n, y_dtype, false);
}

/* The bias first, so that the sum is rounded once. */
void emit_projection(builder *b, ls_view y, ls_view x, int32_t param, int32_t bias, int64_t n)
{
    if (b->status != LS_OK) return;
    if (bias >= 0) {
        const ls_op_args args = {
            .bias_forward = {.N = n, .D = vector_length(b, bias), .dtype = b->o->dtype}};
        emit(b, LS_OP_bias_forward, &args, (ls_view[]){y, weight(b, bias)});
    }
    emit_product(b, y, x, param, n, b->o->dtype, bias >= 0);
}

void emit_linear_dx(builder *b, ls_view dx, ls_view dy, int32_t param, int64_t n, ls_dtype dtype,
                    bool accumulate)
{
    int64_t out, in;
    if (b->status != LS_OK) return;
    matrix_dims(b, param, &out, &in);
    const ls_op_args args = {.matmul = {.M = n,
                                        .N = in,
                                        .K = out,
                                        .accumulate = accumulate,
                                        .ab_dtype = b->o->dtype,
                                        .c_dtype = dtype}};
    emit(b, LS_OP_matmul, &args, (ls_view[]){dx, dy, weight(b, param), ls_view_none()});
}

void emit_linear_dw(builder *b, int32_t param, ls_view dy, ls_view x, int64_t n)
{
    int64_t out, in;
    if (b->status != LS_OK || b->decoder->params[param].frozen) return;
    matrix_dims(b, param, &out, &in);
    const ls_op_args args = {.matmul = {.M = out,
                                        .N = in,
                                        .K = n,
                                        .trans_a = 1,
                                        .accumulate = b->grad_written[param],
                                        .ab_dtype = b->o->dtype,
                                        .c_dtype = LS_DTYPE_F32}};
    const ls_view grad = gradient_sum(b, param);
    const bool recompute = b->recompute;

    b->recompute = false;
    emit(b, LS_OP_matmul, &args, (ls_view[]){grad, dy, x, ls_view_none()});
    b->recompute = recompute;
    b->grad_written[param] = true;
}

void emit_bias_backward(builder *b, int32_t param, ls_view dy, int64_t n)
{
    if (b->status != LS_OK || param < 0 || b->decoder->params[param].frozen) return;
    const ls_view grad = gradient_sum(b, param);
    const ls_op_args args = {.bias_backward = {.N = n,
                                               .D = vector_length(b, param),
                                               .accumulate = b->grad_written[param],
                                               .dtype = b->o->dtype}};
    emit(b, LS_OP_bias_backward, &args, (ls_view[]){grad, dy});
    b->grad_written[param] = true;
}

void emit_rmsnorm_backward(builder *b, ls_view dx, bool accumulate, int32_t norm, ls_view dy,
                           ls_view x, ls_view r, int64_t n)
{
    if (b->status != LS_OK) return;
    const ls_op_args args = {.rmsnorm_backward = {.N = n,
                                                  .D = vector_length(b, norm),
                                                  .accumulate_dx = accumulate,
                                                  .accumulate_dw = b->grad_written[norm],
                                                  .dtype = b->o->dtype}};
    const ls_param *param = &b->decoder->params[norm];
    const ls_view grad = param->frozen ? ls_view_none() : gradient_sum(b, norm);
    emit(b, LS_OP_rmsnorm_backward, &args, (ls_view[]){dx, grad, dy, x, weight(b, norm), r});
    b->grad_written[norm] = !param->frozen;
}

token_range cut_range(token_range all, int64_t first, int64_t size)
{
    const int64_t end = all.first + all.n;
    assert(first >= all.first && first < end && size > 0);
    return (token_range){first, end - first < size ? end - first : size};
}

token_range visible_keys(const builder *b, token_range block)
{
    const int64_t S = b->o->S, window = b->o->window, size = b->o->key_block;
    const int64_t end = block.first + block.n;
    int64_t first = block.first / S * S;

    if (window > 0 && first < block.first - window + 1) first = block.first - window + 1;
    if (size > 0) first = first / size * size;
    return (token_range){first, end - first};
}

/* Pairs of queries and keys of one sequence; window 0: none. */
static double count_sequence_pairs(token_range queries, token_range keys, int64_t window)
{
    double pairs = ls_causal_pairs(queries.first, queries.n, keys.first, keys.n);
    if (window > 0) pairs -= ls_causal_pairs(queries.first - window, queries.n, keys.first, keys.n);
    return pairs;
}

double count_pairs(const builder *b, token_range block, token_range part)
{
    const int64_t S = b->o->S, end = block.first + block.n, part_end = part.first + part.n;
    double pairs = 0;

    for (int64_t row = block.first; row < end; row = (row / S + 1) * S) {
        const int64_t start = row / S * S, stop = start + S;
        const int64_t first = part.first > start ? part.first : start;
        const int64_t last = part_end < stop ? part_end : stop;
        if (first >= last) continue;
        pairs += count_sequence_pairs((token_range){row, (stop < end ? stop : end) - row},
                                      (token_range){first, last - first}, b->o->window);
    }
    return pairs;
}
