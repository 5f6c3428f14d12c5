/*
 * json.h - JSON files by cJSON: read whole, typed members with errors that name the file, written
 * so that a reader never sees half.
 *
 * For files that programs wrote (state.json, an index, run.json); what people write is read by
 * yaml_tree.h, which knows lines.  cJSON prints numbers to 15 digits: whole ones are exact below
 * 10^15; for reals to the last bit there is ls_json_create_exact, for larger whole ones a text.
 *
 * Layer: base.  Threads: no shared state.
 */
#ifndef LS_JSON_H
#define LS_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

#define LS_JSON_FILE_BYTES_MAX (64u << 20)
#define LS_JSON_WHOLE_MAX      ((int64_t)1 << 53)

/* Read a file; free with cJSON_Delete.  LS_ERR_IO: cannot be read; LS_ERR_CORRUPT: does not parse,
 * is not an object, or gives a key twice; LS_ERR_INVALID: too large; LS_ERR_NO_MEMORY. */
ls_status ls_json_read(const char *path, cJSON **json);

/* The same from memory; name stands for the file in messages. */
ls_status ls_json_parse(const char *name, const char *text, size_t bytes, cJSON **json);

/* Whether a text is JSON: cJSON, which gives NULL for bad text and for want of memory alike, then
 * had no memory. */
bool ls_json_is_valid(const char *text, size_t bytes);

/* Replace the file at path by the JSON, indented: see ls_file_write. */
ls_status ls_json_write(const char *path, const cJSON *json);

/*
 * A member of an object that must be there and of its type; name is the file, for the message.
 * LS_ERR_CORRUPT: missing, of another type, or out of range.  Texts and items are borrowed.
 */
ls_status ls_json_get_text(const char *name, const cJSON *object, const char *key,
                           const char **text);
ls_status ls_json_get_whole(const char *name, const cJSON *object, const char *key, int64_t least,
                            int64_t most, int64_t *value);
ls_status ls_json_get_real(const char *name, const cJSON *object, const char *key, double *value);
ls_status ls_json_get_bool(const char *name, const cJSON *object, const char *key, bool *value);
ls_status ls_json_get_object(const char *name, const cJSON *object, const char *key,
                             const cJSON **item);
ls_status ls_json_get_array(const char *name, const cJSON *object, const char *key,
                            const cJSON **item);

/* The member along "key.key.key" (case counts), or NULL. */
const cJSON *ls_json_find_path(const cJSON *object, const char *path);

/* A finite real that reads back with the same bits; NULL: out of memory.  Of cJSON's raw kind: it
 * is for printing, and cJSON_Compare finds it unequal to a number. */
cJSON *ls_json_create_exact(double value);

/* Add item, which the call takes over (NULL: its creation failed), so that out of memory anywhere
 * is one status: ls_json_add(o, "n", cJSON_CreateNumber(1)).  LS_ERR_NO_MEMORY. */
ls_status ls_json_add(cJSON *object, const char *key, cJSON *item);
ls_status ls_json_append(cJSON *array, cJSON *item);

#endif
