/*
 * bench_copies.c - copies through the device table.  The host arena goes by in pieces, each to or
 * from its half of the device's memory, as tensors pass through slots.  Of a GPU also how fast its
 * kernels read and write host memory in place, and its own.
 */
#include <assert.h>
#include <string.h>

#include "arena.h"
#include "bench.h"
#include "clock.h"

#define PIECE_BYTES_MAX ((uint64_t)8 << 20)
#define N_LANES         2 /* in, out; a GPU's kernels run on the first */
#define REACH_PASSES    4 /* over all of the memory: a launch is short beside them */

const char *ls_copy_way_name(ls_copy_way way)
{
    static const char *const names[LS_COPY_COUNT] = {"in", "out", "both"};
    assert((unsigned)way < LS_COPY_COUNT);
    return names[way];
}

const char *ls_reach_way_name(ls_reach_way way)
{
    static const char *const names[LS_REACH_COUNT] = {"read", "write", "add"};
    assert((unsigned)way < LS_REACH_COUNT);
    return names[way];
}

typedef struct copier {
    const ls_copy_options *options;
    ls_device *device;
    char *host, *memory; /* memory: of the device */
    uint64_t piece_bytes, n_pieces;
} copier;

static uint64_t now_ns(const copier *c)
{
    const ls_device_clock *clock = c->options->clock;
    return clock != NULL ? clock->now_ns(clock->context) : ls_clock_ns();
}

static ls_status submit_piece(const copier *c, uint64_t piece, ls_copy_way way)
{
    const uint64_t halves = c->options->device_bytes / 2 / c->piece_bytes;
    const uint64_t slot = piece % halves + (way == LS_COPY_OUT ? halves : 0);
    char *host = c->host + piece * c->piece_bytes, *memory = c->memory + slot * c->piece_bytes;

    if (way == LS_COPY_IN)
        return ls_device_submit_copy(c->device, LS_COPY_IN, (int64_t)piece, memory, host,
                                     c->piece_bytes);
    return ls_device_submit_copy(c->device, LS_COPY_OUT, (int64_t)piece, host, memory,
                                 c->piece_bytes);
}

/* Both ways: the first half of the pieces goes in while the second comes out. */
static ls_status submit_pieces(const copier *c, ls_copy_way way)
{
    if (way != LS_COPY_BOTH) {
        for (uint64_t p = 0; p < c->n_pieces; p++) LS_TRY(submit_piece(c, p, way));
        return LS_OK;
    }
    for (uint64_t p = 0; p < c->n_pieces / 2; p++) {
        LS_TRY(submit_piece(c, p, LS_COPY_IN));
        LS_TRY(submit_piece(c, p + c->n_pieces / 2, LS_COPY_OUT));
    }
    return LS_OK;
}

/* One pass of the GPU over the memory; *bytes: how many of its bytes. */
static ls_status submit_reach(const copier *c, ls_reach_way way, uint64_t *bytes)
{
    const uint64_t host_bytes = c->options->host_bytes, device_bytes = c->options->device_bytes;
    const uint64_t third = device_bytes / 3 / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
    const uint64_t read = host_bytes / 2 < device_bytes ? host_bytes : 2 * device_bytes;
    ls_op_args args;
    ls_op op;

    switch (way) {
    case LS_REACH_READ: /* fp32 there, bf16 here: the reading is what lasts */
        op = LS_OP_cast;
        args.cast = (ls_cast_args){.y = c->memory,
                                   .x = c->host,
                                   .n = (int64_t)(read / 4),
                                   .y_dtype = LS_DTYPE_BF16,
                                   .x_dtype = LS_DTYPE_F32};
        *bytes = read / 4 * 4;
        break;
    case LS_REACH_WRITE:
        op = LS_OP_zero;
        args.zero = (ls_zero_args){.y = c->host, .bytes = (int64_t)host_bytes};
        *bytes = host_bytes;
        break;
    default:
        op = LS_OP_add;
        args.add = (ls_add_args){.y = c->memory,
                                 .a = c->memory + third,
                                 .b = c->memory + 2 * third,
                                 .n = (int64_t)(third / 2),
                                 .dtype = LS_DTYPE_BF16};
        *bytes = 3 * third;
        break;
    }
    return ls_device_submit_op(c->device, 0, 0, op, &args);
}

static ls_status submit_reaches(const copier *c, ls_reach_way way, uint64_t *bytes)
{
    uint64_t of_a_pass = 0;

    for (int pass = 0; pass < REACH_PASSES; pass++) LS_TRY(submit_reach(c, way, &of_a_pass));
    *bytes = REACH_PASSES * of_a_pass;
    return LS_OK;
}

/* What is timed: a way of copying, or from LS_COPY_COUNT on one of reaching. */
static ls_status submit_way(const copier *c, int way, uint64_t *bytes)
{
    *bytes = c->n_pieces * c->piece_bytes;
    if (way < LS_COPY_COUNT) return submit_pieces(c, (ls_copy_way)way);
    return submit_reaches(c, (ls_reach_way)(way - LS_COPY_COUNT), bytes);
}

static ls_status time_way(const copier *c, int way, double *bytes_per_s)
{
    int64_t failed;
    uint64_t bytes = 0;
    const uint64_t start_ns = now_ns(c);

    const ls_status submitted = submit_way(c, way, &bytes);
    const ls_status status = ls_device_sync(c->device, &failed);
    const double ns = (double)(now_ns(c) - start_ns);
    if (submitted != LS_OK || status != LS_OK) return status != LS_OK ? status : submitted;
    if (ns <= 0)
        return LS_FAIL(LS_ERR_DEVICE, "a copy took no time by the clock; measure with more bytes");
    *bytes_per_s = 1e9 * (double)bytes / ns;
    return LS_OK;
}

static ls_status time_ways(const copier *c, int n_ways, ls_spread *spreads)
{
    double rates[LS_REPETITIONS_MAX];

    for (int way = 0; way < n_ways; way++) {
        for (int round = -1; round < c->options->repetitions; round++) {
            double rate = 0;
            LS_TRY(time_way(c, way, &rate));
            if (round >= 0) rates[round] = rate;
        }
        spreads[way] = ls_spread_of(rates, c->options->repetitions);
    }
    return LS_OK;
}

/* Pages never written are all the same page of zeros: write both. */
static ls_status open_arena(const ls_copy_options *options, uint64_t bytes, ls_arena **arena,
                            char **base)
{
    const ls_arena_options wish = {.size_bytes = bytes,
                                   .huge_pages = true,
                                   .bind = options->bind,
                                   .numa_node = options->numa_node};

    LS_TRY(ls_arena_open(&wish, arena));
    *base = ls_arena_describe(*arena).base;
    memset(*base, 1, bytes);
    return LS_OK;
}

static ls_status open_device(const ls_copy_options *options, copier *c, ls_arena *host,
                             ls_arena **memory)
{
    const bool on_gpu = options->open_device != NULL;
    const ls_device_options lanes = {
        .n_lanes = N_LANES,
        .lane_threads = {1, 1},
        .lane_bytes_per_s = {options->in_bytes_per_s, options->out_bytes_per_s},
        .lane_on_gpu = {on_gpu, on_gpu},
        .clock = options->clock};
    void *base;

    if (!on_gpu) {
        LS_TRY(open_arena(options, options->device_bytes, memory, &c->memory));
        return ls_device_open_cpu(&lanes, &c->device);
    }
    LS_TRY(options->open_device(&lanes, &c->device));
    LS_TRY(ls_device_reserve(c->device, options->device_bytes, &base));
    LS_TRY(ls_device_attach(c->device, c->host, ls_arena_describe(host).size_bytes));
    c->memory = base;
    const ls_op_args zero = {.zero = {.y = base, .bytes = (int64_t)options->device_bytes}};
    return ls_device_submit_op(c->device, 0, 0, LS_OP_zero, &zero);
}

ls_status ls_copies_measure(const ls_copy_options *options, ls_spread *spreads, ls_spread *reaches)
{
    const int n_ways = LS_COPY_COUNT + (reaches != NULL ? LS_REACH_COUNT : 0);
    ls_arena *host = NULL, *memory = NULL;
    ls_spread measured[LS_COPY_COUNT + LS_REACH_COUNT];
    copier c = {.options = options, .piece_bytes = options->device_bytes / 2};

    assert(options->repetitions >= 1 && options->repetitions <= LS_REPETITIONS_MAX);
    assert(reaches == NULL || options->open_device != NULL);
    if (c.piece_bytes > PIECE_BYTES_MAX) c.piece_bytes = PIECE_BYTES_MAX;
    if (c.piece_bytes > options->host_bytes / 2) c.piece_bytes = options->host_bytes / 2;
    if (c.piece_bytes == 0)
        return LS_FAIL(LS_ERR_INVALID, "copies between %llu and %llu bytes: too few",
                       (unsigned long long)options->host_bytes,
                       (unsigned long long)options->device_bytes);
    c.n_pieces = options->host_bytes / c.piece_bytes / 2 * 2;

    ls_status status = open_arena(options, options->host_bytes, &host, &c.host);
    if (status == LS_OK) status = open_device(options, &c, host, &memory);
    if (status == LS_OK) status = time_ways(&c, n_ways, measured);
    ls_device_close(c.device);
    ls_arena_close(memory);
    ls_arena_close(host);
    if (status != LS_OK) return status;
    memcpy(spreads, measured, LS_COPY_COUNT * sizeof *measured);
    if (reaches != NULL)
        memcpy(reaches, measured + LS_COPY_COUNT, LS_REACH_COUNT * sizeof *measured);
    return LS_OK;
}
