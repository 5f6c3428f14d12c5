/* loss_record.c - sums to means; everything is allocated at open, so that a step allocates nothing.
 */
#include "loss_record.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A text as JSON has it, in quotes; NULL: out of memory. */
static char *quote(const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    char *printed = item != NULL ? cJSON_PrintUnformatted(item) : NULL;
    char *quoted = printed != NULL ? strdup(printed) : NULL;

    cJSON_free(printed);
    cJSON_Delete(item);
    return quoted;
}

ls_status ls_loss_record_open(const ls_loss_stats *losses, ls_loss_record *record)
{
    const size_t n = (size_t)losses->n_bins, n_sources = (size_t)losses->n_sources;
    bool whole = true;

    record->by_position = calloc(n, sizeof *record->by_position);
    record->by_distance = calloc(n, sizeof *record->by_distance);
    record->by_source = calloc(n_sources + 1, sizeof *record->by_source); /* ends with no name */
    for (size_t i = 0; i < n_sources && record->by_source != NULL && whole; i++) {
        record->by_source[i].name_json = quote(losses->by_source[i].name);
        whole = record->by_source[i].name_json != NULL;
    }
    if (whole && record->by_position != NULL && record->by_distance != NULL &&
        record->by_source != NULL)
        return LS_OK;
    ls_loss_record_close(record);
    return LS_FAIL(LS_ERR_NO_MEMORY, "losses of the record");
}

void ls_loss_record_close(ls_loss_record *record)
{
    if (record == NULL) return;
    for (ls_record_source *s = record->by_source; s != NULL && s->name_json != NULL; s++)
        free(s->name_json);
    free(record->by_position);
    free(record->by_distance);
    free(record->by_source);
    memset(record, 0, sizeof *record);
}

/* Bins without labels are left out. */
static int fill_bins(ls_record_bin *to, const ls_loss_bin *from, int n_from)
{
    int n = 0;
    for (int b = 0; b < n_from; b++)
        if (from[b].labels > 0)
            to[n++] =
                (ls_record_bin){from[b].from, from[b].to, from[b].sum / (double)from[b].labels};
    return n;
}

ls_record_losses ls_loss_record_fill(ls_loss_record *record, const ls_loss_stats *losses, bool bins)
{
    const int n_bins = bins ? losses->n_bins : 0;
    ls_record_losses filled = {.by_position = record->by_position,
                               .by_distance = record->by_distance,
                               .by_source = record->by_source,
                               .n_sources = losses->n_sources};

    filled.n_positions = fill_bins(record->by_position, losses->by_position, n_bins);
    filled.n_distances = fill_bins(record->by_distance, losses->by_distance, n_bins);
    for (int64_t s = 0; s < losses->n_sources; s++) {
        const ls_loss_source *source = &losses->by_source[s];
        record->by_source[s].labels = source->labels;
        record->by_source[s].loss =
            source->labels > 0 ? source->sum / (double)source->labels : (double)NAN;
    }
    return filled;
}
