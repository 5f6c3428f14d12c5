/*
 * bench_calls.c - operands, lanes and turns of timed calls.
 *
 * What a call takes besides its work is mostly the threads of its team: they sleep where they wait
 * for each other, and to wake one takes tens of microseconds.  How long they spin first depends on
 * how many threads a process has: so that they do as in a run, there are as many lanes with a team.
 */
#include "bench_calls.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"

#define FILL          0x3c /* of every byte: 0.0115 in bf16 and in fp32 */
#define PATTERN_BYTES ((uint64_t)4 << 20)
#define MOVES_BYTES                                                                                \
    ((uint64_t)32 << 20) /* through which operands move: more than the cores' caches */
#define LINE_BYTES 4096

enum { COMPUTE = 0, UPDATE, N_LANES };

void ls_bench_calls_add(ls_bench_calls *c, ls_op op, const ls_op_args *args, uint64_t operand_bytes,
                        double bytes)
{
    const uint64_t rounded = (operand_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    const uint64_t workspace = c->ops->workspace_bytes(op, args);

    assert(c->n < LS_BENCH_CALLS_MAX);
    c->calls[c->n++] =
        (ls_bench_call){.op = op, .args = *args, .operand_bytes = rounded, .bytes = bytes};
    if (rounded > c->operand_bytes_max) c->operand_bytes_max = rounded;
    if (workspace > c->workspace_bytes_max) c->workspace_bytes_max = workspace;
}

/* ---- operands ------------------------------------------------------------------------------ */

/* Indices, and what steers an update: zero is a value of each. */
static bool is_zero(const ls_operand_info *operand)
{
    static const char *const names[] = {"doc_start", "positions", "targets", "control"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(operand->name, names[i]) == 0) return true;
    return false;
}

/* Scales are of packed moments, lower halves of a split master. */
static bool is_absent(const ls_bench_call *call, const ls_operand_info *operand)
{
    const char *scale = strstr(operand->name, "_scale");

    if (call->op != LS_OP_adamw) return false;
    return (scale != NULL && scale[6] == '\0') ||
           (strcmp(operand->name, "lo") == 0 && call->args.adamw.dtype == LS_DTYPE_F32);
}

static bool is_workspace(const ls_operand_info *operand)
{
    return strcmp(operand->name, "workspace") == 0;
}

static void count_places(const ls_bench_calls *c, ls_bench_call *call)
{
    const uint64_t wanted = (uint64_t)((double)MOVES_BYTES / call->bytes) + 1;
    const uint64_t room = c->operand_bytes_max / call->operand_bytes;

    call->n_places = wanted < room ? wanted : room;
}

static char *room_of(const ls_bench_calls *c, int operand)
{
    return c->base + (uint64_t)(operand + 1) * c->operand_bytes_max;
}

/* After a room of zeros for document starts each operand has its own; the workspace comes last. */
static void place_operands(const ls_bench_calls *c, ls_bench_call *call)
{
    const ls_op_info *info = ls_op_describe(call->op);
    const bool has_workspace = c->ops->workspace_bytes(call->op, &call->args) > 0;
    const uint64_t moved = call->next * call->operand_bytes;

    for (int i = 0; i < info->n_operands; i++) {
        const ls_operand_info *operand = &info->operands[i];
        char *at = room_of(c, i) + moved;
        if (is_zero(operand)) at = c->base;
        if (is_workspace(operand))
            at = has_workspace ? c->base + (LS_OPERANDS_MAX + 1) * c->operand_bytes_max : NULL;
        if (is_absent(call, operand)) at = NULL;
        memcpy((char *)&call->args + operand->offset, &at, sizeof at);
    }
    call->next = (call->next + 1) % call->n_places;
}

/* What another op has left there may be numbers on which processors are slow. */
static void refill_operands(const ls_bench_calls *c, const ls_bench_call *call)
{
    const ls_op_info *info = ls_op_describe(call->op);

    for (int i = 0; i < info->n_operands; i++) {
        const ls_operand_info *operand = &info->operands[i];
        if (is_zero(operand) || is_workspace(operand) || is_absent(call, operand)) continue;
        memset(room_of(c, i), FILL, call->n_places * call->operand_bytes);
    }
}

/* ---- memory -------------------------------------------------------------------------------- */

static uint64_t all_bytes(const ls_bench_calls *c)
{
    return (LS_OPERANDS_MAX + 1) * c->operand_bytes_max + c->workspace_bytes_max;
}

/* Zeros, by a lane: its team is there from then on. */
static ls_status submit_zeros(const ls_bench_calls *c, int lane)
{
    const ls_op_args zero = {.zero = {.y = c->base, .bytes = (int64_t)c->operand_bytes_max}};
    return ls_device_submit_op(c->device, lane, 0, LS_OP_zero, &zero);
}

static ls_status open_host(ls_bench_calls *c)
{
    const ls_device_options lanes = {.n_lanes = N_LANES};
    const ls_arena_options wish = {.size_bytes = all_bytes(c), .huge_pages = true};
    int64_t failed;

    LS_TRY(ls_arena_open(&wish, &c->arena));
    c->base = ls_arena_describe(c->arena).base;
    memset(c->base, FILL, wish.size_bytes);
    LS_TRY(ls_device_open_cpu(&lanes, &c->device));
    LS_TRY(submit_zeros(c, UPDATE));
    return ls_device_sync(c->device, &failed);
}

static ls_status fill_device_memory(const ls_bench_calls *c, const char *pattern)
{
    int64_t failed;

    LS_TRY(submit_zeros(c, COMPUTE));
    for (uint64_t at = c->operand_bytes_max; at < all_bytes(c); at += PATTERN_BYTES) {
        const uint64_t left = all_bytes(c) - at;
        LS_TRY(ls_device_submit_copy(c->device, COMPUTE, 0, c->base + at, pattern,
                                     left < PATTERN_BYTES ? left : PATTERN_BYTES));
    }
    return ls_device_sync(c->device, &failed);
}

static ls_status open_gpu(ls_device_opener *open_device, ls_bench_calls *c)
{
    const ls_device_options lane = {.n_lanes = 1, .lane_on_gpu = {true}};
    char *pattern = malloc(PATTERN_BYTES);
    void *base = NULL;

    if (pattern == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "operands of a benchmark");
    memset(pattern, FILL, PATTERN_BYTES);
    ls_status status = open_device(&lane, &c->device);
    if (status == LS_OK) status = ls_device_reserve(c->device, all_bytes(c), &base);
    c->base = base;
    if (status == LS_OK) status = fill_device_memory(c, pattern);
    free(pattern);
    return status;
}

ls_status ls_bench_calls_open(ls_bench_calls *c, ls_device_opener *open_device)
{
    for (int i = 0; i < c->n; i++) count_places(c, &c->calls[i]);
    return open_device != NULL ? open_gpu(open_device, c) : open_host(c);
}

void ls_bench_calls_close(ls_bench_calls *c)
{
    ls_device_close(c->device);
    ls_arena_close(c->arena);
    c->device = NULL;
    c->arena = NULL;
}

/* ---- timing -------------------------------------------------------------------------------- */

static ls_status run_calls(const ls_bench_calls *c, ls_bench_call *call, int64_t n)
{
    ls_status submitted = LS_OK;
    int64_t failed;

    for (int64_t i = 0; i < n && submitted == LS_OK; i++) {
        place_operands(c, call);
        submitted = ls_device_submit_op(c->device, COMPUTE, 0, call->op, &call->args);
    }
    const ls_status status = ls_device_sync(c->device, &failed);
    return status != LS_OK ? status : submitted;
}

/* So many calls that they last. */
static ls_status time_call(const ls_bench_calls *c, ls_bench_call *call, double least_seconds,
                           double *seconds)
{
    for (int64_t n = 1;; n *= 2) {
        const uint64_t start_ns = ls_clock_ns();
        LS_TRY(run_calls(c, call, n));
        *seconds = 1e-9 * (double)(ls_clock_ns() - start_ns);
        if (*seconds < least_seconds) continue;
        *seconds /= (double)n;
        return LS_OK;
    }
}

/* In rounds through all calls, so that a disturbance meets them alike; the first warms up. */
ls_status ls_bench_calls_time(ls_bench_calls *c, int repetitions, double least_seconds,
                              ls_spread *seconds)
{
    for (int round = -1; round < repetitions; round++)
        for (int i = 0; i < c->n; i++) {
            double taken;
            if (c->arena != NULL) refill_operands(c, &c->calls[i]);
            LS_TRY(time_call(c, &c->calls[i], least_seconds, &taken));
            if (round >= 0) c->calls[i].samples[round] = taken;
        }
    for (int i = 0; i < c->n; i++) seconds[i] = ls_spread_of(c->calls[i].samples, repetitions);
    return LS_OK;
}
