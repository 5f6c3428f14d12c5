/* internal.h - what the files of the emulation share.  Layer: tests. */
#ifndef LS_CUDA_EMULATION_INTERNAL_H
#define LS_CUDA_EMULATION_INTERNAL_H

#include <functional>
#include <mutex>

#include <cuda_runtime_api.h>

#include "emulation.h"

struct ls_emulated_launch;

/* ---- random.cpp ----------------------------------------------------------------------------- */

/* A draw in [0, n); the sequence depends on the seed alone. */
uint64_t ls_emulated_draw(uint64_t n);

/* End the program: the code under test is wrong in a way that no status can tell. */
[[noreturn]] void ls_emulated_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- blocks.cpp ----------------------------------------------------------------------------- */

void ls_emulated_run(const ls_emulated_launch &launch);

/* The running thread's index in its block. */
unsigned ls_emulated_thread_number();

/* Whether all bytes lie in the block's shared memory. */
bool ls_emulated_in_shared(const void *at, size_t bytes);

/* ---- tensor.cpp ----------------------------------------------------------------------------- */

/* A block begins: no copy is on its way. */
void ls_emulated_copies_reset(unsigned n_threads);

/* ---- streams.cpp ---------------------------------------------------------------------------- */

/* Guards all of the emulated device; held while its work runs. */
extern std::recursive_mutex ls_emulated_mutex;

/* Queue work on a stream.  It runs when a wait needs it, or sooner. */
cudaError_t ls_emulated_enqueue(cudaStream_t stream, std::function<void()> work);

/* True if this call is to fail now. */
bool ls_emulated_fails(ls_emulated_fault fault);

/* ---- memory.cpp ----------------------------------------------------------------------------- */

/* Let device code touch device memory, or the host's no more. */
void ls_emulated_unlock_memory(void);
void ls_emulated_lock_memory(void);

/* True if all bytes lie in one allocation of device memory; false if none does; else it aborts. */
bool ls_emulated_on_device(const void *at, uint64_t bytes);

extern ls_emulation_counts ls_emulated_counts;
extern int64_t ls_emulated_matrix_elements;

#endif
