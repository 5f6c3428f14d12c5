/* test_cli_streams.c - standard streams that are closed or fail: nothing is lost in silence, and
 * nothing that is printed lands in a file. */
#include "cli_test.h"

/* What `longspan ARGUMENTS` does, with the shell's redirections among them. */
static const outcome *shell(int code, const char *arguments)
{
    char line[1024];

    snprintf(line, sizeof line, "exec '%s' %s", PROGRAM, arguments);
    return finish_as(code, start((const char *const[]){"/bin/sh", "-c", line, NULL}));
}

/* Each way to print, once it has something to say. */
static const char *const printing[] = {"--version",
                                       "--help",
                                       "train --help",
                                       "plan --help",
                                       "topo --from machine.yaml",
                                       "plan run.yaml",
                                       "plan run.yaml --json",
                                       "train run.yaml --dry-run --set output=dry",
                                       "eval run.yaml --quiet",
                                       "eval run.yaml --json --quiet",
                                       "eval run.yaml --sample 3 --quiet",
                                       "tokenize --out data/again text-valid",
                                       "tokenize --out data/again text-valid --json",
                                       "convert run/checkpoints/step-00000002 hf",
                                       "convert run/checkpoints/step-00000002 hf --json",
                                       "report run"};

static void check_refused(const char *command, const char *redirection, const char *why)
{
    char arguments[512];

    if (is_there(at("hf"))) assert_ok(ls_directory_remove(at("hf")));
    snprintf(arguments, sizeof arguments, "%s %s", command, redirection);
    const outcome *done = shell(1, arguments);
    assert_says(done->err, why);
    const char *error = strstr(done->err, "error:");
    assert_non_null(error);
    assert_null(strstr(error + 1, "error:")); /* said once */
}

static void test_output_is_full(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof printing / sizeof printing[0]; i++)
        check_refused(printing[i], ">/dev/full", "No space left on device");
}

static void test_output_is_closed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof printing / sizeof printing[0]; i++)
        check_refused(printing[i], ">&-", "Bad file descriptor");
}

/* Nothing is printed, so nothing is lost. */
static void test_quiet_needs_no_output(void **state)
{
    (void)state;
    shell(0, "tokenize --out data/again text-valid --quiet >&-");
    shell(2, "tokenize --out data/again >&-");
    shell(2, "trian >/dev/full");
}

/* The first file that is opened must not become a stream. */
static void test_all_streams_are_closed(void **state)
{
    (void)state;
    shell(0, "train run.yaml --set output=closed --set steps=2 <&- >&- 2>&-");
    assert_int_equal(last_step("closed"), 2);
    shell(0, "tokenize --out data/closed text-valid --quiet <&- >&- 2>&-");
    assert_same_file(at("data/closed.bin"), at("data/valid.bin"));
    assert_same_file(at("data/closed.idx"), at("data/valid.idx"));
}

static int make_run(void **state)
{
    if (make_scratch(state) != 0) return -1;
    put_text(at("machine.yaml"),
             "name: x\nplaces:\n"
             "  - {kind: host, capacity_bytes: {value: 4GiB, source: profile}}\n");
    RUN(75, "train", "run.yaml", "--quiet", "--stop-after", "2");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_output_is_full),
        cmocka_unit_test(test_output_is_closed),
        cmocka_unit_test(test_quiet_needs_no_output),
        cmocka_unit_test(test_all_streams_are_closed),
    };
    return cmocka_run_group_tests(tests, make_run, remove_scratch);
}
