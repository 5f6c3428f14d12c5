/*
 * cpu_features.h - which instruction sets this machine and its kernel let us use.
 *
 * Layer: kernels, private.  Threads: any; discovered once.
 */
#ifndef LS_CPU_FEATURES_H
#define LS_CPU_FEATURES_H

typedef struct ls_cpu_features {
    int avx2;        /* AVX2 and FMA */
    int avx512;      /* AVX-512 F, BW, DQ, VL */
    int avx512_bf16; /* and its bf16 instructions */
    int sve;         /* aarch64's scalable vectors, of whatever length */
    int amx_bf16;    /* AMX tiles of bf16, permission granted, with avx512_bf16 */
} ls_cpu_features;

/* The features of this machine; never NULL. */
const ls_cpu_features *ls_cpu_features_discover(void);

#endif
