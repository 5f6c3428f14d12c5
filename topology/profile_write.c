/*
 * profile_write.c - a hardware profile as YAML, by the tables that the reader goes by; what was
 * written is parsed before it replaces a file.
 */
#define _GNU_SOURCE /* NOLINT: the libc's name; for locale_t in C11 */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"
#include "profile.h"
#include "profile_keys.h"
#include "text.h"

/* ---- scalars -------------------------------------------------------------------------------- */

/* A text in double quotes. */
static void put_text(FILE *file, const char *text)
{
    fputc('"', file);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            fprintf(file, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(file, "\\x%02x", (unsigned)*text);
        else
            fputc(*text, file);
    }
    fputc('"', file);
}

/* The shorter of the two spellings that reads back with the same bits. */
static void put_real(FILE *file, double value)
{
    char text[40];

    snprintf(text, sizeof text, "%.15g", value);
    if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
    fputs(text, file);
}

static void put_quantity(FILE *file, const ls_profile_key *key, ls_quantity quantity)
{
    fputs("{value: ", file);
    switch (key->kind) {
    case LS_PROFILE_TRUTH: fputs(quantity.value != 0 ? "true" : "false", file); break;
    case LS_PROFILE_BYTES: fprintf(file, "%.0f", quantity.value); break;
    case LS_PROFILE_REAL: put_real(file, quantity.value); break;
    }
    fprintf(file, ", source: %s}", ls_source_name(quantity.source));
}

static const ls_quantity *find_figure(const ls_profile_key *key, const void *data)
{
    return (const ls_quantity *)(const void *)((const char *)data + key->offset);
}

/* Each known figure of the table on a line of its own. */
static void put_quantities(FILE *file, const char *indent, const ls_profile_keys *keys,
                           const void *data)
{
    for (size_t k = 0; k < keys->n; k++) {
        const ls_profile_key *key = &keys->keys[k];
        const ls_quantity *quantity = find_figure(key, data);
        if (!ls_known(*quantity)) continue;
        fprintf(file, "%s%s: ", indent, key->key);
        put_quantity(file, key, *quantity);
        fputc('\n', file);
    }
}

/* ---- parts ---------------------------------------------------------------------------------- */

static void put_words(FILE *file, const char *key, const char words[][LS_NAME_BYTES], int n)
{
    if (n == 0) return;
    fprintf(file, "  %s: [", key);
    for (int w = 0; w < n; w++) {
        if (w > 0) fputs(", ", file);
        put_text(file, words[w]);
    }
    fputs("]\n", file);
}

static void put_fact(FILE *file, const char *key, ls_quantity fact)
{
    if (ls_known(fact)) fprintf(file, "  %s: %s\n", key, fact.value != 0 ? "true" : "false");
}

static void put_bounds(FILE *file, const char *key, ls_bounds bounds)
{
    if (bounds.most > 0)
        fprintf(file, "  %s: {least: %.0f, most: %.0f}\n", key, bounds.least, bounds.most);
}

static void put_match(FILE *file, const ls_match *m)
{
    if (m->n_gpu + m->n_not_gpu == 0 && !ls_known(m->c2c_link) && !ls_known(m->coherent) &&
        m->hbm_bytes.most <= 0 && m->host_bytes.most <= 0)
        return;
    fputs("\nmatch:\n", file);
    put_words(file, "gpu", m->gpu, m->n_gpu);
    put_words(file, "not_gpu", m->not_gpu, m->n_not_gpu);
    put_fact(file, "c2c_link", m->c2c_link);
    put_fact(file, "coherent", m->coherent);
    put_bounds(file, "hbm_bytes", m->hbm_bytes);
    put_bounds(file, "host_bytes", m->host_bytes);
}

static void put_places(FILE *file, const ls_topology *t)
{
    if (t->n_places > 0) fputs("\nplaces:\n", file);
    for (int p = 0; p < t->n_places; p++) {
        fprintf(file, "  - kind: %s\n", ls_place_name(t->places[p].kind));
        put_quantities(file, "    ", &ls_profile_place_keys, &t->places[p]);
    }
}

static void put_links(FILE *file, const ls_topology *t)
{
    if (t->n_links > 0) fputs("\nlinks:\n", file);
    for (int l = 0; l < t->n_links; l++) {
        const ls_link *link = &t->links[l];
        fprintf(file, "  - from: %s\n    to: %s\n", link->from, link->to);
        if (link->via[0] != '\0') {
            fputs("    via: ", file);
            put_text(file, link->via);
            fputc('\n', file);
        }
        if (link->remote) fputs("    reach: remote\n", file);
        put_quantities(file, "    ", &ls_profile_link_keys, link);
    }
}

static void put_efficiency(FILE *file, const ls_efficiency *efficiency)
{
    fputs("      - {op: ", file);
    put_text(file, efficiency->op);
    fputs(", shape: ", file);
    put_text(file, efficiency->shape);
    if (efficiency->kernel[0] != '\0') {
        fputs(", kernel: ", file);
        put_text(file, efficiency->kernel);
    }
    for (size_t k = 0; k < ls_profile_fraction_keys.n; k++) {
        const ls_profile_key *key = &ls_profile_fraction_keys.keys[k];
        const ls_quantity *figure = find_figure(key, efficiency);
        if (!ls_known(*figure)) continue;
        fprintf(file, ", %s: ", key->key);
        put_quantity(file, key, *figure);
    }
    fputs("}\n", file);
}

static void put_unit(FILE *file, const ls_unit *unit)
{
    fprintf(file, "  - kind: %s\n", ls_unit_kind_name(unit->kind));
    if (unit->model[0] != '\0') {
        fputs("    model: ", file);
        put_text(file, unit->model);
        fputc('\n', file);
    }
    put_quantities(file, "    ", &ls_profile_unit_keys, unit);
    if (unit->n_efficiencies > 0) fputs("    efficiency:\n", file);
    for (int e = 0; e < unit->n_efficiencies; e++) put_efficiency(file, &unit->efficiencies[e]);
    if (unit->n_power_states > 0) fputs("    power_states:\n", file);
    for (int s = 0; s < unit->n_power_states; s++) {
        fprintf(file, "      %s: ", unit->power_states[s].name);
        put_quantity(file, &ls_profile_watts_keys.keys[0], unit->power_states[s].watts);
        fputc('\n', file);
    }
}

static void put_rest(FILE *file, const ls_profile *p)
{
    const ls_place *nvme = ls_topology_find_place(&p->machine, "nvme");

    if (ls_known(p->throttle_in_bytes_per_s) || ls_known(p->throttle_out_bytes_per_s)) {
        fputs("\nthrottle:\n", file);
        put_quantities(file, "  ", &ls_profile_throttle_keys, p);
    }
    if (nvme != NULL && nvme->path[0] != '\0') {
        fputs("\nnvme:\n  path: ", file);
        put_text(file, nvme->path);
        fputc('\n', file);
    }
    if (p->machine.system.n_power_caps > 0 && ls_known(p->machine.system.power_caps[0].watts)) {
        fputs("\nlimits:\n", file);
        put_quantities(file, "  ", &ls_profile_limit_keys, &p->machine.system.power_caps[0]);
    }
}

static void put_document(FILE *file, const ls_profile *p, const char *comment)
{
    fprintf(file, "%sname: ", comment);
    put_text(file, p->name);
    if (p->about[0] != '\0') {
        fputs("\nabout: ", file);
        put_text(file, p->about);
    }
    fputs(p->emulated ? "\nemulated: true\n" : "\n", file);
    put_match(file, &p->match);
    put_places(file, &p->machine);
    put_links(file, &p->machine);
    if (p->machine.n_units > 0) fputs("\nunits:\n", file);
    for (int u = 0; u < p->machine.n_units; u++) put_unit(file, &p->machine.units[u]);
    put_rest(file, p);
}

/* ---- the file ------------------------------------------------------------------------------- */

ls_status ls_profile_print(const ls_profile *profile, const char *comment, char **text,
                           size_t *bytes)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* a decimal point is a point */
    char *printed = NULL;
    size_t n = 0;
    bool failed = true;

    if (plain == (locale_t)0) return LS_FAIL(LS_ERR_NO_MEMORY, "a hardware profile's text");
    FILE *file = open_memstream(&printed, &n);
    if (file != NULL) {
        const locale_t before = uselocale(plain);
        put_document(file, profile, comment);
        uselocale(before);
        failed = ferror(file) != 0;
        failed |= fclose(file) != 0;
    }
    freelocale(plain);
    if (failed) {
        free(printed);
        return LS_FAIL(LS_ERR_NO_MEMORY, "a hardware profile's text");
    }
    *text = printed;
    *bytes = n;
    return LS_OK;
}

ls_status ls_profile_write(const ls_profile *profile, const char *comment, const char *path)
{
    ls_profile *back = NULL;
    char *text;
    size_t bytes;

    LS_TRY(ls_profile_print(profile, comment, &text, &bytes));
    ls_status status = ls_profile_parse(path, text, bytes, &back);
    ls_profile_free(back);
    if (status == LS_OK) status = ls_file_write(path, text, bytes);
    free(text);
    return status;
}

ls_status ls_profile_name_from(const char *path, char name[LS_NAME_BYTES])
{
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    const size_t length = strlen(base);
    char quoted[LS_TEXT_BYTES];

    if (length < 6 || strcmp(base + length - 5, ".yaml") != 0)
        return LS_FAIL(LS_ERR_INVALID, "%s is no file for a hardware profile; allowed: NAME.yaml",
                       ls_text_quote(quoted, sizeof quoted, path));
    if (length - 5 >= LS_NAME_BYTES)
        return LS_FAIL(LS_ERR_INVALID,
                       "%s: the profile's name is the file's, %zu bytes without .yaml; allowed: at "
                       "most %d",
                       ls_text_quote(quoted, sizeof quoted, path), length - 5, LS_NAME_BYTES - 1);
    memcpy(name, base, length - 5);
    name[length - 5] = '\0';
    return LS_OK;
}

/* The folder must be there and let us in, before anything is measured. */
static ls_status check_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    const int length = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    char folder[4096];

    if (snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path) >=
        (int)sizeof folder)
        return LS_FAIL(LS_ERR_INVALID, "a path of more than %zu bytes", sizeof folder);
    struct stat about;
    int error = stat(folder, &about) != 0 ? errno : S_ISDIR(about.st_mode) ? 0 : ENOTDIR;
    if (error == 0 && access(folder, W_OK | X_OK) != 0) error = errno;
    if (error == 0) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "%s cannot be written: folder %s: %s; make it, or name another file",
                   path, folder, strerror(error));
}

ls_status ls_profile_check_target(const char *path)
{
    char name[LS_NAME_BYTES];
    ls_profile *there = NULL;

    LS_TRY(ls_profile_name_from(path, name));
    LS_TRY(check_folder(path));
    if (access(path, F_OK) != 0) return LS_OK;
    if (ls_profile_read(path, &there) == LS_OK) {
        ls_profile_free(there);
        return LS_OK;
    }
    char why[LS_NOTE_BYTES];
    snprintf(why, sizeof why, "%s", ls_error());
    return LS_FAIL(LS_ERR_INVALID,
                   "%s is there and no hardware profile, so that it is not overwritten (%s); move "
                   "it, or name another file",
                   path, why);
}
