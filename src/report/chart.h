/*
 * chart.h - line charts as SVG, drawn here: axes with round ticks and units, a legend, shaded
 * stretches.  Colours are variables of the page's style, so that one drawing serves light and dark;
 * a drawing of its own file carries the style with it.
 *
 * Layer: report.  Threads: no shared state.
 */
#ifndef LS_CHART_H
#define LS_CHART_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define LS_CHART_SERIES_MAX 16
#define LS_CHART_COLORS     8
#define LS_CHART_BANDS_MAX  400

typedef struct ls_chart_series {
    char name[96];       /* "": not in the legend */
    int color;           /* 0 .. LS_CHART_COLORS-1, and again from there */
    const double *x, *y; /* [n]; where either is not finite the line is broken */
    int64_t n;
    bool points; /* marks without a line */
} ls_chart_series;

/* A stretch of x, shaded. */
typedef struct ls_chart_band {
    double from, to;
    int color;
} ls_chart_band;

typedef struct ls_chart {
    const char *id; /* of the file: "loss" */
    const char *title, *x_label, *y_label;
    const char *note; /* below the drawing; may be NULL */
    ls_chart_series series[LS_CHART_SERIES_MAX];
    int n_series;
    ls_chart_band bands[LS_CHART_BANDS_MAX];
    int n_bands;
    struct {
        char name[32];
        int color;
    } band_names[LS_CHART_COLORS + 8];
    int n_band_names;
    bool x_log; /* base 2 */
    bool y_from_zero;
} ls_chart;

/* A series behind the others; NULL: there is no room. */
ls_chart_series *ls_chart_add(ls_chart *chart, const char *name, const double *x, const double *y,
                              int64_t n);

/* Whether there is anything to draw. */
bool ls_chart_has_data(const ls_chart *chart);

/* Write the <svg>; standalone: a file of its own, with the style. */
void ls_chart_write(FILE *file, const ls_chart *chart, bool standalone);

/* The style that charts use, light and dark. */
void ls_chart_write_style(FILE *file);

/* Text with <, > & and quotes made harmless. */
void ls_chart_write_text(FILE *file, const char *text);

/* "1.5k", "250M", "0.02": few digits, for ticks and tables. */
const char *ls_chart_number(char text[32], double value);

#endif
