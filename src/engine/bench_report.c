/* bench_report.c - what was measured as tables for people. */
#include <string.h>

#include "bench.h"
#include "text.h"

/* "12.3 (12.1-12.4) *" in GB/s; four digits, so that no rate is shown as zero. */
static void print_rate(const ls_spread *rate, bool best, FILE *file)
{
    char text[64];

    snprintf(text, sizeof text, "%.4g (%.4g-%.4g)%s", 1e-9 * rate->median, 1e-9 * rate->least,
             1e-9 * rate->most, best ? " *" : "");
    fprintf(file, "  %-25s", text);
}

static void print_sweep(const ls_bench_memory *m, const ls_memory_sweep *s, FILE *file)
{
    fprintf(file, "\n  %s huge pages (%.0f%% of the buffer is in such)\n",
            s->huge_pages ? "with" : "without",
            100.0 * (double)s->huge_bytes / (double)m->buffer_bytes);
    fprintf(file, "  %7s", "threads");
    for (int t = 0; t < LS_TRAFFIC_COUNT; t++)
        fprintf(file, "  %-25s", ls_traffic_name((ls_traffic)t));
    fputc('\n', file);
    for (int c = 0; c < s->n_counts; c++) {
        fprintf(file, "  %7d", s->n_threads[c]);
        for (int t = 0; t < LS_TRAFFIC_COUNT; t++)
            print_rate(&s->bytes_per_s[t][c], s->best[t] == c, file);
        fputc('\n', file);
    }
    fprintf(file, "  latency %.1f ns (%.1f-%.1f)\n", s->latency_ns.median, s->latency_ns.least,
            s->latency_ns.most);
}

static void print_memory(const ls_bench_memory *m, FILE *file)
{
    char buffer[LS_TEXT_BYTES], cache[LS_TEXT_BYTES];

    if (!m->measured) {
        fprintf(file, "\n%s: not measured: %s\n", m->place, m->missing);
        return;
    }
    fprintf(file, "\n%s: %d cores, buffer %s, last-level cache %s\n", m->place, m->n_cores,
            ls_text_bytes(buffer, sizeof buffer, m->buffer_bytes),
            m->cache_bytes > 0 ? ls_text_bytes(cache, sizeof cache, m->cache_bytes) : "unknown");
    for (int s = 0; s < 2; s++) print_sweep(m, &m->sweeps[s], file);
}

static void print_copy(const ls_bench_copy *copy, FILE *file)
{
    char ends[3 * LS_NAME_BYTES];
    const char *arrow = copy->way == LS_COPY_IN ? ">" : copy->way == LS_COPY_OUT ? "<" : "<>";

    if (!copy->measured) { /* one line for all ways */
        if (copy->way == LS_COPY_BOTH)
            fprintf(file, "  %s %s %s: not measured: %s\n", copy->host, arrow, copy->device,
                    copy->missing);
        return;
    }
    snprintf(ends, sizeof ends, "%s %s %s", copy->host, arrow, copy->device);
    fprintf(file, "  %-16s", ends);
    print_rate(&copy->bytes_per_s, false, file);
    if (copy->throttle_bytes_per_s > 0) {
        fprintf(file, "  %-9.4g", 1e-9 * copy->throttle_bytes_per_s);
        print_rate(&copy->unthrottled_bytes_per_s, false, file);
        fprintf(file, "  %.2f", copy->throttle_bytes_per_s / copy->unthrottled_bytes_per_s.median);
    }
    fputc('\n', file);
}

static void print_reaches(const ls_bench *bench, FILE *file)
{
    if (bench->n_reaches == 0) return;
    fputs("\nkernels of the GPU on memory (add: two reads and a write)\n", file);
    for (int r = 0; r < bench->n_reaches; r++) {
        const ls_bench_reach *reach = &bench->reaches[r];
        char ends[3 * LS_NAME_BYTES];
        snprintf(ends, sizeof ends, "%s %s", reach->place, ls_reach_way_name(reach->way));
        fprintf(file, "  %-16s", ends);
        print_rate(&reach->bytes_per_s, false, file);
        fputc('\n', file);
    }
}

void ls_bench_print(const ls_bench *bench, FILE *file)
{
    bool throttled = false;

    fprintf(file, "machine  %s, profile %s\n", bench->machine->origin, bench->machine->profile);
    fprintf(file,
            "GB/s (1e9), median of %d (least-most); *: the fewest threads within 2%% of the most; "
            "plain stores;\nread, write, copy: bytes asked for; update: AdamW's mix, 28 bytes for "
            "each parameter\n",
            bench->repetitions);
    if (ls_bench_is_disturbed(bench))
        fprintf(file, "other programs were running (load %.1f): rates are too low\n",
                bench->load_average.value);
    for (int m = 0; m < bench->n_memories; m++) print_memory(&bench->memories[m], file);
    for (int c = 0; c < bench->n_copies; c++)
        throttled |= bench->copies[c].throttle_bytes_per_s > 0;
    fputs("\ncopies by device lanes", file);
    fputs(throttled ? ", then the throttle, the same without it, throttle / without\n" : "\n",
          file);
    for (int c = 0; c < bench->n_copies; c++) print_copy(&bench->copies[c], file);
    print_reaches(bench, file);
    if (ls_bench_is_cached(bench))
        fputs(
            "\nThe buffers were smaller than twice the last-level cache: these are figures of the "
            "caches.\n",
            file);
}
