/*
 * fiber.h - stacks that take turns on one host thread.
 *
 * ucontext would do, but it asks the kernel for the signal mask at every switch: a block of 256
 * threads with ten barriers then costs a millisecond.  Saving the registers that a call preserves
 * is all that is needed.
 *
 * Layer: tests.  Threads: a fiber runs on the thread that switches to it.
 */
#ifndef LS_FIBER_H
#define LS_FIBER_H

#include <cstddef>

struct ls_fiber {
    void *sp;    /* where its registers lie while another runs */
    char *stack; /* NULL: the host thread's own */
    size_t stack_bytes;
    void *fake_stack; /* AddressSanitizer's */
};

/* Make ready to run entry, which never returns, from the start of its stack. */
void ls_fiber_prepare(ls_fiber *fiber, void (*entry)());

/* Run `to` until something switches back to `from`. */
void ls_fiber_switch(ls_fiber *from, ls_fiber *to);

/* The first thing that an entry calls. */
void ls_fiber_started();

#endif
