/* status.c - thread-local text of the latest failure. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_BYTES   1024
#define ORIGIN_BYTES 64

static _Thread_local char error_text[TEXT_BYTES];
static _Thread_local char error_origin[ORIGIN_BYTES];

ls_status ls_fail_at(const char *file, int line, ls_status status, const char *format, ...)
{
    char text[TEXT_BYTES]; /* an argument may be the previous ls_error(): build beside it */
    const char *slash = strrchr(file, '/');

    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(error_text, text, sizeof error_text);
    snprintf(error_origin, sizeof error_origin, "%s:%d", slash ? slash + 1 : file, line);
    return status;
}

const char *ls_error(void)
{
    return error_text;
}

const char *ls_error_origin(void)
{
    return error_origin;
}

void ls_error_adopt(const char *text, const char *origin)
{
    snprintf(error_text, sizeof error_text, "%s", text);
    snprintf(error_origin, sizeof error_origin, "%s", origin);
}

const char *ls_status_name(ls_status status)
{
    switch (status) {
    case LS_OK: return "ok";
    case LS_ERR_INVALID: return "invalid";
    case LS_ERR_NO_MEMORY: return "out of memory";
    case LS_ERR_IO: return "input/output error";
    case LS_ERR_DEVICE: return "device error";
    case LS_ERR_UNSUPPORTED: return "unsupported";
    case LS_ERR_CORRUPT: return "corrupt file";
    case LS_ERR_STOPPED: return "stopped";
    }
    return "unknown status";
}
