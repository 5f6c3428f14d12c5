/*
 * run_folder.c - what stands where the run is to be written, and who else writes there.
 *
 * A folder that is there is locked before anything in it is looked at; one that is not, as soon as
 * it is made, so that a run that is refused leaves no folder behind.
 */
#include "run_folder.h"

#include <stdio.h>
#include <string.h>

#include "directory.h"

#define PATH_BYTES 4096

ls_status ls_run_folder_check(const char *output)
{
    char path[PATH_BYTES];
    ls_path_kind kind = LS_PATH_ABSENT, link;

    for (size_t n = 1; n <= strlen(output) && n < sizeof path; n++) {
        if (output[n] != '/' && output[n] != '\0') continue;
        snprintf(path, sizeof path, "%.*s", (int)n, output);
        LS_TRY(ls_path_describe(path, &kind));
        if (kind == LS_PATH_DIRECTORY) continue;
        LS_TRY(ls_path_describe_link(path, &link));
        if (link == LS_PATH_ABSENT) return LS_OK; /* and all that is below it */
        return LS_FAIL(LS_ERR_INVALID,
                       "output: %s%s%s is %s, not a folder; move it away, or choose another output",
                       output, n < strlen(output) ? ": " : "", n < strlen(output) ? path : "",
                       kind == LS_PATH_FILE     ? "a file"
                       : kind == LS_PATH_ABSENT ? "a link to nothing"
                                                : "a device, pipe or socket");
    }
    return LS_OK;
}

/* A run directory that already holds a run is never overwritten by accident. */
static ls_status check_unused(const char *output)
{
    char path[PATH_BYTES];
    ls_path_kind kind;

    snprintf(path, sizeof path, "%s/record.jsonl", output);
    LS_TRY(ls_path_describe(path, &kind));
    if (kind == LS_PATH_ABSENT) return LS_OK;
    return LS_FAIL(LS_ERR_INVALID,
                   "output: %s already holds a run; continue it with --resume, or choose another "
                   "output",
                   output);
}

/* A file system without locks is no reason to train nowhere. */
static ls_status take_lock(ls_run_folder *folder)
{
    const ls_status status = ls_folder_lock_take(folder->output, &folder->lock);

    folder->taken = status == LS_OK || status == LS_ERR_UNSUPPORTED;
    if (status != LS_ERR_UNSUPPORTED) return status;
    ls_progress_note(folder->progress, "%s", ls_error());
    return LS_OK;
}

ls_status ls_run_folder_open(const char *output, bool resume, ls_progress *progress,
                             ls_run_folder *folder)
{
    ls_path_kind kind;

    *folder = (ls_run_folder){.output = output, .progress = progress};
    LS_TRY(ls_path_describe(output, &kind));
    if (kind == LS_PATH_ABSENT) return LS_OK;
    LS_TRY(take_lock(folder));
    return resume ? LS_OK : check_unused(output);
}

ls_status ls_run_folder_make(ls_run_folder *folder)
{
    LS_TRY(ls_directory_make(folder->output));
    if (folder->taken) return LS_OK;
    LS_TRY(take_lock(folder));
    return check_unused(folder->output); /* another may have come and gone meanwhile */
}

void ls_run_folder_close(ls_run_folder *folder)
{
    ls_folder_lock_release(folder->lock);
    *folder = (ls_run_folder){0};
}
