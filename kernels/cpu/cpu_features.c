/* cpu_features.c - CPUID or the kernel's hardware capabilities, and the permission Linux wants
 * before AMX tiles may be touched. */
#if !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE 1 /* syscall */
#endif

#include "cpu_features.h"

#include <pthread.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#if !defined(HWCAP_SVE)
#define HWCAP_SVE (1u << 22)
#endif
#endif

static ls_cpu_features features;
static pthread_once_t features_once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
/* Tile state is off by default because it grows every signal frame; permission is per process
 * (Linux, Documentation/arch/x86/xstate.rst). */
static int amx_permit(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

static void features_read(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0, subleaf_a = 0, amx = 0;

    __builtin_cpu_init(); /* also checks that the kernel saves the wide registers */
    features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
    if (!features.avx512) return;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
        amx = (d >> 22) & (d >> 24) & 1u; /* AMX-BF16 and AMX-TILE */
    if (__get_cpuid_count(7, 1, &subleaf_a, &b, &c, &d))
        features.avx512_bf16 = (int)((subleaf_a >> 5) & 1u);
    features.amx_bf16 = features.avx512_bf16 && amx && amx_permit();
}
#elif defined(__aarch64__) && defined(__linux__)
static void features_read(void)
{
    features.sve = (getauxval(AT_HWCAP) & HWCAP_SVE) != 0;
}
#else
static void features_read(void)
{
}
#endif

const ls_cpu_features *ls_cpu_features_discover(void)
{
    pthread_once(&features_once, features_read);
    return &features;
}
