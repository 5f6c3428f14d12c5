/*
 * loss_record.h - losses by position, distance and source as lines of the record have them.
 *
 * Layer: engine.  Threads: one at a time.
 */
#ifndef LS_LOSS_RECORD_H
#define LS_LOSS_RECORD_H

#include "loss_stats.h"
#include "record.h"

typedef struct ls_loss_record {
    ls_record_bin *by_position, *by_distance;
    ls_record_source *by_source; /* names as JSON texts */
} ls_loss_record;

/* Room for what statistics like these have.  LS_ERR_NO_MEMORY. */
ls_status ls_loss_record_open(const ls_loss_stats *losses, ls_loss_record *record);
void ls_loss_record_close(ls_loss_record *record);

/* The means, valid until the next call; without bins by source alone. */
ls_record_losses ls_loss_record_fill(ls_loss_record *record, const ls_loss_stats *losses,
                                     bool bins);

#endif
