/*
 * loader.c - an order of documents per epoch with its prefix sums, and a walk over pieces.
 *
 * A sequence is found by binary search in the prefix sums, then walked piece by piece; counting
 * and filling share that walk, so they cannot disagree.  Orders are kept for two epochs, because a
 * step at an epoch's end counts and loads both in turn.  Cost: O(documents) when an epoch begins,
 * O(log documents + pieces) and one read per piece for a sequence.
 */
#include "loader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "disk_file.h"
#include "rng.h"

#define IGNORED       (-100)
#define N_EPOCHS_KEPT 2
#define STREAM_EPOCH  0x65706f6368000000u /* "epoch": apart from other users of the seed */
#define STREAM_CUT    0x6375740000000000u /* "cut": the sequences of an epoch */
#define STREAM_SPLIT  0x73706c6974000000u /* "split" */
#define SPLIT_SEED    0                   /* fixed: runs with other seeds hold out the same */

typedef struct epoch_order {
    int64_t epoch;      /* -1: not built */
    int64_t *documents; /* [n] in the order of the epoch */
    int64_t *starts;    /* [n + 1] tokens before each */
} epoch_order;

struct ls_loader {
    ls_tokens *tokens;
    ls_loader_options options; /* prefixes are not valid any more */
    int64_t *documents;        /* [n_documents] in use, in file order */
    int64_t n_documents, n_tokens, per_epoch;
    epoch_order orders[N_EPOCHS_KEPT];
    uint8_t *mask; /* [S], NULL without masks */
};

/* The part of one document that lies in one sequence. */
typedef struct piece {
    int64_t token; /* the first, in the data set */
    int64_t n;
    int64_t row; /* the first, in the sequence */
} piece;

/* A walk over the pieces of one sequence. */
typedef struct piece_walk {
    const epoch_order *order;
    const int64_t *offsets;
    int64_t first, at, end; /* tokens of the epoch */
    int64_t next;           /* place of the document that holds `at` */
} piece_walk;

static void shuffle_documents(int64_t *documents, int64_t n, uint64_t seed, uint64_t stream)
{
    for (int64_t i = n - 1; i > 0; i--) { /* Fisher, Yates 1938; Durstenfeld 1964 */
        const int64_t j = (int64_t)ls_rng_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        const int64_t held = documents[i];
        documents[i] = documents[j];
        documents[j] = held;
    }
}

static void build_order(ls_loader *loader, epoch_order *order, int64_t epoch)
{
    const int64_t n = loader->n_documents, *offsets = ls_tokens_offsets(loader->tokens);

    memcpy(order->documents, loader->documents, (size_t)n * sizeof *order->documents);
    if (loader->options.shuffle) {
        shuffle_documents(order->documents, n, loader->options.seed,
                          STREAM_EPOCH + (uint64_t)epoch);
    }
    order->starts[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t document = order->documents[i];
        order->starts[i + 1] = order->starts[i] + offsets[document + 1] - offsets[document];
    }
    assert(order->starts[n] == loader->n_tokens);
    order->epoch = epoch;
}

static const epoch_order *fetch_order(ls_loader *loader, int64_t epoch)
{
    const int64_t wanted = loader->options.shuffle ? epoch : 0; /* file order never changes */
    epoch_order *order = &loader->orders[wanted % N_EPOCHS_KEPT];

    if (order->epoch != wanted) build_order(loader, order, wanted);
    return order;
}

/* Which of an epoch's cuts stands at this place: shuffled too, so that those of a long document
 * do not follow each other. */
static int64_t cut_at(const ls_loader *loader, int64_t epoch, int64_t place)
{
    if (!loader->options.shuffle) return place;
    return (int64_t)ls_rng_permute(loader->options.seed, STREAM_CUT + (uint64_t)epoch,
                                   (uint64_t)place, (uint64_t)loader->per_epoch);
}

static piece_walk begin_walk(ls_loader *loader, int64_t sequence)
{
    const int64_t s = loader->options.sequence_tokens, epoch = sequence / loader->per_epoch;
    const epoch_order *order = fetch_order(loader, epoch);
    const int64_t first = cut_at(loader, epoch, sequence % loader->per_epoch) * s;
    int64_t low = 0, high = loader->n_documents - 1;

    while (low < high) { /* the last document that starts at or before `first` */
        const int64_t middle = high - (high - low) / 2;
        if (order->starts[middle] <= first) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return (piece_walk){
        .order = order,
        .offsets = ls_tokens_offsets(loader->tokens),
        .first = first,
        .at = first,
        .end = loader->n_tokens - first < s ? loader->n_tokens : first + s,
        .next = low,
    };
}

static bool next_piece(piece_walk *walk, piece *found)
{
    if (walk->at == walk->end) return false;
    const int64_t document = walk->order->documents[walk->next];
    const int64_t start = walk->order->starts[walk->next],
                  stop = walk->order->starts[walk->next + 1];
    const int64_t until = stop < walk->end ? stop : walk->end;

    found->token = walk->offsets[document] + walk->at - start;
    found->n = until - walk->at;
    found->row = walk->at - walk->first;
    walk->at = until;
    walk->next++;
    return true;
}

/* Pairs of n causal tokens where each sees the last `window`. */
static int64_t count_pairs(int64_t n, int64_t window)
{
    if (window <= 0 || window >= n) return n * (n + 1) / 2;
    return window * (window + 1) / 2 + (n - window) * window;
}

/* Targets of a piece: all tokens but the first, less those masked.  Leaves the mask of token
 * i of the piece in loader->mask[i]. */
static ls_status count_labels(ls_loader *loader, const piece *from, int64_t *labels)
{
    int64_t n = from->n - 1;

    if (loader->mask) {
        LS_TRY(ls_tokens_read_mask(loader->tokens, from->token, from->n, loader->mask));
        n = 0;
        for (int64_t i = 1; i < from->n; i++) n += loader->mask[i] != 0;
    }
    *labels = n;
    return LS_OK;
}

static ls_status check_vocabulary(const ls_loader *loader, const piece *from, const int32_t *ids)
{
    const int64_t vocab_size = loader->options.vocab_size;
    int32_t highest = 0;
    int64_t index = 0, at = 0;

    for (int64_t i = 0; i < from->n; i++) highest = ids[i] > highest ? ids[i] : highest;
    if (highest < vocab_size) return LS_OK;
    while (ids[at] < vocab_size) at++;
    const char *path = ls_tokens_path(loader->tokens, from->token + at, &index);
    return LS_FAIL(LS_ERR_INVALID, "%s: token %lld is id %d, but the vocabulary has %lld", path,
                   (long long)index, ids[at], (long long)vocab_size);
}

/* base: the row of the batch where the sequence begins. */
static ls_status fill_piece(ls_loader *loader, const piece *from, int64_t base,
                            const ls_loader_batch *batch)
{
    const bool joined = loader->options.documents == LS_DOCUMENTS_JOIN;
    const bool restart = loader->options.documents == LS_DOCUMENTS_ISOLATE;
    const int64_t first = base + from->row;
    int32_t *ids = batch->tokens + first;

    LS_TRY(ls_tokens_read(loader->tokens, from->token, from->n, ids));
    LS_TRY(check_vocabulary(loader, from, ids));
    for (int64_t i = 0; i < from->n; i++) {
        const bool has_target = i + 1 < from->n && (!loader->mask || loader->mask[i + 1] != 0);
        batch->targets[first + i] = has_target ? ids[i + 1] : IGNORED;
        batch->positions[first + i] = restart ? i : from->row + i;
        batch->doc_start[first + i] = joined ? base : first;
    }
    if (batch->sources) {
        const int64_t source = ls_tokens_source(loader->tokens, from->token);
        for (int64_t i = 0; i < from->n; i++) batch->sources[first + i] = (int32_t)source;
    }
    return LS_OK;
}

static void fill_padding(const ls_loader *loader, int64_t first, int64_t end,
                         const ls_loader_batch *batch)
{
    for (int64_t row = first; row < end; row++) {
        batch->tokens[row] = loader->options.pad_token;
        batch->targets[row] = IGNORED;
        batch->positions[row] = 0;
        batch->doc_start[row] = row;
        if (batch->sources) batch->sources[row] = -1;
    }
}

/* One sequence: add to counts and, if batch is given, fill its rows from `base`. */
static ls_status load_sequence(ls_loader *loader, int64_t sequence, int64_t window, int64_t base,
                               const ls_loader_batch *batch, ls_loader_counts *counts)
{
    piece_walk walk = begin_walk(loader, sequence);
    const int64_t n = walk.end - walk.first;
    piece found;

    while (next_piece(&walk, &found)) {
        int64_t labels = 0;
        LS_TRY(count_labels(loader, &found, &labels));
        counts->labels += labels;
        if (loader->options.documents != LS_DOCUMENTS_JOIN) {
            counts->pairs += count_pairs(found.n, window);
        }
        if (batch) LS_TRY(fill_piece(loader, &found, base, batch));
    }
    counts->tokens += n;
    if (loader->options.documents == LS_DOCUMENTS_JOIN) counts->pairs += count_pairs(n, window);
    if (batch) fill_padding(loader, base + n, base + loader->options.sequence_tokens, batch);
    return LS_OK;
}

static ls_status load_range(ls_loader *loader, const ls_loader_range *range,
                            const ls_loader_batch *batch, ls_loader_counts *counts)
{
    ls_loader_counts sum = {0, 0, 0};

    if (range->first_sequence < 0 || range->n_sequences < 0 || range->window < 0 ||
        range->n_sequences > INT64_MAX - range->first_sequence) {
        return LS_FAIL(LS_ERR_INVALID, "sequences %lld and %lld on, window %lld: none may be < 0",
                       (long long)range->first_sequence, (long long)range->n_sequences,
                       (long long)range->window);
    }
    for (int64_t i = 0; i < range->n_sequences; i++) {
        LS_TRY(load_sequence(loader, range->first_sequence + i, range->window,
                             i * loader->options.sequence_tokens, batch, &sum));
    }
    if (counts) *counts = sum;
    return LS_OK;
}

ls_status ls_loader_count(ls_loader *loader, const ls_loader_range *range, ls_loader_counts *counts)
{
    return load_range(loader, range, NULL, counts);
}

ls_status ls_loader_fill(ls_loader *loader, const ls_loader_range *range,
                         const ls_loader_batch *batch, ls_loader_counts *counts)
{
    return load_range(loader, range, batch, counts);
}

static ls_status check_options(const ls_loader_options *options)
{
    if (options->sequence_tokens < 1 || options->sequence_tokens > INT32_MAX) {
        return LS_FAIL(LS_ERR_INVALID, "sequence of %lld tokens: 1 to 2^31 - 1 allowed",
                       (long long)options->sequence_tokens);
    }
    if (options->vocab_size < 1 || options->pad_token < 0 ||
        options->pad_token >= options->vocab_size) {
        return LS_FAIL(LS_ERR_INVALID, "padding id %d of a vocabulary of %lld", options->pad_token,
                       (long long)options->vocab_size);
    }
    if (!(options->valid_fraction >= 0 && options->valid_fraction < 1)) {
        return LS_FAIL(LS_ERR_INVALID, "valid_fraction is %g: 0 <= f < 1 allowed",
                       options->valid_fraction);
    }
    return LS_OK;
}

static int compare_numbers(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

/* Keep one part of the documents, in file order. */
static ls_status split_documents(ls_loader *loader)
{
    const double wanted = loader->options.valid_fraction * (double)loader->n_documents;
    int64_t n_valid = (int64_t)wanted, n = loader->n_documents;

    if (wanted - (double)n_valid > 1e-9) n_valid++; /* 0.07 * 100 is a little above 7 */
    const bool valid = loader->options.part == LS_LOADER_PART_VALID;
    const int64_t n_kept = valid ? n_valid : n - n_valid;
    if (n_kept < 1) {
        return LS_FAIL(LS_ERR_INVALID,
                       "valid_fraction %g of %lld documents leaves none for %s: name validation "
                       "files instead",
                       loader->options.valid_fraction, (long long)n,
                       valid ? "validation" : "training");
    }
    shuffle_documents(loader->documents, n, SPLIT_SEED, STREAM_SPLIT);
    if (valid) {
        memmove(loader->documents, loader->documents + (n - n_valid),
                (size_t)n_kept * sizeof *loader->documents);
    }
    qsort(loader->documents, (size_t)n_kept, sizeof *loader->documents, compare_numbers);
    loader->n_documents = n_kept;
    return LS_OK;
}

static ls_status choose_documents(ls_loader *loader)
{
    const int64_t n = ls_tokens_n_documents(loader->tokens);
    const int64_t *offsets = ls_tokens_offsets(loader->tokens);
    const int64_t shortest =
        loader->options.document_tokens_min > 1 ? loader->options.document_tokens_min : 1;

    loader->documents = calloc((size_t)n + 1, sizeof *loader->documents);
    if (!loader->documents) return ls_disk_file_fail_memory((uint64_t)n * 8, "document order");
    for (int64_t i = 0; i < n; i++) {
        if (offsets[i + 1] - offsets[i] < shortest) continue;
        loader->documents[loader->n_documents++] = i;
    }
    if (loader->n_documents == 0) {
        int64_t index = 0;
        return LS_FAIL(LS_ERR_INVALID, "%s: none of its %lld documents has %lld tokens or more",
                       ls_tokens_path(loader->tokens, 0, &index), (long long)n,
                       (long long)shortest);
    }
    if (loader->options.part != LS_LOADER_PART_ALL) LS_TRY(split_documents(loader));
    for (int64_t i = 0; i < loader->n_documents; i++) {
        loader->n_tokens += offsets[loader->documents[i] + 1] - offsets[loader->documents[i]];
    }
    const int64_t s = loader->options.sequence_tokens;
    loader->per_epoch = (loader->n_tokens - 1) / s + 1;
    return LS_OK;
}

static ls_status reserve_orders(ls_loader *loader)
{
    const size_t n = (size_t)loader->n_documents;
    const int n_orders = loader->options.shuffle ? N_EPOCHS_KEPT : 1;

    for (int i = 0; i < n_orders; i++) {
        epoch_order *order = &loader->orders[i];
        order->documents = malloc(n * sizeof *order->documents);
        order->starts = malloc((n + 1) * sizeof *order->starts);
        if (!order->documents || !order->starts) {
            return ls_disk_file_fail_memory(n * 16, "document order");
        }
    }
    if (ls_tokens_has_mask(loader->tokens)) {
        loader->mask = malloc((size_t)loader->options.sequence_tokens);
        if (!loader->mask) {
            return ls_disk_file_fail_memory((uint64_t)loader->options.sequence_tokens, "a mask");
        }
    }
    return LS_OK;
}

ls_status ls_loader_open(const ls_loader_options *options, ls_loader **loader)
{
    LS_TRY(check_options(options));
    ls_loader *opened = calloc(1, sizeof *opened);
    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a loader");
    opened->options = *options;
    for (int i = 0; i < N_EPOCHS_KEPT; i++) opened->orders[i].epoch = -1;
    ls_status status =
        ls_tokens_open(options->prefixes, options->n_prefixes, options->format, &opened->tokens);
    if (status == LS_OK && options->check_ids) {
        status = ls_tokens_check_ids(opened->tokens, options->vocab_size);
    }
    if (status == LS_OK) status = choose_documents(opened);
    if (status == LS_OK) status = reserve_orders(opened);
    if (status != LS_OK) {
        ls_loader_close(opened);
        return status;
    }
    *loader = opened;
    return LS_OK;
}

void ls_loader_close(ls_loader *loader)
{
    if (!loader) return;
    for (int i = 0; i < N_EPOCHS_KEPT; i++) {
        free(loader->orders[i].documents);
        free(loader->orders[i].starts);
    }
    free(loader->mask);
    free(loader->documents);
    ls_tokens_close(loader->tokens);
    free(loader);
}

ls_loader_info ls_loader_describe(const ls_loader *loader)
{
    return (ls_loader_info){
        .n_documents = loader->n_documents,
        .n_tokens = loader->n_tokens,
        .sequences_per_epoch = loader->per_epoch,
        .n_sources = loader->options.n_prefixes,
        .identity = ls_tokens_identity(loader->tokens),
    };
}
