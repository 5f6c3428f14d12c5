/*
 * checkpoint_find.c - which checkpoint to resume from, and which to let go.
 *
 * A checkpoint to be removed loses its final name first: killed in the middle, what is left of it
 * is a temporary folder that the next run cleans away.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint_dir.h"
#include "checkpoint_names.h"
#include "directory.h"
#include "disk_file.h"

/* Which checkpoints to look at, and how closely. */
typedef struct search {
    const char *root;
    const int64_t *steps; /* [n] ascending */
    int64_t n;
    bool full;                       /* checksums, not sizes alone */
    ls_checkpoint_rejected rejected; /* may be NULL */
    void *context;
} search;

static int compare_steps(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Steps that have a checkpoint, ascending; release with free(). */
static ls_status list_steps(const char *root, int64_t **steps, int64_t *n)
{
    ls_path_kind kind;
    ls_name_list list = {NULL, 0};
    int64_t count = 0;

    LS_TRY(ls_path_describe(root, &kind));
    if (kind != LS_PATH_ABSENT) LS_TRY(ls_directory_list(root, &list));
    int64_t *found = malloc(((size_t)list.n_names + 1) * sizeof *found);
    if (!found) {
        ls_name_list_free(&list);
        return ls_disk_file_fail_memory((uint64_t)list.n_names * 8, "a list of checkpoints");
    }
    for (int64_t i = 0; i < list.n_names; i++) {
        const ls_checkpoint_name parsed = ls_checkpoint_name_parse(list.names[i]);
        if (parsed.role == LS_CHECKPOINT_ROLE_FINAL) found[count++] = parsed.step;
    }
    ls_name_list_free(&list);
    qsort(found, (size_t)count, sizeof *found, compare_steps);
    *steps = found;
    *n = count;
    return LS_OK;
}

static char *join_step(const char *root, ls_checkpoint_role role, int64_t step)
{
    char name[LS_CHECKPOINT_NAME_BYTES];
    ls_checkpoint_name_print(role, step, name);
    return ls_path_join(root, name);
}

/* The last place in steps whose checkpoint verifies, or -1. */
static ls_status find_last(const search *among, int64_t *place)
{
    for (int64_t i = among->n - 1; i >= 0; i--) {
        char *path = join_step(among->root, LS_CHECKPOINT_ROLE_FINAL, among->steps[i]);
        if (!path) return ls_disk_file_fail_memory(strlen(among->root), "a path");
        const ls_status status = ls_checkpoint_verify(path, among->full);
        if (status != LS_OK && among->rejected) among->rejected(among->context, path, ls_error());
        free(path);
        if (status == LS_ERR_NO_MEMORY) return status; /* says nothing about the checkpoint */
        if (status != LS_OK) continue;
        *place = i;
        return LS_OK;
    }
    *place = -1;
    return LS_OK;
}

static ls_status find_in(search *among, char **directory, int64_t *step)
{
    int64_t *steps = NULL, place = -1;
    char *path = NULL;

    LS_TRY(ls_checkpoint_recover(among->root, false));
    LS_TRY(list_steps(among->root, &steps, &among->n));
    among->steps = steps;
    ls_status status = find_last(among, &place);
    if (status == LS_OK && among->n > 0 && place < 0) {
        status = LS_FAIL(LS_ERR_CORRUPT,
                         "%s: none of its %lld checkpoints is whole: start anew, or restore one",
                         among->root, (long long)among->n);
    }
    if (status == LS_OK && place >= 0) {
        path = join_step(among->root, LS_CHECKPOINT_ROLE_FINAL, steps[place]);
        if (!path) status = ls_disk_file_fail_memory(strlen(among->root), "a path");
    }
    if (status == LS_OK) {
        *directory = path;
        if (step) *step = place < 0 ? -1 : steps[place];
    }
    free(steps);
    return status;
}

ls_status ls_checkpoint_find_newest(const char *run_dir, ls_checkpoint_rejected rejected,
                                    void *context, char **directory, int64_t *step)
{
    char *root = ls_checkpoint_root(run_dir);

    if (!root) return ls_disk_file_fail_memory(strlen(run_dir), "a path");
    search among = {.root = root, .full = true, .rejected = rejected, .context = context};
    const ls_status status = find_in(&among, directory, step);
    free(root);
    return status;
}

static ls_status remove_step(const char *root, int64_t step)
{
    char *final = join_step(root, LS_CHECKPOINT_ROLE_FINAL, step);
    char *tmp = join_step(root, LS_CHECKPOINT_ROLE_TMP, step);
    ls_status status;

    if (!final || !tmp) {
        status = ls_disk_file_fail_memory(strlen(root), "a path");
    } else {
        status = ls_directory_remove(tmp);
        if (status == LS_OK) status = ls_disk_file_rename(final, tmp);
        if (status == LS_OK) status = ls_directory_sync(root);
        if (status == LS_OK) status = ls_directory_remove(tmp);
    }
    free(final);
    free(tmp);
    return status;
}

ls_status ls_checkpoint_rotate(const char *run_dir, int64_t keep, int64_t step)
{
    int64_t *steps = NULL, n = 0, newest = -1;
    char *root;

    if (keep < 1)
        return LS_FAIL(LS_ERR_INVALID, "checkpoint.keep is %lld, not >= 1", (long long)keep);
    root = ls_checkpoint_root(run_dir);
    if (!root) return ls_disk_file_fail_memory(strlen(run_dir), "a path");
    ls_status status = ls_checkpoint_recover(root, true);
    if (status == LS_OK) status = ls_checkpoint_tidy(run_dir);
    if (status == LS_OK) status = list_steps(root, &steps, &n);
    while (n > 0 && steps[n - 1] > step) n--;
    if (status == LS_OK && n > 0 && steps[n - 1] == step) {
        status = ls_directory_sync(root); /* a run may have been killed before it did */
        if (status == LS_OK) status = ls_checkpoint_write_latest(run_dir, step);
    }
    if (status == LS_OK && n > keep) {
        const search among = {.root = root, .steps = steps, .n = n};
        status = find_last(&among, &newest);
    }
    for (int64_t i = 0; i < n - keep && status == LS_OK; i++) {
        if (i != newest) status = remove_step(root, steps[i]);
    }
    free(steps);
    free(root);
    return status;
}
