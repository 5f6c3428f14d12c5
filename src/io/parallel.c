/* parallel.c - one counter that all threads take the next piece from. */
#include "parallel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define TEXT_BYTES   1024
#define ORIGIN_BYTES 64

typedef struct work {
    ls_parallel_piece *piece;
    void *context;
    _Atomic(int64_t) next;
    _Atomic(int64_t) failed; /* the first piece known to have failed; n: none */
    pthread_mutex_t mutex;   /* of what follows, with every change of failed */
    ls_status status;
    char text[TEXT_BYTES], origin[ORIGIN_BYTES];
} work;

/* Keep the failure of the first piece: pieces before it have all been begun, and will end. */
static void note_failure(work *w, int64_t index, ls_status status)
{
    pthread_mutex_lock(&w->mutex);
    if (index < atomic_load(&w->failed)) {
        atomic_store(&w->failed, index);
        w->status = status;
        snprintf(w->text, sizeof w->text, "%s", ls_error());
        snprintf(w->origin, sizeof w->origin, "%s", ls_error_origin());
    }
    pthread_mutex_unlock(&w->mutex);
}

static void *run_pieces(void *context)
{
    work *w = context;

    for (;;) {
        const int64_t index = atomic_fetch_add(&w->next, 1);
        if (index >= atomic_load(&w->failed)) return NULL;
        const ls_status status = w->piece(w->context, index);
        if (status != LS_OK) note_failure(w, index, status);
    }
}

ls_status ls_parallel_run(int64_t n, int threads, ls_parallel_piece *piece, void *context)
{
    work w = {.piece = piece, .context = context, .mutex = PTHREAD_MUTEX_INITIALIZER};
    pthread_t others[LS_PARALLEL_THREADS_MAX];
    int n_others = 0;

    if (threads > LS_PARALLEL_THREADS_MAX) threads = LS_PARALLEL_THREADS_MAX;
    atomic_store(&w.next, 0);
    atomic_store(&w.failed, n);
    while (n_others + 1 < threads && n_others + 1 < n) {
        if (pthread_create(&others[n_others], NULL, run_pieces, &w) != 0) break;
        n_others++;
    }
    run_pieces(&w);
    for (int i = 0; i < n_others; i++) pthread_join(others[i], NULL);
    pthread_mutex_destroy(&w.mutex);
    if (w.status != LS_OK) ls_error_adopt(w.text, w.origin);
    return w.status;
}
