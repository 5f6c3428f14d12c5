/*
 * machine_test.h - machines as data: unpacks tests/machines/NAME.tree into a folder that looks like
 * the machine's /proc and /sys.
 *
 * A line is "PATH = TEXT", with \n and \t in the text.  {A-B} in a path makes a file for each
 * number; in the text {} is the number, {mask} a CPU mask of that one bit, {mask:A-B} one of those
 * bits, as the kernel writes them.
 */
#ifndef LS_MACHINE_TEST_H
#define LS_MACHINE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "directory.h"

#define MACHINES LS_SOURCE_DIR "/tests/machines"

/* "0000ff00,ffffffff": bits first to last, in words of 32 from the highest. */
static inline char *put_mask(char *to, int first, int last)
{
    for (int word = last / 32; word >= 0; word--) {
        uint32_t bits = 0;
        for (int bit = 0; bit < 32; bit++)
            if (word * 32 + bit >= first && word * 32 + bit <= last) bits |= UINT32_C(1) << bit;
        to += sprintf(to, "%08x%s", (unsigned)bits, word > 0 ? "," : "");
    }
    return to;
}

/* The text with its \n, \t, {}, {mask} and {mask:A-B} written out. */
static inline void expand_text(const char *text, int number, char *to)
{
    while (*text != '\0') {
        int first, last, n = 0;
        if (strncmp(text, "{}", 2) == 0) {
            to += sprintf(to, "%d", number);
            text += 2;
        } else if (strncmp(text, "{mask}", 6) == 0) {
            to = put_mask(to, number, number);
            text += 6;
        } else if (sscanf(text, "{mask:%d-%d}%n", &first, &last, &n) == 2 && n > 0) {
            to = put_mask(to, first, last);
            text += n;
        } else if (text[0] == '\\' && (text[1] == 'n' || text[1] == 't')) {
            *to++ = text[1] == 'n' ? '\n' : '\t';
            text += 2;
        } else {
            *to++ = *text++;
        }
    }
    *to = '\0';
}

/* Not by ls_directory_make, which waits for the disk at each folder. */
static inline void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST) fail_msg("%s: %s", path, strerror(errno));
        *slash = '/';
    }
}

static inline void put_machine_file(const char *root, const char *path, const char *text)
{
    static char full[16384];
    FILE *file;

    snprintf(full, sizeof full, "%s%s", root, path);
    file = fopen(full, "w");
    if (file == NULL && errno == ENOENT) {
        make_folders(full);
        file = fopen(full, "w");
    }
    if (file == NULL) fail_msg("%s: %s", full, strerror(errno));
    fprintf(file, "%s\n", text);
    assert_int_equal(fclose(file), 0);
}

static inline void unpack_line(const char *root, char *line)
{
    static char text[8192];
    char path[8192 + 16], *equals = strstr(line, " = ");
    int first = 0, last = 0, n = 0;

    if (equals == NULL) fail_msg("no ' = ' in '%s'", line);
    *equals = '\0';
    const char *range = strchr(line, '{');
    if (range != NULL && sscanf(range, "{%d-%d}%n", &first, &last, &n) != 2)
        fail_msg("no range in '%s'", line);
    for (int number = first; number <= last; number++) {
        if (range != NULL)
            snprintf(path, sizeof path, "%.*s%d%s", (int)(range - line), line, number, range + n);
        else
            snprintf(path, sizeof path, "%s", line);
        expand_text(equals + 3, number, text);
        put_machine_file(root, path, text);
    }
}

/* Make folder root of tests/machines/NAME.tree. */
static inline void unpack_machine(const char *name, const char *root)
{
    static char line[8192];
    char path[512];

    snprintf(path, sizeof path, MACHINES "/%s.tree", name);
    FILE *file = fopen(path, "r");
    if (file == NULL) fail_msg("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] != '\0' && line[0] != '#') unpack_line(root, line);
    }
    fclose(file);
}

/* A folder for machines: thousands of small files, and so in memory where that can be had. */
static inline int make_machines_folder(char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/longspan-machines-XXXXXX");
    if (mkdtemp(path) != NULL) return 0;
    snprintf(path, size, "%s/machines-XXXXXX", LS_BINARY_DIR);
    return mkdtemp(path) != NULL ? 0 : -1;
}

#endif
