/* topology_report.c - a machine as tables for people. */
#include "topology_report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "text.h"

#define CELLS 16 /* texts that live at a time */

typedef struct cell {
    char text[LS_NOTE_BYTES];
} cell;

static cell *next_cell(void)
{
    static cell cells[CELLS];
    static unsigned next;
    return &cells[next++ % CELLS];
}

static char source_letter(ls_source source)
{
    static const char letters[LS_SOURCE_COUNT] = {'?', 'a', 's', 'p', 'd', 'c', 'm'};
    return letters[source];
}

/* value * scale with its source's letter, "unknown" or "unlimited". */
static const char *show(ls_quantity quantity, double scale, const char *format)
{
    cell *c = next_cell();
    char number[64];

    if (!ls_known(quantity)) return "unknown";
    if (isinf(quantity.value)) return "unlimited";
    snprintf(number, sizeof number, format, quantity.value * scale);
    snprintf(c->text, sizeof c->text, "%s %c", number, source_letter(quantity.source));
    return c->text;
}

static const char *show_bytes(ls_quantity quantity)
{
    cell *c = next_cell();
    char bytes[LS_TEXT_BYTES];

    if (!ls_known(quantity)) return "unknown";
    if (isinf(quantity.value)) return "unlimited";
    ls_text_bytes(bytes, sizeof bytes, (uint64_t)quantity.value);
    snprintf(c->text, sizeof c->text, "%s %c", bytes, source_letter(quantity.source));
    return c->text;
}

static const char *show_rate(ls_quantity quantity)
{
    return show(quantity, 1e-9, "%.4g GB/s");
}

static const char *show_truth(ls_quantity quantity)
{
    return !ls_known(quantity) ? "unknown" : quantity.value != 0 ? "yes" : "no";
}

static const char *show_node(int node)
{
    cell *c = next_cell();
    if (node < 0) return "-";
    snprintf(c->text, sizeof c->text, "%d", node);
    return c->text;
}

static const char *or_unknown(const char *text)
{
    return text[0] != '\0' ? text : "unknown";
}

static void print_places(const ls_topology *t, FILE *file)
{
    fprintf(file, "\n%-8s %5s  %-13s %-13s %-12s %-14s %-14s %-8s\n", "place", "node", "capacity",
            "free", "page", "read", "write", "latency");
    for (int p = 0; p < t->n_places; p++) {
        const ls_place *place = &t->places[p];
        fprintf(file, "%-8s %5s  %-13s %-13s %-12s %-14s %-14s %-8s%s\n", place->name,
                show_node(place->numa_node), show_bytes(place->capacity_bytes),
                show_bytes(place->free_bytes), show_bytes(place->page_bytes),
                show_rate(place->read_bytes_per_s), show_rate(place->write_bytes_per_s),
                show(place->latency_ns, 1, "%.0f ns"), place->emulated ? "  emulated" : "");
    }
}

static void print_links(const ls_topology *t, FILE *file)
{
    if (t->n_links == 0) return;
    fprintf(file, "\n%-18s %-14s %-14s %-14s %-10s %-9s %s\n", "link", "forward", "back", "both",
            "latency", "coherent", "via");
    for (int l = 0; l < t->n_links; l++) {
        const ls_link *link = &t->links[l];
        cell *ends = next_cell();
        snprintf(ends->text, sizeof ends->text, "%s > %s", link->from, link->to);
        fprintf(file, "%-18s %-14s %-14s %-14s %-10s %-9s %s%s\n", ends->text,
                show_rate(link->bytes_per_s), show_rate(link->reverse_bytes_per_s),
                show_rate(link->both_bytes_per_s), show(link->latency_ns, 1, "%.0f ns"),
                show_truth(link->coherent), link->via, link->remote ? " remote" : "");
    }
}

static void print_units(const ls_topology *t, FILE *file)
{
    fprintf(file, "\n%-6s %-12s %-9s %-9s %-16s %-16s %-10s %s\n", "unit", "memory", "host node",
            "cores", "bf16", "fp32", "cap", "model");
    for (int u = 0; u < t->n_units; u++) {
        const ls_unit *unit = &t->units[u];
        fprintf(file, "%-6s %-12s %-9s %-9s %-16s %-16s %-10s %s%s%s\n", unit->name,
                unit->place >= 0 ? t->places[unit->place].name : "unknown",
                show(unit->host_node, 1, "%.0f"), show(unit->cores, 1, "%.0f"),
                show(unit->bf16_flops_per_s, 1e-12, "%.4g TFLOP/s"),
                show(unit->fp32_flops_per_s, 1e-12, "%.4g TFLOP/s"),
                show(unit->power_cap_watts, 1, "%.0f W"), or_unknown(unit->model),
                unit->bus_id[0] != '\0' ? " at " : "", unit->bus_id);
    }
}

static void print_fact(const char *name, ls_quantity fact, FILE *file)
{
    fprintf(file, "%-24s %s", name, show_truth(fact));
    if (ls_known(fact))
        fprintf(file, " (%s%s%s)", ls_source_name(fact.source), fact.from != NULL ? ": " : "",
                fact.from != NULL ? fact.from : "");
    fputc('\n', file);
}

static void print_settings(const ls_topology *t, FILE *file)
{
    const ls_system *s = &t->system;
    char total[LS_TEXT_BYTES];

    fprintf(file, "%-24s %s\n", "page", show_bytes(s->page_bytes));
    fprintf(file, "%-24s %s (%s, defrag %s)\n", "transparent huge page",
            show_bytes(s->huge_page_bytes), or_unknown(s->huge_pages), or_unknown(s->huge_defrag));
    for (int h = 0; h < s->n_huge_sizes; h++)
        fprintf(file, "%-24s %s: %" PRId64 " reserved, %" PRId64 " free\n", "huge pages",
                ls_text_bytes(total, sizeof total, s->huge_sizes[h].bytes), s->huge_sizes[h].total,
                s->huge_sizes[h].free);
    fprintf(file, "%-24s %s\n", "numa_balancing", show_truth(s->numa_balancing));
    fprintf(file, "%-24s %s\n", "init_on_alloc", show_truth(s->init_on_alloc));
    fprintf(file, "%-24s %s", "cgroup memory limit", show_bytes(s->memory_limit_bytes));
    if (isfinite(s->memory_limit_bytes.value) && ls_known(s->memory_limit_bytes))
        fprintf(file, ", %s used", show_bytes(s->memory_limit_used_bytes));
    fputc('\n', file);
    fprintf(file, "%-24s %s\n", "locked memory limit", show_bytes(s->memlock_bytes));
    for (int p = 0; p < t->n_places; p++)
        if (t->places[p].kind == LS_PLACE_HBM && t->places[p].numa_node >= 0)
            fprintf(file, "page cache on %-10s %s\n", t->places[p].name,
                    show_bytes(t->places[p].page_cache_bytes));
    for (int c = 0; c < s->n_power_caps; c++)
        fprintf(file, "power cap: %-13s %s, at most %s\n", s->power_caps[c].name,
                show(s->power_caps[c].watts, 1, "%.0f W"),
                show(s->power_caps[c].watts_max, 1, "%.0f W"));
    if (ls_topology_find_real_gpu(t) != NULL)
        fprintf(file, "%-24s %s, memory mode %s\n", "NVIDIA driver", or_unknown(s->driver),
                s->memory_mode[0] != '\0' ? s->memory_mode : "default or unknown");
    if (s->nccl[0] != '\0') fprintf(file, "%-24s %s\n", "NCCL", s->nccl);
}

static void print_notes(const ls_topology *t, FILE *file)
{
    if (t->n_missing > 0) fprintf(file, "\nnot known, and why\n");
    for (int m = 0; m < t->n_missing; m++)
        fprintf(file, "  %-14s %s\n", t->missing[m].what, t->missing[m].why);
    if (t->n_advice > 0) fprintf(file, "\nadvice\n");
    for (int a = 0; a < t->n_advice; a++)
        fprintf(file, "  %-14s %s%s\n", t->advice[a].topic, t->advice[a].text,
                t->advice[a].needs_root ? " [root]" : "");
}

void ls_topology_print(const ls_topology *t, FILE *file)
{
    fprintf(file, "machine  %s (%s, Linux %s; by %s)\n", t->origin,
            or_unknown(t->system.architecture), or_unknown(t->system.kernel), t->readers);
    fprintf(file, "profile  %s%s%s\n", t->profile[0] != '\0' ? t->profile : "none",
            t->profile_reason[0] != '\0' ? ": " : "", t->profile_reason);
    print_places(t, file);
    print_links(t, file);
    print_units(t, file);
    fputc('\n', file);
    print_fact("C2C link", t->facts.c2c_link, file);
    print_fact("coherent addressing", t->facts.coherent, file);
    print_fact("HBM is a NUMA node", t->facts.hbm_is_numa, file);
    print_settings(t, file);
    print_notes(t, file);
    fprintf(file, "\nsources: m measured here, c chosen by the profile, d discovered, p published, "
                  "s spec, a assumed\n");
}

static ls_status write_json(const ls_topology *t, FILE *file)
{
    cJSON *json;

    LS_TRY(ls_topology_to_json(t, &json));
    char *text = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    if (text == NULL) return LS_FAIL(LS_ERR_NO_MEMORY, "the machine's document");
    fprintf(file, "%s\n", text);
    cJSON_free(text);
    return LS_OK;
}

ls_status ls_topology_write(const ls_topology *t, bool json, FILE *file)
{
    if (json)
        LS_TRY(write_json(t, file));
    else
        ls_topology_print(t, file);
    if (fflush(file) == 0 && !ferror(file)) return LS_OK;
    return LS_FAIL(LS_ERR_IO, "writing the machine's description: %s", strerror(errno));
}
