/* chart.c - a fixed drawing of 460 x 270, scaled by whoever shows it. */
#include "chart.h"

#include <math.h>
#include <string.h>

#include "text.h"

#define WIDTH    460.0
#define HEIGHT   270.0
#define LEFT     60.0
#define RIGHT    12.0
#define TOP      12.0
#define BOTTOM   44.0
#define POINTS   600 /* of one line: more are averaged */
#define TICKS    5
#define LEGEND_Y 28.0 /* a row for lines, one for shades */

typedef struct axis {
    double from, to; /* of the values; log2 of them where log */
    double step;
    double pixel_from, pixel_to;
    bool log;
} axis;

/* ---- text ---------------------------------------------------------------------------------- */

void ls_chart_write_text(FILE *file, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '<')
            fputs("&lt;", file);
        else if (*c == '>')
            fputs("&gt;", file);
        else if (*c == '&')
            fputs("&amp;", file);
        else if (*c == '"')
            fputs("&quot;", file);
        else if ((unsigned char)*c >= 0x20)
            fputc(*c, file);
    }
}

const char *ls_chart_number(char text[32], double value)
{
    static const struct {
        double unit;
        const char *suffix;
    } units[] = {{1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
    const double size = fabs(value);

    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        if (size < units[u].unit * 0.99995) continue;
        snprintf(text, 32, "%.4g%s", value / units[u].unit, units[u].suffix);
        return text;
    }
    if (size > 0.0 && size < 1e-3)
        snprintf(text, 32, "%.2g", value);
    else
        snprintf(text, 32, "%.4g", value);
    return text;
}

void ls_chart_write_style(FILE *file)
{
    fputs(":root{--bg:#ffffff;--fg:#1c2230;--dim:#5b6475;--grid:#dfe3ea;--card:#f6f7f9;"
          "--c0:#0b6bcb;--c1:#c4470c;--c2:#2b8a3e;--c3:#8e3bb0;--c4:#b08900;--c5:#c2255c;"
          "--c6:#0a8f8f;--c7:#5f6b7a;--good:#2b8a3e;--bad:#c92a2a}\n"
          "@media(prefers-color-scheme:dark){:root{--bg:#14171d;--fg:#e6e9ef;--dim:#a0a8b8;"
          "--grid:#313845;--card:#1c2129;--c0:#5ba8f5;--c1:#ff9250;--c2:#69c97b;--c3:#c58af0;"
          "--c4:#e0bd4a;--c5:#f783ac;--c6:#4ed0d0;--c7:#a7b1c0;--good:#69c97b;--bad:#ff8787}}\n"
          ".chart{width:100%;height:auto;display:block;font:13px system-ui,sans-serif}\n"
          ".chart text{fill:var(--fg)}.chart .dim{fill:var(--dim)}\n"
          ".chart .grid{stroke:var(--grid);stroke-width:1}\n"
          ".chart .line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}\n",
          file);
}

/* ---- axes ---------------------------------------------------------------------------------- */

static double as_x(const ls_chart *c, double x)
{
    return c->x_log ? (x > 0.0 ? log2(x) : (double)NAN) : x;
}

/* 1, 2 or 5 times a power of ten, or whole for logarithms. */
static double round_step(double range, bool log)
{
    const double rough = range / TICKS;
    const double power = pow(10.0, floor(log10(rough)));
    const double digit = rough / power;
    const double step = power * (digit <= 1.0   ? 1.0
                                 : digit <= 2.0 ? 2.0
                                 : digit <= 5.0 ? 5.0
                                                : 10.0);

    return log && step < 1.0 ? 1.0 : step;
}

static axis make_axis(double from, double to, double pixel_from, double pixel_to)
{
    axis a = {.pixel_from = pixel_from, .pixel_to = pixel_to};
    const double size = fabs(from) > fabs(to) ? fabs(from) : fabs(to);

    if (to - from <= 1e-9 * size || to <= from) { /* one value: room around it */
        const double room = size > 0.0 ? 0.05 * size : 1.0;
        from -= room;
        to += room;
    }
    a.from = from;
    a.to = to;
    return a;
}

static double place(const axis *a, double value)
{
    return a->pixel_from + (value - a->from) / (a->to - a->from) * (a->pixel_to - a->pixel_from);
}

/* Sums and differences of numbers beyond are no numbers any more, and no run has them. */
static bool is_drawable(double x, double y)
{
    return fabs(x) < 1e100 && fabs(y) < 1e100;
}

static void find_range(const ls_chart *c, double x[2], double y[2])
{
    x[0] = y[0] = (double)INFINITY;
    x[1] = y[1] = -(double)INFINITY;
    for (int s = 0; s < c->n_series; s++)
        for (int64_t i = 0; i < c->series[s].n; i++) {
            const double at = as_x(c, c->series[s].x[i]), value = c->series[s].y[i];
            if (!is_drawable(at, value)) continue;
            x[0] = fmin(x[0], at);
            x[1] = fmax(x[1], at);
            y[0] = fmin(y[0], value);
            y[1] = fmax(y[1], value);
        }
}

static axis find_y_axis(const ls_chart *c, const double y[2])
{
    const double bottom = c->y_from_zero && y[0] >= 0.0 ? 0.0 : y[0];
    axis a = make_axis(bottom, y[1], HEIGHT - BOTTOM, TOP + LEGEND_Y);

    a.step = round_step(a.to - a.from, false);
    a.from = a.step * floor(a.from / a.step + 1e-9);
    a.to = a.step * ceil(a.to / a.step - 1e-9);
    return a;
}

static axis find_x_axis(const ls_chart *c, const double x[2])
{
    axis a = make_axis(x[0], x[1], LEFT, WIDTH - RIGHT);

    a.log = c->x_log;
    a.step = round_step(a.to - a.from, c->x_log);
    return a;
}

static void write_y_ticks(FILE *f, const axis *y)
{
    char text[32];

    for (double v = y->from; v <= y->to + 0.5 * y->step; v += y->step) {
        const double at = place(y, v);
        const double shown = fabs(v) < 1e-9 * y->step ? 0.0 : v;
        fprintf(f, "<line class=\"grid\" x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
                WIDTH - RIGHT, at, at);
        fprintf(f, "<text class=\"dim\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                LEFT - 5.0, at + 4.0, ls_chart_number(text, shown));
    }
}

static void write_x_ticks(FILE *f, const axis *x)
{
    char text[32];

    for (double v = x->step * ceil(x->from / x->step - 1e-9); v <= x->to + 1e-9 * x->step;
         v += x->step) {
        const double at = place(x, v), shown = x->log ? exp2(v) : v;
        fprintf(f, "<text class=\"dim\" x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", at,
                HEIGHT - BOTTOM + 15.0,
                ls_chart_number(text, fabs(shown) < 1e-9 * x->step ? 0.0 : shown));
    }
}

/* ---- what is drawn ------------------------------------------------------------------------- */

static double clamp(double value, double from, double to)
{
    return value < from ? from : value > to ? to : value;
}

static void write_bands(FILE *f, const ls_chart *c, const axis *x)
{
    for (int b = 0; b < c->n_bands; b++) {
        const double from = place(x, clamp(as_x(c, c->bands[b].from), x->from, x->to));
        const double to = place(x, clamp(as_x(c, c->bands[b].to), x->from, x->to));
        if (!(to > from)) continue;
        fprintf(f,
                "<rect x=\"%.1f\" y=\"%g\" width=\"%.1f\" height=\"%g\" "
                "style=\"fill:var(--c%d);opacity:.13\"/>\n",
                from, TOP + LEGEND_Y, to - from, HEIGHT - BOTTOM - TOP - LEGEND_Y,
                c->bands[b].color % LS_CHART_COLORS);
    }
}

/* Neighbours averaged, so that a long run is a drawing of bounded size. */
static void write_line(FILE *f, const ls_chart *c, const ls_chart_series *s, const axis *x,
                       const axis *y)
{
    const int64_t stride = (s->n + POINTS - 1) / POINTS;
    bool down = false; /* the pen */

    fputs("<path class=\"line\" d=\"", f);
    for (int64_t i = 0; i < s->n; i += stride) {
        double sum_x = 0.0, sum_y = 0.0;
        int n = 0;
        for (int64_t k = i; k < i + stride && k < s->n; k++) {
            const double at = as_x(c, s->x[k]);
            if (!is_drawable(at, s->y[k])) continue;
            sum_x += at;
            sum_y += s->y[k];
            n++;
        }
        if (n > 0)
            fprintf(f, "%c%.1f %.1f%s", down ? 'L' : 'M', place(x, sum_x / n), place(y, sum_y / n),
                    down ? "" : "h0"); /* a value without neighbours is a dot */
        down = n > 0;
    }
    fprintf(f, "\" style=\"stroke:var(--c%d)\"/>\n", s->color % LS_CHART_COLORS);
}

/* No line can be drawn through it: a run of one step. */
static bool has_one_value(const ls_chart *c, const ls_chart_series *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->n && n < 2; i++) n += is_drawable(as_x(c, s->x[i]), s->y[i]);
    return n == 1;
}

static void write_points(FILE *f, const ls_chart *c, const ls_chart_series *s, const axis *x,
                         const axis *y)
{
    char text[2][32];

    for (int64_t i = 0; i < s->n && i < POINTS; i++) {
        const double at = as_x(c, s->x[i]);
        if (!is_drawable(at, s->y[i])) continue;
        fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" style=\"fill:var(--c%d)\"><title>",
                place(x, at), place(y, s->y[i]), s->color % LS_CHART_COLORS);
        ls_chart_write_text(f, s->name);
        fprintf(f, ": %s, %s</title></circle>\n", ls_chart_number(text[0], s->x[i]),
                ls_chart_number(text[1], s->y[i]));
    }
}

/* A row of marks with names, as wide as the drawing. */
typedef struct legend_row {
    double x, y, letter; /* where the next key begins, and how wide a letter is */
    int letters_max;     /* of a name: more are cut off */
    bool band;
} legend_row;

#define KEY_MARK   13.0
#define KEY_SPACE  10.0
#define LETTER     7.6 /* about as wide as a wide one of 13 px */
#define LETTER_MIN 4.6

/* n names with so many letters in all: smaller ones where they have no room, then shorter names. */
static legend_row make_row(int n, int letters, bool band)
{
    const double room = WIDTH - LEFT - RIGHT - n * (KEY_MARK + KEY_SPACE);
    const double letter = letters > 0 ? clamp(room / letters, LETTER_MIN, LETTER) : LETTER;
    legend_row row = {.x = LEFT,
                      .y = band ? TOP + 12.0 : TOP - 2.0,
                      .letter = letter,
                      .letters_max = 95,
                      .band = band};

    if (n > 0 && letters * letter > room + 1.0) row.letters_max = (int)(room / n / letter);
    if (row.letters_max < 1) row.letters_max = 1;
    return row;
}

static void write_key(FILE *f, legend_row *row, const char *name, int color)
{
    char cut[4 * 96]; /* of at most 95 characters */

    snprintf(cut, sizeof cut, "%.*s", (int)ls_text_cut(name, (size_t)row->letters_max), name);
    fprintf(f,
            "<rect x=\"%.1f\" y=\"%g\" width=\"10\" height=\"%d\" style=\"fill:var(--c%d)%s\"/>"
            "<text x=\"%.1f\" y=\"%g\" style=\"font-size:%.1fpx\">",
            row->x, row->band ? row->y - 7.0 : row->y - 3.0, row->band ? 9 : 3,
            color % LS_CHART_COLORS, row->band ? ";opacity:.3" : "", row->x + KEY_MARK,
            row->y + 2.0, 13.0 * row->letter / LETTER);
    ls_chart_write_text(f, cut);
    fputs("<title>", f);
    ls_chart_write_text(f, name);
    fputs("</title></text>\n", f);
    row->x += KEY_MARK + KEY_SPACE + row->letter * (double)ls_text_letters(cut, strlen(cut));
}

static void write_legend(FILE *f, const ls_chart *c)
{
    int n = 0, letters = 0;

    for (int s = 0; s < c->n_series; s++) {
        n += c->series[s].name[0] != '\0';
        letters += (int)strlen(c->series[s].name);
    }
    legend_row row = make_row(n, letters, false);
    for (int s = 0; s < c->n_series; s++)
        if (c->series[s].name[0] != '\0') write_key(f, &row, c->series[s].name, c->series[s].color);
    letters = 0;
    for (int b = 0; b < c->n_band_names; b++) letters += (int)strlen(c->band_names[b].name);
    row = make_row(c->n_band_names, letters, true);
    for (int b = 0; b < c->n_band_names; b++)
        write_key(f, &row, c->band_names[b].name, c->band_names[b].color);
}

static void write_labels(FILE *f, const ls_chart *c)
{
    const double middle = 0.5 * (TOP + LEGEND_Y + HEIGHT - BOTTOM);

    fprintf(f, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">", 0.5 * (LEFT + WIDTH - RIGHT),
            HEIGHT - 8.0);
    ls_chart_write_text(f, c->x_label);
    fprintf(f,
            "</text>\n<text x=\"12\" y=\"%g\" text-anchor=\"middle\" transform=\"rotate(-90 12 "
            "%g)\">",
            middle, middle);
    ls_chart_write_text(f, c->y_label);
    fputs("</text>\n", f);
}

/* ---- a chart ------------------------------------------------------------------------------- */

ls_chart_series *ls_chart_add(ls_chart *chart, const char *name, const double *x, const double *y,
                              int64_t n)
{
    if (chart->n_series == LS_CHART_SERIES_MAX) return NULL;
    ls_chart_series *s = &chart->series[chart->n_series];
    *s = (ls_chart_series){.color = chart->n_series, .x = x, .y = y, .n = n};
    snprintf(s->name, sizeof s->name, "%s", name);
    chart->n_series++;
    return s;
}

bool ls_chart_has_data(const ls_chart *chart)
{
    double x[2], y[2];
    find_range(chart, x, y);
    return x[1] >= x[0];
}

void ls_chart_write(FILE *file, const ls_chart *chart, bool standalone)
{
    double x[2], y[2];

    find_range(chart, x, y);
    const axis x_axis = find_x_axis(chart, x), y_axis = find_y_axis(chart, y);
    fprintf(file, "<svg class=\"chart\" viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"", WIDTH,
            HEIGHT);
    ls_chart_write_text(file, chart->title);
    fprintf(file, "\"%s>\n", standalone ? " xmlns=\"http://www.w3.org/2000/svg\"" : "");
    if (standalone) {
        fputs("<style>\n", file);
        ls_chart_write_style(file);
        fprintf(file, "</style><rect width=\"%g\" height=\"%g\" style=\"fill:var(--bg)\"/>\n",
                WIDTH, HEIGHT);
    }
    write_bands(file, chart, &x_axis);
    write_y_ticks(file, &y_axis);
    write_x_ticks(file, &x_axis);
    for (int s = 0; s < chart->n_series; s++)
        if (chart->series[s].points || has_one_value(chart, &chart->series[s]))
            write_points(file, chart, &chart->series[s], &x_axis, &y_axis);
        else
            write_line(file, chart, &chart->series[s], &x_axis, &y_axis);
    write_legend(file, chart);
    write_labels(file, chart);
    fputs("</svg>\n", file);
}
