/*
 * topology_report.h - a machine as tables for people, and as the document of `longspan topo
 * --json`.
 *
 * Layer: topology.  Threads: plain data.
 */
#ifndef LS_TOPOLOGY_REPORT_H
#define LS_TOPOLOGY_REPORT_H

#include <cjson/cJSON.h>
#include <stdio.h>

#include "topology.h"

/* Places, links, units, facts, settings, what is missing, and advice.  What is unknown is shown as
 * "unknown"; each figure's source is marked by a letter, explained below the tables. */
void ls_topology_print(const ls_topology *topology, FILE *file);

/* The document; free with cJSON_Delete.  What is unknown is null, its source "unknown".
 * LS_ERR_NO_MEMORY. */
ls_status ls_topology_to_json(const ls_topology *topology, cJSON **json);

/* Either of them; the file is flushed.  LS_ERR_NO_MEMORY, LS_ERR_IO. */
ls_status ls_topology_write(const ls_topology *topology, bool json, FILE *file);

#endif
