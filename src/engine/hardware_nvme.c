/* hardware_nvme.c - the folder on a disk that a profile names: where it is, and what it has room
 * for. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "hardware.h"

#define TMPFS_MAGIC 0x01021994 /* statfs(2) */
#define RAMFS_MAGIC 0x858458f6

static const ls_place *find_nvme(const ls_hardware *h)
{
    return ls_topology_find_place(h->topology, ls_place_name(LS_PLACE_NVME));
}

/* A relative path starts from the profile that names it. */
static void resolve(const ls_place *nvme, ls_hardware *h)
{
    const char *slash = strrchr(h->profile_file, '/');
    const int n = nvme->path[0] != '/' && slash != NULL ? (int)(slash - h->profile_file) + 1 : 0;

    snprintf(h->nvme_path, sizeof h->nvme_path, "%.*s%s", n, h->profile_file, nvme->path);
}

static uint64_t free_bytes(const char *folder)
{
    struct statvfs disk;

    if (folder[0] == '\0' || statvfs(folder, &disk) != 0) return 0;
    return (uint64_t)disk.f_bavail * (uint64_t)disk.f_frsize;
}

void ls_hardware_find_nvme(ls_hardware *h)
{
    const ls_place *nvme = find_nvme(h);
    uint64_t room = UINT64_MAX;

    h->nvme_path[0] = '\0';
    h->available_bytes[LS_PLACE_NVME] = 0;
    if (nvme == NULL) return;
    if (nvme->path[0] != '\0') resolve(nvme, h);
    if (!h->is_elsewhere) room = free_bytes(h->nvme_path);
    if (ls_known(nvme->capacity_bytes) && nvme->capacity_bytes.value < (double)room)
        room = (uint64_t)nvme->capacity_bytes.value;
    h->available_bytes[LS_PLACE_NVME] = room;
}

/* Why the folder cannot take a file; NULL: it can. */
static const char *find_fault(const char *folder)
{
    struct stat info;

    if (stat(folder, &info) != 0) return strerror(errno);
    if (!S_ISDIR(info.st_mode)) return strerror(ENOTDIR);
    return access(folder, W_OK | X_OK) == 0 ? NULL : strerror(errno);
}

ls_status ls_hardware_check_nvme(const ls_hardware *h, const char *key)
{
    if (h == NULL)
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: nvme, but no hardware profile names a disk; allowed: "
                       "host",
                       key);
    if (find_nvme(h) == NULL)
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: nvme, but hardware profile %s (%s) has no such place; add {kind: nvme} "
                       "to its places and nvme: {path: FOLDER}, or place it on host",
                       key, h->profile, h->profile_file);
    if (h->nvme_path[0] == '\0')
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: nvme, but hardware profile %s (%s) has no nvme.path; name a folder on "
                       "that disk, or place it on host",
                       key, h->profile, h->profile_file);
    const char *fault = h->is_elsewhere ? NULL : find_fault(h->nvme_path);
    if (fault == NULL) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "%s: nvme, but nvme.path of hardware profile %s (%s) is '%s': %s; make that "
                   "folder writable, or name another",
                   key, h->profile, h->profile_file, h->nvme_path, fault);
}

bool ls_hardware_nvme_is_memory(const ls_hardware *h)
{
    struct statfs disk;

    if (h->is_elsewhere || h->nvme_path[0] == '\0' || statfs(h->nvme_path, &disk) != 0)
        return false;
    return (uint64_t)disk.f_type == TMPFS_MAGIC || (uint64_t)disk.f_type == RAMFS_MAGIC;
}
