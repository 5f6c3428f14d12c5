/*
 * trainer_documents.c - what of a batch's documents is known before it is read: where they begin,
 * by the index of the data.  Attention asks, so that blocks within one document may go to kernels
 * that know no others.
 */
#include "trainer.h"

/* Where the document of a row begins, for all micro-batches of a job together. */
typedef struct document_search {
    int64_t row, S; /* of one micro-batch; tokens of a sequence */
    bool joined;
    int64_t start; /* the latest */
} document_search;

static void find_document(void *context, const ls_loader_piece *piece)
{
    document_search *search = context;
    int64_t start = piece->row;

    if (search->row < piece->row || search->row >= piece->row + piece->n) return;
    if (search->joined) start = search->row / search->S * search->S;
    if (piece->source < 0) start = search->row; /* a row of padding is a document */
    if (start > search->start) search->start = start;
}

bool ls_trainer_holds_one_document(void *context, int64_t last_row, int64_t first_key)
{
    const ls_trainer_job *job = context;
    const ls_trainer *t = job->trainer;
    const ls_decoder_options *o = &t->instance.decoder.options;
    const int64_t n = job->source == t->train_data ? o->accumulate : 1;
    document_search search = {
        .row = last_row, .S = o->S, .joined = t->config->documents == LS_DOCUMENTS_JOIN};
    const ls_loader_visitor visitor = {find_document, &search};

    for (int64_t micro_batch = 0; micro_batch < n; micro_batch++) {
        const ls_loader_range range = ls_trainer_batch_range(job, micro_batch);
        if (last_row >= range.n_sequences * o->S) return false; /* padding of a short batch */
        if (ls_loader_visit(job->source, &range, &visitor) != LS_OK) return false;
    }
    return search.start <= first_key;
}
