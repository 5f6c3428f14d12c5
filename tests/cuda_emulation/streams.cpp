/*
 * streams.cpp - streams that defer their work and then run it in any order that the declared
 * dependencies allow.
 *
 * Nothing runs where it is submitted, or some of it does: a draw decides.  Whoever waits runs what
 * is needed, picking among all streams whose first piece of work may run; a bias, drawn anew now
 * and then, favours the oldest or the newest stream for a while, so that one lane gets as far ahead
 * of the others as its waits let it.  Work of two streams that nothing orders thus runs in either
 * order, and a wait that is missing shows.
 */
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <cuda.h>

#include "cuda_emulation.h"
#include "internal.h"

struct event_state {
    uint64_t recorded = 0, completed = 0; /* records so far; those that have been reached */
    uint64_t completed_ns = 0;
};

struct CUevent_st {
    std::shared_ptr<event_state> state = std::make_shared<event_state>();
};

struct command {
    uint64_t number; /* in order of submission, over all streams */
    std::function<bool()> may_run;
    std::function<void()> run;
};

struct CUstream_st {
    std::deque<command> queue;
};

std::recursive_mutex ls_emulated_mutex;
ls_emulation_counts ls_emulated_counts;

namespace
{

enum { STUCK_POLLS = 200000, POLL_US = 50, BIASES = 4, BIAS_LASTS = 24 };

using lock = std::unique_lock<std::recursive_mutex>;

std::vector<cudaStream_t> streams;
uint64_t n_submitted, n_picks, bias;
int64_t until_fault[LS_FAULT_COUNT];
cudaError_t sticky = cudaSuccess; /* what a fault of a kernel left behind */
bool driver_present = true;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t give(cudaError_t error)
{
    if (error != cudaSuccess) last_error = error;
    return error;
}

/* ---- running ----------------------------------------------------------------------------------
 */

bool may_run(cudaStream_t s)
{
    return !s->queue.empty() && (!s->queue.front().may_run || s->queue.front().may_run());
}

/* The stream whose first piece of work runs next; NULL: none can. */
cudaStream_t pick()
{
    std::vector<cudaStream_t> able;

    for (cudaStream_t s : streams)
        if (may_run(s)) able.push_back(s);
    if (able.empty()) return nullptr;
    if (n_picks++ % BIAS_LASTS == 0) bias = ls_emulated_draw(BIASES);
    if (bias == 0) return able.front();
    if (bias == 1) return able.back();
    return able[ls_emulated_draw(able.size())];
}

void count_overtaking(uint64_t number)
{
    for (cudaStream_t s : streams)
        if (!s->queue.empty() && s->queue.front().number < number) {
            ls_emulated_counts.overtakings++;
            return;
        }
}

/* Run one piece of work; false: none can. */
bool step()
{
    cudaStream_t s = pick();
    if (s == nullptr) return false;
    command c = std::move(s->queue.front());
    s->queue.pop_front();
    count_overtaking(c.number);
    if (c.run) c.run();
    return true;
}

[[noreturn]] void report_stuck()
{
    std::string text;
    for (size_t i = 0; i < streams.size(); i++)
        text += " stream " + std::to_string(i) + ": " + std::to_string(streams[i]->queue.size());
    ls_emulated_abort("nothing can run, and nobody signals: work left:%s", text.c_str());
}

/* Run work until done() holds.  Others may submit and signal meanwhile. */
void run_until(lock *held, const std::function<bool()> &done)
{
    int polls = 0;
    while (!done()) {
        if (step()) {
            polls = 0;
            continue;
        }
        held->unlock();
        usleep(POLL_US);
        held->lock();
        if (++polls > STUCK_POLLS) report_stuck();
    }
}

/* A real device starts at once, an unlucky one much later. */
void run_some()
{
    if (ls_emulated_draw(3) != 0) return;
    for (uint64_t n = ls_emulated_draw(4); n > 0 && step(); n--) {
    }
}

bool is_known(cudaStream_t s)
{
    for (cudaStream_t known : streams)
        if (known == s) return true;
    return false;
}

cudaError_t submit(cudaStream_t s, std::function<bool()> may, std::function<void()> work)
{
    if (sticky != cudaSuccess) return give(sticky);
    if (!is_known(s)) ls_emulated_abort("work for a stream that is not open (the default stream?)");
    s->queue.push_back({n_submitted++, std::move(may), std::move(work)});
    run_some();
    return cudaSuccess;
}

/* A kernel faulted: what was submitted never runs, what waits for it is let go. */
void fault()
{
    sticky = cudaErrorIllegalAddress;
}

void run_kernel(const ls_emulated_launch &launch)
{
    if (sticky != cudaSuccess) return;
    if (ls_emulated_fails(LS_FAULT_KERNEL)) return fault();
    ls_emulated_unlock_memory();
    ls_emulated_run(launch);
    ls_emulated_lock_memory();
}

uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

/* ---- launches ----------------------------------------------------------------------------------
 */

std::vector<std::pair<const void *, int>> shared_limits; /* what kernels were allowed */

size_t shared_limit(const void *kernel)
{
    for (const auto &entry : shared_limits)
        if (entry.first == kernel) return static_cast<size_t>(entry.second);
    return 48 * 1024;
}

bool fits(const ls_emulated_launch &l)
{
    const uint64_t n = static_cast<uint64_t>(l.block.x) * l.block.y * l.block.z;
    return n >= 1 && n <= 1024 && l.block.z <= 64 && l.grid.x >= 1 && l.grid.x <= 0x7fffffffu &&
           l.grid.y >= 1 && l.grid.y <= 65535 && l.grid.z >= 1 && l.grid.z <= 65535 &&
           l.shared_bytes <= shared_limit(l.kernel);
}

} // namespace

cudaError_t ls_emulated_submit(const ls_emulated_launch &launch, cudaStream_t stream)
{
    lock held(ls_emulated_mutex);
    ls_emulated_counts.launches++;
    if (!fits(launch)) return give(cudaErrorInvalidConfiguration);
    if (ls_emulated_fails(LS_FAULT_LAUNCH)) return give(cudaErrorLaunchOutOfResources);
    return submit(stream, nullptr, [launch] { run_kernel(launch); });
}

cudaError_t ls_emulated_enqueue(cudaStream_t stream, std::function<void()> work)
{
    lock held(ls_emulated_mutex);
    return submit(stream, nullptr, [work] {
        if (sticky != cudaSuccess) return;
        ls_emulated_unlock_memory();
        work();
        ls_emulated_lock_memory();
    });
}

/* ---- steering ----------------------------------------------------------------------------------
 */

bool ls_emulated_fails(ls_emulated_fault fault)
{
    return until_fault[fault] > 0 && --until_fault[fault] == 0;
}

void ls_emulation_fail(ls_emulated_fault fault, int64_t n)
{
    lock held(ls_emulated_mutex);
    std::memset(until_fault, 0, sizeof until_fault);
    until_fault[fault] = n;
    if (fault == LS_FAULT_NONE) sticky = cudaSuccess;
}

void ls_emulation_driver(bool present)
{
    driver_present = present;
}

ls_emulation_counts ls_emulation_count(void)
{
    lock held(ls_emulated_mutex);
    return ls_emulated_counts;
}

/* ---- the runtime's functions ------------------------------------------------------------------
 */

static CUresult wait_value(CUstream stream, CUdeviceptr at, cuuint64_t value, unsigned flags)
{
    lock held(ls_emulated_mutex);
    const volatile uint64_t *counter = reinterpret_cast<const volatile uint64_t *>(at);

    if (flags != CU_STREAM_WAIT_VALUE_GEQ) return CUDA_ERROR_INVALID_VALUE;
    ls_emulated_counts.value_waits++;
    /* Cyclic, as the driver compares. */
    const auto reached = [counter, value] {
        return sticky != cudaSuccess ||
               static_cast<int64_t>(__atomic_load_n(counter, __ATOMIC_ACQUIRE) - value) >= 0;
    };
    return static_cast<CUresult>(submit(stream, reached, nullptr)); /* they are numbered alike */
}

extern "C" {

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = driver_present ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    if (!driver_present) return give(cudaErrorInsufficientDriver); /* count is left as it was */
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return give(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    switch (static_cast<int>(attribute)) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrPageableMemoryAccess: *value = 1; break;
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables: *value = 1; break;
    case cudaDevAttrCanUseHostPointerForRegisteredMem: *value = 1; break;
    default: return give(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = sticky;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorLaunchOutOfResources: return "cudaErrorLaunchOutOfResources";
    case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t error)
{
    return cudaGetErrorName(error);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *result)
{
    const bool found = std::strcmp(symbol, "cuStreamWaitValue64") == 0;
    *function = found ? reinterpret_cast<void *>(wait_value) : nullptr;
    *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    lock held(ls_emulated_mutex);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > 227 * 1024)
        return give(cudaErrorInvalidValue);
    shared_limits.insert(shared_limits.begin(), {kernel, value});
    return cudaSuccess;
}

/* ---- streams ----------------------------------------------------------------------------------
 */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    lock held(ls_emulated_mutex);
    *stream = new CUstream_st;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    lock held(ls_emulated_mutex);
    run_until(&held, [stream] { return stream->queue.empty(); });
    return give(sticky);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    lock held(ls_emulated_mutex);
    run_until(&held, [stream] { return stream->queue.empty(); });
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == stream) streams.erase(streams.begin() + static_cast<long>(i));
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    lock held(ls_emulated_mutex);
    run_until(&held, [] {
        for (cudaStream_t s : streams)
            if (!s->queue.empty()) return false;
        return true;
    });
    return give(sticky);
}

/* ---- events -----------------------------------------------------------------------------------
 */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = new CUevent_st;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    lock held(ls_emulated_mutex);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    lock held(ls_emulated_mutex);
    const std::shared_ptr<event_state> state = event->state;
    const uint64_t record = ++state->recorded;
    return submit(stream, nullptr, [state, record] {
        if (record > state->completed) state->completed = record;
        state->completed_ns = now_ns();
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    lock held(ls_emulated_mutex);
    const std::shared_ptr<event_state> state = event->state;
    const uint64_t record = state->recorded;
    ls_emulated_counts.event_waits++;
    return submit(
        stream, [state, record] { return state->completed >= record || sticky != cudaSuccess; },
        nullptr);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    lock held(ls_emulated_mutex);
    run_some();
    if (sticky != cudaSuccess) return give(sticky);
    return event->state->completed >= event->state->recorded ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    lock held(ls_emulated_mutex);
    const std::shared_ptr<event_state> state = event->state;
    const uint64_t record = state->recorded;
    run_until(&held, [state, record] { return state->completed >= record; });
    return give(sticky);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    lock held(ls_emulated_mutex);
    if (sticky != cudaSuccess) return give(sticky);
    *ms = static_cast<float>(
        1e-6 * static_cast<double>(end->state->completed_ns - start->state->completed_ns));
    return cudaSuccess;
}

/* ---- copies -----------------------------------------------------------------------------------
 */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    lock held(ls_emulated_mutex);
    ls_emulated_counts.copies++;
    if (kind != cudaMemcpyDefault) ls_emulated_abort("a copy that says its direction");
    if (ls_emulated_fails(LS_FAULT_COPY)) return give(cudaErrorInvalidValue);
    (void)ls_emulated_on_device(to, bytes);
    (void)ls_emulated_on_device(from, bytes);
    return ls_emulated_enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    lock held(ls_emulated_mutex);
    (void)ls_emulated_on_device(to, bytes);
    return ls_emulated_enqueue(stream, [=] { std::memset(to, value, bytes); });
}

} /* extern "C" */
