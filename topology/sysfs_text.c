/* sysfs_text.c - the small text files of /proc and /sys, below a root. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discover.h"

static bool read_text(char *text, size_t size, const char *root, const char *format, va_list args)
{
    char path[LS_SYSFS_BYTES];
    const int n = snprintf(path, sizeof path, "%s", root);

    if (n < 0 || n >= (int)sizeof path) return false;
    const int rest = vsnprintf(path + n, sizeof path - (size_t)n, format, args);
    if (rest < 0 || n + rest >= (int)sizeof path) return false;
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    const size_t bytes = fread(text, 1, size - 1, file);
    const bool failed = ferror(file) != 0;
    fclose(file);
    text[bytes] = '\0';
    if (bytes > 0 && text[bytes - 1] == '\n') text[bytes - 1] = '\0';
    return !failed;
}

bool ls_sysfs_text(char *text, size_t size, const char *root, const char *path, ...)
{
    va_list args;

    va_start(args, path);
    const bool found = read_text(text, size, root, path, args);
    va_end(args);
    return found;
}

bool ls_sysfs_whole(int64_t *value, const char *root, const char *path, ...)
{
    char text[64], *end;
    va_list args;

    va_start(args, path);
    const bool found = read_text(text, sizeof text, root, path, args);
    va_end(args);
    if (!found) return false;
    const bool hex = strncmp(text, "0x", 2) == 0;
    const long long whole = strtoll(text, &end, hex ? 16 : 10);
    if (end == text || *end != '\0') return false;
    *value = whole;
    return true;
}

const char *ls_sysfs_line(const char *text, const char *key)
{
    const size_t length = strlen(key);

    for (; text != NULL; text = strchr(text, '\n')) {
        text += *text == '\n';
        if (strncmp(text, key, length) == 0) return text + length + strspn(text + length, " \t:");
    }
    return NULL;
}
