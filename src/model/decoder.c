/* decoder.c - the decoder's tensor table, and the segments of its tape. */
#include "decoder.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder_builder.h"

#define LOGITS_TILE_BYTES (64 << 20) /* of fp32 logits */
#define LOSS_ROWS_MIN     16
#define LOSS_ROWS_GPU     2048
#define SUMSQ_BLOCK       4096

int64_t ls_decoder_loss_rows(int64_t V, int64_t chunk, bool on_gpu)
{
    int64_t rows = on_gpu ? LOSS_ROWS_GPU : LOGITS_TILE_BYTES / (V * 4);
    if (rows < LOSS_ROWS_MIN) rows = LOSS_ROWS_MIN;
    return rows < chunk ? rows : chunk;
}

/* ---- activations --------------------------------------------------------------------------- */

/* One tensor for each layer that saves it, and one of fewer rows that all others share. */
static void add_per_layer(builder *b, int32_t *tensors, size_t saved_offset, ls_role role,
                          ls_dtype dtype, int64_t shared_rows, int64_t columns, const char *name)
{
    char layer_name[LS_TENSOR_NAME_BYTES];
    int32_t shared = -1;

    for (int32_t l = 0; l < b->o->shape.L; l++) {
        if (*(const bool *)((const char *)&b->saves[l] + saved_offset)) {
            snprintf(layer_name, sizeof layer_name, "%s.%d", name, l);
            tensors[l] = add_tensor(b, role, l, dtype, b->axis_rows, columns, layer_name);
            continue;
        }
        if (shared < 0) shared = add_tensor(b, role, -1, dtype, shared_rows, columns, name);
        tensors[l] = shared;
    }
}

/* An earlier layer as far behind its group's start: both inputs have one tensor. */
static int32_t find_twin(const builder *b, int32_t layer)
{
    const int32_t behind = layer - group_start(b, layer);

    for (int32_t l = layer - 1; l >= 0 && behind > 0; l--)
        if (l - group_start(b, l) == behind) return l;
    return -1;
}

/* x.l of layers that keep it and of the end; x.+j, the j-th behind such a layer, of all groups. */
static void add_layer_inputs(builder *b)
{
    const ls_decoder_options *o = b->o;
    char name[LS_TENSOR_NAME_BYTES];

    for (int32_t l = 0; l <= o->shape.L; l++) {
        const bool kept = l == o->shape.L || b->saves[l].x;
        int32_t twin = kept ? -1 : find_twin(b, l);
        if ((!o->train || l < b->lowest) && l >= 2)
            twin = l % 2; /* without a backward only a layer's input and output are kept */
        if (twin >= 0) {
            b->x[l] = b->x[twin];
            continue;
        }
        if (kept)
            snprintf(name, sizeof name, "x.%d", l);
        else
            snprintf(name, sizeof name, "x.+%d", l - group_start(b, l));
        b->x[l] = add_tensor(b, LS_ROLE_X, l, o->dtype, b->axis_rows, o->shape.D, name);
    }
}

/* Tiles of a tensor with the rows of all micro-batches, each of which must begin a tile. */
static int64_t tiles_of_axis(const builder *b, int64_t tile_rows)
{
    return tile_rows > 0 && (b->axis_rows == b->T || b->T % tile_rows == 0) ? tile_rows : 0;
}

/* What norms on the heads of q and k need beside them, of the chunk at work. */
static void add_heads(builder *b)
{
    const ls_decoder_shape *s = &b->o->shape;
    const int64_t HK = s->H * s->K, GK = s->G * s->K, C = b->o->chunk;

    b->q_raw = add_tensor(b, LS_ROLE_CHUNK, -1, b->o->dtype, C, HK, "q.raw");
    b->k_raw = add_tensor(b, LS_ROLE_CHUNK, -1, b->o->dtype, C, GK, "k.raw");
    b->rq = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, s->H, "rq");
    b->rk = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, s->G, "rk");
    if (!b->o->train) return;
    b->dq_normed = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, HK, "dq.normed");
    b->dk_normed = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, GK, "dk.normed");
}

static void add_activations(builder *b)
{
    const ls_decoder_options *o = b->o;
    const ls_decoder_shape *s = &o->shape;
    const int64_t HK = s->H * s->K, GK = s->G * s->K, block = o->query_block, C = o->chunk;
    const ls_dtype dtype = o->dtype;

    cut_tensors_by(b, tiles_of_axis(b, b->chunk_tiles));
    add_layer_inputs(b);
    cut_tensors_by(b, tiles_of_axis(b, block));
    add_per_layer(b, b->q, offsetof(ls_layer_save, qkv), LS_ROLE_KV, dtype, block, HK, "q");
    cut_tensors_by(b, tiles_of_axis(b, b->key_tiles));
    add_per_layer(b, b->k, offsetof(ls_layer_save, qkv), LS_ROLE_KV, dtype, b->T, GK, "k");
    add_per_layer(b, b->v, offsetof(ls_layer_save, qkv), LS_ROLE_KV, dtype, b->T, GK, "v");
    cut_tensors_by(b, tiles_of_axis(b, block));
    add_per_layer(b, b->attn, offsetof(ls_layer_save, o), LS_ROLE_O, dtype, block, HK, "o");
    add_per_layer(b, b->lse, offsetof(ls_layer_save, o), LS_ROLE_O, LS_DTYPE_F32, block, s->H,
                  "lse");
    cut_tensors_by(b, 0);
    if (o->key_block > 0 && o->key_block < b->T)
        b->o_acc = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, block, HK, "o_acc");

    if (s->qk_norm) add_heads(b);
    b->h = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->D, "h");
    b->r1 = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, 0, "r1");
    b->y = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->D, "y");
    b->h2 = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->D, "h2");
    b->r2 = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, 0, "r2");
    b->gate = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->F, "gate");
    b->up = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->F, "up");
    b->act = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->F, "act");
    b->proj = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->D, "proj");

    b->loss_h = add_tensor(b, LS_ROLE_LOGITS, -1, dtype, o->loss_rows, s->D, "loss.h");
    b->loss_r = add_tensor(b, LS_ROLE_LOGITS, -1, LS_DTYPE_F32, o->loss_rows, 0, "loss.r");
    b->logits = add_tensor(b, LS_ROLE_LOGITS, -1, LS_DTYPE_F32, o->loss_rows, s->V, "logits");
    b->decoder->inputs.logits = b->logits;
}

static void add_gradients(builder *b)
{
    const ls_decoder_options *o = b->o;
    const ls_decoder_shape *s = &o->shape;
    const int64_t HK = s->H * s->K, GK = s->G * s->K, block = o->query_block, C = o->chunk;
    const ls_dtype dtype = o->dtype;
    int64_t largest = 1;

    cut_tensors_by(b, tiles_of_axis(b, b->chunk_tiles));
    b->dx = add_tensor(b, LS_ROLE_X, -1, dtype, b->axis_rows, s->D, "dx");
    cut_tensors_by(b, b->key_tiles);
    b->dk = add_tensor(b, LS_ROLE_DKV, -1, LS_DTYPE_F32, b->T, GK, "dk");
    b->dv = add_tensor(b, LS_ROLE_DKV, -1, LS_DTYPE_F32, b->T, GK, "dv");
    cut_tensors_by(b, 0);
    b->dq = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, block, HK, "dq");
    b->d_o = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, block, HK, "d_o");
    b->delta = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, block, s->H, "delta");
    b->d_act = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->F, "d_act");
    b->dgate = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->F, "dgate");
    b->dup = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, s->F, "dup");
    b->dh = add_tensor(b, LS_ROLE_CHUNK, -1, LS_DTYPE_F32, C, s->D, "dh");
    b->dqkv_q = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, HK, "dq.rows");
    b->dqkv_k = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, GK, "dk.rows");
    b->dqkv_v = add_tensor(b, LS_ROLE_CHUNK, -1, dtype, C, GK, "dv.rows");
    b->dlogits = add_tensor(b, LS_ROLE_LOGITS, -1, dtype, o->loss_rows, s->V, "dlogits");
    b->loss_dh = add_tensor(b, LS_ROLE_LOGITS, -1, LS_DTYPE_F32, o->loss_rows, s->D, "loss.dh");

    for (int32_t i = 0; i < b->decoder->n_params && b->status == LS_OK; i++) {
        const ls_tensor *t = &b->tape->tensors[b->decoder->params[i].weight];
        if (ls_tensor_elements(t) > largest) largest = ls_tensor_elements(t);
    }
    b->sums = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_F64, b->decoder->n_params, 0, "sums");
    b->partials = add_tensor(b, LS_ROLE_STAGING, -1, LS_DTYPE_F64,
                             (largest + SUMSQ_BLOCK - 1) / SUMSQ_BLOCK, 0, "sums.partials");
}

static void add_inputs(builder *b)
{
    const ls_decoder_options *o = b->o;
    ls_decoder_inputs *in = &b->decoder->inputs;

    in->tokens = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_I32, b->axis_rows, 0, "tokens");
    in->targets = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_I32, b->axis_rows, 0, "targets");
    in->positions = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_I64, b->axis_rows, 0, "positions");
    in->doc_start = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_I64, b->axis_rows, 0, "doc_start");
    in->nll = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_F32, b->axis_rows, 0, "nll");
    in->rope_table = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_F32, o->S, o->shape.K, "rope.table");
    in->control = in->loss_scale = -1;
    if (o->train) {
        in->control = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_U8,
                                 (int64_t)sizeof(ls_update_control), 0, "control");
        in->loss_scale = add_tensor(b, LS_ROLE_BATCH, -1, LS_DTYPE_F32, 1, 0, "loss.scale");
    }
    if (b->status != LS_OK) return;
    b->tape->tensors[in->rope_table].persistent = true;
    if (o->train) b->tape->tensors[in->control].persistent = true;
}

/* ---- segments ------------------------------------------------------------------------------ */

static void emit_batch(builder *b, int32_t micro_batch, bool train)
{
    const ls_decoder_inputs *in = &b->decoder->inputs;
    const int32_t rows[] = {in->tokens, in->targets, in->positions, in->doc_start};

    b->phase = LS_PHASE_BATCH;
    emit_host_rows(b, LS_CALL_BATCH, micro_batch, LS_ACCESS_WRITE, rows, 4,
                   train ? in->loss_scale : -1);
}

static void emit_losses(builder *b, int32_t micro_batch, bool train)
{
    const ls_decoder_inputs *in = &b->decoder->inputs;
    const int32_t rows[] = {in->nll, in->targets, in->positions};

    emit_loss(b, train);
    emit_host_rows(b, LS_CALL_LOSS, micro_batch, LS_ACCESS_READ, rows, 3, -1);
}

static void begin_micro_batch(builder *b, int64_t micro_batch)
{
    b->axis_first = b->o->layer_major ? micro_batch * b->T : 0;
    b->micro_batch = micro_batch;
}

/* Micro-batches [first, end), all of them through a layer before the next. */
static void emit_micro_batches(builder *b, int32_t first, int32_t end, bool train)
{
    const int32_t L = (int32_t)b->o->shape.L;

    for (int32_t mb = first; mb < end; mb++) {
        begin_micro_batch(b, mb);
        emit_batch(b, mb, train);
    }
    for (int32_t layer = -1; layer < L; layer++)
        for (int32_t mb = first; mb < end; mb++) {
            begin_micro_batch(b, mb);
            if (layer < 0)
                emit_embedding(b);
            else
                emit_layer(b, layer, false);
        }
    for (int32_t mb = first; mb < end; mb++) {
        begin_micro_batch(b, mb);
        emit_losses(b, mb, train);
    }
    if (train) emit_departures(b, LS_PHASE_LOSS, -1);
    for (int32_t layer = L - 1; layer >= b->lowest && train; layer--) {
        for (int32_t mb = first; mb < end; mb++) {
            begin_micro_batch(b, mb);
            if (layer >= 0)
                emit_layer_backward(b, layer);
            else
                emit_embedding_backward(b);
        }
        emit_departures(b, LS_PHASE_BACKWARD, layer);
    }
}

static void emit_step(builder *b)
{
    const int32_t n = (int32_t)b->o->accumulate, at_once = b->o->layer_major ? n : 1;

    memset(b->grad_written, 0, (size_t)b->decoder->n_params * sizeof *b->grad_written);
    for (int32_t mb = 0; mb < n; mb += at_once) emit_micro_batches(b, mb, mb + at_once, true);
    emit_update(b);
}

static void emit_segments(builder *b)
{
    b->layer = b->chunk = -1;
    if (b->o->train) {
        ls_tape_begin_segment(b->tape, LS_SEGMENT_STEP);
        emit_step(b);
        ls_tape_begin_segment(b->tape, LS_SEGMENT_STEP_SAVE);
        emit_save(b);
        emit_step(b);
        ls_tape_begin_segment(b->tape, LS_SEGMENT_DRAIN);
        emit_save(b);
    }
    ls_tape_begin_segment(b->tape, LS_SEGMENT_EVAL);
    emit_micro_batches(b, 0, 1, false);
}

static ls_status check_options(const ls_decoder_options *o)
{
    const ls_decoder_shape *s = &o->shape;
    const int64_t positive[] = {s->V,     s->D,           s->F,        s->L,         s->H,
                                s->G,     s->K,           o->S,        o->sequences, o->accumulate,
                                o->chunk, o->query_block, o->loss_rows};

    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        if (positive[i] <= 0)
            return LS_FAIL(LS_ERR_INVALID, "model or batch size %lld is not positive",
                           (long long)positive[i]);
    if (s->H % s->G != 0 || s->K % 2 != 0)
        return LS_FAIL(LS_ERR_INVALID,
                       "%lld query heads over %lld kv heads of width %lld: the first must be a "
                       "multiple of the second, the width even",
                       (long long)s->H, (long long)s->G, (long long)s->K);
    if (o->x_stride < 0)
        return LS_FAIL(LS_ERR_INVALID, "saving the input of every %lld-th layer",
                       (long long)o->x_stride);
    return LS_OK;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What each layer keeps: as all do, then as the rule has it. */
static ls_status set_saves(builder *b)
{
    const ls_decoder_options *o = b->o;
    const int64_t stride = o->x_stride > 0 ? o->x_stride : 1;

    for (int32_t l = 0; l < o->shape.L; l++) {
        ls_layer_save *save = &b->saves[l];
        *save = (ls_layer_save){.x = l % stride == 0, .o = o->save_o, .qkv = o->save_qkv};
        if (o->save_rule != NULL) o->save_rule(o->save_context, l, save);
        if (save->qkv && !save->o)
            return LS_FAIL(LS_ERR_INVALID, "layer %d: saving q, k, v without the attention output",
                           l);
        if (l == 0 || l == b->lowest) save->x = true;
        if (!o->train || l < b->lowest) *save = (ls_layer_save){.x = true};
    }
    return LS_OK;
}

static ls_status build_all(builder *b)
{
    const size_t L = (size_t)b->o->shape.L;
    const size_t n_params = (size_t)count_params(&b->o->shape);
    int32_t *lists = malloc((6 * L + 1) * sizeof *lists);

    b->layers = malloc(L * sizeof *b->layers);
    b->saves = malloc(L * sizeof *b->saves);
    b->grad_written = calloc(n_params, sizeof *b->grad_written);
    b->decoder->params = malloc(n_params * sizeof *b->decoder->params);
    if (lists == NULL || b->layers == NULL || b->saves == NULL || b->grad_written == NULL ||
        b->decoder->params == NULL) {
        b->status = LS_FAIL(LS_ERR_NO_MEMORY, "tables of a model of %zu layers", L);
    } else {
        add_params(b);
        b->lowest = find_lowest(b);
        if (b->status == LS_OK) b->status = set_saves(b);
    }
    if (b->status == LS_OK) {
        b->x = lists;
        b->q = b->x + L + 1;
        b->k = b->q + L;
        b->v = b->k + L;
        b->attn = b->v + L;
        b->lse = b->attn + L;
        add_inputs(b);
        add_activations(b);
        if (b->o->train) add_gradients(b);
        emit_segments(b);
    }
    free(lists);
    free(b->layers);
    free(b->saves);
    free(b->grad_written);
    return b->status;
}

ls_decoder_options ls_decoder_smallest(const ls_decoder_shape *shape)
{
    return (ls_decoder_options){.shape = *shape,
                                .dtype = LS_DTYPE_BF16,
                                .S = 1,
                                .sequences = 1,
                                .accumulate = 1,
                                .chunk = 1,
                                .query_block = 1,
                                .loss_rows = 1};
}

ls_status ls_decoder_build(const ls_decoder_options *options, ls_decoder *decoder)
{
    LS_TRY(check_options(options));

    ls_decoder built = {.options = *options};
    ls_decoder_options *o = &built.options;
    builder b = {.decoder = &built, .tape = &built.tape, .o = o, .o_acc = -1};

    b.T = o->S * o->sequences;
    o->query_block = smaller(o->query_block, b.T);
    o->chunk = smaller(o->chunk, o->query_block);
    o->loss_rows = smaller(o->loss_rows, b.T);

    b.axis_rows = o->layer_major ? b.T * o->accumulate : b.T;
    if (o->query_block % o->chunk == 0) b.chunk_tiles = o->chunk;
    if (b.chunk_tiles > 0 && o->key_block % o->chunk == 0) b.key_tiles = o->key_block;

    const ls_status status = build_all(&b);
    o->param_rule = NULL;
    o->param_context = NULL;
    o->save_rule = NULL;
    o->save_context = NULL;
    if (status != LS_OK) {
        ls_decoder_free(&built);
        return status;
    }
    ls_tape_check(&built.tape);
    *decoder = built;
    return LS_OK;
}

int64_t ls_decoder_batch_first(const ls_decoder *d, int64_t micro_batch)
{
    return d->options.layer_major ? micro_batch * d->options.S * d->options.sequences : 0;
}

void ls_decoder_free(ls_decoder *decoder)
{
    if (decoder == NULL) return;
    ls_tape_free(&decoder->tape);
    free(decoder->params);
    memset(decoder, 0, sizeof *decoder);
}
