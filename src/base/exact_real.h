/*
 * exact_real.h - a real as text that reads back with the same bits, one spelling for each.
 *
 * Whole numbers below 2^63 are their digits, all others hexadecimal as C's %a has them: 640,
 * 0x1.999999999999ap-4.  Neither depends on the locale.
 *
 * Layer: base.  Threads: no shared state.
 */
#ifndef LS_EXACT_REAL_H
#define LS_EXACT_REAL_H

#include <stdbool.h>
#include <stddef.h>

#define LS_EXACT_REAL_BYTES 32 /* of any text below, with its terminating zero */

/* Print a finite value into buffer and return that. */
const char *ls_exact_real_print(char buffer[LS_EXACT_REAL_BYTES], double value);

/* Read n bytes; false, unless they are what ls_exact_real_print() makes of some value. */
bool ls_exact_real_parse(const char *text, size_t n, double *value);

#endif
