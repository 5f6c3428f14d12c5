/* schedule.c - warm-up, then one of four shapes. */
#include "schedule.h"

#include <math.h>

double ls_schedule_lr(const ls_schedule *s, int64_t step)
{
    const int64_t decay_steps =
        s->kind == LS_SCHEDULE_WSD ? s->decay_steps : s->steps - s->warmup_steps;
    const int64_t decay_start = s->steps - decay_steps;

    if (step <= s->warmup_steps) return s->lr * (double)step / (double)s->warmup_steps;
    if (s->kind == LS_SCHEDULE_CONSTANT || step <= decay_start) return s->lr;
    if (step >= s->steps) return s->lr_min;

    const double progress = (double)(step - decay_start) / (double)decay_steps;
    const double left = s->kind == LS_SCHEDULE_COSINE
                            ? 0.5 * (1.0 + cos(3.141592653589793 * progress))
                            : 1.0 - progress;
    return s->lr_min + (s->lr - s->lr_min) * left;
}
