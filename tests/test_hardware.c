/*
 * test_hardware.c - where a run would lie on each machine of tests/machines: whose device memory,
 * how much of it, which NUMA node for host memory, how weights are used, and why.
 *
 * The GPU is taken as usable, which a build without its device does not.
 */
#include <math.h>

#include "choices.h"
#include "cost.h"
#include "machine_test.h"
#include "profile.h"

#define KIB 1024.0
#define MIB 1048576.0

static char scratch[256];

static int make_scratch(void **state)
{
    (void)state;
    return make_machines_folder(scratch, sizeof scratch);
}

static int remove_scratch(void **state)
{
    (void)state;
    return ls_directory_remove(scratch) == LS_OK ? 0 : -1;
}

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != LS_OK) fail_msg("%s: %s", #call, ls_error());                                \
    } while (0)

static const char *folder(const char *machine)
{
    static char root[512];
    snprintf(root, sizeof root, "%s/%s", scratch, machine);
    return root;
}

/* The machine in a folder with the profile that fits it. */
static ls_topology *discover(const char *root)
{
    ls_topology *t = NULL;
    assert_ok(ls_machine_open(root, "auto", &t));
    return t;
}

static ls_hardware find_room(const char *root, bool use_gpu, ls_topology *t)
{
    ls_hardware h = {.topology = t};
    ls_hardware_find_room(root, use_gpu, &h);
    return h;
}

static ls_hardware open_machine(const char *machine)
{
    unpack_machine(machine, folder(machine));
    return find_room(folder(machine), true, discover(folder(machine)));
}

static void assert_says(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' lacks '%s'", text, part);
}

static void assert_bytes(const char *what, uint64_t bytes, double expected)
{
    if ((double)bytes != expected)
        fail_msg("%s: %.0f bytes, not %.0f", what, (double)bytes, expected);
}

/* ---- each machine ---------------------------------------------------------------------------- */

/* A 7B model on 512k tokens. */
static const ls_model_config llama_7b = {.vocab_size = 32000,
                                         .hidden_size = 4096,
                                         .intermediate_size = 11008,
                                         .num_hidden_layers = 32,
                                         .num_attention_heads = 32,
                                         .num_key_value_heads = 32,
                                         .head_dim = 128,
                                         .max_position_embeddings = 524288,
                                         .rms_norm_eps = 1e-5};

static const ls_run_config long_run = {
    .precision = LS_DTYPE_BF16,
    .sequence_tokens = 524288,
    .chunk = 16384,
    .query_block = 65536,
    .sequences = 1,
    .accumulate = 1,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-8,
    .clip_norm = 1.0,
    .saves = {.n_ranges = 1,
              .ranges = {{.last = LS_SAVE_LAYERS_ALL, .policy = {.o = true, .x_stride = 1}}}},
    .steps = 1};

static ls_placement place_long_run(const ls_hardware *h)
{
    ls_choices choices = {.chunk = long_run.chunk,
                          .query_block = long_run.query_block,
                          .loss_rows =
                              ls_decoder_loss_rows(llama_7b.vocab_size, long_run.chunk, true),
                          .saves = long_run.saves};
    assert_ok(ls_choices_place(&long_run, &llama_7b, h, true, false, &choices));
    return choices.placement;
}

typedef struct decision {
    const char *machine;
    const char *device; /* NULL: the CPU computes */
    double hbm_bytes;
    int host_node;
    const char *host_reason;
    double host_bytes;
    const char *limit;
    bool coherent;
    ls_place_mode weights;
    bool in_blocks; /* activations pass through in blocks of rows */
} decision;

#define NEAREST "NUMA node nearest to the GPU"
/* 20 GiB of files lie in that GPU's memory: 74.4 GiB are free, and all that is wanted needs 63.8.
 */
#define CACHED ((97280.0 - 600 - 20480) * MIB)

static const decision decisions[] = {
    {"gh200-480gb-numa", "hbm0", CACHED, 0, "bound to NUMA node 0: nearest to gpu0 (discovered: ",
     492069888 * KIB, NEAREST, true, LS_MODE_RESIDENT, false},
    {"gh200-480gb-cdmm", "hbm0", 97280 * MIB, -1, "not bound: there is one NUMA node",
     492581888 * KIB, "MemAvailable", true, LS_MODE_RESIDENT, false},
    {"gh200-120gb", "hbm0", 99000320 * KIB, 0, "bound to NUMA node 0: ", 119586816 * KIB, NEAREST,
     true, LS_MODE_RESIDENT, false},
    {"gh200-quad", "hbm0", 99000320 * KIB, 0, "bound to NUMA node 0: ", 121708544 * KIB, NEAREST,
     true, LS_MODE_RESIDENT, false},
    {"gh200-nvl2", "hbm0", 149024768 * KIB, 0, "bound to NUMA node 0: ", 496099328 * KIB, NEAREST,
     true, LS_MODE_RESIDENT, false},
    {"x86-h200-pcie", "hbm0", 141e9, 1, "bound to NUMA node 1: nearest to gpu0 (discovered: ",
     525373440 * KIB, NEAREST, false, LS_MODE_RESIDENT, false},
    {"hgx-h200", "hbm0", 141e9, 0, "bound to NUMA node 0: nearest to gpu0 (discovered: ",
     1052303360 * KIB, NEAREST, false, LS_MODE_RESIDENT, false},
    {"laptop", NULL, 0, -1, "", 11235328 * KIB, "MemAvailable", false, LS_MODE_DIRECT, false},
    {"container", NULL, 0, -1, "", 17179869184 - 3221225472.0, "cgroup memory limit", false,
     LS_MODE_DIRECT, false},
};

/* Host memory is never bound to a GPU's. */
static void assert_host_is_host(const ls_hardware *h)
{
    for (int p = 0; p < h->topology->n_places; p++) {
        const ls_place *place = &h->topology->places[p];
        if (place->kind == LS_PLACE_HBM && place->numa_node >= 0)
            assert_int_not_equal(place->numa_node, h->host_node);
    }
}

static void check_decision(const decision *d)
{
    ls_hardware h = open_machine(d->machine);
    const ls_place *device = ls_topology_find_device_memory(h.topology);
    const ls_placement placement = place_long_run(&h);

    print_message("%s: host memory %s; weights %s: %s\n", d->machine,
                  d->device != NULL ? h.host_reason : "of the CPU",
                  ls_mode_name(placement.classes[LS_CLASS_WEIGHTS].mode),
                  placement.classes[LS_CLASS_WEIGHTS].reason);
    assert_int_equal(h.has_device, d->device != NULL);
    if (d->device != NULL) assert_string_equal(device->name, d->device);
    assert_bytes("hbm", h.available_bytes[LS_PLACE_HBM], d->hbm_bytes);
    assert_int_equal(h.host_node, d->host_node);
    assert_says(h.host_reason, d->host_reason);
    assert_bytes("host", h.available_bytes[LS_PLACE_HOST], d->host_bytes);
    assert_string_equal(h.limit, d->limit);
    assert_host_is_host(&h);
    assert_int_equal(placement.coherent, d->coherent);
    assert_int_equal(placement.classes[LS_CLASS_WEIGHTS].mode, d->weights);
    assert_int_equal(placement.tiled[LS_CLASS_X], d->in_blocks);
    for (int c = 0; c < LS_CLASS_COUNT; c++) assert_true(placement.classes[c].reason[0] != '\0');
    ls_hardware_close(&h);
}

static void test_decisions(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof decisions / sizeof decisions[0]; d++)
        check_decision(&decisions[d]);
}

/* ---- which GPU --------------------------------------------------------------------------------
 */

/* CUDA numbers what it shows: CUDA_VISIBLE_DEVICES=2 makes the third its first. */
static void test_visible_gpu(void **state)
{
    unpack_machine("gh200-quad", folder("visible"));
    ls_topology *t = discover(folder("visible"));
    ls_place *memory = NULL;

    (void)state;
    for (int u = 0; u < t->n_units; u++) {
        if (strcmp(t->units[u].name, "gpu2") != 0) continue;
        t->units[u].cuda_rank = 1;
        memory = &t->places[t->units[u].place];
    }
    assert_non_null(memory);
    ls_hardware h = find_room(folder("visible"), true, t);
    assert_int_equal(h.host_node, 2);
    assert_says(h.host_reason, "nearest to gpu2");
    assert_ptr_equal(ls_topology_find_device_memory(t), memory);
    assert_bytes("hbm", h.available_bytes[LS_PLACE_HBM], 95928320 * KIB);

    ls_placement placement;
    assert_ok(ls_placement_decide(t, &(ls_placement_wish){.ring_slots = 0}, &placement));
    assert_true(placement.coherent);
    ls_hardware_close(&h);
}

/* ---- changed machines -------------------------------------------------------------------------
 */

/* The decision where so many KiB of the first GPU's memory are free. */
static ls_placement place_in_free(const char *name, int64_t kib)
{
    char meminfo[128];

    unpack_machine("gh200-480gb-numa", folder(name));
    snprintf(meminfo, sizeof meminfo, "Node 1 MemTotal: 99614720 kB\nNode 1 MemFree: %lld kB",
             (long long)kib);
    put_machine_file(folder(name), "/sys/devices/system/node/node1/meminfo", meminfo);
    ls_hardware h = find_room(folder(name), true, discover(folder(name)));
    assert_bytes("hbm", h.available_bytes[LS_PLACE_HBM], (double)kib * KIB);
    const ls_placement placement = place_long_run(&h);
    ls_hardware_close(&h);
    return placement;
}

/* With the files dropped, as advised, whole activations fit; in half of that not even weights. */
static void test_free_memory_decides(void **state)
{
    const ls_placement dropped = place_in_free("dropped", 99000320);
    const ls_placement half = place_in_free("half", 40 << 20);

    (void)state;
    assert_int_equal(dropped.classes[LS_CLASS_WEIGHTS].mode, LS_MODE_RESIDENT);
    assert_false(dropped.tiled[LS_CLASS_X]);
    assert_int_equal(half.classes[LS_CLASS_WEIGHTS].mode, LS_MODE_STREAM);
    assert_says(half.classes[LS_CLASS_WEIGHTS].reason, "does not fit device memory");
    assert_true(half.tiled[LS_CLASS_X]);
}

/* Where nothing tells which node is near, none is guessed; all of them have room. */
static void test_unknown_node(void **state)
{
    unpack_machine("x86-snc-cxl", folder("unknown"));
    put_machine_file(folder("unknown"), "/sys/bus/pci/devices/0000:ab:00.0/numa_node", "-1");
    ls_hardware h = find_room(folder("unknown"), true, discover(folder("unknown")));

    (void)state;
    assert_int_equal(h.host_node, -1);
    assert_says(h.host_reason, "not bound: nothing tells which NUMA node is nearest to gpu0");
    assert_string_equal(h.limit, "MemAvailable");
    ls_hardware_close(&h);
}

/* A batch system's limit is less than the node has. */
static void test_limited_job(void **state)
{
    unpack_machine("gh200-480gb-numa", folder("job"));
    put_machine_file(folder("job"), "/proc/self/cgroup", "0::/job");
    put_machine_file(folder("job"), "/sys/fs/cgroup/job/memory.max", "107374182400");
    put_machine_file(folder("job"), "/sys/fs/cgroup/job/memory.current", "7374182400");
    ls_hardware h = find_room(folder("job"), true, discover(folder("job")));

    (void)state;
    assert_int_equal(h.host_node, 0);
    assert_bytes("host", h.available_bytes[LS_PLACE_HOST], 100e9);
    assert_string_equal(h.limit, "cgroup memory limit");
    ls_hardware_close(&h);
}

/* The CPU of a Grace Hopper: MemAvailable counts the GPU's memory, which is not for programs. */
static void test_cpu_of_a_gpu_machine(void **state)
{
    unpack_machine("gh200-nvl2", folder("cpu"));
    ls_hardware h = find_room(folder("cpu"), false, discover(folder("cpu")));

    (void)state;
    assert_false(h.has_device);
    assert_int_equal(h.available_bytes[LS_PLACE_HBM], 0);
    assert_int_equal(h.host_node, -1);
    assert_string_equal(h.host_reason, "");
    assert_bytes("host", h.available_bytes[LS_PLACE_HOST], 2 * 496099328 * KIB);
    assert_string_equal(h.limit, "NUMA nodes of the host");
    ls_hardware_close(&h);
}

/* Device memory carved from the host's needs no node. */
static void test_emulated(void **state)
{
    ls_hardware h;

    (void)state;
    assert_ok(ls_hardware_open("emulated-gh200", true, &h));
    assert_true(h.has_device && h.emulated);
    assert_bytes("hbm", h.available_bytes[LS_PLACE_HBM], 64 * MIB);
    assert_int_equal(h.host_node, -1);
    assert_string_equal(h.host_reason, "not bound: device memory is emulated");
    ls_hardware_close(&h);
}

/* Plans for a machine elsewhere: by cuDNN's rates and with its scratch where sums may have any
 * order, else by those of our own kernels. */
static void test_attention_expected(void **state)
{
    static const struct {
        bool any_order;
        double forward, backward; /* TFLOP/s at 32k */
    } expected[] = {{true, 688, 581}, {false, 350, 215}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        const ls_op_args block = {.attention_backward = {.N = 65536,
                                                         .M = 65536,
                                                         .H = 28,
                                                         .G = 4,
                                                         .K = 128,
                                                         .any_order = expected[i].any_order,
                                                         .dtype = LS_DTYPE_BF16}};
        ls_hardware h;
        assert_ok(ls_hardware_open("gh200-96gb-480gb", false, &h));
        ls_hardware_expect_kernels(expected[i].any_order, &h);
        const ls_cost_model model = ls_cost_model_make(h.topology, true, LS_DTYPE_BF16);
        const double forward = ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_FORWARD], 32768);
        const double backward = ls_rate_curve_at(&model.rates[LS_RATE_ATTENTION_BACKWARD], 32768);
        assert_true(fabs(1e-12 * forward - expected[i].forward) < 1.0);
        assert_true(fabs(1e-12 * backward - expected[i].backward) < 1.0);
        assert_true((h.ops->workspace_bytes(LS_OP_attention_backward, &block) > 2000000000) ==
                    expected[i].any_order);
        ls_hardware_close(&h);
    }
}

/* Of the memory that the run uses, and only where it was timed. */
static void test_optimizer_threads(void **state)
{
    (void)state;
    ls_topology *t = calloc(1, sizeof *t);
    ls_run_config config = {.optimizer_threads = 0};
    ls_hardware h = {.topology = t, .host_node = -1};

    assert_non_null(t);
    t->n_places = 2;
    for (int p = 0; p < 2; p++) {
        t->places[p].kind = LS_PLACE_HOST;
        t->places[p].numa_node = p;
        t->places[p].best_threads = ls_quantity_make(20 + p, LS_SOURCE_MEASURED, "");
    }
    assert_int_equal(ls_choices_optimizer_threads(&config, &h), 20);
    h.host_node = 1;
    assert_int_equal(ls_choices_optimizer_threads(&config, &h), 21);
    t->places[1].best_threads.source = LS_SOURCE_PUBLISHED;
    assert_int_equal(ls_choices_optimizer_threads(&config, &h), 0);
    assert_int_equal(ls_choices_optimizer_threads(&config, NULL), 0);
    config.optimizer_threads = 3;
    assert_int_equal(ls_choices_optimizer_threads(&config, &h), 3);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decisions),
        cmocka_unit_test(test_visible_gpu),
        cmocka_unit_test(test_free_memory_decides),
        cmocka_unit_test(test_unknown_node),
        cmocka_unit_test(test_limited_job),
        cmocka_unit_test(test_cpu_of_a_gpu_machine),
        cmocka_unit_test(test_emulated),
        cmocka_unit_test(test_attention_expected),
        cmocka_unit_test(test_optimizer_threads),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
