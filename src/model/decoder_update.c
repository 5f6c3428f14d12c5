/*
 * decoder_update.c - the optimizer's state, the end of a step, and what is saved.
 *
 * Norms of all gradients first, because clipping needs their sum; then one update for each
 * parameter in the order in which the next forward reads them.  Saving follows the same order.
 */
#include <stdio.h>
#include <stdlib.h>

#include "decoder_builder.h"

void add_moments(builder *b, ls_param *param, int64_t rows, int64_t columns, const char *name)
{
    const struct {
        ls_role role;
        const char *suffix;
        int32_t *tensor;
    } states[] = {{LS_ROLE_M, "m", &param->m},
                  {LS_ROLE_V, "v", &param->v},
                  {LS_ROLE_M, "m_scale", &param->m_scale},
                  {LS_ROLE_V, "v_scale", &param->v_scale}};
    const int64_t n = columns > 0 ? rows * columns : rows;
    const int64_t scales = ls_moments_scales(param->moments, n);

    for (int i = 0; i < (scales > 0 ? 4 : 2); i++) {
        char state[LS_TENSOR_NAME_BYTES];
        snprintf(state, sizeof state, "%s.%s", name, states[i].suffix);
        if (scales > 0) {
            rows = i < 2 ? ls_moments_elements(param->moments, n) : scales;
            columns = 0;
        }
        *states[i].tensor = add_tensor(b, states[i].role, param->layer,
                                       i < 2 ? ls_moments_dtype(param->moments) : LS_DTYPE_F32,
                                       rows, columns, state);
    }
}

static ls_view whole_or_none(builder *b, int32_t tensor)
{
    return tensor >= 0 ? whole(b, tensor) : ls_view_none();
}

static void emit_adamw(builder *b, const ls_param *param)
{
    const ls_decoder_options *o = b->o;
    const ls_tensor *t = &b->tape->tensors[param->weight];
    const ls_op_args args = {.adamw = {.n = ls_tensor_elements(t),
                                       .beta1 = o->beta1,
                                       .beta2 = o->beta2,
                                       .eps = o->adam_eps,
                                       .weight_decay = param->decay ? o->weight_decay : 0.0f,
                                       .lr_scale = param->lr_scale,
                                       .stream = param - b->decoder->params,
                                       .moments = (int32_t)param->moments,
                                       .dtype = o->dtype,
                                       .g_dtype = b->tape->tensors[param->grad].dtype}};
    emit(b, LS_OP_adamw, &args,
         (ls_view[]){whole(b, param->weight), whole_or_none(b, param->lo), whole(b, param->m),
                     whole(b, param->v), whole_or_none(b, param->m_scale),
                     whole_or_none(b, param->v_scale), whole(b, param->grad),
                     whole(b, b->decoder->inputs.control)});
}

/* In the order in which backward gives them, so that only the last waits for its end; the sums are
 * added in the order of parameters all the same.  Those made of arrivals have theirs. */
static int64_t emit_square_sums(builder *b)
{
    const ls_decoder *d = b->decoder;
    int64_t n_sums = 0;

    b->phase = LS_PHASE_NORM;
    for (int32_t i = d->n_params - 1; i >= 0; i--) {
        const ls_param *param = &d->params[i];
        if (param->frozen) continue;
        n_sums++;
        if (param->arrival >= 0) continue;
        const ls_tensor *grad = &b->tape->tensors[param->grad];
        const ls_op_args args = {.sumsq = {.n = ls_tensor_elements(grad), .dtype = grad->dtype}};
        emit(b, LS_OP_sumsq, &args,
             (ls_view[]){square_sum(b, i), whole(b, b->partials), whole(b, param->grad)});
    }
    return n_sums;
}

void emit_update(builder *b)
{
    const ls_decoder *d = b->decoder;

    if (b->status != LS_OK) return;
    const int64_t n_sums = emit_square_sums(b);
    b->phase = LS_PHASE_UPDATE;
    emit_host(b, LS_CALL_SCHEDULE, -1, LS_ACCESS_READ_WRITE, &d->inputs.control, 1);
    const ls_op_args args = {
        .norm_finish = {
            .n = n_sums, .clip_norm = b->o->clip_norm, .beta1 = b->o->beta1, .beta2 = b->o->beta2}};
    emit(b, LS_OP_norm_finish, &args,
         (ls_view[]){whole(b, d->inputs.control), head_rows(b, b->sums, n_sums)});
    for (int32_t i = 0; i < d->n_params; i++) {
        b->layer = d->params[i].layer;
        if (!d->params[i].frozen) emit_adamw(b, &d->params[i]);
    }
    b->layer = -1;
    emit_host(b, LS_CALL_REPORT, -1, LS_ACCESS_READ, &d->inputs.control, 1);
}

/* Append the states of params [first, end) that are of this kind. */
static int64_t list_states(const ls_decoder *d, int32_t first, int32_t end, bool lo,
                           int32_t *tensors, int64_t n)
{
    for (int32_t i = first; i < end; i++) {
        const ls_param *p = &d->params[i];
        const int32_t wide[] = {p->m, p->v, p->m_scale, p->v_scale};
        if (lo && p->lo >= 0) tensors[n++] = p->lo;
        for (int s = 0; s < 4 && !lo; s++)
            if (wide[s] >= 0) tensors[n++] = wide[s];
    }
    return n;
}

int64_t ls_decoder_save_order(const ls_decoder *d, int32_t *tensors)
{
    int64_t n = 0;

    for (int32_t first = 0, end; first < d->n_params; first = end) {
        for (end = first; end < d->n_params && d->params[end].layer == d->params[first].layer;)
            tensors[n++] = d->params[end++].weight;
        n = list_states(d, first, end, false, tensors, n);
        n = list_states(d, first, end, true, tensors, n);
    }
    return n;
}

void emit_save(builder *b)
{
    const ls_decoder *d = b->decoder;
    int32_t *tensors;

    if (b->status != LS_OK) return;
    tensors = malloc(LS_DECODER_SAVED_MAX * (size_t)d->n_params * sizeof *tensors);
    if (tensors == NULL) {
        b->status = LS_FAIL(LS_ERR_NO_MEMORY, "the list of tensors to save");
        return;
    }
    b->phase = LS_PHASE_SAVE;
    emit_host(b, LS_CALL_SAVE_BEGIN, -1, LS_ACCESS_READ, &d->inputs.control, 1);
    const int64_t n = ls_decoder_save_order(d, tensors);
    for (int64_t i = 0; i < n; i++) {
        b->layer = b->tape->tensors[tensors[i]].layer;
        emit_host(b, LS_CALL_SAVE, tensors[i], LS_ACCESS_READ, &tensors[i], 1);
    }
    b->layer = -1;
    emit_host(b, LS_CALL_SAVE_END, -1, LS_ACCESS_NONE, NULL, 0);
    free(tensors);
}
