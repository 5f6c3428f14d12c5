/*
 * test_checkpoint_stage.c - a stage after another (init: pretrained+optimizer): weights, masters
 * and moments of a checkpoint, a position and a schedule of its own; what does not fit is refused.
 */
#include "checkpoint_test.h"

#define STAGE_OF(step) "first/checkpoints/step-0000000" step

/* The state of version 1 but for the position, which is that of a new run. */
static void assert_carried(const subject *s)
{
    const ls_position first = make_position(1);
    const ls_update_control *c = s->trainer.control;

    assert_int_equal(s->trainer.step, 0);
    assert_int_equal(s->trainer.next_sequence, 0);
    assert_int_equal(s->trainer.tokens_total, 0);
    assert_int_equal(c->skipped, 0);
    assert_int_equal(c->skipped_in_a_row, 0);
    assert_true(c->beta1_power == first.control.beta1_power);
    assert_true(c->beta2_power == first.control.beta2_power);
    assert_int_equal(c->updates, first.control.updates);
    for (int64_t i = 0; i < s->n; i++) {
        uint64_t bytes;
        const uint8_t *data = saved_tensor(s, i, &bytes);
        for (uint64_t b = 0; b < bytes; b++) assert_int_equal(data[b], pattern(i, b, 1));
    }
}

static ls_status start_stage(subject *s, const char *precision)
{
    ls_weights_report loaded;

    open_subject(s, "second", precision, NULL);
    fill_state(s, 9);
    move_trainer(s, 0);
    *s->trainer.control = (ls_update_control){.beta1_power = 1.0, .beta2_power = 1.0};
    s->trainer.step = s->trainer.next_sequence = s->trainer.tokens_total = 0;
    return ls_trainer_init_weights(&s->trainer, &loaded);
}

static void test_stage_carries_the_optimizer(void **state)
{
    (void)state;
    static const char *const kinds[][2] = {{"bf16", "fp32"}, {"fp32", "fp32"}, {"bf16", "q8"}};
    subject s;

    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        moments = kinds[k][1];
        open_subject(&s, "first", kinds[k][0], NULL);
        assert_ok(save(&s, 1));
        close_subject(&s);
        model = STAGE_OF("1");
        init = "pretrained+optimizer";
        n_train_tokens = 250; /* other data is what a stage is for */
        assert_ok(start_stage(&s, kinds[k][0]));
        assert_carried(&s);
        close_subject(&s);
        n_train_tokens = 200;
        model = "model.yaml";
        init = "random";
        moments = "fp32";
        assert_ok(ls_directory_remove(at("first")));
    }
}

/* Another kind of states, no states, or no checkpoint: refused by the key that says so. */
static void test_stage_refuses(void **state)
{
    (void)state;
    subject s;

    open_subject(&s, "first", "bf16", NULL);
    assert_ok(save(&s, 1));
    close_subject(&s);
    model = STAGE_OF("1");
    init = "pretrained+optimizer";
    assert_fails(start_stage(&s, "fp32"), LS_ERR_INVALID,
                 "precision: \"fp32\", but the optimizer in ");
    close_subject(&s);
    moments = "q4";
    assert_fails(start_stage(&s, "bf16"), LS_ERR_INVALID, "optimizer.moments: \"q4\", but");
    close_subject(&s);
    moments = "fp32";
    assert_int_equal(unlink(at(STAGE_OF("1") "/state.json")), 0);
    assert_fails(start_stage(&s, "bf16"), LS_ERR_INVALID,
                 "it has no state.json; allowed: a folder");
    close_subject(&s);
    model = "model.yaml";
    init = "random";
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stage_carries_the_optimizer),
        cmocka_unit_test(test_stage_refuses),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
