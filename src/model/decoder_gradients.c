/*
 * decoder_gradients.c - where gradients of parameters are summed, how they leave, where they wait.
 *
 * Backward sums a gradient in fp32 over the chunks of a micro-batch, or of all micro-batches where
 * they go layer by layer.  When a layer is done, its sums leave for what waits for the update:
 *
 *   one sum a step    fp32   the sum is `grad` itself
 *                     bf16   part --rounded once--> grad
 *   several sums      fp32   the first is `grad` itself; others: arrival, and grad += arrival
 *                     bf16   part --rounded once--> arrival, and grad = or += arrival, in fp32
 *
 * The last addition gives the sum of squares too, so that no gradient is read again before the
 * update.  Parts and arrivals are shared by parameters of one kind of all layers, and by the two
 * matrices of the vocabulary; layers by turns have one of two arrivals, so that one is added while
 * the next is on its way.
 */
#include <stdio.h>

#include "decoder_builder.h"

#define ARRIVALS 2

/* ---- tensors ------------------------------------------------------------------------------- */

static bool has_parts(const builder *b)
{
    return b->o->gradients == LS_DTYPE_BF16;
}

static bool has_arrivals(const builder *b)
{
    return b->o->accumulate > 1 && !b->o->layer_major;
}

/* The nearest parameter before this one that may share its scratch: `layers` layers or a multiple
 * of it before, of the same kind; the embedding before the head.  -1: none. */
static int32_t find_sharer(const builder *b, int32_t param, int32_t layers)
{
    const ls_param *params = b->decoder->params;
    const int32_t n_layers = (int32_t)b->o->shape.L, n_outside = b->o->shape.tied ? 2 : 3;
    const int32_t stride = layers * ((b->decoder->n_params - n_outside) / n_layers);

    if (params[param].layer < 0)
        return param == b->head && b->head != b->embed && !params[b->embed].frozen ? b->embed : -1;
    for (int32_t i = param - stride; i > b->embed; i -= stride)
        if (!params[i].frozen) return i;
    return -1;
}

static int32_t add_shared(builder *b, int32_t param, ls_dtype dtype, const char *suffix)
{
    const ls_tensor *weight = &b->tape->tensors[b->decoder->params[param].weight];
    char name[LS_TENSOR_NAME_BYTES];

    if (b->status != LS_OK) return -1;
    if (snprintf(name, sizeof name, "%s.%s", weight->name, suffix) >= (int)sizeof name)
        b->status = LS_FAIL(LS_ERR_INVALID, "tensor %s: its name is too long", weight->name);
    return add_tensor(b, LS_ROLE_GRAD, -1, dtype, weight->dims[0],
                      weight->n_dims > 1 ? weight->dims[1] : 0, name);
}

void add_gradient_parts(builder *b)
{
    ls_param *params = b->decoder->params;

    for (int32_t i = 0; i < b->decoder->n_params && b->status == LS_OK; i++) {
        const int32_t like = find_sharer(b, i, 1), other = find_sharer(b, i, ARRIVALS);
        if (params[i].frozen) continue;
        if (has_parts(b))
            params[i].part =
                like >= 0 ? params[like].part : add_shared(b, i, LS_DTYPE_F32, "grad.part");
        if (has_arrivals(b))
            params[i].arrival = other >= 0 ? params[other].arrival
                                           : add_shared(b, i, b->o->gradients, "grad.arrival");
    }
}

ls_dtype waiting_dtype(const builder *b)
{
    return has_arrivals(b) ? LS_DTYPE_F32 : b->o->gradients;
}

/* ---- calls --------------------------------------------------------------------------------- */

ls_view gradient_sum(const builder *b, int32_t param)
{
    if (b->status != LS_OK) return ls_view_none();
    const ls_param *p = &b->decoder->params[param];
    if (p->part >= 0) return whole(b, p->part);
    return whole(b, p->arrival >= 0 && b->micro_batch > 0 ? p->arrival : p->grad);
}

ls_view square_sum(const builder *b, int32_t param)
{
    int64_t row = 0;

    for (int32_t i = 0; i < param; i++) row += !b->decoder->params[i].frozen;
    return rows_view(b, (row_tensor){b->sums, 0}, (token_range){row, 1});
}

static void emit_rounding(builder *b, const ls_param *param)
{
    const int32_t rounded = param->arrival >= 0 ? param->arrival : param->grad;
    const ls_op_args args = {.cast = {.n = ls_tensor_elements(&b->tape->tensors[param->part]),
                                      .y_dtype = LS_DTYPE_BF16,
                                      .x_dtype = LS_DTYPE_F32}};

    emit(b, LS_OP_cast, &args, (ls_view[]){whole(b, rounded), whole(b, param->part)});
}

/* What has arrived is added in one pass; the last one's sum of squares is that of the step. */
static void emit_arrival(builder *b, int32_t i)
{
    const ls_param *param = &b->decoder->params[i];
    const bool last = b->micro_batch == b->o->accumulate - 1;
    const ls_op_args args = {.add_sumsq = {.n = ls_tensor_elements(&b->tape->tensors[param->grad]),
                                           .accumulate = b->micro_batch > 0,
                                           .x_dtype = b->o->gradients}};

    emit(b, LS_OP_add_sumsq, &args,
         (ls_view[]){whole(b, param->grad), last ? square_sum(b, i) : ls_view_none(),
                     last ? whole(b, b->partials) : ls_view_none(), whole(b, param->arrival)});
}

static void emit_departure(builder *b, int32_t i)
{
    const ls_param *param = &b->decoder->params[i];

    if (b->status != LS_OK || param->frozen) return;
    if (param->part >= 0) emit_rounding(b, param);
    if (param->arrival >= 0 && (param->part >= 0 || b->micro_batch > 0)) emit_arrival(b, i);
    if (param->part >= 0 || param->arrival >= 0) b->grad_written[i] = false; /* begin anew */
}

void emit_departures(builder *b, ls_phase phase, int32_t layer)
{
    const ls_decoder *d = b->decoder;

    b->phase = phase;
    b->layer = layer;
    for (int32_t i = 0; i < d->n_params && layer >= 0; i++)
        if (d->params[i].layer == layer) emit_departure(b, i);
    if (layer < 0 && phase == LS_PHASE_BACKWARD) emit_departure(b, b->embed);
    if (layer < 0 && phase == LS_PHASE_LOSS) {
        emit_departure(b, b->final_norm);
        if (b->head != b->embed) emit_departure(b, b->head);
    }
    b->layer = -1;
}
