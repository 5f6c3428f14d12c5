/* cublaslt_here.c - cuBLASLt's functions are the emulation's: nothing to load. */
#include "cublaslt.h"

ls_status ls_cublaslt_load(ls_cublaslt *functions)
{
#define FUNCTION(name) functions->name = cublasLt##name;
    LS_CUBLASLT_LIST(FUNCTION)
#undef FUNCTION
    return LS_OK;
}
