/*
 * device_cuda.c - lanes as streams of an NVIDIA GPU, beside lanes that are threads of the host.
 *
 *   GPU lane waits for GPU lane    cudaStreamWaitEvent on the mark of the ticket
 *   host lane waits for GPU lane   its thread sleeps in cudaEventSynchronize on that mark
 *   GPU lane waits for host lane   cuStreamWaitValue64 on the lane's counter of finished commands
 *
 * A command of a GPU lane has a mark: two events around it, which order others behind it and tell
 * how long it took.  A lane holds at most so many commands that have not been seen to finish; who
 * submits more waits for the oldest.  Failures lie with the host's lanes, whose first one stops
 * both: the counters then jump ahead of every ticket, so that no stream waits for ever.
 *
 * Never linked against libcuda: cuStreamWaitValue64 is asked of the runtime, and a machine without
 * a driver is found out by its version, 0.
 */
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "clock.h"
#include "cuda_device.h"

#define RELEASED (UINT64_C(1) << 62) /* ahead of every ticket: the wait compares cyclically */

enum { COUNTER_BYTES = 128 }; /* one cache-line pair for each lane's counter */

/* ---- counters of the host's lanes ---------------------------------------------------------- */

static _Atomic uint64_t *counter_of(const cuda_device *d, int lane)
{
    return (_Atomic uint64_t *)(void *)(d->counters + (size_t)lane * COUNTER_BYTES);
}

/* What the host has written must reach the GPU before the counter does. */
static void signal_gpu(cuda_device *d, int lane, uint64_t value)
{
    atomic_thread_fence(memory_order_seq_cst);
#if defined(__aarch64__)
    __asm__ volatile("dmb sy" ::: "memory"); /* the C fence orders for CPUs alone */
#endif
    atomic_store_explicit(counter_of(d, lane), value, memory_order_release);
}

static void on_finished(void *context, int lane, uint64_t ticket)
{
    cuda_device *d = context;
    if (!d->released) signal_gpu(d, lane, ticket);
}

static void on_failed(void *context)
{
    cuda_device *d = context;
    d->released = true;
    for (int lane = 0; lane < d->n_lanes; lane++) signal_gpu(d, lane, RELEASED);
}

/* ---- marks --------------------------------------------------------------------------------- */

static ls_status make_mark(cuda_device *d, mark **made)
{
    mark *m = calloc(1, sizeof *m);

    if (m == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "events of a command");
    ls_status status = check(cudaEventCreateWithFlags(&m->start, cudaEventBlockingSync), "event");
    if (status == LS_OK)
        status = check(cudaEventCreateWithFlags(&m->end, cudaEventBlockingSync), "event");
    if (status != LS_OK) {
        if (m->start != NULL) cudaEventDestroy(m->start);
        free(m);
        return status;
    }
    m->next = d->marks;
    d->marks = m;
    *made = m;
    return LS_OK;
}

/* A mark that nobody uses; the mutex is held. */
static ls_status take_mark(cuda_device *d, int lane, mark **taken)
{
    mark *m = d->marks;

    while (m != NULL && m->users > 0) m = m->next;
    if (m == NULL) LS_TRY(make_mark(d, &m));
    m->lane = lane;
    m->users = 1;
    *taken = m;
    return LS_OK;
}

/* ---- finished commands ---------------------------------------------------------------------- */

/* The GPU's time of a command by the host's clock, when it is known to have ended. */
static void tell_observer(const cuda_device *d, int lane, const command *c, uint64_t spent_ns)
{
    const ls_device_observer *o = &d->observer;
    float ms = 0.0f;

    if (d->origin == NULL || o->ended == NULL) return;
    if (cudaEventElapsedTime(&ms, d->origin, c->mark->start) != cudaSuccess) return;
    const uint64_t began_ns = d->origin_ns + (uint64_t)((double)ms * 1e6);
    if (o->began != NULL) o->began(o->context, lane, c->tag, began_ns);
    o->ended(o->context, lane, c->tag, began_ns, began_ns + spent_ns);
}

/* The oldest command of a lane has finished: count it.  The mutex is held. */
static void retire_oldest(cuda_device *d, int lane)
{
    gpu_lane *l = &d->lanes[lane];
    const command *c = &l->ring[l->retired % l->n_commands];
    float ms = 0.0f;

    if (cudaEventElapsedTime(&ms, c->mark->start, c->mark->end) != cudaSuccess) ms = 0.0f;
    const uint64_t ns = (uint64_t)((double)ms * 1e6);
    l->stats.busy_ns += ns;
    if (c->op == LS_OP_COUNT) {
        l->stats.copied_bytes += c->bytes;
    } else {
        l->stats.op_ns[c->op] += ns;
        l->stats.op_calls[c->op]++;
    }
    tell_observer(d, lane, c, ns);
    c->mark->users--;
    l->retired++;
}

/* All that have finished by now; the mutex is held. */
static void retire_ready(cuda_device *d, int lane)
{
    gpu_lane *l = &d->lanes[lane];

    while (l->retired < l->submitted &&
           cudaEventQuery(l->ring[l->retired % l->n_commands].mark->end) == cudaSuccess)
        retire_oldest(d, lane);
    (void)cudaGetLastError(); /* "not ready" is no error; faults show at waits */
}

/* The lane's stream has failed: its oldest command that has not finished is to blame. */
static ls_status fail_lane(cuda_device *d, int lane, cudaError_t error)
{
    gpu_lane *l = &d->lanes[lane];
    char what[64];

    pthread_mutex_lock(&d->mutex);
    const int64_t tag = l->retired < l->submitted ? l->ring[l->retired % l->n_commands].tag : -1;
    pthread_mutex_unlock(&d->mutex);
    snprintf(what, sizeof what, "GPU, lane %d", lane);
    const ls_status status = ls_cuda_fail((int)error, what);
    ls_host_lanes_fail(d->host, status, tag);
    return status;
}

static ls_status await_mark(cuda_device *d, const mark *m)
{
    const cudaError_t error = cudaEventSynchronize(m->end);
    return error == cudaSuccess ? LS_OK : fail_lane(d, m->lane, error);
}

/* The mark of a ticket, kept for its caller; NULL: it has finished. */
static mark *keep_mark(cuda_device *d, int lane, uint64_t ticket)
{
    gpu_lane *l = &d->lanes[lane];
    mark *m = NULL;

    pthread_mutex_lock(&d->mutex);
    assert(ticket <= l->submitted);
    if (ticket > l->retired) {
        m = l->ring[(ticket - 1) % l->n_commands].mark;
        m->users++;
    }
    pthread_mutex_unlock(&d->mutex);
    return m;
}

static void release_mark(cuda_device *d, mark *m)
{
    pthread_mutex_lock(&d->mutex);
    m->users--;
    pthread_mutex_unlock(&d->mutex);
}

static void wait_ticket(ls_device *device, int lane, uint64_t ticket)
{
    cuda_device *d = cuda_of(device);

    if (d->lanes[lane].stream == NULL) {
        ls_host_lanes_wait(d->host, lane, ticket);
        return;
    }
    mark *m = keep_mark(d, lane, ticket);
    if (m == NULL) return;
    (void)await_mark(d, m); /* a failure is told by sync */
    release_mark(d, m);
}

/* ---- submitting ----------------------------------------------------------------------------- */

/* Room for one more command of the lane. */
static ls_status make_room(cuda_device *d, int lane)
{
    gpu_lane *l = &d->lanes[lane];

    pthread_mutex_lock(&d->mutex);
    retire_ready(d, lane);
    const bool full = l->submitted - l->retired == l->n_commands;
    mark *oldest = full ? l->ring[l->retired % l->n_commands].mark : NULL;
    pthread_mutex_unlock(&d->mutex);
    if (!full) return LS_OK;
    LS_TRY(await_mark(d, oldest));
    pthread_mutex_lock(&d->mutex);
    retire_ready(d, lane);
    pthread_mutex_unlock(&d->mutex);
    return LS_OK;
}

/* Start a command: its mark, and the event before it. */
static ls_status begin(cuda_device *d, int lane, mark **m)
{
    LS_TRY(ls_host_lanes_status(d->host));
    LS_TRY(make_room(d, lane));
    pthread_mutex_lock(&d->mutex);
    ls_status status = take_mark(d, lane, m);
    pthread_mutex_unlock(&d->mutex);
    if (status == LS_OK)
        status = check(cudaEventRecord((*m)->start, d->lanes[lane].stream), "event before a step");
    return status;
}

/* It was queued as `status` tells: put it in the ring, or stop the device. */
static ls_status end(cuda_device *d, int lane, const command *c, ls_status status)
{
    gpu_lane *l = &d->lanes[lane];

    if (status == LS_OK)
        status = check(cudaEventRecord(c->mark->end, l->stream), "event behind a step");
    if (status != LS_OK) {
        ls_host_lanes_fail(d->host, status, c->tag);
        release_mark(d, c->mark);
        return status;
    }
    pthread_mutex_lock(&d->mutex);
    l->ring[l->submitted % l->n_commands] = *c;
    l->submitted++;
    pthread_mutex_unlock(&d->mutex);
    return LS_OK;
}

static ls_status submit_op(ls_device *device, int lane, int64_t tag, ls_op op,
                           const ls_op_args *args)
{
    cuda_device *d = cuda_of(device);
    command c = {.tag = tag, .op = op};

    if (d->lanes[lane].stream == NULL) return ls_host_lanes_submit_op(d->host, lane, tag, op, args);
    LS_TRY(begin(d, lane, &c.mark));
    nvtxRangePushA(ls_op_describe(op)->name); /* profilers put it over what is launched within */
    const ls_status status = ls_ops_run(&ls_ops_cuda, op, d->lanes[lane].stream, args);
    nvtxRangePop();
    return end(d, lane, &c, status);
}

static ls_status submit_copy(ls_device *device, int lane, int64_t tag, void *to, const void *from,
                             uint64_t bytes)
{
    cuda_device *d = cuda_of(device);
    command c = {.tag = tag, .op = LS_OP_COUNT, .bytes = bytes};
    const cudaStream_t stream = d->lanes[lane].stream;

    if (stream == NULL) return ls_host_lanes_submit_copy(d->host, lane, tag, to, from, bytes);
    LS_TRY(begin(d, lane, &c.mark));
    return end(d, lane, &c,
               check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copy"));
}

static ls_status submit_call(ls_device *device, int lane, int64_t tag, ls_device_call *call,
                             void *context, int64_t argument)
{
    cuda_device *d = cuda_of(device);
    assert(d->lanes[lane].stream == NULL && "calls run on the host");
    return ls_host_lanes_submit_call(d->host, lane, tag, call, context, argument);
}

/* ---- waits across lanes --------------------------------------------------------------------- */

/* context: the device; argument: the mark, whose user this call is. */
static ls_status await_on_host(void *context, int64_t argument)
{
    cuda_device *d = context;
    mark *m = (mark *)(intptr_t)argument;
    const ls_status status = await_mark(d, m);

    release_mark(d, m);
    return status;
}

/* If a failure drops the call, sync takes the mark back. */
static ls_status host_waits_for_gpu(cuda_device *d, int lane, int other, uint64_t ticket)
{
    mark *m = keep_mark(d, other, ticket);
    if (m == NULL) return LS_OK;
    return ls_host_lanes_submit_block(d->host, lane, await_on_host, d, (int64_t)(intptr_t)m);
}

static ls_status gpu_waits_for_gpu(cuda_device *d, int lane, int other, uint64_t ticket)
{
    mark *m = keep_mark(d, other, ticket);
    if (m == NULL) return LS_OK;
    const cudaError_t error = cudaStreamWaitEvent(d->lanes[lane].stream, m->end, 0);
    release_mark(d, m); /* the wait holds on to this record of the event */
    return check(error, "wait for a lane");
}

static ls_status gpu_waits_for_host(cuda_device *d, int lane, int other, uint64_t ticket)
{
    if (ls_host_lanes_finished(d->host, other) >= ticket) return LS_OK;
    const CUresult result =
        d->wait_value((CUstream)d->lanes[lane].stream, (CUdeviceptr)(uintptr_t)counter_of(d, other),
                      ticket, CU_STREAM_WAIT_VALUE_GEQ);
    if (result == CUDA_SUCCESS) return LS_OK;
    return ls_cuda_fail((int)result, "cuStreamWaitValue64"); /* errors are numbered alike */
}

static ls_status submit_wait(ls_device *device, int lane, int other, uint64_t ticket)
{
    cuda_device *d = cuda_of(device);
    const bool on_gpu = d->lanes[lane].stream != NULL, for_gpu = d->lanes[other].stream != NULL;

    LS_TRY(ls_host_lanes_status(d->host));
    if (!on_gpu && !for_gpu) return ls_host_lanes_submit_wait(d->host, lane, other, ticket);
    ls_status status;
    if (!on_gpu)
        status = host_waits_for_gpu(d, lane, other, ticket);
    else if (for_gpu)
        status = gpu_waits_for_gpu(d, lane, other, ticket);
    else
        status = gpu_waits_for_host(d, lane, other, ticket);
    if (status != LS_OK) ls_host_lanes_fail(d->host, status, -1);
    return status;
}

/* ---- reading -------------------------------------------------------------------------------- */

static uint64_t ticket_of(const ls_device *device, int lane)
{
    const cuda_device *d = cuda_of(device);
    return d->lanes[lane].stream != NULL ? d->lanes[lane].submitted
                                         : ls_host_lanes_ticket(d->host, lane);
}

/* Ties the GPU's clock to the host's: an event that is seen to pass now. */
static ls_status find_origin(cuda_device *d)
{
    for (int lane = 0; lane < d->n_lanes; lane++) {
        if (d->lanes[lane].stream == NULL) continue;
        if (d->origin == NULL)
            CUDA_TRY(cudaEventCreateWithFlags(&d->origin, cudaEventBlockingSync), "event");
        CUDA_TRY(cudaEventRecord(d->origin, d->lanes[lane].stream), "event");
        CUDA_TRY(cudaEventSynchronize(d->origin), "event");
        d->origin_ns = ls_clock_ns();
        return LS_OK;
    }
    return LS_OK;
}

/* A trace that cannot be had is no reason to stop: what a failure means shows at the next wait. */
static void observe(ls_device *device, const ls_device_observer *observer)
{
    cuda_device *d = cuda_of(device);

    ls_host_lanes_observe(d->host, observer);
    pthread_mutex_lock(&d->mutex);
    d->observer = *observer;
    if (observer->ended != NULL) (void)find_origin(d);
    pthread_mutex_unlock(&d->mutex);
}

static ls_lane_stats read_stats(ls_device *device, int lane)
{
    cuda_device *d = cuda_of(device);
    gpu_lane *l = &d->lanes[lane];

    if (l->stream == NULL) return ls_host_lanes_stats(d->host, lane);
    pthread_mutex_lock(&d->mutex);
    retire_ready(d, lane);
    const ls_lane_stats stats = l->stats;
    pthread_mutex_unlock(&d->mutex);
    return stats;
}

/* The oldest command that has not finished; if all have, the latest. */
static int64_t read_running(ls_device *device, int lane)
{
    cuda_device *d = cuda_of(device);
    gpu_lane *l = &d->lanes[lane];

    if (l->stream == NULL) return ls_host_lanes_running(d->host, lane);
    pthread_mutex_lock(&d->mutex);
    retire_ready(d, lane);
    const uint64_t at = l->retired < l->submitted ? l->retired : l->submitted - 1;
    const int64_t tag = l->submitted > 0 ? l->ring[at % l->n_commands].tag : -1;
    pthread_mutex_unlock(&d->mutex);
    return tag;
}

/* ---- the end of all that was submitted --------------------------------------------------------
 */

static void drain_lane(cuda_device *d, int lane)
{
    gpu_lane *l = &d->lanes[lane];
    const cudaError_t error = cudaStreamSynchronize(l->stream);

    pthread_mutex_lock(&d->mutex);
    retire_ready(d, lane);
    pthread_mutex_unlock(&d->mutex);
    if (error != cudaSuccess) (void)fail_lane(d, lane, error);
    pthread_mutex_lock(&d->mutex);
    while (l->retired < l->submitted) retire_oldest(d, lane); /* dropped by a failure */
    pthread_mutex_unlock(&d->mutex);
}

static ls_status sync_device(ls_device *device, int64_t *failed_tag)
{
    cuda_device *d = cuda_of(device);

    for (int lane = 0; lane < d->n_lanes; lane++)
        if (d->lanes[lane].stream != NULL) drain_lane(d, lane);
    const ls_status status = ls_host_lanes_sync(d->host, failed_tag);
    if (status == LS_OK) return LS_OK;
    /* All is quiet: nobody waits on a counter or a mark. */
    d->released = false;
    for (int lane = 0; lane < d->n_lanes; lane++)
        signal_gpu(d, lane, ls_host_lanes_finished(d->host, lane));
    for (mark *m = d->marks; m != NULL; m = m->next) m->users = 0;
    return status;
}

/* ---- open, close ------------------------------------------------------------------------------
 */

static void close_device(ls_device *device)
{
    cuda_device *d = cuda_of(device);
    int64_t failed_tag;

    if (d->host != NULL) (void)sync_device(device, &failed_tag); /* nobody asks any more */
    ls_host_lanes_close(d->host);
    for (int lane = 0; lane < d->n_lanes; lane++)
        if (d->lanes[lane].stream != NULL) cudaStreamDestroy(d->lanes[lane].stream);
    for (int lane = 0; lane < d->n_lanes; lane++) free(d->lanes[lane].ring);
    if (d->origin != NULL) cudaEventDestroy(d->origin);
    while (d->marks != NULL) {
        mark *m = d->marks;
        d->marks = m->next;
        cudaEventDestroy(m->start);
        cudaEventDestroy(m->end);
        free(m);
    }
    ls_cuda_release_memory(d);
    if (d->counters != NULL) cudaFreeHost(d->counters);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

static ls_status open_stream(gpu_lane *lane, int n_commands)
{
    lane->n_commands = n_commands > 0 ? (uint64_t)n_commands : LS_DEVICE_COMMANDS;
    lane->ring = calloc(lane->n_commands, sizeof *lane->ring);
    if (lane->ring == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "queue of a stream");
    return check(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking), "stream");
}

static ls_status open_parts(const ls_device_options *options, cuda_device *d)
{
    const ls_lane_listener observer = {on_finished, on_failed, d};
    const size_t counter_bytes = LS_DEVICE_LANES_MAX * COUNTER_BYTES;
    void *counters = NULL;

    CUDA_TRY(cudaSetDevice(0), "GPU 0");
    d->reads_host = ls_cuda_reads_host();
    LS_TRY(ls_cuda_find_wait_value(d));
    LS_TRY(ls_cuda_matmul_open());
    CUDA_TRY(cudaHostAlloc(&counters, counter_bytes, cudaHostAllocDefault), "counters");
    memset(counters, 0, counter_bytes);
    d->counters = counters;
    for (int lane = 0; lane < d->n_lanes; lane++)
        if (options->lane_on_gpu[lane])
            LS_TRY(open_stream(&d->lanes[lane], options->lane_commands[lane]));
    return ls_host_lanes_open(options, &observer, &d->host);
}

static const ls_device_backend backend = {
    .name = "cuda",
    .ops = &ls_ops_cuda,
    .close = close_device,
    .submit_op = submit_op,
    .submit_copy = submit_copy,
    .submit_call = submit_call,
    .submit_wait = submit_wait,
    .ticket = ticket_of,
    .sync = sync_device,
    .wait = wait_ticket,
    .observe = observe,
    .stats = read_stats,
    .running = read_running,
    .reserve = ls_cuda_reserve,
    .attach = ls_cuda_attach,
};

ls_status ls_device_open_cuda(const ls_device_options *options, ls_device **device)
{
    assert(options->n_lanes >= 1 && options->n_lanes <= LS_DEVICE_LANES_MAX);
    LS_TRY(ls_device_probe_cuda());
    cuda_device *d = calloc(1, sizeof *d);
    if (d == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "device of %d lanes", options->n_lanes);
    d->base.backend = &backend;
    d->n_lanes = options->n_lanes;
    pthread_mutex_init(&d->mutex, NULL);
    const ls_status status = open_parts(options, d);
    if (status != LS_OK) {
        close_device(&d->base);
        return status;
    }
    *device = &d->base;
    return LS_OK;
}
