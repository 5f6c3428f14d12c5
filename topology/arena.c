/* arena.c - options, names, close: what all kinds of arenas share. */
#include "arena.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arena_system.h"

static const struct {
    ls_place_kind place;
    const char *name;
} kinds[] = {
    [LS_ARENA_HOST] = {LS_PLACE_HOST, "host memory"},
    [LS_ARENA_EMULATED_HBM] = {LS_PLACE_HBM, "hbm"},
    [LS_ARENA_FILE] = {LS_PLACE_NVME, "nvme"},
};

bool ls_arena_round_up(uint64_t size, uint64_t page_bytes, uint64_t *rounded)
{
    /* Room for guards and alignment, and within what off_t and pointers hold. */
    if (size == 0 || size > (uint64_t)INT64_MAX / 2) return false;
    *rounded = (size + page_bytes - 1) / page_bytes * page_bytes;
    return true;
}

void ls_arena_add_note(ls_arena *arena, const char *format, ...)
{
    char *note = arena->info.note;
    const size_t length = strlen(note);
    const char *join = length > 0 ? "; " : "";
    va_list args;

    if (length + strlen(join) >= LS_ARENA_NOTE_BYTES) return;
    memcpy(note + length, join, strlen(join) + 1);
    va_start(args, format);
    vsnprintf(note + length + strlen(join), LS_ARENA_NOTE_BYTES - length - strlen(join), format,
              args);
    va_end(args);
}

static ls_status check_options(const ls_arena *arena, const ls_arena_options *o)
{
    if (o->size_bytes == 0 || o->size_bytes > (uint64_t)INT64_MAX / 2)
        return LS_FAIL(LS_ERR_INVALID, "%s: arena of %llu bytes", arena->name,
                       (unsigned long long)o->size_bytes);
    if (o->kind == LS_ARENA_EMULATED_HBM && o->capacity_bytes == 0)
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: emulated HBM without a capacity; give its "
                       "capacity_bytes in the hardware profile",
                       arena->name);
    if (o->kind == LS_ARENA_FILE && o->bind)
        return LS_FAIL(LS_ERR_INVALID, "%s: a file cannot be bound to NUMA node %d", arena->name,
                       o->numa_node);
    if (o->kind == LS_ARENA_FILE && (o->directory == NULL || o->directory[0] == '\0'))
        return LS_FAIL(LS_ERR_INVALID, "%s: no folder to make the file in", arena->name);
    if (o->capacity_bytes > 0 && o->size_bytes > o->capacity_bytes)
        return LS_FAIL(LS_ERR_NO_MEMORY,
                       "%s: the plan needs %.3f GiB (%llu bytes), its capacity is %.3f GiB (%llu); "
                       "shorten the sequence or the batch, or place less there",
                       arena->name, (double)o->size_bytes / 0x1p30,
                       (unsigned long long)o->size_bytes, (double)o->capacity_bytes / 0x1p30,
                       (unsigned long long)o->capacity_bytes);
    return LS_OK;
}

ls_status ls_arena_open_on(const ls_arena_system *system, const ls_arena_options *options,
                           ls_arena **arena)
{
    assert(options != NULL && arena != NULL);
    assert((unsigned)options->kind < sizeof kinds / sizeof kinds[0] && options->touch_threads >= 0);

    ls_arena *opened = calloc(1, sizeof *opened);
    if (opened == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "arena handle");
    opened->system = system;
    opened->page_bytes =
        system->page_bytes > 0 ? system->page_bytes : (uint64_t)sysconf(_SC_PAGESIZE);
    opened->info =
        (ls_arena_info){.place = kinds[options->kind].place, .numa_node = -1, .wrong_node = -1};
    snprintf(opened->name, sizeof opened->name, "%s",
             options->name != NULL ? options->name : kinds[options->kind].name);

    ls_status status = check_options(opened, options);
    if (status == LS_OK)
        status = options->kind == LS_ARENA_FILE ? ls_arena_open_file(opened, options)
                                                : ls_arena_open_host(opened, options);
    if (status != LS_OK) {
        ls_arena_close(opened);
        return status;
    }
    *arena = opened;
    return LS_OK;
}

ls_status ls_arena_open(const ls_arena_options *options, ls_arena **arena)
{
    return ls_arena_open_on(&ls_arena_real_system, options, arena);
}

void ls_arena_unmap(ls_arena *arena)
{
    if (arena->mapping != NULL) arena->system->unmap(arena->mapping, arena->mapping_bytes);
    arena->mapping = NULL;
}

void ls_arena_close(ls_arena *arena)
{
    if (arena == NULL) return;
    ls_arena_unmap(arena);
    free(arena);
}

ls_arena_info ls_arena_describe(const ls_arena *arena)
{
    assert(arena != NULL);
    return arena->info;
}

const char *ls_huge_pages_name(ls_huge_pages kind)
{
    static const char *const names[] = {"none", "thp", "hugetlb"};
    assert((unsigned)kind < sizeof names / sizeof names[0]);
    return names[kind];
}
