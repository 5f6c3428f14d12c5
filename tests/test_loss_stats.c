/*
 * test_loss_stats.c - losses by position, by distance and by source against counting label by
 * label: every label is in one bin of each kind and one source, with its own loss; and what the
 * record is given of them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "loss_record.h"
#include "loss_stats.h"
#include "ops.h"
#include "rng.h"

enum { S = 100, SEQUENCES = 6, N_PREFIXES = 4 };

static const char *const prefixes[N_PREFIXES] = {"a", "b", "a", "never"}; /* two of one name */
static const char *const names[] = {"a", "b", "never"};

/* A document in a sequence; losses are whole numbers, so that sums are exact in any order. */
typedef struct document {
    float nll[S];
    int32_t targets[S];
    int64_t positions[S], n, prefix;
} document;

static int n_documents;
static document documents[SEQUENCES * S];

/* Sequences full of documents of 1 to 40 tokens; the positions of odd sequences run through. */
static void make_documents(void)
{
    for (int64_t sequence = 0; sequence < SEQUENCES; sequence++) {
        for (int64_t row = 0; row < S; row += documents[n_documents++].n) {
            document *d = &documents[n_documents];
            const uint64_t id = (uint64_t)n_documents, left = (uint64_t)(S - row);
            d->n = 1 + (int64_t)ls_rng_below(1, 0, id, left < 40 ? left : 40);
            d->prefix = (int64_t)ls_rng_below(1, 1, id, 3);
            for (int64_t i = 0; i < d->n; i++) {
                const uint64_t at = id * S + (uint64_t)i;
                d->nll[i] = (float)ls_rng_below(1, 2, at, 1000);
                d->targets[i] = ls_rng_below(1, 3, at, 4) == 0 ? LS_TARGET_IGNORE : 7;
                d->positions[i] = sequence % 2 == 0 ? i : row + i;
            }
        }
    }
}

static ls_loss_stats open_stats(int linear)
{
    const ls_loss_stats_options options = {.sequence_tokens = S,
                                           .linear_bins = linear,
                                           .prefixes = prefixes,
                                           .n_prefixes = N_PREFIXES};
    ls_loss_stats stats;
    assert_int_equal(ls_loss_stats_open(&options, &stats), LS_OK);
    return stats;
}

static void add_documents(ls_loss_stats *stats)
{
    for (int i = 0; i < n_documents; i++) {
        const document *d = &documents[i];
        ls_loss_stats_add(stats, &(ls_loss_rows){d->nll, d->targets, d->positions, .n = d->n,
                                                 .prefix = d->prefix});
    }
}

/* What is asked of a label: its place, or which name its source has. */
typedef int64_t place_of(const document *d, int64_t i);

static int64_t position_of(const document *d, int64_t i)
{
    return d->positions[i];
}

static int64_t distance_of(const document *d, int64_t i)
{
    (void)d;
    return i;
}

static int64_t name_of(const document *d, int64_t i)
{
    (void)i;
    return strcmp(prefixes[d->prefix], "a") == 0 ? 0 : 1;
}

/* The labels with from <= place < to, one by one. */
static ls_loss_bin count_labels(place_of *place, int64_t from, int64_t to)
{
    ls_loss_bin bin = {.from = from, .to = to};
    for (int d = 0; d < n_documents; d++)
        for (int64_t i = 0; i < documents[d].n; i++) {
            const int64_t at = place(&documents[d], i);
            if (documents[d].targets[i] == LS_TARGET_IGNORE || at < from || at >= to) continue;
            bin.sum += (double)documents[d].nll[i];
            bin.labels++;
        }
    return bin;
}

/* Bins follow each other from 0 to S or beyond, each with its labels; together all of them. */
static void check_bins(const ls_loss_stats *stats, const ls_loss_bin *bins, place_of *place)
{
    int64_t end = 0, labels = 0;
    double sum = 0.0;

    for (int b = 0; b < stats->n_bins; b++) {
        const ls_loss_bin expected = count_labels(place, bins[b].from, bins[b].to);
        assert_int_equal(bins[b].from, end);
        assert_true(bins[b].sum == expected.sum);
        assert_int_equal(bins[b].labels, expected.labels);
        end = bins[b].to;
        sum += bins[b].sum;
        labels += bins[b].labels;
    }
    assert_true(end >= S);
    assert_true(sum == stats->sum);
    assert_int_equal(labels, stats->labels);
}

static void every_label_is_in_one_bin_of_each_kind(void **state)
{
    static const int widths[] = {0, 1, 7, 256}; /* 256 bins of 100 tokens: some are empty */

    (void)state;
    const ls_loss_bin all = count_labels(distance_of, 0, S);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        ls_loss_stats stats = open_stats(widths[w]);
        assert_int_equal(stats.n_bins, widths[w] == 0 ? 8 : widths[w]); /* 0, 1, 2-3 ... 64-127 */
        for (int again = 0; again < 2; again++) {
            add_documents(&stats);
            assert_true(stats.sum == all.sum && stats.labels == all.labels);
            check_bins(&stats, stats.by_position, position_of);
            check_bins(&stats, stats.by_distance, distance_of);
            ls_loss_stats_reset(&stats);
        }
        assert_true(isnan(ls_loss_stats_mean(&stats))); /* of none */
        ls_loss_stats_close(&stats);
    }
}

static void every_label_has_one_source(void **state)
{
    ls_loss_stats stats = open_stats(0);

    (void)state;
    add_documents(&stats);
    assert_int_equal(stats.n_sources, 3); /* equal names are one */
    for (int64_t s = 0; s < 3; s++) {
        const ls_loss_bin expected = count_labels(name_of, s, s + 1);
        assert_string_equal(stats.by_source[s].name, names[s]);
        assert_true(stats.by_source[s].sum == expected.sum);
        assert_int_equal(stats.by_source[s].labels, expected.labels);
        assert_int_equal(expected.labels > 0, s < 2);
    }
    assert_int_equal(stats.by_source[0].labels + stats.by_source[1].labels, stats.labels);
    ls_loss_stats_close(&stats);
}

/* Where positions restart with each document, both kinds of bins are the same to the bit. */
static void restarting_positions_are_distances(void **state)
{
    ls_loss_stats stats = open_stats(0);

    (void)state;
    for (int i = 0; i < n_documents; i++) {
        const document *d = &documents[i];
        if (d->positions[0] != 0) continue;
        ls_loss_stats_add(
            &stats, &(ls_loss_rows){d->nll, d->targets, d->positions, .n = d->n, .prefix = -1});
    }
    assert_true(stats.labels > 100);
    const size_t bytes = (size_t)stats.n_bins * sizeof *stats.by_position;
    assert_memory_equal(stats.by_position, stats.by_distance, bytes);
    for (int64_t s = 0; s < stats.n_sources; s++) assert_int_equal(stats.by_source[s].labels, 0);
    ls_loss_stats_close(&stats);
}

/* What the progress line shows: rows whether they count or not, and the mean so far. */
static void progress_is_seen_while_rows_come(void **state)
{
    static const float nll[3] = {1.0f, 5.0f, 3.0f};
    static const int32_t targets[3] = {2, LS_TARGET_IGNORE, 2}, none[1] = {LS_TARGET_IGNORE};
    static const int64_t positions[3] = {0, 1, 2};
    ls_loss_stats stats = open_stats(0);

    (void)state;
    assert_true(isnan(atomic_load(&stats.mean_seen)));
    ls_loss_stats_add(&stats, &(ls_loss_rows){nll, none, positions, .n = 1, .prefix = -1});
    assert_true(isnan(atomic_load(&stats.mean_seen)));
    ls_loss_stats_add(&stats, &(ls_loss_rows){nll, targets, positions, .n = 3, .prefix = 0});
    assert_int_equal(atomic_load(&stats.rows_seen), 4);
    assert_true(atomic_load(&stats.mean_seen) == 2.0);
    assert_true(ls_loss_stats_mean(&stats) == 2.0);
    ls_loss_stats_reset(&stats);
    assert_int_equal(atomic_load(&stats.rows_seen), 0);
    assert_true(isnan(atomic_load(&stats.mean_seen)));
    ls_loss_stats_close(&stats);
}

/* Means of what has labels; sources all, with names that JSON can hold. */
static void the_record_has_the_means(void **state)
{
    static const char *const odd[] = {"data/\"c\"", "data/none"};
    static const float nll[3] = {1.0f, 5.0f, 3.0f};
    static const int32_t targets[3] = {2, LS_TARGET_IGNORE, 2};
    static const int64_t positions[3] = {4, 5, 6};
    const ls_loss_stats_options options = {.sequence_tokens = 16, .prefixes = odd, .n_prefixes = 2};
    ls_loss_record record = {.by_position = NULL};
    ls_loss_stats stats;

    (void)state;
    assert_int_equal(ls_loss_stats_open(&options, &stats), LS_OK);
    assert_int_equal(ls_loss_record_open(&stats, &record), LS_OK);
    ls_loss_stats_add(&stats, &(ls_loss_rows){nll, targets, positions, .n = 3, .prefix = 0});
    ls_record_losses line = ls_loss_record_fill(&record, &stats, true);
    assert_int_equal(line.n_positions, 1); /* 4 to 7 */
    assert_true(line.by_position[0].from == 4 && line.by_position[0].to == 8);
    assert_true(line.by_position[0].loss == 2.0);
    assert_int_equal(line.n_distances, 2); /* 0, and 2 to 3 */
    assert_true(line.by_distance[0].loss == 1.0 && line.by_distance[1].from == 2);
    assert_true(line.by_distance[1].loss == 3.0);
    assert_int_equal(line.n_sources, 2);
    assert_string_equal(line.by_source[0].name_json, "\"data/\\\"c\\\"\"");
    assert_true(line.by_source[0].loss == 2.0 && line.by_source[0].labels == 2);
    assert_true(isnan(line.by_source[1].loss) && line.by_source[1].labels == 0);
    line = ls_loss_record_fill(&record, &stats, false);
    assert_true(line.n_positions == 0 && line.n_distances == 0 && line.n_sources == 2);
    ls_loss_record_close(&record);
    ls_loss_stats_close(&stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_label_is_in_one_bin_of_each_kind),
        cmocka_unit_test(every_label_has_one_source),
        cmocka_unit_test(restarting_positions_are_distances),
        cmocka_unit_test(progress_is_seen_while_rows_come),
        cmocka_unit_test(the_record_has_the_means),
    };

    make_documents();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
