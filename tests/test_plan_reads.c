/*
 * test_plan_reads.c - what a step reads of what forward has kept: attention runs forward once where
 * O is kept; each kept input comes back to device memory once and each O once; in tiles of rows,
 * where nothing whole fits, each O at most twice and each input at most four times.
 *
 * Counted in plans of all policies, sequence by sequence and layer by layer.
 */
#include "placement_test.h"
#include "plan_test.h"

typedef struct policy {
    bool o, qkv;
    int64_t x_stride;
} policy;

static const policy policies[] = {{true, false, 1},  {true, false, 2},  {true, false, 3},
                                  {true, false, 4},  {true, true, 1},   {true, true, 2},
                                  {false, false, 1}, {false, false, 2}, {false, false, 3}};

enum { LAYERS = 5, BLOCK = 8, BLOCKS = 3, S = BLOCK * BLOCKS, MICRO_BATCHES = 2 };

static ls_decoder_options make_options(const policy *p, bool layer_major)
{
    ls_decoder_options options = grouped_options();

    options.shape.L = LAYERS;
    options.S = S;
    options.sequences = 1;
    options.accumulate = MICRO_BATCHES;
    options.layer_major = layer_major;
    options.chunk = BLOCK;
    options.query_block = BLOCK;
    options.key_block = BLOCK;
    options.save_o = p->o;
    options.save_qkv = p->qkv;
    options.x_stride = p->x_stride;
    return options;
}

static void place(bool tiled, ls_placement *placement)
{
    static const ls_tensor_class cut[] = {LS_CLASS_X, LS_CLASS_O, LS_CLASS_KV, LS_CLASS_DKV};
    const ls_placement_wish wish = {.weights_given = true, .weights = LS_MODE_RESIDENT};

    decide_placement(true, &wish, placement);
    for (int64_t c = 0; c < COUNT_OF(cut) && tiled; c++) {
        placement->classes[cut[c]].place = LS_PLACE_HOST;
        placement->classes[cut[c]].mode = LS_MODE_STREAM;
        placement->tiled[cut[c]] = true;
    }
}

/* Of the step segment: how often all of a tensor's bytes are copied in. */
static double count_reads(const ls_plan *plan, int32_t tensor)
{
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    uint64_t bytes = 0;

    for (int64_t s = first; s < first + plan->segment_steps[LS_SEGMENT_STEP]; s++) {
        const ls_step *step = &plan->steps[s];
        if (step->kind != LS_CALL_COPY || step->lane != LS_LANE_COPY_IN) continue;
        const ls_step_operand *from = &plan->operands[step->first_operand + 1];
        if (from->tensor == tensor) bytes += from->span.bytes;
    }
    return (double)bytes / (double)ls_tensor_bytes(&plan->tensors[tensor].tensor);
}

static int64_t count_ops(const ls_plan *plan, ls_op op)
{
    const int64_t first = plan->segment_first[LS_SEGMENT_STEP];
    int64_t n = 0;

    for (int64_t s = first; s < first + plan->segment_steps[LS_SEGMENT_STEP]; s++)
        n += plan->steps[s].kind == LS_CALL_OP && plan->steps[s].op == op;
    return n;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Kept by forward for backward: x.3, o.3, lse.3; not what groups share (x.+1), nor what the loss
 * reads. */
static bool is_kept(const ls_tensor *t, ls_role role)
{
    return t->role == role && t->layer >= 0 && t->layer < LAYERS && strchr(t->name, '@') == NULL &&
           strchr(t->name, '+') == NULL;
}

/* The most and the fewest times that a kept tensor of a role is read for each micro-batch.  The
 * last of them may still lie in device memory: it is left out of the fewest. */
static void find_reads(const ls_plan *plan, ls_role role, double times, double *most,
                       double *fewest)
{
    int32_t last = -1;

    for (int32_t t = 0; t < plan->n_tensors; t++)
        if (is_kept(&plan->tensors[t].tensor, role) && plan->tensors[t].tensor.layer > last)
            last = plan->tensors[t].tensor.layer;
    *most = 0.0;
    *fewest = 1e9;
    for (int32_t t = 0; t < plan->n_tensors; t++) {
        if (!is_kept(&plan->tensors[t].tensor, role)) continue;
        const double reads = count_reads(plan, t) / times;
        if (reads > *most) *most = reads;
        if (reads < *fewest && plan->tensors[t].tensor.layer < last) *fewest = reads;
    }
}

static void check_plan(const policy *p, bool layer_major, bool tiled)
{
    const ls_decoder_options options = make_options(p, layer_major);
    const int64_t forward = MICRO_BATCHES * LAYERS * BLOCKS * (BLOCKS + 1) / 2;
    const double times = layer_major ? 1.0 : MICRO_BATCHES;
    ls_placement placement;
    ls_decoder decoder;
    ls_plan plan;
    double most, fewest;

    place(tiled, &placement);
    build_placed_plan(&options, &placement, &decoder, &plan);
    const int64_t attention = count_ops(&plan, LS_OP_attention_forward);
    if (p->o)
        assert_int_equal(attention, forward);
    else
        assert_true(attention >= 2 * forward);
    find_reads(&plan, LS_ROLE_X, times, &most, &fewest);
    if (tiled) /* by the layer in forward; then for the group, the keys, the blocks */
        assert_true(fewest >= 1.0 && most <= 4.0);
    else
        assert_true(fewest == 1.0 && most == 1.0);
    find_reads(&plan, LS_ROLE_O, times, &most, &fewest);
    if (p->o) assert_true(fewest >= 1.0 && most <= (tiled && p->x_stride > 1 ? 2.0 : 1.0));
    ls_plan_free(&plan);
    ls_decoder_free(&decoder);
}

static void check_policies(bool tiled)
{
    for (int64_t i = 0; i < COUNT_OF(policies); i++)
        for (int layer_major = 0; layer_major < 2; layer_major++)
            check_plan(&policies[i], layer_major, tiled);
}

static void whole_tensors_are_read_once(void **state)
{
    (void)state;
    check_policies(false);
}

static void tiles_of_o_are_read_twice_at_most(void **state)
{
    (void)state;
    check_policies(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_tensors_are_read_once),
        cmocka_unit_test(tiles_of_o_are_read_twice_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
