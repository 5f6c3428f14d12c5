/* cublaslt_load.c - cuBLASLt by dlopen, of the major version of the headers. */
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "cublaslt.h"

#define TEXT_OF(x)   #x
#define TEXT(x)      TEXT_OF(x)
#define LIBRARY_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

ls_status ls_cublaslt_load(ls_cublaslt *functions)
{
    void *library = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    ls_cublaslt found;

    if (library == NULL)
        return LS_FAIL(LS_ERR_UNSUPPORTED,
                       "matmul on the GPU needs cuBLASLt: %s; install it, or add "
                       "its folder to LD_LIBRARY_PATH",
                       dlerror());
    const struct {
        const char *name;
        void *at;
    } wanted[] = {
#define WANTED(name) {"cublasLt" #name, &found.name},
        LS_CUBLASLT_LIST(WANTED)
#undef WANTED
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (symbol == NULL)
            return LS_FAIL(LS_ERR_UNSUPPORTED, LIBRARY_NAME " has no %s", wanted[i].name);
        memcpy(wanted[i].at, &symbol, sizeof symbol); /* no cast from object to function in ISO C */
    }
    *functions = found; /* the library stays: its functions are called until exit */
    return LS_OK;
}
