/*
 * directory.c - folders, through the table of system calls.
 *
 * Trees are removed by recursion on listed names; the depth of ours is two or three, and a limit
 * keeps a hostile tree from using up the stack.
 */
#include "directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "disk_file.h"
#include "file_ops.h"

#define TREE_DEPTH_MAX 64

static ls_status describe_result(const char *path, int result, const struct stat *info,
                                 ls_path_kind *kind)
{
    if (result != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        *kind = LS_PATH_ABSENT;
        return LS_OK;
    }
    if (result != 0) return ls_disk_file_fail("stat", path, errno);
    *kind = S_ISREG(info->st_mode)   ? LS_PATH_FILE
            : S_ISDIR(info->st_mode) ? LS_PATH_DIRECTORY
                                     : LS_PATH_OTHER;
    return LS_OK;
}

ls_status ls_path_describe(const char *path, ls_path_kind *kind)
{
    struct stat info;
    return describe_result(path, ls_file_ops_current()->stat(path, &info), &info, kind);
}

ls_status ls_path_describe_link(const char *path, ls_path_kind *kind)
{
    struct stat info;
    return describe_result(path, ls_file_ops_current()->lstat(path, &info), &info, kind);
}

/* 0, or the errno value of what failed. */
static int sync_folder(const char *path)
{
    const ls_file_ops *ops = ls_file_ops_current();
    int fd, result, error;

    do {
        fd = ops->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) return errno;
    do {
        result = ops->fsync(fd);
    } while (result != 0 && errno == EINTR);
    error = errno;
    ops->close(fd);
    /* Some network file systems cannot sync a folder and say EINVAL: their names are durable. */
    return result == 0 || error == EINVAL ? 0 : error;
}

ls_status ls_directory_sync(const char *path)
{
    const int error = sync_folder(path);
    return error == 0 ? LS_OK : ls_disk_file_fail("sync folder", path, error);
}

ls_status ls_directory_make_unsynced(const char *path)
{
    ls_path_kind kind;

    if (ls_file_ops_current()->mkdir(path, 0777) == 0) return LS_OK;
    const int error = errno;
    LS_TRY(ls_path_describe(path, &kind));
    if (kind == LS_PATH_DIRECTORY) return LS_OK;
    return ls_disk_file_fail("make folder", path, error);
}

/* Make the name of a folder durable. */
static ls_status sync_name(const char *path)
{
    char *above = ls_path_parent(path);

    if (!above) return ls_disk_file_fail_memory(strlen(path) + 1, "a path");
    const int error = sync_folder(above);
    /* EACCES: write access without read access, to a folder that was not made here. */
    const ls_status status =
        error == 0 || error == EACCES ? LS_OK : ls_disk_file_fail("sync folder", above, error);
    free(above);
    return status;
}

/* A folder is made only in one whose name is durable: killed at any point, a run leaves at most the
 * last name that is not, for the next run to sync before it goes on below. */
static ls_status make_durable(const char *path)
{
    ls_path_kind kind;

    LS_TRY(ls_path_describe(path, &kind));
    if (kind == LS_PATH_DIRECTORY) return LS_OK;
    char *above = ls_path_parent(path);
    ls_status status =
        above ? sync_name(above) : ls_disk_file_fail_memory(strlen(path) + 1, "a path");
    if (status == LS_OK) status = ls_directory_make_unsynced(path);
    if (status == LS_OK) status = sync_name(path);
    free(above);
    return status;
}

ls_status ls_directory_make(const char *path)
{
    char *part = strdup(path);
    ls_status status = LS_OK;

    if (!part) return ls_disk_file_fail_memory(strlen(path) + 1, "a path");
    for (char *at = part; *at && status == LS_OK; at++) {
        if (*at != '/' || at == part) continue;
        *at = '\0';
        status = make_durable(part);
        *at = '/';
    }
    if (status == LS_OK) status = make_durable(path);
    free(part);
    return status;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static ls_status append_name(ls_name_list *list, int64_t *room, const char *name)
{
    if (list->n_names == *room) {
        const int64_t wanted = *room ? 2 * *room : 16;
        char **names = realloc(list->names, (size_t)wanted * sizeof *names);
        if (!names)
            return ls_disk_file_fail_memory((uint64_t)wanted * sizeof *names, "a folder list");
        list->names = names;
        *room = wanted;
    }
    char *copy = strdup(name);
    if (!copy) return ls_disk_file_fail_memory(strlen(name) + 1, "a folder list");
    list->names[list->n_names++] = copy;
    return LS_OK;
}

ls_status ls_directory_list(const char *path, ls_name_list *list)
{
    const ls_file_ops *ops = ls_file_ops_current();
    ls_name_list found = {NULL, 0};
    int64_t room = 0;
    ls_status status = LS_OK;

    DIR *directory = ops->opendir(path);
    if (!directory) return ls_disk_file_fail("open folder", path, errno);
    while (status == LS_OK) {
        errno = 0;
        const struct dirent *entry = ops->readdir(directory);
        if (!entry) {
            if (errno != 0) status = ls_disk_file_fail("list folder", path, errno);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        status = append_name(&found, &room, entry->d_name);
    }
    ops->closedir(directory);
    if (status != LS_OK) {
        ls_name_list_free(&found);
        return status;
    }
    if (found.n_names > 1) {
        qsort(found.names, (size_t)found.n_names, sizeof *found.names, compare_names);
    }
    *list = found;
    return LS_OK;
}

void ls_name_list_free(ls_name_list *list)
{
    if (!list) return;
    for (int64_t i = 0; i < list->n_names; i++) free(list->names[i]);
    free(list->names);
    list->names = NULL;
    list->n_names = 0;
}

static ls_status remove_tree(const char *path, int depth)
{
    const ls_file_ops *ops = ls_file_ops_current();
    ls_path_kind kind = LS_PATH_ABSENT;
    ls_name_list list = {NULL, 0};
    ls_status first = LS_OK;

    LS_TRY(ls_path_describe_link(path, &kind));
    if (kind == LS_PATH_ABSENT) return LS_OK;
    if (kind != LS_PATH_DIRECTORY) return ls_disk_file_remove(path);
    if (depth >= TREE_DEPTH_MAX) {
        return LS_FAIL(LS_ERR_IO, "remove %s: folders are nested deeper than %d", path,
                       TREE_DEPTH_MAX);
    }
    LS_TRY(ls_directory_list(path, &list));
    for (int64_t i = 0; i < list.n_names; i++) {
        char *below = ls_path_join(path, list.names[i]);
        const ls_status status = below ? remove_tree(below, depth + 1)
                                       : ls_disk_file_fail_memory(strlen(path), "a path");
        if (first == LS_OK) first = status;
        free(below);
    }
    ls_name_list_free(&list);
    if (first != LS_OK) return first;
    if (ops->rmdir(path) != 0 && errno != ENOENT) return ls_disk_file_fail("remove", path, errno);
    return LS_OK;
}

ls_status ls_directory_remove(const char *path)
{
    return remove_tree(path, 0);
}

void ls_directory_discard(const char *path)
{
    char *text = strdup(ls_error()), *origin = strdup(ls_error_origin());

    (void)remove_tree(path, 0);
    if (text && origin) ls_error_adopt(text, origin);
    free(text);
    free(origin);
}

ls_status ls_directory_free_bytes(const char *path, uint64_t *free_bytes)
{
    struct statvfs info;
    int result;

    do {
        result = ls_file_ops_current()->statvfs(path, &info);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return ls_disk_file_fail("ask for free space of", path, errno);
    *free_bytes = (uint64_t)info.f_bavail * (uint64_t)info.f_frsize;
    return LS_OK;
}

ls_status ls_directory_require(const char *path, uint64_t bytes, const char *what)
{
    uint64_t free_bytes = 0;

    LS_TRY(ls_directory_free_bytes(path, &free_bytes));
    if (bytes <= free_bytes) return LS_OK;
    return LS_FAIL(LS_ERR_IO,
                   "%s needs %llu bytes, but %s has %llu bytes free: free some space or choose "
                   "another folder",
                   what, (unsigned long long)bytes, path, (unsigned long long)free_bytes);
}
