/* export_schema.c - one definition for each table; units go into the descriptions. */
#include "export_schema.h"

#include <stdio.h>

#include "export.h"
#include "json.h"
#include "meter.h"

static ls_status add_text(cJSON *object, const char *key, const char *text)
{
    return ls_json_add(object, key, cJSON_CreateString(text));
}

static bool is_text(const ls_column *column)
{
    return column->type == LS_COLUMN_TEXT || column->type == LS_COLUMN_RAIL;
}

static ls_status add_rails(cJSON *property)
{
    cJSON *names = cJSON_CreateArray();

    LS_TRY(ls_json_add(property, "enum", names));
    for (ls_rail rail = LS_RAIL_NONE; rail < LS_RAIL_COUNT; rail++)
        LS_TRY(ls_json_append(names, cJSON_CreateString(ls_rail_name(rail))));
    return LS_OK;
}

/* "number", or ["number", "null"] where a cell may be empty. */
static ls_status add_type(const ls_column *column, cJSON *property)
{
    static const char *const names[] = {"string", "integer", "number", "string"};
    const char *name = names[column->type];

    if (!column->may_be_empty || is_text(column)) return add_text(property, "type", name);
    const char *const both[] = {name, "null"};
    return ls_json_add(property, "type", cJSON_CreateStringArray(both, 2));
}

static ls_status add_column(const ls_column *column, cJSON *properties, cJSON *required)
{
    char about[256];
    cJSON *property = cJSON_CreateObject();

    LS_TRY(ls_json_add(properties, column->name, property));
    LS_TRY(add_type(column, property));
    if (column->type == LS_COLUMN_RAIL) LS_TRY(add_rails(property));
    if (column->not_negative && !is_text(column))
        LS_TRY(ls_json_add(property, "minimum", cJSON_CreateNumber(0)));
    snprintf(about, sizeof about, "%s%s%s%s", column->about, column->unit[0] != '\0' ? " [" : "",
             column->unit, column->unit[0] != '\0' ? "]" : "");
    LS_TRY(add_text(property, "description", about));
    return ls_json_append(required, cJSON_CreateString(column->name));
}

static ls_status add_table(const ls_table *table, cJSON *properties)
{
    cJSON *array = cJSON_CreateObject(), *line, *columns, *required;

    LS_TRY(ls_json_add(properties, table->name, array));
    LS_TRY(add_text(array, "type", "array"));
    LS_TRY(add_text(array, "description", table->about));
    line = cJSON_CreateObject();
    LS_TRY(ls_json_add(array, "items", line));
    LS_TRY(add_text(line, "type", "object"));
    LS_TRY(ls_json_add(line, "additionalProperties", cJSON_CreateFalse()));
    columns = cJSON_CreateObject();
    LS_TRY(ls_json_add(line, "properties", columns));
    required = cJSON_CreateArray();
    LS_TRY(ls_json_add(line, "required", required));
    for (int c = 0; c < table->n_columns; c++)
        LS_TRY(add_column(&table->columns[c], columns, required));
    return LS_OK;
}

static ls_status fill(cJSON *schema)
{
    cJSON *properties = cJSON_CreateObject();

    LS_TRY(add_text(schema, "$schema", "https://json-schema.org/draft/2020-12/schema"));
    LS_TRY(add_text(schema, "title", "training runs of longspan"));
    LS_TRY(add_text(schema, "description",
                    "Each property is a CSV file of that name: a line is an object, an empty cell "
                    "is null."));
    LS_TRY(add_text(schema, "type", "object"));
    LS_TRY(ls_json_add(schema, "properties", properties));
    for (int t = 0; t < LS_TABLES; t++) LS_TRY(add_table(&ls_tables[t], properties));
    return LS_OK;
}

ls_status ls_export_schema(cJSON **schema)
{
    cJSON *made = cJSON_CreateObject();

    if (made == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a schema");
    const ls_status status = fill(made);
    if (status != LS_OK) {
        cJSON_Delete(made);
        return status;
    }
    *schema = made;
    return LS_OK;
}
