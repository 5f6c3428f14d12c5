/*
 * place.h - the kinds of memory a machine has.  Layer: topology (uses base).
 */
#ifndef LS_PLACE_H
#define LS_PLACE_H

typedef enum ls_place_kind {
    LS_PLACE_HBM = 0, /* device memory */
    LS_PLACE_HOST,    /* Grace LPDDR5X, or the DDR of one NUMA node */
    LS_PLACE_NVME,    /* files in a directory */
    LS_PLACE_COUNT
} ls_place_kind;

/* "hbm", "host", "nvme"; never NULL. */
const char *ls_place_name(ls_place_kind kind);

#endif
