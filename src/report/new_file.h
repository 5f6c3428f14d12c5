/*
 * new_file.h - a file of a report: written beside its name and renamed when it is whole, so that a
 * full disk leaves what was there before.
 *
 * Layer: report.  Threads: one owner.
 */
#ifndef LS_NEW_FILE_H
#define LS_NEW_FILE_H

#include <stdio.h>

#include "status.h"

typedef struct ls_new_file {
    FILE *file;
    char path[4400], path_beside[4410];
} ls_new_file;

/* LS_ERR_IO: names the path. */
ls_status ls_new_file_open(const char *path, ls_new_file *new_file);

/*
 * Give it its name, unless status is a failure or not all could be written: then nothing stays.
 * Returns the first failure: status or LS_ERR_IO.
 */
ls_status ls_new_file_close(ls_new_file *new_file, ls_status status);

#endif
