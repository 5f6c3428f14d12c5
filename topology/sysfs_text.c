/* sysfs_text.c - the small text files and folders of /proc and /sys, below a root. */
#define _GNU_SOURCE /* NOLINT: the libc's name; for scandir */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "discover.h"

#define MASK_WORDS_MAX 256 /* 8192 CPUs */

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

double ls_sysfs_node_bytes(const char *meminfo, int node, const char *key)
{
    char line[64];
    snprintf(line, sizeof line, "Node %d %s:", node, key);
    const char *value = ls_sysfs_line(meminfo, line);
    return value != NULL ? strtod(value, NULL) * 1024 : -1;
}

/* The words of a "0000ffff,ffffffff" mask, the lowest first; how many. */
static int read_mask(const char *text, uint32_t words[], int n_max)
{
    const char *end = text + strlen(text);
    int n = 0;

    while (end > text && n < n_max) {
        const char *from = end;
        while (from > text && from[-1] != ',') from--;
        words[n++] = (uint32_t)strtoul(from, NULL, 16);
        end = from > text ? from - 1 : text;
    }
    return n;
}

int ls_sysfs_mask_count(const char *mask, const char *within)
{
    uint32_t a[MASK_WORDS_MAX], b[MASK_WORDS_MAX];
    const int n_a = read_mask(mask, a, MASK_WORDS_MAX), n_b = read_mask(within, b, MASK_WORDS_MAX);
    int count = 0;

    for (int w = 0; w < n_a && w < n_b; w++) count += __builtin_popcount(a[w] & b[w]);
    return count;
}

static int skip_dots(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

ls_status ls_sysfs_each(const char *root, const char *folder, ls_topology *t, ls_sysfs_visit *visit,
                        bool *listed)
{
    char path[LS_SYSFS_BYTES];
    struct dirent **entries = NULL;
    ls_status status = LS_OK;

    *listed = false;
    if (snprintf(path, sizeof path, "%s%s", root, folder) >= (int)sizeof path) return LS_OK;
    const int n = scandir(path, &entries, skip_dots, alphasort);
    if (n < 0) return LS_OK;
    *listed = true;
    for (int i = 0; i < n; i++) {
        if (status == LS_OK) status = visit(root, entries[i]->d_name, t);
        free(entries[i]);
    }
    free(entries);
    return status;
}
