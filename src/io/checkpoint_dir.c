/*
 * checkpoint_dir.c - write beside, sync, rename.
 *
 * Order at commit, each step durable before the next: files, state.json, the temporary folder's
 * names, the final name, RUN/latest.  An older checkpoint of the same step is renamed aside first;
 * a crash between the two renames is repaired by ls_checkpoint_recover(), which puts it back.
 */
#include "checkpoint_dir.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint_names.h"
#include "checkpoint_state.h"
#include "crc32c.h"
#include "directory.h"
#include "disk_file.h"

struct ls_checkpoint_writer {
    char *run_dir; /* NULL: a folder outside of any run, which takes no other's place */
    char *root;    /* folder of the names below */
    char *folder;  /* .tmp-step-... */
    char *final;   /* step-... */
    char *aside;   /* .old-step-...; NULL without a run */
    int64_t step;
    cJSON *manifest;
    bool made; /* the temporary folder exists */
};

static void free_writer(ls_checkpoint_writer *writer)
{
    cJSON_Delete(writer->manifest);
    free(writer->folder);
    free(writer->final);
    free(writer->aside);
    free(writer->root);
    free(writer->run_dir);
    free(writer);
}

static char *join_role(const char *root, ls_checkpoint_role role, int64_t step)
{
    char name[LS_CHECKPOINT_NAME_BYTES];
    ls_checkpoint_name_print(role, step, name);
    return ls_path_join(root, name);
}

static ls_status name_paths(ls_checkpoint_writer *writer, const char *run_dir, int64_t step)
{
    writer->run_dir = strdup(run_dir);
    writer->root = ls_checkpoint_root(run_dir);
    writer->manifest = cJSON_CreateArray();
    if (!writer->run_dir || !writer->root || !writer->manifest) {
        return ls_disk_file_fail_memory(strlen(run_dir), "a checkpoint");
    }
    writer->folder = join_role(writer->root, LS_CHECKPOINT_ROLE_TMP, step);
    writer->final = join_role(writer->root, LS_CHECKPOINT_ROLE_FINAL, step);
    writer->aside = join_role(writer->root, LS_CHECKPOINT_ROLE_OLD, step);
    writer->step = step;
    if (!writer->folder || !writer->final || !writer->aside) {
        return ls_disk_file_fail_memory(strlen(run_dir), "a checkpoint");
    }
    return LS_OK;
}

static ls_status make_folder(ls_checkpoint_writer *writer, uint64_t bytes_needed)
{
    LS_TRY(ls_directory_make(writer->root));
    LS_TRY(ls_checkpoint_recover(writer->root, true)); /* before asking for room: it makes some */
    LS_TRY(ls_directory_require(writer->root, bytes_needed, "the checkpoint"));
    LS_TRY(ls_directory_make_unsynced(writer->folder)); /* commit syncs the name it takes then */
    writer->made = true;
    return LS_OK;
}

ls_status ls_checkpoint_begin(const char *run_dir, int64_t step, uint64_t bytes_needed,
                              ls_checkpoint_writer **writer)
{
    if (step < 0) return LS_FAIL(LS_ERR_INVALID, "checkpoint of step %lld", (long long)step);
    ls_checkpoint_writer *opened = calloc(1, sizeof *opened);
    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a checkpoint");
    ls_status status = name_paths(opened, run_dir, step);
    if (status == LS_OK) status = make_folder(opened, bytes_needed);
    if (status != LS_OK) {
        ls_checkpoint_abort(opened);
        return status;
    }
    *writer = opened;
    return LS_OK;
}

/* ---- outside of a run ---------------------------------------------------------------------- */

static ls_status name_folder(ls_checkpoint_writer *writer, const char *folder)
{
    size_t n = strlen(folder);
    const size_t room = n + 64;

    while (n > 1 && folder[n - 1] == '/') n--;
    writer->final = strndup(folder, n);
    writer->manifest = cJSON_CreateArray();
    writer->folder = malloc(room);
    if (writer->final) writer->root = ls_path_parent(writer->final);
    if (!writer->final || !writer->manifest || !writer->folder || !writer->root) {
        return ls_disk_file_fail_memory(room, "a folder");
    }
    const char *slash = strrchr(writer->final, '/');
    snprintf(writer->folder, room, "%s/.tmp-%s-%lld", writer->root,
             slash ? slash + 1 : writer->final, (long long)getpid());
    return LS_OK;
}

static ls_status make_beside(ls_checkpoint_writer *writer, uint64_t bytes_needed)
{
    ls_path_kind kind;

    LS_TRY(ls_path_describe_link(writer->final, &kind));
    if (kind != LS_PATH_ABSENT) {
        return LS_FAIL(LS_ERR_INVALID, "%s is there already; remove it, or choose another name",
                       writer->final);
    }
    LS_TRY(ls_directory_make(writer->root));
    LS_TRY(ls_directory_remove(writer->folder)); /* of a dead process with our number */
    LS_TRY(ls_directory_require(writer->root, bytes_needed, "the folder"));
    LS_TRY(ls_directory_make_unsynced(writer->folder));
    writer->made = true;
    return LS_OK;
}

ls_status ls_checkpoint_begin_folder(const char *folder, uint64_t bytes_needed,
                                     ls_checkpoint_writer **writer)
{
    ls_checkpoint_writer *opened = calloc(1, sizeof *opened);

    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a folder");
    ls_status status = name_folder(opened, folder);
    if (status == LS_OK) status = make_beside(opened, bytes_needed);
    if (status != LS_OK) {
        ls_checkpoint_abort(opened);
        return status;
    }
    *writer = opened;
    return LS_OK;
}

/* ---- files --------------------------------------------------------------------------------- */

const char *ls_checkpoint_folder(const ls_checkpoint_writer *writer)
{
    return writer->folder;
}

ls_status ls_checkpoint_add(ls_checkpoint_writer *writer, const char *name, uint64_t bytes,
                            uint32_t crc)
{
    const ls_checkpoint_file file = {name, bytes, crc};
    const cJSON *item;

    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') || strlen(name) > 255 ||
        strcmp(name, LS_CHECKPOINT_STATE_NAME) == 0) {
        return LS_FAIL(LS_ERR_INVALID, "'%s' cannot be a file of a checkpoint", name);
    }
    cJSON_ArrayForEach(item, writer->manifest)
    {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(item, "file")->valuestring, name) != 0) {
            continue;
        }
        return LS_FAIL(LS_ERR_INVALID, "the checkpoint has two files '%s'", name);
    }
    return ls_checkpoint_manifest_add(writer->manifest, &file);
}

static ls_status write_synced(const char *folder, const char *name, const void *data,
                              uint64_t bytes)
{
    ls_disk_file file = LS_DISK_FILE_CLOSED;
    char *path = ls_path_join(folder, name);

    if (!path) return ls_disk_file_fail_memory(strlen(folder), "a path");
    ls_status status = ls_disk_file_open(path, LS_DISK_FILE_CREATE, &file);
    if (status == LS_OK) status = ls_disk_file_write(&file, data, bytes);
    if (status == LS_OK) status = ls_disk_file_sync(&file);
    ls_disk_file_close(&file);
    free(path);
    return status;
}

ls_status ls_checkpoint_write(ls_checkpoint_writer *writer, const char *name, const void *data,
                              uint64_t bytes)
{
    LS_TRY(ls_checkpoint_add(writer, name, bytes, ls_crc32c(0, data, bytes)));
    return write_synced(writer->folder, name, data, bytes);
}

static ls_status check_sizes(const ls_checkpoint_writer *writer)
{
    const cJSON *item;
    ls_checkpoint_file file;

    cJSON_ArrayForEach(item, writer->manifest)
    {
        LS_TRY(ls_checkpoint_manifest_get(item, writer->folder, &file));
        LS_TRY(ls_checkpoint_file_check(writer->folder, &file, false));
    }
    return LS_OK;
}

static ls_status write_state(ls_checkpoint_writer *writer, cJSON *state)
{
    char *text = NULL;

    if (cJSON_GetObjectItemCaseSensitive(state, "manifest")) {
        return LS_FAIL(LS_ERR_INVALID, "a checkpoint's state has a manifest already");
    }
    if (!cJSON_IsObject(state)) {
        return LS_FAIL(LS_ERR_INVALID, "a checkpoint's state is not a JSON object");
    }
    if (!cJSON_AddItemToObject(state, "manifest", writer->manifest)) {
        return ls_disk_file_fail_memory(sizeof *state, "a checkpoint's state");
    }
    writer->manifest = NULL; /* the state's own from here on */
    LS_TRY(ls_checkpoint_state_print(state, &text));
    const ls_status status =
        write_synced(writer->folder, LS_CHECKPOINT_STATE_NAME, text, strlen(text));
    free(text);
    return status;
}

/* Give the complete folder its final name; on failure the older checkpoint has its name again. */
static ls_status take_name(ls_checkpoint_writer *writer)
{
    ls_path_kind kind;

    LS_TRY(ls_path_describe_link(writer->final, &kind));
    if (kind != LS_PATH_ABSENT && !writer->aside) {
        return LS_FAIL(LS_ERR_IO, "%s has appeared meanwhile; it is left as it is", writer->final);
    }
    if (kind != LS_PATH_ABSENT) LS_TRY(ls_disk_file_rename(writer->final, writer->aside));
    const ls_status status = ls_disk_file_rename(writer->folder, writer->final);
    if (status != LS_OK) {
        if (kind != LS_PATH_ABSENT) ls_disk_file_put_back(writer->aside, writer->final);
        return status;
    }
    writer->made = false;
    LS_TRY(ls_directory_sync(writer->root));
    return kind == LS_PATH_ABSENT ? LS_OK : ls_directory_remove(writer->aside);
}

ls_status ls_checkpoint_commit(ls_checkpoint_writer *writer, cJSON *state)
{
    ls_status status = check_sizes(writer);

    assert(state != NULL || writer->run_dir == NULL);
    if (status == LS_OK && state) status = write_state(writer, state);
    if (status == LS_OK) status = ls_directory_sync(writer->folder);
    if (status == LS_OK) status = take_name(writer);
    if (status == LS_OK && writer->run_dir) {
        status = ls_checkpoint_write_latest(writer->run_dir, writer->step);
    }
    ls_checkpoint_abort(writer); /* keeps what has its final name */
    return status;
}

void ls_checkpoint_abort(ls_checkpoint_writer *writer)
{
    if (!writer) return;
    if (writer->made) ls_directory_discard(writer->folder);
    free_writer(writer);
}
