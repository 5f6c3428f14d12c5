/*
 * status.h - the one error type, and the macros that describe it and pass it on.
 *
 * Whoever detects an error describes it, once, with LS_FAIL(); every caller above only passes the
 * status on.  Outputs are written only on LS_OK.  Release functions return void, accept NULL and
 * never fail.  A broken invariant is a bug, not an error: assert it.
 *
 * Layer: base.  Threads: the text is per thread; ls_error_adopt() carries it to another.
 */
#ifndef LS_STATUS_H
#define LS_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_status {
    LS_OK = 0,
    LS_ERR_INVALID = -1,     /* an argument, a command line or a config value is not allowed */
    LS_ERR_NO_MEMORY = -2,   /* a place is full; ls_error() says which */
    LS_ERR_IO = -3,          /* a file or a device read or write failed */
    LS_ERR_DEVICE = -4,      /* the accelerator reported an error */
    LS_ERR_UNSUPPORTED = -5, /* valid, but not on this machine or in this build */
    LS_ERR_CORRUPT = -6,     /* a checkpoint, shard, model or profile does not parse */
    LS_ERR_STOPPED = -7,     /* asked to stop (signal, deadline): not a fault */
} ls_status;

/* Record a message for this thread and return status.  Call through LS_FAIL, whose value compilers
 * and checkers know. */
ls_status ls_fail_at(const char *file, int line, ls_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

/* The text of this thread's latest failure; never NULL; valid until its next failure. */
const char *ls_error(void);

/* Where in the source that failure was detected, "file.c:123"; for --verbose and bug reports. */
const char *ls_error_origin(void);

/* Make another thread's failure this thread's own: text and origin are copied. */
void ls_error_adopt(const char *text, const char *origin);

/* "invalid", "out of memory", ...: one or two words for a status, never NULL. */
const char *ls_status_name(ls_status status);

/* Describe a failure where it is detected:  return LS_FAIL(LS_ERR_INVALID, "n is %d", n); */
#define LS_FAIL(status, ...) (ls_fail_at(__FILE__, __LINE__, (status), __VA_ARGS__), (status))

/* Pass a callee's failure on.  Only where there is nothing to release; otherwise use goto. */
#define LS_TRY(call)                                                                               \
    do {                                                                                           \
        ls_status ls_try_status_ = (call);                                                         \
        if (ls_try_status_ != LS_OK) return ls_try_status_;                                        \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
