/* attention_cudnn_absent.c - a build without cuDNN: opening tells so, nothing else is called. */
#include <assert.h>
#include <stddef.h>

#include "attention_cudnn.h"

ls_status ls_cudnn_open(void)
{
    return LS_FAIL(LS_ERR_UNSUPPORTED,
                   "this build has no cuDNN: configure with -DLS_CUDNN=ON to see what is missing");
}

int32_t ls_cudnn_version(void)
{
    return 0;
}

ls_status ls_cudnn_graph_build(const ls_cudnn_shape *shape, uint64_t workspace_max,
                               ls_cudnn_graph **graph)
{
    (void)shape;
    (void)workspace_max;
    (void)graph;
    return ls_cudnn_open();
}

void ls_cudnn_graph_free(ls_cudnn_graph *graph)
{
    assert(graph == NULL);
    (void)graph;
}

uint64_t ls_cudnn_graph_bytes(const ls_cudnn_graph *graph)
{
    (void)graph;
    return 0;
}

const char *ls_cudnn_graph_engine(const ls_cudnn_graph *graph)
{
    (void)graph;
    return "";
}

ls_status ls_cudnn_graph_run(ls_cudnn_graph *graph, void *stream, const ls_cudnn_operands *operands)
{
    (void)graph;
    (void)stream;
    (void)operands;
    return ls_cudnn_open();
}
