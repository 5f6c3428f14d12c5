/*
 * loader.c - a walk over the pieces of a sequence.
 *
 * Counting, filling and visiting share the walk, so they cannot disagree.  Cost of a sequence: what
 * finding it costs (loader_epochs.c), O(pieces), and one read per piece where tokens are loaded.
 */
#include "loader.h"

#include <pthread.h>
#include <stdlib.h>

#include "disk_file.h"
#include "loader_epochs.h"

#define IGNORED (-100)

struct ls_loader {
    ls_tokens *tokens;
    ls_loader_options options; /* prefixes are not valid any more */
    pthread_mutex_t mutex;     /* of what follows */
    ls_epochs epochs;
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
    ls_cut cut;
    const int64_t *offsets;
    int64_t at;   /* token of the epoch */
    int64_t next; /* place of the document that holds `at` */
} piece_walk;

static piece_walk begin_walk(ls_loader *loader, int64_t sequence)
{
    const ls_cut cut = ls_epochs_cut(&loader->epochs, sequence);

    return (piece_walk){.cut = cut,
                        .offsets = ls_tokens_offsets(loader->tokens),
                        .at = cut.first,
                        .next = cut.place};
}

static bool next_piece(piece_walk *walk, piece *found)
{
    if (walk->at == walk->cut.end) return false;
    const int64_t document = walk->cut.documents[walk->next];
    const int64_t start = walk->cut.starts[walk->next], stop = walk->cut.starts[walk->next + 1];
    const int64_t until = stop < walk->cut.end ? stop : walk->cut.end;

    found->token = walk->offsets[document] + walk->at - start;
    found->n = until - walk->at;
    found->row = walk->at - walk->cut.first;
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
    const int64_t n = walk.cut.end - walk.cut.first;
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

static ls_status check_range(const ls_loader_range *range)
{
    if (range->first_sequence < 0 || range->n_sequences < 0 || range->window < 0 ||
        range->n_sequences > INT64_MAX - range->first_sequence) {
        return LS_FAIL(LS_ERR_INVALID, "sequences %lld and %lld on, window %lld: none may be < 0",
                       (long long)range->first_sequence, (long long)range->n_sequences,
                       (long long)range->window);
    }
    return LS_OK;
}

static ls_status load_range(ls_loader *loader, const ls_loader_range *range,
                            const ls_loader_batch *batch, ls_loader_counts *counts)
{
    ls_loader_counts sum = {0, 0, 0};
    ls_status status = LS_OK;

    LS_TRY(check_range(range));
    pthread_mutex_lock(&loader->mutex);
    for (int64_t i = 0; i < range->n_sequences && status == LS_OK; i++) {
        status = load_sequence(loader, range->first_sequence + i, range->window,
                               i * loader->options.sequence_tokens, batch, &sum);
    }
    pthread_mutex_unlock(&loader->mutex);
    if (status == LS_OK && counts) *counts = sum;
    return status;
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

static void visit_sequence(ls_loader *loader, int64_t sequence, int64_t base,
                           const ls_loader_visitor *visitor)
{
    const int64_t s = loader->options.sequence_tokens;
    piece_walk walk = begin_walk(loader, sequence);
    const int64_t n = walk.cut.end - walk.cut.first;
    piece found;

    while (next_piece(&walk, &found)) {
        const ls_loader_piece seen = {base + found.row, found.n,
                                      ls_tokens_source(loader->tokens, found.token)};
        visitor->piece(visitor->context, &seen);
    }
    if (n < s) visitor->piece(visitor->context, &(ls_loader_piece){base + n, s - n, -1});
}

ls_status ls_loader_visit(ls_loader *loader, const ls_loader_range *range,
                          const ls_loader_visitor *visitor)
{
    LS_TRY(check_range(range));
    pthread_mutex_lock(&loader->mutex);
    for (int64_t i = 0; i < range->n_sequences; i++) {
        visit_sequence(loader, range->first_sequence + i, i * loader->options.sequence_tokens,
                       visitor);
    }
    pthread_mutex_unlock(&loader->mutex);
    return LS_OK;
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
    if (options->separate_sources && options->shuffle) {
        return LS_FAIL(LS_ERR_INVALID, "separate_sources with shuffle: allowed: one of the two");
    }
    return LS_OK;
}

static ls_status reserve_mask(ls_loader *loader)
{
    const size_t bytes = (size_t)loader->options.sequence_tokens;

    if (!ls_tokens_has_mask(loader->tokens)) return LS_OK;
    loader->mask = malloc(bytes);
    return loader->mask ? LS_OK : ls_disk_file_fail_memory(bytes, "a mask");
}

ls_status ls_loader_open(const ls_loader_options *options, ls_loader **loader)
{
    LS_TRY(check_options(options));
    ls_loader *opened = calloc(1, sizeof *opened);
    if (!opened) return ls_disk_file_fail_memory(sizeof *opened, "a loader");
    pthread_mutex_init(&opened->mutex, NULL);
    opened->options = *options;
    ls_status status =
        ls_tokens_open(options->prefixes, options->n_prefixes, options->format, &opened->tokens);
    if (status == LS_OK && options->check_ids) {
        status = ls_tokens_check_ids(opened->tokens, options->vocab_size);
    }
    if (status == LS_OK) status = ls_epochs_open(&opened->options, opened->tokens, &opened->epochs);
    if (status == LS_OK) status = reserve_mask(opened);
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
    free(loader->mask);
    ls_epochs_close(&loader->epochs);
    ls_tokens_close(loader->tokens);
    pthread_mutex_destroy(&loader->mutex);
    free(loader);
}

ls_loader_info ls_loader_describe(const ls_loader *loader)
{
    return (ls_loader_info){
        .n_documents = loader->epochs.n_documents,
        .n_tokens = loader->epochs.n_tokens,
        .longest = loader->epochs.longest,
        .sequences_per_epoch = loader->epochs.per_epoch,
        .n_sources = loader->options.n_prefixes,
        .identity = ls_tokens_identity(loader->tokens),
    };
}
