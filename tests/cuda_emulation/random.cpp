/* random.cpp - one sequence of draws for all that the emulation leaves to chance. */
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "internal.h"

static uint64_t state = 1;

void ls_emulation_seed(uint64_t seed)
{
    std::lock_guard<std::recursive_mutex> guard(ls_emulated_mutex);
    state = seed;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
uint64_t ls_emulated_draw(uint64_t n)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return ((z ^ (z >> 31)) >> 32) * n >> 32; /* n < 2^32 */
}

void ls_emulated_abort(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    std::fputs("emulated device: ", stderr);
    std::vfprintf(stderr, format, args);
    std::fputc('\n', stderr);
    va_end(args);
    std::abort();
}
