/*
 * export.h - the tables of a published data set: one description of their columns serves the CSV
 * headers, the JSON Schema, the README and the check.
 *
 * Layer: report, internal.
 */
#ifndef LS_EXPORT_H
#define LS_EXPORT_H

#include <stdbool.h>

typedef enum ls_column_type {
    LS_COLUMN_TEXT,
    LS_COLUMN_WHOLE,
    LS_COLUMN_REAL, /* empty: not measured */
    LS_COLUMN_RAIL  /* a text: the name of one */
} ls_column_type;

typedef struct ls_column {
    const char *name;
    ls_column_type type;
    bool may_be_empty, not_negative;
    const char *unit; /* "" : none */
    const char *about;
} ls_column;

typedef struct ls_table {
    const char *name; /* of the file, without .csv */
    const char *about;
    const ls_column *columns;
    int n_columns;
} ls_table;

#define LS_TABLES 8

/* runs, steps, evals, positions, energy, power, sensors, codecarbon. */
extern const ls_table ls_tables[LS_TABLES];

#endif
