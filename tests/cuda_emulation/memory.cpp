/*
 * memory.cpp - device memory: closed to the host but while device work runs, fenced by pages that
 * nothing may touch, and filled with NaN when it is new.
 */
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "internal.h"

namespace
{

enum { ALIGN = 256, CANARY = 0xa5, POISON = 0xff };

struct allocation {
    char *mapped;
    size_t mapped_bytes; /* without the guard pages around it */
    char *at;
    uint64_t bytes;
};

std::map<const char *, allocation> allocations;
std::map<const void *, uint64_t> registered;
uint64_t capacity = 256u << 20, used;
int unlocked;

size_t page_bytes()
{
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

void protect(const allocation &a, int access)
{
    if (mprotect(a.mapped, a.mapped_bytes, access) != 0)
        ls_emulated_abort("mprotect of %zu bytes failed", a.mapped_bytes);
}

/* The data ends where a guard page begins, as nearly as its alignment allows. */
allocation map_allocation(uint64_t bytes)
{
    const size_t page = page_bytes();
    const size_t aligned = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    const size_t inner = (aligned + page - 1) / page * page;
    void *base = mmap(nullptr, inner + 2 * page, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) ls_emulated_abort("mmap of %zu bytes failed", inner);
    allocation a = {static_cast<char *>(base) + page, inner, nullptr, bytes};
    a.at = a.mapped + inner - aligned;
    return a;
}

void fill(const allocation &a)
{
    protect(a, PROT_READ | PROT_WRITE);
    std::memset(a.mapped, CANARY, a.mapped_bytes);
    std::memset(a.at, POISON, a.bytes);
    if (unlocked == 0) protect(a, PROT_NONE);
}

void check_canary(const allocation &a)
{
    protect(a, PROT_READ);
    for (const char *p = a.mapped; p < a.mapped + a.mapped_bytes; p++)
        if ((p < a.at || p >= a.at + a.bytes) && *p != static_cast<char>(CANARY))
            ls_emulated_abort("a write %s device memory of %llu bytes",
                              p < a.at ? "before" : "beyond the end of",
                              static_cast<unsigned long long>(a.bytes));
}

} // namespace

void ls_emulated_unlock_memory(void)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    if (unlocked++ == 0)
        for (const auto &entry : allocations) protect(entry.second, PROT_READ | PROT_WRITE);
}

void ls_emulated_lock_memory(void)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    if (--unlocked == 0)
        for (const auto &entry : allocations) protect(entry.second, PROT_NONE);
}

bool ls_emulated_on_device(const void *at, uint64_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    const char *from = static_cast<const char *>(at);
    for (const auto &entry : allocations) {
        const allocation &a = entry.second;
        if (from + bytes <= a.mapped || from >= a.mapped + a.mapped_bytes) continue;
        if (from >= a.at && from + bytes <= a.at + a.bytes) return true;
        ls_emulated_abort("%llu bytes at %p reach beyond device memory of %llu bytes at %p",
                          static_cast<unsigned long long>(bytes), at,
                          static_cast<unsigned long long>(a.bytes), static_cast<void *>(a.at));
    }
    return false;
}

void ls_emulation_memory(uint64_t bytes)
{
    capacity = bytes;
}

/* ---- the runtime's functions ---------------------------------------------------------------- */

extern "C" {

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    ls_emulated_counts.allocations++;
    if (bytes == 0 || bytes > capacity - used || ls_emulated_fails(LS_FAULT_MALLOC))
        return cudaErrorMemoryAllocation;
    const allocation a = map_allocation(bytes);
    fill(a);
    allocations[a.at] = a;
    used += bytes;
    *memory = a.at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    if (memory == nullptr) return cudaSuccess;
    cudaDeviceSynchronize(); /* as the real one does */
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    const auto found = allocations.find(static_cast<char *>(memory));
    if (found == allocations.end()) return cudaErrorInvalidValue;
    check_canary(found->second);
    munmap(found->second.mapped - page_bytes(), found->second.mapped_bytes + 2 * page_bytes());
    used -= found->second.bytes;
    allocations.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    *free_bytes = capacity - used;
    *total_bytes = capacity;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    if (ls_emulated_fails(LS_FAULT_REGISTER)) return cudaErrorNotSupported;
    if (registered.count(at) != 0) return cudaErrorHostMemoryAlreadyRegistered;
    registered[at] = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *at)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    return registered.erase(at) != 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    *memory = std::calloc(1, bytes);
    return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *memory)
{
    cudaDeviceSynchronize();
    std::free(memory);
    return cudaSuccess;
}

} /* extern "C" */
