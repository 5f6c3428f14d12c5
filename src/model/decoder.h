/*
 * decoder.h - a decoder-only transformer (Llama family) as a tape.
 *
 * One call builds the whole tape: the parameter table, every activation, and the segments
 *
 *   step        for each micro-batch: batch, forward, loss, backward;  then norm, update;
 *               layer by layer for all of them, if layer_major: each is then a range of one token
 *               axis, and inputs, saved tensors and dx have the rows of all; the sums are the same
 *               but for rounding
 *   step+save   the same, and the state before it is written meanwhile
 *   eval        batch, forward, loss (no gradients)
 *   drain       the state is written
 *
 * The token axis of a micro-batch is its sequences laid end to end (T = sequences x S); documents
 * are isolated by data (doc_start), so chunks may straddle them.  A layer runs query block by
 * query block, the dense parts chunk by chunk inside a block; backward takes blocks in descending
 * order, so the key and value gradients of a block are final once it has been processed.
 *
 * Backward ends at the lowest layer with a parameter that is not frozen (with the embedding, if
 * that is not): layers below keep nothing for it.
 *
 * Layers from one whose input is kept to the next such are a group: before its last layer runs
 * backward, the inputs between are rebuilt, into tensors that all groups share.  Those of the last
 * group still hold what forward left there.
 *
 * Layer: model.  Threads: a built decoder is immutable.
 */
#ifndef LS_DECODER_H
#define LS_DECODER_H

#include "model_config.h"
#include "tape.h"

/* V vocabulary, D width, F feed-forward width, L layers, H query heads, G kv heads, K head width */
typedef struct ls_decoder_shape {
    int64_t V, D, F, L, H, G, K;
    float eps;
    bool tied;             /* the head shares the embedding's weight */
    bool qkv_bias, o_bias; /* of the attention's projections */
    bool qk_norm;          /* each head of q and k is normed before RoPE */
} ls_decoder_shape;

/* The same of a config.json. */
ls_decoder_shape ls_model_config_shape(const ls_model_config *config);

/* A trainable tensor and its states: indices into the tape's tensors, -1 where absent. */
typedef struct ls_param {
    int32_t weight, lo, m, v, grad;
    int32_t m_scale, v_scale; /* of packed moments */
    int32_t part, arrival;    /* what grad is made of, shared (decoder_gradients.c) */
    ls_moments moments;
    int32_t layer; /* -1: embedding, final norm, head */
    bool decay;    /* matrices only */
    bool bias;     /* starts at 0, where the vectors of norms start at 1 */
    bool frozen;   /* never updated; no gradient, no states */
    float lr_scale;
} ls_param;

/* Called for each parameter before its states are made; may set frozen, lr_scale. */
typedef void ls_param_rule(void *context, const char *name, ls_param *param);

/*
 * What forward keeps of a layer for backward: its input; its attention output with LSE; its q, k, v
 * (which needs o).  A layer without x gets its input back by running the layers before it again,
 * from the nearest one with x: by dense work alone where those keep o.
 */
typedef struct ls_layer_save {
    bool x, o, qkv;
} ls_layer_save;

/* Called for each layer during the build; save holds what the options say of all. */
typedef void ls_save_rule(void *context, int32_t layer, ls_layer_save *save);

typedef struct ls_decoder_options {
    ls_decoder_shape shape;
    ls_dtype dtype;             /* of weights and activations: BF16 or F32 */
    int64_t S, sequences;       /* tokens per sequence, sequences per micro-batch */
    int64_t accumulate;         /* micro-batches per step */
    bool layer_major;           /* all of them through a layer before the next; else one by one */
    int64_t chunk, query_block; /* rows; the last of each may be shorter */
    int64_t key_block;          /* keys per attention call; 0: all that a block needs */
    int64_t loss_rows;          /* rows of a logits tile */
    int64_t window;             /* sliding window; 0: none */
    bool any_order;             /* kernels may add in an order that changes from call to call */
    bool train;                 /* build segment step, gradients and states */
    bool save_o, save_qkv;      /* of every layer; x always, or of every x_stride-th */
    int64_t x_stride;           /* 0: 1 */
    ls_save_rule *save_rule;    /* may be NULL */
    void *save_context;
    float beta1, beta2, adam_eps, weight_decay, clip_norm;
    ls_moments moments; /* of matrices; vectors keep fp32 ones where these are packed */
    ls_dtype gradients; /* as they leave and wait: F32, BF16; sums of micro-batches are F32 */
    ls_param_rule *param_rule; /* may be NULL */
    void *param_context;
} ls_decoder_options;

/* The tensors that others fill or read; T: all micro-batches if layer_major, and a BATCH or LOSS
 * call works on the rows of its own. */
typedef struct ls_decoder_inputs {
    int32_t tokens, targets;      /* [T] i32 */
    int32_t positions, doc_start; /* [T] i64 */
    int32_t rope_table;           /* [S, K/2, 2] f32, filled once */
    int32_t control;              /* ls_update_control as bytes; -1 without train */
    int32_t loss_scale;           /* [1] f32: 1 / labels of the whole step; -1 without train */
    int32_t nll;                  /* [T] f32 out */
    int32_t logits;               /* [loss_rows, V] f32: the last tile */
} ls_decoder_inputs;

typedef struct ls_decoder {
    ls_decoder_options options;
    ls_tape tape;
    ls_param *params; /* in Hugging Face's order */
    int32_t n_params;
    ls_decoder_inputs inputs;
} ls_decoder;

/*
 * Build the tape.
 *   options  copied; param_rule is called during the build only
 *   decoder  [out] release with ls_decoder_free()
 * Returns LS_OK, LS_ERR_INVALID (a size is not positive or does not divide), LS_ERR_NO_MEMORY.
 */
ls_status ls_decoder_build(const ls_decoder_options *options, ls_decoder *decoder);

/* Options of one token a step: for what depends on the parameters alone. */
ls_decoder_options ls_decoder_smallest(const ls_decoder_shape *shape);

void ls_decoder_free(ls_decoder *decoder);

/* The row of tokens, targets, positions, doc_start and nll at which a micro-batch begins. */
int64_t ls_decoder_batch_first(const ls_decoder *decoder, int64_t micro_batch);

#define LS_DECODER_SAVED_MAX 6 /* tensors saved for each parameter, at most */

/*
 * The tensors of a checkpoint in the order in which they are saved: layer by layer, as updates
 * come, so that an update waits for its own layer alone; within a layer the weights, then m and v
 * with their scales, then lo.
 *   tensors  [LS_DECODER_SAVED_MAX * n_params] out, indices into the tape's tensors
 * Returns how many there are.
 */
int64_t ls_decoder_save_order(const ls_decoder *decoder, int32_t *tensors);

/* Rows of a logits tile: those of 64 MB, at least 16; on a GPU 2048, for the head's weight and the
 * sum of its gradient pass once for each tile, and below 800 rows outweigh its arithmetic.  At most
 * chunk. */
int64_t ls_decoder_loss_rows(int64_t V, int64_t chunk, bool on_gpu);

/* Parameters of matrix multiplications, the head included, the embedding lookup not (N_mat). */
int64_t ls_decoder_matmul_params(const ls_decoder_shape *shape);

/* All parameters. */
int64_t ls_decoder_params(const ls_decoder_shape *shape);

#endif
