/*
 * bench_copies.c - copies through the device table.  The host arena goes by in pieces, each to or
 * from its half of the device arena, as tensors pass through slots.
 */
#include <assert.h>
#include <string.h>

#include "arena.h"
#include "bench.h"
#include "clock.h"

#define PIECE_BYTES_MAX ((uint64_t)8 << 20)
#define N_LANES         2 /* in, out */

const char *ls_copy_way_name(ls_copy_way way)
{
    static const char *const names[LS_COPY_COUNT] = {"in", "out", "both"};
    assert((unsigned)way < LS_COPY_COUNT);
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

static ls_status time_way(const copier *c, ls_copy_way way, double *bytes_per_s)
{
    int64_t failed;
    const uint64_t start_ns = now_ns(c);

    const ls_status submitted = submit_pieces(c, way);
    const ls_status status = ls_device_sync(c->device, &failed);
    const double ns = (double)(now_ns(c) - start_ns);
    if (submitted != LS_OK || status != LS_OK) return status != LS_OK ? status : submitted;
    if (ns <= 0)
        return LS_FAIL(LS_ERR_DEVICE, "a copy took no time by the clock; measure with more bytes");
    *bytes_per_s = 1e9 * (double)(c->n_pieces * c->piece_bytes) / ns;
    return LS_OK;
}

static ls_status time_ways(const copier *c, ls_spread *spreads)
{
    double rates[LS_REPETITIONS_MAX];

    for (int way = 0; way < LS_COPY_COUNT; way++) {
        for (int round = -1; round < c->options->repetitions; round++) {
            double rate = 0;
            LS_TRY(time_way(c, (ls_copy_way)way, &rate));
            if (round >= 0) rates[round] = rate;
        }
        spreads[way] = ls_spread_of(rates, c->options->repetitions);
    }
    return LS_OK;
}

/* Pages never written are all the same page of zeros: write both. */
static ls_status open_arena(uint64_t bytes, ls_arena **arena, char **base)
{
    const ls_arena_options options = {.size_bytes = bytes, .huge_pages = true};

    LS_TRY(ls_arena_open(&options, arena));
    *base = ls_arena_describe(*arena).base;
    memset(*base, 1, bytes);
    return LS_OK;
}

ls_status ls_copies_measure(const ls_copy_options *options, ls_spread *spreads)
{
    const ls_device_options lanes = {
        .n_lanes = N_LANES,
        .lane_threads = {1, 1},
        .lane_bytes_per_s = {options->in_bytes_per_s, options->out_bytes_per_s},
        .clock = options->clock};
    ls_arena *host = NULL, *memory = NULL;
    ls_spread measured[LS_COPY_COUNT];
    copier c = {.options = options, .piece_bytes = options->device_bytes / 2};

    assert(options->repetitions >= 1 && options->repetitions <= LS_REPETITIONS_MAX);
    if (c.piece_bytes > PIECE_BYTES_MAX) c.piece_bytes = PIECE_BYTES_MAX;
    if (c.piece_bytes > options->host_bytes / 2) c.piece_bytes = options->host_bytes / 2;
    if (c.piece_bytes == 0)
        return LS_FAIL(LS_ERR_INVALID, "copies between %llu and %llu bytes: too few",
                       (unsigned long long)options->host_bytes,
                       (unsigned long long)options->device_bytes);
    c.n_pieces = options->host_bytes / c.piece_bytes / 2 * 2;

    ls_status status = open_arena(options->host_bytes, &host, &c.host);
    if (status == LS_OK) status = open_arena(options->device_bytes, &memory, &c.memory);
    if (status == LS_OK) status = ls_device_open_cpu(&lanes, &c.device);
    if (status == LS_OK) status = time_ways(&c, measured);
    ls_device_close(c.device);
    ls_arena_close(memory);
    ls_arena_close(host);
    if (status == LS_OK) memcpy(spreads, measured, sizeof measured);
    return status;
}
