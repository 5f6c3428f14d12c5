/* tape.c - the growing list of tensors and calls. */
#include "tape.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char *ls_role_name(ls_role role)
{
    static const char *const names[LS_ROLE_COUNT] = {"weights", "lo",    "m",      "v",   "grad",
                                                     "x",       "o",     "kv",     "dkv", "chunk",
                                                     "logits",  "batch", "staging"};
    assert((unsigned)role < LS_ROLE_COUNT);
    return names[role];
}

const char *ls_phase_name(ls_phase phase)
{
    static const char *const names[LS_PHASE_COUNT] = {"batch", "forward", "loss", "backward",
                                                      "norm",  "update",  "save"};
    assert((unsigned)phase < LS_PHASE_COUNT);
    return names[phase];
}

const char *ls_segment_name(ls_segment_kind segment)
{
    static const char *const names[LS_SEGMENT_COUNT] = {"step", "step+save", "eval", "drain"};
    assert((unsigned)segment < LS_SEGMENT_COUNT);
    return names[segment];
}

bool ls_segment_follows(ls_segment_kind segment, ls_segment_kind next)
{
    (void)next; /* whatever it is */
    return segment != LS_SEGMENT_DRAIN;
}

const char *ls_call_kind_name(ls_call_kind kind)
{
    static const char *const names[LS_CALL_KIND_COUNT] = {
        "op", "batch", "loss", "schedule", "report", "save_begin", "save", "save_end", "copy"};
    assert((unsigned)kind < LS_CALL_KIND_COUNT);
    return names[kind];
}

int64_t ls_tensor_elements(const ls_tensor *tensor)
{
    int64_t n = 1;
    for (int i = 0; i < tensor->n_dims; i++) n *= tensor->dims[i];
    return n;
}

uint64_t ls_tensor_bytes(const ls_tensor *tensor)
{
    return (uint64_t)ls_tensor_elements(tensor) * ls_dtype_bytes(tensor->dtype);
}

void ls_tape_free(ls_tape *tape)
{
    if (tape == NULL) return;
    free(tape->tensors);
    free(tape->calls);
    memset(tape, 0, sizeof *tape);
}

ls_status ls_tape_add_tensor(ls_tape *tape, const ls_tensor *description, int32_t *tensor)
{
    assert(description->n_dims >= 1 && description->n_dims <= LS_TENSOR_DIMS_MAX);
    if (tape->n_tensors == tape->tensors_capacity) {
        const int32_t capacity = tape->tensors_capacity ? 2 * tape->tensors_capacity : 64;
        ls_tensor *grown = realloc(tape->tensors, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "tensor table of %d rows", capacity);
        tape->tensors = grown;
        tape->tensors_capacity = capacity;
    }
    *tensor = tape->n_tensors;
    tape->tensors[tape->n_tensors++] = *description;
    return LS_OK;
}

ls_status ls_tape_add_call(ls_tape *tape, const ls_call *call)
{
    if (tape->n_calls == tape->calls_capacity) {
        const int64_t capacity = tape->calls_capacity ? 2 * tape->calls_capacity : 256;
        ls_call *grown = realloc(tape->calls, (size_t)capacity * sizeof *grown);
        if (grown == NULL)
            return LS_FAIL(LS_ERR_NO_MEMORY, "tape of %lld calls", (long long)capacity);
        tape->calls = grown;
        tape->calls_capacity = capacity;
    }
    tape->calls[tape->n_calls++] = *call;
    tape->segment_calls[tape->segment]++;
    return LS_OK;
}

void ls_tape_begin_segment(ls_tape *tape, ls_segment_kind segment)
{
    assert(tape->segment_calls[segment] == 0);
    tape->segment = segment;
    tape->segment_first[segment] = tape->n_calls;
}

ls_view ls_view_none(void)
{
    return (ls_view){.tensor = -1};
}

ls_view ls_view_whole(const ls_tape *tape, int32_t tensor)
{
    assert(tensor >= 0 && tensor < tape->n_tensors);
    return (ls_view){.tensor = tensor, .bytes = ls_tensor_bytes(&tape->tensors[tensor])};
}

ls_view ls_view_rows(const ls_tape *tape, int32_t tensor, int64_t first, int64_t n)
{
    assert(tensor >= 0 && tensor < tape->n_tensors);
    const ls_tensor *t = &tape->tensors[tensor];
    assert(first >= 0 && n >= 0 && first + n <= t->dims[0]);

    const uint64_t row_bytes = ls_tensor_bytes(t) / (uint64_t)t->dims[0];
    return (ls_view){
        .tensor = tensor, .offset = (uint64_t)first * row_bytes, .bytes = (uint64_t)n * row_bytes};
}

void ls_tape_check(const ls_tape *tape)
{
    for (int64_t c = 0; c < tape->n_calls; c++) {
        const ls_call *call = &tape->calls[c];
        for (int i = 0; i < call->n_operands; i++) {
            const ls_view *view = &call->operands[i];
            if (view->tensor < 0) continue;
            assert(view->tensor < tape->n_tensors);
            const ls_tensor *t = &tape->tensors[view->tensor];
            assert(view->offset + view->bytes <= ls_tensor_bytes(t));
            if (t->tile_rows == 0 || view->bytes == 0) continue;
            const uint64_t tile =
                ls_tensor_bytes(t) / (uint64_t)t->dims[0] * (uint64_t)t->tile_rows;
            assert(view->offset / tile == (view->offset + view->bytes - 1) / tile);
        }
    }
}
