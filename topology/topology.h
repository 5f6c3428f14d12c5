/*
 * topology.h - what a machine is: places that hold bytes, links between them, units that compute,
 * and the settings that decide how fast they are.
 *
 *     cpu0 --- host0 ==== link: bytes/s each way ==== hbm0 --- gpu0
 *           (NUMA node 0)     c2c or pcie        (its memory)
 *
 * A machine is described by what it tells itself (hwloc, sysfs, the NVIDIA driver), by a hardware
 * profile (profile.h), or by both.  Three facts are kept apart, because each can hold without the
 * others: a C2C link is there; the GPU reads host memory coherently (ATS); the GPU's memory is a
 * NUMA node of the host (false under the driver's CDMM mode).
 *
 * Layer: topology (uses base).  Threads: plain data.  Discovery reads and sets environment
 * variables for hwloc: call it while no other thread uses the environment.
 */
#ifndef LS_TOPOLOGY_H
#define LS_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "place.h"
#include "quantity.h"
#include "status.h"

#define LS_PLACES_MAX       64
#define LS_LINKS_MAX        512
#define LS_UNITS_MAX        64
#define LS_EFFICIENCIES_MAX 64
#define LS_POWER_STATES_MAX 8
#define LS_HUGE_SIZES_MAX   8
#define LS_POWER_CAPS_MAX   16
#define LS_ADVICE_MAX       24
#define LS_MISSING_MAX      16
#define LS_NAME_BYTES       32
#define LS_LABEL_BYTES      96
#define LS_NOTE_BYTES       320
#define LS_REASON_BYTES     (3 * LS_NOTE_BYTES)

typedef struct ls_place {
    ls_place_kind kind;
    char name[LS_NAME_BYTES]; /* "host1": NUMA node 1; "hbm0": of gpu0; "nvme" */
    int numa_node;            /* OS index; -1: it is none, or not known */
    bool emulated;            /* carved from host memory */
    ls_quantity capacity_bytes;
    ls_quantity free_bytes; /* host: page cache that can be given back included; hbm: not */
    ls_quantity page_cache_bytes;
    ls_quantity page_bytes;       /* of the unit that owns it */
    ls_quantity read_bytes_per_s; /* by the unit that owns it */
    ls_quantity write_bytes_per_s;
    ls_quantity latency_ns;
    ls_quantity best_threads; /* host: how many threads reach that bandwidth */
    char path[LS_NOTE_BYTES]; /* nvme: the folder */
} ls_place;

typedef struct ls_link {
    char from[LS_NAME_BYTES], to[LS_NAME_BYTES];     /* names of places */
    char via[LS_NAME_BYTES];                         /* "c2c", "pcie 5.0 x16", "" */
    bool remote;                                     /* `from` is not the memory nearest to `to` */
    ls_quantity bytes_per_s, reverse_bytes_per_s;    /* copy engines, one way at a time */
    ls_quantity both_bytes_per_s;                    /* sum of both ways at once */
    ls_quantity read_bytes_per_s, write_bytes_per_s; /* kernels of `to` on memory of `from` */
    ls_quantity latency_ns;
    ls_quantity coherent;
} ls_link;

typedef enum ls_unit_kind { LS_UNIT_GPU = 0, LS_UNIT_CPU } ls_unit_kind;

/* What an op reaches at a shape: a share of the peak, or where bytes bound it, those of its
 * operands per second; and what each call of it takes besides. */
typedef struct ls_efficiency {
    char op[LS_NAME_BYTES], shape[LS_NAME_BYTES];
    char kernel[LS_NAME_BYTES]; /* "": any of the op's */
    ls_quantity fraction, bytes_per_s, call_ns;
} ls_efficiency;

typedef struct ls_power_state {
    char name[LS_NAME_BYTES];
    ls_quantity watts;
} ls_power_state;

/* What the GPU and its link are, each with its source. */
typedef struct ls_facts {
    ls_quantity c2c_link, coherent, hbm_is_numa;
} ls_facts;

typedef struct ls_unit {
    ls_unit_kind kind;
    char name[LS_NAME_BYTES];   /* "gpu0", "cpu0" */
    char model[LS_LABEL_BYTES]; /* "NVIDIA GH200 480GB"; "": unknown */
    char bus_id[LS_NAME_BYTES]; /* gpu: "0009:01:00.0" */
    int cuda_rank; /* gpu: 1: CUDA's device 0, ...; 0: CUDA does not show it, or is not here */
    int place;     /* index of its memory in places; -1: unknown */
    ls_quantity host_node; /* gpu: OS index of the nearest host memory; cpu: of its own */
    ls_quantity cores;     /* gpu: SMs */
    ls_quantity bf16_flops_per_s, fp32_flops_per_s;
    ls_quantity power_cap_watts, power_cap_watts_max;
    ls_facts facts; /* gpu */
    ls_efficiency efficiencies[LS_EFFICIENCIES_MAX];
    int n_efficiencies;
    ls_power_state power_states[LS_POWER_STATES_MAX];
    int n_power_states;
} ls_unit;

/* Huge pages of one size, reserved in advance. */
typedef struct ls_huge_size {
    uint64_t bytes;
    int64_t total, free;
} ls_huge_size;

typedef struct ls_power_cap {
    char name[LS_LABEL_BYTES]; /* "Grace Power Socket 0" */
    ls_quantity watts, watts_max;
} ls_power_cap;

/* Settings of the system and of this process.  An empty text is unknown. */
typedef struct ls_system {
    char architecture[LS_NAME_BYTES], kernel[LS_LABEL_BYTES];
    ls_quantity page_bytes;
    ls_quantity huge_page_bytes; /* what a transparent huge page is (hpage_pmd_size) */
    char huge_pages[LS_NAME_BYTES], huge_defrag[LS_NAME_BYTES]; /* always | madvise | never ... */
    ls_huge_size huge_sizes[LS_HUGE_SIZES_MAX];
    int n_huge_sizes;
    ls_quantity numa_balancing, init_on_alloc;
    ls_quantity memory_limit_bytes, memory_limit_used_bytes; /* cgroup; infinite: none */
    ls_quantity memlock_bytes;                               /* infinite: no limit */
    char cpu_governor[LS_NAME_BYTES];
    char driver[LS_LABEL_BYTES];     /* NVIDIA kernel driver */
    char memory_mode[LS_NAME_BYTES]; /* CoherentGPUMemoryMode: "driver" (CDMM), "numa" */
    char nccl[LS_NAME_BYTES]; /* its version, "2.29.3"; "": not installed or not looked for */
    ls_quantity ats_mode;     /* uvm_ats_mode of nvidia_uvm */
    ls_power_cap power_caps[LS_POWER_CAPS_MAX];
    int n_power_caps;
} ls_system;

/* One thing to change. */
typedef struct ls_advice {
    char topic[LS_NAME_BYTES]; /* "numa_balancing" */
    bool needs_root;
    char text[LS_NOTE_BYTES];
} ls_advice;

/* One thing that could not be learnt. */
typedef struct ls_missing {
    char what[LS_NAME_BYTES]; /* "cuda" */
    char why[LS_NOTE_BYTES];
} ls_missing;

typedef struct ls_topology {
    char origin[LS_NOTE_BYTES];   /* "this machine", or the file or folder it was read from */
    char readers[LS_LABEL_BYTES]; /* what was read: "hwloc 2.9, sysfs" */
    char profile[LS_NAME_BYTES];  /* merged into it; "": none */
    char profile_reason[LS_REASON_BYTES];
    ls_place places[LS_PLACES_MAX];
    int n_places;
    ls_link links[LS_LINKS_MAX];
    int n_links;
    ls_unit units[LS_UNITS_MAX];
    int n_units;
    bool sees_pci;  /* PCI devices could be listed: no GPU found means there is none */
    ls_facts facts; /* of all GPUs, where they agree */
    ls_system system;
    ls_advice advice[LS_ADVICE_MAX];
    int n_advice;
    ls_missing missing[LS_MISSING_MAX];
    int n_missing;
} ls_topology;

/*
 * Look at a machine.
 *
 *   from      NULL: this machine; a folder that holds a copy of its /proc and /sys; or a file
 *             written by `lstopo FILE.xml`
 *   topology  [out] free with ls_topology_free()
 *
 * What cannot be learnt is unknown, and named under `missing`; that is no failure.  Returns LS_OK;
 * LS_ERR_INVALID (from: no such file, or it is no machine), LS_ERR_UNSUPPORTED (an XML file in a
 * build without hwloc, more parts than LS_PLACES_MAX and its like), LS_ERR_NO_MEMORY.
 */
ls_status ls_topology_discover(const char *from, ls_topology **topology);

void ls_topology_free(ls_topology *topology);

/* The first place of this name, or NULL. */
const ls_place *ls_topology_find_place(const ls_topology *topology, const char *name);

/* The host place on this NUMA node, or NULL. */
const ls_place *ls_topology_find_host(const ls_topology *topology, int numa_node);

/* The first unit of this kind, or NULL. */
const ls_unit *ls_topology_find_unit(const ls_topology *topology, ls_unit_kind kind);

/* The GPU that a run uses, if it is no emulation: CUDA's device 0, which CUDA_VISIBLE_DEVICES may
 * set; where CUDA tells nothing the first found; or NULL. */
const ls_unit *ls_topology_find_real_gpu(const ls_topology *topology);

/* The memory of the GPU that a run uses, emulated or not, or NULL. */
const ls_place *ls_topology_find_device_memory(const ls_topology *topology);

/* The link between these places, in this direction, or NULL. */
const ls_link *ls_topology_find_link(const ls_topology *topology, const char *from, const char *to);

/* "gpu", "cpu"; never NULL. */
const char *ls_unit_kind_name(ls_unit_kind kind);

/* Write advice anew from what is known: after discovery, and after a profile was merged. */
void ls_topology_advise(ls_topology *topology);

/* Look which NCCL this machine has, and make the advice anew.  It is loaded for that and left
 * again: a library of hundreds of megabytes, which training on one GPU does without. */
void ls_topology_read_nccl(ls_topology *topology);

/* Join the facts of all GPUs; unknown where they differ. */
void ls_topology_join_facts(ls_topology *topology);

#endif
