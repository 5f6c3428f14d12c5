/*
 * discover_cuda.c - what libcuda and NVML tell of this machine's GPUs; and which NCCL it has.
 *
 * All are loaded at run time, so that one program runs with and without a driver.  No context is
 * made: that takes seconds and hundreds of megabytes.  The few declarations needed stand here: the
 * plain toolkit has no nvml.h.  CUDA's word on the nearest host node replaces hwloc's and sysfs's.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "discover.h"

#define DEVICES_MAX 32

/* A function of a loaded library: ISO C has no cast from an object pointer to one. */
static bool find(void *library, const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, bytes);
    return symbol != NULL;
}

#define FIND(library, table, member, name)                                                         \
    find((library), (name), &(table)->member, sizeof(table)->member)

/* ---- libcuda: cuda.h of 13.0 ---------------------------------------------------------------- */

enum {
    CUDA_SMS = 16,
    CUDA_USES_HOST_PAGE_TABLES = 100,
    CUDA_NUMA_CONFIG = 130,
    CUDA_NUMA_ID = 131,
    CUDA_HOST_NUMA_ID = 134
};

typedef struct cuda_library {
    int (*start)(unsigned flags);
    int (*count)(int *n);
    int (*device)(int *device, int ordinal);
    int (*name)(char *name, int bytes, int device);
    int (*bus_id)(char *text, int bytes, int device);
    int (*total)(size_t *bytes, int device);
    int (*attribute)(int *value, int attribute, int device);
} cuda_library;

static bool find_cuda(void *library, cuda_library *cuda)
{
    return FIND(library, cuda, start, "cuInit") && FIND(library, cuda, count, "cuDeviceGetCount") &&
           FIND(library, cuda, device, "cuDeviceGet") &&
           FIND(library, cuda, name, "cuDeviceGetName") &&
           FIND(library, cuda, bus_id, "cuDeviceGetPCIBusId") &&
           FIND(library, cuda, total, "cuDeviceTotalMem_v2") &&
           FIND(library, cuda, attribute, "cuDeviceGetAttribute");
}

static ls_quantity ask(const cuda_library *cuda, int attribute, int device)
{
    int value = 0;
    if (cuda->attribute(&value, attribute, device) != 0) return (ls_quantity){0};
    return ls_discovered(value, "cuda");
}

static ls_status add_cuda_device(const cuda_library *cuda, int ordinal, int device, ls_topology *t)
{
    char bus_id[LS_NAME_BYTES] = "";
    size_t bytes = 0;
    ls_unit *gpu;

    if (cuda->bus_id(bus_id, sizeof bus_id, device) != 0) return LS_OK;
    LS_TRY(ls_topology_add_gpu(t, bus_id, &gpu));
    ls_place *memory = ls_topology_gpu_memory(t, gpu);
    gpu->cuda_rank = ordinal + 1;
    if (cuda->name(gpu->model, sizeof gpu->model, device) != 0) gpu->model[0] = '\0';
    if (cuda->total(&bytes, device) == 0)
        ls_quantity_fill(&memory->capacity_bytes, ls_discovered((double)bytes, "cuda"));
    ls_quantity_merge(&gpu->cores, ask(cuda, CUDA_SMS, device));
    ls_quantity_merge(&gpu->facts.coherent, ask(cuda, CUDA_USES_HOST_PAGE_TABLES, device));
    ls_quantity_merge(&gpu->facts.hbm_is_numa, ask(cuda, CUDA_NUMA_CONFIG, device));
    const ls_quantity host = ask(cuda, CUDA_HOST_NUMA_ID, device);
    if (ls_known(host) && ls_topology_find_host(t, (int)host.value) != NULL)
        ls_quantity_merge(&gpu->host_node, host);
    const ls_quantity node = ask(cuda, CUDA_NUMA_ID, device);
    if (ls_is_true(gpu->facts.hbm_is_numa) && ls_known(node)) memory->numa_node = (int)node.value;
    return LS_OK;
}

static ls_status ask_cuda(void *library, ls_topology *t)
{
    cuda_library cuda;
    int n = 0;

    if (!find_cuda(library, &cuda)) {
        ls_topology_add_missing(t, "cuda", "libcuda.so.1 lacks functions of CUDA 12");
        return LS_OK;
    }
    int error = cuda.start(0);
    if (error == 0) error = cuda.count(&n);
    if (error != 0)
        ls_topology_add_missing(t, "cuda", "libcuda.so.1 starts no device: error %d%s", error,
                                error == 100 ? " (no GPU)" : "");
    for (int ordinal = 0; error == 0 && ordinal < n && ordinal < DEVICES_MAX; ordinal++) {
        int device;
        if (cuda.device(&device, ordinal) == 0) LS_TRY(add_cuda_device(&cuda, ordinal, device, t));
    }
    return LS_OK;
}

/* ---- NVML: nvml.h of 2026-07 ---------------------------------------------------------------- */

enum {
    FIELD_C2C_LINK_COUNT = 170,
    FIELD_POWER_MAX_LIMIT = 188,
    FIELD_POWER_CURRENT_LIMIT = 190,
    SCOPE_GPU = 0,
    SCOPE_MODULE = 1
};

typedef struct nvml_field {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int type, result;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
} nvml_field;

typedef struct nvml_pci {
    char legacy_bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} nvml_pci;

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct nvml_library {
    int (*start)(void);
    int (*stop)(void);
    int (*count)(unsigned *n);
    int (*device)(unsigned index, void **device);
    int (*pci)(void *device, nvml_pci *pci);
    int (*memory)(void *device, nvml_memory *memory);
    int (*fields)(void *device, int n, nvml_field *fields);
} nvml_library;

static bool find_nvml(void *library, nvml_library *nvml)
{
    return FIND(library, nvml, start, "nvmlInit_v2") && FIND(library, nvml, stop, "nvmlShutdown") &&
           FIND(library, nvml, count, "nvmlDeviceGetCount_v2") &&
           FIND(library, nvml, device, "nvmlDeviceGetHandleByIndex_v2") &&
           FIND(library, nvml, pci, "nvmlDeviceGetPciInfo_v3") &&
           FIND(library, nvml, memory, "nvmlDeviceGetMemoryInfo") &&
           FIND(library, nvml, fields, "nvmlDeviceGetFieldValues");
}

/* All these fields are unsigned int. */
static ls_quantity ask_field(const nvml_library *nvml, void *device, unsigned field, unsigned scope)
{
    nvml_field asked = {.field = field, .scope = scope};
    if (nvml->fields(device, 1, &asked) != 0 || asked.result != 0) return (ls_quantity){0};
    return ls_discovered(asked.value.ui, "nvml");
}

static ls_quantity ask_watts(const nvml_library *nvml, void *device, unsigned field, unsigned scope)
{
    ls_quantity milliwatts = ask_field(nvml, device, field, scope);
    milliwatts.value /= 1000;
    return milliwatts;
}

static void add_module_cap(const nvml_library *nvml, void *device, ls_system *system)
{
    const ls_quantity watts = ask_watts(nvml, device, FIELD_POWER_CURRENT_LIMIT, SCOPE_MODULE);

    if (!ls_known(watts) || watts.value == 0 || system->n_power_caps == LS_POWER_CAPS_MAX) return;
    ls_power_cap *cap = &system->power_caps[system->n_power_caps++];
    *cap =
        (ls_power_cap){.name = "module",
                       .watts = watts,
                       .watts_max = ask_watts(nvml, device, FIELD_POWER_MAX_LIMIT, SCOPE_MODULE)};
}

static ls_status add_nvml_device(const nvml_library *nvml, void *device, ls_topology *t)
{
    nvml_memory memory = {0};
    nvml_pci pci = {.bus_id = ""};
    ls_unit *gpu;

    if (nvml->pci(device, &pci) != 0) return LS_OK;
    LS_TRY(ls_topology_add_gpu(t, pci.bus_id, &gpu));
    if (nvml->memory(device, &memory) == 0) {
        ls_place *place = ls_topology_gpu_memory(t, gpu);
        ls_quantity_fill(&place->capacity_bytes, ls_discovered((double)memory.total, "nvml"));
        ls_quantity_fill(&place->free_bytes, ls_discovered((double)memory.free, "nvml"));
    }
    ls_quantity links = ask_field(nvml, device, FIELD_C2C_LINK_COUNT, 0);
    links.value = links.value > 0;
    ls_quantity_merge(&gpu->facts.c2c_link, links);
    gpu->power_cap_watts = ask_watts(nvml, device, FIELD_POWER_CURRENT_LIMIT, SCOPE_GPU);
    gpu->power_cap_watts_max = ask_watts(nvml, device, FIELD_POWER_MAX_LIMIT, SCOPE_GPU);
    add_module_cap(nvml, device, &t->system);
    return LS_OK;
}

static ls_status ask_nvml(void *library, ls_topology *t)
{
    nvml_library nvml;
    ls_status status = LS_OK;
    unsigned n = 0;

    if (!find_nvml(library, &nvml)) {
        ls_topology_add_missing(t, "nvml", "libnvidia-ml.so.1 lacks functions of driver 535");
        return LS_OK;
    }
    const int error = nvml.start();
    if (error != 0) {
        ls_topology_add_missing(t, "nvml", "libnvidia-ml.so.1 does not start: error %d", error);
        return LS_OK;
    }
    if (nvml.count(&n) != 0) n = 0;
    for (unsigned index = 0; status == LS_OK && index < n && index < DEVICES_MAX; index++) {
        void *device = NULL;
        if (nvml.device(index, &device) == 0) status = add_nvml_device(&nvml, device, t);
    }
    nvml.stop();
    return status;
}

/* ---- NCCL ----------------------------------------------------------------------------------- */

/* 2.29.3 is 22903; before 2.9 it was 2.8.4 = 2804. */
void ls_topology_read_nccl(ls_topology *t)
{
    int (*get_version)(int *version), version = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) return;
    if (find(library, "ncclGetVersion", &get_version, sizeof get_version) &&
        get_version(&version) == 0) {
        const int major = version < 10000 ? 1000 : 10000;
        snprintf(t->system.nccl, sizeof t->system.nccl, "%d.%d.%d", version / major,
                 version % major / 100, version % 100);
    }
    dlclose(library);
    ls_topology_advise(t);
}

/* ---- all ----------------------------------------------------------------------------------- */

static ls_status ask_library(const char *what, const char *file, ls_topology *t,
                             ls_status (*read)(void *library, ls_topology *t))
{
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        ls_topology_add_missing(t, what, "no %s: no NVIDIA driver is installed here", file);
        return LS_OK;
    }
    /* Stays loaded: a driver library may have started threads of its own. */
    return read(library, t);
}

ls_status ls_discover_cuda(ls_topology *t)
{
    LS_TRY(ask_library("cuda", "libcuda.so.1", t, ask_cuda));
    return ask_library("nvml", "libnvidia-ml.so.1", t, ask_nvml);
}
