/*
 * power_file.c - power.csv: a header, then a line for each question, appended by one write.
 *
 * A killed run leaves whole lines and at most one torn, which is cut when the run is resumed.  When
 * the sensors are others than before (another machine), the old file is set aside under a name with
 * the attempt.  A full disk ends the file, not the run.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for O_CLOEXEC with every libc */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "power_internal.h"

static size_t put_header(const ls_power *p, char *line, size_t bytes)
{
    size_t n = (size_t)snprintf(line, bytes, "attempt,time_ns,step,phase,read_us");

    for (int s = 0; s < p->meters.n_sensors && n < bytes; s++)
        n += (size_t)snprintf(line + n, bytes - n, ",%s.%s", p->meters.sensors[s].id,
                              p->meters.sensors[s].unit);
    if (n < bytes) n += (size_t)snprintf(line + n, bytes - n, "\n");
    return n < bytes ? n : bytes - 1;
}

/* Where its last whole line ends, looking back from the end; the file is open to read. */
static off_t find_whole(int fd, off_t bytes)
{
    char c;

    for (off_t at = bytes; at > 0; at--)
        if (pread(fd, &c, 1, at - 1) == 1 && c == '\n') return at;
    return 0;
}

/* Whether the file begins with this header; then a torn last line is cut. */
static bool can_continue(int fd, const char *header, size_t bytes)
{
    char start[sizeof((power_file *)0)->line];
    struct stat info;

    if (pread(fd, start, bytes, 0) != (ssize_t)bytes || memcmp(start, header, bytes) != 0)
        return false;
    if (fstat(fd, &info) != 0) return false;
    return ftruncate(fd, find_whole(fd, info.st_size)) == 0;
}

static ls_status fail_open(const power_file *file)
{
    return LS_FAIL(LS_ERR_IO, "%s: cannot open for writing: %s", file->path, strerror(errno));
}

ls_status power_file_open(ls_power *p)
{
    power_file *file = &p->file;
    char aside[sizeof file->path + 32];

    if (p->options.directory == NULL) return LS_OK;
    snprintf(file->path, sizeof file->path, "%s/power.csv", p->options.directory);
    const size_t bytes = put_header(p, file->line, sizeof file->line);
    const int flags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC;

    file->fd = open(file->path, flags, 0666);
    if (file->fd < 0) return fail_open(file);
    LS_TRY(ls_file_check_plain(file->fd, file->path));
    if (p->options.resume && can_continue(file->fd, file->line, bytes)) return LS_OK;
    if (p->options.resume && find_whole(file->fd, lseek(file->fd, 0, SEEK_END)) > 0) {
        snprintf(aside, sizeof aside, "%s/power-before-%d.csv", p->options.directory,
                 p->options.attempt);
        const int error = rename(file->path, aside) != 0 ? errno : 0;
        close(file->fd);
        file->fd = error == 0 ? open(file->path, flags, 0666) : -1;
        if (file->fd < 0) return fail_open(file);
    }
    if (ftruncate(file->fd, 0) != 0 || write(file->fd, file->line, bytes) != (ssize_t)bytes)
        return LS_FAIL(LS_ERR_IO, "%s: cannot write: %s", file->path, strerror(errno));
    return LS_OK;
}

static size_t put_line(const ls_power *p, uint64_t now_ns, uint64_t read_ns, char *line,
                       size_t bytes)
{
    const int phase = ls_phases_now(&p->phases);
    const bool named = phase >= 0 && phase < p->options.n_phases;
    size_t n = (size_t)snprintf(line, bytes, "%d,%llu,%lld,%s,%llu", p->options.attempt,
                                (unsigned long long)now_ns, (long long)p->step,
                                named ? p->options.phases[phase] : "",
                                (unsigned long long)(read_ns / 1000));

    for (int s = 0; s < p->meters.n_sensors && n < bytes; s++)
        n += p->readings[s].ok
                 ? (size_t)snprintf(line + n, bytes - n, ",%lld", (long long)p->readings[s].raw)
                 : (size_t)snprintf(line + n, bytes - n, ",");
    if (n < bytes) n += (size_t)snprintf(line + n, bytes - n, "\n");
    return n;
}

void power_file_write(ls_power *p, uint64_t now_ns, uint64_t read_ns)
{
    power_file *file = &p->file;

    if (file->fd < 0) return;
    pthread_mutex_lock(&p->mutex);
    const size_t bytes = put_line(p, now_ns, read_ns, file->line, sizeof file->line);
    pthread_mutex_unlock(&p->mutex);
    if (bytes < sizeof file->line && write(file->fd, file->line, bytes) == (ssize_t)bytes) return;
    atomic_store(&file->error, errno != 0 ? errno : ENOSPC);
    close(file->fd);
    file->fd = -1;
}

void power_file_close(ls_power *p)
{
    if (p->file.fd >= 0) close(p->file.fd);
    p->file.fd = -1;
}
