/*
 * loader_epochs.c - documents chosen once, shuffled for each epoch, with prefix sums of their
 * tokens.
 *
 * A sequence is found by binary search in the prefix sums.  Orders are kept for two epochs, because
 * a step at an epoch's end counts and loads both in turn.  Cost: O(documents) when an epoch begins,
 * O(log documents) for a sequence, times the sources where they are separate.
 */
#include "loader_epochs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "disk_file.h"
#include "rng.h"

#define STREAM_EPOCH 0x65706f6368000000u /* "epoch": apart from other users of the seed */
#define STREAM_CUT   0x6375740000000000u /* "cut": the sequences of an epoch */
#define STREAM_SPLIT 0x73706c6974000000u /* "split" */
#define SPLIT_SEED   0                   /* fixed: runs with other seeds hold out the same */

/* ---- finding a sequence -------------------------------------------------------------------- */

static void shuffle_documents(int64_t *documents, int64_t n, uint64_t seed, uint64_t stream)
{
    for (int64_t i = n - 1; i > 0; i--) { /* Fisher, Yates 1938; Durstenfeld 1964 */
        const int64_t j = (int64_t)ls_rng_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        const int64_t held = documents[i];
        documents[i] = documents[j];
        documents[j] = held;
    }
}

static void build_order(ls_epochs *epochs, ls_epoch_order *order, int64_t epoch)
{
    const int64_t n = epochs->n_documents, *offsets = ls_tokens_offsets(epochs->tokens);

    memcpy(order->documents, epochs->documents, (size_t)n * sizeof *order->documents);
    if (epochs->options->shuffle) {
        shuffle_documents(order->documents, n, epochs->options->seed,
                          STREAM_EPOCH + (uint64_t)epoch);
    }
    order->starts[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t document = order->documents[i];
        order->starts[i + 1] = order->starts[i] + offsets[document + 1] - offsets[document];
    }
    assert(order->starts[n] == epochs->n_tokens);
    order->epoch = epoch;
}

static const ls_epoch_order *fetch_order(ls_epochs *epochs, int64_t epoch)
{
    const int64_t wanted = epochs->options->shuffle ? epoch : 0; /* file order never changes */
    ls_epoch_order *order = &epochs->orders[wanted % LS_EPOCHS_KEPT];

    if (order->epoch != wanted) build_order(epochs, order, wanted);
    return order;
}

/* Which of an epoch's cuts stands at this place: shuffled too, so that those of a long document
 * do not follow each other. */
static int64_t cut_at(const ls_epochs *epochs, int64_t epoch, int64_t place)
{
    if (!epochs->options->shuffle) return place;
    return (int64_t)ls_rng_permute(epochs->options->seed, STREAM_CUT + (uint64_t)epoch,
                                   (uint64_t)place, (uint64_t)epochs->per_epoch);
}

/* The cuts of the first rounds, in each of which every stretch that has one left gives one. */
static int64_t count_rounds(const ls_epochs *epochs, int64_t rounds)
{
    int64_t n = 0;
    for (int64_t i = 0; i < epochs->n_stretches; i++) {
        const int64_t n_cuts = epochs->stretches[i].n_cuts;
        n += n_cuts < rounds ? n_cuts : rounds;
    }
    return n;
}

/* The stretch that a cut of the epoch lies in, and which of that stretch's cuts it is. */
static const ls_stretch *find_stretch(const ls_epochs *epochs, int64_t cut, int64_t *index)
{
    int64_t low = 0, high = cut, at = 0;

    while (low < high) { /* the rounds that were complete before the cut */
        const int64_t middle = high - (high - low) / 2;
        if (count_rounds(epochs, middle) <= cut) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    for (int64_t skip = cut - count_rounds(epochs, low);; at++) {
        if (epochs->stretches[at].n_cuts > low && skip-- == 0) break;
    }
    *index = low;
    return &epochs->stretches[at];
}

ls_cut ls_epochs_cut(ls_epochs *epochs, int64_t sequence)
{
    const int64_t s = epochs->options->sequence_tokens, epoch = sequence / epochs->per_epoch;
    const ls_epoch_order *order = fetch_order(epochs, epoch);
    int64_t low = 0, high = epochs->n_documents - 1, index;
    const ls_stretch *from =
        find_stretch(epochs, cut_at(epochs, epoch, sequence % epochs->per_epoch), &index);
    const int64_t first = from->first + index * s;

    while (low < high) { /* the last document that starts at or before `first` */
        const int64_t middle = high - (high - low) / 2;
        if (order->starts[middle] <= first) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return (ls_cut){.documents = order->documents,
                    .starts = order->starts,
                    .first = first,
                    .end = from->end - first < s ? from->end : first + s,
                    .place = low};
}

/* ---- choosing documents -------------------------------------------------------------------- */

static int compare_numbers(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Keep one part of the documents, in file order. */
static ls_status split_documents(ls_epochs *epochs)
{
    const double wanted = epochs->options->valid_fraction * (double)epochs->n_documents;
    int64_t n_valid = (int64_t)wanted, n = epochs->n_documents;

    if (wanted - (double)n_valid > 1e-9) n_valid++; /* 0.07 * 100 is a little above 7 */
    const bool valid = epochs->options->part == LS_LOADER_PART_VALID;
    const int64_t n_kept = valid ? n_valid : n - n_valid;
    if (n_kept < 1) {
        return LS_FAIL(LS_ERR_INVALID,
                       "valid_fraction %g of %lld documents leaves none for %s: name validation "
                       "files instead",
                       epochs->options->valid_fraction, (long long)n,
                       valid ? "validation" : "training");
    }
    shuffle_documents(epochs->documents, n, SPLIT_SEED, STREAM_SPLIT);
    if (valid) {
        memmove(epochs->documents, epochs->documents + (n - n_valid),
                (size_t)n_kept * sizeof *epochs->documents);
    }
    qsort(epochs->documents, (size_t)n_kept, sizeof *epochs->documents, compare_numbers);
    epochs->n_documents = n_kept;
    return LS_OK;
}

static int64_t document_tokens(const ls_epochs *epochs, int64_t document)
{
    const int64_t *offsets = ls_tokens_offsets(epochs->tokens);
    return offsets[document + 1] - offsets[document];
}

/* Keep the documents of at least `shortest` tokens. */
static ls_status drop_short(ls_epochs *epochs, int64_t shortest)
{
    const int64_t n = epochs->n_documents;
    int64_t n_kept = 0, longest = 0, index = 0;

    for (int64_t i = 0; i < n; i++) {
        const int64_t n_tokens = document_tokens(epochs, epochs->documents[i]);
        longest = n_tokens > longest ? n_tokens : longest;
        if (n_tokens >= shortest) epochs->documents[n_kept++] = epochs->documents[i];
    }
    if (n_kept == 0) {
        const char *path = ls_tokens_path(epochs->tokens, 0, &index);
        if (longest == 0) return LS_FAIL(LS_ERR_INVALID, "%s: no document has a token", path);
        return LS_FAIL(LS_ERR_INVALID,
                       "data.min_document: %lld, but the longest of the %lld documents of %s%s has "
                       "%lld tokens; allowed: 0 to %lld, or name longer documents",
                       (long long)shortest, (long long)n, path,
                       epochs->options->n_prefixes > 1 ? ", ..." : "", (long long)longest,
                       (long long)longest);
    }
    epochs->n_documents = n_kept;
    return LS_OK;
}

/* Split first: what is held out does not depend on what is too short for training. */
static ls_status choose_documents(ls_epochs *epochs)
{
    const int64_t n = ls_tokens_n_documents(epochs->tokens);

    epochs->documents = calloc((size_t)n + 1, sizeof *epochs->documents);
    if (!epochs->documents) return ls_disk_file_fail_memory((uint64_t)n * 8, "document order");
    for (int64_t i = 0; i < n; i++) epochs->documents[i] = i;
    epochs->n_documents = n;
    LS_TRY(drop_short(epochs, 1));
    if (epochs->options->part != LS_LOADER_PART_ALL) LS_TRY(split_documents(epochs));
    if (epochs->options->document_tokens_min > 1)
        LS_TRY(drop_short(epochs, epochs->options->document_tokens_min));
    for (int64_t i = 0; i < epochs->n_documents; i++) {
        const int64_t n_tokens = document_tokens(epochs, epochs->documents[i]);
        epochs->n_tokens += n_tokens;
        epochs->longest = n_tokens > epochs->longest ? n_tokens : epochs->longest;
    }
    return LS_OK;
}

/* Documents are in file order, so those of a source follow each other. */
static ls_status build_stretches(ls_epochs *epochs)
{
    const int64_t *offsets = ls_tokens_offsets(epochs->tokens);
    const int64_t s = epochs->options->sequence_tokens;
    const size_t most = epochs->options->separate_sources ? (size_t)epochs->options->n_prefixes : 1;
    int64_t source = -1, at = 0;

    epochs->stretches = calloc(most, sizeof *epochs->stretches);
    if (!epochs->stretches) {
        return ls_disk_file_fail_memory(most * sizeof *epochs->stretches, "data sources");
    }
    for (int64_t i = 0; i < epochs->n_documents; i++) {
        const int64_t document = epochs->documents[i];
        const int64_t own = epochs->options->separate_sources
                                ? ls_tokens_source(epochs->tokens, offsets[document])
                                : 0;
        if (own != source) epochs->stretches[epochs->n_stretches++].first = at;
        source = own;
        at += document_tokens(epochs, document);
        epochs->stretches[epochs->n_stretches - 1].end = at;
    }
    for (int64_t i = 0; i < epochs->n_stretches; i++) {
        ls_stretch *one = &epochs->stretches[i];
        one->n_cuts = (one->end - one->first - 1) / s + 1;
        epochs->per_epoch += one->n_cuts;
    }
    return LS_OK;
}

static ls_status reserve_orders(ls_epochs *epochs)
{
    const size_t n = (size_t)epochs->n_documents;
    const int n_orders = epochs->options->shuffle ? LS_EPOCHS_KEPT : 1;

    for (int i = 0; i < n_orders; i++) {
        ls_epoch_order *order = &epochs->orders[i];
        order->documents = malloc(n * sizeof *order->documents);
        order->starts = malloc((n + 1) * sizeof *order->starts);
        if (!order->documents || !order->starts) {
            return ls_disk_file_fail_memory(n * 16, "document order");
        }
    }
    return LS_OK;
}

ls_status ls_epochs_open(const ls_loader_options *options, const ls_tokens *tokens,
                         ls_epochs *epochs)
{
    epochs->options = options;
    epochs->tokens = tokens;
    for (int i = 0; i < LS_EPOCHS_KEPT; i++) epochs->orders[i].epoch = -1;
    LS_TRY(choose_documents(epochs));
    LS_TRY(build_stretches(epochs));
    return reserve_orders(epochs);
}

void ls_epochs_close(ls_epochs *epochs)
{
    for (int i = 0; i < LS_EPOCHS_KEPT; i++) {
        free(epochs->orders[i].documents);
        free(epochs->orders[i].starts);
    }
    free(epochs->stretches);
    free(epochs->documents);
}
