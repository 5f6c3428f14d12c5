/*
 * record_schema.h - every run that a test leaves behind is held against
 * configs/schema/record.schema.json: each line but a torn last one.
 */
#ifndef LS_RECORD_SCHEMA_H
#define LS_RECORD_SCHEMA_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "json_schema.h"

/* How many lines are not as the schema says. */
static inline int check_record_file(const cJSON *schema, const char *path)
{
    char *line = NULL, name[1300];
    size_t capacity = 0;
    ssize_t n;
    int number = 0, bad = 0;
    FILE *file = fopen(path, "r");

    while (file != NULL && (n = getline(&line, &capacity, file)) > 0 && line[n - 1] == '\n') {
        cJSON *json = cJSON_Parse(line);
        snprintf(name, sizeof name, "%s:%d", path, ++number);
        if (json == NULL || ls_json_schema_check(schema, json, name) != LS_OK) {
            fprintf(stderr, "%s\n%s", json == NULL ? name : ls_error(), line);
            bad++;
        }
        cJSON_Delete(json);
    }
    free(line);
    if (file != NULL) fclose(file);
    return bad;
}

/* The records of all run directories in a folder. */
static inline int check_records(const char *folder)
{
    char path[1200];
    cJSON *schema = NULL;
    const struct dirent *entry;
    int bad = 0;

    if (ls_json_read(LS_SOURCE_DIR "/configs/schema/record.schema.json", &schema) != LS_OK)
        return 1;
    DIR *runs = opendir(folder);
    while (runs != NULL && (entry = readdir(runs)) != NULL) {
        snprintf(path, sizeof path, "%s/%s/record.jsonl", folder, entry->d_name);
        bad += check_record_file(schema, path);
    }
    if (runs != NULL) closedir(runs);
    cJSON_Delete(schema);
    return bad;
}

#endif
