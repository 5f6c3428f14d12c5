/* schedule.h - the learning rate of each step.  Layer: engine.  Pure function. */
#ifndef LS_SCHEDULE_H
#define LS_SCHEDULE_H

#include <stdint.h>

typedef enum ls_schedule_kind {
    LS_SCHEDULE_COSINE = 0,
    LS_SCHEDULE_LINEAR,
    LS_SCHEDULE_CONSTANT,
    LS_SCHEDULE_WSD, /* warm up, hold, decay linearly over the last decay_steps */
} ls_schedule_kind;

typedef struct ls_schedule {
    ls_schedule_kind kind;
    double lr, lr_min;
    int64_t warmup_steps, decay_steps, steps;
} ls_schedule;

/*
 * Rate of step 1 .. steps.  Warm-up rises linearly and reaches lr at step warmup_steps; decay
 * reaches lr_min at the last step.  Steps beyond the end keep lr_min (lr if constant).
 */
double ls_schedule_lr(const ls_schedule *schedule, int64_t step);

#endif
