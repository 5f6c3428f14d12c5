/* export_schema.h - the tables as a JSON Schema: an object of arrays of lines.  Layer: report,
 * internal. */
#ifndef LS_EXPORT_SCHEMA_H
#define LS_EXPORT_SCHEMA_H

#include <cjson/cJSON.h>

#include "status.h"

/* LS_ERR_NO_MEMORY. */
ls_status ls_export_schema(cJSON **schema);

#endif
