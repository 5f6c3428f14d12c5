/*
 * measure_host.c - a pass starts a thread on each core, lets them meet at a gate, and takes the
 * time from the first start to the last end; starting threads is not in it.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for CPU sets, madvise and syscall */
#include "measure_host.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena.h"
#include "clock.h"
#include "memory_kernels.h"

#define CHAIN_LOADS   (1u << 20)
#define CHAIN_SEED    1
#define PAGES_CHECKED 64

struct ls_host_probe {
    ls_host_cores cores;
    int numa_node;
    uint64_t bytes;
    ls_arena *arena;
    char *data;
    bool has_chain; /* in data */
    uint64_t chain_at;
};

/* ---- threads -------------------------------------------------------------------------------- */

typedef enum job_kind { JOB_TOUCH, JOB_PASS, JOB_CHASE } job_kind;

typedef enum gate_state { GATE_SHUT, GATE_OPEN, GATE_ABANDONED } gate_state;

/* What all threads do, each on its slice, once the gate opens. */
typedef struct job {
    job_kind kind;
    ls_traffic traffic;
    uint64_t from; /* chase: node */
    atomic_int gate, arrived;
} job;

typedef struct worker {
    job *job;
    char *data;
    uint64_t bytes;
    uint64_t start_ns, end_ns, result;
    double amount; /* bytes that went by, or loads */
    pthread_t thread;
} worker;

static void work(worker *w)
{
    w->start_ns = ls_clock_ns();
    switch (w->job->kind) {
    case JOB_TOUCH: memset(w->data, 0, w->bytes); break;
    case JOB_PASS:
        w->result = ls_memory_pass(w->job->traffic, w->data, w->bytes, &w->amount);
        break;
    case JOB_CHASE:
        w->result = ls_chain_follow(w->data, w->job->from, CHAIN_LOADS);
        w->amount = CHAIN_LOADS;
        break;
    }
    w->end_ns = ls_clock_ns();
}

/* Threads wait awake, so that they start together. */
static void *run_worker(void *argument)
{
    worker *w = argument;

    atomic_fetch_add(&w->job->arrived, 1);
    while (atomic_load(&w->job->gate) == GATE_SHUT) sched_yield();
    if (atomic_load(&w->job->gate) == GATE_OPEN) work(w);
    return NULL;
}

static int start_on(int cpu, worker *w)
{
    pthread_attr_t attributes;
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    int error = pthread_attr_init(&attributes);
    if (error != 0) return error;
    error = pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
    if (error == 0) error = pthread_create(&w->thread, &attributes, run_worker, w);
    pthread_attr_destroy(&attributes);
    return error;
}

/* Slices of whole LS_SLICE_BYTES; the last takes the rest. */
static void cut(const ls_host_probe *p, int n, worker *workers)
{
    const uint64_t each = p->bytes / (uint64_t)n / LS_SLICE_BYTES * LS_SLICE_BYTES;

    for (int i = 0; i < n; i++) {
        workers[i].data = p->data + (uint64_t)i * each;
        workers[i].bytes = i < n - 1 ? each : p->bytes - (uint64_t)i * each;
    }
}

static ls_status run_workers(const ls_host_probe *p, job *j, int n, worker *workers)
{
    int started = 0, error = 0;

    while (started < n && error == 0) {
        workers[started].job = j;
        error = start_on(p->cores.cpus[started], &workers[started]);
        started += error == 0;
    }
    while (error == 0 && atomic_load(&j->arrived) < n) sched_yield();
    atomic_store(&j->gate, error == 0 ? GATE_OPEN : GATE_ABANDONED);
    for (int i = 0; i < started; i++) pthread_join(workers[i].thread, NULL);
    if (error == 0) return LS_OK;
    return LS_FAIL(LS_ERR_DEVICE, "a thread on CPU %d: %s", p->cores.cpus[started],
                   strerror(error));
}

/* Run a job on n cores: what all have done, from the first start to the last end; the first one's
 * result. */
static ls_status run_job(const ls_host_probe *p, job *j, int n, double *amount, double *seconds,
                         uint64_t *result)
{
    worker *workers = calloc((size_t)n, sizeof *workers);
    uint64_t first = UINT64_MAX, last = 0;

    if (workers == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "%d threads", n);
    cut(p, n, workers);
    const ls_status status = run_workers(p, j, n, workers);
    *amount = 0;
    for (int i = 0; i < n; i++) {
        *amount += workers[i].amount;
        if (workers[i].start_ns < first) first = workers[i].start_ns;
        if (workers[i].end_ns > last) last = workers[i].end_ns;
    }
    *result = workers[0].result;
    free(workers);
    *seconds = 1e-9 * (double)(last - first);
    return status;
}

/* ---- the buffer ----------------------------------------------------------------------------- */

/* How much of the mapping at data is in huge pages, by smaps. */
static uint64_t read_huge_bytes(const void *data)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    bool inside = false;
    uint64_t kib = 0;
    char line[512];

    if (file == NULL) return 0;
    while (kib == 0 && fgets(line, sizeof line, file) != NULL) {
        uint64_t from, to;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2)
            inside = from <= (uintptr_t)data && (uintptr_t)data < to;
        else if (inside)
            sscanf(line, "AnonHugePages: %" SCNu64, &kib);
    }
    fclose(file);
    return kib * 1024;
}

/* Where the system cannot tell (no NUMA, a container), nothing is said. */
static ls_status check_node(const ls_host_probe *p)
{
    void *pages[PAGES_CHECKED];
    int nodes[PAGES_CHECKED];

    for (int i = 0; i < PAGES_CHECKED; i++)
        pages[i] =
            p->data + p->bytes / PAGES_CHECKED / LS_SLICE_BYTES * LS_SLICE_BYTES * (uint64_t)i;
    if (syscall(SYS_move_pages, 0, (unsigned long)PAGES_CHECKED, pages, NULL, nodes, 0) != 0)
        return LS_OK;
    for (int i = 0; i < PAGES_CHECKED; i++)
        if (nodes[i] >= 0 && nodes[i] != p->numa_node)
            return LS_FAIL(LS_ERR_UNSUPPORTED,
                           "pages touched on NUMA node %d lie on node %d: the node is full, or a "
                           "policy binds this process (numactl); free memory or unbind it",
                           p->numa_node, nodes[i]);
    return LS_OK;
}

static void close_buffer(void *context)
{
    ls_host_probe *p = context;
    ls_arena_close(p->arena);
    p->arena = NULL;
}

static ls_status open_buffer(void *context, bool huge_pages, uint64_t *huge_bytes)
{
    ls_host_probe *p = context;
    const ls_arena_options options = {.size_bytes = p->bytes, .huge_pages = huge_pages};
    job touch = {.kind = JOB_TOUCH};
    double amount, seconds;
    uint64_t result;

    LS_TRY(ls_arena_open(&options, &p->arena));
    p->has_chain = false;
    p->data = ls_arena_describe(p->arena).base;
#ifdef MADV_NOHUGEPAGE
    if (!huge_pages) madvise(p->data, p->bytes, MADV_NOHUGEPAGE); /* where all pages are huge */
#endif
    ls_status status = run_job(p, &touch, p->cores.n, &amount, &seconds, &result);
    if (status == LS_OK) status = check_node(p);
    if (status == LS_OK)
        *huge_bytes = read_huge_bytes(p->data);
    else
        close_buffer(p);
    return status;
}

/* ---- the probe ------------------------------------------------------------------------------ */

static ls_status pass(void *context, ls_traffic traffic, int n_threads, double *bytes,
                      double *seconds)
{
    job j = {.kind = JOB_PASS, .traffic = traffic};
    ls_host_probe *p = context;
    uint64_t result;

    p->has_chain = false;
    return run_job(p, &j, n_threads, bytes, seconds, &result);
}

/* Each run goes on where the last one ended: what that one loaded is not loaded again soon. */
static ls_status chase(void *context, double *loads, double *seconds)
{
    ls_host_probe *p = context;
    job j = {.kind = JOB_CHASE};

    if (!p->has_chain) {
        ls_chain_make(p->data, p->bytes, CHAIN_SEED);
        p->has_chain = true;
        p->chain_at = 0;
    }
    j.from = p->chain_at;
    return run_job(p, &j, 1, loads, seconds, &p->chain_at);
}

ls_status ls_host_probe_make(const ls_host_cores *cores, int numa_node, uint64_t buffer_bytes,
                             ls_host_probe **probe)
{
    assert(cores->n >= 1 && buffer_bytes >= LS_BUFFER_BYTES_MIN &&
           buffer_bytes % LS_BUFFER_BYTES_MIN == 0);
    ls_host_probe *p = calloc(1, sizeof *p);
    if (p == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a probe of memory");
    p->cores = *cores;
    p->numa_node = numa_node;
    p->bytes = buffer_bytes;
    /* A thread's slice is not empty, however small the buffer. */
    if ((uint64_t)p->cores.n > buffer_bytes / LS_SLICE_BYTES)
        p->cores.n = (int)(buffer_bytes / LS_SLICE_BYTES);
    *probe = p;
    return LS_OK;
}

void ls_host_probe_free(ls_host_probe *probe)
{
    if (probe == NULL) return;
    assert(probe->arena == NULL);
    free(probe);
}

ls_memory_probe ls_host_probe_functions(ls_host_probe *probe)
{
    return (ls_memory_probe){.context = probe,
                             .n_cores = probe->cores.n,
                             .open = open_buffer,
                             .pass = pass,
                             .chase = chase,
                             .close = close_buffer};
}
