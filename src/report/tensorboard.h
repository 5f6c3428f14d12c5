/*
 * tensorboard.h - a run's scalars as an event file of TensorBoard, read offline.
 *
 *     DIR/LABEL/events.out.tfevents.STARTED.longspan.0       one folder, one run, for each run
 *
 *     record = length u64 | masked crc of it u32 | Event (protobuf) | masked crc of that u32
 *
 * Little-endian; the crc is CRC-32C, rotated right by 15 bits plus 0xa282ead8.  Tags are grouped by
 * what they tell: loss/, time/, memory/, energy/.  What was not measured is left out.
 *
 * Sources: tensorflow/core/lib/io/record_writer.h, core/util/event.proto,
 * core/framework/summary.proto. Layer: report, internal.  Threads: no shared state.
 */
#ifndef LS_TENSORBOARD_H
#define LS_TENSORBOARD_H

#include "summary.h"

/* Write a folder for each run into directory, which exists.  Runs of one label are numbered.
 * LS_ERR_IO, LS_ERR_NO_MEMORY. */
ls_status ls_report_tensorboard(const char *directory, const ls_run_summary *runs, int n_runs);

#endif
