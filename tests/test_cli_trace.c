/* test_cli_trace.c - longspan plan --trace: the simulated step as Perfetto reads it. */
#include "cli_test.h"

#include "json_test.h"

enum { LANES = 6 };

/* The simulated step as a trace: a span for each step of the plan, none of a lane over another of
 * it, and what the compute lane does is what its busy time is. */
static void test_trace(void **state)
{
    double end_us[LANES] = {0}, busy_us = 0;
    int64_t n_spans = 0;

    (void)state;
    const outcome *done = RUN(0, "plan", "run.yaml", "--json", "--hardware", "gh200-96gb-480gb",
                              "--trace", "step.json");
    cJSON *plan = parse(done->out);
    char *text = need_bytes(at("step.json"), NULL);
    cJSON *trace = cJSON_Parse(text);
    free(text);
    assert_non_null(trace);
    const cJSON *event;
    cJSON_ArrayForEach(event, trace)
    {
        if (strcmp(cJSON_GetObjectItem(event, "ph")->valuestring, "X") != 0) continue;
        const int lane = cJSON_GetObjectItem(event, "tid")->valueint;
        const double from = cJSON_GetObjectItem(event, "ts")->valuedouble;
        const double took = cJSON_GetObjectItem(event, "dur")->valuedouble;
        assert_true(lane >= 0 && lane < LANES && took >= 0);
        assert_true(from >= end_us[lane] - 0.002); /* nanoseconds are whole */
        end_us[lane] = from + took;
        if (lane == 0) busy_us += took;
        n_spans++;
    }
    assert_true((double)n_spans == cJSON_GetObjectItem(plan, "n_steps")->valuedouble);
    const double compute_s = ls_json_find_path(plan, "lane_busy_s.compute")->valuedouble;
    assert_true(busy_us > 0.999 * 1e6 * compute_s && busy_us < 1.001 * 1e6 * compute_s);
    cJSON_Delete(trace);
    cJSON_Delete(plan);
    assert_says(RUN(2, "plan", "run.yaml", "--hardware", "cpu", "--trace", "none.json")->err,
                "there are no times to write: ");
    assert_says(
        RUN(1, "plan", "run.yaml", "--hardware", "gh200-96gb-480gb", "--trace", "no/folder.json")
            ->err,
        "no/folder.json: No such file");
    RUN(2, "plan", "run.yaml", "--trace", "none.json", "--compare", "cpu");
    assert_false(is_there(at("none.json")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace)};
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
