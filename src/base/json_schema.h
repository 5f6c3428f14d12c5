/*
 * json_schema.h - a document held against a JSON Schema, as far as ours go: type, enum, minimum,
 * maximum, properties, required, additionalProperties, items, anyOf, and $ref into $defs.
 *
 * A keyword that is none of these (nor a description) is refused, so that a schema never says more
 * than is checked.
 *
 * Layer: base.  Threads: no shared state.
 */
#ifndef LS_JSON_SCHEMA_H
#define LS_JSON_SCHEMA_H

#include <cjson/cJSON.h>

#include "status.h"

/*
 * LS_ERR_CORRUPT: "NAME: energy_j.gpu is a string, not a number or null"; LS_ERR_INVALID: the
 * schema has a keyword that is not known here, or a $ref to nothing.
 *   name  stands for the document in messages
 */
ls_status ls_json_schema_check(const cJSON *schema, const cJSON *document, const char *name);

#endif
