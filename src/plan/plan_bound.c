/* plan_bound.c - the terms of README.md that nothing can share or cut. */
#include "plan_bound.h"

static bool passes_whole(const ls_placement *p, ls_tensor_class class)
{
    return p->classes[class].mode == LS_MODE_STREAM && !p->tiled[class];
}

uint64_t ls_plan_hbm_at_least(const ls_decoder_options *o, const ls_placement *p)
{
    const ls_decoder_shape *s = &o->shape;
    const uint64_t element = ls_dtype_bytes(o->dtype);
    const uint64_t rows = (uint64_t)(o->S * o->sequences);
    const uint64_t heads = (uint64_t)(s->G * s->K); /* of keys */
    uint64_t bytes = 0;

    if (!p->has_device) return 0;
    if (p->classes[LS_CLASS_WEIGHTS].mode == LS_MODE_RESIDENT)
        bytes += element * (uint64_t)ls_decoder_params(s);
    if (passes_whole(p, LS_CLASS_X)) /* a layer's input and output, in slots that nothing shares */
        bytes += 2 * element * rows * (uint64_t)s->D;
    if (!p->tiled[LS_CLASS_KV] && o->train) /* attention wants both for every block of queries */
        bytes += 2 * element * rows * heads;
    if (!p->tiled[LS_CLASS_DKV] && o->train) /* and adds into both in backward, meanwhile */
        bytes += 2 * sizeof(float) * rows * heads;
    return bytes;
}
