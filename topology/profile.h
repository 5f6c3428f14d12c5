/*
 * profile.h - hardware profiles: what is known of a kind of machine before it is measured, as YAML
 * (configs/hardware), every number as {value, source}.
 *
 *     name: h200-pcie
 *     match: {gpu: [NVL], c2c_link: false, hbm_bytes: {least: 130GB, most: 160GB}}
 *     places:
 *       - {kind: hbm, capacity_bytes: {value: 141GB, source: spec}}
 *     links:
 *       - {from: host, to: hbm, bytes_per_s: {value: 53e9, source: published}}
 *
 * A profile describes one GPU with its host memory; merged into a machine with several it holds
 * for each.  Where both tell a figure, the better source stands (quantity.h): a profile's claims
 * fill what the machine does not tell, its choices (source: profile) override discovery, and what
 * was measured overrides all.  A profile whose `match` the machine contradicts is refused.
 *
 * The profiles in configs/hardware are part of the program.
 *
 * Layer: topology.  Threads: plain data.
 */
#ifndef LS_PROFILE_H
#define LS_PROFILE_H

#include <stddef.h>

#include "topology.h"

#define LS_MATCH_WORDS_MAX 4

/* Bounds that a figure of the machine must keep; most 0: none are given. */
typedef struct ls_bounds {
    double least, most;
} ls_bounds;

/* What a machine must be for the profile to hold.  Unset members match anything. */
typedef struct ls_match {
    char gpu[LS_MATCH_WORDS_MAX][LS_NAME_BYTES]; /* one of these is a word of the GPU's name */
    int n_gpu;
    char not_gpu[LS_MATCH_WORDS_MAX][LS_NAME_BYTES]; /* none of these is */
    int n_not_gpu;
    ls_quantity c2c_link, coherent;  /* unknown: either */
    ls_bounds hbm_bytes, host_bytes; /* of each GPU; of the host node nearest to it */
} ls_match;

typedef struct ls_profile {
    char name[LS_NAME_BYTES], about[LS_NOTE_BYTES];
    char origin[LS_NOTE_BYTES]; /* the file, or "built in" */
    bool emulated;              /* its HBM and links are carved and timed on a CPU */
    ls_match match;
    ls_quantity throttle_in_bytes_per_s, throttle_out_bytes_per_s; /* emulated links */
    ls_topology machine; /* places "hbm", "host", "nvme"; links between those names */
} ls_profile;

/*
 * Read a profile by name (configs/hardware/NAME.yaml of the working directory if there is one, else
 * built in) or, where the text has a '/' or ends in .yaml, by file.
 *
 *   profile  [out] free with ls_profile_free()
 *
 * Returns LS_OK; LS_ERR_INVALID ("FILE:LINE: key.path: what is wrong"; no such profile);
 * LS_ERR_IO; LS_ERR_NO_MEMORY.
 */
ls_status ls_profile_read(const char *name, ls_profile **profile);

/* The same from memory; name stands for the file in messages. */
ls_status ls_profile_parse(const char *name, const char *text, size_t bytes, ls_profile **profile);

/* The keys of a profile as a JSON schema (configs/schema/hardware.schema.json); free with
 * cJSON_Delete.  LS_ERR_NO_MEMORY. */
struct cJSON;
ls_status ls_profile_schema(struct cJSON **schema);

/* True if the text names a file rather than a profile by name. */
bool ls_profile_is_file(const char *name);

void ls_profile_free(ls_profile *profile);

/*
 * Merge a profile into a machine; writes advice and facts anew.  reason (may be NULL) says why it
 * was chosen.  LS_ERR_INVALID: the machine contradicts it (both facts are in the message; the
 * machine is unchanged); LS_ERR_UNSUPPORTED: more places or links than a topology has room for.
 */
ls_status ls_profile_merge(const ls_profile *profile, const char *reason, ls_topology *topology);

/*
 * The built-in profile that fits a machine, and why.
 *
 *   profile  [out] free with ls_profile_free(); "cpu" where there is no GPU or none fits
 *   reason   [size] filled; LS_REASON_BYTES hold any
 */
ls_status ls_profile_choose(const ls_topology *topology, ls_profile **profile, char *reason,
                            size_t size);

/* The machine that the profile describes, with no other told. */
ls_status ls_profile_describe(const ls_profile *profile, ls_topology **topology);

/*
 * A machine as a command asks for it: discovered, then merged with a profile.
 *
 *   from      see ls_topology_discover(); or a profile's file: the machine that it describes
 *   hardware  "auto": the profile that fits; "none"; or as ls_profile_read() takes it
 *   topology  [out] free with ls_topology_free()
 */
ls_status ls_machine_open(const char *from, const char *hardware, ls_topology **topology);

/* ---- writing -----------------------------------------------------------------------------------
 */

/*
 * Fill what a profile leaves open with what a machine tells: its first GPU with that one's memory,
 * this host memory (may be NULL), the CPU, the links between them.  What was discovered becomes
 * `spec`, so that another machine's own word stands before it.
 */
void ls_profile_fill(ls_profile *profile, const ls_topology *machine, const ls_place *host);

/*
 * A profile as YAML that reads back to the same, every figure with its source.
 *
 *   comment  lines beginning with '#', or ""
 *   text     [out] free with free(); ends with a zero byte not counted in *bytes
 *
 * LS_ERR_NO_MEMORY.
 */
ls_status ls_profile_print(const ls_profile *profile, const char *comment, char **text,
                           size_t *bytes);

/*
 * Replace the file at path by the profile, whole or not at all; a text that would not read back is
 * not written.  LS_ERR_INVALID (a figure that no profile may have, or one whose source is
 * discovered), LS_ERR_IO, LS_ERR_NO_MEMORY.
 */
ls_status ls_profile_write(const ls_profile *profile, const char *comment, const char *path);

/* "dir/NAME.yaml" -> "NAME".  LS_ERR_INVALID: another ending, or too long a name. */
ls_status ls_profile_name_from(const char *path, char name[LS_NAME_BYTES]);

/* LS_OK if a profile may be written there: the name is one, the folder can be written, and what is
 * there already, if anything, is a hardware profile.  LS_ERR_INVALID, LS_ERR_IO. */
ls_status ls_profile_check_target(const char *path);

/* ---- built in ----------------------------------------------------------------------------------
 */

typedef struct ls_builtin_profile {
    const char *name; /* "gh200-96gb-480gb" */
    const char *text; /* YAML */
} ls_builtin_profile;

/* In the order in which ls_profile_choose() tries them; ends with a NULL name.  Generated from
 * configs/hardware by the build. */
extern const ls_builtin_profile ls_builtin_profiles[];

#endif
