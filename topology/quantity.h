/*
 * quantity.h - a number and where it came from.  Layer: topology (uses base).
 *
 * Every figure of the machine carries its source, so that a plan can say what it rests on.  A
 * figure nobody told is unknown: it has no value, and whoever needs it must say so.
 */
#ifndef LS_QUANTITY_H
#define LS_QUANTITY_H

#include <stdbool.h>

/* In rising order of trust: where two sources tell a figure, the higher is kept. */
typedef enum ls_source {
    LS_SOURCE_UNKNOWN = 0, /* no value */
    LS_SOURCE_ASSUMED,     /* a reasoned guess */
    LS_SOURCE_SPEC,        /* the vendor's figure */
    LS_SOURCE_PUBLISHED,   /* measured by others on such a machine */
    LS_SOURCE_DISCOVERED,  /* this machine told it */
    LS_SOURCE_PROFILE,     /* chosen by the profile: a decision, not a claim */
    LS_SOURCE_MEASURED,    /* timed on this machine */
    LS_SOURCE_COUNT
} ls_source;

typedef struct ls_quantity {
    double value; /* whole numbers are exact to 2^53; truth values are 0 and 1 */
    ls_source source;
    const char *from; /* who told: "hwloc", "sysfs", "profile", ...; static text; NULL if unknown */
} ls_quantity;

/* "unknown", "assumed", ...; never NULL. */
const char *ls_source_name(ls_source source);

/* Read a word of ls_source_name(); false if it is none. */
bool ls_source_parse(const char *text, ls_source *source);

static inline bool ls_known(ls_quantity quantity)
{
    return quantity.source != LS_SOURCE_UNKNOWN;
}

/* Known and not zero; known and zero. */
static inline bool ls_is_true(ls_quantity quantity)
{
    return ls_known(quantity) && quantity.value != 0;
}

static inline bool ls_is_false(ls_quantity quantity)
{
    return ls_known(quantity) && quantity.value == 0;
}

static inline ls_quantity ls_quantity_make(double value, ls_source source, const char *from)
{
    return (ls_quantity){value, source, from};
}

/* A figure that this machine told. */
static inline ls_quantity ls_discovered(double value, const char *from)
{
    return ls_quantity_make(value, LS_SOURCE_DISCOVERED, from);
}

/* Replace *kept by another of equal or higher source. */
static inline void ls_quantity_merge(ls_quantity *kept, ls_quantity other)
{
    if (ls_known(other) && other.source >= kept->source) *kept = other;
}

/* Set *kept if nobody has told it with the same or a higher source: the first teller stands. */
static inline void ls_quantity_fill(ls_quantity *kept, ls_quantity other)
{
    if (other.source > kept->source) *kept = other;
}

#endif
