/* HIP: ROCm -DFAKE_HIP_MAJOR (6), whose memory types were renumbered in 6. */
#ifndef FK_RUNTIME_HIP_H
#define FK_RUNTIME_HIP_H
#include "../core.h"
#include "../abi/hip.h"
#define FK_RUNTIME_PREFIX hip
#define FK_RUNTIME_NAME "hip"
#ifndef FAKE_HIP_MAJOR
#define FAKE_HIP_MAJOR 6
#endif
#define FK_RUNTIME_VERSION (FAKE_HIP_MAJOR * 10000000 + 2 * 100000 + 41133)
#define FK_HOST_ALLOC HostMalloc
#define FK_HOST_FREE HostFree
#define FK_ATTRIBUTES hipPointerAttribute_t
#define FK_MANAGED_FIELD
#if FAKE_HIP_MAJOR < 6
#define FK_MEMORY_TYPE(t) ((t) == cudaMemoryTypeManaged ? hipMemoryTypeUnified5 : (t) - 1)
#define FK_UNKNOWN_POINTER hipErrorInvalidValue /* there is no number for it */
#endif
#define FK_GRAPH_INSTANTIATE_LOG
#define FK_LINK_TYPE 4 /* XGMI */
#include "runtime_names.h"
#endif
