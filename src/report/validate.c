/*
 * validate.c - a data set against its schema.json, which must be the one that this version writes:
 * what was published can be checked by whoever downloads it.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "export_schema.h"
#include "json.h"
#include "report.h"

#define COLUMNS_MAX 128
#define RUNS_MAX    100000

typedef struct checker {
    const char *directory, *table;
    const cJSON *properties; /* of a line, in the order of columns */
    int n_columns;
    int64_t line;
    int64_t n_runs; /* lines of runs.csv so far */
} checker;

/* Cut a CSV line into cells, in place; quotes are taken away.  -1: a quote is not closed. */
static int cut_cells(char *line, char **cells)
{
    char *to = line;
    int n = 0;

    for (char *c = line; n < COLUMNS_MAX;) {
        const bool quoted = *c == '"';
        cells[n++] = to;
        c += quoted;
        while (*c != '\0' && (quoted || *c != ',')) {
            if (quoted && *c == '"' && c[1] != '"') break;
            c += quoted && *c == '"';
            *to++ = *c++;
        }
        if (quoted && *c != '"') return -1;
        c += quoted;
        const char end = *c++;
        *to++ = '\0';
        if (end == '\0') return n;
        if (end != ',') return -1;
    }
    return n;
}

static ls_status fail_cell(const checker *k, const char *column, const char *cell, const char *why)
{
    return LS_FAIL(LS_ERR_CORRUPT, "%s/%s.csv:%lld: %s is '%.60s': %s", k->directory, k->table,
                   (long long)k->line, column, cell, why);
}

static bool allows(const cJSON *property, const char *type)
{
    const cJSON *types = cJSON_GetObjectItemCaseSensitive(property, "type"), *one;

    if (cJSON_IsString(types)) return strcmp(types->valuestring, type) == 0;
    cJSON_ArrayForEach(one, types) if (cJSON_IsString(one) &&
                                       strcmp(one->valuestring, type) == 0) return true;
    return false;
}

/* No list: any is. */
static bool is_one_of(const cJSON *list, const char *cell)
{
    const cJSON *one;

    if (list == NULL) return true;
    cJSON_ArrayForEach(one, list) if (strcmp(one->valuestring, cell) == 0) return true;
    return false;
}

static ls_status check_cell(const checker *k, const cJSON *property, const char *cell)
{
    const cJSON *least = cJSON_GetObjectItemCaseSensitive(property, "minimum");
    const char *column = property->string;
    char *end;

    if (!is_one_of(cJSON_GetObjectItemCaseSensitive(property, "enum"), cell))
        return fail_cell(k, column, cell, "there is no such");
    if (allows(property, "string")) return LS_OK;
    if (cell[0] == '\0')
        return allows(property, "null") ? LS_OK : fail_cell(k, column, cell, "it must be there");
    const double value = strtod(cell, &end);
    if (*end != '\0' || !isfinite(value)) return fail_cell(k, column, cell, "it must be a number");
    if (allows(property, "integer") && (value < floor(value) || value > floor(value)))
        return fail_cell(k, column, cell, "it must be whole");
    if (cJSON_IsNumber(least) && value < least->valuedouble)
        return fail_cell(k, column, cell, "it is less than the least");
    if (strcmp(column, "run") == 0 && (value < 1.0 || value > (double)k->n_runs))
        return fail_cell(k, column, cell, "runs.csv has no such run");
    return LS_OK;
}

static ls_status check_header(const checker *k, char **cells, int n)
{
    const cJSON *property = k->properties;

    for (int c = 0; c < n || property != NULL; c++) {
        const char *is = c < n ? cells[c] : "";
        if (property == NULL || strcmp(property->string, is) != 0)
            return LS_FAIL(LS_ERR_CORRUPT, "%s/%s.csv:1: column %d is '%.60s', not '%s'",
                           k->directory, k->table, c + 1, is,
                           property != NULL ? property->string : "");
        property = property->next;
    }
    return LS_OK;
}

static ls_status check_line(checker *k, char *line)
{
    char *cells[COLUMNS_MAX];
    const cJSON *property = k->properties;

    line[strcspn(line, "\r\n")] = '\0';
    const int n = cut_cells(line, cells);
    if (n < 0)
        return LS_FAIL(LS_ERR_CORRUPT, "%s/%s.csv:%lld: a quote is not closed", k->directory,
                       k->table, (long long)k->line);
    if (k->line == 1) return check_header(k, cells, n);
    if (n != k->n_columns)
        return LS_FAIL(LS_ERR_CORRUPT, "%s/%s.csv:%lld: %d cells, not %d", k->directory, k->table,
                       (long long)k->line, n, k->n_columns);
    if (strcmp(k->table, "runs") == 0) k->n_runs++;
    for (int c = 0; c < n; c++, property = property->next)
        LS_TRY(check_cell(k, property, cells[c]));
    return LS_OK;
}

static ls_status check_table(checker *k, const cJSON *table, FILE *report)
{
    char path[4200], *line = NULL;
    size_t capacity = 0;
    const cJSON *columns = ls_json_find_path(table, "items.properties");
    ls_status status = LS_OK;

    k->table = table->string;
    k->properties = columns != NULL ? columns->child : NULL;
    k->n_columns = cJSON_GetArraySize(columns);
    k->line = 0;
    if (k->properties == NULL || k->n_columns > COLUMNS_MAX)
        return LS_FAIL(LS_ERR_CORRUPT, "%s/schema.json: %s has no columns", k->directory, k->table);
    snprintf(path, sizeof path, "%s/%s.csv", k->directory, k->table);
    FILE *file = fopen(path, "re");
    if (file == NULL) return LS_FAIL(LS_ERR_IO, "%s: %s", path, strerror(errno));
    while (status == LS_OK && getline(&line, &capacity, file) > 0) {
        k->line++;
        status = check_line(k, line);
    }
    free(line);
    fclose(file);
    if (status == LS_OK && k->line == 0)
        status = LS_FAIL(LS_ERR_CORRUPT, "%s: it has no header", path);
    if (status == LS_OK)
        fprintf(report, "%-10s %lld lines of %d columns\n", k->table, (long long)k->line - 1,
                k->n_columns);
    return status;
}

/* The set says what its columns are; nothing is checked by what somebody changed. */
static ls_status check_schema(const char *directory, const cJSON *schema)
{
    char path[4200];
    cJSON *read;

    snprintf(path, sizeof path, "%s/schema.json", directory);
    LS_TRY(ls_json_read(path, &read));
    const bool same = cJSON_Compare(read, schema, true);
    cJSON_Delete(read);
    if (same) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT,
                   "%s: not the schema that this version writes: it was changed, or made by "
                   "another version; check the set with that one, or export it again",
                   path);
}

static ls_status check_readme(const char *directory)
{
    char path[4200];
    struct stat about;

    snprintf(path, sizeof path, "%s/README.md", directory);
    if (stat(path, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) return LS_OK;
    return LS_FAIL(LS_ERR_CORRUPT, "%s: missing; a data set has one", path);
}

ls_status ls_report_validate(const char *directory, FILE *file)
{
    checker k = {.directory = directory};
    cJSON *schema = NULL;

    LS_TRY(ls_export_schema(&schema));
    ls_status status = check_schema(directory, schema);
    const cJSON *tables = cJSON_GetObjectItemCaseSensitive(schema, "properties"), *table;
    if (status == LS_OK) status = check_readme(directory);
    if (status == LS_OK) cJSON_ArrayForEach(table, tables)
        {
            if (status == LS_OK) status = check_table(&k, table, file);
        }
    cJSON_Delete(schema);
    return status;
}
