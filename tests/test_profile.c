/*
 * test_profile.c - hardware profiles: what is shipped, what is refused and in which words, which
 * figure stands when two tell it, what auto chooses for each machine, and contradictions.
 */
#include "machine_test.h"

#include <unistd.h>

#include "json.h"
#include "profile.h"

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static char scratch[256];

static int make_scratch(void **state)
{
    (void)state;
    /* Elsewhere than in the sources, whose configs/hardware would come before what is built in. */
    return make_machines_folder(scratch, sizeof scratch) == 0 && chdir(scratch) == 0 ? 0 : -1;
}

static int remove_scratch(void **state)
{
    (void)state;
    return ls_directory_remove(scratch) == LS_OK ? 0 : -1;
}

static ls_topology *discover(const char *machine)
{
    char root[512];
    ls_topology *t = NULL;

    snprintf(root, sizeof root, "%s/%s", scratch, machine);
    unpack_machine(machine, root);
    if (ls_topology_discover(root, &t) != LS_OK) fail_msg("%s: %s", machine, ls_error());
    return t;
}

static ls_profile *parse(const char *text)
{
    ls_profile *profile = NULL;
    if (ls_profile_parse("p.yaml", text, strlen(text), &profile) != LS_OK)
        fail_msg("%s", ls_error());
    return profile;
}

static ls_profile *builtin(const char *name)
{
    ls_profile *profile = NULL;
    if (ls_profile_read(name, &profile) != LS_OK) fail_msg("%s", ls_error());
    return profile;
}

static const ls_place *place(const ls_topology *t, const char *name)
{
    const ls_place *found = ls_topology_find_place(t, name);
    if (found == NULL) fail_msg("%s has no %s", t->origin, name);
    return found;
}

static const ls_link *link_of(const ls_topology *t, const char *from, const char *to)
{
    const ls_link *found = ls_topology_find_link(t, from, to);
    if (found == NULL) fail_msg("%s has no link from %s to %s", t->origin, from, to);
    return found;
}

static void assert_is(ls_quantity quantity, double value, ls_source source)
{
    if (quantity.source != source || quantity.value != value)
        fail_msg("%.17g (%s), not %.17g (%s)", quantity.value, ls_source_name(quantity.source),
                 value, ls_source_name(source));
}

static void assert_error_says(const char *part)
{
    if (strstr(ls_error(), part) == NULL) fail_msg("'%s' lacks '%s'", ls_error(), part);
}

/* ---- shipped -------------------------------------------------------------------------------- */

static void test_shipped(void **state)
{
    static const char *const names[] = {
        "gh200-96gb-480gb", "gh200-144gb-480gb", "gh200-96gb-120gb",   "h200-pcie",
        "h200-sxm",         "emulated-gh200",    "emulated-h200-pcie", "cpu"};

    (void)state;
    for (size_t i = 0; i < N_OF(names); i++) {
        char path[512];
        ls_profile *file = NULL, *profile = builtin(names[i]);
        assert_string_equal(profile->name, names[i]);
        assert_string_equal(profile->origin, "built in");
        assert_true(profile->about[0] != '\0');
        snprintf(path, sizeof path, LS_SOURCE_DIR "/configs/hardware/%s.yaml", names[i]);
        assert_int_equal(ls_profile_read(path, &file), LS_OK);
        assert_int_equal(file->machine.n_links, profile->machine.n_links);
        assert_string_equal(ls_builtin_profiles[i].name, names[i]);
        ls_profile_free(file);
        ls_profile_free(profile);
    }
    assert_null(ls_builtin_profiles[N_OF(names)].name);
}

/* The measured figures that plans rest on. */
static void test_published_figures(void **state)
{
    ls_profile *p = builtin("gh200-96gb-480gb");
    const ls_link *link = link_of(&p->machine, "host", "hbm");

    (void)state;
    assert_is(link->bytes_per_s, 378e9, LS_SOURCE_PUBLISHED);
    assert_is(link->reverse_bytes_per_s, 297e9, LS_SOURCE_PUBLISHED);
    assert_is(link->coherent, 1, LS_SOURCE_SPEC);
    assert_is(place(&p->machine, "host")->read_bytes_per_s, 348e9, LS_SOURCE_PUBLISHED);
    assert_is(place(&p->machine, "host")->best_threads, 32, LS_SOURCE_PUBLISHED);
    assert_is(place(&p->machine, "hbm")->read_bytes_per_s, 3730e9, LS_SOURCE_PUBLISHED);
    assert_is(p->machine.units[0].bf16_flops_per_s, 989e12, LS_SOURCE_SPEC);
    assert_int_equal(p->machine.units[0].n_efficiencies, 9);
    ls_profile_free(p);
    p = builtin("gh200-96gb-120gb");
    assert_is(place(&p->machine, "host")->read_bytes_per_s, 404e9, LS_SOURCE_PUBLISHED);
    ls_profile_free(p);
    p = builtin("emulated-gh200");
    assert_true(p->emulated);
    assert_is(p->throttle_in_bytes_per_s, 3.78e9, LS_SOURCE_PROFILE);
    assert_is(p->throttle_out_bytes_per_s, 2.97e9, LS_SOURCE_PROFILE);
    ls_profile_free(p);
}

/* ---- refused -------------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"about: x\n", "p.yaml:1: lacks 'name'"},
        {"[]", "p.yaml:1: is a list; allowed: keys and values"},
        {"name: x\nplace: []\n", "p.yaml:2: place: unknown key, did you mean 'places'?"},
        {"name: x\nplaces: {}\n", "p.yaml:2: places: is a map; allowed: a list"},
        {"name: x\nplaces:\n  - {kind: hbn}\n",
         "p.yaml:3: places[0].kind: 'hbn' is not known, did you mean 'hbm'?"},
        {"name: x\nplaces:\n  - {capacity_bytes: {value: 1GB, source: spec}}\n",
         "p.yaml:3: places[0]: lacks 'kind'"},
        {"name: x\nplaces: [{kind: hbm}, {kind: hbm}]\n",
         "p.yaml:2: places[1].kind: 'hbm' is described twice"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: 96GB\n",
         "p.yaml:4: places[0].capacity_bytes: wants {value: ..., source: ...}"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: {value: 96GB}\n",
         "places[0].capacity_bytes: wants {value: ..., source: ...}"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: {value: 96GB, source: guess}\n",
         "p.yaml:4: places[0].capacity_bytes.source: 'guess' is not known; allowed: measured, "
         "published, spec, profile, assumed"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: {value: 96 apples, source: spec}\n",
         "p.yaml:4: places[0].capacity_bytes.value: '96 apples' is not"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: {value: 96G, source: spec}\n",
         "p.yaml:4: places[0].capacity_bytes.value: '96G' has no unit of bytes: write 96GiB"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: {value: 0, source: spec}\n",
         "places[0].capacity_bytes.value: 0 bytes are out of range"},
        {"name: x\nplaces:\n- kind: hbm\n  capacity_bytes: {value: 1GB, source: spec, by: me}\n",
         "places[0].capacity_bytes.by: unknown key; allowed: value, source"},
        {"name: x\nplaces:\n- kind: hbm\n  read_bytes_per_s: {value: -1, source: spec}\n",
         "places[0].read_bytes_per_s.value: '-1' is out of range"},
        {"name: x\nplaces:\n- kind: hbm\n  read_bytes_per_s: {value: nan, source: spec}\n",
         "places[0].read_bytes_per_s.value: 'nan' is not"},
        {"name: x\nplaces: [{kind: host}]\nlinks:\n- {from: host, to: hbm}\n",
         "p.yaml:4: links[0].to: there is no 'hbm' among places"},
        {"name: x\nplaces: [{kind: host}, {kind: hbm}]\nlinks:\n- {from: host, to: hbm}\n"
         "- {from: host, to: hbm, reach: local}\n",
         "p.yaml:5: links[1]: the local link from host to hbm is described twice"},
        {"name: x\nplaces: [{kind: host}, {kind: hbm}]\nlinks:\n"
         "- {from: host, to: hbm, coherent: {value: 1, source: spec}}\n",
         "links[0].coherent.value: '1' is not a truth value"},
        {"name: x\nunits:\n- {kind: gpu, cores: {value: 0, source: spec}}\n",
         "units[0].cores.value: '0' is out of range"},
        {"name: x\nunits:\n- kind: gpu\n  efficiency:\n"
         "  - {op: matmul, shape: big, fraction: {value: 1.5, source: spec}}\n",
         "p.yaml:5: units[0].efficiency[0].fraction.value: '1.5' is out of range"},
        {"name: x\nunits:\n- kind: gpu\n  efficiency:\n  - {op: matmul, shape: big}\n",
         "p.yaml:5: units[0].efficiency[0]: wants one of 'fraction' and 'bytes_per_s'"},
        {"name: x\nunits:\n- kind: gpu\n  power_states: {idle: 70}\n",
         "units[0].power_states.idle: wants {value: ..., source: ...}"},
        {"name: x\nmatch: {hbm_bytes: {least: 2GB, most: 1GB}}\n",
         "p.yaml:2: match.hbm_bytes: least is more than most"},
        {"name: x\nmatch: {gpu: [a, b, c, d, e]}\n", "match.gpu[4]: allowed: at most 4 words"},
        {"name: x\nmatch: {c2c_link: maybe}\n", "match.c2c_link: 'maybe' is not a truth value"},
        {"name: x\nthrottle: {in_bytes_per_s: {value: 1e9, source: profile}}\n",
         "p.yaml:2: throttle: only an emulated profile has links to throttle"},
        {"name: x\nemulated: true\n",
         "p.yaml:1: an emulated profile wants a place 'hbm' with capacity_bytes"},
        {"name: x\nnvme: {path: /tmp}\n", "p.yaml:2: nvme: there is no 'nvme' among places"},
        {"name: x\nlimits: {power: 3}\n", "limits.power: unknown key"},
        {"name: a-name-that-is-far-too-long-for-a-profile\n",
         "p.yaml:1: name: is a text of 41 bytes; allowed: at most 31"},
        {"name: [\n", "p.yaml:"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_profile *profile = NULL;
        if (ls_profile_parse("p.yaml", cases[i].text, strlen(cases[i].text), &profile) !=
            LS_ERR_INVALID)
            fail_msg("not refused: %s", cases[i].text);
        assert_null(profile);
        assert_error_says(cases[i].message);
    }
}

static void test_unknown_name(void **state)
{
    ls_profile *profile = NULL;

    (void)state;
    assert_int_equal(ls_profile_read("h200-pci", &profile), LS_ERR_INVALID);
    assert_error_says("hardware: 'h200-pci' is no profile, did you mean 'h200-pcie'?; known: auto, "
                      "gh200-96gb-480gb, ");
    assert_int_equal(ls_profile_read("none/such.yaml", &profile), LS_ERR_INVALID);
    assert_error_says("none/such.yaml");
}

/* A profile in configs/hardware of the working directory comes before the built-in one. */
static void test_working_directory(void **state)
{
    (void)state;
    put_machine_file(scratch, "/configs/hardware/h200-pcie.yaml", "name: mine");
    ls_profile *p = builtin("h200-pcie");
    assert_string_equal(p->name, "mine");
    assert_string_equal(p->origin, "configs/hardware/h200-pcie.yaml");
    ls_profile_free(p);
    assert_int_equal(ls_directory_remove("configs"), LS_OK);
}

/* ---- merging -------------------------------------------------------------------------------- */

/* measured > profile > discovered > published > spec > assumed. */
static void test_precedence(void **state)
{
    static const struct {
        ls_source kept, other;
        bool replaced;
    } cases[] = {
        {LS_SOURCE_DISCOVERED, LS_SOURCE_ASSUMED, false},
        {LS_SOURCE_DISCOVERED, LS_SOURCE_SPEC, false},
        {LS_SOURCE_DISCOVERED, LS_SOURCE_PUBLISHED, false},
        {LS_SOURCE_DISCOVERED, LS_SOURCE_PROFILE, true},
        {LS_SOURCE_DISCOVERED, LS_SOURCE_MEASURED, true},
        {LS_SOURCE_SPEC, LS_SOURCE_PUBLISHED, true},
        {LS_SOURCE_ASSUMED, LS_SOURCE_SPEC, true},
        {LS_SOURCE_UNKNOWN, LS_SOURCE_ASSUMED, true},
        {LS_SOURCE_MEASURED, LS_SOURCE_PROFILE, false},
        {LS_SOURCE_MEASURED, LS_SOURCE_MEASURED, true},
        {LS_SOURCE_PUBLISHED, LS_SOURCE_UNKNOWN, false},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_quantity kept = {1, cases[i].kept, "a"};
        ls_quantity_merge(&kept, (ls_quantity){2, cases[i].other, "b"});
        assert_true((kept.value == 2) == cases[i].replaced);
    }
}

static void test_merge_fills(void **state)
{
    ls_topology *t = discover("x86-h200-pcie");
    ls_profile *p = builtin("h200-pcie");

    (void)state;
    if (ls_profile_merge(p, NULL, t) != LS_OK) fail_msg("%s", ls_error());
    assert_string_equal(t->profile, "h200-pcie");
    assert_is(place(t, "host1")->capacity_bytes, 516060 * 1048576.0, LS_SOURCE_DISCOVERED);
    assert_is(place(t, "hbm0")->capacity_bytes, 141e9, LS_SOURCE_SPEC);
    assert_is(link_of(t, "host1", "hbm0")->bytes_per_s, 53e9, LS_SOURCE_PUBLISHED);
    assert_is(link_of(t, "host0", "hbm0")->bytes_per_s, 40e9, LS_SOURCE_ASSUMED); /* remote */
    assert_string_equal(link_of(t, "host1", "hbm0")->via, "pcie 5.0 x16");
    assert_false(ls_known(link_of(t, "host0", "host1")->bytes_per_s));
    assert_is(ls_topology_find_unit(t, LS_UNIT_GPU)->bf16_flops_per_s, 835e12, LS_SOURCE_SPEC);
    assert_is(t->facts.hbm_is_numa, 0, LS_SOURCE_DISCOVERED);
    ls_profile_free(p);
    ls_topology_free(t);
}

/* A profile holds for each GPU and host node of a machine with several. */
static void test_merge_several(void **state)
{
    ls_topology *t = discover("gh200-quad");
    ls_profile *p = builtin("gh200-96gb-120gb");

    (void)state;
    assert_int_equal(ls_profile_merge(p, NULL, t), LS_OK);
    assert_is(link_of(t, "host2", "hbm2")->bytes_per_s, 375e9, LS_SOURCE_PUBLISHED);
    assert_is(link_of(t, "host1", "hbm2")->bytes_per_s, 132e9, LS_SOURCE_ASSUMED);
    assert_is(link_of(t, "host0", "host3")->bytes_per_s, 68e9, LS_SOURCE_PUBLISHED);
    assert_is(place(t, "host3")->read_bytes_per_s, 404e9, LS_SOURCE_PUBLISHED);
    ls_profile_free(p);
    ls_topology_free(t);
}

static void test_profile_decides(void **state)
{
    ls_topology *t = discover("gh200-480gb-numa");
    ls_profile *p = parse("name: mine\n"
                          "places:\n"
                          "- {kind: hbm, capacity_bytes: {value: 80GB, source: profile}}\n"
                          "- {kind: host, read_bytes_per_s: {value: 301e9, source: measured}}\n"
                          "- {kind: nvme, capacity_bytes: {value: 2TB, source: profile}}\n"
                          "nvme: {path: /scratch}\n"
                          "links:\n"
                          "- {from: nvme, to: host, bytes_per_s: {value: 9e9, source: assumed}}\n"
                          "limits: {power_cap_watts: {value: 500, source: profile}}\n");
    ls_profile *known = builtin("gh200-96gb-480gb");

    (void)state;
    assert_int_equal(ls_profile_merge(known, NULL, t), LS_OK);
    assert_int_equal(ls_profile_merge(p, NULL, t), LS_OK);
    assert_is(place(t, "hbm0")->capacity_bytes, 80e9, LS_SOURCE_PROFILE);
    assert_is(place(t, "host0")->read_bytes_per_s, 301e9, LS_SOURCE_MEASURED); /* 348: published */
    assert_is(place(t, "host0")->write_bytes_per_s, 348e9, LS_SOURCE_PUBLISHED);
    assert_string_equal(place(t, "nvme")->path, "/scratch");
    assert_is(link_of(t, "nvme", "host0")->bytes_per_s, 9e9, LS_SOURCE_ASSUMED);
    assert_is(t->system.power_caps[5].watts, 500, LS_SOURCE_PROFILE);
    ls_profile_free(known);
    ls_profile_free(p);
    ls_topology_free(t);
}

static void test_emulated(void **state)
{
    static const char *const machines[] = {"laptop", "x86-h200-pcie"};
    ls_profile *p = builtin("emulated-gh200");

    (void)state;
    for (size_t m = 0; m < N_OF(machines); m++) {
        ls_topology *t = discover(machines[m]);
        const int n_hosts = m == 0 ? 1 : 2;
        if (ls_profile_merge(p, NULL, t) != LS_OK) fail_msg("%s", ls_error());
        assert_int_equal(t->n_places, n_hosts + 1); /* a real GPU gives way */
        assert_true(place(t, "hbm0")->emulated);
        assert_is(place(t, "hbm0")->capacity_bytes, 64 << 20, LS_SOURCE_PROFILE);
        assert_false(place(t, "host0")->emulated);
        assert_is(link_of(t, "host0", "hbm0")->bytes_per_s, 3.78e9, LS_SOURCE_PROFILE);
        assert_is(t->facts.c2c_link, 1, LS_SOURCE_PROFILE);
        assert_is(t->facts.coherent, 1, LS_SOURCE_PROFILE);
        assert_is(t->facts.hbm_is_numa, 0, LS_SOURCE_PROFILE);
        assert_null(ls_topology_find_real_gpu(t));
        for (int u = 0; u < t->n_units; u++)
            assert_int_equal(t->places[t->units[u].place].kind,
                             t->units[u].kind == LS_UNIT_GPU ? LS_PLACE_HBM : LS_PLACE_HOST);
        for (int a = 0; a < t->n_advice; a++) /* it is no Grace */
            assert_string_not_equal(t->advice[a].topic, "page_size");
        ls_topology_free(t);
    }
    ls_profile_free(p);
}

static void test_describe(void **state)
{
    ls_profile *p = builtin("gh200-96gb-480gb");
    ls_topology *t = NULL;

    (void)state;
    assert_int_equal(ls_profile_describe(p, &t), LS_OK);
    assert_int_equal(t->n_places, 2);
    assert_is(t->facts.c2c_link, 1, LS_SOURCE_SPEC);
    assert_is(t->facts.coherent, 1, LS_SOURCE_SPEC);
    assert_false(ls_known(t->facts.hbm_is_numa)); /* either mode of the driver */
    ls_topology_free(t);
    ls_profile_free(p);
}

/* No figure is given to a link of which nobody knows whether it is the near one. */
static void test_unknown_host(void **state)
{
    ls_topology *t = discover("x86-h200-pcie");
    ls_profile *p = builtin("h200-pcie");

    (void)state;
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == LS_UNIT_GPU) t->units[u].host_node = (ls_quantity){0};
    for (int l = 0; l < t->n_links; l++) {
        t->links[l].remote = false;
        t->links[l].bytes_per_s = (ls_quantity){0};
    }
    assert_int_equal(ls_profile_merge(p, NULL, t), LS_OK);
    assert_false(ls_known(link_of(t, "host0", "hbm0")->bytes_per_s));
    assert_false(ls_known(link_of(t, "host1", "hbm0")->bytes_per_s));
    ls_profile_free(p);
    ls_topology_free(t);
}

/* ---- auto ----------------------------------------------------------------------------------- */

static void test_auto(void **state)
{
    static const struct {
        const char *machine, *profile, *reason;
    } cases[] = {
        {"gh200-480gb-numa", "gh200-96gb-480gb",
         "gpu0 is 'NVIDIA GH200 480GB', HBM 95.0 GiB, nearest host memory 478.6 GiB"},
        {"gh200-480gb-cdmm", "gh200-96gb-480gb", "the size of gpu0's HBM is not known"},
        {"gh200-120gb", "gh200-96gb-120gb", "nearest host memory 116.0 GiB"},
        {"gh200-quad", "gh200-96gb-120gb", "nearest host memory 119.0 GiB"},
        {"gh200-nvl2", "gh200-144gb-480gb", "HBM 143.0 GiB"},
        {"x86-h200-pcie", "h200-pcie", "NVIDIA H200 NVL"},
        {"hgx-h200", "h200-sxm", "NVIDIA H200'"},
        {"laptop", "cpu", "no NVIDIA GPU is here"},
        {"container", "cpu", "no NVIDIA GPU is known to be here"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        char reason[LS_REASON_BYTES];
        ls_topology *t = discover(cases[i].machine);
        ls_profile *p = NULL;
        if (ls_profile_choose(t, &p, reason, sizeof reason) != LS_OK) fail_msg("%s", ls_error());
        if (strcmp(p->name, cases[i].profile) != 0 || strstr(reason, cases[i].reason) == NULL)
            fail_msg("%s: %s, %s", cases[i].machine, p->name, reason);
        if (ls_profile_merge(p, reason, t) != LS_OK) fail_msg("%s", ls_error());
        assert_string_equal(t->profile_reason, reason);
        ls_profile_free(p);
        ls_topology_free(t);
    }
}

/* Nothing tells which host memory is nearest: where all are alike their size is the machine's, and
 * where they differ none of them contradicts alone. */
static void test_auto_unknown_host_node(void **state)
{
    static const struct {
        double host3_bytes; /* 0: as it is */
        const char *profile, *reason;
    } cases[] = {
        {0, "gh200-96gb-120gb", "nearest host memory unknown, the largest 119.0 GiB"},
        {480e9, "gh200-96gb-480gb", "the size of gpu3's host memory is not known"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        char reason[LS_REASON_BYTES];
        ls_topology *t = discover("gh200-quad");
        ls_profile *p = NULL;
        for (int u = 0; u < t->n_units; u++) t->units[u].host_node = (ls_quantity){0};
        for (int h = 0; h < t->n_places && cases[i].host3_bytes > 0; h++)
            if (strcmp(t->places[h].name, "host3") == 0)
                t->places[h].capacity_bytes.value = cases[i].host3_bytes;
        assert_int_equal(ls_profile_choose(t, &p, reason, sizeof reason), LS_OK);
        if (strcmp(p->name, cases[i].profile) != 0 || strstr(reason, cases[i].reason) == NULL)
            fail_msg("%s: %s", p->name, reason);
        ls_profile_free(p);
        p = builtin("gh200-96gb-480gb");
        const bool fits = cases[i].host3_bytes > 0;
        assert_int_equal(ls_profile_merge(p, NULL, t), fits ? LS_OK : LS_ERR_INVALID);
        if (!fits) assert_error_says("of host memory, host3 here has 119.0 GiB");
        ls_profile_free(p);
        ls_topology_free(t);
    }
}

static void test_auto_unknown_gpu(void **state)
{
    char reason[LS_REASON_BYTES];
    ls_topology *t = discover("x86-h200-pcie");
    ls_profile *p = NULL;

    (void)state;
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == LS_UNIT_GPU) strcpy(t->units[u].model, "NVIDIA GeForce RTX 4090");
    assert_int_equal(ls_profile_choose(t, &p, reason, sizeof reason), LS_OK);
    assert_string_equal(p->name, "cpu");
    assert_non_null(strstr(reason, "'NVIDIA GeForce RTX 4090', HBM unknown"));
    assert_non_null(strstr(reason, "no built-in profile is sure to fit it"));
    ls_profile_free(p);
    ls_topology_free(t);
}

/* ---- contradictions ------------------------------------------------------------------------- */

static void test_contradictions(void **state)
{
    static const struct {
        const char *machine, *profile, *message;
    } cases[] = {
        {"gh200-480gb-numa", "h200-pcie",
         "it is for a GPU with NVL in its name, gpu0 here is 'NVIDIA GH200 480GB'"},
        {"gh200-480gb-numa", "gh200-96gb-120gb",
         "it is for 83.8 GiB to 130.4 GiB of host memory, host0 here has 478.6 GiB (discovered: "},
        {"gh200-480gb-numa", "gh200-144gb-480gb",
         "it is for 121.1 GiB to 149.0 GiB of HBM, hbm0 here has 95.0 GiB (discovered: "},
        {"gh200-nvl2", "gh200-96gb-480gb", "of HBM, hbm0 here has 143.0 GiB"},
        {"x86-h200-pcie", "gh200-96gb-480gb",
         "it is for a GPU with GH200 in its name, gpu0 here is 'NVIDIA H200 NVL'"},
        {"x86-h200-pcie", "h200-sxm",
         "it is for a GPU without NVL in its name, gpu0 here is 'NVIDIA H200 NVL'"},
        {"laptop", "gh200-96gb-480gb", "it is for a machine with a GPU, none is here"},
    };

    (void)state;
    for (size_t i = 0; i < N_OF(cases); i++) {
        ls_topology *t = discover(cases[i].machine);
        ls_profile *p = builtin(cases[i].profile);
        assert_int_equal(ls_profile_merge(p, NULL, t), LS_ERR_INVALID);
        assert_error_says("contradicts");
        assert_error_says(cases[i].message);
        assert_string_equal(t->profile, ""); /* and nothing was merged */
        ls_profile_free(p);
        ls_topology_free(t);
    }
}

static void test_coherence_contradicts(void **state)
{
    ls_topology *t = discover("gh200-480gb-numa");
    ls_profile *p = builtin("gh200-96gb-480gb");

    (void)state;
    for (int u = 0; u < t->n_units; u++)
        if (t->units[u].kind == LS_UNIT_GPU)
            t->units[u].facts.coherent = ls_discovered(0, "uvm_ats_mode");
    assert_int_equal(ls_profile_merge(p, NULL, t), LS_ERR_INVALID);
    assert_error_says("it is for a GPU with coherent addressing, gpu0 here has none (discovered: "
                      "uvm_ats_mode)");
    ls_profile_free(p);
    ls_topology_free(t);
}

static void test_too_much_memory(void **state)
{
    static const char *const texts[] = {
        "name: x\nplaces: [{kind: host, capacity_bytes: {value: 20GiB, source: profile}}]\n",
        "name: x\nemulated: true\n"
        "places: [{kind: hbm, capacity_bytes: {value: 20GiB, source: profile}}]\n",
    };
    static const char *const messages[] = {"it takes 20.0 GiB for host, host0 has 15.5 GiB",
                                           "it takes 20.0 GiB for hbm, host0 has 15.5 GiB"};

    (void)state;
    for (size_t i = 0; i < N_OF(texts); i++) {
        ls_topology *t = discover("laptop");
        ls_profile *p = parse(texts[i]);
        assert_int_equal(ls_profile_merge(p, NULL, t), LS_ERR_INVALID);
        assert_error_says(messages[i]);
        ls_profile_free(p);
        ls_topology_free(t);
    }
}

/* The schema in the tree is the tables'.  To renew it: copy the file this test writes. */
static void test_shipped_schema(void **state)
{
    cJSON *made = NULL, *shipped = NULL;

    (void)state;
    assert_int_equal(ls_profile_schema(&made), LS_OK);
    assert_int_equal(ls_json_write(LS_BINARY_DIR "/hardware.schema.json", made), LS_OK);
    if (ls_json_read(LS_SOURCE_DIR "/configs/schema/hardware.schema.json", &shipped) != LS_OK)
        fail_msg("%s", ls_error());
    if (!cJSON_Compare(made, shipped, 1))
        fail_msg("configs/schema/hardware.schema.json is not the tables'; it should be %s",
                 LS_BINARY_DIR "/hardware.schema.json");
    cJSON_Delete(made);
    cJSON_Delete(shipped);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shipped),           cmocka_unit_test(test_shipped_schema),
        cmocka_unit_test(test_published_figures), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_unknown_name),      cmocka_unit_test(test_working_directory),
        cmocka_unit_test(test_precedence),        cmocka_unit_test(test_merge_fills),
        cmocka_unit_test(test_merge_several),     cmocka_unit_test(test_profile_decides),
        cmocka_unit_test(test_emulated),          cmocka_unit_test(test_unknown_host),
        cmocka_unit_test(test_describe),          cmocka_unit_test(test_auto),
        cmocka_unit_test(test_auto_unknown_gpu),  cmocka_unit_test(test_auto_unknown_host_node),
        cmocka_unit_test(test_contradictions),    cmocka_unit_test(test_coherence_contradicts),
        cmocka_unit_test(test_too_much_memory),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
