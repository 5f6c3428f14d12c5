/*
 * run_place.c - where each key of a run file stands, for messages that come after it was read.
 *
 * What finds fault with a value later (the machine lacks a place, the model has fewer layers) knows
 * the key alone and begins its message with it: "memory.place.m: hbm, but ...".  The job that read
 * the file puts the place before it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "run_schema.h"

#define MESSAGE_BYTES 4096
#define ORIGIN_BYTES  256

/* What goes before a message that begins with the node's key: "FILE:LINE: ", "--set ". */
static char *copy_prefix(const ls_yaml_node *node, const char *path)
{
    char place[LS_YAML_PLACE_BYTES];
    const char *key = strstr(ls_yaml_place(node, place), path);

    return strndup(place, key != NULL ? (size_t)(key - place) : strlen(place));
}

ls_status ls_run_places_keep(const ls_yaml_node *root, const char *name, ls_run_config *config)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);

    config->file = strdup(name);
    config->places_of_keys = calloc(n_fields, sizeof *config->places_of_keys);
    if (config->file == NULL || config->places_of_keys == NULL)
        return LS_YAML_FAIL(root, LS_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n_fields; i++) {
        const ls_yaml_node *node = ls_yaml_find_path(root, fields[i].path);
        if (node == NULL) continue;
        config->places_of_keys[i] = copy_prefix(node, fields[i].path);
        if (config->places_of_keys[i] == NULL)
            return LS_YAML_FAIL(root, LS_ERR_NO_MEMORY, "out of memory");
    }
    return LS_OK;
}

void ls_run_places_free(ls_run_config *config)
{
    size_t n_fields;

    ls_run_fields(&n_fields);
    for (size_t i = 0; config->places_of_keys != NULL && i < n_fields; i++)
        free(config->places_of_keys[i]);
    free(config->places_of_keys);
    free(config->file);
}

/* The key that a message begins with, or below which its own lies; n_fields: none. */
static size_t find_key(const char *message, const ls_run_field *fields, size_t n_fields)
{
    for (size_t i = 0; i < n_fields; i++) {
        const size_t n = strlen(fields[i].path);
        if (strncmp(message, fields[i].path, n) == 0 && strchr(":.[", message[n]) != NULL &&
            message[n] != '\0')
            return i;
    }
    return n_fields;
}

ls_status ls_run_config_locate(const ls_run_config *config, ls_status status)
{
    size_t n_fields;
    const ls_run_field *fields = ls_run_fields(&n_fields);
    char message[MESSAGE_BYTES], origin[ORIGIN_BYTES];

    if (status == LS_OK || status == LS_ERR_STOPPED || config->places_of_keys == NULL)
        return status;
    const size_t key = find_key(ls_error(), fields, n_fields);
    if (key == n_fields) return status;
    const char *prefix = config->places_of_keys[key];
    snprintf(message, sizeof message, "%s%s%s", prefix != NULL ? prefix : config->file,
             prefix != NULL ? "" : ": ", ls_error());
    snprintf(origin, sizeof origin, "%s", ls_error_origin());
    ls_error_adopt(message, origin);
    return status;
}
