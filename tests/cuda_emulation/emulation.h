/*
 * emulation.h - how a test steers the emulated device: its seed, its faults, what it counts.
 *
 * Layer: tests; callable from C.  Threads: any.
 */
#ifndef LS_EMULATION_H
#define LS_EMULATION_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Draws which fiber of a block and which stream's work runs next from here on. */
void ls_emulation_seed(uint64_t seed);

typedef enum ls_emulated_fault {
    LS_FAULT_NONE = 0,
    LS_FAULT_LAUNCH,   /* the launch itself is refused */
    LS_FAULT_COPY,     /* the copy is refused */
    LS_FAULT_KERNEL,   /* the kernel faults while it runs: every later call returns that */
    LS_FAULT_MALLOC,   /* cudaMalloc has no memory */
    LS_FAULT_REGISTER, /* cudaHostRegister is not supported (801) */
    LS_FAULT_COUNT
} ls_emulated_fault;

/* The n-th such call from now on (1: the next) fails; LS_FAULT_NONE: none does, and a device that
 * a fault has stopped works again. */
void ls_emulation_fail(ls_emulated_fault fault, int64_t n);

/* Whether there is a driver, as cudaDriverGetVersion() tells; true at first. */
void ls_emulation_driver(bool present);

/* Bytes of device memory; 256 MiB at first. */
void ls_emulation_memory(uint64_t bytes);

/* The most elements that a matrix of cuBLASLt may have; INT32_MAX at first. */
void ls_emulation_matrix_elements(int64_t n);

/* The emulated cuDNN; none at first. */
typedef struct ls_emulated_cudnn {
    int32_t version;     /* as 91900 for 9.19.0; 0: there is none */
    uint64_t more_bytes; /* of workspace than real engines want */
    bool run_fails;      /* every run is refused */
} ls_emulated_cudnn;

void ls_emulation_cudnn(const ls_emulated_cudnn *cudnn);

/* Graphs built since then, and those not yet freed. */
int64_t ls_emulation_cudnn_graphs(void);
int64_t ls_emulation_cudnn_graphs_alive(void);

typedef struct ls_emulation_counts {
    uint64_t launches, copies, matmuls, event_waits, value_waits, allocations;
    uint64_t overtakings; /* work that ran before work submitted earlier to another stream */
    uint64_t mmas, copies_async;
    uint64_t matrix_loads, matrix_conflicts; /* 8x8 matrices; rows of them that met a taken bank */
} ls_emulation_counts;

ls_emulation_counts ls_emulation_count(void);

#ifdef __cplusplus
}
#endif

#endif
