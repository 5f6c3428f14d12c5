/* decoder_params.c - the parameters of a decoder, in Hugging Face's order, and their states. */
#include <stdio.h>

#include "decoder_builder.h"

int64_t ls_decoder_matmul_params(const ls_decoder_shape *s)
{
    const int64_t attention = 2 * s->D * s->H * s->K + 2 * s->D * s->G * s->K;
    return s->L * (attention + 3 * s->D * s->F) + s->V * s->D;
}

int64_t ls_decoder_params(const ls_decoder_shape *s)
{
    const int64_t embedding = s->tied ? 0 : s->V * s->D;
    const int64_t biases = (s->qkv_bias ? (s->H + 2 * s->G) * s->K : 0) + (s->o_bias ? s->D : 0);
    const int64_t norms = s->qk_norm ? 2 * s->K : 0;
    return ls_decoder_matmul_params(s) + embedding + (2 * s->L + 1) * s->D +
           s->L * (biases + norms);
}

ls_decoder_shape ls_model_config_shape(const ls_model_config *m)
{
    return (ls_decoder_shape){.V = m->vocab_size,
                              .D = m->hidden_size,
                              .F = m->intermediate_size,
                              .L = m->num_hidden_layers,
                              .H = m->num_attention_heads,
                              .G = m->num_key_value_heads,
                              .K = m->head_dim,
                              .eps = (float)m->rms_norm_eps,
                              .tied = m->tie_word_embeddings,
                              .qkv_bias = m->qkv_bias,
                              .o_bias = m->o_bias,
                              .qk_norm = m->qk_norm};
}

int32_t count_params(const ls_decoder_shape *s)
{
    const int64_t per_layer =
        9 + (s->qkv_bias ? 3 : 0) + (s->o_bias ? 1 : 0) + (s->qk_norm ? 2 : 0);
    return (int32_t)(per_layer * s->L) + (s->tied ? 2 : 3);
}

/* Add weight, gradient, master remainder and moments of one parameter; columns 0: a vector. */
static int32_t add_param(builder *b, int32_t layer, int64_t rows, int64_t columns, const char *name)
{
    const struct {
        ls_role role;
        ls_dtype dtype;
        const char *suffix;
    } states[] = {{LS_ROLE_GRAD, waiting_dtype(b), "grad"},
                  {LS_ROLE_LO, LS_DTYPE_I16, "master_lo"}};
    ls_decoder *d = b->decoder;
    const bool packed = ls_moments_scales(b->o->moments, 1) > 0;
    ls_param param = {.weight = -1,
                      .lo = -1,
                      .m = -1,
                      .v = -1,
                      .grad = -1,
                      .m_scale = -1,
                      .v_scale = -1,
                      .part = -1,
                      .arrival = -1,
                      .moments = packed && columns == 0 ? LS_MOMENTS_F32 : b->o->moments,
                      .layer = layer,
                      .decay = columns > 0,
                      .lr_scale = 1.0f};
    char state[LS_TENSOR_NAME_BYTES];
    int32_t *const slots[] = {&param.grad, &param.lo};

    if (b->status != LS_OK) return -1;
    if (b->o->param_rule != NULL) b->o->param_rule(b->o->param_context, name, &param);
    param.weight = add_tensor(b, LS_ROLE_WEIGHTS, layer, b->o->dtype, rows, columns, name);
    for (int i = 0; i < 2 && b->o->train && !param.frozen; i++) {
        if (states[i].role == LS_ROLE_LO && b->o->dtype != LS_DTYPE_BF16) continue;
        snprintf(state, sizeof state, "%s.%s", name, states[i].suffix);
        *slots[i] = add_tensor(b, states[i].role, layer, states[i].dtype, rows, columns, state);
    }
    if (b->o->train && !param.frozen) add_moments(b, &param, rows, columns, name);
    const int32_t own[] = {param.weight, param.lo,      param.m,      param.v,
                           param.grad,   param.m_scale, param.v_scale};
    for (size_t i = 0; i < sizeof own / sizeof own[0] && b->status == LS_OK; i++)
        if (own[i] >= 0) b->tape->tensors[own[i]].param = d->n_params;
    d->params[d->n_params] = param;
    return d->n_params++;
}

static int32_t add_layer_param(builder *b, int32_t layer, int64_t rows, int64_t columns,
                               const char *suffix)
{
    char name[LS_TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, suffix);
    return add_param(b, layer, rows, columns, name);
}

/* -1 if the model has none there. */
static int32_t add_layer_bias(builder *b, bool present, int32_t layer, int64_t rows,
                              const char *suffix)
{
    char name[LS_TENSOR_NAME_BYTES];

    if (!present) return -1;
    snprintf(name, sizeof name, "model.layers.%d.%s.bias", layer, suffix);
    const int32_t param = add_param(b, layer, rows, 0, name);
    if (param >= 0) b->decoder->params[param].bias = true;
    return param;
}

static void add_layer_params(builder *b, int32_t l, layer_params *p)
{
    const ls_decoder_shape *s = &b->o->shape;
    const int64_t HK = s->H * s->K, GK = s->G * s->K;

    p->wq = add_layer_param(b, l, HK, s->D, "self_attn.q_proj");
    p->bq = add_layer_bias(b, s->qkv_bias, l, HK, "self_attn.q_proj");
    p->wk = add_layer_param(b, l, GK, s->D, "self_attn.k_proj");
    p->bk = add_layer_bias(b, s->qkv_bias, l, GK, "self_attn.k_proj");
    p->wv = add_layer_param(b, l, GK, s->D, "self_attn.v_proj");
    p->bv = add_layer_bias(b, s->qkv_bias, l, GK, "self_attn.v_proj");
    p->wo = add_layer_param(b, l, s->D, HK, "self_attn.o_proj");
    p->bo = add_layer_bias(b, s->o_bias, l, s->D, "self_attn.o_proj");
    p->q_norm = s->qk_norm ? add_layer_param(b, l, s->K, 0, "self_attn.q_norm") : -1;
    p->k_norm = s->qk_norm ? add_layer_param(b, l, s->K, 0, "self_attn.k_norm") : -1;
    p->gate = add_layer_param(b, l, s->F, s->D, "mlp.gate_proj");
    p->up = add_layer_param(b, l, s->F, s->D, "mlp.up_proj");
    p->down = add_layer_param(b, l, s->D, s->F, "mlp.down_proj");
    p->norm1 = add_layer_param(b, l, s->D, 0, "input_layernorm");
    p->norm2 = add_layer_param(b, l, s->D, 0, "post_attention_layernorm");
}

void add_params(builder *b)
{
    const ls_decoder_shape *s = &b->o->shape;

    b->embed = add_param(b, -1, s->V, s->D, "model.embed_tokens.weight");
    for (int32_t l = 0; l < s->L; l++) add_layer_params(b, l, &b->layers[l]);
    b->final_norm = add_param(b, -1, s->D, 0, "model.norm.weight");
    b->head = s->tied ? b->embed : add_param(b, -1, s->V, s->D, "lm_head.weight");
    if (b->o->train) add_gradient_parts(b);
}

int32_t find_lowest(const builder *b)
{
    int32_t lowest = (int32_t)b->o->shape.L;

    if (b->status != LS_OK || !b->o->train || !b->decoder->params[b->embed].frozen) return -1;
    for (int32_t i = 0; i < b->decoder->n_params; i++) {
        const ls_param *param = &b->decoder->params[i];
        if (!param->frozen && param->layer >= 0 && param->layer < lowest) lowest = param->layer;
    }
    return lowest;
}
