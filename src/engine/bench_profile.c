/* bench_profile.c - measured figures into a profile, to four digits: their spread is wider. */
#include <math.h>
#include <string.h>

#include "bench.h"

static ls_quantity measured(double value)
{
    const double magnitude = floor(log10(value)) - 3;
    const double scale = pow(10, fabs(magnitude)); /* whole: what is shown is a short decimal */
    const double rounded =
        magnitude >= 0 ? round(value / scale) * scale : round(value * scale) / scale;
    return ls_quantity_make(rounded, LS_SOURCE_MEASURED, "profile");
}

/* The memory nearest to the first GPU, or else the first that was measured. */
static const ls_bench_memory *choose_memory(const ls_bench *bench)
{
    const ls_unit *gpu = ls_topology_find_unit(bench->machine, LS_UNIT_GPU);
    const ls_bench_memory *chosen = NULL;

    for (int m = 0; m < bench->n_memories; m++) {
        const ls_bench_memory *memory = &bench->memories[m];
        if (!memory->measured) continue;
        if (gpu != NULL && ls_known(gpu->host_node) && gpu->host_node.value == memory->numa_node)
            return memory;
        if (chosen == NULL) chosen = memory;
    }
    return chosen;
}

static double best_median(const ls_memory_sweep *sweep, ls_traffic traffic)
{
    return sweep->bytes_per_s[traffic][sweep->best[traffic]].median;
}

/* With huge pages, as training asks for them; how many threads: that is the optimizer's question.
 */
static void fill_host(const ls_memory_sweep *sweep, ls_place *host)
{
    host->read_bytes_per_s = measured(best_median(sweep, LS_TRAFFIC_READ));
    host->write_bytes_per_s = measured(best_median(sweep, LS_TRAFFIC_WRITE));
    host->latency_ns = measured(sweep->latency_ns.median);
    host->best_threads = ls_quantity_make(sweep->n_threads[sweep->best[LS_TRAFFIC_UPDATE]],
                                          LS_SOURCE_MEASURED, "profile");
}

static ls_link *find_link(ls_topology *t)
{
    for (int l = 0; l < t->n_links; l++)
        if (strcmp(t->links[l].from, "host") == 0 && strcmp(t->links[l].to, "hbm") == 0 &&
            !t->links[l].remote)
            return &t->links[l];
    return NULL;
}

/* The first device memory's; the others of a machine are alike. */
static void fill_link(const ls_bench *bench, ls_link *link)
{
    ls_quantity *const figures[LS_COPY_COUNT] = {
        [LS_COPY_IN] = &link->bytes_per_s,
        [LS_COPY_OUT] = &link->reverse_bytes_per_s,
        [LS_COPY_BOTH] = &link->both_bytes_per_s,
    };

    for (int c = bench->n_copies - 1; c >= 0; c--)
        if (bench->copies[c].measured)
            *figures[bench->copies[c].way] = measured(bench->copies[c].bytes_per_s.median);
}

/* Of the first GPU: kernels' traffic with the host's memory, and with its own. */
static void fill_reach(const ls_bench *bench, ls_topology *t, ls_link *link)
{
    const ls_place *hbm = ls_topology_find_place(t, "hbm");

    for (int r = 0; r < bench->n_reaches; r++) {
        const ls_quantity rate = measured(bench->reaches[r].bytes_per_s.median);
        if (bench->reaches[r].way == LS_REACH_READ && link != NULL) link->read_bytes_per_s = rate;
        if (bench->reaches[r].way == LS_REACH_WRITE && link != NULL) link->write_bytes_per_s = rate;
        if (bench->reaches[r].way != LS_REACH_OWN || hbm == NULL) continue;
        t->places[hbm - t->places].read_bytes_per_s = rate;
        t->places[hbm - t->places].write_bytes_per_s = rate;
    }
}

void ls_bench_fill_profile(const ls_bench *bench, ls_profile *profile)
{
    const ls_bench_memory *memory = choose_memory(bench);
    ls_topology *t = &profile->machine;

    ls_profile_fill(profile, bench->machine,
                    memory != NULL ? ls_topology_find_place(bench->machine, memory->place) : NULL);
    const ls_place *host = ls_topology_find_place(t, "host");
    if (memory != NULL && host != NULL) fill_host(&memory->sweeps[0], &t->places[host - t->places]);
    ls_link *link = find_link(t);
    if (link != NULL) fill_link(bench, link);
    fill_reach(bench, t, link);
}
