/*
 * checkpoint_names.c - names carry step and process id, so a restart can tell its own leftovers
 * from a live run's folders without a lock file.
 */
#include "checkpoint_names.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "directory.h"
#include "disk_file.h"

static const char *const prefixes[] = {
    [LS_CHECKPOINT_ROLE_NONE] = "",
    [LS_CHECKPOINT_ROLE_FINAL] = "step-",
    [LS_CHECKPOINT_ROLE_TMP] = ".tmp-step-",
    [LS_CHECKPOINT_ROLE_OLD] = ".old-step-",
};

/* Digits only, at most 18; NULL if there is none. */
static const char *parse_digits(const char *text, int64_t *value)
{
    const size_t n = strspn(text, "0123456789");
    int64_t sum = 0;

    if (n == 0 || n > 18) return NULL;
    for (size_t i = 0; i < n; i++) sum = sum * 10 + (text[i] - '0');
    *value = sum;
    return text + n;
}

void ls_checkpoint_name_print(ls_checkpoint_role role, int64_t step,
                              char text[LS_CHECKPOINT_NAME_BYTES])
{
    const int n =
        snprintf(text, LS_CHECKPOINT_NAME_BYTES, "%s%08lld", prefixes[role], (long long)step);

    if (role == LS_CHECKPOINT_ROLE_FINAL) return;
    snprintf(text + n, LS_CHECKPOINT_NAME_BYTES - (size_t)n, "-%ld", (long)getpid());
}

ls_checkpoint_name ls_checkpoint_name_parse(const char *name)
{
    const ls_checkpoint_name none = {.role = LS_CHECKPOINT_ROLE_NONE};
    ls_checkpoint_name parsed = none;
    char canonical[LS_CHECKPOINT_NAME_BYTES];

    for (int role = LS_CHECKPOINT_ROLE_FINAL; role <= LS_CHECKPOINT_ROLE_OLD; role++) {
        const size_t length = strlen(prefixes[role]);
        if (strncmp(name, prefixes[role], length) != 0) continue;
        const char *rest = parse_digits(name + length, &parsed.step);
        if (!rest) return none;
        parsed.role = (ls_checkpoint_role)role;
        if (role == LS_CHECKPOINT_ROLE_FINAL) {
            ls_checkpoint_name_print(parsed.role, parsed.step, canonical);
            return strcmp(name, canonical) == 0 ? parsed : none; /* step-100 is not ours */
        }
        if (*rest != '-') return none;
        rest = parse_digits(rest + 1, &parsed.pid);
        return rest && *rest == '\0' ? parsed : none;
    }
    return none;
}

char *ls_checkpoint_root(const char *run_dir)
{
    return ls_path_join(run_dir, "checkpoints");
}

static bool is_dead(int64_t pid)
{
    if (pid == (int64_t)getpid() || pid > INT32_MAX) return true;
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static ls_status put_back(const char *root, const char *path, int64_t step)
{
    char name[LS_CHECKPOINT_NAME_BYTES];
    ls_path_kind kind;

    ls_checkpoint_name_print(LS_CHECKPOINT_ROLE_FINAL, step, name);
    char *final = ls_path_join(root, name);
    if (!final) return ls_disk_file_fail_memory(strlen(root), "a path");
    ls_status status = ls_path_describe_link(final, &kind);
    if (status == LS_OK && kind == LS_PATH_ABSENT) {
        status = ls_disk_file_rename(path, final);
        if (status == LS_OK) status = ls_directory_sync(root);
    } else if (status == LS_OK) {
        status = ls_directory_remove(path);
    }
    free(final);
    return status;
}

static bool is_leftover(const char *name)
{
    const ls_checkpoint_name parsed = ls_checkpoint_name_parse(name);
    return (parsed.role == LS_CHECKPOINT_ROLE_TMP || parsed.role == LS_CHECKPOINT_ROLE_OLD) &&
           is_dead(parsed.pid);
}

static ls_status recover_one(const char *root, const char *name, bool remove_tmp)
{
    const ls_checkpoint_name parsed = ls_checkpoint_name_parse(name);
    ls_status status = LS_OK;

    if (!is_leftover(name)) return LS_OK;
    char *path = ls_path_join(root, name);
    if (!path) return ls_disk_file_fail_memory(strlen(root), "a path");
    if (parsed.role == LS_CHECKPOINT_ROLE_OLD) {
        status = put_back(root, path, parsed.step);
    } else if (remove_tmp) {
        status = ls_directory_remove(path);
    }
    free(path);
    return status;
}

ls_status ls_checkpoint_recover(const char *root, bool remove_tmp)
{
    ls_path_kind kind;
    ls_name_list list = {NULL, 0};

    LS_TRY(ls_path_describe(root, &kind));
    if (kind == LS_PATH_ABSENT) return LS_OK;
    LS_TRY(ls_directory_list(root, &list));
    ls_status status = LS_OK;
    for (int64_t i = 0; i < list.n_names; i++) {
        if (!is_leftover(list.names[i])) continue;
        /* The renames of a killed run may not be durable yet: a power cut could give a folder that
         * is being emptied its final name again. */
        status = ls_directory_sync(root);
        break;
    }
    for (int64_t i = 0; i < list.n_names && status == LS_OK; i++) {
        status = recover_one(root, list.names[i], remove_tmp);
    }
    ls_name_list_free(&list);
    return status;
}

ls_status ls_checkpoint_write_latest(const char *run_dir, int64_t step)
{
    char line[LS_CHECKPOINT_NAME_BYTES + 1], *text = NULL;
    char *path = ls_path_join(run_dir, "latest");
    ls_status status;

    if (!path) return ls_disk_file_fail_memory(strlen(run_dir), "a path");
    ls_checkpoint_name_print(LS_CHECKPOINT_ROLE_FINAL, step, line);
    strcat(line, "\n");
    if (ls_disk_file_read_all(path, sizeof line, &text, NULL) == LS_OK && !strcmp(text, line)) {
        status = ls_directory_sync(run_dir); /* it may be the last act of a killed run */
    } else {
        status = ls_disk_file_write_atomic(path, line, strlen(line));
    }
    free(text);
    free(path);
    return status;
}

/* NAME.tmp-PID or NAME.tmp-PID-N of a process that is gone. */
static bool is_beside(const char *name)
{
    const char *at = NULL;
    int64_t pid, counter;

    for (const char *next = strstr(name, ".tmp-"); next; next = strstr(next + 1, ".tmp-")) {
        at = next;
    }
    if (!at || at == name) return false;
    at = parse_digits(at + strlen(".tmp-"), &pid);
    if (at && *at == '-') at = parse_digits(at + 1, &counter);
    return at && *at == '\0' && pid != (int64_t)getpid() && is_dead(pid);
}

ls_status ls_checkpoint_tidy(const char *run_dir)
{
    ls_path_kind kind;
    ls_name_list list = {NULL, 0};
    ls_status status = LS_OK;

    LS_TRY(ls_path_describe(run_dir, &kind));
    if (kind == LS_PATH_ABSENT) return LS_OK;
    LS_TRY(ls_directory_list(run_dir, &list));
    for (int64_t i = 0; i < list.n_names && status == LS_OK; i++) {
        if (!is_beside(list.names[i])) continue;
        char *path = ls_path_join(run_dir, list.names[i]);
        status =
            path ? ls_disk_file_remove(path) : ls_disk_file_fail_memory(strlen(run_dir), "a path");
        free(path);
    }
    ls_name_list_free(&list);
    return status;
}
