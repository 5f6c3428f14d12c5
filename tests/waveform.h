/*
 * waveform.h - power as a function of time, with its exact integral: what simulated meters measure
 * and what the recorder's joules are held against.
 */
#ifndef LS_WAVEFORM_H
#define LS_WAVEFORM_H

#include <math.h>

typedef enum waveform_kind { WAVE_CONSTANT, WAVE_SQUARE, WAVE_RAMP } waveform_kind;

/* Square: `high` for the first half of each period, then `low`.  Ramp: from low to high within each
 * period, then down to low at once. */
typedef struct waveform {
    waveform_kind kind;
    double low, high, period_s;
} waveform;

static inline double waveform_watts(const waveform *w, double t)
{
    const double at = w->period_s > 0.0 ? t / w->period_s - floor(t / w->period_s) : 0.0;

    if (w->kind == WAVE_CONSTANT) return w->low;
    if (w->kind == WAVE_SQUARE) return at < 0.5 ? w->high : w->low;
    return w->low + (w->high - w->low) * at;
}

/* From 0 to t. */
static inline double waveform_joules(const waveform *w, double t)
{
    const double whole = w->period_s > 0.0 ? floor(t / w->period_s) : 0.0;
    const double at = w->period_s > 0.0 ? t / w->period_s - whole : 0.0;
    const double mean = 0.5 * (w->low + w->high);

    if (w->kind == WAVE_CONSTANT) return w->low * t;
    if (w->kind == WAVE_SQUARE)
        return w->period_s *
               (whole * mean + (at < 0.5 ? at * w->high : 0.5 * w->high + (at - 0.5) * w->low));
    return w->period_s * (whole * mean + at * (w->low + 0.5 * at * (w->high - w->low)));
}

/* What no real meter is without: a few hundredths of a watt, another at each look, zero on
 * average. */
static inline double waveform_ripple(double t, double period_s)
{
    return 0.01 * (fmod(3.0 * floor(t / period_s + 1e-9), 7.0) - 3.0);
}

/* The mean over the window that ends at t; at the beginning over what there is of it. */
static inline double waveform_mean(const waveform *w, double t, double window_s)
{
    const double from = t > window_s ? t - window_s : 0.0;

    if (window_s <= 0.0 || t <= from) return waveform_watts(w, t);
    return (waveform_joules(w, t) - waveform_joules(w, from)) / (t - from);
}

#endif
