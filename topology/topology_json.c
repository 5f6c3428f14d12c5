/* topology_json.c - a machine as the document of `longspan topo --json`. */
#include <math.h>
#include <stddef.h>

#include "json.h"
#include "topology_report.h"

/* A quantity of a struct, and its key. */
typedef struct field {
    const char *key;
    size_t offset;
} field;

#define FIELD(type, member)                                                                        \
    {                                                                                              \
#member, offsetof(type, member)                                                            \
    }

static const field place_fields[] = {
    FIELD(ls_place, capacity_bytes),   FIELD(ls_place, free_bytes),
    FIELD(ls_place, page_cache_bytes), FIELD(ls_place, page_bytes),
    FIELD(ls_place, read_bytes_per_s), FIELD(ls_place, write_bytes_per_s),
    FIELD(ls_place, latency_ns),       FIELD(ls_place, best_threads),
};

static const field link_fields[] = {
    FIELD(ls_link, bytes_per_s),       FIELD(ls_link, reverse_bytes_per_s),
    FIELD(ls_link, both_bytes_per_s),  FIELD(ls_link, read_bytes_per_s),
    FIELD(ls_link, write_bytes_per_s), FIELD(ls_link, latency_ns),
};

static const field unit_fields[] = {
    FIELD(ls_unit, cores),
    FIELD(ls_unit, bf16_flops_per_s),
    FIELD(ls_unit, fp32_flops_per_s),
    FIELD(ls_unit, host_node),
    FIELD(ls_unit, power_cap_watts),
    FIELD(ls_unit, power_cap_watts_max),
};

static const field system_fields[] = {
    FIELD(ls_system, page_bytes),         FIELD(ls_system, huge_page_bytes),
    FIELD(ls_system, memory_limit_bytes), FIELD(ls_system, memory_limit_used_bytes),
    FIELD(ls_system, memlock_bytes),
};

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

/* ---- values --------------------------------------------------------------------------------- */

static cJSON *number(ls_quantity quantity)
{
    if (!ls_known(quantity)) return cJSON_CreateNull();
    if (isinf(quantity.value)) return cJSON_CreateString("unlimited");
    return cJSON_CreateNumber(quantity.value);
}

static cJSON *truth(ls_quantity quantity)
{
    return ls_known(quantity) ? cJSON_CreateBool(quantity.value != 0) : cJSON_CreateNull();
}

static cJSON *text(const char *value)
{
    return value[0] != '\0' ? cJSON_CreateString(value) : cJSON_CreateNull();
}

static ls_status add_source(cJSON *object, ls_quantity quantity)
{
    LS_TRY(ls_json_add(object, "source", cJSON_CreateString(ls_source_name(quantity.source))));
    if (quantity.from == NULL) return LS_OK;
    return ls_json_add(object, "from", cJSON_CreateString(quantity.from));
}

/* {value, source, from} under a key. */
static ls_status add_fact(cJSON *object, const char *key, cJSON *value, ls_quantity quantity)
{
    cJSON *fact = cJSON_CreateObject();

    LS_TRY(ls_json_add(object, key, fact));
    LS_TRY(ls_json_add(fact, "value", value));
    return add_source(fact, quantity);
}

/* Each field as a number, and under "sources" where it is from. */
static ls_status add_fields(cJSON *object, const void *data, const field *fields, size_t n)
{
    cJSON *sources = cJSON_CreateObject();

    for (size_t f = 0; f < n; f++) {
        const ls_quantity *quantity =
            (const ls_quantity *)(const void *)((const char *)data + fields[f].offset);
        LS_TRY(ls_json_add(object, fields[f].key, number(*quantity)));
    }
    LS_TRY(ls_json_add(object, "sources", sources));
    for (size_t f = 0; f < n; f++) {
        const ls_quantity *quantity =
            (const ls_quantity *)(const void *)((const char *)data + fields[f].offset);
        cJSON *entry = cJSON_CreateObject();
        LS_TRY(ls_json_add(sources, fields[f].key, entry));
        LS_TRY(add_source(entry, *quantity));
    }
    return LS_OK;
}

/* A list of objects, one for each of n. */
typedef ls_status fill_object(const ls_topology *t, int index, cJSON *object);

static ls_status add_list(cJSON *json, const char *key, const ls_topology *t, int n,
                          fill_object *fill)
{
    cJSON *list = cJSON_CreateArray();

    LS_TRY(ls_json_add(json, key, list));
    for (int i = 0; i < n; i++) {
        cJSON *object = cJSON_CreateObject();
        LS_TRY(ls_json_append(list, object));
        LS_TRY(fill(t, i, object));
    }
    return LS_OK;
}

/* ---- objects -------------------------------------------------------------------------------- */

static ls_status fill_place(const ls_topology *t, int index, cJSON *object)
{
    const ls_place *place = &t->places[index];
    const bool has_node = place->numa_node >= 0;

    LS_TRY(ls_json_add(object, "kind", cJSON_CreateString(ls_place_name(place->kind))));
    LS_TRY(ls_json_add(object, "name", cJSON_CreateString(place->name)));
    LS_TRY(ls_json_add(object, "numa_node",
                       has_node ? cJSON_CreateNumber(place->numa_node) : cJSON_CreateNull()));
    LS_TRY(ls_json_add(object, "emulated", cJSON_CreateBool(place->emulated)));
    LS_TRY(ls_json_add(object, "path", text(place->path)));
    LS_TRY(add_source(object, place->capacity_bytes));
    return add_fields(object, place, place_fields, N_OF(place_fields));
}

static ls_status fill_link(const ls_topology *t, int index, cJSON *object)
{
    const ls_link *link = &t->links[index];

    LS_TRY(ls_json_add(object, "from", cJSON_CreateString(link->from)));
    LS_TRY(ls_json_add(object, "to", cJSON_CreateString(link->to)));
    LS_TRY(ls_json_add(object, "via", text(link->via)));
    LS_TRY(ls_json_add(object, "remote", cJSON_CreateBool(link->remote)));
    LS_TRY(ls_json_add(object, "coherent", truth(link->coherent)));
    LS_TRY(ls_json_add(object, "source",
                       cJSON_CreateString(ls_source_name(link->bytes_per_s.source))));
    return add_fields(object, link, link_fields, N_OF(link_fields));
}

static ls_status add_facts(cJSON *object, const ls_facts *facts)
{
    cJSON *json = cJSON_CreateObject();

    LS_TRY(ls_json_add(object, "facts", json));
    LS_TRY(add_fact(json, "c2c_link", truth(facts->c2c_link), facts->c2c_link));
    LS_TRY(add_fact(json, "coherent", truth(facts->coherent), facts->coherent));
    return add_fact(json, "hbm_is_numa", truth(facts->hbm_is_numa), facts->hbm_is_numa);
}

static ls_status add_curves(const ls_unit *unit, cJSON *object)
{
    cJSON *curves = cJSON_CreateArray(), *states = cJSON_CreateObject();

    LS_TRY(ls_json_add(object, "efficiency", curves));
    LS_TRY(ls_json_add(object, "power_states", states));
    for (int e = 0; e < unit->n_efficiencies; e++) {
        const ls_efficiency *efficiency = &unit->efficiencies[e];
        cJSON *entry = cJSON_CreateObject();
        LS_TRY(ls_json_append(curves, entry));
        LS_TRY(ls_json_add(entry, "op", cJSON_CreateString(efficiency->op)));
        LS_TRY(ls_json_add(entry, "shape", cJSON_CreateString(efficiency->shape)));
        if (efficiency->kernel[0] != '\0')
            LS_TRY(ls_json_add(entry, "kernel", cJSON_CreateString(efficiency->kernel)));
        LS_TRY(add_fact(entry, "fraction", number(efficiency->fraction), efficiency->fraction));
        LS_TRY(add_fact(entry, "bytes_per_s", number(efficiency->bytes_per_s),
                        efficiency->bytes_per_s));
        LS_TRY(add_fact(entry, "call_ns", number(efficiency->call_ns), efficiency->call_ns));
    }
    for (int p = 0; p < unit->n_power_states; p++) {
        const ls_power_state *state = &unit->power_states[p];
        LS_TRY(add_fact(states, state->name, number(state->watts), state->watts));
    }
    return LS_OK;
}

static ls_status fill_unit(const ls_topology *t, int index, cJSON *object)
{
    const ls_unit *unit = &t->units[index];
    const char *memory = unit->place >= 0 ? t->places[unit->place].name : "";

    LS_TRY(ls_json_add(object, "kind", cJSON_CreateString(ls_unit_kind_name(unit->kind))));
    LS_TRY(ls_json_add(object, "name", cJSON_CreateString(unit->name)));
    LS_TRY(ls_json_add(object, "model", text(unit->model)));
    LS_TRY(ls_json_add(object, "bus_id", text(unit->bus_id)));
    LS_TRY(ls_json_add(object, "cuda_device",
                       unit->cuda_rank > 0 ? cJSON_CreateNumber(unit->cuda_rank - 1)
                                           : cJSON_CreateNull()));
    LS_TRY(ls_json_add(object, "place", text(memory)));
    LS_TRY(add_fields(object, unit, unit_fields, N_OF(unit_fields)));
    if (unit->kind == LS_UNIT_GPU) LS_TRY(add_facts(object, &unit->facts));
    return add_curves(unit, object);
}

static ls_status fill_advice(const ls_topology *t, int index, cJSON *object)
{
    const ls_advice *advice = &t->advice[index];

    LS_TRY(ls_json_add(object, "topic", cJSON_CreateString(advice->topic)));
    LS_TRY(ls_json_add(object, "text", cJSON_CreateString(advice->text)));
    return ls_json_add(object, "needs_root", cJSON_CreateBool(advice->needs_root));
}

static ls_status fill_missing(const ls_topology *t, int index, cJSON *object)
{
    LS_TRY(ls_json_add(object, "what", cJSON_CreateString(t->missing[index].what)));
    return ls_json_add(object, "why", cJSON_CreateString(t->missing[index].why));
}

static ls_status fill_huge_size(const ls_topology *t, int index, cJSON *object)
{
    const ls_huge_size *size = &t->system.huge_sizes[index];

    LS_TRY(ls_json_add(object, "bytes", cJSON_CreateNumber((double)size->bytes)));
    LS_TRY(ls_json_add(object, "reserved", cJSON_CreateNumber((double)size->total)));
    return ls_json_add(object, "free", cJSON_CreateNumber((double)size->free));
}

static ls_status fill_power_cap(const ls_topology *t, int index, cJSON *object)
{
    const ls_power_cap *cap = &t->system.power_caps[index];

    LS_TRY(ls_json_add(object, "name", cJSON_CreateString(cap->name)));
    LS_TRY(ls_json_add(object, "watts", number(cap->watts)));
    return ls_json_add(object, "watts_max", number(cap->watts_max));
}

static ls_status add_system(const ls_topology *t, cJSON *json)
{
    const ls_system *s = &t->system;
    cJSON *object = cJSON_CreateObject();

    LS_TRY(ls_json_add(json, "system", object));
    LS_TRY(ls_json_add(object, "architecture", text(s->architecture)));
    LS_TRY(ls_json_add(object, "kernel", text(s->kernel)));
    LS_TRY(ls_json_add(object, "huge_pages", text(s->huge_pages)));
    LS_TRY(ls_json_add(object, "huge_defrag", text(s->huge_defrag)));
    LS_TRY(ls_json_add(object, "numa_balancing", truth(s->numa_balancing)));
    LS_TRY(ls_json_add(object, "init_on_alloc", truth(s->init_on_alloc)));
    LS_TRY(ls_json_add(object, "cpu_governor", text(s->cpu_governor)));
    LS_TRY(ls_json_add(object, "driver", text(s->driver)));
    LS_TRY(ls_json_add(object, "memory_mode", text(s->memory_mode)));
    LS_TRY(ls_json_add(object, "nccl", text(s->nccl)));
    LS_TRY(add_list(object, "huge_sizes", t, s->n_huge_sizes, fill_huge_size));
    LS_TRY(add_list(object, "power_caps", t, s->n_power_caps, fill_power_cap));
    return add_fields(object, s, system_fields, N_OF(system_fields));
}

static ls_status fill_document(const ls_topology *t, cJSON *json)
{
    LS_TRY(ls_json_add(json, "machine", cJSON_CreateString(t->origin)));
    LS_TRY(ls_json_add(json, "readers", cJSON_CreateString(t->readers)));
    LS_TRY(add_list(json, "places", t, t->n_places, fill_place));
    LS_TRY(add_list(json, "links", t, t->n_links, fill_link));
    LS_TRY(add_list(json, "units", t, t->n_units, fill_unit));
    LS_TRY(add_facts(json, &t->facts));
    LS_TRY(add_system(t, json));
    LS_TRY(add_list(json, "missing", t, t->n_missing, fill_missing));
    LS_TRY(add_list(json, "advice", t, t->n_advice, fill_advice));
    LS_TRY(ls_json_add(json, "profile", text(t->profile)));
    return ls_json_add(json, "profile_reason", text(t->profile_reason));
}

ls_status ls_topology_to_json(const ls_topology *t, cJSON **json)
{
    cJSON *document = cJSON_CreateObject();

    if (document == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the machine's document");
    const ls_status status = fill_document(t, document);
    if (status != LS_OK) {
        cJSON_Delete(document);
        return status;
    }
    *json = document;
    return LS_OK;
}
