/* onednn_bf16.c - one matmul primitive on plain row-major memory, by the C API of oneDNN 2 or 3. */
#include "onednn_bf16.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>

enum { SRC, WEIGHTS, DST, N_OPERANDS };

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout; /* a pointer since version 3 */
#else
typedef dnnl_memory_desc_t *layout;
#endif

struct onednn_bf16 {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t description;
    dnnl_primitive_t primitive;
    layout layouts[N_OPERANDS];
    dnnl_memory_t memories[N_OPERANDS];
#if DNNL_VERSION_MAJOR < 3
    dnnl_memory_desc_t storage[N_OPERANDS];
#endif
};

/* A rows x cols matrix, stored row by row, or column by column if transposed. */
static int describe(onednn_bf16 *m, int operand, int64_t rows, int64_t cols, int transposed)
{
    const dnnl_dims_t dims = {rows, cols};
    const dnnl_dims_t strides = {transposed ? 1 : cols, transposed ? rows : 1};
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_memory_desc_create_with_strides(&m->layouts[operand], 2, dims, dnnl_bf16,
                                                strides) == dnnl_success;
#else
    m->layouts[operand] = &m->storage[operand];
    return dnnl_memory_desc_init_by_strides(m->layouts[operand], 2, dims, dnnl_bf16, strides) ==
           dnnl_success;
#endif
}

static int create_description(onednn_bf16 *m)
{
#if DNNL_VERSION_MAJOR >= 3
    return dnnl_matmul_primitive_desc_create(&m->description, m->engine, m->layouts[SRC],
                                             m->layouts[WEIGHTS], NULL, m->layouts[DST],
                                             NULL) == dnnl_success;
#else
    dnnl_matmul_desc_t operation;
    return dnnl_matmul_desc_init(&operation, m->layouts[SRC], m->layouts[WEIGHTS], NULL,
                                 m->layouts[DST]) == dnnl_success &&
           dnnl_primitive_desc_create(&m->description, &operation, NULL, m->engine, NULL) ==
               dnnl_success;
#endif
}

static int create_all(onednn_bf16 *m, const ls_matmul_args *args)
{
    /* The C API takes addresses without const. */
    void *addresses[N_OPERANDS] = {(void *)(uintptr_t)args->a, (void *)(uintptr_t)args->b, args->c};

    if (dnnl_engine_create(&m->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&m->stream, m->engine, dnnl_stream_default_flags) != dnnl_success ||
        !describe(m, SRC, args->M, args->K, args->trans_a) ||
        !describe(m, WEIGHTS, args->K, args->N, args->trans_b) ||
        !describe(m, DST, args->M, args->N, 0) || !create_description(m) ||
        dnnl_primitive_create(&m->primitive, m->description) != dnnl_success)
        return 0;
    for (int i = 0; i < N_OPERANDS; i++)
        if (dnnl_memory_create(&m->memories[i], m->layouts[i], m->engine, addresses[i]) !=
            dnnl_success)
            return 0;
    return 1;
}

onednn_bf16 *onednn_bf16_create(const ls_matmul_args *args)
{
    onednn_bf16 *m = calloc(1, sizeof *m);
    if (m == NULL || create_all(m, args)) return m;
    onednn_bf16_destroy(m);
    return NULL;
}

int onednn_bf16_run(onednn_bf16 *multiplication)
{
    const dnnl_exec_arg_t operands[N_OPERANDS] = {
        {DNNL_ARG_SRC, multiplication->memories[SRC]},
        {DNNL_ARG_WEIGHTS, multiplication->memories[WEIGHTS]},
        {DNNL_ARG_DST, multiplication->memories[DST]},
    };
    return dnnl_primitive_execute(multiplication->primitive, multiplication->stream, N_OPERANDS,
                                  operands) == dnnl_success &&
                   dnnl_stream_wait(multiplication->stream) == dnnl_success
               ? 0
               : -1;
}

void onednn_bf16_destroy(onednn_bf16 *multiplication)
{
    if (multiplication == NULL) return;
    for (int i = 0; i < N_OPERANDS; i++) {
        if (multiplication->memories[i] != NULL) dnnl_memory_destroy(multiplication->memories[i]);
#if DNNL_VERSION_MAJOR >= 3
        if (multiplication->layouts[i] != NULL)
            dnnl_memory_desc_destroy(multiplication->layouts[i]);
#endif
    }
    if (multiplication->primitive != NULL) dnnl_primitive_destroy(multiplication->primitive);
    if (multiplication->description != NULL)
        dnnl_primitive_desc_destroy(multiplication->description);
    if (multiplication->stream != NULL) dnnl_stream_destroy(multiplication->stream);
    if (multiplication->engine != NULL) dnnl_engine_destroy(multiplication->engine);
    free(multiplication);
}
