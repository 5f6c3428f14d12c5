/*
 * test_cudnn_plans.c - the real cuDNN plans our graphs for an H200 that is described to it: an
 * engine takes each shape of a long run, wants no more workspace than the plan reserves, and what
 * is refused is told by name.  Needs no GPU; tests/fake_loader.c is the driver.
 *
 *     test_cudnn_plans [all]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "attention_cudnn.h"
#include "attention_cudnn_planner.h"
#include "attention_vendor.h"

#define SCALE 0.0883883f

static const ls_cudnn_shape shapes[] = {
    /* N, M, H, G, K, window, scale, causal */
    {32768, 524288, 28, 4, 128, 0, SCALE, 1, 0},   /* Qwen2.5-7B: the last queries of 512k */
    {65536, 65536, 28, 4, 128, 0, SCALE, 0, 0},    /* a block of keys of the past */
    {65536, 524288, 32, 32, 128, 0, SCALE, 1, 0},  /* Llama-2-7B: k and v have 2^31 elements */
    {65536, 69632, 32, 8, 128, 4096, SCALE, 1, 0}, /* Mistral-7B: a window */
    {16384, 262144, 14, 2, 64, 0, 0.125f, 1, 0},   /* Qwen2.5-0.5B */
    /* with "all" */
    {32768, 32768, 28, 4, 128, 0, SCALE, 1, 0},
    {65536, 1048576, 28, 4, 128, 0, SCALE, 1, 0},
    {65536, 524288, 32, 8, 128, 0, SCALE, 1, 0}, /* Llama-3.1-8B */
    {128, 128, 7, 1, 64, 0, 0.125f, 1, 0},
    {128, 524288, 1, 1, 128, 0, SCALE, 1, 0},
};

enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_USUAL = 5 };

static int n_shapes = N_USUAL;

static int open_planner(void **state)
{
    char text[4096];
    FILE *file = fopen(LS_SOURCE_DIR "/tests/machines/h200-cudnn.json", "r");

    (void)state;
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    if (ls_cudnn_open_planner(text) != LS_OK) {
        print_error("%s\n", ls_error());
        return -1;
    }
    print_message("cuDNN %d\n", (int)ls_cudnn_version());
    return 0;
}

static void plan_shape(const ls_cudnn_shape *shape)
{
    const uint64_t most = ls_cudnn_workspace_most(shape);
    ls_cudnn_graph *graph = NULL;

    if (ls_cudnn_graph_build(shape, most, &graph) != LS_OK) fail_msg("%s", ls_error());
    const uint64_t bytes = ls_cudnn_graph_bytes(graph);
    print_message("%s N %lld M %lld H %lld G %lld K %lld: %s, %llu bytes\n",
                  shape->backward ? "backward" : "forward", (long long)shape->N,
                  (long long)shape->M, (long long)shape->H, (long long)shape->G,
                  (long long)shape->K, ls_cudnn_graph_engine(graph), (unsigned long long)bytes);
    assert_true(bytes <= most);
    assert_true(bytes + LS_CUDNN_SLACK_BYTES >= most); /* the formula is no guess from above */
    assert_true(strlen(ls_cudnn_graph_engine(graph)) > 0);
    ls_cudnn_graph_free(graph);
}

static void every_shape_has_an_engine_within_its_workspace(void **state)
{
    (void)state;
    for (int i = 0; i < n_shapes; i++)
        for (int16_t backward = 0; backward < 2; backward++) {
            ls_cudnn_shape shape = shapes[i];
            shape.backward = backward;
            plan_shape(&shape);
        }
}

static void assert_refused(const ls_cudnn_shape *shape, uint64_t most, const char *const words[])
{
    ls_cudnn_graph *graph = NULL;

    assert_int_equal(ls_cudnn_graph_build(shape, most, &graph), LS_ERR_UNSUPPORTED);
    assert_null(graph);
    for (int i = 0; words[i] != NULL; i++)
        if (strstr(ls_error(), words[i]) == NULL)
            fail_msg("no \"%s\" in: %s", words[i], ls_error());
}

static void engines_that_want_more_are_refused_by_name(void **state)
{
    ls_cudnn_shape shape = shapes[0];

    (void)state;
    shape.backward = 1;
    assert_refused(&shape, 1024,
                   (const char *const[]){"backward, N 32768, M 524288, H 28, G 4, K 128, causal",
                                         "within 1024 bytes", "eng", "determinism: exact", NULL});
}

static void shapes_without_an_engine_are_told(void **state)
{
    ls_cudnn_shape shape = shapes[0];

    (void)state;
    shape.K = 100; /* no multiple of 8 */
    assert_refused(&shape, UINT64_C(1) << 40,
                   (const char *const[]){"forward, N 32768", "K 100", NULL});
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "all") == 0) n_shapes = N_SHAPES;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_has_an_engine_within_its_workspace),
        cmocka_unit_test(engines_that_want_more_are_refused_by_name),
        cmocka_unit_test(shapes_without_an_engine_are_told),
    };
    return cmocka_run_group_tests(tests, open_planner, NULL);
}
