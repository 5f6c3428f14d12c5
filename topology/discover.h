/*
 * discover.h - what the parts of discovery share: finding or adding a place, a unit, a note; and
 * the small text files of a machine, below a root.
 *
 * Each part adds what it knows to the same topology.  Several may tell of one GPU: it is known by
 * its bus id, and the first teller of a figure stands.
 *
 * Layer: topology, internal.
 */
#ifndef LS_DISCOVER_H
#define LS_DISCOVER_H

#include <stddef.h>

#include "topology.h"

/* ---- parts, in the order they run -------------------------------------------------------------
 */

/* Where to look; xml and root are never both set. */
typedef struct ls_discovery {
    const char *root; /* prefix of /proc and /sys; "": this machine */
    const char *xml;  /* an hwloc file, or NULL */
} ls_discovery;

/* Places, CPUs, GPUs and who is near whom. */
ls_status ls_discover_hwloc(const ls_discovery *where, ls_topology *t);

/* NUMA nodes and CPUs where there is no hwloc. */
ls_status ls_discover_nodes(const char *root, ls_topology *t);

/* Pages, limits, kernel settings, power caps. */
void ls_discover_system(const char *root, ls_topology *t);

/* Memory in use by node; GPUs on PCI and what their driver says of them under /proc. */
ls_status ls_discover_sysfs(const char *root, ls_topology *t);

/* What libcuda and NVML tell of this machine, if they can be loaded. */
ls_status ls_discover_cuda(ls_topology *t);

/* "2.9", or NULL: built without hwloc. */
const char *ls_discover_hwloc_version(void);

/* ---- building ---------------------------------------------------------------------------------
 */

/* Find or add; fail with LS_ERR_UNSUPPORTED beyond the limits of topology.h. */
ls_status ls_topology_add_host(ls_topology *t, int numa_node, ls_place **place);
ls_status ls_topology_add_cpu(ls_topology *t, int numa_node, ls_unit **unit);
ls_status ls_topology_add_link(ls_topology *t, const char *from, const char *to, ls_link **link);

/* A GPU by "[domain:]bus:device[.function]", domains of 1 to 8 hex digits; its memory with it. */
ls_status ls_topology_add_gpu(ls_topology *t, const char *bus_id, ls_unit **unit);

/* The memory of a GPU. */
ls_place *ls_topology_gpu_memory(ls_topology *t, const ls_unit *gpu);

void ls_topology_add_missing(ls_topology *t, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* What the product's name says of a GPU; fills only facts that nobody told. */
void ls_gpu_model_fill(ls_topology *t, ls_unit *gpu);

/* True if word is one of the words of label, which blanks and dashes part: "H200" is none of
 * "GH200". */
bool ls_label_has_word(const char *label, const char *word);

/* The model of a PCI device of NVIDIA, or NULL. */
const char *ls_gpu_model_by_device(unsigned device_id);

/* ---- text files --------------------------------------------------------------------------------
 */

#define LS_SYSFS_BYTES 4096

/* Read root/path (printf) into text without its last newline; false if it cannot be read. */
bool ls_sysfs_text(char *text, size_t size, const char *root, const char *path, ...)
    __attribute__((format(printf, 4, 5)));

/* The same as a whole number: decimal, or hex with 0x. */
bool ls_sysfs_whole(int64_t *value, const char *root, const char *path, ...)
    __attribute__((format(printf, 3, 4)));

/* A line "Node 3 KEY: N kB" of a node's meminfo in bytes, or -1. */
double ls_sysfs_node_bytes(const char *meminfo, int node, const char *key);

/* How many CPUs two masks "0000ffff,ffffffff" have in common. */
int ls_sysfs_mask_count(const char *mask, const char *within);

/* Call visit for each name in a folder, sorted, until one fails; *listed: there is the folder. */
typedef ls_status ls_sysfs_visit(const char *root, const char *name, ls_topology *t);
ls_status ls_sysfs_each(const char *root, const char *folder, ls_topology *t, ls_sysfs_visit *visit,
                        bool *listed);

/* The rest of the line that begins with key, blanks skipped, or NULL. */
const char *ls_sysfs_line(const char *text, const char *key);

#endif
