/* advice.c - what to change on a machine, from what is known of it: one function for each topic. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "discover.h"
#include "text.h"

#define MIB 0x1p20
#define GIB 0x1p30

#define PAGE_CACHE_BYTES_MUCH (1 * GIB)
#define MEMLOCK_BYTES_LITTLE  (64 * MIB)

static void advise(ls_topology *t, const char *topic, bool needs_root, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static void advise(ls_topology *t, const char *topic, bool needs_root, const char *format, ...)
{
    va_list args;

    if (t->n_advice == LS_ADVICE_MAX) return;
    ls_advice *advice = &t->advice[t->n_advice++];
    snprintf(advice->topic, sizeof advice->topic, "%s", topic);
    advice->needs_root = needs_root;
    va_start(args, format);
    vsnprintf(advice->text, sizeof advice->text, format, args);
    va_end(args);
}

static bool is_grace(const ls_topology *t)
{
    return ls_topology_find_real_gpu(t) != NULL && ls_is_true(t->facts.c2c_link);
}

static const char *bytes_text(double bytes)
{
    static char buffers[4][LS_TEXT_BYTES];
    static unsigned next;
    return ls_text_bytes(buffers[next++ % 4], LS_TEXT_BYTES, (uint64_t)bytes);
}

static void advise_pages(ls_topology *t)
{
    const ls_system *s = &t->system;

    if (is_grace(t) && ls_known(s->page_bytes) && s->page_bytes.value < 65536)
        advise(t, "page_size", true,
               "the kernel has %.0f KiB pages; NVIDIA recommends a 64 KiB kernel on Grace: fewer "
               "TLB misses where the GPU reads host memory",
               s->page_bytes.value / 1024);
    if (strcmp(s->huge_pages, "never") == 0)
        advise(t, "huge_pages", true,
               "transparent huge pages are off; 'echo madvise > "
               "/sys/kernel/mm/transparent_hugepage/enabled' lets arenas ask for %s pages",
               ls_known(s->huge_page_bytes) ? bytes_text(s->huge_page_bytes.value) : "huge");
}

static void advise_kernel(ls_topology *t)
{
    const ls_system *s = &t->system;

    if (ls_is_true(s->numa_balancing))
        advise(t, "numa_balancing", true,
               "the kernel unmaps pages to see who uses them; 'sysctl kernel.numa_balancing=0', or "
               "numa_balancing=disable at boot: memory is placed by the plan");
    if (ls_is_true(s->init_on_alloc))
        advise(t, "init_on_alloc", true,
               "the kernel clears each page that it hands out, and the first touch clears it "
               "again; boot with init_on_alloc=0");
    if (is_grace(t) && s->cpu_governor[0] != '\0' && strcmp(s->cpu_governor, "performance") != 0)
        advise(t, "cpu_governor", true,
               "the CPU frequency governor is '%s'; 'cpupower "
               "frequency-set -g performance' keeps the optimizer's threads fast",
               s->cpu_governor);
}

static void advise_limits(ls_topology *t)
{
    const ls_system *s = &t->system;
    double host = 0;

    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HOST && ls_known(t->places[p].capacity_bytes))
            host += t->places[p].capacity_bytes.value;
    if (ls_known(s->memory_limit_bytes) && s->memory_limit_bytes.value < host)
        advise(t, "memory_limit", false,
               "the cgroup allows %s of %s of host memory; ask the scheduler or the container for "
               "more (--mem, --memory)",
               bytes_text(s->memory_limit_bytes.value), bytes_text(host));
    if (ls_known(s->memlock_bytes) && s->memlock_bytes.value < MEMLOCK_BYTES_LITTLE)
        advise(t, "memlock", true,
               "at most %s may be locked ('ulimit -l'): this limits mlock and io_uring's "
               "registered buffers only; limits.conf raises it",
               bytes_text(s->memlock_bytes.value));
}

static void advise_hbm(ls_topology *t)
{
    for (int p = 0; p < t->n_places; p++) {
        const ls_place *place = &t->places[p];
        if (place->kind != LS_PLACE_HBM || place->numa_node < 0) continue;
        if (place->page_cache_bytes.value < PAGE_CACHE_BYTES_MUCH) continue;
        advise(t, "page_cache", true,
               "%s of file pages lie in %s (NUMA node %d), where the driver may fail to evict "
               "them; 'echo 1 > /proc/sys/vm/drop_caches' now, and run what reads files under "
               "'numactl --membind' of host nodes",
               bytes_text(place->page_cache_bytes.value), place->name, place->numa_node);
    }
    if (is_grace(t) && ls_is_false(t->facts.hbm_is_numa) &&
        strcmp(t->system.memory_mode, "driver") == 0)
        advise(t, "cdmm", false,
               "the driver keeps the GPU's memory to itself (CDMM): numactl and "
               "mbind do not reach it, and host memory never migrates there; nothing to change");
    if (is_grace(t) && ls_is_false(t->facts.hbm_is_numa) &&
        strcmp(t->system.memory_mode, "driver") != 0)
        advise(t, "hbm_node", true,
               "the GPU's memory is no NUMA node though the driver is not in "
               "CDMM mode: nvidia-persistenced brings it online as root");
    if (is_grace(t) && ls_is_false(t->facts.coherent))
        advise(t, "ats", true,
               "a C2C link is there, but the GPU does not read host memory "
               "coherently; load nvidia_uvm without uvm_ats_mode=0");
}

/* With extended GPU memory (EGM) switched on, most of Grace's memory is hidden from Linux. */
static void advise_hidden_memory(ls_topology *t)
{
    for (int u = 0; u < t->n_units; u++) {
        const ls_unit *gpu = &t->units[u];
        if (gpu->kind != LS_UNIT_GPU || !ls_label_has_word(gpu->model, "480GB")) continue;
        const ls_place *host =
            ls_known(gpu->host_node) ? ls_topology_find_host(t, (int)gpu->host_node.value) : NULL;
        if (host == NULL || !ls_known(host->capacity_bytes) || host->capacity_bytes.value > 400e9)
            continue;
        advise(t, "hidden_memory", true,
               "%s is sold with 480 GB of host memory, but %s has %s: is EGM on in the firmware?",
               gpu->model, host->name, bytes_text(host->capacity_bytes.value));
    }
}

static void advise_meters(ls_topology *t)
{
    const ls_system *s = &t->system;

    if (!is_grace(t) || s->kernel[0] == '\0') return;
    for (int c = 0; c < s->n_power_caps; c++)
        if (strncmp(s->power_caps[c].name, "Grace Power", 11) == 0) return;
    advise(t, "power_meter", true,
           "Grace's power meters are not to be seen: 'modprobe "
           "acpi_power_meter', and acpi_power_meter.force_cap_on=y at boot");
}

static void advise_driver(ls_topology *t)
{
    if (ls_topology_find_real_gpu(t) == NULL || t->system.kernel[0] == '\0') return;
    if (t->system.driver[0] != '\0') return;
    advise(t, "driver", true, "an NVIDIA GPU is there, but its kernel driver is not loaded");
}

/* Its proxy thread loses work on CPUs with a weak memory order (NVIDIA/nccl issue 2353). */
static void advise_nccl(ls_topology *t)
{
    int major = 0, minor = 0, patch = 0;

    if (strcmp(t->system.architecture, "aarch64") != 0) return;
    if (sscanf(t->system.nccl, "%d.%d.%d", &major, &minor, &patch) != 3) return;
    if (10000 * major + 100 * minor + patch >= 22903) return;
    advise(t, "nccl", false,
           "NCCL %s may hang without an error between nodes on aarch64; install 2.29.3 or later",
           t->system.nccl);
}

void ls_topology_advise(ls_topology *t)
{
    t->n_advice = 0;
    advise_driver(t);
    advise_hbm(t);
    advise_hidden_memory(t);
    advise_pages(t);
    advise_kernel(t);
    advise_limits(t);
    advise_meters(t);
    advise_nccl(t);
}
