/*
 * test_profile_write.c - a hardware profile written: what is read back is the same to the bit, what
 * a machine tells fills the gaps and nothing else, and what may not be overwritten is not.
 */
#include "machine_test.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <unistd.h>

#include "profile.h"

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

static char scratch[256];

static int make_scratch(void **state)
{
    (void)state;
    return make_machines_folder(scratch, sizeof scratch) == 0 && chdir(scratch) == 0 ? 0 : -1;
}

static int remove_scratch(void **state)
{
    (void)state;
    return chdir("/") == 0 && ls_directory_remove(scratch) == LS_OK ? 0 : -1;
}

static void put_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void assert_error_says(const char *part)
{
    if (strstr(ls_error(), part) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), part);
}

static ls_profile *parse(const char *text)
{
    ls_profile *profile = NULL;
    assert_ok(ls_profile_parse("p.yaml", text, strlen(text), &profile));
    return profile;
}

/* ---- there and back ------------------------------------------------------------------------- */

static ls_profile *write_and_read(const ls_profile *profile)
{
    ls_profile *back = NULL;

    assert_ok(ls_profile_write(profile, "# a comment\n", "back.yaml"));
    assert_ok(ls_profile_read("back.yaml", &back));
    return back;
}

/* Profiles are read into zeroed memory, so that same means the same bytes; only the file's name,
 * and the padding and order within, could differ: none does. */
static void assert_same(const ls_profile *profile, ls_profile *back, const char *name)
{
    assert_string_equal(back->origin, "back.yaml");
    memcpy(back->origin, profile->origin, sizeof back->origin);
    if (memcmp(back, profile, sizeof *back) != 0) fail_msg("%s changes when it is written", name);
}

static void test_builtin_round_trip(void **state)
{
    (void)state;
    for (const ls_builtin_profile *b = ls_builtin_profiles; b->name != NULL; b++) {
        ls_profile *profile = NULL;
        assert_ok(ls_profile_parse(b->name, b->text, strlen(b->text), &profile));
        ls_profile *back = write_and_read(profile);
        assert_same(profile, back, b->name);
        ls_profile_free(back);
        ls_profile_free(profile);
    }
}

/* All keys at once, and texts that YAML would take for something else. */
static const char all_yaml[] =
    "name: \"a: b # \\\"c\\\" \\\\ [x]\"\n"
    "about: \"two\\nlines, a tab\\t, {not: a map}\"\n"
    "emulated: true\n"
    "match: {gpu: [\"null\", \"12\"], not_gpu: [\"~\"], c2c_link: false, coherent: true,\n"
    "        hbm_bytes: {least: 1, most: 9007199254740992}, host_bytes: {least: 3, most: 4}}\n"
    "places:\n"
    "  - {kind: nvme, capacity_bytes: {value: 1TB, source: spec}}\n"
    "  - {kind: hbm, capacity_bytes: {value: 64MiB, source: profile}}\n"
    "  - kind: host\n"
    "    page_bytes: {value: 64KiB, source: assumed}\n"
    "    read_bytes_per_s: {value: 0.1, source: measured}\n"
    "    write_bytes_per_s: {value: 123456789.123456789, source: measured}\n"
    "    latency_ns: {value: 1e-300, source: published}\n"
    "    best_threads: {value: 32, source: measured}\n"
    "links:\n"
    "  - {from: host, to: hbm, via: \"pcie 5.0 x16\", bytes_per_s: {value: 1e18, source: spec},\n"
    "     reverse_bytes_per_s: {value: 0.30000000000000004, source: spec},\n"
    "     both_bytes_per_s: {value: 3, source: spec}, read_bytes_per_s: {value: 4, source: spec},\n"
    "     write_bytes_per_s: {value: 5, source: spec}, latency_ns: {value: 6, source: spec},\n"
    "     coherent: {value: false, source: spec}}\n"
    "  - {from: host, to: hbm, reach: remote, coherent: {value: true, source: assumed}}\n"
    "units:\n"
    "  - {kind: gpu, model: \"yes\", cores: {value: 132, source: spec},\n"
    "     bf16_flops_per_s: {value: 1e15, source: spec},\n"
    "     fp32_flops_per_s: {value: 67e12, source: spec},\n"
    "     efficiency: [{op: matmul, shape: \"1x1: #\", fraction: {value: 0.7, source: assumed}},\n"
    "                  {op: adamw, shape: all, bytes_per_s: {value: 1e10, source: measured},\n"
    "                   call_ns: {value: 40e3, source: measured}}],\n"
    "     power_states: {idle: {value: 75.5, source: assumed}, busy: {value: 700, source: spec}}}\n"
    "  - {kind: cpu}\n"
    "throttle: {in_bytes_per_s: {value: 3e9, source: profile},\n"
    "           out_bytes_per_s: {value: 2e9, source: profile}}\n"
    "nvme: {path: \"/a b/\\\"c\\\"\"}\n"
    "limits: {power_cap_watts: {value: 660, source: published}}\n";

static void test_all_keys_round_trip(void **state)
{
    ls_profile *profile = parse(all_yaml), *back = write_and_read(profile);

    (void)state;
    assert_same(profile, back, "a profile of all keys");
    ls_profile_free(back);
    ls_profile_free(profile);
}

/* Where people write 0,5 a file still has 0.5. */
static void test_locale(void **state)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    ls_profile *profile = parse(all_yaml);
    const char *set = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && set == NULL; i++)
        set = setlocale(LC_ALL, names[i]);
    ls_profile *back = write_and_read(profile);
    assert_same(profile, back, "a profile in another locale");
    setlocale(LC_ALL, "C");
    ls_profile_free(back);
    ls_profile_free(profile);
    if (set == NULL) skip(); /* no such locale here: the rest was tested */
}

/* A figure that no profile may have is not written, and the file stays. */
static void test_unreadable_is_not_written(void **state)
{
    ls_profile *profile = parse(all_yaml), *there = NULL;
    ls_quantity *latency = &profile->machine.places[2].latency_ns;

    (void)state;
    assert_ok(ls_profile_write(profile, "", "kept.yaml"));
    *latency = ls_discovered(100, "sysfs");
    assert_int_equal(ls_profile_write(profile, "", "kept.yaml"), LS_ERR_INVALID);
    assert_error_says("discovered");
    *latency = ls_quantity_make(2e9, LS_SOURCE_MEASURED, "profile");
    assert_int_equal(ls_profile_write(profile, "", "kept.yaml"), LS_ERR_INVALID);
    assert_error_says("latency_ns");
    assert_ok(ls_profile_read("kept.yaml", &there));
    assert_true(there->machine.places[2].latency_ns.value == 1e-300);
    assert_int_equal(ls_profile_write(there, "", "no/such/folder.yaml"), LS_ERR_IO);
    ls_profile_free(there);
    ls_profile_free(profile);
}

/* ---- filling -------------------------------------------------------------------------------- */

static ls_topology *discover(const char *machine)
{
    char root[512];
    ls_topology *t = NULL;

    snprintf(root, sizeof root, "%s/%s", scratch, machine);
    unpack_machine(machine, root);
    assert_ok(ls_topology_discover(root, &t));
    return t;
}

static void assert_is(ls_quantity quantity, double value, ls_source source)
{
    if (quantity.source != source || quantity.value != value)
        fail_msg("%.17g (%s), not %.17g (%s)", quantity.value, ls_source_name(quantity.source),
                 value, ls_source_name(source));
}

static const ls_place *place(const ls_topology *t, const char *name)
{
    const ls_place *found = ls_topology_find_place(t, name);
    if (found == NULL) fail_msg("no %s", name);
    return found;
}

/* Gaps are filled by what was discovered, as `spec`; claims of the profile stay as they are. */
static void test_fill(void **state)
{
    ls_profile *profile = parse("name: p\n"
                                "places:\n"
                                "  - {kind: host, page_bytes: {value: 4KiB, source: assumed},\n"
                                "     latency_ns: {value: 170, source: published}}\n");
    ls_topology *machine = discover("gh200-quad");
    const ls_place *host = place(machine, "host1");

    (void)state;
    ls_profile_fill(profile, machine, host);
    const ls_topology *t = &profile->machine;
    assert_int_equal(t->n_places, 2);
    assert_int_equal(t->n_units, 2);
    assert_is(place(t, "host")->page_bytes, 4096, LS_SOURCE_ASSUMED);
    assert_is(place(t, "host")->latency_ns, 170, LS_SOURCE_PUBLISHED);
    assert_is(place(t, "host")->capacity_bytes, host->capacity_bytes.value, LS_SOURCE_SPEC);
    assert_true(ls_known(place(t, "hbm")->capacity_bytes));
    const ls_link *link = ls_topology_find_link(t, "host", "hbm");
    assert_non_null(link);
    assert_is(ls_topology_find_unit(t, LS_UNIT_CPU)->cores, 72, LS_SOURCE_SPEC);
    assert_string_not_equal(ls_topology_find_unit(t, LS_UNIT_GPU)->model, "");

    ls_profile *back = write_and_read(profile);
    assert_int_equal(back->machine.n_links, t->n_links);
    assert_int_equal(back->machine.n_places, 2);
    /* On a machine whose other nodes are of other sizes, each keeps its own. */
    assert_ok(ls_profile_merge(back, NULL, machine));
    assert_int_equal(place(machine, "host0")->capacity_bytes.source, LS_SOURCE_DISCOVERED);
    ls_profile_free(back);
    ls_topology_free(machine);
    ls_profile_free(profile);
}

/* ---- where it may be written ---------------------------------------------------------------- */

static void assert_refused(const char *path, ls_status status, const char *why)
{
    assert_int_equal(ls_profile_check_target(path), status);
    assert_error_says(why);
}

static void test_target(void **state)
{
    (void)state;
    put_text("notes.yaml", "shopping: [milk]\n");
    put_text("mine.yaml", "name: mine\n");
    put_text("empty.yaml", "");
    assert_int_equal(mkdir("folder.yaml", 0777), 0);
    assert_ok(ls_profile_check_target("fresh.yaml"));
    assert_ok(ls_profile_check_target("./fresh.yaml"));
    assert_ok(ls_profile_check_target("mine.yaml"));
    assert_refused("notes.yaml", LS_ERR_INVALID, "no hardware profile, so that it is not overwr");
    assert_refused("notes.yaml", LS_ERR_INVALID, "shopping");
    assert_refused("empty.yaml", LS_ERR_INVALID, "no hardware profile");
    assert_refused("folder.yaml", LS_ERR_INVALID, "no hardware profile");
    assert_refused("no/such/x.yaml", LS_ERR_IO, "no/such: No such file or directory");
    assert_refused("mine.yaml/x.yaml", LS_ERR_IO, "mine.yaml: Not a directory");
    assert_refused("profile.json", LS_ERR_INVALID, "allowed: NAME.yaml");
    assert_refused(".yaml", LS_ERR_INVALID, "allowed: NAME.yaml");
    assert_refused("a-name-that-is-thirty-two-bytes-.yaml", LS_ERR_INVALID, "at most 31");
    assert_ok(ls_profile_check_target("a-name-that-is-thirty-one-bytes.yaml"));
    if (geteuid() == 0) return; /* may write anywhere */
    assert_int_equal(mkdir("locked", 0555), 0);
    assert_refused("locked/x.yaml", LS_ERR_IO, "locked: Permission denied");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builtin_round_trip),
        cmocka_unit_test(test_all_keys_round_trip),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_unreadable_is_not_written),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_target),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
