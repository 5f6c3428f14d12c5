/* bench_json.c - what was measured as the document of `longspan bench --json`. */
#include "bench.h"
#include "json.h"
#include "topology_report.h"

static cJSON *number_or_null(double value, bool known)
{
    return known ? cJSON_CreateNumber(value) : cJSON_CreateNull();
}

static cJSON *text_or_null(const char *text)
{
    return text[0] != '\0' ? cJSON_CreateString(text) : cJSON_CreateNull();
}

/* KEY, KEY_min, KEY_max; null where it was not measured. */
static ls_status add_spread(cJSON *row, const char *key, const ls_spread *spread, bool known)
{
    char least[48], most[48];

    snprintf(least, sizeof least, "%s_min", key);
    snprintf(most, sizeof most, "%s_max", key);
    LS_TRY(ls_json_add(row, key, number_or_null(spread->median, known)));
    LS_TRY(ls_json_add(row, least, number_or_null(spread->least, known)));
    return ls_json_add(row, most, number_or_null(spread->most, known));
}

/* A row of links: what it is, and why it was not measured (or null). */
static ls_status add_row(cJSON *list, const char *kind, const char *from, const char *to,
                         const char *missing, cJSON **row)
{
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_append(list, object));
    LS_TRY(ls_json_add(object, "kind", cJSON_CreateString(kind)));
    LS_TRY(ls_json_add(object, "from", cJSON_CreateString(from)));
    LS_TRY(ls_json_add(object, "to", cJSON_CreateString(to)));
    LS_TRY(ls_json_add(object, "missing", text_or_null(missing)));
    *row = object;
    return LS_OK;
}

static ls_status add_buffer(const ls_bench_memory *m, const ls_memory_sweep *s, cJSON *row)
{
    LS_TRY(ls_json_add(row, "numa_node", cJSON_CreateNumber(m->numa_node)));
    LS_TRY(ls_json_add(row, "huge_pages", cJSON_CreateBool(s->huge_pages)));
    LS_TRY(ls_json_add(row, "huge_bytes", cJSON_CreateNumber((double)s->huge_bytes)));
    LS_TRY(ls_json_add(row, "buffer_bytes", cJSON_CreateNumber((double)m->buffer_bytes)));
    return ls_json_add(row, "cache_bytes",
                       number_or_null((double)m->cache_bytes, m->cache_bytes > 0));
}

static ls_status add_traffic(const ls_bench_memory *m, const ls_memory_sweep *s, int traffic,
                             cJSON *list)
{
    for (int c = 0; c < s->n_counts; c++) {
        cJSON *row;
        LS_TRY(add_row(list, "memory", "cpu", m->place, "", &row));
        LS_TRY(
            ls_json_add(row, "traffic", cJSON_CreateString(ls_traffic_name((ls_traffic)traffic))));
        LS_TRY(ls_json_add(row, "threads", cJSON_CreateNumber(s->n_threads[c])));
        LS_TRY(ls_json_add(row, "best", cJSON_CreateBool(s->best[traffic] == c)));
        LS_TRY(ls_json_add(row, "stores", cJSON_CreateString("plain")));
        LS_TRY(add_spread(row, "bytes_per_s", &s->bytes_per_s[traffic][c], true));
        LS_TRY(add_buffer(m, s, row));
    }
    return LS_OK;
}

static ls_status add_sweep(const ls_bench_memory *m, const ls_memory_sweep *s, cJSON *list)
{
    cJSON *row;

    for (int t = 0; t < LS_TRAFFIC_COUNT; t++) LS_TRY(add_traffic(m, s, t, list));
    LS_TRY(add_row(list, "latency", "cpu", m->place, "", &row));
    LS_TRY(add_spread(row, "latency_ns", &s->latency_ns, true));
    return add_buffer(m, s, row);
}

static ls_status add_memory(const ls_bench_memory *m, cJSON *list)
{
    static const ls_spread none = {0, 0, 0};
    cJSON *row;

    if (m->measured) {
        for (int s = 0; s < 2; s++) LS_TRY(add_sweep(m, &m->sweeps[s], list));
        return LS_OK;
    }
    LS_TRY(add_row(list, "memory", "cpu", m->place, m->missing, &row));
    LS_TRY(add_spread(row, "bytes_per_s", &none, false));
    return ls_json_add(row, "numa_node", cJSON_CreateNumber(m->numa_node));
}

static ls_status add_copy(const ls_bench_copy *copy, cJSON *list)
{
    const double throttle = copy->throttle_bytes_per_s;
    const bool throttled = throttle > 0;
    cJSON *row;

    LS_TRY(add_row(list, "copy", copy->way == LS_COPY_OUT ? copy->device : copy->host,
                   copy->way == LS_COPY_OUT ? copy->host : copy->device, copy->missing, &row));
    LS_TRY(ls_json_add(row, "way", cJSON_CreateString(ls_copy_way_name(copy->way))));
    LS_TRY(add_spread(row, "bytes_per_s", &copy->bytes_per_s, copy->measured));
    LS_TRY(ls_json_add(row, "bytes", number_or_null((double)copy->bytes, copy->measured)));
    LS_TRY(ls_json_add(row, "throttle_bytes_per_s", number_or_null(throttle, throttled)));
    LS_TRY(
        add_spread(row, "unthrottled_bytes_per_s", &copy->unthrottled_bytes_per_s, copy->measured));
    const double ratio = throttled ? throttle / copy->unthrottled_bytes_per_s.median : 0;
    return ls_json_add(row, "throttle_ratio", number_or_null(ratio, throttled));
}

static ls_status add_reach(const ls_bench_reach *reach, cJSON *list)
{
    cJSON *row;

    LS_TRY(add_row(list, "kernel", reach->device, reach->place, "", &row));
    LS_TRY(ls_json_add(row, "traffic", cJSON_CreateString(ls_reach_way_name(reach->way))));
    LS_TRY(add_spread(row, "bytes_per_s", &reach->bytes_per_s, true));
    return ls_json_add(row, "bytes", cJSON_CreateNumber((double)reach->bytes));
}

static ls_status fill_document(const ls_bench *bench, cJSON *json)
{
    cJSON *machine, *links = cJSON_CreateArray();

    LS_TRY(ls_topology_to_json(bench->machine, &machine));
    LS_TRY(ls_json_add(json, "machine", machine));
    LS_TRY(ls_json_add(json, "repetitions", cJSON_CreateNumber(bench->repetitions)));
    LS_TRY(ls_json_add(json, "load_average",
                       number_or_null(bench->load_average.value, ls_known(bench->load_average))));
    LS_TRY(ls_json_add(json, "in_cache", cJSON_CreateBool(ls_bench_is_cached(bench))));
    LS_TRY(ls_json_add(json, "links", links));
    for (int m = 0; m < bench->n_memories; m++) LS_TRY(add_memory(&bench->memories[m], links));
    for (int c = 0; c < bench->n_copies; c++) LS_TRY(add_copy(&bench->copies[c], links));
    for (int r = 0; r < bench->n_reaches; r++) LS_TRY(add_reach(&bench->reaches[r], links));
    return LS_OK;
}

ls_status ls_bench_to_json(const ls_bench *bench, cJSON **json)
{
    cJSON *document = cJSON_CreateObject();

    if (document == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "a benchmark's document");
    const ls_status status = fill_document(bench, document);
    if (status != LS_OK) {
        cJSON_Delete(document);
        return status;
    }
    *json = document;
    return LS_OK;
}
