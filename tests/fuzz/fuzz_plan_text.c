/*
 * fuzz_plan_text.c - any bytes as the text of a plan; one that is read can be checked, sound or
 * not, and what is written of it reads back as the same text.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char *write_plan(const ls_plan *plan, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    assert(file != NULL);
    assert(ls_plan_write_text(plan, file) == LS_OK);
    fclose(file);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    ls_plan plan, again;
    size_t n = 0, n_again = 0;

    if (ls_plan_read_text("input", (const char *)data, bytes, &plan) != LS_OK) {
        assert(strncmp(ls_error(), "input:", 6) == 0);
        return 0;
    }
    (void)ls_plan_check(&plan, NULL); /* what it says, others test; it must not crash */
    char *text = write_plan(&plan, &n);
    assert(ls_plan_read_text("again", text, n, &again) == LS_OK);
    char *text_again = write_plan(&again, &n_again);
    assert(n == n_again && memcmp(text, text_again, n) == 0);
    free(text);
    free(text_again);
    ls_plan_free(&plan);
    ls_plan_free(&again);
    return 0;
}
