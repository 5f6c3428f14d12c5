/*
 * checkpoint_names.h - the names in RUN/checkpoints, and what to do with those of dead runs.
 *
 * Layer: io, internal (checkpoint_dir.c, checkpoint_find.c).  Threads: no shared state.
 */
#ifndef LS_CHECKPOINT_NAMES_H
#define LS_CHECKPOINT_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "status.h"

#define LS_CHECKPOINT_NAME_BYTES 64

typedef enum ls_checkpoint_role {
    LS_CHECKPOINT_ROLE_NONE,  /* not one of ours */
    LS_CHECKPOINT_ROLE_FINAL, /* step-00000100 */
    LS_CHECKPOINT_ROLE_TMP,   /* .tmp-step-00000100-PID */
    LS_CHECKPOINT_ROLE_OLD,   /* .old-step-00000100-PID */
} ls_checkpoint_role;

typedef struct ls_checkpoint_name {
    ls_checkpoint_role role;
    int64_t step;
    int64_t pid; /* of TMP and OLD */
} ls_checkpoint_name;

ls_checkpoint_name ls_checkpoint_name_parse(const char *name);

/* Print a name; pid is of this process. */
void ls_checkpoint_name_print(ls_checkpoint_role role, int64_t step,
                              char text[LS_CHECKPOINT_NAME_BYTES]);

/* RUN/checkpoints in new memory, or NULL. */
char *ls_checkpoint_root(const char *run_dir);

/*
 * Put back what a dead run had set aside and not replaced, remove what it had replaced and, if
 * remove_tmp, what it had not finished.  "Dead": no process has that pid, or it is ours.
 * Returns LS_OK, LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_recover(const char *root, bool remove_tmp);

/* Make RUN/latest name a step's checkpoint, durably.  LS_OK, LS_ERR_IO or LS_ERR_NO_MEMORY. */
ls_status ls_checkpoint_write_latest(const char *run_dir, int64_t step);

/*
 * Remove the files NAME.tmp-PID and NAME.tmp-PID-N that dead runs left in RUN when they were cut
 * off replacing NAME; ours may be at work.  Returns LS_OK, LS_ERR_IO or LS_ERR_NO_MEMORY.
 */
ls_status ls_checkpoint_tidy(const char *run_dir);

#endif
