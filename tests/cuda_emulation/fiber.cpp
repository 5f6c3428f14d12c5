/* fiber.cpp - switching stacks on x86-64 and aarch64. */
#include "fiber.h"

#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif

#if defined(HAS_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

/* Save what a call preserves, and the stack pointer in *save; go on from another. */
extern "C" void ls_fiber_swap(void **save, void *load);

#if defined(__x86_64__)
enum { SAVED_WORDS = 6, ENTRY_WORD = 6 };
asm(R"(
    .text
    .globl ls_fiber_swap
    .type ls_fiber_swap, @function
ls_fiber_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size ls_fiber_swap, . - ls_fiber_swap
)");
#elif defined(__aarch64__)
enum { SAVED_WORDS = 20, ENTRY_WORD = 11 };
asm(R"(
    .text
    .globl ls_fiber_swap
    .type ls_fiber_swap, %function
ls_fiber_swap:
    sub sp, sp, #160
    stp x19, x20, [sp, #0]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x2, sp
    str x2, [x0]
    mov sp, x1
    ldp x19, x20, [sp, #0]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
    .size ls_fiber_swap, . - ls_fiber_swap
)");
#else
#error "fibers are written for x86-64 and aarch64"
#endif

static ls_fiber *leaving; /* for ls_fiber_started() */

void ls_fiber_prepare(ls_fiber *fiber, void (*entry)())
{
    /* 16-byte aligned at the call that the entry takes itself to come from, room above for it. */
    uint64_t *top = reinterpret_cast<uint64_t *>(fiber->stack + fiber->stack_bytes) - 4;
    uint64_t *saved = top - (SAVED_WORDS + (SAVED_WORDS + 1) % 2 + 1);
    std::memset(saved, 0, (SAVED_WORDS + 2) * sizeof *saved);
    saved[ENTRY_WORD] = reinterpret_cast<uint64_t>(entry);
    fiber->sp = saved;
    fiber->fake_stack = nullptr;
}

void ls_fiber_started()
{
#if defined(HAS_ASAN)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (leaving->stack == nullptr) { /* the host thread's stack is known from here on */
        leaving->stack = const_cast<char *>(static_cast<const char *>(bottom));
        leaving->stack_bytes = bytes;
    }
#endif
}

void ls_fiber_switch(ls_fiber *from, ls_fiber *to)
{
    leaving = from;
#if defined(HAS_ASAN)
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
    ls_fiber_swap(&from->sp, to->sp);
#if defined(HAS_ASAN)
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}
