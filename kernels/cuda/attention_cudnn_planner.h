/*
 * attention_cudnn_planner.h - cuDNN's graphs planned where there is no GPU, for one that is
 * described: engines are chosen, compiled and asked for their workspace, and never run.
 *
 * Layer: kernels, private to kernels/cuda and its tests.
 */
#ifndef LS_ATTENTION_CUDNN_PLANNER_H
#define LS_ATTENTION_CUDNN_PLANNER_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instead of ls_cudnn_open().  device_json: what cuDNN writes of a device
 * (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).  LS_ERR_UNSUPPORTED. */
ls_status ls_cudnn_open_planner(const char *device_json);

#ifdef __cplusplus
}
#endif

#endif
